"""The server of `regard view` under load: latency with 600 incomplete requests, and memory after 7,500 tile requests.

The server runs `regard view` in its own process, on a capture with a map of 2,048 × 2,048 and eight heads.
"""

import asyncio
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import torch

import regard
from bench.harness import Figure, Options

TOKENS, HEADS = 2048, 8
AT_ONCE = 200
"""Number of concurrent tile requests."""
PAUSE = 6.0
"""Seconds between the last request and reading the memory."""


def figures(options: Options) -> Iterator[Figure]:
    half_sent, tiles = (60, 75) if options.quick else (600, 7500)
    with tempfile.TemporaryDirectory() as folder, _serving(Path(folder)) as server:
        shape = f"{half_sent} incomplete requests"
        yield Figure("slowest of 20 requests", shape, lambda: _slowest(server, half_sent), "s", _bar(options, 2.0))
        shape = f"{tiles:,} tiles"
        yield Figure("memory growth after load", shape, lambda: _kept(server, tiles), "MiB", _bar(options, 50.0))


def _bar(options: Options, most: float) -> str | None:
    return None if options.quick else f"<= {most:g}"


@dataclass(frozen=True)
class Server:
    process: int
    port: int

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait(self, seconds: float = 60.0) -> None:
        """Wait until the server answers. It prints its address before it listens."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                httpx.get(f"{self.address}/api/target", timeout=60).raise_for_status()
                return
            except httpx.ConnectError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def memory(self) -> float:
        """Return the resident memory in MiB."""
        match = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{self.process}/status").read_text())
        assert match is not None
        return int(match[1]) / 1024


@contextmanager
def _serving(folder: Path) -> Iterator[Server]:
    capture = folder / "capture.safetensors"
    model = _Attention()
    with regard.watch(model) as seen, torch.no_grad():
        model(torch.randn(1, HEADS, TOKENS, 32, generator=torch.Generator().manual_seed(0)))
    seen.save(capture)
    command = [sys.executable, "-m", "regard", "view", str(capture), "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            match = re.search(r":(\d+)/", process.stdout.readline())
            assert match is not None, "regard view did not start"
            server = Server(process.pid, int(match[1]))
            server.wait()
            yield server
        finally:
            process.send_signal(signal.SIGINT)


class _Attention(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)


def _slowest(server: Server, half_sent: int) -> float:
    """Return the slowest of 20 requests in seconds, while other clients hold incomplete requests open."""
    with ExitStack() as stack:
        for _ in range(half_sent):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            client.sendall(b"GET /api/target HTTP/1.1\r\nHost: 127")
        slowest = 0.0
        for _ in range(20):
            start = time.perf_counter()
            httpx.get(f"{server.address}/api/target", timeout=60).raise_for_status()
            slowest = max(slowest, time.perf_counter() - start)
        return slowest


def _kept(server: Server, tiles: int) -> float:
    """Return the memory growth of the server in MiB, from the first overview to after the last tile."""
    version = httpx.get(f"{server.address}/api/target").json()["version"]
    httpx.get(f"{server.address}/api/maps/0/0/overview.pgm?v={version}", timeout=60).raise_for_status()
    before = server.memory()
    asyncio.run(_storm(server, tiles, version))
    time.sleep(PAUSE)
    return server.memory() - before


async def _storm(server: Server, tiles: int, version: str) -> None:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    at_once = asyncio.Semaphore(AT_ONCE)
    async with httpx.AsyncClient(base_url=server.address, timeout=600, limits=limits) as client:

        async def ask(number: int) -> None:
            async with at_once:
                (await client.get(_tile(number, version))).raise_for_status()

        await asyncio.gather(*(ask(number) for number in range(tiles)))


def _tile(number: int, version: str) -> str:
    draw = random.Random(number)
    deepest = (TOKENS - 1).bit_length()
    level = draw.randint(0, deepest)
    side = max(1, TOKENS // (256 * 2 ** (deepest - level)))
    head = draw.choice([*range(HEADS), "mean"])
    options = f"v={version}&reduce={draw.choice(('max', 'mean'))}&scale={draw.choice(('linear', 'log'))}"
    return f"/api/maps/0/{head}/tile/{level}/{draw.randrange(side)}/{draw.randrange(side)}.pgm?{options}"
