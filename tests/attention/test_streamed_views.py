"""Views of a map in float32, by PyTorch and every instruction set of the kernels, compared with the float64 oracle."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard.attention import row_bands, streamed_views
from regard.attention.cells import Cells, Shading
from regard.attention.native import engine
from regard.attention.native import views as native_observe
from regard.attention.request import Request
from tests.attention.oracle import Problem, dense_weights
from tests.attention.test_attend import MASKS, problem, some

ISAS = engine.module.isas() if engine.module else []
SIMILARITIES = ["dot", "scaled_dot", "cosine", "bilinear", "additive"]
needs_kernels = pytest.mark.skipif(engine.module is None, reason=f"native: {engine.reason}")


@pytest.fixture(params=["PyTorch", *ISAS])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Select the implementation: streamed views, or native views of one instruction set."""
    if request.param == "PyTorch":
        monkeypatch.setattr(native_observe, "refusal", lambda *_: "switched off")
        yield request.param
        return
    assert engine.module is not None
    before = engine.module.isa()
    engine.module.use_isa(request.param)
    yield request.param
    engine.module.use_isa(before)


PICTURES = [(3, 4), (1, 1), (1, 5), (40, 2), (10**4, 10**4)]
REDUCE = ("max", "mean", "sum")


def pooled(w: Tensor, rows: int, cols: int, reduce: str) -> Tensor:
    """Pool cell by cell, in loops over one axis and then the other."""
    for dim, cells in ((-1, cols), (-2, rows)):
        n = w.shape[dim]
        starts = [c * n // cells for c in range(cells)]
        stops = [max((c + 1) * n // cells, start + 1) for c, start in enumerate(starts)]
        parts = [w.narrow(dim, start, stop - start) for start, stop in zip(starts, stops, strict=True)]
        fold = {"max": Tensor.amax, "mean": Tensor.mean, "sum": Tensor.sum}[reduce]
        w = torch.cat([fold(part, dim, keepdim=True) for part in parts], dim)
    return w


def factors(w: Tensor) -> tuple[Tensor, Tensor]:
    *_, queries, keys = w.shape
    return some(keys, 3, seed=1).float(), some(*w.shape[:-2], 5, queries, seed=2).float()


def views(m: Any, count: int = 4) -> dict[str, Tensor]:
    """Return every view of a map, by name."""
    x, y = factors(m)
    *_, queries, keys = m.shape
    result = {"dense": m.dense(), "entropy": m.entropy(), "received": m.received(), "m @ x": m @ x, "x @ m": y @ m}
    result["columns"] = m[..., keys // 3 : keys]
    result["top"], result["keys of top"] = m.top(count)
    for reduce in REDUCE:
        for rows, cols in PICTURES:
            rows, cols = min(rows, queries + 2), min(cols, keys + 3)
            result[f"pool {rows}×{cols} {reduce}"] = m.pool(rows, cols, reduce)
        region = (queries // 3, queries), (keys // 4, keys - keys // 5)
        result[f"tile {reduce}"] = m.tile(*region, (2, 3), reduce)
    return result


def truths(w: Tensor, count: int = 4) -> dict[str, Tensor]:
    """Return every view, computed from dense weights."""
    x, y = (factor.double() for factor in factors(w))
    *_, queries, keys = w.shape
    result = {
        "dense": w,
        "entropy": torch.special.entr(w).sum(-1),
        "received": w.sum(-2),
        "m @ x": w @ x,
        "x @ m": y @ w,
    }
    result["columns"] = w[..., keys // 3 : keys]
    result["top"] = w.sort(-1, descending=True).values[..., :count]
    for reduce in REDUCE:
        for rows, cols in PICTURES:
            rows, cols = min(rows, queries + 2), min(cols, keys + 3)
            result[f"pool {rows}×{cols} {reduce}"] = pooled(w, rows, cols, reduce)
        region = w[..., queries // 3 : queries, keys // 4 : keys - keys // 5]
        result[f"tile {reduce}"] = pooled(region, 2, 3, reduce)
    return result


def assert_exact(m: Any, w: Tensor, count: int = 4) -> None:
    """Compare every view: weights to 1e-6, sums to PyTorch's default tolerance for float32."""
    assert m.shape == tuple(w.shape) and m.dtype == torch.float32
    got = views(m, count)
    for name, wanted in truths(w, count).items():
        single = name in ("dense", "columns", "top") or name.endswith("max")
        tolerance = {"rtol": 0, "atol": 1e-6} if single else {"rtol": 1.3e-6, "atol": 1e-5}
        torch.testing.assert_close(
            got[name].double(), wanted, **tolerance, msg=lambda text, name=name: f"{name}: {text}"
        )
    at = got["keys of top"]
    pointed = torch.where(at < 0, 0, w.gather(-1, at.clamp(min=0)))
    torch.testing.assert_close(pointed, got["top"].double(), rtol=0, atol=1e-6)


def observed(case: Problem, dtype: torch.dtype = torch.float32) -> tuple[Any, Tensor]:
    """Return a map and its expected weights: those of the inputs, rounded to the dtype."""
    x = {name: leaf.detach() for name, leaf in case.leaves(dtype).items()}
    _, m = case.ours(x, "auto", return_map=True)
    return m, dense_weights({name: leaf.double() for name, leaf in x.items()}, case.similarity, **case.options)


def assert_way(m: Any, way: str) -> None:
    """Assert that the selected implementation computes the views."""
    assert row_bands.views_of(m.request, m.statistic) is (streamed_views if way == "PyTorch" else native_observe)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_every_mask_and_similarity(way: str, similarity: str, mask: str) -> None:
    for weighting in ("softmax", "uniform"):
        m, w = observed(problem(similarity, {**MASKS[mask], "weighting": weighting}))
        assert_way(m, way)
        assert_exact(m, w)


SIZES = [(1, 1, 1), (1, 211, 64), (211, 1, 3), (13, 17, 64), (193, 257, 33), (197, 131, 5), (401, 127, 16)]
OPTIONS: list[dict[str, Any]] = [{}, {"is_causal": True}, {"window": (40, 3), "softcap": 3.0, "causal_offset": 11}]


@pytest.mark.parametrize("queries,keys,width", SIZES)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("similarity", ["scaled_dot", "additive"])
def test_every_size(way: str, similarity: str, queries: int, keys: int, width: int, options: Any) -> None:
    parameters = {"w": some(width, seed=3) / width**0.5} if similarity == "additive" else {}  # scores of typical size
    q, k = some(2, queries, width), some(2, keys, width, seed=1)
    m, w = observed(Problem(q, k, k, similarity, parameters, options))
    assert_way(m, way)
    assert_exact(m, w, count=min(keys, 7))
    torch.testing.assert_close(m.at(1)[..., -1, -1].double(), w[1, -1, -1], rtol=0, atol=1e-6)


@pytest.mark.parametrize("options", [*OPTIONS, {"window": (5, 90), "causal_offset": 67}], ids=str)
def test_columns_of_cells_that_are_powers_of_two(way: str, options: Any) -> None:
    """Some blocks begin or end inside a cell."""
    q, k = some(2, 29, 8), some(2, 384, 8, seed=1)
    m, w = observed(Problem(q, k, k, options=options))
    assert_way(m, way)
    for reduce in REDUCE:
        for start, stop, cols in (
            (0, 384, 192),
            (0, 384, 96),
            (0, 384, 3),
            (3, 387 - 4, 190),
            (1, 353, 11),
            (7, 263, 1),
        ):
            result = m.tile((1, 29), (start, stop), (14, cols), reduce)
            wanted = pooled(w[..., 1:29, start:stop], 14, cols, reduce)
            torch.testing.assert_close(result.double(), wanted, rtol=1.3e-6, atol=1e-5 if reduce == "sum" else 1e-6)


SHADED: list[tuple[int, int, int, int]] = [(1, 1, 1, 1), (13, 17, 13, 17), (13, 17, 4, 17), (211, 257, 211, 257)]
SHADED += [(211, 257, 100, 64), (64, 384, 32, 192), (64, 384, 64, 3), (5, 6, 9, 7), (1511, 37, 2, 5)]


@pytest.mark.parametrize("queries,keys,height,width", SHADED)
@pytest.mark.parametrize("shading", [Shading(), Shading(1e-3), Shading(1e-7)], ids=str)
@pytest.mark.parametrize("options", [*OPTIONS, {"lengths": [3, 1]}], ids=str)
def test_shades(way: str, queries: int, keys: int, height: int, width: int, shading: Shading, options: Any) -> None:
    if "lengths" in options and keys < 3:
        return
    m, w = observed(Problem(some(2, queries, 8), some(2, keys, 8, seed=1), some(2, keys, 8), options=options))
    assert_way(m, way)
    see = row_bands.views_of(m.request, m.statistic)
    rows, cols = Cells(queries // 5, queries, height), Cells(keys // 4, keys - keys // 5, width)
    for reduce in REDUCE:
        result = see.shades(m.request, m.statistic, rows, cols, reduce, shading)
        pixels = pooled(w[..., rows.region, cols.region], height, width, reduce)
        exact = 255 * (pixels if shading.floor is None else 1 - pixels.log() / math.log(shading.floor))
        assert result.dtype == torch.uint8 and result.shape == (2, height, width)
        assert (result - exact.clamp(0, 255)).abs().max() < 0.501, reduce


@needs_kernels
def test_kernel_arguments_of_a_request_are_cached() -> None:
    q, k = some(9, 8).float(), some(11, 8, seed=1).float()
    mask = some(9, 11, seed=2) > 0
    for same, request in (
        (True, Request.of(q, k, k, attn_mask=mask)),
        (True, Request.of(q, k, k, is_causal=True)),
        (False, Request.of(q.half(), k.half(), k.half())),
        (False, Request.of(q.bfloat16(), k.bfloat16(), k.bfloat16(), attn_mask=mask.bfloat16())),
        (False, Request.of(q.mT.contiguous().mT, k, k)),
    ):
        request = request.kept()
        assert (native_observe.ViewArguments.of(request) is native_observe.ViewArguments.of(request)) is same
        statistic = native_observe.statistic(request)
        first = native_observe.entropy(request, statistic)
        assert torch.equal(first, native_observe.entropy(request, statistic))
        gone = weakref.ref(request)
        del request
        gc.collect()
        assert gone() is None


def test_tall_cells_are_divided_and_joined(way: str) -> None:
    q, k = some(1511, 8), some(37, 8, seed=1)
    m, w = observed(Problem(q, k, k, options={"is_causal": True, "causal_offset": -700}))
    assert_exact(m, w)
    for reduce in REDUCE:
        for rows in (2, 3, 7):
            torch.testing.assert_close(
                m.pool(rows, 5, reduce).double(), pooled(w, rows, 5, reduce), rtol=1e-5, atol=1e-5
            )


@pytest.mark.parametrize("options", [{}, {"lengths": [3, 11]}, {"is_causal": True, "causal_offset": [4, -2]}], ids=str)
def test_grouped_heads(way: str, options: dict[str, Any]) -> None:
    q, k = some(2, 6, 7, 5).float(), some(2, 2, 11, 5).float()
    _, m = regard.attend(q, k, k, enable_gqa=True, return_map=True, **options)
    assert_way(m, way)
    wide = {"q": q.double(), "k": k.double().repeat_interleave(3, 1), "v": k.double().repeat_interleave(3, 1)}
    w = dense_weights(wide, **options)
    assert_exact(m, w)
    assert_exact(m.at(1, 4), w[1, 4])


@pytest.mark.parametrize("leads", [((), ()), ((2,), (2,)), ((2, 3), (1, 3)), ((2, 1, 3), (1, 4, 3))], ids=str)
def test_leading_dimensions(way: str, leads: Any) -> None:
    q, k = (some(*lead, t, 5) for lead, t in zip(leads, (7, 11), strict=True))
    for options in ({}, {"is_causal": True}, {"attn_mask": some(7, 11) > 0}):
        m, w = observed(Problem(q, k, k, options=options))
        assert_way(m, way)
        assert_exact(m, w)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("similarity", ["scaled_dot", "additive"])
def test_low_precision_inputs_are_widened(way: str, similarity: str, dtype: torch.dtype) -> None:
    m, w = observed(problem(similarity, {"is_causal": True, "causal_offset": 2}), dtype)
    assert_way(m, way)
    assert_exact(m, w)


MASKED: list[dict[str, Any]] = [
    {"is_causal": True, "causal_offset": -40},
    {"window": (None, 9), "causal_offset": -50},
    {"lengths": 300},
    {"attn_mask": torch.arange(353) < 300},
    {"attn_mask": torch.zeros(353).masked_fill(torch.arange(353) >= 300, -torch.inf)},
    {"lengths": 300, "softcap": 2.0},
]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("options", MASKED, ids=["causal", "window", "lengths", "boolean", "float", "softcap"])
def test_masked_keys_have_no_effect(way: str, options: dict[str, Any], bad: float) -> None:
    q, k = some(2, 331, 8).float(), some(2, 353, 8, seed=1).float()
    clean = views(regard.AttentionMap(Request.of(q, k, k, **options).kept()))
    k = k.clone()
    k[:, 300:] = bad
    m = regard.AttentionMap(Request.of(q, k, k, **options).kept())
    assert_way(m, way)
    for name, result in views(m).items():
        assert torch.equal(result, clean[name]), name


def test_attended_nan_is_visible(way: str) -> None:
    q, k = some(5, 8).float(), some(5, 8, seed=1).float()
    k[2] = torch.nan
    m = regard.AttentionMap(Request.of(q, k, k, is_causal=True).kept())
    for name in ("statistic", "entropy"):
        result = m.statistic.lse if name == "statistic" else m.entropy()
        assert result[:2].isfinite().all() and result[2:].isnan().all(), name
    assert m.pool(5, 1)[:2].isfinite().all() and m.pool(5, 1)[2:].isnan().all()
    assert m.top(1).values[2:].isnan().all() and (m @ torch.ones(5))[2:].isnan().all()


@pytest.mark.parametrize(
    "options", [{"lengths": 0}, {"window": (None, 0), "causal_offset": -99}, {"attn_mask": torch.zeros(7, 11) > 0}]
)
def test_no_keys_allowed(way: str, options: dict[str, Any]) -> None:
    for similarity in ("scaled_dot", "additive"):
        m, _ = observed(problem(similarity, options))
        assert_way(m, way)
        assert (m.statistic.highest == -torch.inf).all() and not m.statistic.total.any()
        result = views(m)
        assert (result.pop("keys of top") == -1).all()
        assert not any(view.any() for view in result.values())


def test_empty_maps(way: str) -> None:
    for lead, queries, keys in (((2, 3), 5, 0), ((2, 3), 0, 5), ((), 0, 0), ((0,), 5, 7), ((2, 0), 5, 7)):
        q, k = torch.randn(*lead, queries, 4), torch.randn(*lead, keys, 4)
        m = regard.AttentionMap(Request.of(q, k, k).kept())
        assert m.statistic.shape == (*lead, queries) and m.entropy().shape == (*lead, queries)
        assert m.received().shape == (*lead, keys) and not m.received().any()
        assert (m @ torch.ones(keys, 2)).shape == (*lead, queries, 2) and not (m @ torch.ones(keys, 2)).any()
        assert (torch.ones(2, queries) @ m).shape == (*lead, 2, keys) and not (torch.ones(2, queries) @ m).any()
        assert m.pool(2, 3).shape == (*lead, 2, 3) and m.dense().shape == (*lead, queries, keys)
        assert m.top(4).values.shape == (*lead, queries, min(4, keys))


def test_products_of_any_width_and_layout(way: str) -> None:
    q, k = some(3, 23, 8), some(3, 29, 8, seed=1)
    m, w = observed(Problem(q, k, k, options={"is_causal": True, "causal_offset": 3}))
    for width in (1, 2, 19, 256, 300, 521):
        x, y = some(3, width, 29).float().mT, some(23, 2 * width).float()[:, ::2].mT
        torch.testing.assert_close((m @ x).double(), w @ x.double(), rtol=1.3e-6, atol=1e-5)
        torch.testing.assert_close((y @ m).double(), y.double() @ w, rtol=1.3e-6, atol=1e-5)


def test_top_of_any_count(way: str) -> None:
    m, w = observed(Problem(some(3, 50, 4), some(3, 301, 4, seed=1), some(3, 301, 2), options={"is_causal": True}))
    for count in (1, 2, 17, 128, 129, 301, 999):
        values, at = m.top(count)
        torch.testing.assert_close(values.double(), w.sort(-1, descending=True).values[..., :count], rtol=0, atol=1e-6)
        assert values.shape == (3, 50, min(count, 301))
        for row in (0, 9, 49):
            assert (
                at[1, row, : row + 1].sort().values.tolist() == list(range(row + 1))[: values.shape[-1]] or count <= row
            )
            assert (at[1, row, row + 1 :] == -1).all()


@needs_kernels
def test_ties_are_ordered_by_key() -> None:
    q, k = torch.ones(3, 2), torch.ones(400, 2)
    k[:5] = 0
    m = regard.AttentionMap(Request.of(q, k, k).kept())
    assert_way(m, "native")
    assert m.top(7).indices.tolist() == [[5, 6, 7, 8, 9, 10, 11]] * 3


def test_a_weight_that_underflows_keeps_its_rank(way: str) -> None:
    k = torch.tensor([0.0, 900.0, 300.0, 600.0]).unsqueeze(-1)
    m = regard.AttentionMap(Request.of(torch.ones(1, 1), k, k).kept())
    values, at = m.top(4)
    assert values.tolist() == [[1, 0, 0, 0]] and at.tolist() == [[1, 3, 2, 0]]
    assert m.dense().tolist() == [[0, 1, 0, 0]] and m.entropy().tolist() == [0]


@needs_kernels
@pytest.mark.parametrize("similarity", ["scaled_dot", "additive"])
def test_threads_do_not_change_results(similarity: str) -> None:
    case = Problem(
        some(701, 8), some(611, 8, seed=1), some(611, 2), similarity, {"w": some(8)}
    )  # one head, divided among all threads
    m, _ = observed(case)
    alone, again = views(m), views(m)
    torch.set_num_threads(2)
    try:
        shared = [views(m) for _ in range(3)]
    finally:
        torch.set_num_threads(1)
    for name, result in alone.items():
        assert all(torch.equal(result, other[name]) for other in (again, *shared)), name


@pytest.mark.host
@pytest.mark.parametrize("backend", ["auto", "native", "torch", "blocked", "reference"])
def test_rows_of_huge_scores_sum_to_one(way: str, backend: str) -> None:
    """Scores and row statistics are computed alike: one rounding of these scores is 16."""
    if backend == "native" and engine.module is None:
        pytest.skip(engine.reason)
    q, k = (1e4 * some(2, t, 8, seed=t).float() for t in (211, 223))
    _, m = regard.attend(q, k, k, similarity="dot", backend=backend, is_causal=True, return_map=True)
    if way == "PyTorch" and backend in ("auto", "native"):
        m = regard.AttentionMap(m.request)  # as if the kernels were not available
    torch.testing.assert_close(m.dense().sum(-1), torch.ones(2, 211))
    torch.testing.assert_close(m.pool(211, 1), m.dense().amax(-1, keepdim=True))
    torch.testing.assert_close(m.top(200).values.sum(-1), torch.ones(2, 211))
    picked = [3, 210, 7]
    torch.testing.assert_close(m[1, picked].sum(-1), torch.ones(3))
    torch.testing.assert_close(regard.AttentionMap(m.request)[1, picked], m.dense()[1, picked])
    torch.testing.assert_close(m[..., picked], m.dense()[..., picked])


@pytest.mark.parametrize("mask", MASKS)
def test_rows_and_columns_picked_one_by_one(way: str, mask: str) -> None:
    m, w = observed(problem("scaled_dot", MASKS[mask]))
    for known in (m, regard.AttentionMap(m.request)):
        for index in ((1, 2, [6, 3, 3]), (..., [10, 0, 4]), (0, slice(None), slice(1, 6), [2, 9]), (..., [5, 1], 7)):
            torch.testing.assert_close(known[index].double(), w[index], rtol=0, atol=1e-6)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"weighting": "hard"}, "no hard weighting"),
    ({"similarity": lambda q, k: q @ k.mT}, "not callables"),
    ({"lengths": torch.tensor([[1, 2, 3]])}, "one number of lengths per batch entry, not one per head"),
]


@needs_kernels
@pytest.mark.parametrize("options,why", REFUSED)
def test_refusals_name_the_reason(options: dict[str, Any], why: str) -> None:
    x = torch.randn(1, 3, 5, 4)
    m = regard.AttentionMap(Request.of(x, x, x, **options).kept())
    assert why in str(native_observe.refusal(m.request, m.statistic))
    assert row_bands.views_of(m.request, m.statistic) is streamed_views
    assert m.pool(2, 2).shape == (1, 3, 2, 2)


@needs_kernels
def test_other_dtypes_devices_and_nonfinite_rows_use_pytorch() -> None:
    x = torch.randn(1, 3, 5, 4)
    request = Request.of(x, x, x).kept()
    assert native_observe.refusal(request) is None
    assert "float32, not in float64" in str(native_observe.refusal(Request.of(*(x.double(),) * 3).kept()))
    assert "not meta" in str(native_observe.refusal(Request.of(*(x.to("meta"),) * 3).kept()))
    assert "NaN or infinity" in str(native_observe.refusal(request, torch.full((1, 3, 5), torch.nan)))


@needs_kernels
@pytest.mark.parametrize("size", [12.0, 43.0, 44.0, torch.inf])
def test_additive_scores_of_any_range(way: str, size: float) -> None:
    """Inputs out of the range of the exponentials are computed with tanh instead; results are never wrong."""
    q, k = some(2, 9, 6), some(2, 13, 6, seed=1)
    q[0, 3], k[0, 5], k[1, 7] = size, -size if size < torch.inf else 1.0, 2.0
    m, w = observed(Problem(q, k, k, "additive", {"w": some(6, seed=3)}))
    assert_way(m, way if size <= 43 else "PyTorch")
    assert_exact(m, w)


@needs_kernels
def test_nonfinite_additive_weights_use_pytorch() -> None:
    q = torch.randn(3, 4)
    for odd in (torch.nan, torch.inf):
        request = Request.of(q, q, q, similarity=regard.Additive(torch.tensor([1.0, odd, 1.0, 1.0]))).kept()
        assert "finite weights" in str(native_observe.refusal(request))


def test_additive_weights_per_head(way: str) -> None:
    q, k = some(2, 3, 7, 5).float(), some(2, 3, 11, 5, seed=1).float()
    weight = some(3, 5, seed=3).float()
    _, m = regard.attend(q, k, k, similarity=regard.Additive(weight), is_causal=True, return_map=True)
    assert_way(m, way)
    x = {"q": q.double(), "k": k.double(), "v": k.double(), "w": weight.double()[:, None, None]}
    assert_exact(m, dense_weights(x, "additive", is_causal=True))
    assert_exact(m.at(1, 2), dense_weights(x, "additive", is_causal=True)[1, 2])


def test_edges_of_cells() -> None:
    cells = Cells(3, 17, 4)
    assert cells.edges(torch.device("cpu")).tolist() == [cells.edge(cell) for cell in range(5)] == [3, 6, 10, 13, 17]
