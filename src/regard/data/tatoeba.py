"""Sentence pairs of Tatoeba, everyday language: 178,009 English–French and 124,547 English–Spanish.

They come in the source package nmt 0.0.6 of the Python package index, as files that manythings.org made of Tatoeba's in
2020, under CC-BY 2.0. The archive is read; nothing of it is run.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
import unicodedata
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..core.files import check_replaceable, replacing, write_lines
from .package_index import Sdist, obtain

SDIST = Sdist(
    project="nmt",
    name="nmt-0.0.6.tar.gz",
    sha256="65db964c0afd5b0dbc4baecdce736f53222f63b791958176b5771db78a005096",
    size=15_744_217,
)


@dataclass(frozen=True)
class Source:
    """Where the sentences of a pair of languages are."""

    member: str
    """Of the archive: a zip file."""
    file: str
    """In that."""
    count: int


SOURCES = {
    "en-fr": Source("nmt-0.0.6/data/fra-eng.zip", "fra.txt", 178_009),
    "en-es": Source("nmt-0.0.6/data/spa-eng.zip", "spa.txt", 124_547),
}
PARTS = ("train", "valid", "test")
HELD_OUT = 0.01
"""The share of groups of sentences that goes to valid, and again to test."""
SPACES = str.maketrans({"\u202f": " ", "\u00a0": " ", "\u2009": " "})
Row = tuple[str, str, str]
"""English, the other language, whose work it is."""

README = """\
Tatoeba sentence pairs, {pair}: {counts}.

One sentence a line; line n of each file of a part belongs together. The .credits files name the authors of each pair,
as its licence asks.

Made by regard from the files of manythings.org/anki of 2020-08-23, which are sentences of tatoeba.org, as contained in
{name} (sha256 {sha256}).
Changed: text is in Unicode NFC; no-break spaces, narrow or not, and thin ones (U+202F, U+00A0, U+2009) are plain
spaces. Nothing else.
Parts: by lot (seed {seed}), for groups of sentences that are each other's translations, so that no sentence of valid or
test, in either language, is in train, case and punctuation aside.

Licence: Creative Commons Attribution 2.0 (CC-BY 2.0), https://creativecommons.org/licenses/by/2.0/
Attribution: www.manythings.org/anki and tatoeba.org
"""


@dataclass(frozen=True)
class Prepared:
    """Where the files are, and how many pairs each part has."""

    folder: Path
    counts: dict[str, int]

    def __str__(self) -> str:
        return f"{self.folder}: {_listed(self.counts)}"


def prepare(pair: str, out: str | Path, archive: str | Path | None = None, seed: int = 0) -> Prepared:
    """Write train, valid and test files of sentence pairs to `out/pair`, such as out/en-fr/train.fr.

    Args:
        pair: "en-fr" or "en-es".
        out: a folder; the archive is kept in it.
        archive: the source package, where it is at hand; None fetches it from the index that pip is set up for.
        seed: of the parts.

    Raises:
        ValueError: for an unknown pair, an archive that is not the one expected, or a folder with files of others.
        OSError: if the archive cannot be fetched, with what to do.
    """
    if pair not in SOURCES:
        raise ValueError(f"tatoeba: pair ({pair}) must be one of {', '.join(SOURCES)}.")
    folder = Path(out) / pair
    extensions = [*pair.split("-"), "credits"]
    check_replaceable("tatoeba", folder, ["README", *(f"{part}.{end}" for part in PARTS for end in extensions)])
    parts = split(_read(obtain(SDIST, Path(out), archive), SOURCES[pair]), seed)
    counts = {part: len(parts[part]) for part in PARTS}
    with replacing(folder) as made:
        made.mkdir()
        for part in PARTS:
            for extension, lines in zip(extensions, zip(*parts[part], strict=True), strict=True):
                write_lines(made / f"{part}.{extension}", lines)
        text = README.format(pair=pair, counts=_listed(counts), name=SDIST.name, sha256=SDIST.sha256, seed=seed)
        write_lines(made / "README", text.splitlines())
    return Prepared(folder, counts)


def split(rows: Iterable[Row], seed: int = 0) -> dict[str, list[Row]]:
    """Rows → train, valid and test, so that no sentence of one part is in another, in either language.

    Sentences that share a translation, and those that differ in case and punctuation only, are one group; the lot falls
    on groups, by the digest of their first sentence.

    >>> parts = split([("Go.", "Va !", ""), ("Go!", "Marche.", ""), ("Walk.", "Marche !", ""), ("Hi.", "Salut.", "")])
    >>> sum(len(rows) for rows in parts.values())
    4
    """
    rows = list(rows)
    groups = _groups([(f"en {_core(row[0])}", f"other {_core(row[1])}") for row in rows])
    parts: dict[str, list[Row]] = {part: [] for part in PARTS}
    for row, group in zip(rows, groups, strict=True):
        lot = int.from_bytes(hashlib.blake2b(f"{seed} {group}".encode(), digest_size=8).digest(), "big") / 2**64
        parts["valid" if lot < HELD_OUT else "test" if lot < 2 * HELD_OUT else "train"].append(row)
    return parts


def _groups(links: list[tuple[str, str]]) -> list[str]:
    """For each link the alphabetically first of all that it is connected with: union-find."""
    above: dict[str, str] = {}

    def first(name: str) -> str:
        above.setdefault(name, name)
        while above[name] != name:
            above[name] = above[above[name]]
            name = above[name]
        return name

    for a, b in links:
        low, high = sorted((first(a), first(b)))
        above[high] = low
    return [first(a) for a, _ in links]


def _core(sentence: str) -> str:
    """Letters and digits of a sentence in small letters; all of it if there are none."""
    return "".join(c for c in sentence.casefold() if c.isalnum()) or sentence


def _read(archive: Path, source: Source) -> list[Row]:
    try:
        with tarfile.open(archive, "r:gz") as package:
            member = package.extractfile(source.member)
            assert member is not None, source.member
            with zipfile.ZipFile(io.BytesIO(member.read())) as packed:
                text = packed.read(source.file).decode("utf-8")
    except (tarfile.TarError, zipfile.BadZipFile, KeyError) as error:
        raise ValueError(
            f"tatoeba: {archive} must hold {source.member} with {source.file} in it; got {error}. Fetch it again."
        ) from error
    lines = unicodedata.normalize("NFC", text).translate(SPACES).split("\n")
    rows = [tuple(line.split("\t")) for line in lines if line]
    good = [row for row in rows if len(row) == 3]
    if len(good) != source.count or len(rows) != source.count:
        raise ValueError(
            f"tatoeba: {source.file} must have {source.count:,} lines of three columns; got {len(good):,} of "
            f"{len(rows):,}. Fetch the archive again."
        )
    return good


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {part}" for part, count in counts.items())
