"""The Greek New Testament and an English one, verse by verse, with links between words that people made.

7,919 verses, 189,473 links: the wheel bible-alignments 0.4.2 of the Python package index, texts and links under
CC-BY 4.0 or free. The archive is read; nothing of it is run.
"""

from __future__ import annotations

import csv
import io
import json
import unicodedata
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.files import check_replaceable, replacing, write_lines
from .package_index import Sdist, obtain

WHEEL = Sdist(
    project="bible-alignments",
    name="bible_alignments-0.4.2-py3-none-any.whl",
    sha256="84f6b15e706657777824aac811567cb5cb2b38ad2b94497209f5f3c3f67b0984",
    size=8_807_345,
)
VERSES, LINKS = 7_919, 189_473
GREEK, ENGLISH = "data/sources/SBLGNT.tsv", "data/eng/targets/BSB/nt_BSB.tsv"
MADE = "data/eng/alignments/BSB/SBLGNT-BSB-manual.json"
FILES = ("verses.el", "verses.en", "links", "README")
Link = tuple[int, int]

README = """\
The New Testament in Greek and English, {verses:,} verses, one a line, with {links:,} links between words in Pharaoh
format (Greek-English, counted from 0).

Made by regard from {name} (sha256 {sha256}).
Changed: words only, with a space between, in Unicode NFC; punctuation that has tokens of its own is left out, as are
verses without a link and links between words of different verses.

verses.el: SBL Greek New Testament, © 2010 Society of Biblical Literature and Logos Bible Software, CC-BY 4.0
verses.en: Berean Standard Bible, public domain
links: made by hand by Biblica and BiblioNexus, CC-BY 4.0, https://creativecommons.org/licenses/by/4.0/
"""


@dataclass(frozen=True)
class Verse:
    """A verse in both languages, word by word."""

    greek: list[str]
    english: list[str]
    links: set[Link]
    """(Greek word, English word)"""


def prepare(out: str | Path, archive: str | Path | None = None) -> Path:
    """Write verses.el, verses.en and links to the folder `out`; the archive is kept beside it.

    Raises:
        ValueError: for an archive that is not the one expected.
        OSError: if it cannot be fetched, with what to do.
    """
    folder = Path(out)
    check_replaceable("bible", folder, FILES)
    archive = obtain(WHEEL, folder.parent, archive)
    verses = read(archive)
    links = sum(len(verse.links) for verse in verses)
    if (len(verses), links) != (VERSES, LINKS):
        raise ValueError(
            f"bible: {archive} must have {VERSES:,} verses and {LINKS:,} links; got {len(verses):,} and {links:,}."
        )
    text = README.format(verses=len(verses), links=links, name=WHEEL.name, sha256=WHEEL.sha256)
    with replacing(folder) as made:
        made.mkdir()
        write_lines(made / "verses.el", (" ".join(verse.greek) for verse in verses))
        write_lines(made / "verses.en", (" ".join(verse.english) for verse in verses))
        write_lines(made / "links", (" ".join(f"{a}-{b}" for a, b in sorted(verse.links)) for verse in verses))
        write_lines(made / "README", text.splitlines())
    return folder


def read(archive: Path) -> list[Verse]:
    """The verses of the archive that have a link, in the order of the Greek text."""
    try:
        with zipfile.ZipFile(archive) as packed:
            greek, english = (_rows(packed.read(name)) for name in (GREEK, ENGLISH))
            records = json.loads(packed.read(MADE))["records"]
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise ValueError(f"bible: {archive} must hold texts and links; got {error}. Fetch it again.") from error
    # an id is n40001001002: book 40, chapter 1, verse 1, word 2; of English words the verse is named apart
    source, source_places = _words((row["id"], row["id"][1:9], row["text"]) for row in greek)
    words = ((row["id"], row["source_verse"], row["text"]) for row in english if not row["exclude"])
    target, target_places = _words(words)
    links = _links(records, source_places, target_places)
    return [Verse(text, target[name], links[name]) for name, text in source.items() if links.get(name)]


def _rows(content: bytes) -> Iterable[dict[str, str]]:
    text = io.StringIO(unicodedata.normalize("NFC", content.decode("utf-8")))
    return csv.DictReader(text, delimiter="\t", quoting=csv.QUOTE_NONE)


Place = tuple[str, int]
"""The name of a verse, and the number of a word in it."""


def _words(tokens: Iterable[tuple[str, str, str]]) -> tuple[dict[str, list[str]], dict[str, Place]]:
    """Tokens (id, verse, text) → words of each verse, and the place of each id."""
    verses: dict[str, list[str]] = {}
    places: dict[str, Place] = {}
    for token, verse, text in tokens:
        words = verses.setdefault(verse, [])
        places[token] = (verse, len(words))
        words.append(text)
    return verses, places


def _links(records: Iterable[Any], source: Mapping[str, Place], target: Mapping[str, Place]) -> Mapping[str, set[Link]]:
    found: dict[str, set[Link]] = defaultdict(set)
    for record in records:
        for a in (source[token] for token in record["source"] if token in source):
            for b in (target[token] for token in record["target"] if token in target):
                if a[0] == b[0]:
                    found[a[0]].add((a[1], b[1]))
    return found
