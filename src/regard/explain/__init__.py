"""Explaining a mechanism: a flowchart of what really ran, with its numbers."""

from .chart import Chart, draw
from .mechanisms import MECHANISMS, Explained

__all__ = ["MECHANISMS", "Chart", "Explained", "draw", "explain"]


def explain(mechanism: str, text: str | None = None) -> Chart:
    """The chart of a mechanism, small and with random weights, while it reads a text.

    Raises:
        ValueError: for another name, and for a text that is too long to be drawn.

    >>> chart = explain("bahdanau", "the cat sat on it")
    >>> chart.steps, chart.nodes[-1].kind
    (5, 'output')
    """
    if mechanism not in MECHANISMS:
        raise ValueError(f"explain: mechanism ({mechanism!r}) must be one of {', '.join(MECHANISMS)}.")
    return draw(MECHANISMS[mechanism].explain(text))
