"""Parallel text: valid pairs are returned, and the others are counted."""

import gzip
import re
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data import Report, read_pairs


def write(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def two(folder: Path, source: bytes, target: bytes) -> list[Path]:
    return [write(folder, "a.de", source), write(folder, "a.en", target)]


sentence = st.text(st.characters(exclude_characters="\n\t\0", codec="utf-8"), max_size=20)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(sentence, sentence), min_size=1, max_size=9),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_both_layouts_give_the_pairs(
    tmp_path_factory: pytest.TempPathFactory,
    pairs: list[tuple[str, str]],
    one_file: bool,
    packed: bool,
    mark: bool,
    carriage: bool,
    last: bool,
) -> None:
    folder = tmp_path_factory.mktemp("parallel")
    expected = [(a.strip(), b.strip()) for a, b in pairs if a.strip() and b.strip()]
    columns = [["\t".join(pair) for pair in pairs]] if one_file else [[pair[side] for pair in pairs] for side in (0, 1)]
    end = "\r\n" if carriage else "\n"
    paths = []
    for number, lines in enumerate(columns):
        # where a last line is empty, its newline is all there is of it
        content = ("\ufeff" * mark + end.join([*lines, ""] if last or not lines[-1] else lines)).encode()
        paths.append(write(folder, f"{number}.gz", gzip.compress(content) if packed else content))
    report = Report()
    try:
        result = list(read_pairs(paths[0] if one_file else paths, report))
    except ValueError as error:
        assert not expected and "must hold at least one pair" in str(error)
        return
    assert result == expected
    assert report.kept == len(expected) and report.left_out["empty"] == len(pairs) - len(expected)


def test_what_is_left_out_is_counted_with_its_lines(tmp_path: Path) -> None:
    source = b"eins\n\nzwei\nd\xfcnn\n" + b"x" * 51 + b"\nvier\n" + b"y" * 100_000 + b"\nf\xc3\xbcnf\n  \n"
    target = b"one\nempty\ntwo\nthin\nlong\n" + b"z" * 51 + b"\nlonger\nfive\nempty\n"
    report = Report()
    assert list(read_pairs(two(tmp_path, source, target), report, longest=50)) == [
        ("eins", "one"),
        ("zwei", "two"),
        ("fünf", "five"),
    ]
    assert str(report) == (
        "3 pairs kept; left out: 2 empty (lines 2, 9), 3 too long (lines 5, 6, 7), 1 badly encoded (line 4)"
    )
    assert report.read == 9


def test_only_the_first_lines_are_named(tmp_path: Path) -> None:
    report = Report()
    list(read_pairs(two(tmp_path, b"\n" * 7 + b"a\n", b"b\n" * 8), report))
    assert str(report) == "1 pairs kept; left out: 7 empty (lines 1, 2, 3, …)"


def test_a_line_of_the_longest_length_is_kept_with_any_bytes(tmp_path: Path) -> None:
    text = "\U0001f600" * 50
    pairs = list(read_pairs(write(tmp_path, "a.tsv", f"{text}\t{text}\r\n".encode()), longest=50))
    assert pairs == [(text, text)]


def test_a_separator_that_is_no_newline_ends_no_line(tmp_path: Path) -> None:
    paths = two(tmp_path, "a\u2028b\x0cc\x85d\re\n".encode(), b"f\n")
    assert list(read_pairs(paths)) == [("a\u2028b\x0cc\x85d\re", "f")]


def test_a_tsv_line_needs_one_tab(tmp_path: Path) -> None:
    report = Report()
    assert list(read_pairs(write(tmp_path, "a.tsv", b"a\tb\nc\nd\te\tf\ng\th"), report)) == [("a", "b"), ("g", "h")]
    assert str(report) == "2 pairs kept; left out: 2 without exactly one tab (lines 2, 3)"


def test_long_lines_are_not_read_completely(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "bomb", "wb", 1) as file:
        for _ in range(64):
            file.write(b"x" * (1 << 20))
        file.write(b"\na\n")
    target = write(tmp_path, "target", b"long\nb\n")
    tracemalloc.start()
    try:
        assert list(read_pairs([tmp_path / "bomb", target])) == [("a", "b")]
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_it_streams(tmp_path: Path) -> None:
    paths = two(tmp_path, b"a sentence\n" * 200_000, b"another one\n" * 200_000)
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_pairs(paths)) == 200_000
        assert tracemalloc.get_traced_memory()[1] < 1 << 19
    finally:
        tracemalloc.stop()


def test_error_messages(tmp_path: Path) -> None:
    def refused(message: str, paths: object, **options: int) -> None:
        with pytest.raises(ValueError, match=re.escape(message)):
            list(read_pairs(paths, **options))  # type: ignore[arg-type]

    uneven = two(tmp_path, b"a\nb\nc\n", b"a\n")
    refused(f"parallel: {uneven[0]} (3 lines) must have as many lines as {uneven[1]}; got 1.", uneven)
    refused("(1 lines) must have as many lines", uneven[::-1])
    refused("parallel: paths (3) must be one TSV file or two files", [*uneven, uneven[0]])
    refused("parallel: longest (0) must be at least 1", uneven, longest=0)
    tabless = write(tmp_path, "no.tsv", b"a\nb\n")
    refused(f"parallel: lines (2) of {tabless} must have exactly one tab", tabless)
    refused("must be UTF-8; got UTF-16. Try `iconv", write(tmp_path, "wide", "a\tb".encode("utf-16")))
    plain, table = (write(tmp_path, name, b"a,b\n") for name in ("lines.txt", "pairs.csv"))
    refused("got none that has. `cut -f1,2` keeps two columns; for two files of lines pass both.", plain)
    refused("got none that has. CSV is not a format of pairs: save the table as TSV, or pass two files", table)
    cut = write(tmp_path, "cut.gz", gzip.compress(bytes(range(256)) * 99)[:-200])
    refused(f"parallel: {cut} must be complete gzip; got Compressed file ended", cut)
    refused("must hold at least one pair; got 0 pairs kept; left out: none.", write(tmp_path, "void", b""))
    refused("got 0 pairs kept; left out: 2 empty (lines 1, 2).", two(tmp_path, b"\n\n", b"a\nb\n"))
    with pytest.raises(FileNotFoundError, match="absent"):
        list(read_pairs(tmp_path / "absent"))
    with pytest.raises(ValueError, match=f"parallel: {tmp_path} must be a file; got a folder"):
        list(read_pairs(tmp_path))


@pytest.mark.parametrize(
    ("first", "header", "names"),
    [
        ("source\ttarget", None, True),
        ("#de\tEN", None, True),
        ("no\tyes", None, False),
        ("source\tsource", None, False),
        ("German\tEnglish", None, True),
        ("Deutsch\tFrançais", None, True),
        ("#en\tčeština", None, True),
        ("source\tIcelandic", None, True),
        ("German\tDeutsch", None, False),
        ("English\tHallo", None, False),
        ("English\tDutch", False, False),
        ("hello\tbonjour", True, True),
        ("source\ttarget", False, False),
    ],
)
def test_a_header_is_detected_and_named(tmp_path: Path, first: str, header: bool | None, names: bool) -> None:
    (tmp_path / "a.tsv").write_text(f"{first}\na\tb\n", encoding="utf-8")
    report = Report()
    result = list(read_pairs(tmp_path / "a.tsv", report, header=header))
    assert result == [("a", "b")] if names else len(result) == 2
    shown = ", ".join(map(repr, first.split("\t")))
    assert str(report).endswith(f"left out: 1 header {shown} (line 1)" if names else "left out: none")
