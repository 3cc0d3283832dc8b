"""A task that needs no file: dates as people write them, in many languages → ISO dates.

    Freitag, 3. April 2009  →  2009-04-03
    3 AVRIL 2009            →  2009-04-03
    2009年4月3日金曜日       →  2009-04-03

The writings are those of the Unicode locale data, through Babel.
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
FORMATS = ("short", "medium", "long", "full")
SKELETONS = ("yMd", "yMEd", "yMMMd", "yMMMEd", "yMMMMd", "yMMMMEEEEd")
HELD_OUT = 1000
FIRST, LAST = datetime.date(1900, 1, 1), datetime.date(2100, 12, 31)
CASES = {"lower": 0.25, "upper": 0.15}
"""How often a writing has its letters made small or large; the rest are left as they are."""
DAY, MONTH, YEAR = "\0d", "\0m", "\0y"


@dataclass(frozen=True)
class Field:
    """A part of a date that changes: y, M, d or E (weekday) of the locale data."""

    kind: Literal["y", "M", "d", "E"]
    width: int
    """Digits at least."""
    names: tuple[str, ...] = ()
    """Of months or weekdays, where these are written as words."""

    def __call__(self, date: datetime.date) -> str:
        if self.kind == "E":
            return self.names[date.weekday()]
        if self.names:
            return self.names[date.month - 1]
        return f"{ {'y': date.year, 'M': date.month, 'd': date.day}[self.kind]:0{self.width}d}"

    def shown(self, month: int) -> str:
        """What a reader sees of it in a month of which neither day nor year is known."""
        if self.kind == "M" and self.names:
            return self.names[month - 1]
        return {"y": YEAR, "M": MONTH, "d": DAY, "E": ""}[self.kind]


@dataclass(frozen=True)
class Writing:
    """A way to write dates."""

    locale: str
    parts: tuple[str | Field, ...]

    def __call__(self, date: datetime.date) -> str:
        return "".join(part if isinstance(part, str) else part(date) for part in self.parts)

    def shown(self, month: int) -> str:
        """What a reader sees apart from day, year and weekday, case and commas, and, by a word, full stops."""
        text = "".join(part if isinstance(part, str) else part.shown(month) for part in self.parts).casefold()
        return " ".join(re.split(r"[\s,.]+" if self.spelled else r"[\s,]+", text)).strip()

    @cached_property
    def spelled(self) -> bool:
        """Whether the month is a word."""
        return any(isinstance(part, Field) and part.kind == "M" and bool(part.names) for part in self.parts)


def dates(
    count: int, seed: int = 0, locales: Sequence[str] = LOCALES, *, part: Part = "train"
) -> list[tuple[str, str]]:
    """Pairs (a date as written, the same as year-month-day); the same arguments give the same pairs.

    Dates are from 1900 to 2100. Each is written in a locale drawn from `locales`, in one of its short, medium, long and
    full formats or usual skeletons, with and without weekday and commas, as it is, in small or in large letters (by
    Unicode's rules, with the two i of Turkish). Marks of direction are left out and no-break spaces are plain ones.

    **No writing has two readings.** 3/4/2012 is a day in March to one reader and in April to another: a numbered date
    whose day could be its month is left out where, among all `locales`, the same layout is used with the two exchanged;
    13/4/2012 and 4/4/2012 stay. A weekday beside it would decide, by arithmetic that nobody does in reading, so it does
    not count. So with names: Polish listopada is November and Croatian listopada October; together, both are left out.
    Years of two digits are left out altogether.

    Args:
        part: "train", "valid" or "test": of every 20 dates one is for validation and one for the test, whatever the
            seed, so that no date of one part is ever in another.

    Raises:
        ValueError: for locales that Babel does not know, with all of them named.

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
    writings, ambiguous = _writings(tuple(locales))
    random = generator(seed, get_args(Part).index(part))
    names, days = list(writings), _days(part)
    pairs: list[tuple[str, str]] = []
    while len(pairs) < count:
        date = days[random.integers(len(days))]
        choices = writings[names[random.integers(len(names))]]
        writing, case = choices[random.integers(len(choices))], random.random()
        if not _two_readings(writing, date, ambiguous):
            pairs.append((_cased(writing(date), case, writing.locale), date.isoformat()))
    return pairs


def write(folder: str | os.PathLike[str], count: int, seed: int = 0) -> str:
    """Files train, valid and test of dates: `written TAB iso` lines; 1,000 pairs to validate and to test each."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for part, pairs in (("train", count), ("valid", HELD_OUT), ("test", HELD_OUT)):
        lines = "".join(f"{text}\t{iso}\n" for text, iso in dates(pairs, seed, part=part))  # type: ignore[arg-type]
        write_text(folder / f"{part}.tsv", lines)
    return f"{count:,} pairs to learn from, {HELD_OUT:,} to validate, {HELD_OUT:,} to test: {folder}"


def part_of(date: datetime.date) -> Part:
    """The part that a date belongs to, as if drawn by lot: a function of nothing else."""
    lot = date.toordinal() * 0x9E3779B97F4A7C15 % (1 << 64) >> 32  # Knuth's multiplicative hashing
    return {0: "valid", 1: "test"}.get(lot % 20, "train")  # type: ignore[return-value]


@lru_cache(maxsize=3)
def _days(part: Part) -> tuple[datetime.date, ...]:
    every = (datetime.date.fromordinal(n) for n in range(FIRST.toordinal(), LAST.toordinal() + 1))
    return tuple(date for date in every if part_of(date) == part)


def _two_readings(writing: Writing, date: datetime.date, ambiguous: frozenset[str]) -> bool:
    """Whether another date is written the same, somewhere."""
    if not writing.spelled and (date.day > 12 or date.day == date.month):
        return False
    return writing.shown(date.month) in ambiguous


@lru_cache(maxsize=8)
def _writings(locales: tuple[str, ...]) -> tuple[dict[str, list[Writing]], frozenset[str]]:
    """The writings of each locale, and what is seen of those with two readings."""
    from babel import Locale, UnknownLocaleError

    unknown, found = [], {}
    for name in locales:
        try:
            found[name] = _of(Locale.parse(name))
        except (UnknownLocaleError, ValueError):
            unknown.append(name)
    if unknown or not found:
        raise ValueError(
            f"dates: locales ({', '.join(unknown) or 'none'}) must be ones that Babel knows, such as de or pt_BR."
        )
    every = [writing for writings in found.values() for writing in writings]
    readings: defaultdict[str, set[int]] = defaultdict(set)
    for writing in every:
        for month in range(1, 13) if writing.spelled else ():
            readings[writing.shown(month)].add(month)
    numbered = {writing.shown(1) for writing in every if not writing.spelled}
    exchanged = {key.replace(DAY, "\1").replace(MONTH, DAY).replace("\1", MONTH) for key in numbered}
    return found, frozenset((numbered & exchanged) | {key for key, months in readings.items() if len(months) > 1})


def _of(locale: Locale) -> list[Writing]:
    """The writings of a locale, each once, with its commas and without."""
    patterns = [locale.date_formats[name].pattern for name in FORMATS]
    patterns += [found.pattern for name in SKELETONS if (found := locale.datetime_skeletons.get(name))]
    made = (_parts(pattern, locale) for pattern in patterns)
    parts = [found for found in made if found is not None]
    bare = [tuple(p.replace(",", "") if isinstance(p, str) else p for p in found) for found in parts]
    return [Writing(str(locale), found) for found in dict.fromkeys((*parts, *bare))]


def _parts(pattern: str, locale: Locale) -> tuple[str | Field, ...] | None:
    """A pattern of the locale data, taken apart; None if it is no whole date, or has a year of two digits."""
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
        parts.append(Field({"L": "M", "c": "E"}.get(letter, letter), width, words))  # type: ignore[arg-type]
    kinds = [part.kind for part in parts if isinstance(part, Field)]
    return tuple(parts) if {"y", "M", "d"} <= set(kinds) and len(kinds) == len(set(kinds)) else None


def _plain(text: str) -> str:
    """Text without marks of direction, and with plain spaces."""
    without = "".join(c for c in text if unicodedata.category(c) != "Cf")
    return unicodedata.normalize("NFC", "".join(" " if unicodedata.category(c) == "Zs" else c for c in without))


def _cased(text: str, lot: float, locale: str) -> str:
    """The text as it is, in small or in large letters, by lot."""
    turkic = locale.startswith(("tr", "az"))
    if lot < CASES["lower"]:
        text = (text.replace("I", "ı").replace("İ", "i") if turkic else text).lower()
    elif lot < CASES["lower"] + CASES["upper"]:
        text = (text.replace("i", "İ") if turkic else text).upper()
    return unicodedata.normalize("NFC", text)  # a large ΐ is Ϊ and an accent of its own
