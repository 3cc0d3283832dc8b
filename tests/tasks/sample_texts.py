"""Sample texts for tiny BERTs. A single word of each text determines its label."""

from __future__ import annotations

import random
from pathlib import Path

GOOD, BAD = ("fine", "lovely", "great"), ("dull", "awful", "poor")
REST = ("the", "film", "was", "a", "and", "story", "one", "of", "actor", "truly")


def labelled(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Return texts of three to nine words, one of which determines the label."""
    draw = random.Random(seed)
    texts = []
    for _ in range(count):
        label = draw.choice(("good", "bad"))
        words = [draw.choice(REST) for _ in range(draw.randint(2, 8))]
        words.insert(draw.randint(0, len(words)), draw.choice(GOOD if label == "good" else BAD))
        texts.append((" ".join(words), label))
    return texts


def write_labelled(path: Path, count: int, seed: int = 0) -> Path:
    path.write_text("".join(f"{text}\t{label}\n" for text, label in labelled(count, seed)), encoding="utf-8")
    return path


def write_plain(path: Path, count: int, seed: int = 0) -> Path:
    """Write documents of one line each, with one to four sentences."""
    draw = random.Random(seed)
    texts = iter(labelled(4 * count, seed))
    lines = [" ".join(f"{next(texts)[0]}." for _ in range(draw.randint(1, 4))) for _ in range(count)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
