"""Mutated captures are rejected with a message or have no effect. REGARD_MUTATIONS=1 runs thousands."""

from __future__ import annotations

import copy
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save

import regard
from regard.attention.masks import Mask
from regard.attention.request import Request
from regard.attention.similarity import Additive, Dot
from regard.core.tensor_files import digest
from regard.lens import captures
from regard.lens.patch_weights import Patches
from regard.lens.recorded_call import Call, Record, StoredRequest
from regard.lens.seen import Seen
from regard.server.target import Capture
from tests.server.conftest import asked

MANY = os.environ.get("REGARD_MUTATIONS", "") == "1"
FLIPS, MUTATIONS, SERVED, CUTS = (2500, 6000, 300, 400) if MANY else (250, 300, 25, 40)
SECRET = "☃ a snowman"


def example() -> Seen:
    """A capture with every kind of content, in small distinct sizes."""
    g = torch.Generator().manual_seed(0)
    q, k = torch.randn(1, 4, 3, 6, generator=g), torch.randn(1, 2, 5, 6, generator=g)
    full = torch.randn(1, 4, 5, 6, generator=g)
    entry = torch.tensor([4]).reshape(1, 1, 1, 1)
    requests = [
        Request.of_parts(q, k, None, Dot(0.25), lead=(1, 4), groups=2),
        Request.of_parts(q, k, None, Dot(0.5), lead=(1, 4), mask=Mask(None, 2, 0, 2, 4), softcap=1.5, groups=2),
        Request.of_parts(q, full, None, Dot(0.5), lead=(1, 4), hard=True, mask=Mask(None, None, 0, entry, entry)),
        Request.of_parts(
            q, full, None, Additive(torch.randn(6, generator=g)), lead=(1, 4), mask=Mask(torch.randn(3, 5, generator=g))
        ),
        Request.of_parts(q, full, None, Dot(0.5), lead=(1, 4), mask=Mask(torch.ones(3, 5).tril(2) > 0)),
    ]
    calls = [
        Call(f"layer.{i}", Record(StoredRequest(r), torch.zeros(4, 1) if i == 4 else None))
        for i, r in enumerate(requests)
    ]
    seen = Seen(calls, missed=["layer.9: a reason"])
    seen.calls[0].query_tokens, seen.calls[0].key_tokens = ["a", SECRET, "c"], list("vwxyz")
    seen.image = torch.arange(12, dtype=torch.uint8).reshape(2, 2, 3)
    seen.patches = Patches(1, 2, 1)
    return seen


def read(seen: Seen) -> Any:
    """Read the whole contents of a capture."""
    maps = [m.dense().tolist() for m in seen]
    tokens = [(call.query_tokens, call.key_tokens, call.module) for call in seen.calls]
    image = None if seen.image is None else seen.image.tolist()
    return repr((seen.names, seen.kinds, maps, tokens, image, seen.patches, seen.missed))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return example().save(tmp_path_factory.mktemp("capture") / "x.safetensors").read_bytes()


def outcome(path: Path, data: bytes) -> Seen | str:
    """Return the loaded contents or the error message. Other errors fail the test."""
    path.write_bytes(data)
    try:
        return regard.load_capture(path)
    except ValueError as error:
        assert str(error).startswith("capture: ") and len(str(error)) < 2000
        return str(error)


def test_every_flipped_bit_is_rejected_or_has_no_effect(whole: bytes, tmp_path: Path) -> None:
    expected, refused = read(regard.load_capture(_at(tmp_path, whole))), 0
    chosen = random.Random(0).sample(range(8 * len(whole)), FLIPS)
    header = int.from_bytes(whole[:8], "little") + 8
    for bit in (*chosen, *(8 * at + at % 8 for at in range(0, header, 1 if MANY else 9))):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        result = outcome(tmp_path / "flipped", bytes(data))
        refused += isinstance(result, str)
        assert isinstance(result, str) or read(result) == expected, f"bit {bit} changed what is read"
    assert refused > FLIPS * 0.9


def test_truncated_files_are_rejected(whole: bytes, tmp_path: Path) -> None:
    for length in random.Random(1).sample(range(len(whole)), CUTS):
        assert isinstance(outcome(tmp_path / "cut", whole[:length]), str)
    assert isinstance(outcome(tmp_path / "longer", whole + b"\0"), str)


VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 7, 2**31, 2**40, 2**63, 2**64, -(2**63), 10**400, 0.5, -0.0, 1e-320, 1e308,
    float("nan"), float("inf"), -float("inf"), "", "0", "1", "9", "self", "dot", "additive", "☃" * 50, "\0", "\ud800",
    [], [0], [1, 4], [4, 1], [1, 4, 1], [2**20, 4], [-1, 4], [0, 4], [[]], [["a"]], {}, {"tensor": "0"},
    {"tensor": "3"}, {"tensor": None}, {"kind": "dot", "scale": 1}, {"kind": "additive", "weight": "0"},
]  # fmt: skip


def paths(tree: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of the values of a JSON tree."""
    for key in tree if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ():
        yield (*at, key)
        yield from paths(tree[key], (*at, key))


def mutated(contents: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """Replace, remove or swap one or two values."""
    contents = copy.deepcopy(contents)
    for _ in range(draw.choice((1, 1, 1, 2))):
        *above, key = draw.choice(list(paths(contents)))
        holder = contents
        for step in above:
            holder = holder[step]
        kind = draw.random()
        if kind < 0.08:
            del holder[key]
        elif kind < 0.16 and isinstance(holder, list):
            holder.append(copy.deepcopy(holder[key]))
        elif kind < 0.3:
            *other, name = draw.choice(list(paths(contents)))
            value = contents
            for step in (*other, name):
                value = value[step]
            holder[key] = copy.deepcopy(value)
        else:
            holder[key] = draw.choice(VALUES)
    return contents


def signed(whole: bytes, draw: random.Random) -> bytes:
    """Return a capture with a changed description or changed tensors, and matching digests."""
    tensors = load(whole)
    header = json.loads(whole[8 : 8 + int.from_bytes(whole[:8], "little")])
    contents = mutated(json.loads(header["__metadata__"]["regard"]), draw)
    if draw.random() < 0.15:
        name = draw.choice(sorted(tensors))
        x = tensors[name]
        change = draw.choice(["dtype", "cut", "flat", "nan", "swap"])
        if change == "dtype":
            tensors[name] = x.to(draw.choice([torch.float64, torch.float16, torch.int32, torch.int64, torch.bool]))
        elif change == "cut":
            tensors[name] = x[..., :-1].contiguous()
        elif change == "flat":
            tensors[name] = x.flatten()
        elif change == "nan" and x.is_floating_point():
            tensors[name] = torch.full_like(x, draw.choice([torch.nan, torch.inf, 1e38]))
        else:
            tensors[name] = tensors[draw.choice(sorted(tensors))]
    words, of_tensors = json.dumps(contents), digest(tensors)
    metadata = {"sha256": of_tensors, "regard": words, "regard_sha256": captures._digest(of_tensors, words)}
    return bytes(save({name: x.clone() for name, x in tensors.items()}, metadata))


def inspect(seen: Seen) -> None:
    """Read everything from a map. ValueError is allowed for maps that are too large."""
    for m in seen:
        try:
            for view in (m.dense, m.entropy, m.received, lambda m=m: m.pool(2, 2), lambda m=m: m.top(2)):
                view()
        except ValueError as error:
            assert str(error).startswith("map: ")
    seen.kinds  # noqa: B018


def test_mutated_descriptions_are_rejected_or_can_be_viewed(whole: bytes, tmp_path: Path) -> None:
    draw, loaded = random.Random(2), 0
    for _ in range(MUTATIONS):
        result = outcome(tmp_path / "mutated", signed(whole, draw))
        if isinstance(result, Seen):
            loaded += 1
            inspect(result)
    assert MUTATIONS * 0.05 < loaded < MUTATIONS * 0.9


def test_the_server_responds_to_every_mutated_capture(whole: bytes, tmp_path: Path) -> None:
    draw, answered = random.Random(3), 0
    while answered < SERVED:
        result = outcome(tmp_path / "mutated", signed(whole, draw))
        if not isinstance(result, Seen):
            continue
        try:
            target = Capture(result, "a capture")
        except ValueError as error:
            assert str(error).startswith(("view: ", "map: "))
            continue
        answered += 1
        with asked(target) as client:
            maps = len(client.get("/api/target").json()["maps"])
            routes = ["/api/target", "/api/image.png", "/api/rollout/0", "/api/overlay?map=0&head=0"]
            for at in range(maps):
                one = f"/api/maps/{at}/0"
                routes += [f"{one}/cell?query=0&key=0", f"{one}/query/0?top=2", f"{one}/key/0", f"{one}/received"]
                routes += [f"{one}/overview.pgm", f"{one}/tile/0/0/0.pgm", f"/api/maps/{at}/mean/query/1"]
                routes += [f"/api/maps/{at}/profile"]
            for route in routes:
                answer = client.get(route)
                assert answer.status_code < 500, f"{route}: {answer.status_code} {answer.text[:300]}"


def _at(folder: Path, data: bytes) -> Path:
    path = folder / "whole"
    path.write_bytes(data)
    return path
