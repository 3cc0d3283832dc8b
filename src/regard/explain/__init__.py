"""Flowcharts of attention mechanisms, recorded from a real run with its values."""

from .chart import Chart, draw
from .mechanisms import MECHANISMS, Mechanism
from .recorded_models import Explained

__all__ = [
    "MECHANISMS",
    "Chart",
    "Explained",
    "Mechanism",
    "draw",
    "explain",
]


def explain(mechanism: str, text: str | None = None) -> Chart:
    """Run a small mechanism with random weights on a text and return its chart.

    Raises:
        ValueError: if the name is unknown or the text is too long for a chart.

    >>> chart = explain("bahdanau", "the cat sat on it")
    >>> chart.steps, chart.nodes[-1].kind
    (5, 'output')
    """
    if mechanism not in MECHANISMS:
        raise ValueError(f"explain: mechanism ({mechanism!r}) must be one of {', '.join(MECHANISMS)}.")
    return draw(MECHANISMS[mechanism].explain(text))
