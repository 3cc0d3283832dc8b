"""Record the attention of a running model, store it in captures, and summarize it.

`regard.watch` starts a recording. Its results are here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.lazy_names import lazy_names

if TYPE_CHECKING:
    from .captures import load_capture
    from .head_profile import Profile, profile
    from .patch_weights import Patches
    from .rollout import Rollout
    from .seen import Seen
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            ".captures": ["load_capture"],
            ".head_profile": ["Profile", "profile"],
            ".patch_weights": ["Patches"],
            ".rollout": ["Rollout"],
            ".seen": ["Seen"],
        },
    )

__all__ = ["Patches", "Profile", "Rollout", "Seen", "load_capture", "profile"]
