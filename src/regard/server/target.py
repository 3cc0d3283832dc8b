"""What is shown: a capture, a translator of ours, a classifier of images of ours, a model directory of Hugging Face."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import Tensor

from ..attention.attention_map import AttentionMap
from ..lens.patch_weights import Patches
from ..lens.seen import Seen
from . import tiles
from .guard import Refused
from .head_views import Head, Mean

MAPS = 4096
"""Maps that a page shows at most."""
EXPLAINED = (
    "a capture (seen.save('x.safetensors')), a run of `regard train translate`, `classify` or `images`, or a model "
    "directory of Hugging Face"
)


class Layer:
    """A map of all heads of one call, and the tokens along its axes."""

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
        return [Head(self._map.at(*lead)) for lead in self._leads]

    @property
    def count(self) -> int:
        return len(self._leads)

    def head(self, which: str) -> Head | Mean:
        """By its number, or "mean"."""
        if which == "mean":
            return Mean(self.heads)
        if not (which.isascii() and which.isdecimal() and len(which) < 6 and int(which) < self.count):
            raise Refused(404, f"head ({which[:40]!r}) must be 'mean' or a number in 0…{self.count - 1}.")
        return self.heads[int(which)]


@dataclass(frozen=True)
class Shown:
    """What the page shows now; another text gives another one."""

    kind: str
    title: str
    layers: Sequence[Layer]
    image: Tensor | None = None
    """uint8 (height, width, 3)"""
    patches: Patches | None = None
    version: str = field(default_factory=lambda: secrets.token_hex(6))

    def layer(self, number: int) -> Layer:
        if not 0 <= number < len(self.layers):
            last = f"in 0…{len(self.layers) - 1}" if self.layers else "of a map; there is none yet: send a text first"
            raise Refused(404, f"map ({number}) must be a number {last}.")
        return self.layers[number]

    def square(self) -> list[Layer]:
        """The maps that rollout multiplies: from a sequence to itself, all of the last one's length and kind."""
        within = [layer for layer in self.layers if layer.kind != "cross" and layer.queries == layer.keys]
        return [layer for layer in within if (layer.keys, layer.kind) == (within[-1].keys, within[-1].kind)]

    @cached_property
    def picture(self) -> bytes | None:
        return None if self.image is None else tiles.png(self.image)

    def told(self, can: Sequence[str]) -> dict[str, Any]:
        """What GET /api/target answers."""
        tables: dict[tuple[str, ...], str] = {}  # tokens that several maps share are sent once

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
        }


def shown(seen: Seen, kind: str, title: str, batch: int = 0) -> Shown:
    """What was seen, as a page shows it. Maps without a cell are left out."""
    for name, map in zip(seen.names, seen.maps, strict=True):
        if len(map.shape) > 4:
            sizes = "×".join(str(size) for size in map.shape)
            raise ValueError(
                f"view: map {name!r:.60} of {title} ({sizes}) must be batch × heads × queries × keys at most. "
                "Choose others: seen.filter(…)."
            )
    found = [
        Layer(name, sort, map, batch)
        for name, sort, map in zip(seen.names, seen.kinds, seen.maps, strict=True)
        if map.shape[-2] and map.shape[-1]
    ]
    if not found:
        raise ValueError(f"view: {title} must hold a map; got none with a cell in it.")
    if len(found) > MAPS:
        raise ValueError(f"view: {title} ({len(found):,} maps) must have at most {MAPS:,}. Choose: seen.filter(…).")
    return Shown(kind, title, found, seen.image, seen.patches)


def brief(text: str) -> str:
    """The beginning of a text, for a title.

    >>> brief("two\\nlines"), len(brief("long " * 100))
    ('two lines', 60)
    """
    line = " ".join(text[:1000].split())
    return line if len(line) <= 60 else f"{line[:59]}…"


class Target:
    """What `regard view` was pointed at: something that is shown, and may take another text."""

    shown: Shown
    can: tuple[str, ...] = ()
    """What it does besides being looked at: "translate", "run"."""

    def run(self, text: str) -> Shown:
        """What the model looks at while it reads another text."""
        raise Refused(404, "this target must be a model to read another text; it is a capture, which stays as it is.")

    def translate(self, text: str, beam: int, n_best: int) -> dict[str, Any]:
        raise Refused(
            404, "this target must be a translator to translate. Give the folder of `regard train translate`."
        )


class Capture(Target):
    """A file that `Seen.save` wrote, or anything seen in this process."""

    def __init__(self, seen: Seen, title: str, batch: int = 0) -> None:
        self.shown = shown(seen, "capture", title, batch)
