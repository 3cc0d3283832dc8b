"""Small targets of the server, with distinct sizes, and a test client."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from starlette.testclient import TestClient

import regard
from regard.lens.patch_weights import Patches
from regard.server.routes import create
from regard.server.static_files import Page
from regard.server.target import Capture

BASE = "http://127.0.0.1:8000"
NAMES = ["encoder.0", "encoder.1", "decoder.0", "cross.0"]
KINDS = ["self", "self", "causal", "cross"]


def attended(shape: tuple[int, int, int, int], *, seed: int = 0, **asked: Any) -> regard.AttentionMap:
    """A map (B, H, Tq, Tk) with some strong links."""
    batch, heads, queries, keys = shape
    generator = torch.Generator().manual_seed(seed)
    q = 2 * torch.randn(batch, heads, queries, 5, generator=generator)
    k = 2 * torch.randn(batch, heads, keys, 5, generator=generator)
    _, output = regard.attend(q, k, k, return_map=True, **asked)
    return output


def seen() -> Any:
    """Maps of a model with an encoder, a decoder and an image."""
    maps = [attended((2, 3, 13, 13), seed=1), attended((2, 3, 13, 13), seed=2)]
    maps += [attended((2, 2, 700, 700), seed=3, is_causal=True), attended((2, 1, 11, 601), seed=4)]
    words = [f"w{n}" for n in range(13)]
    maps[0].tokens(words, words)
    maps[1].tokens(words, words)
    maps[3].tokens(None, [f"k{n}" for n in range(601)])
    image = torch.arange(6 * 8 * 3, dtype=torch.uint8).reshape(6, 8, 3)
    return SimpleNamespace(names=NAMES, kinds=KINDS, maps=maps, image=image, patches=Patches(3, 4, 1))


def asked(target: Any, **options: Any) -> TestClient:
    options.setdefault("page", Page(folder=Path("/nowhere")))
    return TestClient(create(target, **options), base_url=BASE, raise_server_exceptions=False)


def run(scene: Coroutine[Any, Any, None]) -> None:
    """Run in a separate thread, because browser tests have an event loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, scene).result()


@pytest.fixture(scope="session")
def saw() -> Any:
    return seen()


@pytest.fixture(scope="session")
def client(saw: Any) -> Iterator[TestClient]:
    """A client for batch entry 1 of the recorded maps."""
    with asked(Capture(saw, "a capture", batch=1)) as opened:  # opened once: a thread for all requests
        yield opened
