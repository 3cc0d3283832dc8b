"""Tiles computed in bands of rows: results match one pass, and work can be cancelled and resumed."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Sequence
from typing import TypeVar

import pytest
import torch

import regard
from regard.attention import row_bands
from regard.attention.request import Request
from regard.attention.sink import SinkMap

T = TypeVar("T")


class Cancelled(Exception):
    pass


class Limit:
    """Progress that cancels after `most` checks."""

    def __init__(self, most: int) -> None:
        self.checks, self.most = 0, most

    def check(self) -> None:
        if self.checks == self.most:
            raise Cancelled
        self.checks += 1

    def over(self, steps: Sequence[T]) -> Iterator[T]:
        yield from steps


def untouched(*lead: int, **options: object) -> regard.AttentionMap:
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(*lead, tokens, 8, generator=generator) for tokens in (23, 29))
    return regard.AttentionMap(Request.of(q, k, k, **options).kept())  # type: ignore[arg-type]


@pytest.mark.parametrize("pairs", [1, 29 * 5, 29 * 5 * 6, 2**25])
@pytest.mark.parametrize("reduce", ["max", "mean", "sum"])
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"weighting": "hard"}], ids=str)
def test_tiles_in_bands(monkeypatch: pytest.MonkeyPatch, options: dict[str, object], reduce: str, pairs: int) -> None:
    monkeypatch.setattr(row_bands, "PAIRS", pairs)
    for lead in ((), (2, 3)):
        for rows, cols, out in (((0, 23), (0, 29), (4, 5)), ((3, 20), (7, 9), (17, 8)), ((5, 7), (0, 29), (6, 29))):
            expected = untouched(*lead, **options).tile(rows, cols, out, reduce)  # type: ignore[arg-type]
            m = untouched(*lead, **options)
            image = m.tile(rows, cols, out, reduce, progress=Limit(10_000))  # type: ignore[arg-type]
            torch.testing.assert_close(image, expected, rtol=1e-5, atol=1e-7)


def test_a_cancelled_tile_is_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_bands, "PAIRS", 29 * 5)  # bands of five rows
    m = untouched()
    with pytest.raises(Cancelled):
        m.tile((0, 23), (0, 29), (23, 29), progress=Limit(2))
    assert m.bands.computed == 2 / 5
    computed = []
    for module in (row_bands.streamed_views, row_bands.native_views):
        statistic = module.statistic
        monkeypatch.setattr(module, "statistic", lambda request, f=statistic: computed.append(request) or f(request))
    m.tile((0, 23), (0, 29), (23, 29), progress=Limit(100))
    assert m.bands.computed == 1 and [request.queries for request in computed] == [5, 5, 3]


def test_bands_use_the_statistic_of_the_call() -> None:
    x = torch.randn(2, 30, 8)
    _, m = regard.attend(x, x, x, return_map=True)
    assert m.bands.computed == 1
    assert torch.equal(m.tile((3, 9), (0, 30), (6, 30), progress=Limit(9)), m.tile((3, 9), (0, 30), (6, 30)))


def test_bands_keep_the_sink() -> None:
    m = SinkMap(untouched(2, 3).request, torch.randn(3, 1))
    image = m.tile((3, 9), (0, 29), (6, 29), progress=Limit(9))
    assert torch.equal(image, m.dense()[..., 3:9, :]) and m.dense().sum(-1).max() < 1


def test_bands_keep_the_sink_of_large_rows() -> None:
    """Their weights are normalised by the scores of the view itself and the sink."""
    request = untouched(2, 3).request
    request = dataclasses.replace(request, q=request.q.double() * 1e12, k=request.k.double())
    m = SinkMap(request, regard.AttentionMap(request).statistic.highest)  # as large as the highest score
    assert m.statistic.large is not None and m.statistic.large.all()
    image = m.tile((3, 9), (0, 29), (6, 29), progress=Limit(9))
    torch.testing.assert_close(image.sum(-1), torch.full((2, 3, 6), 0.5).double(), rtol=0, atol=0.1)


@pytest.mark.parametrize("kind", ["attended", "untouched", "sink"])
@pytest.mark.parametrize("seen", [False, True])
def test_copies(kind: str, seen: bool) -> None:
    x = torch.randn(2, 3, 5, 8)
    _, m = regard.attend(x, x, x, return_map=True)
    if kind != "attended":
        m = regard.AttentionMap(m.request) if kind == "untouched" else SinkMap(m.request, torch.randn(3, 1))
    if seen:
        m.tile((0, 5), (0, 5), (2, 2), progress=Limit(9))
        m.entropy()
    for other in (m.clone(), copy.deepcopy(m)):
        assert torch.equal(other.dense(), m.dense()) and torch.equal(other.entropy(), m.entropy())


@pytest.mark.skipif(row_bands.native_views.engine.module is None, reason="kernels not built")
def test_a_request_is_reduced_once_for_context_and_map(monkeypatch: pytest.MonkeyPatch) -> None:
    reduced = []
    reduce = regard.Bilinear.reduce
    monkeypatch.setattr(regard.Bilinear, "reduce", lambda *arguments: reduced.append(arguments) or reduce(*arguments))
    x = torch.randn(2, 5, 8, requires_grad=True)
    _, m = regard.attend(x, x, x, similarity=regard.Bilinear(torch.randn(8, 8)), return_map=True, backend="native")
    m.dense()
    assert len(reduced) == 1
