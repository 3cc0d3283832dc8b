"""Parallel text: sentences and their translations, line by line, in two files or in one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Literal, get_args

from .encodings import Lines
from .open_text import open_text

Fault = Literal["empty", "too long", "badly encoded", "without exactly one tab"]
FAULTS: tuple[Fault, ...] = get_args(Fault)
LONGEST = 2000
"""Maximum characters of a line. Longer ones are tables and pages, not sentences."""
EXAMPLES = 3
COLUMNS = frozenset("source target src tgt trg input output text translation sentence reference".split())  # noqa: SIM905 shorter than a list
"""Usual names of columns in the first line of a TSV file of pairs, in lower case."""
LANGUAGES = tuple(
    "ar bg cs da de el en es et fi fr he hi hu id it ja ko lt lv nl pl pt ro ru sk sl sv th tr uk vi zh".split()  # noqa: SIM905 shorter than a list
)
"""Codes of languages that are recognized in that line by code, English name or own name."""


@dataclass
class Report:
    """Counts of kept and dropped lines of a text.

    >>> report = Report(kept=29_000)
    >>> report.add("empty", 17)
    >>> print(report)
    29,000 pairs kept; left out: 1 empty (line 17)
    >>> report.read
    29001
    """

    kept: int = 0
    left_out: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FAULTS, 0))
    """Number of dropped lines by fault. A pair with several faults counts once."""
    examples: dict[str, list[int]] = field(default_factory=dict)
    """First line numbers of each fault, from 1."""
    what: str = "pairs"

    @property
    def read(self) -> int:
        """Number of lines that were read."""
        return self.kept + sum(self.left_out.values())

    def add(self, fault: str, line: int | None = None) -> None:
        """Count a dropped line."""
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
    header: bool | None = None,
) -> Iterator[tuple[str, str]]:
    """Iterate over the pairs of a parallel text.

    Args:
        paths: two files with one sentence per line, or one with `source TAB target` lines. Files are plain or gzip
            (detected by their first bytes), UTF-8, with or without byte order mark, carriage returns and final newline.
        report: counts the pairs that are kept and dropped.
        longest: maximum characters of a sentence. Pairs with a longer one are dropped.
        badly_encoded: share of pairs that may be dropped because they are not UTF-8.
        header: whether the first line of a TSV file names its columns; None detects names such as source and target,
            and two languages (de, German or Deutsch). The report shows the names.

    Yields:
        Source and target without surrounding white space, otherwise unchanged.

    Raises:
        ValueError: for files with different numbers of lines, UTF-16, damaged gzip, a TSV file without a valid line,
            a text without valid pairs, and (after the last pair) if too many pairs are badly encoded. The message then
            has the likely encoding of the file.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "pairs.tsv"
    >>> _ = path.write_text("hello\\tbonjour\\nno tab\\n")
    >>> report = Report()
    >>> list(read_pairs(path, report)), report.read, str(report)
    ([('hello', 'bonjour')], 2, '1 pairs kept; left out: 1 without exactly one tab (line 2)')
    """
    files = [Path(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]
    if not 1 <= len(files) <= 2:
        raise ValueError(f"parallel: paths ({len(files)}) must be one TSV file or two files of lines.")
    if longest < 1:
        raise ValueError(f"parallel: longest ({longest}) must be at least 1, the characters of a sentence.")
    report = Report() if report is None else report
    return _pairs(files, report, longest, badly_encoded, header)


def _pairs(
    files: list[Path], report: Report, longest: int, badly_encoded: float, header: bool | None
) -> Iterator[tuple[str, str]]:
    lines = Lines(files, badly_encoded, "parallel")
    bound = (longest + 2) * 4 * (2 if len(files) == 1 else 1)  # bytes: four per character, with tab and line end
    with ExitStack() as stack:
        rows = (_tsv if len(files) == 1 else _paired_lines)([_lines(path, bound, stack) for path in files], files)
        for number, pair in enumerate(rows, 1):
            result = _sentences(pair, longest)
            if number == 1 and len(files) == 1 and not isinstance(result, str) and _is_header(result, header):
                report.add(f"header {result[0]!r}, {result[1]!r}", 1)
                continue
            lines.add(result == "badly encoded")
            if isinstance(result, str):
                report.add(result, number)
            else:
                report.kept += 1
                yield result
    lines.refuse()
    names = " and ".join(map(str, files))
    if len(files) == 1 and 0 < report.read == report.left_out["without exactly one tab"]:
        remedy = "`cut -f1,2` keeps two columns; for two files of lines pass both."
        if ".csv" in files[0].suffixes:
            remedy = "CSV is not a format of pairs: save the table as TSV, or pass two files of lines."
        raise ValueError(
            f"parallel: lines ({report.read:,}) of {names} must have exactly one tab, between source and target; got "
            f"none that has. {remedy}"
        )
    if not report.kept:
        raise ValueError(f"parallel: {names} must hold at least one pair; got {report}.")


def _is_header(pair: tuple[str, str], header: bool | None) -> bool:
    """Return whether the first line of a TSV file names its columns: by known names or by two different languages.

    >>> [_is_header(pair, None) for pair in (("source", "target"), ("de", "en"), ("German", "English"))]
    [True, True, True]
    >>> [_is_header(pair, None) for pair in (("no", "nein"), ("German", "Deutsch"), ("English", "Hallo"))]
    [False, False, False]
    """
    if header is not None:
        return header
    names = [name.lower().strip("#").strip() for name in pair]
    columns = [name if name in COLUMNS else _language(name) for name in names]
    return None not in columns and columns[0] != columns[1]


def _language(name: str) -> str | None:
    """Return the code of the language with this code, English name or own name in lower case; None if unknown.

    >>> _language("en"), _language("german"), _language("deutsch"), _language("no")
    ('en', 'de', 'de', None)
    """
    return name if name in LANGUAGES else _codes_by_name().get(name)


@cache
def _codes_by_name() -> dict[str, str]:
    from babel import Locale

    codes = {name.lower(): code for code, name in Locale("en").languages.items() if len(code) == 2}
    return codes | {Locale(code).languages[code].lower(): code for code in LANGUAGES}


Line = bytes | None
"""None for a line that exceeds the bound."""


def _paired_lines(sides: list[Iterator[Line]], files: list[Path]) -> Iterator[tuple[Line, Line]]:
    """Yield the lines of two files in pairs. Raise ValueError at the end if one file has more lines."""
    counts = [0, 0]
    for source, target in zip_longest(*(((line,) for line in side) for side in sides)):
        counts = [counts[0] + (source is not None), counts[1] + (target is not None)]
        if source is not None and target is not None:
            yield source[0], target[0]
    if counts[0] != counts[1]:
        raise ValueError(
            f"parallel: {files[0]} ({counts[0]:,} lines) must have as many lines as {files[1]}; got {counts[1]:,}. "
            "All pairs after the first missing line would be mismatched: add it, or give files of the same text."
        )


def _tsv(sides: list[Iterator[Line]], files: list[Path]) -> Iterator[tuple[Line, ...]]:
    for line in sides[0]:
        yield (None, None) if line is None else tuple(line.split(b"\t"))


def _sentences(pair: tuple[Line, ...], longest: int) -> tuple[str, str] | Fault:
    """Return the two sentences, or the reason to drop them."""
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
    """Yield the lines of a file without line ends. At most `bound` bytes of a line are in memory."""
    file = stack.enter_context(open_text(path, "parallel"))
    while line := file.readline(bound):
        if complete := line.endswith(b"\n") or len(line) < bound:
            yield line.rstrip(b"\r\n")
        while not complete:  # the rest of a line that is too long
            rest = file.readline(bound)
            if complete := not rest or rest.endswith(b"\n"):
                yield None
