"""Writing systems: whether they separate words by spaces, and how to split text into words."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Literal

Script = Literal["chinese", "japanese", "korean", "unspaced", "spaced"]
"""Word separation. "unspaced" is Thai, Lao, Khmer, Burmese and Tibetan; "spaced" is all others."""

_HAN = r"\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_KANA = r"\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f"
_HANGUL = r"\u1100-\u11ff\u3130-\u318f\uac00-\ud7a3"
_SOUTHEAST = r"\u0e01-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\ua9e0-\ua9ff\uaa60-\uaa7f"
_PUNCTUATION = r"\u3001-\u3004\u3008-\u303f\uff00-\uff65"  # ideographic and full-width
_UNSPACED = re.compile(f"[{_HAN}{_KANA}{_SOUTHEAST}{_PUNCTUATION}]")
_STACKERS = "\u1039\u17d2"  # put the next Burmese or Khmer consonant below the previous one
UNSPACED_SHARE = 0.1
"""Minimum share of letters for a text to count as unspaced. It is low, because names in Latin letters are long."""
KANA_SHARE = 0.05
"""Minimum share of kana among kana and Han characters for a text to count as Japanese."""


def split_words(text: str) -> list[str]:
    """Split a text into words at spaces; scripts without spaces are split into characters.

    Each Chinese, Japanese, Thai, Lao, Khmer, Burmese and Tibetan character is a word. A combining mark stays with its
    letter.

    >>> split_words("注意力 is all you need。"), split_words("ที่นี่")
    (['注', '意', '力', 'is', 'all', 'you', 'need', '。'], ['ที่', 'นี่'])
    """
    return [word for chunk in text.split() for word in _split_chunk(chunk)]


def _split_chunk(chunk: str) -> list[str]:
    words: list[str] = []
    joining = False  # whether the next character of a spaced script continues the last word
    for character in chunk:
        mark = unicodedata.category(character).startswith("M") or (words[-1:] and words[-1][-1] in _STACKERS)
        if words and mark:
            words[-1] += character
        elif _UNSPACED.match(character):
            words.append(character)
            joining = False
        elif joining:
            words[-1] += character
        else:
            words.append(character)
            joining = True
    return words


def script_of(texts: Iterable[str]) -> Script:
    """Return the script of texts, as far as it determines how words are separated.

    >>> script_of(["the attention"]), script_of(["注意力机制"]), script_of(["注意の仕組み"]), script_of(["주의 기제"])
    ('spaced', 'chinese', 'japanese', 'korean')
    """
    text = "".join(texts)
    letters = sum(map(str.isalpha, text))
    han, kana, hangul, southeast = (
        len(re.findall(f"[{ranges}]", text)) for ranges in (_HAN, _KANA, _HANGUL, _SOUTHEAST)
    )
    counts = {"han": han + kana, "korean": hangul, "unspaced": southeast}
    name, count = max(counts.items(), key=lambda item: item[1])
    if not count or count < UNSPACED_SHARE * letters:
        return "spaced"
    if name == "han":
        return "japanese" if kana >= KANA_SHARE * (han + kana) else "chinese"
    return "korean" if name == "korean" else "unspaced"
