"""`regard info`: what is installed, and which backend serves which call and why."""

from __future__ import annotations

import platform
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from . import __version__
from .attention import Additive, engine
from .attention.choose import BACKENDS, choose
from .attention.request import Request

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("scaled dot", {}),
    ("causal", {"is_causal": True}),
    ("window of 1,024", {"window": (1024, 0)}),
    ("softcap", {"softcap": 30.0}),
    ("hard", {"weighting": "hard"}),
    ("additive", {"similarity": Additive(torch.ones(64))}),
    ("callable", {"similarity": lambda q, k: q @ k.mT}),
]


def show(console: Console | None = None) -> None:
    """Print it."""
    console = console or Console()
    console.print(f"regard {__version__}, torch {torch.__version__}, Python {platform.python_version()}")
    console.print(f"{torch.get_num_threads()} threads, {platform.machine()}, backends: {', '.join(BACKENDS)}")
    built = "not here" if engine.module is None else f"{engine.module.isa()} of {', '.join(engine.module.isas())}"
    console.print(f"native kernels: {built} ({engine.reason})\n", highlight=False)
    table = Table("call, (1, 8, 8192, 64)", "backend", "why", box=None, pad_edge=False)
    x = torch.empty(1, 8, 8192, 64, device="meta")  # the choice depends on what is asked, not on the numbers
    for name, options in CALLS:
        similarity = options.get("similarity")
        if isinstance(similarity, Additive):
            options = {**options, "similarity": Additive(similarity.weight.to("meta"))}
        choice = choose(Request.of(x, x, x, **options))
        table.add_row(name, choice.backend.name, choice.why)
    console.print(table)
