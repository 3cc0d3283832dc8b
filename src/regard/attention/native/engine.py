"""Load the C++ kernels, if they are available.

`module` is the extension `regard._native`, or None; `reason` then explains why. The environment variable REGARD_NATIVE
disables it (`0`) or is the path of another build to load, such as one with sanitizers. REGARD_MAX_CPU_ISA (`baseline`,
`avx2` or `avx512`) limits the instruction set of the kernels, to emulate an older machine. The extension reads it once,
when it is loaded.
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
"""Instruction sets for which the kernels are compiled: SSE2 or NEON, then those of newer x86 machines."""


def _load() -> tuple[ModuleType | None, str]:
    """Return the module or None, and a description of its origin or the reason why there is none."""
    setting = os.environ.get("REGARD_NATIVE", "")
    if setting == "0":
        return None, "switched off by REGARD_NATIVE=0"
    cap = os.environ.get(ISA_CAP, "")
    if cap and cap not in ISAS:
        return None, f"{ISA_CAP} ({cap}) must be one of {', '.join(ISAS)}"
    try:
        extension = _from_file(setting) if setting not in ("", "1") else importlib.import_module(NAME)
    except ModuleNotFoundError:
        return (
            None,
            "not built: no suitable C++ compiler when regard was installed. Install one, then reinstall regard",
        )
    except (ImportError, OSError) as error:
        return None, f"built, but it does not load: {error}"
    address = pool()
    extension.use_pool(address)
    return extension, f"{extension.__file__}, {'in the thread pool of torch' if address else 'with its own threads'}"


def _from_file(path: str) -> ModuleType:
    if not Path(path).is_file():
        raise ImportError(f"REGARD_NATIVE ({path}) must be 0, 1 or the path of a built module; got no such file")
    spec = importlib.util.spec_from_file_location(NAME, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"REGARD_NATIVE ({path}) must be 0, 1 or the path of a built module; got another file")
    extension = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(extension)
    sys.modules[NAME] = extension
    return extension


@functools.cache
def pool() -> int:
    """Return the address of GOMP_parallel in the OpenMP runtime of torch; 0 if it has none.

    Looking up the symbol through torch's library finds the runtime that this library is linked with, even if a process
    has loaded several. Every OpenMP runtime that torch ships with on Linux exports this symbol.
    """
    for path in sorted((Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*")):
        try:
            return ctypes.cast(ctypes.CDLL(str(path)).GOMP_parallel, ctypes.c_void_p).value or 0
        except (AttributeError, OSError):
            continue
    return 0


module, reason = _load()
