"""Invalid arguments raise an error that names the value and a remedy."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import regard

B, H, TQ, TK, D, DV = 2, 3, 5, 7, 4, 6


def attend(**changed: Any) -> Any:
    arguments: dict[str, Any] = {
        "query": torch.randn(B, H, TQ, D),
        "key": torch.randn(B, H, TK, D),
        "value": torch.randn(B, H, TK, DV),
    }
    return regard.attend(**arguments | changed)


MESSAGES: list[tuple[dict[str, Any], str]] = [
    ({"query": [[1.0]]}, "attend: query must be a tensor; got list. Try torch.as_tensor."),
    (
        {"key": torch.randn(D)},
        "key (4) must have at least the dimensions (length, width); got 1. For one vector use x[None]",
    ),
    (
        {"value": torch.ones(B, H, TK, DV, dtype=torch.long)},
        "value (2×3×7×6) must be float64, float32, bfloat16 or float16; got int64",
    ),
    (
        {"key": torch.randn(B, H, TK, D).double()},
        "key must have the dtype of query (float32); got float64. Try key.to(query.dtype)",
    ),
    (
        {"value": torch.randn(B, H, TK, DV, device="meta")},
        "value must be on the device of query (cpu); got meta. Try value.to(query.device)",
    ),
    (
        {"key": torch.randn(B, H, TK, D + 1)},
        "key (2×3×7×5) must be as wide as query (4); got 5. regard.Bilinear(W) compares",
    ),
    (
        {"value": torch.randn(B, H, TK + 1, DV)},
        "value (2×3×8×6) must have one row for each key (2×3×7×4): 7 rows; got 8",
    ),
    ({"query": torch.randn(B, H, TQ, 0)}, "key (2×3×7×4) must be as wide as query (0); got 4"),
    (
        {"key": torch.randn(5, H, TK, D)},
        "leading dimensions of query (2×3×5×4), key (5×3×7×4) and value (2×3×7×6) must broadcast.",
    ),
    (
        {"query": torch.randn(B, 8, TQ, D), "key": torch.randn(B, 2, TK, D), "value": torch.randn(B, 2, TK, DV)},
        "For 8 query heads that share 2 key heads pass enable_gqa=True.",
    ),
    (
        {"query": torch.randn(B, 8, TQ, D), "enable_gqa": True},
        "heads of query (8) must be a multiple of those of key (3) under enable_gqa; got query 2×8×5×4, key 2×3×7×4",
    ),
    (
        {"query": torch.randn(B, 6, TQ, D), "value": torch.randn(B, 2, TK, DV), "enable_gqa": True},
        "value must have as many heads as key (3) under enable_gqa; got 2 in 2×2×7×6",
    ),
    ({"attn_mask": torch.ones(TQ, TK + 1, dtype=torch.bool)}, "attn_mask (5×8) must broadcast to 2×3×5×7"),
    ({"attn_mask": torch.ones(B, TK, dtype=torch.bool)}, "(B, Tk), is shaped by regard.masks.over_keys(mask)"),
    (
        {"attn_mask": torch.ones(TQ, TK, dtype=torch.int64)},
        "got int64. For 1 = attend, 0 = padding use regard.masks.from_ones(mask)",
    ),
    ({"attn_mask": True}, "attn_mask must be boolean (True = may attend) or float (added to the scores); got bool"),
    (
        {"attn_mask": torch.ones(TQ, TK, dtype=torch.bool, device="meta")},
        "attn_mask must be on the device of query (cpu); got meta",
    ),
    ({"dropout_p": 1.1}, "dropout_p (1.1) must lie in [0, 1]"),
    ({"dropout_p": -0.1}, "dropout_p (-0.1) must lie in [0, 1]"),
    ({"softcap": 0.0}, "softcap (0.0) must be a positive number. None leaves scores uncapped"),
    ({"softcap": -3}, "softcap (-3) must be a positive number"),
    ({"softcap": float("nan")}, "softcap (nan) must be a positive number"),
    ({"scale": float("inf")}, "scale (inf) must be a finite number"),
    (
        {"scale": 2.0, "similarity": regard.Additive(torch.ones(D))},
        "scale (2.0) must be None for an Additive similarity",
    ),
    ({"scale": 2.0, "similarity": lambda q, k: q @ k.mT}, "scale (2.0) must be None for a callable similarity"),
    ({"similarity": "scaled"}, "similarity ('scaled') must be one of dot, scaled_dot, cosine"),
    ({"similarity": "additive"}, "Additive scores have weights: pass regard.Additive(w)"),
    ({"similarity": "bilinear"}, "Bilinear scores have a matrix: pass regard.Bilinear(W)"),
    (
        {"similarity": 3},
        "similarity (3) must be one of dot, scaled_dot, cosine, or Additive(w), Bilinear(W) or a callable f(q_block, k_block); got int",
    ),
    ({"similarity": regard.Additive(torch.ones(D + 1))}, "Additive(w): w (5) must be 4, the width of query and key"),
    (
        {"similarity": regard.Additive(torch.ones(4, D))},
        "Additive(w): w (4×4) must be 4, the width of query and key, or one for each of the leading dimensions (2, 3)",
    ),
    (
        {"similarity": regard.Additive(torch.ones(D).long())},
        "Additive(w): w must be a float tensor of shape 4; got Tensor",
    ),
    ({"similarity": regard.Bilinear(torch.ones(D, D + 1))}, "Bilinear(W): W (4×5) must be 4 × 4"),
    (
        {"similarity": lambda q, k: (q @ k.mT).sum(-1)},
        "similarity (a callable) must return scores of shape (..., 1, 1) for queries (2, 3, 1, 4)",
    ),
    ({"weighting": "soft"}, "weighting ('soft') must be one of softmax, hard, uniform"),
    ({"window": 3}, "window (3) must be (left, right), each a number of keys ≥ 0 or None"),
    ({"window": (1, -1)}, "window ((1, -1)) must be (left, right)"),
    ({"window": (1,)}, "window ((1,)) must be (left, right)"),
    ({"causal_offset": 0.5}, "causal_offset (a number) must be integers; got float32"),
    (
        {"causal_offset": torch.zeros(3, dtype=torch.long)},
        "causal_offset (3) must be one number, or one per batch entry, leading dimensions (2, 3); got 3",
    ),
    ({"lengths": [3, 8]}, "lengths (8) must lie in 0…7, the number of keys in key (2×3×7×4)"),
    ({"lengths": -1}, "lengths (-1) must lie in 0…7"),
    ({"lengths": [1, 2, 3]}, "lengths (3) must be one number, or one per batch entry"),
    ({"lengths": torch.tensor([True, False])}, "lengths (2) must be integers; got bool"),
    ({"backend": "cuda"}, "backend ('cuda') must be auto or one of native, torch, blocked, reference"),
    (
        {"backend": "torch", "softcap": 1.0},
        "backend ('torch') cannot serve this request: SDPA does not support softcap. Try backend='auto'",
    ),
]


@pytest.mark.parametrize("changed,message", MESSAGES, ids=[message[:50] for _, message in MESSAGES])
def test_messages_name_the_value_and_the_remedy(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as raised:
        attend(**changed)
    assert str(raised.value).startswith("attend: ")


def test_the_default_arguments_are_valid() -> None:
    assert attend().shape == (B, H, TQ, DV)


@pytest.fixture
def m() -> regard.AttentionMap:
    return attend(return_map=True)[1]


MAP_MESSAGES: list[tuple[Any, type[Exception], str]] = [
    (lambda m: m[2], IndexError, "index 2 is out of bounds for dimension 0 with size 2"),
    (lambda m: m[0, -4], IndexError, "index -4 is out of bounds for dimension 1 with size 3"),
    (lambda m: m[0, 0, 0, 0, 0], IndexError, "must have at most 4 dimensions, for shape (2, 3, 5, 7); got 5"),
    (lambda m: m[..., 0, ...], IndexError, "at most one `...`"),
    (lambda m: m[0, 0, ::-1], IndexError, "step of a slice (-1) must be positive. Flip the result instead"),
    (lambda m: m[0, 0, "a"], IndexError, "index 'a' of dimension 2 must be an integer"),
    (lambda m: m[0, 0, [[0]]], IndexError, "must be 1-D; got 2 dimensions"),
    (lambda m: m[0, 0, [9]], IndexError, "[9] is out of bounds for dimension 2 with size 5"),
    (lambda m: m[0, 0, [0.5]], IndexError, "must contain integers; got torch.float32"),
    (lambda m: m[0, 0, [True]], IndexError, "boolean index must be 5 long in dimension 2; got 1"),
    (lambda m: m[[0], [1]], IndexError, "at most one list, tensor or slice with a step"),
    (lambda m: m.dense(limit=100), ValueError, "weights of 2×3×5×7 take 840 B; the limit is 100 B"),
    (lambda m: m.top(0), ValueError, "count (0) must be at least 1"),
    (lambda m: m.pool(0, 3), ValueError, "rows (0) of the image must be at least 1"),
    (lambda m: m.pool(3, 3, "median"), ValueError, "reduce ('median') must be one of max, mean, sum"),
    (lambda m: m.tile((0, 6), (0, 7)), ValueError, "rows (0, 6) must be a range within 0…5"),
    (lambda m: m.tile((0, 5), (4, 2)), ValueError, "cols (4, 2) must be a range within 0…7"),
    (lambda m: m @ torch.ones(6), ValueError, "the other factor (6) must fit 2×3×5×7: 7 long in dimension -2"),
    (lambda m: torch.ones(2, 4) @ m, ValueError, "the other factor (2×4) must fit 2×3×5×7: 5 long in dimension -1"),
    (lambda m: m.tokens(query=["a"]), ValueError, "tokens (query, 1) must be 5, one each; got 1"),
    (
        lambda m: m.tokens(query=[["a", "b"]] * 5),  # type: ignore[list-item]  # the mistake under test
        ValueError,
        "map: tokens (query) must be those of one sequence; got 5 sequences. Pass one list of strings",
    ),
    (lambda m: m.at(0, 0, 0), IndexError, "at() must have at most 2 indices, one per leading dimension; got 3"),
]


@pytest.mark.parametrize("access,kind,message", MAP_MESSAGES, ids=[message[:50] for _, _, message in MAP_MESSAGES])
def test_the_messages_of_a_map(m: regard.AttentionMap, access: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        access(m)
