"""The command line of the benchmarks, on small synthetic ones."""

import csv
import functools
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import bench
from bench.__main__ import HELPERS, benchmark_names, main
from bench.harness import measure

TOY = '''"""A toy: three cases and a figure.

More text."""
import bench
from bench.harness import Case, Figure, Versus

def work(name):
    bench.now += 10.0 if name == "slow" else 1.0

def cases(options):
    for name in ("first", "second"):
        contenders = {"fast": lambda: work("fast"), "slow": lambda: work("slow")}
        yield Case(name, f"({options.rounds}, {options.threads})", contenders, [Versus("fast", "slow", BAR)])
    STOP()

def figures(options):
    yield Figure("third", "quick" if options.quick else "whole", lambda: 7.0, "MiB", "<= 8")
'''
PARITY = '''"""Contenders that disagree, after some that do not."""
from bench.harness import Case, Versus
from bench.parity import Parity

def cases(options):
    for wrong in (0.0, 0.5):
        contenders = {"a": lambda wrong=wrong: 1.0 + wrong, "b": lambda: 1.0}
        yield Case(f"off by {wrong}", "()", contenders, [Versus("a", "b")], Parity("b"))
'''


def clock() -> float:
    """Return the seconds of a fake clock. Work of the toy advances it, and each reading by a millisecond."""
    bench.now += 1e-3  # type: ignore[attr-defined]
    return float(bench.now)  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Add a second folder to the bench package, and unload its modules afterwards."""
    modules = tmp_path / "modules"
    modules.mkdir()
    monkeypatch.setattr(bench, "__path__", [*bench.__path__, str(modules)])
    monkeypatch.setattr(bench, "now", 0.0, raising=False)
    monkeypatch.setattr("bench.__main__.measure", functools.partial(measure, clock=clock))
    yield modules
    for name in ("toy", "other", "empty"):
        sys.modules.pop(f"bench.{name}", None)


def write(folder: Path, name: str, text: str, bar: str | None = None, stop: str = "pass") -> None:
    (folder / f"{name}.py").write_text(text.replace("BAR", repr(bar)).replace("STOP()", stop))


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_discovery_finds_every_module_except_helpers(folder: Path) -> None:
    write(folder, "toy", TOY)
    write(folder, "_private", TOY)
    assert {"attention", "maps", "toy"} <= set(benchmark_names())
    assert not {*HELPERS, "_private"} & set(benchmark_names())


def test_list_describes_without_importing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder, "toy", TOY)
    write(folder, "other", '"""Needs a missing package."""\nimport missing_package')
    assert main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "toy          A toy: three cases and a figure." in lines
    assert "other        Needs a missing package." in lines


def test_help_names_the_options_and_the_benchmarks(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    for word in (
        "NAME",
        "--rounds",
        "--threads",
        "--out",
        "--quick",
        "--list",
        "--no-bars",
        "--summary",
        "--write",
        "attention, auto",
    ):
        assert word in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["atention"], "bench: NAME (atention) must be all or one of attention, maps; got atention. Try --list."),
        (["harness"], "bench: NAME (harness) must be all or one of attention, maps; got harness."),
        ([], "NAME must be given; all, or one of attention, maps"),
        (["all", "--only", "x"], "--only selects cases of one benchmark; it must not be used with all"),
        (["maps", "--rounds", "0"], "bench: number (0) must be a positive integer; got 0."),
        (["maps", "--threads", "two"], "bench: number (two) must be a positive integer; got two."),
    ],
)
def test_wrong_command_lines(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.__main__.benchmark_names", lambda: ["attention", "maps"])
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_run_prints_a_table_and_writes_rows(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder, "toy", TOY, ">= 2")
    before = torch.get_num_threads()
    assert main(["toy", "--rounds", "4", "--threads", "1", "--out", str(tmp_path / "deep" / "out")]) == 0
    assert torch.get_num_threads() == before
    written = rows(tmp_path / "deep" / "out" / "toy.csv")
    assert [(row["case"], row["shape"], row["met"]) for row in written] == [
        ("first", "(4, 1)", "yes"),
        ("second", "(4, 1)", "yes"),
        ("third", "whole", "yes"),
    ]
    assert {row["threads"] for row in written} == {"1"}
    assert float(written[0]["median"]) == pytest.approx(10.001 / 1.001, rel=1e-3)  # work plus one clock reading
    text = capsys.readouterr().out
    assert "slow/fast" in text
    assert "bars met: 3 of 3" in text
    assert f"rows: {tmp_path / 'deep' / 'out' / 'toy.csv'}" in text


def test_a_benchmark_may_print_a_summary(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conclude = '\n\ndef conclude(results, options):\n    return f"{len(results)} results, write {options.write}"\n'
    write(folder, "toy", TOY + conclude)
    assert main(["toy", "--quick", "--write", "--out", str(tmp_path)]) == 0
    assert "3 results, write True" in capsys.readouterr().out
    write(folder, "other", TOY + conclude, stop="raise KeyboardInterrupt")
    assert main(["other", "--quick", "--out", str(tmp_path)]) == 130
    assert "results, write" not in capsys.readouterr().out


def test_quick_runs_few_rounds_and_only_selects(folder: Path, tmp_path: Path) -> None:
    write(folder, "toy", TOY)
    assert main(["toy", "--quick", "--only", "ir", "--out", str(tmp_path)]) == 0
    selected = [(row["case"], row["shape"], row["rounds"]) for row in rows(tmp_path / "toy.csv")]
    assert selected == [("first", "(3, None)", "3"), ("third", "quick", "1")]


def test_a_missed_bar_is_exit_status_one_unless_ignored(folder: Path, tmp_path: Path) -> None:
    write(folder, "toy", TOY, ">= 1000")
    assert main(["toy", "--quick", "--out", str(tmp_path)]) == 1
    assert main(["toy", "--quick", "--out", str(tmp_path), "--no-bars"]) == 0
    assert [row["met"] for row in rows(tmp_path / "toy.csv")] == ["no", "no", "yes"] * 2


def test_a_goal_that_is_not_reached_changes_neither_status_nor_bars(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    goal = '[Versus("fast", "slow", ">= 2", goal=">= 1000", reason="it is only a toy")]'
    write(folder, "toy", TOY.replace('[Versus("fast", "slow", BAR)]', goal))
    assert main(["toy", "--quick", "--out", str(tmp_path), "--summary", str(tmp_path / "summary.json")]) == 0
    assert [(row["goal"], row["reached"]) for row in rows(tmp_path / "toy.csv")] == [(">= 1000", "no")] * 2 + [("", "")]
    text = capsys.readouterr().out
    assert text.count("goal, not a bar: it is only a toy") == 1
    assert "bars met: 3 of 3" in text and "goals reached: 0 of 2" in text
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary == {"bars": [3, 3], "goals": [0, 2], "skipped": []}


def test_missing_data_is_exit_status_three_and_in_the_summary(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = '"""A toy."""\nfrom bench._skips import Missing, skip\n\ndef cases(options):\n'
    write(folder, "toy", start + '    raise Missing("no such data")\n')
    write(folder, "other", start + '    skip("other", "peer")\n    return ()\n')
    for name, message in (("toy", "no such data"), ("other", "other: peer is skipped: it is not installed")):
        assert main([name, "--out", str(tmp_path), "--summary", str(tmp_path / name)]) == 3
        assert message in capsys.readouterr().err
        assert json.loads((tmp_path / name).read_text()) == {"bars": [0, 0], "goals": [0, 0], "skipped": [message]}


def test_an_error_keeps_results(folder: Path, tmp_path: Path) -> None:
    write(folder, "toy", TOY, stop='raise OSError("disk")')
    with pytest.raises(OSError, match="disk"):
        main(["toy", "--quick", "--out", str(tmp_path)])
    assert [row["case"] for row in rows(tmp_path / "toy.csv")] == ["first", "second"]


def test_interruption_keeps_results(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder, "toy", TOY, stop="raise KeyboardInterrupt")
    assert main(["toy", "--quick", "--out", str(tmp_path)]) == 130
    assert [row["case"] for row in rows(tmp_path / "toy.csv")] == ["first", "second"]
    captured = capsys.readouterr()
    assert "interrupted" in captured.err
    assert re.search(r"second .*slow/fast", captured.out)


def test_disagreement_stops_the_run_and_keeps_results(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, "other", PARITY)
    assert main(["other", "--quick", "--out", str(tmp_path)]) == 2
    assert [row["case"] for row in rows(tmp_path / "other.csv")] == ["off by 0.0"]
    assert "off by 0.5 (): output 0 of a (1.5 at flat index 0) must equal that of b" in capsys.readouterr().err


def test_an_empty_selection_is_reported(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder, "toy", TOY)
    write(folder, "empty", '"""Nothing."""')
    assert main(["toy", "--only", "zebra", "--out", str(tmp_path)]) == 2
    assert "no case of toy matches --only 'zebra'" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"bench: benchmark \(empty\) must define cases\(options\) or figures"):
        main(["empty", "--out", str(tmp_path)])
    assert not list(tmp_path.glob("*.csv"))
