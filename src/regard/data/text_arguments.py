"""Checks of texts that a caller passes to a model."""

from __future__ import annotations

from collections.abc import Iterable


def check_text(where: str, name: str, text: object) -> str:
    """Return `text` if it is a string that can be encoded.

    `tokenizers` would read a list of two strings as a pair of texts.

    Raises:
        ValueError: if it is not a string, or contains half of a surrogate pair.

    >>> check_text("embed", "text", "a cab")
    'a cab'
    >>> check_text("embed", "texts[1]", None)
    Traceback (most recent call last):
    ValueError: embed: texts[1] (None) must be a string; got NoneType. Convert it, or leave it out.
    """
    if not isinstance(text, str):
        shown = repr(text)
        shown = shown if len(shown) <= 80 else f"{shown[:80]}…"
        raise ValueError(
            f"{where}: {name} ({shown}) must be a string; got {type(text).__name__}. Convert it, or leave it out."
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{where}: {name} must be Unicode text; got half of a surrogate pair at position {error.start}. Decode it "
            'with errors="replace".'
        ) from None
    return text


def listed_texts(where: str, texts: str | Iterable[str]) -> list[str]:
    """Return several texts, or a single one, as a list.

    Raises:
        ValueError: if `texts` cannot be iterated over, or one of them fails `check_text`.

    >>> listed_texts("embed", "a"), listed_texts("embed", (text for text in "ab"))
    (['a'], ['a', 'b'])
    """
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        return [check_text(where, "text", texts)]
    if isinstance(texts, bytes):
        raise ValueError(f"{where}: texts ({texts[:80]!r}) must be strings; got bytes. Decode them.")
    return [check_text(where, f"texts[{index}]", text) for index, text in enumerate(texts)]
