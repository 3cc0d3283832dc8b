"""The New Testament in Greek and English, verse by verse, with manual word alignments.

The source has 7,919 verses and 189,473 links: the wheel bible-alignments 0.4.2 of the Python package index. Its texts
and links are CC-BY 4.0 or in the public domain. The archive is only read; none of its code is executed.
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
ALIGNMENTS = "data/eng/alignments/BSB/SBLGNT-BSB-manual.json"
FILES = ("verses.el", "verses.en", "links", "README")
Link = tuple[int, int]

README = """\
The New Testament in Greek and English, {verses:,} verses, one a line, with {links:,} links between words in Pharaoh
format (Greek-English, counted from 0).

Created by regard from {name} (sha256 {sha256}).
Changes: words only, separated by spaces, in Unicode NFC. Punctuation tokens are removed, as are verses without a link
and links between words of different verses.

verses.el: SBL Greek New Testament, © 2010 Society of Biblical Literature and Logos Bible Software, CC-BY 4.0
verses.en: Berean Standard Bible, public domain
links: manual alignments by Biblica and BiblioNexus, CC-BY 4.0, https://creativecommons.org/licenses/by/4.0/
"""


@dataclass(frozen=True)
class Verse:
    """The words of a verse in both languages."""

    greek: list[str]
    english: list[str]
    links: set[Link]
    """(Greek word, English word)"""


def prepare(out: str | Path, archive: str | Path | None = None) -> Path:
    """Write verses.el, verses.en and links to the folder `out`. The archive is kept beside it.

    Raises:
        ValueError: if the archive is not the expected one.
        OSError: if it cannot be downloaded. The message explains what to do.
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
    with replacing(folder) as temporary:
        temporary.mkdir()
        write_lines(temporary / "verses.el", (" ".join(verse.greek) for verse in verses))
        write_lines(temporary / "verses.en", (" ".join(verse.english) for verse in verses))
        write_lines(temporary / "links", (" ".join(f"{a}-{b}" for a, b in sorted(verse.links)) for verse in verses))
        write_lines(temporary / "README", text.splitlines())
    return folder


def read(archive: Path) -> list[Verse]:
    """Return the verses of the archive that have a link, in the order of the Greek text."""
    try:
        with zipfile.ZipFile(archive) as packed:
            greek, english = (_rows(packed.read(name)) for name in (GREEK, ENGLISH))
            records = json.loads(packed.read(ALIGNMENTS))["records"]
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise ValueError(f"bible: {archive} must hold texts and links; got {error}. Fetch it again.") from error
    # ids such as n40001001002: book 40, chapter 1, verse 1, word 2; English tokens have the verse in its own column
    source, source_positions = _words((row["id"], row["id"][1:9], row["text"]) for row in greek)
    words = ((row["id"], row["source_verse"], row["text"]) for row in english if not row["exclude"])
    target, target_positions = _words(words)
    links = _links(records, source_positions, target_positions)
    return [Verse(text, target[name], links[name]) for name, text in source.items() if links.get(name)]


def _rows(content: bytes) -> Iterable[dict[str, str]]:
    text = io.StringIO(unicodedata.normalize("NFC", content.decode("utf-8")))
    return csv.DictReader(text, delimiter="\t", quoting=csv.QUOTE_NONE)


Position = tuple[str, int]
"""The id of a verse and the index of a word in it."""


def _words(tokens: Iterable[tuple[str, str, str]]) -> tuple[dict[str, list[str]], dict[str, Position]]:
    """Return the words of each verse and the position of each token id, from tokens (id, verse, text)."""
    verses: dict[str, list[str]] = {}
    positions: dict[str, Position] = {}
    for token, verse, text in tokens:
        words = verses.setdefault(verse, [])
        positions[token] = (verse, len(words))
        words.append(text)
    return verses, positions


def _links(
    records: Iterable[Any], source: Mapping[str, Position], target: Mapping[str, Position]
) -> Mapping[str, set[Link]]:
    links: dict[str, set[Link]] = defaultdict(set)
    for record in records:
        for a in (source[token] for token in record["source"] if token in source):
            for b in (target[token] for token in record["target"] if token in target):
                if a[0] == b[0]:
                    links[a[0]].add((a[1], b[1]))
    return links
