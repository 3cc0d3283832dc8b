"""What every test shares: the number of threads, the ids of parameters, the instruction sets of the kernels.

A test process has one thread, as two thread pools that spin against each other are slower than none. The environment
variable REGARD_TEST_THREADS sets another number (`make test-hosts`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from regard.attention import engine

THREADS = int(os.environ.get("REGARD_TEST_THREADS", "1"))
torch.set_num_threads(THREADS)


@pytest.fixture(autouse=True)
def restore_threads() -> Iterator[None]:
    """A test may change the number of threads; the next one starts with the configured number again."""
    yield
    if torch.get_num_threads() != THREADS:
        torch.set_num_threads(THREADS)


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Name bytes and sets by their argument: their content may depend on the clock or on the hash seed.

    gzip writes the current second into its header, so an id made from the bytes differed between the workers of one
    run, and collection failed.
    """
    return argname if isinstance(val, (bytes, bytearray, set, frozenset)) else None


@pytest.fixture(params=engine.module.isas() if engine.module else ["none"])
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every instruction set of the kernels that runs here, in use for the time of a test."""
    if engine.module is None:
        pytest.skip(f"native: {engine.reason}")
    before = engine.module.isa()
    engine.module.use_isa(request.param)
    yield request.param
    engine.module.use_isa(before)
