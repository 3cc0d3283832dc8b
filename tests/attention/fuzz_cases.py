"""Random calls of the operator: `make(number)` returns the same case on every machine.

A case stores its tensors in float64, already rounded to the dtype of the call, and everything else that the call needs:
memory layouts, which tensors require gradients, and the positions of NaN and infinity. `fuzz_reference.py` computes the
expected result; `test_fuzz.py` compares.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tests.attention.oracle import allowed_pairs

SEED = 19
EXTREMES = os.environ.get("REGARD_FUZZ_EXTREMES", "0") == "1"
"""Whether rows may be masked throughout by large finite numbers, and scores may exceed 1e8."""
DTYPES = (torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16)
SIMILARITIES = ("scaled_dot", "scaled_dot", "dot", "cosine", "bilinear", "additive", "mlp")
LAYOUTS = ("plain", "plain", "plain", "transposed", "heads inside", "sliced", "offset", "expanded")
JUNK = (torch.nan, torch.inf, -torch.inf)


@dataclass
class Case:
    number: int
    dtype: torch.dtype
    similarity: str
    x: dict[str, Tensor]
    """q, k, v, the parameters of the similarity, and a float mask, in float64 and finite except for a mask's −∞"""
    options: dict[str, Any]
    lead: tuple[int, ...]
    lengths: tuple[list[int], list[int]] | None = None
    """Queries and keys of each sequence, for `attend_packed`; then q, k and v are (tokens, heads, width)."""
    layouts: dict[str, str] = field(default_factory=dict)
    wanted: tuple[str, ...] = ()
    junk: dict[str, Tensor] = field(default_factory=dict)
    """For q, k and v: non-finite numbers that replace elements; 0 means unchanged."""
    affected: Tensor = field(default_factory=lambda: torch.zeros(()))
    """Which rows of the context attend to non-finite numbers, (*lead, Tq, 1)."""

    def describe(self) -> str:
        shapes = {name: tuple(x.shape) for name, x in self.x.items()}
        options = {k: tuple(v.shape) if isinstance(v, Tensor) else v for k, v in self.options.items()}
        return (
            f"case {self.number}: {str(self.dtype).removeprefix('torch.')} {self.similarity} {shapes} {options} "
            f"lengths={self.lengths} layouts={self.layouts} wanted={self.wanted} junk={sorted(self.junk)}"
        )


class Draw(random.Random):
    """Random choices and tensors from one seed."""

    def __init__(self, number: int) -> None:
        super().__init__(SEED * 1_000_003 + number)
        self.generator = torch.Generator().manual_seed(SEED * 1_000_003 + number)

    def chance(self, p: float) -> bool:
        return self.random() < p

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def boolean(self, p: float, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator) < p


def make(number: int) -> Case:
    draw = Draw(number)
    case = _packed(draw, number) if draw.chance(0.15) else _plain(draw, number)
    if case.options.get("weighting") == "hard":  # the argmax of two close scores depends on rounding
        case.dtype = torch.float64
    if not case.x["q"].to(case.dtype).isfinite().all():  # the maximum of float16 is 65504
        case.dtype = torch.float32
    case.x = {name: x.to(case.dtype).double() for name, x in case.x.items()}
    case.wanted = tuple(case.x) if draw.chance(0.7) else tuple(name for name in case.x if draw.chance(0.5))
    _plant(draw, case)
    case.layouts["grad"] = draw.choice(("plain", "plain", "transposed", "heads inside", "expanded"))
    for name in ("q", "k", "v"):
        case.layouts[name] = layout = draw.choice(LAYOUTS)
        if layout == "expanded":
            case.layouts[name] = "plain" if name in case.junk else layout
            dim = 1 if case.lengths else 0
            if case.x[name].ndim > 2 and name not in case.junk:
                case.x[name] = case.x[name].narrow(dim, 0, min(1, case.x[name].shape[dim])).expand_as(case.x[name])
    return case


def arrange(x: Tensor, layout: str) -> Tensor:
    """Return the same values in another memory layout."""
    if layout == "transposed" or (layout == "heads inside" and x.ndim < 3):
        return x.mT.contiguous().mT
    if layout == "heads inside":
        return x.transpose(-3, -2).contiguous().transpose(-3, -2)
    if layout == "sliced":
        return torch.stack((torch.full_like(x, torch.nan), x), -1).flatten(-2)[..., 1::2]
    if layout == "offset":
        return torch.nn.functional.pad(x, (2, 3), value=torch.nan)[..., 2 : 2 + x.shape[-1]]
    return x if layout == "expanded" else x.contiguous()


def _size(draw: Draw) -> tuple[int, int]:
    """Draw the number of queries and keys: mostly few, sometimes none, sometimes several blocks of a kernel."""
    if draw.chance(0.04):
        return draw.choice((40, 65)), draw.choice((130, 150))
    sizes = (0, 1, 1, 2, 3, 4, 5, 7, 8, 13, 17) if draw.chance(0.3) else (2, 3, 5, 6, 9, 16, 19)
    return draw.choice(sizes), draw.choice(sizes)


def _plain(draw: Draw, number: int) -> Case:
    queries, keys = _size(draw)
    width, value_width = draw.choice((1, 2, 3, 4, 8, 16, 17)), draw.choice((1, 3, 4, 8, 16, 19))
    lead = tuple(draw.choice((1, 2, 3)) for _ in range(draw.choice((0, 1, 2, 2, 2, 3))))
    if queries > 20:
        lead = tuple(min(n, 2) for n in lead[-2:])
    elif lead and draw.chance(0.05):
        at = draw.randrange(len(lead))
        lead = (*lead[:at], 0, *lead[at + 1 :])
    similarity = draw.choice(SIMILARITIES)
    grouped = len(lead) > 0 and lead[-1] > 0 and draw.chance(0.25)
    groups = draw.choice((1, 2, 3)) if grouped else 1
    shared = lead
    if grouped:
        lead = (*lead[:-1], lead[-1] * groups)
    key_width = draw.choice((1, 5, 9)) if similarity == "bilinear" and draw.chance(0.3) else width
    size = draw.choice((0.1, 1.0, 1.0, 1.0, 3.0)) * (1e8 if EXTREMES and draw.chance(0.05) else 1.0)
    x = {
        "q": size * draw.normal(*_broadcast(draw, lead, grouped), queries, width),
        "k": draw.normal(*_broadcast(draw, shared, grouped), keys, key_width),
        "v": draw.normal(*_broadcast(draw, shared, grouped), keys, value_width),
    }
    heads = [x["q"].shape[:-2], *((*n[:-1], n[-1] * groups) if grouped else n for n in _leads(x))]
    lead = tuple(torch.broadcast_shapes(*heads))
    x |= _parameters(draw, similarity, lead, width, key_width)
    options = _options(draw, similarity, lead, queries, keys)
    if grouped:
        options["enable_gqa"] = True
    mask = _dense_mask(draw, lead, queries, keys)
    if mask is not None and mask.dtype != torch.bool and (mask < -1e3).logical_and(mask > -torch.inf).any():
        hidden = (
            () if EXTREMES else ("is_causal", "window", "causal_offset", "lengths")
        )  # otherwise a row may have no key
        options = {name: option for name, option in options.items() if name not in hidden}
    if mask is not None and mask.dtype == torch.bool:
        options["attn_mask"] = mask
    elif mask is not None:
        x["mask"] = mask
    return Case(number, draw.choice(DTYPES), similarity, x, options, lead)


def _leads(x: dict[str, Tensor]) -> list[tuple[int, ...]]:
    return [tuple(x[name].shape[:-2]) for name in ("k", "v")]


def _packed(draw: Draw, number: int) -> Case:
    sequences = draw.choice((0, 1, 2, 3, 5))
    queries = [draw.choice((0, 1, 2, 3, 5, 9, 20)) for _ in range(sequences)]
    keys = [draw.choice((0, 1, 2, 4, 8)) for _ in range(sequences)] if draw.chance(0.4) else queries
    heads, groups = draw.choice((1, 2, 3)), draw.choice((1, 1, 1, 2))
    width, value_width = draw.choice((1, 4, 8, 17)), draw.choice((1, 4, 8, 17))
    similarity = draw.choice(SIMILARITIES)
    x = {
        "q": draw.normal(sum(queries), heads * groups, width),
        "k": draw.normal(sum(keys), heads, width),
        "v": draw.normal(sum(keys), heads, value_width),
        **_parameters(draw, similarity, (heads * groups,), width, width),
    }
    options = _options(draw, similarity, (), 3, 3)
    for name in ("lengths", "causal_offset"):
        options.pop(name, None)
    if groups > 1:
        options["enable_gqa"] = True
    return Case(number, draw.choice(DTYPES), similarity, x, options, (heads * groups,), (queries, keys))


def _broadcast(draw: Draw, lead: tuple[int, ...], grouped: bool) -> tuple[int, ...]:
    """Draw leading dimensions that broadcast to these: some are 1, and some of the first are omitted."""
    if not lead or draw.chance(0.6):
        return lead
    free, fixed = (lead[:-1], lead[-1:]) if grouped else (lead, ())
    free = tuple(1 if draw.chance(0.4) else n for n in free)
    return (*free[draw.randint(0, len(free)) :], *fixed)


def _parameters(draw: Draw, similarity: str, lead: tuple[int, ...], width: int, key_width: int) -> dict[str, Tensor]:
    ahead = lead[-1:] if draw.chance(0.4) else ()  # one per head
    if similarity == "bilinear":
        return {"W": draw.normal(*ahead, width, key_width) / width**0.5}
    if similarity == "additive":
        return {"w": draw.normal(*ahead, width)}
    return {"w1": draw.normal(width, 4), "w2": draw.normal(4)} if similarity == "mlp" else {}


def _options(draw: Draw, similarity: str, lead: tuple[int, ...], queries: int, keys: int) -> dict[str, Any]:
    options: dict[str, Any] = {"weighting": draw.choice(("softmax",) * 5 + ("hard", "uniform"))}
    if draw.chance(0.2):
        options["softcap"] = draw.choice((0.5, 2.0, 30.0))
    if similarity not in ("additive", "mlp") and draw.chance(0.2):
        options["scale"] = draw.choice((0.0, -0.7, 0.3, 2.0))
    if draw.chance(0.3):
        options["is_causal"] = True
    if draw.chance(0.2):
        options["window"] = draw.choice(((0, None), (None, 0), (1, None), (None, 3), (1, 2), (3, 0), (0, 3)))
    if ("is_causal" in options or "window" in options) and draw.chance(0.5):
        options["causal_offset"] = _per_entry(draw, lead, -3, keys + 1)
    if draw.chance(0.3):
        options["lengths"] = _per_entry(draw, lead, 0, keys)
    return options


def _per_entry(draw: Draw, lead: tuple[int, ...], low: int, high: int) -> int | list[int] | Tensor:
    """Draw an integer, or one per entry of the first leading dimensions."""
    if not lead or draw.chance(0.4):
        return draw.randint(low, high)
    ahead = lead[:1] if draw.chance(0.7) else lead[: draw.randint(1, len(lead))]
    numbers = torch.randint(low, high + 1, ahead, generator=draw.generator)
    return numbers.tolist() if numbers.ndim == 1 and len(numbers) and draw.chance(0.5) else numbers


def _dense_mask(draw: Draw, lead: tuple[int, ...], queries: int, keys: int) -> Tensor | None:
    kind = draw.choice(("none", "none", "none", "boolean", "boolean", "added", "infinite", "large"))
    if kind == "none":
        return None
    rows, cols = (1 if draw.chance(0.2) else queries), (1 if draw.chance(0.1) else keys)
    shape = (cols,) if draw.chance(0.1) else (*_broadcast(draw, lead, False), rows, cols)
    allowed = draw.boolean(draw.choice((0.2, 0.7, 0.9)), *shape)
    if kind == "boolean":
        return allowed
    added = draw.normal(*shape)
    if kind == "infinite":
        return torch.where(allowed, added, -torch.inf)
    if kind == "large":
        if not EXTREMES and cols:  # each row keeps a key
            allowed[..., draw.randrange(cols)] = True
        return torch.where(allowed, added, draw.choice((-1e4, -1e9, torch.finfo(torch.float32).min)))
    return added


def reachable(case: Case) -> Tensor:
    """Return which queries may attend to which keys, (*lead, Tq, Tk)."""
    q, k = case.x["q"], case.x["k"]
    if case.lengths is None:
        allowed = allowed_pairs((*case.lead, q.shape[-2], k.shape[-2]), case.options)
        mask = case.x.get("mask", case.options.get("attn_mask"))
        return allowed if mask is None else allowed & (mask if mask.dtype == torch.bool else mask > -torch.inf)
    queries, keys = case.lengths
    blocks = [allowed_pairs((tq, tk), case.options) for tq, tk in zip(queries, keys, strict=True)]
    allowed = torch.block_diag(*blocks).bool() if blocks else torch.zeros(0, 0, dtype=torch.bool)
    return allowed.reshape(sum(queries), sum(keys)).expand(*case.lead, -1, -1)  # (H, Nq, Nk)


def _any_to(x: Tensor, shape: tuple[int, ...], groups: int = 1) -> Tensor:
    """Reduce booleans to a shape that broadcasts: True if any broadcast entry is True."""
    if groups > 1:
        x = x.unflatten(-2, (-1, groups)).any(-2)
    return x.double().sum_to_size(shape).bool()


def _plant(draw: Draw, case: Case) -> None:
    """Insert NaN and infinity where no query attends, and sometimes NaN where only some queries attend."""
    q, k, v = (case.x[name].transpose(0, 1) if case.lengths else case.x[name] for name in ("q", "k", "v"))
    pairs = reachable(case)
    case.affected = torch.zeros((*pairs.shape[:-1], 1), dtype=torch.bool)
    masked = "mask" in case.x or case.options.keys() & {"attn_mask", "lengths", "is_causal", "window"}
    several = case.lengths is not None and len(case.lengths[0]) > 1
    if not (masked or several) or not draw.chance(0.6):
        return
    # without a mask NaN may reach the gradients of its own sequence, but not those of parameters that all share
    partly = draw.chance(0.3) and case.options["weighting"] != "uniform" and (masked or "W" in case.wanted)
    groups = q.shape[-3] // k.shape[-3] if case.options.get("enable_gqa") else 1
    seen_k, seen_q = pairs.any(-2), pairs.any(-1)  # (*lead, Tk), (*lead, Tq)
    for name, x, seen in (("q", q, seen_q), ("k", k, seen_k), ("v", v, seen_k)):
        free = ~_any_to(seen, tuple(x.shape[:-1]), 1 if name == "q" else groups)  # (..., T)
        where = (free & draw.boolean(0.7, *free.shape)).unsqueeze(-1) & draw.boolean(draw.choice((0.3, 1)), *x.shape)
        junk = torch.where(where, draw.choice(JUNK), 0.0).to(torch.float64)
        if partly and name != "q" and free.numel():
            junk[..., draw.randrange(free.shape[-1]), :] = torch.nan
        case.junk[name] = junk.transpose(0, 1) if case.lengths else junk
    if partly:
        case.affected = _attending(case, pairs, groups)


def _attending(case: Case, pairs: Tensor, groups: int) -> Tensor:
    """Return which queries attend to a non-finite key or value, (*lead, Tq, 1)."""
    affected = torch.zeros((*pairs.shape[:-1], 1), dtype=torch.bool)
    for name in ("k", "v"):
        junk = case.junk[name].transpose(0, 1) if case.lengths else case.junk[name]
        bad = (junk != 0).any(-1, keepdim=True)  # (..., Tk, 1)
        bad = bad.repeat_interleave(groups, -3) if groups > 1 else bad
        affected |= (pairs & bad.mT).any(-1, keepdim=True)
    return affected
