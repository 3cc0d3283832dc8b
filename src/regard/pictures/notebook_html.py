"""HTML for notebooks: a small picture and a short description, self-contained, without scripts.

A notebook displays objects automatically, so this must be fast: the number of computed weights is limited.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ..attention.attention_map import AttentionMap
from ..core.messages import counted
from .head_grid import grid
from .heatmap import name_of

MAX_WEIGHTS = 2**28
"""Maximum number of computed weights. This is one head of 16,384 tokens: 0.3 s on one thread for the picture, measured,
plus the time for its log-sum-exps."""
MAX_HEADS, MAX_LAYERS = 16, 8
STYLE = "font:13px system-ui,sans-serif;color:#262626;background:#fff;display:inline-block;padding:8px"


def of_map(m: AttentionMap) -> str:
    """Return a map as HTML: its size and thumbnails of its heads."""
    words = [f"<b>AttentionMap</b> {_times(m.shape)}", escape(repr(m).partition(", ")[2].rstrip(")"))]
    heads = m.shape[-3] if m.ndim > 2 else 1
    shown = _fitting_heads(m, heads)
    if m.query_tokens is not None or m.key_tokens is not None:
        words += [f"queries {_few(m.query_tokens)}, keys {_few(m.key_tokens)}"]
    if not shown:
        return _page([*words, _omitted(m)])
    if shown < heads:
        words += [f"the first {shown} of {heads} heads; <code>m.show(heads=…)</code> draws the others"]
    # the scale of m.show()
    return _page(words, grid(m, heads=range(shown), side=_side(shown), scale="linear", title=name_of(m))._repr_html_())


def of_layers(layers: Sequence[tuple[str, str, AttentionMap]]) -> str:
    """Return layers, given as (name, kind, map), as HTML: names, sizes, and thumbnails of the first layers."""
    if not layers:
        return _page(["<b>Seen</b> (empty)"])
    words = [f"<b>Seen</b> {counted(len(layers), 'map')}"]
    rows = [f"<tr><td>{escape(name)}<td>{kind}<td>{_times(m.shape)}" for name, kind, m in layers]
    if len(rows) > 12:
        rows[6:-5] = [f"<tr><td>… {len(rows) - 11} more …"]
    table = f"<table style='border-spacing:8px 0;text-align:left'>{''.join(rows)}</table>"
    maps = [m for _, _, m in layers]
    count, heads = _fitting(maps)
    if not count:
        return _page([*words, _omitted(maps[0])], table)
    if count < len(maps) or heads < _widest(maps):
        words += [f"{count} layers × {heads} heads are shown; <code>seen.grid()</code> draws all"]
    some = [(name, m) for name, _, m in layers[:count]]
    drawn = grid(some, heads=None if heads >= _widest(maps[:count]) else range(heads), side=64)
    return _page(words, table, drawn._repr_html_())


def _fitting(maps: Sequence[AttentionMap]) -> tuple[int, int]:
    """Return the number of layers and of heads per layer that fit in the budget."""
    heads = min(MAX_HEADS, *(m.shape[-3] for m in maps))
    spent, count = 0, 0
    for m in maps[:MAX_LAYERS]:
        rows, cols = m.shape[-2:]
        if not rows * cols:
            break
        while heads > 1 and not count and rows * cols * heads > MAX_WEIGHTS:
            heads -= 1
        spent += rows * cols * heads
        if spent > MAX_WEIGHTS:
            break
        count += 1
    return count, heads


def _widest(maps: Sequence[AttentionMap]) -> int:
    return max(m.shape[-3] for m in maps)


def _fitting_heads(m: AttentionMap, heads: int) -> int:
    cells = m.shape[-2] * m.shape[-1]
    return min(heads, MAX_HEADS, MAX_WEIGHTS // cells) if cells and 0 not in m.shape else 0


def _omitted(m: AttentionMap) -> str:
    size = m.shape[-2] * m.shape[-1]
    return (
        "nothing to draw"
        if not size
        else f"{size:.1e} weights per head are not drawn automatically: use <code>m.show()</code>"
    )


def _side(shown: int) -> int:
    return max(48, min(160, 960 // shown))


def _times(shape: tuple[int, ...]) -> str:
    return " × ".join(f"{size:,}" for size in shape)


def _few(tokens: list[str] | None) -> str:
    if tokens is None:
        return "unnamed"
    return escape(" ".join(tokens[:6])) + (" …" if len(tokens) > 6 else "")


def _page(words: list[str], *below: str) -> str:
    return f'<div style="{STYLE}"><div>{" · ".join(words)}</div>{"".join(below)}</div>'
