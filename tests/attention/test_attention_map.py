"""AttentionMap: views match the float64 oracle, a map does not change the context, and memory stays small."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import regard
from regard.attention import streamed_views
from regard.attention.cells import Cells
from regard.attention.native import views
from regard.attention.request import Request
from tests.attention.oracle import Problem, dense_weights
from tests.attention.test_attend import MASKS, SIMILARITIES, WEIGHTINGS, problem, served

B, H, TQ, TK = 2, 3, 7, 11


@pytest.fixture(params=["one block", "small blocks"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "small blocks":
        monkeypatch.setattr(streamed_views, "BLOCK", 64)


def truth(case: Problem, options: dict[str, Any]) -> torch.Tensor:
    x = {name: leaf.detach() for name, leaf in case.leaves(torch.float64).items()}
    return dense_weights(x, case.similarity, **options).detach()


def pooled(w: torch.Tensor, rows: int, cols: int, reduce: str) -> torch.Tensor:
    """Pool cell by cell, in loops."""
    out = torch.empty(*w.shape[:-2], rows, cols, dtype=w.dtype)
    for r in range(rows):
        for c in range(cols):
            r0, r1 = r * w.shape[-2] // rows, (r + 1) * w.shape[-2] // rows
            c0, c1 = c * w.shape[-1] // cols, (c + 1) * w.shape[-1] // cols
            cell = w[..., r0 : max(r1, r0 + 1), c0 : max(c1, c0 + 1)]
            out[..., r, c] = {"max": cell.amax, "mean": cell.mean, "sum": cell.sum}[reduce]((-2, -1))
    return out


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_every_view_equals_the_oracle(similarity: str, weighting: str, mask: str, blocks: None) -> None:
    options = {**MASKS[mask], "weighting": weighting}
    case = problem(similarity, options)
    w = truth(case, options)
    close = torch.testing.assert_close
    for backend in served(similarity, weighting, options):  # their maps differ in the statistic only
        _, m = case.ours(case.leaves(torch.float64), backend, return_map=True)
        assert m.shape == tuple(w.shape) == (B, H, TQ, TK)
        close(m.dense(), w)
        close(m.received(), w.sum(-2))
    close(m[1, 2, 3:5], w[1, 2, 3:5])
    close(m.entropy(), torch.special.entr(w).sum(-1), rtol=1e-6, atol=1e-9)
    values, at = m.top(4)
    close(values, w.sort(-1, descending=True).values[..., :4])
    close(torch.where(at < 0, 0, w.gather(-1, at.clamp(min=0))), values)
    x, y = torch.randn(TK, 2, dtype=torch.float64), torch.randn(B, 1, 5, TQ, dtype=torch.float64)
    close(m @ x, w @ x)
    close(y @ m, y @ w)
    for reduce in ("max", "mean", "sum"):
        close(m.pool(3, 4, reduce), pooled(w, 3, 4, reduce))
        close(m.tile((1, 7), (2, 9), (3, 2), reduce), pooled(w[..., 1:7, 2:9], 3, 2, reduce))


def example(**options: Any) -> tuple[regard.AttentionMap, torch.Tensor]:
    case = problem("scaled_dot", options)
    _, m = case.ours(case.leaves(torch.float64), "auto", return_map=True)
    return m, truth(case, options)


INDICES: list[Any] = [
    0, -1, (0, 2), (0, 2, 3), (0, 2, 3, 4), (-1, -1, -1, -1), ..., (..., 4), (0, ..., 4), (slice(None), 1),
    (0, slice(1, 3), slice(2, 6), slice(None, -3)), (slice(None), slice(None), 3), (1, 1, slice(None, None, 2)),
    (0, 0, [3, 1, 1, -1]), (0, 0, torch.tensor([5, 0])), (0, 0, torch.arange(TQ) > 3), ([1, 0, 1],), (0, [2, 0]),
    (..., [10, 3]), (0, 0, slice(4, 2)), (0, 0, np.array([1, 2])), (torch.tensor(1), np.int64(2)), (0, 0, range(2, 5)),
    (0, 0, []),
]  # fmt: skip


@pytest.mark.parametrize("index", INDICES, ids=str)
@pytest.mark.parametrize("groups", [1, 3])
def test_indexing_matches_a_tensor(index: Any, groups: int, blocks: None) -> None:
    m, w = example(is_causal=True, causal_offset=torch.tensor([1, 4]), attn_mask=MASKS["boolean, whole"]["attn_mask"])
    if groups > 1:
        q, k, v = (torch.randn(B, n, t, 5, dtype=torch.float64) for n, t in ((3, TQ), (1, TK), (1, TK)))
        _, m = regard.attend(q, k, v, enable_gqa=True, return_map=True)
        w = torch.softmax(q @ k.mT / 5**0.5, -1)
    asked = tuple(list(i) if isinstance(i, range) else i for i in index) if isinstance(index, tuple) else index
    torch.testing.assert_close(m[index], w[asked])


def test_a_head_of_a_map_is_a_map(blocks: None) -> None:
    m, w = example(lengths=torch.tensor([4, 9]))
    head = m.tokens(query=list("abcdefg"), key=list("abcdefghijk")).at(1, 2)
    assert head.shape == (TQ, TK) and head.query_tokens == list("abcdefg")
    torch.testing.assert_close(head.pool(2, 5), pooled(w[1, 2], 2, 5, "max"))
    assert m.at(1).shape == (H, TQ, TK)
    torch.testing.assert_close(m.at(1).received(), w[1].sum(-2))


@pytest.mark.parametrize("backend", ["torch", "blocked", "reference"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_returning_a_map_does_not_change_the_context(backend: str, dtype: torch.dtype) -> None:
    case = problem("scaled_dot", {**MASKS["all together"], "softcap": None})
    x = case.leaves(dtype)
    alone = case.ours(x, backend)
    observed, m = case.ours(x, backend, return_map=True)
    m.pool(3, 3), m.top(2)
    assert torch.equal(alone, observed)
    assert torch.equal(case.ours(x, backend), alone)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_cells_are_exact_in_low_precision_too(dtype: torch.dtype) -> None:
    """The map computes in at least float32, so its error is far below the rounding of the inputs."""
    case = problem("scaled_dot", {})
    x = case.leaves(dtype)
    _, m = case.ours(x, "auto", return_map=True)
    w = dense_weights({name: leaf.detach().double() for name, leaf in x.items()})
    assert m.dtype == torch.float32
    torch.testing.assert_close(m.dense().double(), w, rtol=0, atol=1e-6)


def test_weights_are_those_before_dropout() -> None:
    case = problem("scaled_dot", {"dropout_p": 0.5})
    _, m = case.ours(case.leaves(torch.float64), "blocked", return_map=True)
    torch.testing.assert_close(m.dense(), truth(case, {}))


def test_a_map_holds_no_graph_and_no_values() -> None:
    q, k, v = (torch.randn(3, 4, requires_grad=True) for _ in range(3))
    w = torch.randn(4, requires_grad=True)
    _, m = regard.attend(q, k, v, torch.zeros(3, 3, requires_grad=True), similarity=regard.Additive(w), return_map=True)
    assert m.request.v is None
    assert not any(x.requires_grad for x in (*m.request.tensors, m.dense(), m @ torch.ones(3)) if x is not None)


@settings(max_examples=200, deadline=None)
@given(
    start=st.integers(0, 20),
    entries=st.integers(1, 60),
    wanted=st.integers(1, 80),
    most=st.integers(1, 50),
    data=st.data(),
)
def test_cells_cover_every_entry(start: int, entries: int, wanted: int, most: int, data: st.DataObject) -> None:
    cells = Cells(start, start + entries, wanted)
    first = data.draw(st.integers(start, start + entries - 1))
    last = data.draw(st.integers(first + 1, start + entries))
    seen: dict[int, int] = {}
    for part in cells.parts(slice(first, last), most, torch.device("cpu")):
        span = part.span if isinstance(part.span, torch.Tensor) else torch.arange(part.span.start, part.span.stop)
        assert len(span) == part.width * (part.cells.stop - part.cells.start)
        assert part.width <= max(most, 1) or part.cells.stop - part.cells.start == 1
        counted = torch.ones(len(span)) if part.counted is None else part.counted.flatten()
        for position, (entry, count) in enumerate(zip(span.tolist(), counted.tolist(), strict=True)):
            if count:
                assert entry not in seen
                seen[entry] = part.cells.start + position // part.width
    assert set(range(first, last)) <= set(seen)
    for entry, cell in seen.items():
        assert cells.edge(cell) <= entry < cells.edge(cell + 1) and cells.cell_of(entry) == cell


def test_a_single_strong_link_is_visible_in_a_max_image() -> None:
    q, k = torch.zeros(997, 2), torch.zeros(1009, 2)
    q[611], k[388] = torch.tensor([40.0, 0.0]), torch.tensor([40.0, 0.0])
    _, m = regard.attend(q, k, k, return_map=True)
    for rows, cols in ((10, 10), (64, 7), (512, 512), (997, 1009), (1500, 2000)):
        picture = m.pool(rows, cols)
        assert picture.shape == (rows, cols) and picture.max() > 0.999
        r, c = divmod(int(picture.argmax()), cols)
        assert abs(r - 611 * rows / 997) <= max(1, rows / 997) and abs(c - 388 * cols / 1009) <= max(1, cols / 1009)


def test_an_image_larger_than_the_map_repeats_entries() -> None:
    m, w = example()
    torch.testing.assert_close(m.at(0, 0).pool(14, 22), w[0, 0].repeat_interleave(2, 0).repeat_interleave(2, 1))


def test_accessing_some_rows_computes_only_these(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the backend returned no statistic, it is computed only for the rows that are accessed."""
    seen = 0
    real = Request.scores

    def counted(self: Request, rows: Any, cols: Any) -> torch.Tensor:
        nonlocal seen
        scores = real(self, rows, cols)
        seen += scores.numel()
        return scores

    m, w = example(is_causal=True, causal_offset=torch.tensor([1, 4]), attn_mask=MASKS["boolean, whole"]["attn_mask"])
    monkeypatch.setattr(Request, "scores", counted)
    torch.testing.assert_close(m[1, 2, [6, 3], 2:4], w[1, 2, [6, 3], 2:4])
    torch.testing.assert_close(m.at(1, 2).tile((3, 5), (0, TK), (2, 1)), pooled(w[1, 2, 3:5], 2, 1, "max"))
    assert seen <= (2 + 2) * (TK + TK)
    m.pool(2, 2)
    seen = 0
    torch.testing.assert_close(m[1, 2, 3:5, 4], w[1, 2, 3:5, 4])  # now known for all rows
    assert seen == 2


def test_hard_ties_go_to_the_first_key_across_blocks(blocks: None) -> None:
    q, k = torch.ones(3, 2), torch.ones(40, 2)
    k[:5] = 0
    request = Request.of(q, k, k, weighting="hard").kept()
    m = regard.AttentionMap(request)
    assert m.statistic.highest.tolist() == [5, 5, 5]
    assert m.top(2).indices.tolist() == [[5, -1]] * 3


def test_products_with_arrays_and_vectors() -> None:
    m, w = example()
    ones = np.ones(TK)
    torch.testing.assert_close(m @ ones, torch.ones(B, H, TQ, dtype=torch.float64))
    torch.testing.assert_close(np.ones(TQ) @ m, w.sum(-2))


def test_a_map_can_be_used_like_a_tensor() -> None:
    x = torch.randn(2, 3, 5, 4)
    _, m = regard.attend(x, x, x, is_causal=True, return_map=True)
    w = m.dense()
    for of in (
        lambda m: m == 0, lambda m: m != 0, lambda m: m == w.numpy(), lambda m: 1 / (m + 1), lambda m: 2**m,
        lambda m: abs(m - 1), lambda m: m // 0.3, lambda m: m % 0.3,
    ):  # fmt: skip
        assert torch.equal(of(m), of(w))
    assert m in [m] and {m: 1}[m] == 1 and m != None and m != "weights"  # noqa: E711  the operator
    torch.testing.assert_close(m @ m, w @ w)
    assert torch.equal(torch.as_tensor(m), w) and np.array_equal(np.from_dlpack(m), w)
    nothing = x[:, :0]
    assert regard.attend(nothing, nothing, nothing, return_map=True)[1].mean(1).isnan().all()


def test_a_region_with_a_step_is_refused() -> None:
    x = torch.randn(6, 4)
    _, m = regard.attend(x, x, x, return_map=True)
    assert torch.equal(m.tile(slice(1, 5), slice(None), (4, 6)), m[1:5])
    with pytest.raises(ValueError, match=r"map: rows \(slice\(0, 6, 2\)\) must be a range without a step; got step 2"):
        m.tile(slice(0, 6, 2), (0, 6))


def test_memory_grows_with_the_lengths_not_their_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tensor that a view allocates is larger than a block or its result, for maps of any length."""
    largest = 0
    real = torch.exp

    def watched(x: torch.Tensor, *rest: Any, **options: Any) -> torch.Tensor:
        nonlocal largest
        largest = max(largest, x.numel())
        return real(x, *rest, **options)

    monkeypatch.setattr(torch, "exp", watched)
    monkeypatch.setattr(views, "refusal", lambda *_: "switched off")
    q = torch.randn(2, 3000, 4)
    _, m = regard.attend(q, q, q, is_causal=True, return_map=True)
    m.pool(30, 30, "mean"), m.entropy(), m.received(), m @ q, m.top(3)
    assert 0 < largest <= streamed_views.BLOCK
    assert "2×3000×3000, soft, holds 187.5 KiB of 68.7 MiB" in repr(m)


def test_dense_raises_above_its_limit_and_names_the_size() -> None:
    q = torch.randn(1, 8, 50_000, 2)
    m = regard.AttentionMap(Request.of(q, q, q).kept())
    with pytest.raises(
        ValueError, match=r"of 1×8×50000×50000 take 74\.5 GiB; the limit is 1\.0 GiB.*m\.pool\(512, 512\)"
    ):
        m.dense()
    with pytest.raises(ValueError, match=r"take 9\.3 GiB"):
        m[0, 3]
    assert m[0, 3, 100:102, 7:10].shape == (2, 3)
