"""Rollout and flow, compared with dense matrix products."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import regard
from regard.lens.rollout import Rollout

N, B, H = 7, 2, 3


@pytest.fixture
def maps() -> list[regard.AttentionMap]:
    drawn = torch.randn(4, 3, B, H, N, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return [regard.attend(q, k, v, is_causal=i == 2, return_map=True)[1] for i, (q, k, v) in enumerate(drawn)]


def dense(maps: list[regard.AttentionMap], residual: float, heads: list[int], batch: int) -> list[Tensor]:
    eye = torch.eye(N, dtype=torch.float64)
    return [residual * eye + (1 - residual) * m.dense()[batch, heads].mean(0) for m in maps]


@pytest.mark.parametrize(("residual", "heads", "batch"), [(0.5, "mean", 0), (0.2, [2, 0], 1), (0.0, 1, -1)])
def test_rows_columns_and_flow_are_those_of_the_product(
    maps: list[regard.AttentionMap], residual: float, heads: str | int | list[int], batch: int
) -> None:
    chosen = list(range(H)) if heads == "mean" else [heads] if isinstance(heads, int) else list(heads)
    layers = dense(maps, residual, chosen, batch)  # type: ignore[arg-type]
    product = torch.linalg.multi_dot(layers[::-1])
    rollout = Rollout.of(maps, residual, heads)
    for token in (0, 3, -1):
        torch.testing.assert_close(rollout.row(token, batch), product[token])
        torch.testing.assert_close(rollout.from_token(token, batch), product[token])
        torch.testing.assert_close(rollout.to_token(token, batch), product[:, token])
    through = rollout.flow([1, 2], 5, batch=batch)
    assert through.shape == (5, N)
    torch.testing.assert_close(through.sum(-1), product[5, [1, 2]].sum().expand(5))
    up, down = layers[1] @ layers[0], layers[3] @ layers[2]
    torch.testing.assert_close(through[2], up[:, [1, 2]].sum(-1) * down[5])
    torch.testing.assert_close(rollout.flow(batch=batch).sum(-1), torch.ones(5, dtype=torch.float64))


def test_errors_name_the_value(maps: list[regard.AttentionMap]) -> None:
    with pytest.raises(ValueError, match=r"residual \(2\) must lie in 0…1"):
        Rollout.of(maps, 2, "mean")
    with pytest.raises(ValueError, match=r"heads \('max'\) must be 'mean'"):
        Rollout.of(maps, 0.5, "max")
    with pytest.raises(ValueError, match=r"heads \(\(3,\)\) must be at least one, each in 0…2"):
        Rollout.of(maps, 0.5, 3)
    with pytest.raises(ValueError, match=r"tokens \(\[7\]\) must be at least one, each in 0…6"):
        Rollout.of(maps, 0.5, "mean").row(7)
    with pytest.raises(ValueError, match=r"batch \(2\) must lie in 0…1"):
        Rollout.of(maps, 0.5, "mean").row(0, batch=2)
    q = torch.randn(1, 1, 4, 5)
    cross = regard.attend(q, q[..., :3, :], q[..., :3, :], return_map=True)[1]
    with pytest.raises(ValueError, match=r"maps \(2×3×7×7 and 1×1×4×3\) must be square maps of one length"):
        Rollout.of([*maps, cross], 0.5, "mean")
    with pytest.raises(ValueError, match="must not be empty"):
        Rollout.of([], 0.5, "mean")
