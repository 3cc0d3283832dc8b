"""Dates: formats as in Babel, no ambiguous text, and disjoint parts."""

import datetime
import re
import unicodedata
from collections import Counter, defaultdict

import pytest
from babel import Locale
from babel.dates import format_date, format_skeleton
from hypothesis import given, settings
from hypothesis import strategies as st

import regard.data.dates as module
from regard.data import Characters
from regard.data.dates import FIRST, LAST, LOCALES, SKELETONS, dates, part_of

days = st.dates(FIRST, LAST)
PLAIN = str.maketrans({"\u202f": " ", "\xa0": " ", "\u200f": None, "\u200e": None})


def written(locale: str, date: datetime.date) -> set[str]:
    return {writing(date) for writing in module._formats((locale,))[0][locale]}


@settings(max_examples=60, deadline=None)
@given(days, st.sampled_from([*LOCALES, "hr", "he", "ca", "lt"]))
def test_they_are_written_as_babel_writes_them(date: datetime.date, name: str) -> None:
    locale, ours = Locale.parse(name), written(name, date)
    theirs = {
        format: format_date(date, format, name).translate(PLAIN) for format in ("short", "medium", "long", "full")
    }
    theirs |= {s: format_skeleton(s, date, None, False, name) for s in SKELETONS if s in locale.datetime_skeletons}
    for format, text in theirs.items():
        text = unicodedata.normalize("NFC", text.translate(PLAIN))
        if str(date.year) in text:
            assert text in ours, format
            assert text.replace(",", "") in ours, format
    assert all(re.search(rf"(?<!\d){date.year}(?!\d)", text) for text in ours)


def test_no_text_is_ambiguous() -> None:
    """By trying every day of some years, in every locale; weekdays aside, which are no help in reading."""
    writings, ambiguous = module._formats((*LOCALES, "hr", "sr_Latn"))
    for year in (1912, 2011):
        readings = defaultdict(set)
        for writing in (w for several in writings.values() for w in several):
            if any(isinstance(part, module.Field) and part.kind == "E" for part in writing.parts):
                continue
            for number in range(datetime.date(year, 1, 1).toordinal(), datetime.date(year + 1, 1, 1).toordinal()):
                date = datetime.date.fromordinal(number)
                if not module._is_ambiguous(writing, date, ambiguous):
                    readings[re.sub(r"\b0", "", writing(date).casefold())].add(date)
        assert [text for text, result in readings.items() if len(result) > 1] == []


def test_is_ambiguous_are_distinguished_from_one() -> None:
    texts = dict(dates(30_000, seed=1, locales=("en_US", "en_GB", "de")))
    slashed = [re.findall(r"(\d+)/(\d+)/\d{4}$", text)[0] for text in texts if "/" in text]
    assert len(slashed) > 1000
    for a, b in slashed:
        assert int(a) > 12 or int(b) > 12 or int(a) == int(b)
    assert any(int(a) == int(b) for a, b in slashed)
    assert any(int(a) > 12 for a, _ in slashed) and any(int(b) > 12 for _, b in slashed)
    dotted = [text for text in texts if re.fullmatch(r"0?[1-9]\.0?[1-9]\.\d{4}", text)]
    assert dotted  # with full stops the day is first, everywhere
    alone = [text for text, _ in dates(3000, locales=("en_GB",)) if re.fullmatch(r"0[1-9]/0[1-9]/\d{4}", text)]
    assert alone  # and who knows one order only has no doubt


def test_names_with_two_meanings_are_left_out() -> None:
    def with_word(*locales: str) -> set[str]:
        return {iso[5:7] for text, iso in dates(8000, locales=locales) if "listopada" in text.casefold()}

    assert with_word("pl") == {"11"} and with_word("hr") == {"10"} and with_word("pl", "hr") == set()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**40), st.sampled_from(["train", "valid", "test"]))
def test_pairs_are_a_function_of_the_arguments(seed: int, part: module.Part) -> None:
    pairs = dates(20, seed, part=part)
    assert pairs == dates(30, seed, part=part)[:20] != dates(20, seed + 1, part=part)
    for text, iso in pairs:
        assert part_of(datetime.date.fromisoformat(iso)) == part
        assert iso[:4] in text and text == text.strip() and "  " not in text
        assert unicodedata.is_normalized("NFC", text)


def test_no_date_is_in_two_parts() -> None:
    result = {part: {iso for _, iso in dates(3000, part=part)} for part in ("train", "valid", "test")}  # type: ignore[arg-type]
    assert not result["train"] & result["test"] and not result["train"] & result["valid"]
    assert not result["valid"] & result["test"]
    every = Counter(part_of(datetime.date.fromordinal(n)) for n in range(FIRST.toordinal(), LAST.toordinal() + 1))
    assert 0.89 < every["train"] / every.total() < 0.91 and 0.045 < every["test"] / every.total() < 0.055


def test_they_are_varied() -> None:
    pairs = dates(20_000)
    assert len({text for text, _ in pairs}) > 19_000
    years = Counter(iso[:4] for _, iso in pairs)
    assert min(years) == "1900" and max(years) == "2100" and len(years) == 201
    assert {iso[5:7] for _, iso in pairs} == {f"{month:02d}" for month in range(1, 13)}
    letters = [text for text, _ in pairs if text.lower() != text.upper()]
    assert 0.1 < sum(text.isupper() for text in letters) / len(letters) < 0.25
    assert sum(text.islower() for text in letters) / len(letters) > 0.25
    characters = Characters.train(part for pair in pairs for part in pair)
    assert len(characters) < 320 and all(characters.decode(characters.encode(text)) == text for text, _ in pairs)


def test_turkish_has_two_letters_i() -> None:
    assert module._cased("3 Nisan 1999 Pazartesi", 0.3, "tr") == "3 NİSAN 1999 PAZARTESİ"
    assert module._cased("3 ARALIK", 0.1, "tr") == "3 aralık"
    assert module._cased("3 April", 0.3, "de") == "3 APRIL"


def test_error_messages() -> None:
    with pytest.raises(
        ValueError,
        match=re.escape("dates: locales (xx, no such) must be ones that Babel knows, such as de or pt_BR."),
    ):
        dates(1, locales=("de", "xx", "no such"))
    with pytest.raises(ValueError, match=re.escape("dates: locales (none) must be ones")):
        dates(1, locales=())
    with pytest.raises(ValueError, match=re.escape("dates: part ('dev') must be one of train, valid, test.")):
        dates(1, part="dev")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=re.escape("dates: count (-1) and seed (0) must be at least 0.")):
        dates(-1)
