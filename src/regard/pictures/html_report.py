"""A self-contained HTML report of a model's attention."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path

from torch import Tensor

from ..core.files import write_text
from ..core.standalone_page import escaped


@dataclass(frozen=True)
class Example:
    """A source, a target, and the weights between them."""

    source: Sequence[str]
    target: Sequence[str]
    weights: Tensor
    """Shape (target, source)."""
    others: Sequence[tuple[str, str, bool]] = ()
    """(name, output, whether it is correct) of this model, other models and the reference."""


@dataclass(frozen=True)
class Curve:
    """A score over the training steps."""

    name: str
    points: Sequence[tuple[float, float]]
    """(step, score in [0, 1])"""


@dataclass(frozen=True)
class Page:
    """The contents of a report. `write` creates the file.

    >>> import torch
    >>> page = Page("Dates", "Its attention.", examples=[Example("3 May", "05-03", torch.rand(5, 5).softmax(-1))])
    >>> "<title>Dates</title>" in page.html()
    True
    """

    title: str
    lead: str
    scores: Sequence[tuple[str, str]] = ()
    """(value, description)"""
    curves: Sequence[Curve] = ()
    caption: str = ""
    """Caption of the curves."""
    examples: Sequence[Example] = ()

    def html(self) -> str:
        """Return the page as text. Tokens are embedded as data and never interpreted as markup."""
        examples = [_to_dict(example) for example in self.examples]
        data = vars(self) | {"curves": [asdict(curve) for curve in self.curves], "examples": examples}
        text = escaped(json.dumps(data, ensure_ascii=False, allow_nan=False))
        template = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
        before, after = template.split("@DATA@")
        return before.replace("@TITLE@", html.escape(self.title)) + text + after

    def write(self, path: Path) -> Path:
        """Write the page to a file and return its path."""
        write_text(path, self.html())
        return path


def _to_dict(example: Example) -> dict[str, object]:
    shape = (len(example.target), len(example.source))
    if tuple(example.weights.shape) != shape:
        raise ValueError(
            f"page: weights ({', '.join(map(str, example.weights.shape))}) must have a row for each of {shape[0]} "
            f"target tokens and a column for each of {shape[1]} source tokens."
        )
    rows = example.weights.detach().double().tolist()
    return {
        "source": list(example.source),
        "target": list(example.target),
        "weights": [[round(w, 4) if math.isfinite(w) else 0.0 for w in row] for row in rows],
        "others": [list(other) for other in example.others],
    }
