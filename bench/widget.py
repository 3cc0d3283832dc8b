"""The widget in JupyterLab: time until 270 heads of 8,192 tokens are visible, and a head against the page's time.

It needs Chromium, and `pip install jupyterlab playwright anywidget`. Both open the same capture in the same browser.
Opening ends when the first overview is drawn. A head is timed from the click until all its tiles have arrived, after
all overviews are computed; heads of the widget and of the page alternate. A screenshot is saved beside the results.
"""

import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

import regard
from bench._skips import installed, skip
from bench.harness import Figure, Options

LAYERS, HEADS, TOKENS, WIDTH = 27, 10, 8192, 32
OPENED = 9
"""Number of heads that are opened."""
PATIENCE = 180_000
"""Time limit of a step in milliseconds."""
OPEN_HEAD = """async (index) => {
  const pending = () => document.documentElement.dataset.ahead;
  const frame = () => new Promise(requestAnimationFrame);
  const start = performance.now();
  document.querySelectorAll('a[href^="#map?map="]')[index].click();
  while (!document.querySelector(".stage") || !pending()) {
    if (performance.now() - start > 60000) throw new Error("no tile was requested");
    await new Promise((resolve) => setTimeout(resolve));
  }
  while (pending()) await new Promise((resolve) => setTimeout(resolve));
  const seconds = (performance.now() - start) / 1000;
  document.querySelector("button.back").click();
  while (!document.querySelector('a[href^="#map?map="] canvas.there') || pending()) await frame();
  return seconds;
}"""


def figures(options: Options) -> Iterator[Figure]:
    if not installed("widget", "jupyterlab", "playwright", "anywidget"):
        return
    if shutil.which("chromium") is None:
        return skip("widget", "chromium")
    layers, tokens = (2, 256) if options.quick else (LAYERS, TOKENS)
    shape, bars = str((layers * HEADS, tokens, tokens)), (None, None) if options.quick else ("<= 3.0", "<= 1.5")
    with tempfile.TemporaryDirectory() as folder:
        _write_files(Path(folder), layers, tokens)
        seconds, ratio = _measure(Path(folder), options.out / "widget.png")
    yield Figure("first overview in JupyterLab", shape, lambda: seconds, "s", bars[0])
    yield Figure("open a head, widget/page", shape, lambda: ratio, "x", bars[1])


def _write_files(folder: Path, layers: int, tokens: int) -> None:
    """Write a capture, and a notebook that opens it."""

    class Layer(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = torch.randn(3, 1, HEADS, tokens, WIDTH, generator=generator)
            regard.attend(q, k, v, is_causal=True)
            return x

    generator = torch.Generator().manual_seed(0)
    model = torch.nn.Sequential(*(Layer() for _ in range(layers)))
    with regard.watch(model) as seen, torch.no_grad():
        model(torch.zeros(1))
    seen.save(folder / "seen.safetensors")
    sources = ["import regard; seen = regard.load_capture('seen.safetensors'); print('loaded', len(seen))", "seen"]
    cells: list[dict[str, object]] = [
        {"cell_type": "code", "execution_count": None, "id": str(i), "metadata": {}, "outputs": [], "source": source}
        for i, source in enumerate(sources)
    ]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    notebook = {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    (folder / "widget.ipynb").write_text(json.dumps(notebook), encoding="utf-8")


def _measure(folder: Path, picture: Path) -> tuple[float, float]:
    """Return the seconds until the first overview is drawn, and the median ratio of the times to open a head."""
    from playwright.sync_api import sync_playwright

    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium refuses its sandbox to root
    lab = ["jupyterlab", "--no-browser", "--allow-root", "--IdentityProvider.token=", "--ServerApp.port={port}"]
    view = ["regard", "view", "seen.safetensors", "--no-open", "--port", "{port}"]
    with ExitStack() as stack:
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        stack.callback(browser.close)
        notebook, page = (browser.new_page(viewport={"width": 1400, "height": 1000}) for _ in range(2))
        for each in (notebook, page):
            each.set_default_timeout(PATIENCE)
        widget, seconds = _open_notebook(notebook, stack.enter_context(_served(lab, folder)))
        _wait_for_overviews(widget)
        picture.parent.mkdir(parents=True, exist_ok=True)
        notebook.screenshot(path=picture)
        page.goto(stack.enter_context(_served(view, folder)))
        _wait_for_overviews(page)
        ratios = []
        for index in range(OPENED):
            times = [each.locator("html").evaluate(f"async () => ({OPEN_HEAD})({index})") for each in (widget, page)]
            ratios.append(times[0] / times[1])
            print(f"head {index}: widget {times[0]:.3f} s, page {times[1]:.3f} s", file=sys.stderr)
    return seconds, statistics.median(ratios)


def _open_notebook(page: Any, address: str) -> tuple[Any, float]:
    """Run the cells. Return the frame of the widget, and the seconds until its first overview is drawn."""
    page.goto(f"{address}/lab/tree/widget.ipynb")
    cells = page.locator(".jp-Notebook .jp-CodeCell .cm-content")
    page.get_by_text("| Idle").first.wait_for()  # the kernel has started
    cells.nth(0).click()
    page.keyboard.press("Shift+Enter")
    page.locator(".jp-OutputArea-output", has_text="loaded").wait_for()  # the import of regard is not measured
    cells.nth(1).click()
    start = time.monotonic()
    page.keyboard.press("Shift+Enter")
    frame = page.frame_locator("iframe[title=regard]")
    frame.locator("canvas.there").first.wait_for()
    return frame, time.monotonic() - start


def _wait_for_overviews(page: Any) -> None:
    page.locator("canvas.there").first.wait_for()
    page.locator("html[data-ahead='']").wait_for(state="attached")


@contextmanager
def _served(command: list[str], folder: Path) -> Iterator[str]:
    """Start a server of a Python module, and yield its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [sys.executable, "-m", *(word.format(port=port) for word in command)]
    settings = {f"JUPYTER_{name}_DIR": str(folder / "jupyter") for name in ("CONFIG", "DATA", "RUNTIME")}
    address = f"http://127.0.0.1:{port}"
    with (folder / f"{command[0]}.log").open("w") as log:
        server = subprocess.Popen(words, cwd=folder, env={**os.environ, **settings}, stdout=log, stderr=log)
        try:
            for _ in range(120):
                try:
                    urllib.request.urlopen(address, timeout=5).close()
                    break
                except OSError:
                    time.sleep(0.5)
            yield address
        finally:
            server.terminate()
            server.wait()
