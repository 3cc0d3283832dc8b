"""`regard info`: print versions and kernels, and which backend is chosen for a call and why."""

from __future__ import annotations

import argparse
import platform
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from .. import __version__
from ..attention import Additive, Bilinear
from ..attention.backends import BACKENDS, choose
from ..attention.native import description
from ..attention.request import Request
from ..core.tensors import shape

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("scaled dot", {}),
    ("causal", {"is_causal": True}),
    ("window of 1,024", {"window": (1024, 0)}),
    ("softcap", {"softcap": 30.0}),
    ("hard", {"weighting": "hard"}),
    ("additive", {"similarity": Additive(torch.ones(64, device="meta"))}),
    ("callable", {"similarity": lambda q, k: q @ k.mT}),
]
SIMILARITIES = ("scaled_dot", "dot", "cosine", "bilinear", "additive")
DTYPES = ("float32", "float64", "bfloat16", "float16")


EXAMPLE = "example:\n  regard info --shape 1,8,8192,64 --causal"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--shape", metavar="B,H,T,D", help="batch sizes, queries and width of a call, such as 1,8,8192,64"
    )
    parser.add_argument("--keys", metavar="N", help="number of keys (default: number of queries)")
    parser.add_argument("--causal", action="store_true", help="use a causal mask")
    parser.add_argument(
        "--similarity", default="scaled_dot", help="similarity, such as additive (default: %(default)s)"
    )
    parser.add_argument("--dtype", default="float32", help="data type, such as bfloat16 (default: %(default)s)")
    parser.add_argument("--grad", action="store_true", help="with gradients")


def run(options: argparse.Namespace) -> int:
    """Print versions and kernels, then the choice of backend for one call or for common calls."""
    if options.shape is None and options.keys is not None:
        raise ValueError(f"keys ({options.keys}) must come with the shape of a call. Try --shape 1,8,8192,64.")
    request = None if options.shape is None else _request(options)
    console = Console()
    console.print(f"regard {__version__}, torch {torch.__version__}, Python {platform.python_version()}")
    console.print(f"{torch.get_num_threads()} threads, {platform.machine()}, backends: {', '.join(BACKENDS)}")
    console.print(f"native kernels: {description()}\n", highlight=False, soft_wrap=True)  # a path stays whole
    if request is not None:
        _show_call(console, request, options)
        return 0
    table = Table("call, (1, 8, 8192, 64)", "backend", "why", box=None, pad_edge=False)
    x = torch.empty(1, 8, 8192, 64, device="meta")
    for name, call in CALLS:
        choice = choose(Request.of(x, x, x, **call))
        table.add_row(name, choice.backend.name, choice.why)
    console.print(table)
    return 0


def _request(options: argparse.Namespace) -> Request:
    """Return the request that the options describe, with meta tensors: the choice does not depend on values."""
    *lead, queries, width = _sizes(options.shape)
    keys = queries if options.keys is None else _size("keys", options.keys)
    for name, known in (("similarity", SIMILARITIES), ("dtype", DTYPES)):
        value = getattr(options, name)
        if value not in known:
            raise ValueError(f"{name} ({value!r}) must be one of {', '.join(known)}.")

    def tensor(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=getattr(torch, options.dtype), device="meta", requires_grad=options.grad)

    similarity: Any = options.similarity
    if similarity == "additive":
        similarity = Additive(tensor(width))
    elif similarity == "bilinear":
        similarity = Bilinear(tensor(width, width))
    q, k, v = tensor(*lead, queries, width), tensor(*lead, keys, width), tensor(*lead, keys, width)
    return Request.of(q, k, v, is_causal=options.causal, similarity=similarity)


def _show_call(console: Console, request: Request, options: argparse.Namespace) -> None:
    choice = choose(request)
    causal, grad = ["causal"] * options.causal, "with gradients" if options.grad else "forward"
    sizes = f"{shape(request.q)}, {request.k.shape[-2]} keys"
    console.print(", ".join([sizes, options.similarity, *causal, options.dtype, grad]), highlight=False)
    console.print(f"auto chooses {choice.backend.name}: {choice.why}.", highlight=False)
    for name, backend in BACKENDS.items():
        refusal = backend.refusal(request)
        console.print(f"  {name:<9}  {'supported' if refusal is None else f'no: {refusal}'}", highlight=False)


def _sizes(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if len(parts) < 2:
        raise ValueError(
            f"shape ({text!r}) must be two or more sizes that end with queries and width; got {len(parts)}. "
            "Try --shape 1,8,8192,64."
        )
    return [_size("shape", part, text) for part in parts]


def _size(name: str, part: str, text: str | None = None) -> int:
    if not part.isdecimal() or int(part) < 1:
        raise ValueError(
            f"{name} ({part if text is None else text!r}) must be integers of at least 1; got {part!r}. "
            f"Try --{name} {'1,8,8192,64' if name == 'shape' else '8192'}."
        )
    return int(part)
