"""The workspace reuses memory between calls: never while it is in use, and only up to a limit."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

import regard
from regard.attention.native import engine, workspace

SIZE = 2**20
pytestmark = pytest.mark.skipif(workspace._use_count is None, reason="this PyTorch does not count users of a storage")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    workspace.clear()
    yield
    workspace.clear()


def addresses() -> set[int]:
    return {block.memory.data_ptr() for block in workspace._blocks}


@pytest.mark.parametrize(
    "share",
    [
        lambda block: block[17:31],
        lambda block: block.view(torch.float32)[:5].view(1, 5).mT,
        lambda block: block.numpy(),
        lambda block: memoryview(block.numpy())[3:],
        lambda block: block.untyped_storage(),
        lambda block: torch.from_dlpack(block),
    ],
    ids=["slice", "view", "numpy", "buffer", "storage", "dlpack"],
)
def test_a_block_in_use_is_not_reused(share: object) -> None:
    block = workspace.empty(SIZE)
    address = block.data_ptr()
    user = share(block)  # type: ignore[operator]
    del block
    assert workspace.empty(SIZE).data_ptr() != address
    del user
    workspace._blocks[:] = [kept for kept in workspace._blocks if kept.memory.data_ptr() == address]
    assert workspace.empty(SIZE).data_ptr() == address


def test_small_and_huge_blocks_are_not_kept() -> None:
    workspace.empty(workspace.SMALLEST - 1)
    workspace.empty(workspace.LIMIT + 1)
    assert not workspace._blocks


def test_the_cache_is_bounded() -> None:
    used = [workspace.empty(workspace.LIMIT // 4 + n) for n in range(9)]
    assert len({block.data_ptr() for block in used}) == 9
    assert sum(len(block.memory) for block in workspace._blocks) <= workspace.LIMIT


def test_a_much_larger_block_is_not_reused() -> None:
    large = workspace.empty(4 * SIZE)
    address = large.data_ptr()
    del large
    assert workspace.empty(SIZE).data_ptr() != address
    assert workspace.empty(3 * SIZE).data_ptr() == address


def test_a_block_from_inference_mode_works_with_autograd() -> None:
    with torch.inference_mode():
        workspace.empty(SIZE)
    assert not workspace.empty(SIZE).is_inference()


def gradients(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(4, 8, 67, 32, generator=generator).requires_grad_() for _ in range(3))
    regard.attend(q, k, v, backend="native").square().sum().backward()
    return [x.grad for x in (q, k, v) if x.grad is not None]


@pytest.mark.skipif(engine.module is None, reason=engine.reason)
def test_gradients_that_are_kept_do_not_change() -> None:
    first = gradients(0)
    copies = [x.clone() for x in first]
    later = [gradients(seed) for seed in range(1, 5)]
    assert all(torch.equal(a, b) for a, b in zip(first, copies, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(later[2], gradients(3), strict=True))
    assert len(addresses()) >= 2


@pytest.mark.skipif(engine.module is None, reason=engine.reason)
def test_gradients_of_many_threads_are_their_own() -> None:
    alone = [gradients(seed) for seed in range(6)]
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(gradients, list(range(6)) * 5))
    for expected, got in zip(alone * 5, together, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
