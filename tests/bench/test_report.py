"""The contents of the table and of the CSV file."""

import csv
from pathlib import Path

import pytest
from rich.console import Console

from bench.harness import Figure, Result, measure_figure, meets
from bench.report import append, count_bars, count_goals, environment, reasons, report, table


def result(median: float = 2.0, bar: str | None = None) -> Result:
    return Result(
        "toy", "(2, 3)", "float32", "us", "them", "peer/ours", median, 1.5, 2.5, bar, meets(median, bar), rounds=5
    )


def test_csv_contains_the_results_and_the_machine(tmp_path: Path) -> None:
    console = Console(file=(tmp_path / "screen").open("w"), width=180)
    path = report([result(bar=">= 1.4"), result(1.0, ">= 1.4")], "toy", tmp_path / "new", console)
    report([result(3.0)], "toy", tmp_path / "new", console)
    assert path == tmp_path / "new" / "toy.csv"
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["median"], row["bar"], row["met"]) for row in rows] == [
        ("2", ">= 1.4", "yes"),
        ("1", ">= 1.4", "no"),
        ("3", "", ""),
    ]
    machine = environment()
    for key in ("threads", "cpu", "torch", "python", "regard"):
        assert rows[0][key] == machine[key] != ""
    assert rows[0]["date"].startswith(machine["date"][:10])
    assert (rows[0]["benchmark"], rows[0]["dtype"], rows[0]["low"]) == ("toy", "float32", "1.5")


def test_csv_keeps_old_columns_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / "toy.csv"
    append(path, [])
    assert not path.exists()
    append(path, [{"old": "1", "both": "a,\nb"}])
    append(path, [{"both": "2", "new": "3"}])
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows == [{"old": "1", "both": "a,\nb", "new": ""}, {"old": "", "both": "2", "new": "3"}]
    assert list(tmp_path.iterdir()) == [path]


def test_csv_survives_a_failed_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "toy.csv"
    append(path, [{"a": "1"}])
    before = path.read_text()
    monkeypatch.setattr(csv.DictWriter, "writerows", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        append(path, [{"a": "2"}])
    assert path.read_text() == before
    assert list(tmp_path.iterdir()) == [path]


def test_table_shows_contenders_quantity_bar_and_verdict() -> None:
    figure = measure_figure(Figure("memory", "(5, [x])", lambda: 130.0, "MiB", "<= 128"))
    console = Console(width=180)
    with console.capture() as captured:
        console.print(table([result(bar=">= 1.4"), figure], "a title"))
    lines = captured.get().splitlines()
    (ratio,) = (line.split() for line in lines if "toy" in line)
    (memory,) = (line.split() for line in lines if "memory" in line)
    assert ratio == ["toy", "(2,", "3)", "float32", "them/us", "2", "1.5–2.5", ">=", "1.4", "yes"]
    assert memory == ["memory", "(5,", "[x])", "float32", "MiB", "130", "<=", "128", "NO"]


def test_goals_have_their_own_column_counts_and_reasons() -> None:
    goals = [
        measure_figure(Figure("memory", "()", lambda: 130.0, "MiB", "<= 200", goal=goal, reason=reason))
        for goal, reason in (("<= 128", "too large"), ("<= 100", "too large"), ("<= 150", "was hard"))
    ]
    results = [*goals, result(1.0, bar=">= 1.4")]
    assert (count_bars(results), count_goals(results), reasons(results)) == ((3, 4), (1, 3), ["too large"])
    console = Console(width=180)
    with console.capture() as captured:
        console.print(table(results, "a title"))
    lines = [line.split() for line in captured.get().splitlines()]
    assert [line[4:] for line in lines if line[:1] == ["memory"]] == [
        ["130", "<=", "200", "yes", "<=", "128"],
        ["130", "<=", "200", "yes", "<=", "100"],
        ["130", "<=", "200", "yes", "<=", "150", "✓"],
    ]
