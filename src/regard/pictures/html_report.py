"""A page that shows what a model looked at: one HTML file, nothing loaded from elsewhere."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path

from torch import Tensor


@dataclass(frozen=True)
class Example:
    """Something read, something written, and the weights between the two."""

    source: Sequence[str]
    target: Sequence[str]
    weights: Tensor
    """(target, source)"""
    others: Sequence[tuple[str, str, bool]] = ()
    """(name, what it wrote, whether that is right): this model, another, the truth."""


@dataclass(frozen=True)
class Curve:
    """A share that grew over the steps of training."""

    name: str
    points: Sequence[tuple[float, float]]
    """(step, share in [0, 1])"""


@dataclass(frozen=True)
class Page:
    """What stands on a page; `write` makes the file.

    >>> import torch
    >>> page = Page("Dates", "Where it looks.", examples=[Example("3 May", "05-03", torch.rand(5, 5).softmax(-1))])
    >>> "<title>Dates</title>" in page.html()
    True
    """

    title: str
    lead: str
    scores: Sequence[tuple[str, str]] = ()
    """(figure, what it is)"""
    curves: Sequence[Curve] = ()
    caption: str = ""
    """Of the curves."""
    examples: Sequence[Example] = ()

    def html(self) -> str:
        """The page as text. Whatever tokens hold, it stays data: no markup of theirs is ever read as such."""
        examples = [_plain(example) for example in self.examples]
        data = vars(self) | {"curves": [asdict(curve) for curve in self.curves], "examples": examples}
        text = json.dumps(data, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
        template = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
        before, after = template.split("@DATA@")
        return before.replace("@TITLE@", html.escape(self.title)) + text + after

    def write(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.html(), encoding="utf-8")
        return path


def _plain(example: Example) -> dict[str, object]:
    shape = (len(example.target), len(example.source))
    if tuple(example.weights.shape) != shape:
        raise ValueError(
            f"page: weights ({', '.join(map(str, example.weights.shape))}) must have a row for each of {shape[0]} "
            f"written tokens and a column for each of {shape[1]} that were read."
        )
    rows = example.weights.detach().double().tolist()
    return {
        "source": list(example.source),
        "target": list(example.target),
        "weights": [[round(w, 4) if math.isfinite(w) else 0.0 for w in row] for row in rows],
        "others": [list(other) for other in example.others],
    }
