"""Maps that were taken from `Seen`, and copies of a `Seen`, never show wrong weights."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import regard


class Kernel(nn.Module):
    """Attention whose queries and keys are the input itself."""

    def forward(self, x: Tensor, *_: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x)


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, 7, 12, generator=torch.Generator().manual_seed(0))


def test_a_map_that_the_caller_holds_raises_after_a_write(x: Tensor) -> None:
    q = x.clone()
    with regard.watch(model := Kernel()) as seen:
        model(q)
        inside = seen[0]
        q.mul_(2)  # noticed: the watch copies q first
    after, expected = seen[0], (x @ x.mT / 12**0.5).softmax(-1)
    torch.testing.assert_close(after.dense()[:, 0], expected)
    with pytest.raises(RuntimeError, match=r"map: query .* overwritten in place. .* keep='copy'"):
        inside.dense()
    with regard.watch(model) as seen:
        model(q)
    after = seen[0]
    q.mul_(2)
    with pytest.raises(RuntimeError, match=r"map: query .* overwritten in place"):
        after.pool(2, 2)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda seen: pickle.loads(pickle.dumps(seen))])
def test_a_recording_can_be_copied(x: Tensor, duplicate: Any) -> None:
    for model in (Kernel(), nn.MultiheadAttention(12, 3, batch_first=True)):
        q = x.clone()
        with regard.watch(model) as seen:
            model(q, q, q)
        copied = duplicate(seen)
        assert copied.names == seen.names and torch.equal(copied[0].dense(), seen[0].dense())
        copied.calls[0].request.q.mul_(2)
        with pytest.raises(RuntimeError, match="overwritten in place"):
            copied[0]
        assert bool(seen[0].dense().isfinite().all())
