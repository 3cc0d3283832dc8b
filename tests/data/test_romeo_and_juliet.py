"""The play that comes with the package."""

from __future__ import annotations

from regard.data.romeo_and_juliet import PATH, read_play


def test_the_play_is_complete() -> None:
    text = read_play()
    assert len(text) == 133_465 and text.isascii() and len(set(text)) == 61
    assert text.startswith("SAMPSON:\n") and text.endswith("\nThan this of Juliet and her Romeo.\n")
    assert text.count("ROMEO:\n") == 163 and text.count("JULIET:\n") == 118
    assert PATH.stat().st_size < 60_000
