"""The text of `regard demo --language`: "Romeo and Juliet" by William Shakespeare, 133,465 characters.

Shakespeare died in 1616; his plays are in the public domain. The file holds the speeches of the play in their order,
each below the name of its speaker, without act and scene headings, stage directions and the prologue. It is the part
from "SAMPSON:" to "Than this of Juliet and her Romeo." of the collection of plays known as tiny Shakespeare (Karpathy
2015), compressed with gzip and otherwise unchanged.
"""

from __future__ import annotations

import gzip
from pathlib import Path

PATH = Path(__file__).with_suffix(".txt.gz")


def read_play() -> str:
    """Return the text of the play.

    >>> read_play()[:52]
    "SAMPSON:\\nGregory, o' my word, we'll not carry coals."
    """
    return gzip.decompress(PATH.read_bytes()).decode("utf-8")
