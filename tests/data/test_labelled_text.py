"""Labelled text in all supported formats, and error messages."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from regard.data import Report
from regard.data.labelled_text import Columns, Example, check_labels, labels_of, numbers_of, read_labelled, split


def read(path: Path, contents: str | bytes, **options: Any) -> tuple[list[tuple[str, str, int]], str]:
    path.write_bytes(contents if isinstance(contents, bytes) else contents.encode())
    report = Report(what="texts")
    return [tuple(one) for one in read_labelled(path, report, columns=Columns(**options))], str(report)  # type: ignore[misc]


def test_tabs_without_header_and_without_a_last_line_end(tmp_path: Path) -> None:
    result, message = read(tmp_path / "a.tsv", 'one " quote\tno\r\ntwo\tyes')
    assert result == [('one " quote', "no", 1), ("two", "yes", 2)] and message == "2 texts kept; left out: none"


@pytest.mark.parametrize("header", ["sentence\tlabel", "text\tlabel", "review\tlabel", "Text\tLabel"])
def test_tabs_with_a_header(tmp_path: Path, header: str) -> None:
    result, message = read(tmp_path / "a.tsv", f"{header}\na b\t1\n")
    names = ", ".join(map(repr, header.split("\t")))
    assert result == [("a b", "1", 2)] and message == f"1 texts kept; left out: 1 header {names} (line 1)"


def test_a_header_can_be_set(tmp_path: Path) -> None:
    text = "review\tstars\na b\t1\n"
    assert read(tmp_path / "a.tsv", text)[0] == [("review", "stars", 1), ("a b", "1", 2)]
    assert read(tmp_path / "a.tsv", text, header=True)[0] == [("a b", "1", 2)]
    assert len(read(tmp_path / "a.tsv", "text\tlabel\na b\t1\n", header=False)[0]) == 2


def test_a_header_that_is_read_as_a_text_is_refused(tmp_path: Path) -> None:
    """Otherwise the model would have a third class, of one text."""
    rows = "".join(f"film {n}\t{n % 2}\n" for n in range(9))
    read(tmp_path / "a.tsv", f"review\tstars\n{rows}")
    examples = list(read_labelled(tmp_path / "a.tsv"))
    labels = labels_of(examples)
    with pytest.raises(
        ValueError, match=r"label \(stars\) in line 1 of .*a\.tsv must occur more than once; .* --header"
    ):
        check_labels(examples, labels, tmp_path / "a.tsv", None)
    check_labels(examples, labels, tmp_path / "a.tsv", False)
    check_labels(examples[1:], ["0", "1"], tmp_path / "a.tsv", None)
    with pytest.raises(ValueError, match=r"label \(stars\) in line 1 .* If the line names the columns, add --header"):
        numbers_of(examples, ["0", "1"], tmp_path / "a.tsv")


def test_swapped_columns_with_names_are_refused_with_the_options_that_name_them(tmp_path: Path) -> None:
    read(tmp_path / "a.tsv", "stars\treview\n" + "".join(f"{n % 2}\tfilm {n}\n" for n in range(30)))
    examples = list(read_labelled(tmp_path / "a.tsv"))
    with pytest.raises(ValueError, match=r"labels \(31 different ones\) .* 'review'.*--text-column and --label-"):
        check_labels(examples, labels_of(examples), tmp_path / "a.tsv", None)


def test_texts_in_the_column_of_labels_are_refused(tmp_path: Path) -> None:
    read(tmp_path / "a.tsv", "".join(f"{n % 2}\ta film of {n} minutes, and more\n" for n in range(40)))
    examples = list(read_labelled(tmp_path / "a.tsv"))
    with pytest.raises(
        ValueError, match=r"labels \(40 different ones\) .* 'a film of 0 minutes, and more'.* TAB label"
    ):
        check_labels(examples, labels_of(examples), tmp_path / "a.tsv", None)


def test_columns_by_name(tmp_path: Path) -> None:
    named = {"text": "review", "label": "stars"}
    assert read(tmp_path / "a.tsv", "id\tstars\treview\n7\t5\tgood\n", **named)[0] == [("good", "5", 2)]
    assert read(tmp_path / "a.csv", "id,stars,review\n7,5,good\n", **named)[0] == [("good", "5", 2)]
    assert read(tmp_path / "a.jsonl", '{"stars": 5, "review": "good"}', **named)[0] == [("good", "5", 1)]


@pytest.mark.parametrize("separator", [";", "\t"])
def test_csv_of_a_spreadsheet_with_a_decimal_comma(tmp_path: Path, separator: str) -> None:
    """Excel separates the columns with semicolons in many countries."""
    rows = [["id", "text", "label"], ["1", "a, b", "no"], ["2", f'"one{separator} ""two"""', "yes"]]
    content = "\ufeff" + "".join(separator.join(row) + "\r\n" for row in rows)
    result, message = read(tmp_path / "a.csv", content)
    assert result == [("a, b", "no", 2), (f'one{separator} "two"', "yes", 3)]
    assert message == "2 texts kept; left out: none"
    with pytest.raises(ValueError, match=r"column named text or sentence in its first line; got review, label\. Name"):
        read(tmp_path / "a.csv", separator.join(["review", "label"]) + "\n")


def test_csv_with_quotes_commas_and_line_ends_in_a_text(tmp_path: Path) -> None:
    text = 'text,label,source\n"a ""b"",\nc",1,x\n\nplain,0,y\n,1,z\nshort,1\n'
    result, message = read(tmp_path / "a.csv", text)
    assert result == [('a "b",\nc', "1", 2), ("plain", "0", 5)]
    assert message == "2 texts kept; left out: 1 empty (line 6), 1 not of 3 columns (line 7)"


def test_json_lines(tmp_path: Path) -> None:
    lines = ['{"text": "ü", "label": "a"}', '{"text": "b", "label": 1}', '{"text": "c", "label": true}', ""]
    faults = ["[1]", "{", '{"text": "d", "label": null}', '{"text": 3, "label": "a"}', '{"label": "a"}']
    result, message = read(tmp_path / "a.jsonl", "\n".join([*lines, *faults]))
    assert result == [("ü", "a", 1), ("b", "1", 2), ("c", "true", 3)]
    assert message.endswith("2 empty (lines 8, 9), 2 no JSON object (lines 5, 6), 1 without label (line 7)")


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    result, message = read(tmp_path / "a.tsv", b"fine\tx\n \tx\nbare\nno label\t \nb\xffd\tx\ngood\ty\n")
    assert [one[0] for one in result] == ["fine", "good"]
    for part in ("1 empty (line 2)", "1 without exactly one tab (line 3)", "1 without label (line 4)"):
        assert part in message
    assert "1 badly encoded (line 5)" in message


def test_gzip_and_byte_order_mark(tmp_path: Path) -> None:
    assert read(tmp_path / "a.tsv.gz", gzip.compress("\ufeffa\tx\n".encode()))[0] == [("a", "x", 1)]
    assert read(tmp_path / "a.csv", "\ufefftext,label\na,x\n")[0] == [("a", "x", 2)]


@pytest.mark.parametrize(
    "name,text,message",
    [
        (
            "a.txt",
            b"a\tb",
            r"a.txt must end in .tsv, .csv, .jsonl \(or that and .gz\); got .txt. Rename a file",
        ),
        ("a", b"a\tb", "got no extension"),
        ("a.csv", b"review,label\nx,y\n", "column named text or sentence in its first line; got review, label. Name y"),
        ("a.csv", b"", "must have a column named text or sentence"),
        ("a.csv", b'text,label\n"x,y\n', r"a.csv, line 2, must be CSV; got unexpected end of data. Is a quote open"),
        ("a.tsv", b"", "must hold at least one text with a label; got 0 texts kept"),
        ("a.tsv", b"only text\n", "1 without exactly one tab"),
        ("a.tsv", "a\tb".encode("utf-16"), "must be UTF-8; got UTF-16"),
        ("a.tsv.gz", gzip.compress(b"a\tb\n" * 999, mtime=0)[:-9], "must be complete gzip"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, name: str, text: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(tmp_path / name, text)
    with pytest.raises(FileNotFoundError):
        list(read_labelled(tmp_path / "none.tsv"))


def test_a_column_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"column named stars in its first line; got a, b\. Name yours with --label"):
        read(tmp_path / "a.tsv", "a\tb\n", text="a", label="stars")


def examples(*labels: str) -> list[Example]:
    return [Example(f"text {line}", label, line) for line, label in enumerate(labels, 1)]


def test_labels_are_sorted_and_numbered() -> None:
    some = examples("b", "a", "b")
    assert labels_of(some) == ["a", "b"] and numbers_of(some, ["a", "b"], Path("x")) == [1, 0, 1]
    assert labels_of(examples("2", "10", "-1")) == ["-1", "2", "10"]
    with pytest.raises(ValueError, match=r"labels \(a\) must be at least two different ones; got 1"):
        labels_of(examples("a", "a"))
    with pytest.raises(ValueError, match=r"label \(c\) in line 2 of x.tsv must be one of training: a, b; got an unk"):
        numbers_of(examples("a", "c"), ["a", "b"], Path("x.tsv"))


def test_the_split_is_a_function_of_the_seed_and_never_shares_a_text() -> None:
    some = [Example(f"text {n % 50}", "a", n) for n in range(100)]
    learn, held = split(some, 0.1, seed=1)
    assert (learn, held) == split(some, 0.1, seed=1) != split(some, 0.1, seed=2)
    assert len(held) == 10 and sorted(learn + held, key=lambda one: one.line) == some
    assert not {one.text for one in learn} & {one.text for one in held}
    for share, few in ((0.0, some), (1.0, some), (0.5, some[:1]), (0.99, some[:2])):
        with pytest.raises(ValueError, match=r"hold-out \(.*\) must be a share above 0 and below 1"):
            split(few, share, seed=0)
