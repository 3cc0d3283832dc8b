"""Masks: polarity, builders and merging; skipped and unmasked blocks are correct."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard import masks
from regard.attention.masks import Mask


def test_builders_match_the_operator() -> None:
    rows, cols = slice(0, 4), slice(0, 6)
    cpu = torch.device("cpu")
    for built, described in (
        (masks.causal(4, 6), Mask(right=0)),
        (masks.causal(4, 6, offset=2), Mask(right=0, offset=2)),
        (masks.sliding(4, 6, left=1, right=2), Mask(left=1, right=2)),
        (masks.sliding(4, 6, left=None, right=0, offset=-1), Mask(right=0, offset=-1)),
        (masks.over_keys(masks.padding([2, 6], 6)), Mask(lengths=torch.tensor([2, 6]).reshape(2, 1, 1, 1))),
    ):
        allowed = described.allowed(rows, cols, cpu)
        assert allowed is not None and torch.equal(built.expand(allowed.shape), allowed)


def test_polarity_is_converted() -> None:
    ignore = torch.tensor([[True, False, False]])
    assert masks.from_ignore(ignore).tolist() == [[False, True, True]]
    added = torch.tensor([0.0, -torch.inf])
    assert masks.from_ignore(added) is added
    assert masks.from_ones(torch.tensor([1, 0])).tolist() == [True, False]
    assert masks.from_ones(torch.tensor([1.0, 0.0])).tolist() == [True, False]
    kept = torch.tensor([True, False])
    assert masks.from_ones(kept) is kept


def test_wrong_polarity_is_refused() -> None:
    with pytest.raises(ValueError, match=r"ignore \(2\) must be boolean or float; got torch.int64.*`mask == 0`"):
        masks.from_ignore(torch.tensor([1, 0]))
    with pytest.raises(ValueError, match=r"ones \(2\) must contain only 0 and 1; got -10000.0"):
        masks.from_ones(torch.tensor([0.0, -10000.0]))


def test_merge() -> None:
    keep, bias = masks.causal(2, 3), torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    inf = -torch.inf
    assert masks.merge(None) is None and masks.merge(keep, None) is keep
    assert masks.merge(keep, bias).tolist() == [[1.0, inf, inf], [4.0, 5.0, inf]]
    assert masks.merge(bias, bias).tolist() == [[2.0, 4.0, 6.0], [8.0, 10.0, 12.0]]


side = st.one_of(st.none(), st.integers(0, 5))


@settings(max_examples=300, deadline=None)
@given(left=side, right=side, offsets=st.lists(st.integers(-6, 6), min_size=1, max_size=2), data=st.data())
def test_skipped_and_unmasked_blocks_are_correct(
    left: int | None, right: int | None, offsets: list[int], data: st.DataObject
) -> None:
    queries, keys = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 7))
    lengths = data.draw(st.lists(st.integers(0, keys), min_size=len(offsets), max_size=len(offsets)))
    mask = Mask(
        left=left,
        right=right,
        offset=torch.tensor(offsets).reshape(-1, 1, 1),
        lengths=torch.tensor(lengths).reshape(-1, 1, 1),
    )
    position = torch.arange(queries).reshape(-1, 1) + mask.offset
    key = torch.arange(keys)
    truth = key < mask.lengths
    truth = truth & (key >= position - left if left is not None else True)
    truth = truth & (key <= position + right if right is not None else True)
    truth = truth.expand(len(offsets), queries, keys)
    row = data.draw(st.integers(0, queries - 1))
    rows = slice(row, data.draw(st.integers(row + 1, queries)))
    first, last = mask.span(rows, keys)
    outside = (key < first) | (key >= last)
    assert not truth[:, rows, outside].any()
    col = data.draw(st.integers(0, keys - 1))
    cols = slice(col, data.draw(st.integers(col + 1, keys)))
    wanted = truth[:, rows, cols]
    allowed = mask.allowed(rows, cols, torch.device("cpu"))
    assert wanted.all() if allowed is None else torch.equal(allowed.expand(wanted.shape), wanted)
    picked = mask.allowed(torch.arange(rows.start, rows.stop), torch.arange(cols.start, cols.stop), torch.device("cpu"))
    assert wanted.all() if picked is None else torch.equal(picked.expand(wanted.shape), wanted)
