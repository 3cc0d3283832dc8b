"""Try an installed regard: kernels, a map, a picture, and the page: `python tools/try_install.py`.

It needs neither a checkout nor Node, a compiler or a network. KERNELS=no is for platforms whose wheel has no kernels.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

START = time.monotonic()

import torch  # noqa: E402  # the import is part of the time

import regard  # noqa: E402
from regard.attention.native import engine  # noqa: E402


def report(text: str) -> None:
    print(f"{time.monotonic() - START:5.1f} s  {text}", flush=True)


def try_map(folder: Path) -> None:
    """Compute attention with a map, compare with SDPA, and draw the map."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 4, 512, 32)
    context, m = regard.attend(q, k, v, is_causal=True, return_map=True)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(context, expected)
    m.save(folder / "map.png")
    report(f"{m} → map.png, {(folder / 'map.png').stat().st_size:,} bytes")


def try_page() -> None:
    """Start `regard view` and read its page and a script of it."""
    command = [sys.executable, "-m", "regard", "view", "--no-open", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8") as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            match = re.search(r"http://\S+", line)
            if match is None:
                raise SystemExit(f"try_install: regard view must print its address; got {line!r}.")
            address = match[0].rstrip("/")
            page = read(f"{address}/")
            script = re.search(r'src="\./(assets/[^"]+\.js)"', page)
            if script is None:
                raise SystemExit(f"try_install: {address} must answer with the page; got {page[:200]!r}.")
            report(f"regard view: {len(page):,} characters of HTML, {len(read(f'{address}/{script[1]}')):,} of script")
        finally:
            server.terminate()


def read(address: str) -> str:
    with urllib.request.urlopen(address, timeout=30) as answer:
        return str(answer.read().decode("utf-8"))


def main() -> None:
    report(
        f"regard {regard.__version__}, torch {torch.__version__}, Python {sys.version.split()[0]}: {regard.__file__}"
    )
    report(f"kernels: {engine.reason}")
    if engine.module is None and os.environ.get("KERNELS") != "no":
        raise SystemExit("try_install: the kernels must load; see the reason above.")
    with tempfile.TemporaryDirectory() as folder:
        try_map(Path(folder))
    try_page()


if __name__ == "__main__":
    main()
