"""Targets of the server: a capture, a run of `regard train`, or a Hugging Face model directory."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import Tensor

from ..attention.attention_map import AttentionMap
from ..lens.patch_weights import Patches
from ..lens.seen import Seen
from . import tiles
from .guard import RequestError, parse_head
from .head_views import Head, Mean

MAX_MAPS = 4096
"""Maximum number of maps on a page."""
TARGET_KINDS = (
    "a capture (seen.save('x.safetensors')), a run of `regard train translate`, `classify` or `language`, or "
    "a model directory of Hugging Face"
)


class Layer:
    """The attention map of one call with all heads, and the tokens along its axes."""

    def __init__(self, name: str, kind: str, map: AttentionMap, batch: int = 0) -> None:
        self.name, self.kind, self._map = name, kind, map
        self.queries, self.keys = map.shape[-2:]
        self.query_tokens, self.key_tokens = map.query_tokens, map.key_tokens
        leads: list[tuple[int, ...]] = [()]
        if map.ndim == 3:
            leads = [(head,) for head in range(map.shape[0])]
        elif map.ndim > 3:
            if not 0 <= batch < map.shape[0]:
                raise ValueError(f"view: batch ({batch}) must lie in 0…{map.shape[0] - 1}, the entries of {name}.")
            leads = [(batch, head) for head in range(map.shape[1])]
        self._leads = leads

    @cached_property
    def heads(self) -> list[Head]:
        """The heads of the batch entry."""
        return [Head(self._map.at(*lead)) for lead in self._leads]

    @property
    def count(self) -> int:
        """Number of heads."""
        return len(self._leads)

    def head(self, which: str) -> Head | Mean:
        """Return a head by its index, or the mean of all heads for "mean"."""
        index = parse_head(which, self.count, 404)
        return Mean(self.heads) if index is None else self.heads[index]


@dataclass(frozen=True)
class Snapshot:
    """The maps that the page shows. Running another text creates a new snapshot with a new version."""

    kind: str
    title: str
    layers: Sequence[Layer]
    image: Tensor | None = None
    """Input image, uint8 (height, width, 3)."""
    patches: Patches | None = None
    version: str = field(default_factory=lambda: secrets.token_hex(6))
    text: str | None = None
    """Input text of the model; None for a capture or an image."""

    def layer(self, number: int) -> Layer:
        """Return a layer by its index."""
        if not 0 <= number < len(self.layers):
            range_ = f"in 0…{len(self.layers) - 1}" if self.layers else "of a map; there is none: send a text first"
            raise RequestError(404, f"map ({number}) must be an index {range_}.")
        return self.layers[number]

    def square(self) -> list[Layer]:
        """Return the maps for a rollout: self-attention maps with the length and kind of the last one."""
        within = [layer for layer in self.layers if layer.kind != "cross" and layer.queries == layer.keys]
        return [layer for layer in within if (layer.keys, layer.kind) == (within[-1].keys, within[-1].kind)]

    @cached_property
    def picture(self) -> bytes | None:
        """The image as a PNG file."""
        return None if self.image is None else tiles.png(self.image)

    def to_dict(self, can: Sequence[str]) -> dict[str, Any]:
        """Return the JSON response of GET /api/target."""
        tables: dict[tuple[str, ...], str] = {}  # token lists shared by several maps are sent once

        def table(tokens: Sequence[str] | None) -> str | None:
            return None if tokens is None else tables.setdefault(tuple(tokens), f"t{len(tables)}")

        maps = [
            {
                "id": number,
                "name": layer.name,
                "kind": layer.kind,
                "heads": layer.count,
                "queries": layer.queries,
                "keys": layer.keys,
                "query_tokens": table(layer.query_tokens),
                "key_tokens": table(layer.key_tokens),
                "floor": tiles.floor(layer.keys),
            }
            for number, layer in enumerate(self.layers)
        ]
        views = ["map"] if self.layers else []
        views += ["text"] if tables else []
        image = None
        if self.image is not None and self.patches is not None:
            views.append("image")
            p, (height, width) = self.patches, self.image.shape[:2]
            image = {"width": width, "height": height, "rows": p.rows, "columns": p.columns, "first": p.first}
        return {
            "kind": self.kind,
            "title": self.title,
            "version": self.version,
            "tokens": {name: list(tokens) for tokens, name in tables.items()},
            "maps": maps,
            "image": image,
            "can": [*views, *can],
            "text": self.text,
        }


def snapshot(seen: Seen, kind: str, title: str, batch: int = 0, text: str | None = None) -> Snapshot:
    """Create a snapshot of recorded maps. Empty maps are omitted."""
    for name, map in zip(seen.names, seen.maps, strict=True):
        if len(map.shape) > 4:
            sizes = "×".join(str(size) for size in map.shape)
            raise ValueError(
                f"view: map {name!r:.60} of {title} ({sizes}) must have at most 4 dimensions. "
                "Select others: seen.filter(…)."
            )
    layers = [
        Layer(name, map_kind, map, batch)
        for name, map_kind, map in zip(seen.names, seen.kinds, seen.maps, strict=True)
        if map.shape[-2] and map.shape[-1]
    ]
    if not layers:
        raise ValueError(f"view: {title} must have a map that is not empty; got none.")
    if len(layers) > MAX_MAPS:
        raise ValueError(f"view: {title} ({len(layers):,} maps) must have at most {MAX_MAPS:,}. Use seen.filter(…).")
    return Snapshot(kind, title, layers, seen.image, seen.patches, text=text)


def brief(text: str) -> str:
    """Shorten a text to one line for a title.

    >>> brief("two\\nlines"), len(brief("long " * 100))
    ('two lines', 60)
    """
    line = " ".join(text[:1000].split())
    return line if len(line) <= 60 else f"{line[:59]}…"


class Target:
    """Base class of the objects that `regard view` shows. A model may also run another text."""

    snapshot: Snapshot
    can: tuple[str, ...] = ()
    """Additional actions: "translate", "generate", "run"."""

    def first_snapshot(self, run: Callable[[], Snapshot]) -> Snapshot:
        """Run the model for the command line, where an error is a ValueError."""
        try:
            return run()
        except RequestError as error:
            raise ValueError(f"view: {error.message}") from error

    def run(self, text: str) -> Snapshot:
        """Run the model on another text and return a snapshot of its attention."""
        raise RequestError(404, "this target must be a model to run another text; it is a capture.")

    def translate(self, text: str, beam: int, n_best: int) -> dict[str, Any]:
        """Translate a text and return the JSON response of POST /api/translate."""
        raise RequestError(
            404, "this target must be a translator to translate. Open a folder of `regard train translate`."
        )


class NoTarget(Target):
    """Neither maps nor a model: the page explains mechanisms."""

    def __init__(self) -> None:
        self.snapshot = Snapshot("mechanisms", "Explain", [])


class Capture(Target):
    """A capture file, or maps recorded in this process."""

    def __init__(self, seen: Seen, title: str, batch: int = 0) -> None:
        self.snapshot = snapshot(seen, "capture", title, batch)
