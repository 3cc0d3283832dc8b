"""Text shared by error messages and summaries."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from numbers import Integral, Real


def few(names: Sequence[str], most: int = 3) -> str:
    """Return the first names of a list and the number of remaining ones.

    >>> few(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def counted(number: int, noun: str) -> str:
    """Return a number with a noun whose plural ends in s.

    >>> counted(1, "map"), counted(2, "map")
    ('1 map', '2 maps')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def nearest(size: int, divisor: int) -> str:
    """Return the multiples of `divisor` closest to `size`.

    >>> nearest(10, 4), nearest(3, 4)
    ('8 or 12', '4')
    """
    low = size // divisor * divisor
    return f"{low} or {low + divisor}" if low else f"{divisor}"


def check_sizes(where: str, **sizes: int) -> None:
    """Raise ValueError for the first size below 1.

    >>> check_sizes("feedforward", width=12, hidden=0)
    Traceback (most recent call last):
    ValueError: feedforward: hidden (0) must be at least 1.
    """
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{where}: {name} ({size}) must be at least 1.")


def number_errors(where: str, kind: type[Integral] | type[Real], **values: object) -> list[str]:
    """Return an error for each value that is not a number of this kind, or an integer beyond the range of a float.

    Numbers of NumPy are accepted. Infinity and NaN are left to the caller.

    >>> number_errors("sampling", Integral, top_k="3", seed=0)
    ["sampling: top_k ('3') must be an integer; got str."]
    """
    errors = []
    for name, value in values.items():
        if not isinstance(value, kind) or isinstance(value, bool):
            rule = "an integer" if kind is Integral else "a number"
            errors.append(f"{where}: {name} ({value!r}) must be {rule}; got {type(value).__name__}.")
        elif kind is Real and isinstance(value, int) and abs(value) > sys.float_info.max:
            errors.append(f"{where}: {name} must be in the range of a float; got {len(str(abs(value)))} digits.")
    return errors


def check_tokens(where: str, **tokens: Sequence[str] | None) -> None:
    """Raise ValueError if the tokens are those of a batch: a list of lists.

    >>> check_tokens("map", query=[["a", "cat"], ["a", "dog"]], key=None)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: map: tokens (query) must be those of one sequence; got 2 sequences. Pass one list of strings; ...
    """
    for name, labels in tokens.items():
        if labels is not None and any(isinstance(label, list | tuple) for label in labels):
            raise ValueError(
                f"{where}: tokens ({name}) must be those of one sequence; got {len(labels)} sequences. Pass one list "
                "of strings; m.at(1).tokens(...) labels the map m of another entry of the batch."
            )
