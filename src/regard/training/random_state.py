"""States of all random number generators of a process: seed, save and restore them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor


def seed_all(seed: int, rank: int = 0) -> None:
    """Seed torch (on every device), Python and NumPy. Processes with different ranks get different seeds.

    >>> seed_all(7); first = torch.rand(1)
    >>> seed_all(7); bool(torch.rand(1) == first)
    True
    """
    seed = (seed + 1_000_003 * rank) % 2**32
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 (tasks may use the global generator)


def rng_states() -> dict[str, Tensor]:
    """Return the states of all generators as byte tensors, which have the same length in every process."""
    version, numbers, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state()  # noqa: NPY002
    states = {
        "torch": torch.get_rng_state(),
        "python": _bytes([version, numbers, gauss]),
        "numpy": _bytes([name, np.asarray(keys).tolist(), int(position), int(has_gauss), float(cached)]),
    }
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def restore(states: dict[str, Tensor]) -> None:
    """Restore the states that `rng_states` returned."""
    torch.set_rng_state(states["torch"])
    version, numbers, gauss = json.loads(bytes(states["python"].tolist()))
    random.setstate((version, tuple(numbers), gauss))
    name, keys, position, has_gauss, cached = json.loads(bytes(states["numpy"].tolist()))
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))  # noqa: NPY002
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


@contextmanager
def preserve_rng_states() -> Iterator[None]:
    """Restore the generator states on exit, so that an evaluation does not change the random numbers of training."""
    states = rng_states()
    try:
        yield
    finally:
        restore(states)


def _bytes(value: list[object], length: int = 8192) -> Tensor:
    """Encode a value as JSON in a byte tensor of fixed length, so that processes can exchange it."""
    text = json.dumps(value).encode().ljust(length)  # JSON may end in spaces
    assert len(text) == length, f"the state of a generator takes {len(text)} of {length} bytes"
    return torch.tensor(list(text), dtype=torch.uint8)
