"""`regard info`: what is built and in use, and which backend serves a call and why."""

from __future__ import annotations

import argparse
import platform
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from .. import __version__
from ..attention import Additive, Bilinear
from ..attention.backends import BACKENDS, choose
from ..attention.native import description
from ..attention.request import Request

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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shape", metavar="B,H,T,D", help="leading sizes, queries and width of a call, as 1,8,8192,64")
    parser.add_argument("--keys", metavar="N", help="number of keys (default: that of queries)")
    parser.add_argument("--causal", action="store_true", help="under a causal mask")
    parser.add_argument("--similarity", default="scaled_dot", help="such as additive (default: %(default)s)")
    parser.add_argument("--dtype", default="float32", help="such as bfloat16 (default: %(default)s)")
    parser.add_argument("--grad", action="store_true", help="with gradients")


def run(options: argparse.Namespace) -> int:
    """Print what there is; the result is an exit status."""
    if options.shape is None and options.keys is not None:
        raise ValueError(f"keys ({options.keys}) must come with the shape of a call. Try --shape 1,8,8192,64.")
    show(call=None if options.shape is None else Call.of(options))
    return 0


@dataclass(frozen=True)
class Call:
    """A call of `attend`, by its sizes."""

    lead: tuple[int, ...]
    queries: int
    keys: int
    width: int
    causal: bool = False
    similarity: str = "scaled_dot"
    dtype: str = "float32"
    grad: bool = False

    @classmethod
    def of(cls, options: argparse.Namespace) -> Call:
        """Read the options; raises ValueError with the value and the remedy."""
        *lead, queries, width = _sizes(options.shape)
        keys = queries if options.keys is None else _size("keys", options.keys)
        for name, known in (("similarity", SIMILARITIES), ("dtype", DTYPES)):
            given = getattr(options, name)
            if given not in known:
                raise ValueError(f"{name} ({given!r}) must be one of {', '.join(known)}.")
        return cls(tuple(lead), queries, keys, width, options.causal, options.similarity, options.dtype, options.grad)

    def request(self) -> Request:
        """The choice depends on what is asked, not on the numbers: so there are none."""
        dtype = getattr(torch, self.dtype)

        def made(*shape: int) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device="meta", requires_grad=self.grad)

        similarity: Any = self.similarity
        if similarity == "additive":
            similarity = Additive(made(self.width))
        elif similarity == "bilinear":
            similarity = Bilinear(made(self.width, self.width))
        k, v = (made(*self.lead, self.keys, self.width) for _ in range(2))
        q = made(*self.lead, self.queries, self.width)
        return Request.of(q, k, v, is_causal=self.causal, similarity=similarity)

    def __str__(self) -> str:
        sizes = "×".join(map(str, (*self.lead, self.queries, self.width)))
        parts = [f"{sizes}, {self.keys} keys", self.similarity, *(["causal"] if self.causal else []), self.dtype]
        return ", ".join([*parts, "with gradients" if self.grad else "forward"])


def show(console: Console | None = None, call: Call | None = None) -> None:
    """Print what there is, and then the choice for one call or for some that are common."""
    console = console or Console()
    console.print(f"regard {__version__}, torch {torch.__version__}, Python {platform.python_version()}")
    console.print(f"{torch.get_num_threads()} threads, {platform.machine()}, backends: {', '.join(BACKENDS)}")
    console.print(f"native kernels: {description()}\n", highlight=False)
    if call is not None:
        return _show_call(console, call)
    table = Table("call, (1, 8, 8192, 64)", "backend", "why", box=None, pad_edge=False)
    x = torch.empty(1, 8, 8192, 64, device="meta")
    for name, options in CALLS:
        choice = choose(Request.of(x, x, x, **options))
        table.add_row(name, choice.backend.name, choice.why)
    console.print(table)
    return None


def _show_call(console: Console, call: Call) -> None:
    request = call.request()
    choice = choose(request)
    console.print(f"{call}", highlight=False)
    console.print(f"auto takes {choice.backend.name}: {choice.why}.", highlight=False)
    for name, backend in BACKENDS.items():
        refusal = backend.refusal(request)
        console.print(f"  {name:<9}  {'serves it' if refusal is None else f'no: {refusal}'}", highlight=False)


def _sizes(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if len(parts) < 2:
        raise ValueError(
            f"shape ({text!r}) must be two or more sizes, the last of them queries and width; got {len(parts)}. "
            "Try --shape 1,8,8192,64."
        )
    return [_size("shape", part, text) for part in parts]


def _size(name: str, part: str, text: str | None = None) -> int:
    if not part.isdecimal() or int(part) < 1:
        raise ValueError(
            f"{name} ({part if text is None else text!r}) must be whole numbers of 1 or more; got {part!r}. "
            f"Try --{name} {'1,8,8192,64' if name == 'shape' else '8192'}."
        )
    return int(part)
