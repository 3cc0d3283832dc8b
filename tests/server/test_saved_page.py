"""A saved page has the answers of the HTTP API, stays within its limit, and reduces the resolution to do so."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from regard.commands.main import main
from regard.server import saved_page, target
from regard.server.saved_page import save_page
from tests.server.conftest import asked, seen

PAGE = 100_000
"""Size of the page without a recording."""


@pytest.fixture(autouse=True)
def page(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of known size, because the real one may not be built."""

    def standalone(recording: str) -> str:
        return f'<p>{" " * PAGE}</p><script id="recording">{recording}</script>'

    monkeypatch.setattr(saved_page, "standalone_page", standalone)


@pytest.fixture(scope="module")
def capture() -> target.Target:
    return target.Capture(seen(), "a capture")


def saved(capture: target.Target, folder: Path, **options: Any) -> dict[str, Any]:
    text = save_page(capture, folder / "page.html", **options).read_text(encoding="utf-8")
    assert len(text.encode()) <= options.get("limit", saved_page.LIMIT)
    recording: dict[str, Any] = json.loads(re.findall(r'id="recording">(.*)</script>', text)[0])
    return recording


def unpack(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text))


def http(client: TestClient, path: str) -> bytes:
    response = client.get(f"/{path}")
    assert response.status_code == 200, path
    return response.content


def shades(file: bytes) -> np.ndarray:
    """The header and the shades. They may differ by one: pixels are pooled before they are shaded."""
    return np.frombuffer(file, np.uint8).astype(int)


def test_a_recording_has_the_answers_of_the_api(capture: target.Target, tmp_path: Path) -> None:
    recording, client = saved(capture, tmp_path), asked(capture)
    assert recording["all"] == 9
    assert not recording["reduced"]
    assert len(recording["heads"]) == 9 + 3, "and the means of maps with several heads"
    pictures = [path for path in recording["answers"] if ".pgm" in path]
    assert sum("tile/10/" in path for path in pictures) == 2 * 9 * 3 + 2 * 3, "3 × 3 and 3 × 1 tiles"
    for path in pictures[::3]:
        difference = shades(unpack(recording["answers"][path])) - shades(http(client, path))
        assert np.abs(difference).max() <= 1, path
    stored = json.loads(unpack(recording["answers"]["api/target"]))
    assert stored == {**json.loads(http(client, "api/target")), "version": "saved"}
    for path in ("api/maps/2/1/received", "api/overlay?rollout=1&query=5"):
        (old,), (new,) = (
            [value for value in json.loads(file).values() if isinstance(value, list)]
            for file in (http(client, path), unpack(recording["answers"][path]))
        )
        np.testing.assert_allclose(new, old, rtol=1e-3)
    assert json.loads(unpack(recording["answers"]["api/maps/1/profile"])) == json.loads(
        http(client, "api/maps/1/profile")
    )


def test_all_weights_are_stored_in_half_precision(capture: target.Target, tmp_path: Path) -> None:
    weights = saved(capture, tmp_path)["heads"]["3/0"]["weights"]
    matrix = np.frombuffer(unpack(weights["all"]), "<f2").reshape(weights["queries"], weights["keys"])
    row = json.loads(http(asked(capture), "api/maps/3/0/query/7"))["row"]
    np.testing.assert_allclose(matrix[7], row, rtol=1e-3, atol=1e-7)


def test_a_small_limit_reduces_resolution_and_links(capture: target.Target, tmp_path: Path) -> None:
    recording = saved(capture, tmp_path, limit=PAGE + 450_000, heads=["2.0", "2.mean"])
    head, client = recording["heads"]["2/0"], asked(capture)
    assert recording["reduced"]
    assert head["level"] < 10
    assert not any("/tile/10/" in path for path in recording["answers"])
    top = head["weights"]["top"]
    assert 2 <= top < 20
    for side, name in (("query", "keys"), ("key", "queries")):
        positions = np.frombuffer(unpack(head["weights"][side]["positions"]), "<u4").reshape(-1, top)
        values = np.frombuffer(unpack(head["weights"][side]["weights"]), "<f2").reshape(-1, top)
        expected = json.loads(http(client, f"api/maps/2/0/{side}/400?top={top}"))
        count = len(expected["weights"])
        np.testing.assert_allclose(values[400, :count], expected["weights"], rtol=1e-3, atol=1e-7)
        assert positions[400, 0] == expected[name][0]


def test_heads_are_spread_if_not_all_fit(
    capture: target.Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved_page, "SHARE", 10**9)
    recording = saved(capture, tmp_path, limit=PAGE + 2_000_000)
    maps = {at.partition("/")[0] for at in recording["heads"]}
    assert 1 < len(recording["heads"]) < 9
    assert maps >= {"0", "2"}
    overviews = [path for path in recording["answers"] if "overview" in path]
    assert len(overviews) == 2 * 9, "all heads, in two scales"


def test_files_are_equal_if_written_again(capture: target.Target, tmp_path: Path) -> None:
    first = save_page(capture, tmp_path / "a.html", ["0.1"]).read_bytes()
    assert first == save_page(capture, tmp_path / "b.html", ["0.1"]).read_bytes()


@pytest.mark.parametrize(
    ("name", "heads", "limit", "message"),
    [
        ("page.png", None, 10**6, r"save \(.*page.png\) must end in .html; got '.png'"),
        ("page.html", ["3"], 10**6, r"heads \('3'\) must be MAP.HEAD or MAP.mean"),
        ("page.html", ["0.7"], 10**6, r"heads \('0.7'\) must be .* index in 0…2"),
        ("page.html", None, PAGE + 2000, r"TARGET \(a capture, 9 heads\) must fit in 102,000 bytes"),
        ("page.html", ["2.0", "2.1", "2.mean"], PAGE + 230_000, r"heads \(3\) must fit in 330,000 bytes"),
    ],
)
def test_errors(
    capture: target.Target, tmp_path: Path, name: str, heads: list[str] | None, limit: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        save_page(capture, tmp_path / name, heads, limit)
    assert not list(tmp_path.iterdir())


def test_a_target_without_maps_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"TARGET \(Explain\) must have maps"):
        save_page(target.NoTarget(), tmp_path / "page.html")


def test_heads_come_with_save(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", "--heads", "0.1"]) != 0
    assert "heads (0.1) must come with --save" in capsys.readouterr().err
