"""A corpus of pairs of id sequences in memory-mapped files: only the parts that are accessed are read.

    folder/
      corpus.json   description, written last
      source.ids    concatenated ids of all sources: uint16, or uint32 if an id exceeds 65,535
      target.ids
      offsets       (N + 1, 2) int64: start of each source and target
      lengths       (N, 2) int32: differences of offsets, stored so that planning batches need not compute them

All numbers are little-endian.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from ..core.chunks import chunks
from ..core.files import replacing
from .text_files import Report
from .vocabulary import Vocabulary

Pair = tuple[Sequence[int], Sequence[int]]
Flat = tuple[np.ndarray, np.ndarray]
"""Concatenated ids of many sequences, and the length of each."""
SIDES = ("source", "target")
FORMAT = 1
CHUNK = 1 << 14
"""Number of pairs written at a time."""


class EmptyCorpus(ValueError):
    """There are no pairs to write."""


class _Format(Exception):
    """The corpus has another format version."""


class Corpus:
    """Pairs of id sequences on disk; `corpus[i]` is (source ids, target ids), without BOS and EOS.

    >>> import tempfile
    >>> corpus = Corpus.write(Path(tempfile.mkdtemp()) / "corpus", [([5, 6, 7], [8]), ([9], [10, 11])])
    >>> len(corpus), corpus[1]
    (2, (array([9], dtype=uint16), array([10, 11], dtype=uint16)))
    >>> corpus.lengths.tolist()
    [[3, 1], [1, 2]]
    """

    def __init__(self, folder: Path, count: int, totals: Sequence[int], types: Sequence[str]) -> None:
        self.folder = folder
        self.totals = tuple(totals)
        """Total number of ids of all sources, and of all targets."""
        sizes = zip(SIDES, self.totals, types, strict=True)
        self.ids = tuple(_memory_map(folder / f"{side}.ids", type, (total,)) for side, total, type in sizes)
        self.offsets = _memory_map(folder / "offsets", "<i8", (count + 1, 2))
        self.lengths = _memory_map(folder / "lengths", "<i4", (count, 2))

    @classmethod
    def write(cls, folder: str | Path, pairs: Iterable[Pair]) -> Corpus:
        """Write pairs of ids to a folder. Only a few thousand pairs are in memory at a time.

        The folder is written atomically: a previous one of that name stays until the new one is complete.

        Raises:
            EmptyCorpus: if there are no pairs.
            ValueError: if an id is negative or exceeds 32 bits.
        """
        return cls.write_flat(folder, _flat_chunks(pairs))

    @classmethod
    def write_flat(cls, folder: str | Path, parts: Iterable[tuple[Flat, Flat]]) -> Corpus:
        """Like `write`, from arrays: each part has (ids, lengths) of its sources and of its targets."""
        folder = Path(folder)
        with replacing(folder) as temporary:
            temporary.mkdir()
            writer = _Writer(temporary)
            with writer:
                for source, target in parts:
                    writer.add(source, target)
            if not writer.count:
                raise EmptyCorpus("corpus: pairs (0) must be at least 1; got an end without any.")
            description = {"format": FORMAT, "count": writer.count, "totals": writer.totals, "types": writer.types}
            (temporary / "corpus.json").write_text(json.dumps(description) + "\n")
        return cls.open(folder)

    @classmethod
    def open(cls, folder: str | Path) -> Corpus:
        """Open a corpus written with `write`.

        Raises:
            ValueError: if it is incomplete. The message has the path.
        """
        path = Path(folder) / "corpus.json"
        try:
            description = json.loads(path.read_text())
            if description["format"] != FORMAT:
                raise _Format(f"format {description['format']}")
            return cls(Path(folder), description["count"], description["totals"], description["types"])
        except FileNotFoundError as error:
            raise ValueError(
                f"corpus: {error.filename} must exist; got no such file. Write the corpus again."
            ) from error
        except (KeyError, TypeError, json.JSONDecodeError, UnicodeDecodeError, _Format) as error:
            raise ValueError(
                f"corpus: {path} must describe a corpus of format {FORMAT}; got {error}. Write the corpus again."
            ) from error

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        position = range(len(self))[index]  # negative indices count from the end; IndexError if out of range
        (s, t), (s_end, t_end) = self.offsets[position : position + 2].tolist()
        return self.ids[0][s:s_end], self.ids[1][t:t_end]

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        return (self[index] for index in range(len(self)))

    def __repr__(self) -> str:
        return f"Corpus({len(self):,} pairs, {self.totals[0]:,} + {self.totals[1]:,} ids)"


def encode_pairs(
    pairs: Iterable[tuple[str, str]],
    source: Vocabulary,
    target: Vocabulary,
    *,
    longest: int | None = None,
    report: Report | None = None,
) -> Iterator[Pair]:
    """Encode pairs of texts, a few thousand at a time, for `Corpus.write`.

    Pairs with more than `longest` ids on a side are dropped. In the report they move from kept to too long.

    >>> from regard.data import Characters
    >>> letters = Characters("abc")
    >>> list(encode_pairs([("ab", "c"), ("abcabc", "c")], letters, letters, longest=4))
    [([4, 5], [6])]
    """
    for chunk in chunks(pairs, CHUNK):
        sources, targets = zip(*chunk, strict=True)
        for pair in zip(source.encode_all(sources), target.encode_all(targets), strict=True):
            if longest is None or max(map(len, pair)) <= longest:
                yield pair
            elif report is not None:
                report.kept -= 1
                report.add("too long")


def _flat_chunks(pairs: Iterable[Pair]) -> Iterator[tuple[Flat, Flat]]:
    for chunk in chunks(pairs, CHUNK):
        source, target = ([np.asarray(pair[side], np.int64) for pair in chunk] for side in (0, 1))
        yield _concatenated(source), _concatenated(target)


def _concatenated(rows: list[np.ndarray]) -> Flat:
    return np.concatenate(rows), np.array([len(row) for row in rows], np.int32)


class _Writer:
    """Append chunks to the files of a corpus."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count, self.totals, self.types = folder, 0, [0, 0], ["<u2", "<u2"]
        names = [f"{side}.ids" for side in SIDES]
        self._ids: list[IO[bytes]] = [(folder / name).open("wb") for name in names]
        self._offsets, self._lengths = ((folder / name).open("wb") for name in ("offsets", "lengths"))
        self._offsets.write(np.zeros(2, "<i8").tobytes())

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *_: object) -> None:
        for file in (*self._ids, self._offsets, self._lengths):
            file.close()

    def add(self, source: Flat, target: Flat) -> None:
        lengths = np.stack((source[1], target[1]), 1)  # (n, 2)
        ends = np.cumsum(lengths, 0, dtype=np.int64) + np.array(self.totals)
        for side, (ids, length) in enumerate((source, target)):
            if length.sum() != len(ids) or (length < 0).any():
                raise ValueError(
                    f"corpus: lengths of {SIDES[side]} (sum {length.sum()}) must add up to its ids; got {len(ids)}."
                )
            self._append(side, ids)
        self._offsets.write(ends.astype("<i8").tobytes())
        self._lengths.write(lengths.astype("<i4").tobytes())
        self.count += len(lengths)

    def _append(self, side: int, ids: np.ndarray) -> None:
        low, high = (int(ids.min()), int(ids.max())) if len(ids) else (0, 0)
        if low < 0 or high >= 1 << 32:
            raise ValueError(
                f"corpus: ids of {SIDES[side]} ({low} … {high}) must lie in 0 … {(1 << 32) - 1}; got one out of range."
            )
        if high >= 1 << 16 and self.types[side] == "<u2":
            self._widen(side)
        self._ids[side].write(ids.astype(self.types[side]).tobytes())
        self.totals[side] += len(ids)

    def _widen(self, side: int) -> None:
        """Convert the ids written so far from uint16 to uint32, because a larger id has arrived."""
        self._ids[side].close()
        path = self.folder / f"{SIDES[side]}.ids"
        narrow = path.rename(path.with_suffix(".narrow"))
        self.types[side], self._ids[side] = "<u4", path.open("wb")
        with narrow.open("rb") as file:
            while part := file.read(1 << 20):
                self._ids[side].write(np.frombuffer(part, "<u2").astype("<u4").tobytes())
        narrow.unlink()


def _memory_map(path: Path, type: str, shape: tuple[int, ...]) -> np.ndarray:
    size, expected = path.stat().st_size, int(np.prod(shape)) * np.dtype(type).itemsize
    if size != expected:
        raise ValueError(f"corpus: {path} must have {expected:,} bytes; got {size:,}. Write the corpus again.")
    # an empty file cannot be mapped: all sources of a corpus may be empty
    return np.asarray(np.memmap(path, type, "r", shape=shape)) if size else np.empty(shape, type)
