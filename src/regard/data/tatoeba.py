"""Sentence pairs of Tatoeba in everyday language: 178,009 English–French and 124,547 English–Spanish.

The source package nmt 0.0.6 of the Python package index contains them, as files that manythings.org compiled from
Tatoeba in 2020, under CC-BY 2.0. The archive is only read; none of its code is executed.
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
    """Location of the sentences of a language pair."""

    member: str
    """A zip file in the archive."""
    file: str
    """A text file in the zip file."""
    count: int


SOURCES = {
    "en-fr": Source("nmt-0.0.6/data/fra-eng.zip", "fra.txt", 178_009),
    "en-es": Source("nmt-0.0.6/data/spa-eng.zip", "spa.txt", 124_547),
}
PARTS = ("train", "valid", "test")
HELD_OUT = 0.01
"""Share of sentence groups in valid, and also in test."""
SPACES = str.maketrans({"\u202f": " ", "\u00a0": " ", "\u2009": " "})
Row = tuple[str, str, str]
"""English sentence, other sentence, attribution."""

README = """\
Tatoeba sentence pairs, {pair}: {counts}.

One sentence per line; line n of each file of a part belongs together. The .credits files name the authors of each pair,
as the licence requires.

Created by regard from the files of manythings.org/anki of 2020-08-23, which are sentences of tatoeba.org, contained in
{name} (sha256 {sha256}).
Changes: text is in Unicode NFC; no-break, narrow no-break and thin spaces (U+00A0, U+202F, U+2009) are plain spaces.
Nothing else is changed.
Parts: random (seed {seed}), by groups of sentences that are translations of each other, so that no sentence of valid or
test, in either language, is in train, apart from case and punctuation.

Licence: Creative Commons Attribution 2.0 (CC-BY 2.0), https://creativecommons.org/licenses/by/2.0/
Attribution: www.manythings.org/anki and tatoeba.org
"""


@dataclass(frozen=True)
class Prepared:
    """The folder of the files and the number of pairs in each part."""

    folder: Path
    counts: dict[str, int]

    def __str__(self) -> str:
        return f"{self.folder}: {_listed(self.counts)}"


def prepare(pair: str, out: str | Path, archive: str | Path | None = None, seed: int = 0) -> Prepared:
    """Write train, valid and test files of sentence pairs to `out/pair`, such as out/en-fr/train.fr.

    Args:
        pair: "en-fr" or "en-es".
        out: a folder; the archive is kept in it.
        archive: the source package, if it is already on disk; None downloads it from the index that pip uses.
        seed: seed of the split.

    Raises:
        ValueError: if the pair is unknown, the archive is not the expected one, or the folder has unrelated files.
        OSError: if the archive cannot be downloaded. The message explains what to do.
    """
    if pair not in SOURCES:
        raise ValueError(f"tatoeba: pair ({pair}) must be one of {', '.join(SOURCES)}.")
    folder = Path(out) / pair
    extensions = [*pair.split("-"), "credits"]
    check_replaceable("tatoeba", folder, ["README", *(f"{part}.{end}" for part in PARTS for end in extensions)])
    parts = split(_read(obtain(SDIST, Path(out), archive), SOURCES[pair]), seed)
    counts = {part: len(parts[part]) for part in PARTS}
    with replacing(folder) as temporary:
        temporary.mkdir()
        for part in PARTS:
            for extension, lines in zip(extensions, zip(*parts[part], strict=True), strict=True):
                write_lines(temporary / f"{part}.{extension}", lines)
        text = README.format(pair=pair, counts=_listed(counts), name=SDIST.name, sha256=SDIST.sha256, seed=seed)
        write_lines(temporary / "README", text.splitlines())
    return Prepared(folder, counts)


def split(rows: Iterable[Row], seed: int = 0) -> dict[str, list[Row]]:
    """Split rows into train, valid and test, so that no sentence of one part is in another, in either language.

    Sentences that share a translation, or that differ only in case and punctuation, form a group. Groups are assigned
    at random, by the digest of their first sentence.

    >>> parts = split([("Go.", "Va !", ""), ("Go!", "Marche.", ""), ("Walk.", "Marche !", ""), ("Hi.", "Salut.", "")])
    >>> sum(len(rows) for rows in parts.values())
    4
    """
    rows = list(rows)
    groups = _groups([(f"en {_core(row[0])}", f"other {_core(row[1])}") for row in rows])
    parts: dict[str, list[Row]] = {part: [] for part in PARTS}
    for row, group in zip(rows, groups, strict=True):
        draw = int.from_bytes(hashlib.blake2b(f"{seed} {group}".encode(), digest_size=8).digest(), "big") / 2**64
        parts["valid" if draw < HELD_OUT else "test" if draw < 2 * HELD_OUT else "train"].append(row)
    return parts


def _groups(links: list[tuple[str, str]]) -> list[str]:
    """Return the alphabetically first node of each link's connected component, by union-find."""
    parents: dict[str, str] = {}

    def root(name: str) -> str:
        parents.setdefault(name, name)
        while parents[name] != name:
            parents[name] = parents[parents[name]]
            name = parents[name]
        return name

    for a, b in links:
        low, high = sorted((root(a), root(b)))
        parents[high] = low
    return [root(a) for a, _ in links]


def _core(sentence: str) -> str:
    """Return the letters and digits of a sentence in lower case, or all of it if it has none."""
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
