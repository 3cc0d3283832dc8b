"""Parallel text: sentences and their translations, line by line, in two files or one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Literal, get_args

from .encodings import Lines
from .open_text import opened

Fault = Literal["empty", "too long", "badly encoded", "without exactly one tab"]
FAULTS: tuple[Fault, ...] = get_args(Fault)
LONGEST = 2000
"""Characters of a line: longer ones are tables and pages, not sentences."""
EXAMPLES = 3


@dataclass
class Report:
    """What became of the lines of a text.

    >>> report = Report(kept=29_000)
    >>> report.add("empty", 17)
    >>> print(report)
    29,000 pairs kept; left out: 1 empty (line 17)
    """

    kept: int = 0
    left_out: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FAULTS, 0))
    """How many, by fault; a pair with several counts for one."""
    examples: dict[str, list[int]] = field(default_factory=dict)
    """The first line numbers of each fault, from 1."""
    what: str = "pairs"

    @property
    def read(self) -> int:
        return self.kept + sum(self.left_out.values())

    def add(self, fault: str, line: int | None = None) -> None:
        self.left_out[fault] = self.left_out.get(fault, 0) + 1
        shown = self.examples.setdefault(fault, [])
        if line is not None and len(shown) < EXAMPLES:
            shown.append(line)

    def __str__(self) -> str:
        faults = [f"{count:,} {fault}{self._where(fault)}" for fault, count in self.left_out.items() if count]
        return f"{self.kept:,} {self.what} kept; left out: {', '.join(faults) or 'none'}"

    def _where(self, fault: str) -> str:
        shown = self.examples.get(fault)
        if not shown:
            return ""
        more = ", …" if self.left_out[fault] > len(shown) else ""
        return f" (line{'s' * (len(shown) > 1 or bool(more))} {', '.join(f'{n:,}' for n in shown)}{more})"


def read_pairs(
    paths: str | Path | Sequence[str | Path],
    report: Report | None = None,
    *,
    longest: int = LONGEST,
    badly_encoded: float = 1.0,
) -> Iterator[tuple[str, str]]:
    """The pairs of a parallel text, one at a time.

    Args:
        paths: two files with a sentence a line, or one with `source TAB target` lines; plain or gzip (told by their
            first bytes), UTF-8, with or without byte order mark, carriage returns and a last newline.
        report: counts what is kept and what is left out.
        longest: characters of a sentence; pairs with a longer one are left out.
        badly_encoded: share of pairs that may be left out because they are not UTF-8.

    Yields:
        Source and target without white space at the ends, and otherwise as they stand.

    Raises:
        ValueError: for files of different numbers of lines, a file in UTF-16, damaged gzip, a TSV file without a
            single good line, a text of which nothing is kept, and (after the last pair) for more than the share of
            badly encoded pairs, with the encoding that the file is likely to have.
    """
    files = [Path(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]
    if not 1 <= len(files) <= 2:
        raise ValueError(f"parallel: paths ({len(files)}) must be one TSV file or two files of lines.")
    if longest < 1:
        raise ValueError(f"parallel: longest ({longest}) must be at least 1, the characters of a sentence.")
    report = Report() if report is None else report
    return _pairs(files, report, longest, badly_encoded)


def _pairs(files: list[Path], report: Report, longest: int, badly_encoded: float) -> Iterator[tuple[str, str]]:
    lines = Lines(files, badly_encoded, "parallel")
    bound = (longest + 2) * 4 * (2 if len(files) == 1 else 1)  # bytes: four a character; with tab and line end
    with ExitStack() as stack:
        rows = (_tsv if len(files) == 1 else _two)([_lines(path, bound, stack) for path in files], files)
        for number, pair in enumerate(rows, 1):
            found = _judged(pair, longest)
            lines.add(found == "badly encoded")
            if isinstance(found, str):
                report.add(found, number)
            else:
                report.kept += 1
                yield found
    lines.refuse()
    names = " and ".join(map(str, files))
    if len(files) == 1 and 0 < report.read == report.left_out["without exactly one tab"]:
        raise ValueError(
            f"parallel: lines ({report.read:,}) of {names} must have exactly one tab, between source and target; got "
            "none that has. `cut -f1,2` keeps two columns; for two files of lines give both."
        )
    if not report.kept:
        raise ValueError(f"parallel: {names} must hold at least one pair; got {report}.")


Line = bytes | None
"""None for one that is longer than is looked at."""


def _two(sides: list[Iterator[Line]], files: list[Path]) -> Iterator[tuple[Line, Line]]:
    """Lines of two files side by side; refused at the end if one has more of them."""
    counts = [0, 0]
    for source, target in zip_longest(*(((line,) for line in side) for side in sides)):
        counts = [counts[0] + (source is not None), counts[1] + (target is not None)]
        if source is not None and target is not None:
            yield source[0], target[0]
    if counts[0] != counts[1]:
        raise ValueError(
            f"parallel: {files[0]} ({counts[0]:,} lines) must have as many lines as {files[1]}; got {counts[1]:,}. "
            "From the first line that lacks its partner on, every pair would be a wrong one."
        )


def _tsv(sides: list[Iterator[Line]], files: list[Path]) -> Iterator[tuple[Line, ...]]:
    for line in sides[0]:
        yield (None, None) if line is None else tuple(line.split(b"\t"))


def _judged(pair: tuple[Line, ...], longest: int) -> tuple[str, str] | Fault:
    """The sentences, or why there are none."""
    if len(pair) != 2:
        return "without exactly one tab"
    if None in pair:
        return "too long"
    try:
        source, target = (line.decode("utf-8").strip() for line in pair if line is not None)
    except UnicodeDecodeError:
        return "badly encoded"
    if "\0" in source + target:  # UTF-16
        return "badly encoded"
    if max(len(source), len(target)) > longest:
        return "too long"
    return (source, target) if source and target else "empty"


def _lines(path: Path, bound: int, stack: ExitStack) -> Iterator[Line]:
    """The lines of a file without their ends; never more than `bound` bytes of one are held."""
    file = stack.enter_context(opened(path, "parallel"))
    while line := file.readline(bound):
        if whole := line.endswith(b"\n") or len(line) < bound:
            yield line.rstrip(b"\r\n")
        while not whole:  # the rest of a line that is too long
            rest = file.readline(bound)
            if whole := not rest or rest.endswith(b"\n"):
                yield None
