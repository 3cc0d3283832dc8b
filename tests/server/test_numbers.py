"""Every route with numbers returns the values of the map.

A route computes the scores of the rows it needs, the map those of all: libraries round products of different shapes
differently. Two such weights differ by at most `statistic.ERROR`, relatively; equal bits are for the same calls only.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from starlette.testclient import TestClient

import regard
from regard.attention.statistic import ERROR
from regard.lens.head_profile import MEASURES, profile
from regard.lens.rollout import Rollout
from regard.server.target import Capture
from tests.server.conftest import KINDS, NAMES, asked, attended

pytestmark = pytest.mark.host
CLOSE = {"rtol": 2 * ERROR, "atol": 1e-8}


def weights(saw: Any, map: int, head: int | str) -> torch.Tensor:
    dense = saw.maps[map][1]
    return dense.mean(0) if head == "mean" else dense[head]


def test_the_target_is_described(client: TestClient, saw: Any) -> None:
    response = client.get("/api/target").json()
    assert response["kind"] == "capture" and response["title"] == "a capture" and response["version"]
    assert [m["name"] for m in response["maps"]] == NAMES and [m["kind"] for m in response["maps"]] == KINDS
    assert [(m["heads"], m["queries"], m["keys"]) for m in response["maps"]] == [
        tuple(map.shape[1:]) for map in saw.maps
    ]
    first, last = response["maps"][0], response["maps"][3]
    assert first["query_tokens"] == first["key_tokens"] == response["maps"][1]["query_tokens"]
    assert response["tokens"][first["key_tokens"]] == [f"w{n}" for n in range(13)]
    assert last["query_tokens"] is None and response["tokens"][last["key_tokens"]][600] == "k600"
    assert response["maps"][2]["query_tokens"] is None
    assert response["image"] == {"width": 8, "height": 6, "rows": 3, "columns": 4, "first": 1}
    assert response["can"] == ["map", "text", "image"]


@pytest.mark.parametrize("head", [0, 2, "mean"])
def test_a_cell_and_its_rank(client: TestClient, saw: Any, head: int | str) -> None:
    dense = weights(saw, 1, head)
    for query, key in ((0, 0), (12, 7), (5, 12)):
        response = client.get(f"/api/maps/1/{head}/cell", params={"query": query, "key": key}).json()
        torch.testing.assert_close(torch.tensor(response["weight"]), dense[query, key], **CLOSE)
        row = torch.tensor(client.get(f"/api/maps/1/{head}/query/{query}").json()["row"])
        assert response["rank"] == 1 + int((row > row[key]).sum())
        assert (response["query"], response["key"]) == (query, key)


@pytest.mark.parametrize(("map", "head"), [(0, 1), (2, 1), (2, "mean"), (3, 0)])
def test_rows_and_columns(client: TestClient, saw: Any, map: int, head: int | str) -> None:
    dense = weights(saw, map, head)
    row = client.get(f"/api/maps/{map}/{head}/query/10?top=4").json()
    torch.testing.assert_close(torch.tensor(row["row"]), dense[10], **CLOSE)
    best = torch.tensor(row["row"]).topk(4)
    assert row["keys"] == best.indices.tolist() and row["weights"] == best.values.tolist()
    column = client.get(f"/api/maps/{map}/{head}/key/9").json()
    torch.testing.assert_close(torch.tensor(column["column"]), dense[:, 9], **CLOSE)
    best = torch.tensor(column["column"]).topk(min(20, len(dense)))
    assert column["queries"] == best.indices[best.values > 0].tolist()


def test_zero_weights_are_not_among_the_strongest(client: TestClient) -> None:
    response = client.get("/api/maps/2/0/query/1?top=9").json()
    assert sorted(response["keys"]) == [0, 1] and response["row"][2:] == [0.0] * 698


@pytest.mark.parametrize(("map", "head"), [(0, 2), (2, 0), (3, "mean")])
def test_received(client: TestClient, saw: Any, map: int, head: int | str) -> None:
    response = client.get(f"/api/maps/{map}/{head}/received").json()
    torch.testing.assert_close(
        torch.tensor(response["received"]), weights(saw, map, head).mean(0), rtol=1e-5, atol=1e-8
    )
    assert "cells_per_entry" not in response


def test_a_long_axis_is_pooled(client: TestClient, saw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.server.head_statistics.MAX_VALUES", 150)
    response = client.get("/api/maps/3/0/received").json()
    assert response["cells_per_entry"] == 5 and len(response["received"]) == 121
    column = weights(saw, 3, 0).mean(0)
    expected = torch.stack([part.mean() for part in column.split(5)])
    torch.testing.assert_close(torch.tensor(response["received"]), expected, rtol=1e-5, atol=1e-8)
    assert client.get("/api/maps/3/0/query/1").json()["row"] is None


OFFSETS: list[dict[str, Any]] = [
    {},
    {"is_causal": True},  # counted from the first key, though there are more keys than queries
    {"is_causal": True, "causal_offset": 2},
    {"is_causal": True, "causal_offset": torch.tensor([0, 3])},  # of each batch entry
    {"attn_mask": regard.masks.causal(11, 17, offset=6)},  # as a cache gives it, cell by cell
    {"window": (3, 1), "causal_offset": 1},
]


@pytest.mark.parametrize("options", OFFSETS)
def test_profiles_match_the_recorded_maps(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.attention.row_bands.PAIRS", 17 * 4)  # bands of four rows
    map = attended((2, 3, 11, 17), **options)
    result = SimpleNamespace(names=["x"], kinds=["causal"], maps=[map], image=None, patches=None)
    with asked(Capture(result, "x", batch=1)) as client:
        response = client.get("/api/maps/0/profile").json()
    expected = profile(map, batch=1)
    assert len(response) == 3 and list(response[0]) == list(MEASURES)
    figures = torch.tensor([[one[name] for name in MEASURES] for one in response], dtype=torch.float64)
    torch.testing.assert_close(figures, expected.values[0], rtol=1e-5, atol=1e-7)


def test_a_profile_is_computed_once(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    first = client.get("/api/maps/1/profile").json()
    monkeypatch.setattr("regard.server.head_statistics.profile", lambda *_: pytest.fail("computed again"))
    assert client.get("/api/maps/1/profile").json() == first


def test_profiles_of_nonfinite_weights_are_null() -> None:
    q = torch.randn(1, 1, 5, 5, generator=torch.Generator().manual_seed(0))
    q[..., 2, :] = torch.nan
    _, map = regard.attend(q, q.nan_to_num(), q.nan_to_num(), return_map=True)
    result = SimpleNamespace(names=["x"], kinds=["self"], maps=[map], image=None, patches=None)
    with asked(Capture(result, "x")) as client:
        response = client.get("/api/maps/0/profile")
    assert response.status_code == 200 and response.json()[0]["entropy"] is None


def test_rollout_matches_the_recorded_maps(client: TestClient, saw: Any) -> None:
    response = client.get("/api/rollout/4?maps=0,1").json()["weights"]
    expected = Rollout.of(saw.maps[:2], 0.5, "mean").row(4, batch=1)
    torch.testing.assert_close(torch.tensor(response), expected, rtol=1e-5, atol=1e-8)
    assert sum(response) == pytest.approx(1, abs=1e-5)
    assert len(client.get("/api/rollout/4").json()["weights"]) == 700  # the last sequence: the decoder's
    refused = client.get("/api/rollout/4?maps=0,2")
    assert refused.status_code == 400 and "0,2" in refused.json()["error"]


def test_overlays(client: TestClient, saw: Any) -> None:
    response = client.get("/api/overlay?map=1&head=2&query=0").json()
    assert (response["rows"], response["columns"]) == (3, 4)
    assert response["weights"] == client.get("/api/maps/1/2/query/0").json()["row"][1:]
    torch.testing.assert_close(torch.tensor(response["weights"]), weights(saw, 1, 2)[0, 1:], **CLOSE)
    rolled = client.get("/api/overlay?rollout=1&query=0&maps=0,1").json()["weights"]
    assert rolled == client.get("/api/rollout/0?maps=0,1").json()["weights"][1:]
    assert client.get("/api/overlay?map=3&head=0").status_code == 200


def test_nonfinite_values_are_null() -> None:
    from regard.server.head_statistics import numbers

    assert numbers(torch.tensor([0.5, float("nan"), float("inf")])) == [0.5, None, None]
