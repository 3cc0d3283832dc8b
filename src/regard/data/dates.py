"""A synthetic task: dates as people write them in many languages → ISO dates.

    Freitag, 3. April 2009  →  2009-04-03
    3 AVRIL 2009            →  2009-04-03
    2009年4月3日金曜日       →  2009-04-03

The formats come from the Unicode locale data (CLDR), through Babel.
"""

from __future__ import annotations

import datetime
import os
import re
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from ..core.files import write_text
from .epoch_batches import generator

if TYPE_CHECKING:
    from babel import Locale

Part = Literal["train", "valid", "test"]
LOCALES = (
    *("en_US", "en_GB", "de", "fr", "es", "it", "pt_BR", "nl", "sv", "da", "nb", "fi", "et", "pl", "cs", "sk", "hu"),
    *("ro", "tr", "el", "ru", "uk", "bg", "id", "vi", "ja", "zh", "ko"),
)

__all__ = ["dates"]
FORMATS = ("short", "medium", "long", "full")
SKELETONS = ("yMd", "yMEd", "yMMMd", "yMMMEd", "yMMMMd", "yMMMMEEEEd")
HELD_OUT = 1000
FIRST, LAST = datetime.date(1900, 1, 1), datetime.date(2100, 12, 31)
CASES = {"lower": 0.25, "upper": 0.15}
"""Probability that a text is lower-cased or upper-cased; otherwise its case is unchanged."""
DAY, MONTH, YEAR = "\0d", "\0m", "\0y"


@dataclass(frozen=True)
class Field:
    """A variable part of a date: y, M, d or E (weekday) of the locale data."""

    kind: Literal["y", "M", "d", "E"]
    width: int
    """Minimum number of digits."""
    names: tuple[str, ...] = ()
    """Names of months or weekdays, if they are written as words."""

    def __call__(self, date: datetime.date) -> str:
        if self.kind == "E":
            return self.names[date.weekday()]
        if self.names:
            return self.names[date.month - 1]
        return f"{ {'y': date.year, 'M': date.month, 'd': date.day}[self.kind]:0{self.width}d}"

    def visible_text(self, month: int) -> str:
        """Return the visible text in `month`, with placeholders for day, year and numeric month."""
        if self.kind == "M" and self.names:
            return self.names[month - 1]
        return {"y": YEAR, "M": MONTH, "d": DAY, "E": ""}[self.kind]


@dataclass(frozen=True)
class DateFormat:
    """A date format of a locale."""

    locale: str
    parts: tuple[str | Field, ...]

    def __call__(self, date: datetime.date) -> str:
        return "".join(part if isinstance(part, str) else part(date) for part in self.parts)

    def visible_text(self, month: int) -> str:
        """Return the text in `month` without day, year, weekday, case and commas; for month names, without periods."""
        text = "".join(part if isinstance(part, str) else part.visible_text(month) for part in self.parts).casefold()
        return " ".join(re.split(r"[\s,.]+" if self.spelled else r"[\s,]+", text)).strip()

    @cached_property
    def spelled(self) -> bool:
        """Whether the month is written as a word."""
        return any(isinstance(part, Field) and part.kind == "M" and bool(part.names) for part in self.parts)


def dates(
    count: int, seed: int = 0, locales: Sequence[str] = LOCALES, *, part: Part = "train"
) -> list[tuple[str, str]]:
    """Return random pairs (written date, ISO date). The same arguments give the same pairs.

    Dates are from 1900 to 2100. Each is written in a random locale of `locales`, in one of its short, medium, long and
    full formats or common skeletons, with or without weekday and commas, and unchanged, in lower or in upper case (by
    Unicode's rules, including the Turkish i). Direction marks are removed and no-break spaces become plain spaces.

    **No text is ambiguous.** 3/4/2012 is in March for some readers and in April for others. A numeric date whose day
    could be its month is excluded if any of `locales` uses the same layout with day and month swapped; 13/4/2012 and
    4/4/2012 stay. A weekday beside it does not resolve the ambiguity, because readers do not compute weekdays. The same
    holds for names: Polish listopada is November and Croatian listopada is October, so together both are excluded.
    Two-digit years are always excluded.

    Args:
        part: "train", "valid" or "test". One date in 20 is for validation and one for the test. This does not depend
            on the seed, so no date of one part is ever in another.

    Raises:
        ValueError: for locales that Babel does not know. The message lists them all.

    >>> for written, iso in dates(3, seed=5):
    ...     print(f"{written} → {iso}")
    29.10.2034 г. → 2034-10-29
    23 mai 2062 → 2062-05-23
    lørdag 12. november 1955 → 1955-11-12
    """
    if part not in get_args(Part):
        raise ValueError(f"dates: part ({part!r}) must be one of {', '.join(get_args(Part))}.")
    if count < 0 or seed < 0:
        raise ValueError(f"dates: count ({count}) and seed ({seed}) must be at least 0.")
    formats, ambiguous = _formats(tuple(locales))
    random = generator(seed, get_args(Part).index(part))
    names, days = list(formats), _days(part)
    pairs: list[tuple[str, str]] = []
    while len(pairs) < count:
        date = days[random.integers(len(days))]
        choices = formats[names[random.integers(len(names))]]
        date_format, case = choices[random.integers(len(choices))], random.random()
        if not _is_ambiguous(date_format, date, ambiguous):
            pairs.append((_cased(date_format(date), case, date_format.locale), date.isoformat()))
    return pairs


def write(folder: str | os.PathLike[str], count: int, seed: int = 0) -> str:
    """Write the files train, valid and test with `written TAB iso` lines; 1,000 pairs each in valid and test."""
    folder = Path(folder)
    for part, pairs in (("train", count), ("valid", HELD_OUT), ("test", HELD_OUT)):
        lines = "".join(f"{text}\t{iso}\n" for text, iso in dates(pairs, seed, part=part))  # type: ignore[arg-type]  # one of the three parts
        write_text(folder / f"{part}.tsv", lines)
    return f"{count:,} training, {HELD_OUT:,} validation and {HELD_OUT:,} test pairs: {folder}"


def part_of(date: datetime.date) -> Part:
    """Return the part that a date belongs to: a hash of the date alone."""
    hashed = date.toordinal() * 0x9E3779B97F4A7C15 % (1 << 64) >> 32  # Knuth's multiplicative hashing
    return {0: "valid", 1: "test"}.get(hashed % 20, "train")  # type: ignore[return-value]  # one of the three parts


@lru_cache(maxsize=3)
def _days(part: Part) -> tuple[datetime.date, ...]:
    days = (datetime.date.fromordinal(n) for n in range(FIRST.toordinal(), LAST.toordinal() + 1))
    return tuple(date for date in days if part_of(date) == part)


def _is_ambiguous(date_format: DateFormat, date: datetime.date, ambiguous: frozenset[str]) -> bool:
    """Return whether the same text also means another date in some locale."""
    if not date_format.spelled and (date.day > 12 or date.day == date.month):
        return False
    return date_format.visible_text(date.month) in ambiguous


@lru_cache(maxsize=8)
def _formats(locales: tuple[str, ...]) -> tuple[dict[str, list[DateFormat]], frozenset[str]]:
    """Return the formats of each locale, and the visible texts that are ambiguous."""
    from babel import Locale, UnknownLocaleError

    unknown, formats_by_locale = [], {}
    for name in locales:
        try:
            formats_by_locale[name] = _locale_formats(Locale.parse(name))
        except (UnknownLocaleError, ValueError):
            unknown.append(name)
    if unknown or not formats_by_locale:
        raise ValueError(
            f"dates: locales ({', '.join(unknown) or 'none'}) must be ones that Babel knows, such as de or pt_BR."
        )
    all_formats = [date_format for formats in formats_by_locale.values() for date_format in formats]
    readings: defaultdict[str, set[int]] = defaultdict(set)
    for date_format in all_formats:
        for month in range(1, 13) if date_format.spelled else ():
            readings[date_format.visible_text(month)].add(month)
    numbered = {date_format.visible_text(1) for date_format in all_formats if not date_format.spelled}
    swapped = {key.replace(DAY, "\1").replace(MONTH, DAY).replace("\1", MONTH) for key in numbered}
    return formats_by_locale, frozenset(
        (numbered & swapped) | {key for key, months in readings.items() if len(months) > 1}
    )


def _locale_formats(locale: Locale) -> list[DateFormat]:
    """Return the distinct formats of a locale, with and without commas."""
    patterns = [locale.date_formats[name].pattern for name in FORMATS]
    patterns += [skeleton.pattern for name in SKELETONS if (skeleton := locale.datetime_skeletons.get(name))]
    parsed = (_parts(pattern, locale) for pattern in patterns)
    layouts = [layout for layout in parsed if layout is not None]
    without_commas = [tuple(p.replace(",", "") if isinstance(p, str) else p for p in layout) for layout in layouts]
    return [DateFormat(str(locale), layout) for layout in dict.fromkeys((*layouts, *without_commas))]


def _parts(pattern: str, locale: Locale) -> tuple[str | Field, ...] | None:
    """Parse a pattern of the locale data. Return None if it is not a complete date or has a two-digit year."""
    from babel.dates import tokenize_pattern

    parts: list[str | Field] = []
    for _, value in tokenize_pattern(pattern):
        if isinstance(value, str):
            parts.append(_plain(value))
            continue
        letter, width = value
        if letter not in "yMLdEc" or (letter, width) == ("y", 2) or width > 4:
            return None
        names = locale.days if letter in "Ec" else locale.months if letter in "ML" and width > 2 else None
        listed = names and names["format" if letter in "EM" else "stand-alone"]["wide" if width == 4 else "abbreviated"]
        words = tuple(_plain(listed[number]) for number in sorted(listed)) if listed else ()
        parts.append(Field({"L": "M", "c": "E"}.get(letter, letter), width, words))  # type: ignore[arg-type]  # one of the letters of a field
    kinds = [part.kind for part in parts if isinstance(part, Field)]
    return tuple(parts) if {"y", "M", "d"} <= set(kinds) and len(kinds) == len(set(kinds)) else None


def _plain(text: str) -> str:
    """Remove direction marks and replace all kinds of spaces by plain ones."""
    kept = "".join(c for c in text if unicodedata.category(c) != "Cf")
    return unicodedata.normalize("NFC", "".join(" " if unicodedata.category(c) == "Zs" else c for c in kept))


def _cased(text: str, draw: float, locale: str) -> str:
    """Return the text unchanged, in lower case or in upper case, depending on the random number `draw`."""
    turkic = locale.startswith(("tr", "az"))
    if draw < CASES["lower"]:
        text = (text.replace("I", "ı").replace("İ", "i") if turkic else text).lower()
    elif draw < CASES["lower"] + CASES["upper"]:
        text = (text.replace("i", "İ") if turkic else text).upper()
    return unicodedata.normalize("NFC", text)  # upper-case ΐ becomes Ϊ and a separate accent
