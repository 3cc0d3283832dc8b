"""Settings shared by all tests and doctests: threads, seeds, the order of tests, parameter ids, instruction sets.

A test process uses one thread, because two thread pools that spin against each other are slower than none. The
environment variable REGARD_TEST_THREADS sets another number (`make test-hosts`).

Which tests ran before in the same process depends on how pytest-xdist distributes them, that is, on timing. So every
test starts with the same random state, and Hypothesis draws the same examples in every run. REGARD_TEST_ORDER=SEED
runs the tests in a random order that SEED determines (`make test ORDER=1`).

--quick runs the first test of every file (`make quick`).
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
import time
import types
import zlib
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch

from regard.attention.native import engine

THREADS = int(os.environ.get("REGARD_TEST_THREADS", "1"))
torch.set_num_threads(THREADS)

# deadline and too_slow measure time and would fail on a busy machine
hypothesis.settings.register_profile(
    "regard", derandomize=True, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("regard")


QUICK_FUNCTIONS = 1
"""Number of test functions of each file that --quick runs, each with its first parameters."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="run the first test of every file that is not marked slow")


def quick(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the first case of the first `QUICK_FUNCTIONS` functions of each file, without tests marked slow."""
    functions: dict[Path, set[str]] = {}
    selected = []
    for item in items:
        name = getattr(item, "originalname", item.name)
        chosen = functions.setdefault(item.path, set())
        if name not in chosen and len(chosen) < QUICK_FUNCTIONS and not item.get_closest_marker("slow"):
            chosen.add(name)
            selected.append(item)
    return selected


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With --quick, select tests. With REGARD_TEST_ORDER, shuffle the files, and the tests within each file.

    The tests of a file stay together, so that shared fixtures are set up once.
    """
    if config.getoption("--quick"):
        selected = quick(items)
        config.hook.pytest_deselected(items=[item for item in items if item not in set(selected)])
        items[:] = selected
    seed = os.environ.get("REGARD_TEST_ORDER", "")
    if seed:
        items.sort(key=lambda item: (_rank(seed, item.nodeid.partition("::")[0]), _rank(seed, item.nodeid)))


def _rank(seed: str, name: str) -> bytes:
    """Return a sort key that looks random, and that does not depend on which other tests are collected."""
    return hashlib.sha256(f"{seed}:{name}".encode()).digest()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    random.seed(0)
    torch.manual_seed(0)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
    """Give each shared fixture its own random state, because any of the tests that use it may run first."""
    if fixturedef.scope == "function":
        return (yield)
    before = random.getstate(), torch.get_rng_state()
    seed = zlib.crc32(f"{fixturedef.baseid}::{fixturedef.argname}".encode())
    random.seed(seed)
    torch.manual_seed(seed)
    try:
        return (yield)
    finally:
        random.setstate(before[0])
        torch.set_rng_state(before[1])


@pytest.fixture(autouse=True)
def restore_threads() -> Iterator[None]:
    """Reset the number of threads after each test."""
    yield
    if torch.get_num_threads() != THREADS:
        torch.set_num_threads(THREADS)


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], float]], None]:
    """Return a function that replaces `time.monotonic` in the modules of regard that are imported, except the server's.

    `time.monotonic` itself must not be replaced. The event loop of a server in another thread would read it too, set
    its timers by it, and wait for the wrong time forever.
    """

    def use(read: Callable[[], float]) -> None:
        clock = types.SimpleNamespace(**{**vars(time), "monotonic": read})
        for name, module in list(sys.modules.items()):
            ours = name.startswith("regard.") and not name.startswith("regard.server")
            if ours and getattr(module, "time", None) is time:
                monkeypatch.setattr(module, "time", clock)

    return use


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Name bytes and sets by their argument, because their content may depend on the clock or on the hash seed.

    gzip writes the current second into its header. An id made from the bytes would differ between the workers of one
    run, and collection would fail.
    """
    return argname if isinstance(val, (bytes, bytearray, set, frozenset)) else None


@pytest.fixture(params=engine.module.isas() if engine.module else ["none"])
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test once for every kernel instruction set that this machine supports."""
    if engine.module is None:
        pytest.skip(f"native: {engine.reason}")
    before = engine.module.isa()
    engine.module.use_isa(request.param)
    yield request.param
    engine.module.use_isa(before)
