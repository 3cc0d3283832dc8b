"""Tiles and overviews, decoded by Pillow: every pixel is the shade of its weight."""

from __future__ import annotations

import dataclasses
import io
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from starlette.testclient import TestClient
from torch.nn import functional as F

from regard.attention import row_bands
from regard.attention.cells import Cells
from regard.server import head_views, tiles
from regard.server.head_views import Head, Mean
from regard.server.work_queue import Task
from tests.server.conftest import attended


def pixels(response: Any) -> np.ndarray:
    """Decode a response in PGM format, uint8 (height, width)."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "image/x-portable-graymap"
    image = Image.open(io.BytesIO(response.content))
    assert image.mode == "L"
    return np.asarray(image)


def shaded(weights: torch.Tensor, scale: str, keys: int) -> np.ndarray:
    w = weights.double().numpy().clip(0, 1)
    if scale == "log":
        low = math.log(min(1e-3, 0.1 / keys))
        with np.errstate(divide="ignore"):
            w = (1 - np.log(w) / low).clip(0, 1)
    return np.round(w * 255).astype(int)


def alike(result: np.ndarray, expected: np.ndarray) -> None:
    """Compare shades. A weight between two of them may be rounded to either in float32."""
    apart = np.abs(result.astype(int) - expected)
    assert apart.max() <= 1 and (apart > 0).mean() < 0.001


def pooled(dense: torch.Tensor, cells: int, reduce: str) -> torch.Tensor:
    """Pool a matrix to pixels of `cells` × `cells` entries, the last with fewer."""

    def cut(x: torch.Tensor) -> torch.Tensor:
        padded = F.pad(x, (0, -x.shape[1] % cells, 0, -x.shape[0] % cells))
        return padded.unflatten(1, (-1, cells)).unflatten(0, (-1, cells))  # (rows, cells, cols, cells)

    return (
        cut(dense).amax((1, 3)) if reduce == "max" else cut(dense).sum((1, 3)) / cut(torch.ones_like(dense)).sum((1, 3))
    )


@pytest.mark.parametrize("reduce", ["max", "mean"])
@pytest.mark.parametrize(("map", "head"), [(2, "1"), (2, "mean"), (3, "0")])
@pytest.mark.parametrize("above", [0, 1, 3])
def test_the_tiles_of_a_level_cover_the_whole_map(
    client: TestClient, saw: Any, map: int, head: str, above: int, reduce: str
) -> None:
    dense = saw.maps[map][1]
    dense = dense.mean(0) if head == "mean" else dense[int(head)]
    level = tiles.deepest(*dense.shape) - above
    expected = pooled(dense, 2**above, reduce)
    height, width = expected.shape
    whole = np.zeros((height, width), np.uint8)
    for row in range(0, height, 256):
        for column in range(0, width, 256):
            address = f"/api/maps/{map}/{head}/tile/{level}/{column // 256}/{row // 256}.pgm"
            result = pixels(client.get(address, params={"reduce": reduce, "scale": "log"}))
            whole[row : row + 256, column : column + 256] = result
    alike(whole, shaded(expected, "log", dense.shape[1]))


@pytest.mark.parametrize("scale", tiles.SCALES)
def test_overviews(client: TestClient, saw: Any, scale: str) -> None:
    result = pixels(client.get(f"/api/maps/2/0/overview.pgm?size=96&scale={scale}"))
    alike(result, shaded(saw.maps[2].at(1, 0).pool(96, 96), scale, 700))
    small = pixels(client.get(f"/api/maps/0/0/overview.pgm?scale={scale}"))
    alike(small, shaded(saw.maps[0][1, 0], scale, 13))
    assert pixels(client.get("/api/maps/3/0/overview.pgm?size=60")).shape == (1, 60)


def test_an_overview_as_a_grey_png(client: TestClient) -> None:
    shades = pixels(client.get("/api/maps/2/0/overview.pgm?scale=log"))
    for palette, expected in {"light": 255 - shades, "dark": shades}.items():
        response = client.get(f"/api/maps/2/0/overview.png?scale=log&palette={palette}")
        assert response.headers["content-type"] == "image/png"
        assert (np.asarray(Image.open(io.BytesIO(response.content))) == expected).all()


def test_the_top_level_is_one_pixel(client: TestClient, saw: Any) -> None:
    result = pixels(client.get("/api/maps/2/0/tile/0/0/0.pgm"))
    assert (result == shaded(saw.maps[2][1, 0].amax().reshape(1, 1), "linear", 700)).all()


@pytest.mark.parametrize("address", ["10/3/0", "10/0/3", "9/2/0", "0/1/0"])
def test_a_tile_beyond_the_edge(client: TestClient, address: str) -> None:
    refused = client.get(f"/api/maps/2/0/tile/{address}.pgm")
    assert refused.status_code == 404 and "must lie in" in refused.json()["error"]


def test_the_browser_caches_images_by_version(client: TestClient) -> None:
    version = client.get("/api/target").json()["version"]
    assert "immutable" in client.get(f"/api/maps/0/0/overview.pgm?v={version}").headers["cache-control"]
    assert client.get("/api/maps/0/0/overview.pgm").headers["cache-control"] == "no-store"
    gone = client.get("/api/maps/0/0/overview.pgm?v=old")
    assert gone.status_code == 410 and "old" in gone.json()["error"]


def test_the_image_is_served_unchanged(client: TestClient, saw: Any) -> None:
    result = client.get("/api/image.png")
    assert (np.asarray(Image.open(io.BytesIO(result.content))) == saw.image.numpy()).all()


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_pictures_do_not_depend_on_the_split(data: st.DataObject) -> None:
    """For any split, the pixels match the dense map."""
    queries, keys = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 40))
    map = attended((1, 2, queries, keys), seed=data.draw(st.integers(0, 9)))
    rows = Cells(0, queries, data.draw(st.integers(1, queries)))
    cols = Cells(0, keys, data.draw(st.integers(1, keys)))
    left_multiply = row_bands.PAIRS, head_views.MAX_WEIGHTS
    try:
        row_bands.PAIRS, head_views.MAX_WEIGHTS = data.draw(
            st.sampled_from([(1, 1), (50, 30), (300, 300), left_multiply])
        )
        both = [Head(map.at(0, n)) for n in range(2)]
        for reduce in ("max", "mean"):
            one = both[0].picture([rows], [cols], reduce, Task())
            expected = map.at(0, 0).pool(rows.count, cols.count, reduce)  # type: ignore[arg-type]
            torch.testing.assert_close(one, expected, rtol=1e-5, atol=1e-7)
            mean = Mean(both).picture([rows], [cols], reduce, Task())
            expected = _pool(map[0].mean(0), rows, cols, reduce)
            torch.testing.assert_close(mean, expected, rtol=1e-5, atol=1e-7)
            for head in (both[0], Mean(both)):
                shading = tiles.shading(data.draw(st.sampled_from(tiles.SCALES)), keys)
                shades = head.picture([rows], [cols], reduce, Task(), shading)
                desired = shading.of(head.picture([rows], [cols], reduce, Task()))
                assert (shades.int() - desired.int()).abs().max() <= 1 and (shades != desired).sum() <= 1
    finally:
        row_bands.PAIRS, head_views.MAX_WEIGHTS = left_multiply


def _pool(dense: torch.Tensor, rows: Cells, cols: Cells, reduce: str) -> torch.Tensor:
    def cell(i: int, j: int) -> torch.Tensor:
        part = dense[rows.edge(i) : rows.edge(i + 1), cols.edge(j) : cols.edge(j + 1)]
        return part.amax() if reduce == "max" else part.mean()

    return torch.stack([torch.stack([cell(i, j) for j in range(cols.count)]) for i in range(rows.count)])


def test_a_tile_computes_the_log_sum_exps_of_its_rows_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_bands, "PAIRS", 1000)
    map = attended((1, 1, 100, 100))
    head = Head(type(map)(map.request).at(0, 0))  # as from a capture: nothing is known yet
    assert head.bands.computed == 0
    head.picture([Cells(20, 30, 10)], [Cells(0, 50, 50)], "max", Task())
    assert head.bands.computed == 0.1


def test_a_nonfinite_row_is_served_as_zero_shades() -> None:
    """The kernels do not support it, so the whole head is computed without them."""
    map = attended((1, 1, 30, 20))
    query = map.request.q.clone()
    query[0, 0, 3] = math.nan
    head = Head(type(map)(dataclasses.replace(map.request, q=query)).at(0, 0))
    result = head.picture([Cells(0, 30, 30)], [Cells(0, 20, 20)], "max", Task())
    whole = torch.arange(30) != 3
    torch.testing.assert_close(result[whole], map[0, 0][whole], rtol=1e-5, atol=1e-7)
    assert result[3].isnan().all() and not tiles.shading("log", 20).of(result)[3].any()
    shades = head.picture([Cells(0, 30, 30)], [Cells(0, 20, 20)], "max", Task(), tiles.shading("log", 20))
    assert torch.equal(shades, tiles.shading("log", 20).of(result)) and shades[:3].any()


def test_shades_match_the_scale() -> None:
    weights = torch.tensor([[0.0, math.nan, 1.0, 0.5, 1.0000001, 1e-3, 1e-30]])
    assert tiles.shading("linear", 10).of(weights)[0].tolist() == [0, 0, 255, 128, 255, 0, 0]
    assert tiles.shading("log", 10).of(weights)[0].tolist() == [0, 0, 255, 229, 255, 0, 0]
    assert weights[0, 3] == 0.5  # the input is not changed
