"""The C++ kernels, if this machine has them.

`module` is the extension `regard._native`, or None, and then `reason` says why. The environment variable REGARD_NATIVE
switches it off (`0`) or names another build of it to load (the path of its file), such as a sanitized one.
REGARD_MAX_CPU_ISA (`baseline`, `avx2` or `avx512`) caps the instruction set of the kernels, as if this were an older
machine; the extension reads it once, when it is loaded.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import torch

NAME = "regard._native"
ISA_CAP = "REGARD_MAX_CPU_ISA"
ISAS = ("baseline", "avx2", "avx512")
"""The instruction sets the kernels are compiled for: SSE2 or NEON, then those of newer x86 machines."""


def _load() -> tuple[ModuleType | None, str]:
    """The module or None, and a sentence on where it comes from or why there is none."""
    wish = os.environ.get("REGARD_NATIVE", "")
    if wish == "0":
        return None, "switched off by REGARD_NATIVE=0"
    cap = os.environ.get(ISA_CAP, "")
    if cap and cap not in ISAS:
        return None, f"{ISA_CAP} ({cap}) must be one of {', '.join(ISAS)}"
    try:
        found = _from_file(wish) if wish not in ("", "1") else importlib.import_module(NAME)
    except ModuleNotFoundError:
        return None, "not built: no C++ compiler served when regard was installed; install one, then regard again"
    except (ImportError, OSError) as error:
        return None, f"built, but it does not load: {error}"
    address = pool()
    found.use_pool(address)
    return found, f"{found.__file__}, {'in the thread pool of torch' if address else 'with threads of its own'}"


def _from_file(path: str) -> ModuleType:
    if not Path(path).is_file():
        raise ImportError(f"REGARD_NATIVE ({path}) must be 0, 1 or the path of a built module; there is no such file")
    spec = importlib.util.spec_from_file_location(NAME, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"REGARD_NATIVE ({path}) must be 0, 1 or the path of a built module; this is none")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    sys.modules[NAME] = found
    return found


@functools.cache
def pool() -> int:
    """The address of GOMP_parallel in the OpenMP runtime that torch runs on; 0 where it has none.

    Asked of torch's library, the loader looks through what that library was linked with: so this is torch's runtime,
    even in a process that holds several. Every runtime on which torch ships for Linux offers the name.
    """
    for path in sorted((Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*")):
        try:
            return ctypes.cast(ctypes.CDLL(str(path)).GOMP_parallel, ctypes.c_void_p).value or 0
        except (AttributeError, OSError):
            continue
    return 0


module, reason = _load()
