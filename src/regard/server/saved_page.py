"""Save the maps of a target as one HTML file that needs neither a server nor a network.

The file is the page of `regard view` with recorded answers of the server. All heads have overviews. Chosen heads also
have tiles and weights. The page states what the file contains.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.files import write_text
from ..core.standalone_page import standalone_page
from . import head_statistics, saved_head, tiles
from .guard import RequestError
from .head_views import Head
from .saved_head import pack, pack_json
from .target import Snapshot, Target
from .work_queue import Task

LIMIT = 16 * 2**20
"""Maximum size of the file in bytes. Larger files are refused by many mail servers."""
SHARE = 400_000
"""Minimum number of bytes for a head of a large map."""
OVERVIEWS = (96, 64, 48, 32, 16)
"""Sizes of overviews in pixels. The largest that fits in a quarter of the file is used."""
HEAD = re.compile(r"(\d{1,4})\.(\d{1,4}|mean)")


def save_page(target: Target, path: str | Path, heads: Sequence[str] | None = None, limit: int = LIMIT) -> Path:
    """Write the maps of a target to an HTML file.

    Args:
        target: any target with maps: see `open_target`.
        path: a file that ends in .html.
        heads: heads to store in full, as "MAP.HEAD" or "MAP.mean". Default: all that fit, at equal distances.
        limit: maximum size of the file in bytes.

    Raises:
        ValueError: if there are no maps, for unknown heads, and if not even the overviews fit.
    """
    path = Path(path)
    if path.suffix != ".html":
        raise ValueError(f"view: save ({path}) must end in .html; got {path.suffix or 'no suffix'!r}.")
    snapshot = replace(target.snapshot, version="saved")
    if not snapshot.layers:
        raise ValueError(f"view: TARGET ({snapshot.title}) must have maps to be saved; got none. Pass --text.")
    chosen = None if heads is None else [_parse(head, snapshot) for head in heads]
    page = standalone_page("")
    recording = _record(snapshot, chosen, limit, limit - len(page.encode()) - 1000)
    text = standalone_page(json.dumps(recording, separators=(",", ":")))
    assert len(text.encode()) <= limit
    write_text(path, text)
    return path


def _parse(head: str, snapshot: Snapshot) -> tuple[int, str]:
    """Return the map and the head of "MAP.HEAD"."""
    match = HEAD.fullmatch(head)
    try:
        if match:
            snapshot.layer(int(match[1])).head(match[2])
            return int(match[1]), match[2]
        reason = "it has no such form"
    except RequestError as error:
        reason = error.message
    raise ValueError(f"view: heads ({head!r}) must be MAP.HEAD or MAP.mean, such as 0.3; got {head!r}: {reason}")


def _record(snapshot: Snapshot, chosen: list[tuple[int, str]] | None, limit: int, budget: int) -> dict[str, Any]:
    """Return the recording as the page reads it (web/src/api/recorded_answers.ts)."""
    described = snapshot.to_dict([])
    answers = {"api/target": pack_json(described), **_image(snapshot)}
    budget -= len(json.dumps(answers))
    overviews = _overviews(snapshot, budget, limit)
    answers |= overviews
    budget -= len(json.dumps(overviews))
    stored: dict[str, Any] = {}
    profiles: dict[int, list[Any]] = {}
    pairs = _that_fit(snapshot, budget) if chosen is None else chosen
    for index, (number, name) in enumerate(pairs):
        layer, at = snapshot.layers[number], f"{number}/{name}"
        head = layer.head(name)
        saved = saved_head.save_head(head, at, budget // (len(pairs) - index) - 500)
        if saved.size > budget:
            raise ValueError(
                f"view: heads ({len(pairs)}) must fit in {limit:,} bytes; got more from {at} on. Choose fewer: --heads."
            )
        answers |= saved.answers
        stored[at] = saved.entry
        if isinstance(head, Head):
            profiles.setdefault(number, [None] * layer.count)[int(name)] = saved_head.profile(head)
        budget -= saved.size + 500
    answers |= {f"api/maps/{number}/profile": pack_json(values) for number, values in profiles.items()}
    return {
        "limit": limit,
        "all": sum(layer.count for layer in snapshot.layers),
        "reduced": any(_reduced(snapshot, at, entry) for at, entry in stored.items()),
        "image": described["image"],
        "answers": answers,
        "heads": stored,
    }


def _reduced(snapshot: Snapshot, at: str, entry: dict[str, Any]) -> bool:
    layer = snapshot.layers[int(at.partition("/")[0])]
    return entry["level"] < tiles.deepest(layer.queries, layer.keys) or "all" not in entry["weights"]


def _image(snapshot: Snapshot) -> dict[str, str]:
    """Return the image of a vision model and its rollouts, for every token."""
    patches = snapshot.patches
    if snapshot.picture is None or patches is None:
        return {}
    answers, layers = {"api/image.png": pack(snapshot.picture)}, snapshot.square()
    for token in range(layers[0].queries if layers else 0):
        weights = head_statistics.rollout(layers, token, Task())[patches.first :][: patches.rows * patches.columns]
        overlay = {"rows": patches.rows, "columns": patches.columns, "weights": saved_head.rounded(weights)}
        answers[f"api/overlay?rollout=1&query={token}"] = pack_json(overlay)
    return answers


def _overviews(snapshot: Snapshot, budget: int, limit: int) -> dict[str, str]:
    """Return the overviews of all heads, in the largest size that fits in a quarter of the budget."""
    count = sum(layer.count for layer in snapshot.layers)
    for size in OVERVIEWS:
        if count * (2 * saved_head.RATIO * size * size + 200) > budget / 4 and size > OVERVIEWS[-1]:
            continue
        answers: dict[str, str] = {}
        for number, layer in enumerate(snapshot.layers):
            for name, head in enumerate(layer.heads):
                answers |= saved_head.overview(head, f"{number}/{name}", size)
        if len(json.dumps(answers)) <= (budget / 4 if size > OVERVIEWS[-1] else budget * 0.8):
            return answers
    raise ValueError(
        f"view: TARGET ({snapshot.title}, {count:,} heads) must fit in {limit:,} bytes; got more from its overviews "
        "alone. Save a part of it: seen.filter(…).save(…)."
    )


def _that_fit(snapshot: Snapshot, budget: int) -> list[tuple[int, str]]:
    """Return the heads to store in full: all with their means if they fit, all heads, or heads at equal distances."""
    layers = list(enumerate(snapshot.layers))
    heads = [(number, str(head)) for number, layer in layers for head in range(layer.count)]
    means = [(number, "mean") for number, layer in layers if layer.count > 1]

    def need(pairs: list[tuple[int, str]]) -> int:
        maps = (snapshot.layers[number] for number, _ in pairs)
        return sum(min(SHARE, saved_head.estimate(layer.queries, layer.keys)) for layer in maps)

    for pairs in (sorted(heads + means), heads):
        if need(pairs) <= budget:
            return pairs
    count = max(1, budget * len(heads) // need(heads))
    return [heads[index * len(heads) // count] for index in range(count)]
