"""Weights never exceed 1 and rows add up to 1, for scores up to 1e12 and for float masks of large finite numbers.

Queries and keys are chosen so that every score is exact in float32, for any order of summation. The float64 reference
is then the softmax of exactly the scores that every backend and every view computes, on every machine.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard.attention.native import engine, views
from regard.attention.request import Request
from regard.attention.similarity import Dot
from regard.attention.sink import SinkMap
from regard.core.tensors import widen
from tests.attention.refusals import REFUSED, assert_refused
from tests.attention.test_row_bands import Limit
from tests.attention.test_streamed_views import ISAS, assert_exact, way  # noqa: F401

LOWEST = torch.finfo(torch.float32).min
SIZES = [(3, 150), (37, 150), (150, 5)]
"""Numbers of queries and keys: few queries, more keys than one block, fewer than one vector."""
SIZE = {"ordinary": 2.0**-4, "large": 2.0**10, "huge": 2.0**34}
"""Factors of integer scores up to about 100. They are squares, because SDPA may scale both sides by a square root."""
SIMILARITIES = ["dot", "cosine", "bilinear", "additive", "callable"]
MASKS: dict[str, Any] = {
    "open": lambda queries, keys: {},
    "causal": lambda queries, keys: {"is_causal": True},
    "finfo.min": lambda queries, keys: {"attn_mask": constant_mask(queries, keys, LOWEST)},
    "-1e9": lambda queries, keys: {"attn_mask": constant_mask(queries, keys, -1e9)},
    "-1e4": lambda queries, keys: {"attn_mask": constant_mask(queries, keys, -1e4)},
    "finfo.min, causal": lambda queries, keys: {"attn_mask": constant_mask(queries, keys, LOWEST), "is_causal": True},
    "-1e9, lengths": lambda queries, keys: {"attn_mask": constant_mask(queries, keys, -1e9), "lengths": [keys // 2, 0]},
}


def constant_mask(queries: int, keys: int, number: float) -> Tensor:
    """Return a mask with one number in whole rows and at some keys of other rows, and −∞ in one row."""
    mask = torch.zeros(queries, keys)
    mask[:, 1::4] = number
    mask[1::3] = number
    mask[2::17] = -torch.inf
    return mask


def exact_inputs(similarity: str, size: float, queries: int, keys: int) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Return queries (2, 2, Tq, 8), keys (2, 2, Tk, 8) and options with exact scores: integers times size."""
    generator = torch.Generator().manual_seed(queries)

    def integers(*shape: int) -> Tensor:
        return torch.randint(-3, 4, shape, generator=generator).float()

    q, k = integers(2, 2, queries, 8), integers(2, 2, keys, 8)
    if similarity == "cosine":  # four of eight are ±1: the norm is 2
        q, k = (torch.where(x >= 0, 1.0, -1.0) * four_ones(x.shape, generator) for x in (q, k))
        return q, k, {"similarity": "cosine", "scale": size * 16}
    if similarity == "bilinear":
        return q, k, {"similarity": regard.Bilinear(integers(8, 8)), "scale": size / 4}
    if similarity == "additive":  # tanh is −1, 0 or 1
        return q.sign() * 20, k.sign() * 20, {"similarity": regard.Additive(integers(8) * size)}
    if similarity == "callable":
        return q, k, {"similarity": lambda q, k: size * (q @ k.mT)}
    return q, k, {"similarity": "dot", "scale": size}


def four_ones(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return (torch.rand(shape, generator=generator).argsort(-1) < 4).float()


def reference(q: Tensor, k: Tensor, options: dict[str, Any]) -> Tensor:
    """Return the weights in float64, (2, 2, Tq, Tk), of scores that are rounded to float32 when the mask is added."""
    options = dict(options)
    mask, lengths = options.pop("attn_mask", None), options.pop("lengths", None)
    causal = options.pop("is_causal", False)
    similarity = options["similarity"]
    if isinstance(similarity, regard.Bilinear):
        options["similarity"] = regard.Bilinear(similarity.weight.double())
    if isinstance(similarity, regard.Additive):
        options["similarity"] = regard.Additive(similarity.weight.double())
    request = Request.of(q, k, k, **options)
    scores = request.scores(slice(0, q.shape[-2]), slice(0, k.shape[-2]))
    if mask is not None:
        scores = scores + ((scores.float() + mask).double() - scores).nan_to_num(neginf=-torch.inf).detach()
    allowed = torch.ones(*scores.shape, dtype=torch.bool)
    if causal:
        allowed = allowed.tril()
    if lengths is not None:
        allowed &= torch.arange(k.shape[-2]) < torch.tensor(lengths).reshape(2, 1, 1, 1)
    scores = torch.where(allowed, scores, -torch.inf)
    highest = scores.detach().amax(-1, keepdim=True)
    e = torch.exp(scores - torch.where(highest == -torch.inf, 0, highest))
    return e / torch.where(highest == -torch.inf, 1, e.sum(-1, keepdim=True))


def assert_rows(w: Tensor, rows: Tensor) -> None:
    """Assert that no weight exceeds 1 and rows add up to 1, or to 0 where `rows` is False."""
    assert w.max() <= 1 + 1e-5 and w.min() >= 0
    torch.testing.assert_close(w.sum(-1), rows.to(w.dtype), rtol=0, atol=1e-5)


@pytest.mark.parametrize("size", SIZE)
@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("mask", MASKS)
def test_views(way: str, similarity: str, size: str, mask: str) -> None:  # noqa: F811
    for queries, keys in SIZES[1:] if similarity == "dot" else SIZES[1:2]:
        q, k, options = exact_inputs(similarity, SIZE[size], queries, keys)
        options |= MASKS[mask](queries, keys)
        w = reference(q.double(), k.double(), options)
        m = regard.AttentionMap(Request.of(q, k, k, **options).kept())
        assert_exact(m, w)
        assert_rows(m.dense(), w.sum(-1) > 0)
        for index in ((1, 1, [2, 0, 4]), (..., [4, 0], 3), (0, 1, 2), (..., slice(1, 3), slice(2, 5)), (..., [4, 1])):
            for known in (m, regard.AttentionMap(m.request)):  # with the statistic of all rows, and of these only
                torch.testing.assert_close(known[index].double(), w[index], rtol=0, atol=1e-6)
        if similarity != "callable":
            torch.testing.assert_close(m.at(1, 0).dense().double(), w[1, 0], rtol=0, atol=1e-6)
        torch.testing.assert_close(m.top(200).values.sum(-1).double(), w.sum(-1), rtol=0, atol=1e-5)


@pytest.mark.parametrize("size", SIZE)
@pytest.mark.parametrize("mask", ["open", "causal", "finfo.min", "-1e4"])
def test_a_sink_takes_weight(way: str, size: str, mask: str) -> None:  # noqa: F811
    q, k, options = exact_inputs("dot", SIZE[size], 37, 150)
    options |= MASKS[mask](37, 150)
    sink = 20 * SIZE[size] * torch.tensor([[1.0], [-1.0]])  # (H, 1)
    m = SinkMap(Request.of(q, k, k, **options).kept(), sink)
    request = Request.of(q.double(), k.double(), k.double(), **options | {"attn_mask": None})
    scores = request.scores(slice(0, 37), slice(0, 150))
    if "attn_mask" in options:
        scores = (scores.float() + options["attn_mask"]).double()
    with_sink = torch.cat([scores, sink.double().unsqueeze(-1).expand(2, 2, 37, 1)], -1)
    w = with_sink.softmax(-1)[..., :-1]
    for actual, wanted in ((m.dense(), w), (m[1, 0, [3, 1]], w[1, 0, [3, 1]]), (m.at(0, 1).dense(), w[0, 1])):
        torch.testing.assert_close(actual.double(), wanted, rtol=0, atol=1e-6)
    torch.testing.assert_close(m.received().double(), w.sum(-2), rtol=0, atol=1e-5)
    torch.testing.assert_close(m.top(3).values.double(), w.topk(3).values, rtol=0, atol=1e-6)


BACKENDS = [*(f"native {isa}" for isa in ISAS), "torch", "blocked", "reference"]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    name, *isa = request.param.split()
    if not isa:
        yield name
        return
    assert engine.module is not None
    before = engine.module.isa()
    engine.module.use_isa(isa[0])
    yield name
    engine.module.use_isa(before)


@pytest.mark.parametrize("size", SIZE)
@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("mask", MASKS)
def test_contexts_gradients_and_maps(backend: str, similarity: str, size: str, mask: str) -> None:
    if (backend, similarity) in REFUSED:
        q, k, options = exact_inputs(similarity, SIZE[size], *SIZES[0])
        assert_refused(backend, lambda: regard.attend(q, k, k, **options, backend=backend))
        return
    for queries, keys in SIZES:
        q, k, options = exact_inputs(similarity, SIZE[size], queries, keys)
        options |= MASKS[mask](queries, keys)
        v, grad = (torch.randn(2, 2, n, 6, generator=torch.Generator().manual_seed(n)) for n in (keys, queries))
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        exact = [x.double().requires_grad_() for x in (q, k, v)]
        w = reference(*exact[:2], options)
        wanted = w @ exact[2]
        context, m = regard.attend(*leaves, **options, backend=backend, return_map=True)
        torch.testing.assert_close(context.double(), wanted, rtol=0, atol=1e-5)
        assert_rows(m.dense(), w.sum(-1) > 0)
        torch.testing.assert_close(m.dense().double(), w.detach(), rtol=0, atol=1e-6)
        gradients = torch.autograd.grad(context, leaves, grad)
        for one, true in zip(gradients, torch.autograd.grad(wanted, exact, grad.double()), strict=True):
            # rounding of a sum of terms as large as the gradient of a score
            torch.testing.assert_close(one.double(), true, rtol=1e-5, atol=1e-4 * max(1.0, SIZE[size] * 16))


HALF_PRECISION = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize(
    ("dtype", "mask"),
    [
        *itertools.product(HALF_PRECISION, ["open", "finfo.min", "-1e9, lengths"]),
        (torch.float64, "open"),  # in float64 the sum with a mask is rounded differently
    ],
)
@pytest.mark.parametrize("size", SIZE)
def test_other_dtypes(backend: str, dtype: torch.dtype, size: str, mask: str) -> None:
    if dtype == torch.float64 and backend == "native":  # computes in float32
        q = torch.randn(2, 3, 4, dtype=dtype)
        assert_refused(backend, lambda: regard.attend(q, q, q, backend=backend))
        return
    for queries, keys in SIZES:
        q, k, options = exact_inputs("dot", SIZE[size], queries, keys)
        options |= MASKS[mask](queries, keys)
        w = reference(q.double(), k.double(), options)
        v = torch.randn(2, 2, keys, 6, generator=torch.Generator().manual_seed(3)).to(dtype)
        leaves = [x.to(dtype).requires_grad_() for x in (q, k, v)]
        context, m = regard.attend(*leaves, **options, backend=backend, return_map=True)
        torch.testing.assert_close(context.double(), w @ v.double(), rtol=0, atol=1e-5 if dtype.itemsize > 2 else 3e-2)
        torch.testing.assert_close(m.dense().double(), w, rtol=0, atol=1e-6)
        context.float().sum().backward()
        torch.testing.assert_close(
            leaves[2].grad.double(), w.sum(-2).unsqueeze(-1).expand(v.shape), rtol=1e-2, atol=1e-2
        )


@pytest.mark.skipif(engine.module is None, reason=f"native: {engine.reason}")
@pytest.mark.parametrize("size", SIZE)
def test_packed(size: str) -> None:
    lengths = [3, 150, 37]
    q, k, options = exact_inputs("dot", SIZE[size], sum(lengths), sum(lengths))
    q, k = q[0].transpose(0, 1), k[0].transpose(0, 1)  # (N, H, D)
    leaves = [x.clone().requires_grad_() for x in (q, k, k)]
    context, maps = regard.attend_packed(*leaves, lengths, **options, is_causal=True, return_maps=True)
    grad = torch.randn(context.shape, generator=torch.Generator().manual_seed(0))
    gradients = torch.autograd.grad(context, leaves, grad)
    for rows, m in zip(parts(lengths), maps, strict=True):
        exact = [x[rows].transpose(0, 1).double().expand(2, 2, -1, 8).requires_grad_() for x in (q, k, k)]
        w = reference(*exact[:2], options | {"is_causal": True})
        assert_rows(m.dense(), torch.ones(m.shape[:-1]))
        torch.testing.assert_close(m.dense().double(), w[0].detach(), rtol=0, atol=1e-6)
        wanted = (w @ exact[2])[0]  # (H, T, D)
        torch.testing.assert_close(context[rows].transpose(0, 1).double(), wanted, rtol=0, atol=2e-5)
        true = torch.autograd.grad(wanted, exact, grad[rows].transpose(0, 1).double())
        for one, other in zip(gradients, true, strict=True):
            atol = 1e-4 * max(1.0, SIZE[size] * 16)
            torch.testing.assert_close(one[rows].transpose(0, 1).double(), other[0], rtol=1e-5, atol=atol)


def parts(lengths: list[int]) -> list[slice]:
    ends = torch.tensor(lengths).cumsum(0).tolist()
    return [slice(end - length, end) for end, length in zip(ends, lengths, strict=True)]


@pytest.mark.parametrize("size", [1.0, 30.0, 1e3, 1e6])
@pytest.mark.parametrize("similarity", ["dot", "bilinear", "additive"])
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"window": (90, 5)}], ids=["open", "causal", "window"])
def test_scores_that_are_rounded(backend: str, similarity: str, size: float, options: dict[str, Any]) -> None:
    """Rows add up to 1 in maps and in backward passes, whose scores are rounded like those of the forward pass.

    Because each row of weights adds up to 1, the gradients of all values add up to those of the contexts.
    """
    for queries, keys in SIZES:
        generator = torch.Generator().manual_seed(queries)
        q, k, v, grad, w = (torch.randn(2, 2, n, 19, generator=generator) for n in (queries, keys, keys, queries, 19))
        weight = {"bilinear": regard.Bilinear(w[0, 0]), "additive": regard.Additive(size * size * w[0, 0, 0])}
        if similarity != "additive":
            q, k = q * size, k * size
        asked = options | {"similarity": weight.get(similarity, "dot"), "backend": backend}
        if (backend, similarity) in REFUSED:
            assert_refused(backend, functools.partial(regard.attend, q, k, v, **asked))
            continue
        leaves = [x.requires_grad_() for x in (q, k, v)]
        context, m = regard.attend(*leaves, **asked, return_map=True)
        dq, dk, dv = torch.autograd.grad(context, leaves, grad)
        rows = m.dense().sum(-1) > 0.5
        assert_rows(m.dense(), rows)
        assert_rows(m[1, :, [2, 0]], rows[1][:, [2, 0]])
        assert_rows(m.top(keys).values, rows)
        torch.testing.assert_close(m @ torch.ones(keys), rows.float(), rtol=0, atol=1e-5)
        expected = (grad * rows.unsqueeze(-1)).sum(-2)
        torch.testing.assert_close(dv.sum(-2), expected, rtol=1e-4, atol=1e-4)
        assert dq.isfinite().all() and dk.isfinite().all()


def rounded_by_shape(self: Dot, q: Tensor, k: Tensor) -> Tensor:
    """Compute a dot product whose order of summation depends on the shapes, as in many libraries."""
    q, k = widen(q) * self.scale, widen(k)
    order = (torch.arange(q.shape[-1]) * 3 + q.shape[-2] + 5 * k.shape[-2]) % q.shape[-1]
    total = torch.zeros(())
    for channel in order.tolist():
        total = total + q[..., channel, None] * k[..., None, :, channel]
    return total


@pytest.mark.parametrize("size", [1.0, 30.0, 1e2, 1e4, 1e6])
@pytest.mark.parametrize("backend", ["blocked", "reference", "torch"])
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"softcap": 1e7}], ids=["open", "causal", "softcap"])
def test_a_library_that_rounds_by_shape(
    monkeypatch: pytest.MonkeyPatch, size: float, backend: str, options: dict[str, Any]
) -> None:
    """Results do not depend on the shapes in which a view computes scores. The scores reach 1e13."""
    monkeypatch.setattr(Dot, "scores", rounded_by_shape)
    monkeypatch.setattr(views, "refusal", lambda *_: "switched off")
    generator = torch.Generator().manual_seed(int(size))
    q, k = (size * (torch.randn(2, n, 8, generator=generator) + 1) for n in (211, 223))
    if backend == "torch" and "softcap" in options:
        assert_refused(backend, lambda: regard.attend(q, k, k, similarity="dot", backend=backend, **options))
        return
    _, m = regard.attend(q, k, k, similarity="dot", backend=backend, return_map=True, **options)
    ones = torch.ones(2, 211)
    for known in (m, regard.AttentionMap(m.request)):
        assert_rows(known.dense(), ones)
        assert_rows(known[1, [3, 210, 7]], ones[1, :3])
        assert_rows(known[:, 5:6], ones[:, :1])
        assert_rows(known.at(1).dense(), ones[1])
        assert known[..., [9, 1, 100]].max() <= 1 + 1e-5 and known[..., 3].max() <= 1 + 1e-5
        assert_rows(known.top(223).values, ones)
        assert known.tile((5, 100), (7, 90), (13, 11)).max() <= 1 + 1e-5
        sums = known.tile((5, 100), (0, 223), (95, 3), "sum")
        torch.testing.assert_close(sums.sum(-1), ones[:, :95], rtol=0, atol=1e-5)
        torch.testing.assert_close(known.received().sum(-1), torch.full((2,), 211.0), rtol=1e-5, atol=0)
        torch.testing.assert_close(known @ torch.ones(223), ones, rtol=0, atol=1e-5)
        torch.testing.assert_close((torch.ones(211) @ known).sum(-1), torch.full((2,), 211.0), rtol=1e-5, atol=0)
        assert known.entropy().min() >= -1e-4 and known.entropy().max() <= math.log(223) + 1e-4


@pytest.mark.parametrize("backend", ["blocked", "reference", "torch"])
@pytest.mark.parametrize("size", [1e3, 1e6])
def test_rows_without_nan_of_a_map_with_nan(monkeypatch: pytest.MonkeyPatch, backend: str, size: float) -> None:
    """The kernels do not serve the whole map, but some of its rows. The statistic is from products of PyTorch."""
    monkeypatch.setattr(Dot, "scores", rounded_by_shape)
    generator = torch.Generator().manual_seed(11)
    q, k = size * torch.randn(2, 40, 8, generator=generator), torch.randn(2, 40, 8, generator=generator)
    k[1, 39] = torch.nan
    _, m = regard.attend(q, k, k, is_causal=True, similarity="dot", backend=backend, return_map=True)
    ones = torch.ones(2, 40)
    assert m.dense()[1, 39].isnan().all()
    assert_rows(m[0], ones[0])
    assert_rows(m[:, 1:39], ones[:, 1:39])
    assert_rows(m.at(0).dense(), ones[0])
    sums = m.tile((5, 30), (0, 40), (25, 3), "sum")
    torch.testing.assert_close(sums.sum(-1), ones[:, :25], rtol=0, atol=1e-5)
    assert_rows(regard.AttentionMap(*m.bands.rows(5, 30, Limit(10_000))).dense(), ones[:, :25])


def test_one_pass_for_ordinary_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A map uses the statistic of the context, without a second pass over the scores."""
    for name in ("blocked", "native"):
        if name == "native" and engine.module is None:
            continue
        q, k = torch.randn(2, 50, 64), torch.randn(2, 60, 64)
        _, m = regard.attend(q, k, k, backend=name, return_map=True)
        monkeypatch.setattr("regard.attention.streamed_views.statistic", None)
        monkeypatch.setattr("regard.attention.native.views.statistic", None)
        if name == "blocked":
            monkeypatch.setattr(views, "refusal", lambda *_: "switched off")
            assert not m.statistic.large.any()
        assert_rows(m.dense(), torch.ones(2, 50))
        monkeypatch.undo()
