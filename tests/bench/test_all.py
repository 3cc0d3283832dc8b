"""`python -m bench all` runs every benchmark, even if others fail, and the summary shows how each ended."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

import bench
from bench import _all
from bench.__main__ import main

FAKE = '''"""A fake."""
from bench.harness import Figure
from bench._skips import skip

def figures(options):
    yield Figure("first", "()", lambda: float(options.rounds), "MiB", "<= 8", goal="<= 1", reason="it is a fake")
    END
'''


class Fakes:
    """Starts no process: returns the status of each fake benchmark, and writes its summary if it has one."""

    def __init__(self, **fakes: tuple[int, dict[str, object] | None]) -> None:
        self.fakes = fakes
        self.commands: list[list[str]] = []

    def start(self, arguments: list[str]) -> int:
        self.commands.append(arguments)
        status, summary = self.fakes[arguments[0]]
        if summary is not None:
            Path(arguments[-1]).write_text(json.dumps(summary))
        return status

    def run(self, options: Sequence[str] = (), bars: bool = True) -> int:
        ticks = iter(range(0, 10_000, 65))  # a clock that advances by 65 s at each reading
        return _all.run_all(list(self.fakes), options, bars, self.start, lambda: float(next(ticks)))


def counts(bars: tuple[int, int] = (0, 0), goals: tuple[int, int] = (0, 0), *skipped: str) -> dict[str, object]:
    return {"bars": bars, "goals": goals, "skipped": skipped}


def lines(text: str) -> dict[str, list[str]]:
    """Return the words of each line after the first, by the first."""
    return {words[0]: words[1:] for words in map(str.split, text.splitlines()) if words}


def test_every_benchmark_runs_and_the_summary_has_one_line_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    fakes = Fakes(
        good=(0, counts((3, 3), (1, 2))),
        slow=(1, counts((1, 2))),
        absent=(3, counts((0, 0), (0, 0), "absent: x is skipped: why")),
        crashed=(1, None),
        killed=(-11, None),
        differs=(2, counts()),
        last=(0, counts((1, 1))),
    )
    assert fakes.run(["--out", "here"]) == 1
    assert [command[:3] for command in fakes.commands] == [[name, "--out", "here"] for name in fakes.fakes]
    text = capsys.readouterr().out
    table = lines(text)
    assert table["good"] == ["3", "of", "3", "1", "of", "2", "1:05", "min", "done"]
    assert table["slow"] == ["1", "of", "2", "1:05", "min", "BAR", "MISSED"]
    assert table["absent"] == ["1", "1:05", "min", "skipped"]
    assert table["crashed"][-2:] == ["FAILED", "(1)"]
    assert table["killed"][-2:] == ["FAILED", "(-11)"]
    assert table["differs"][-2:] == ["FAILED", "(2)"]
    assert table["last"][-1] == "done"
    assert "absent: x is skipped: why" in text.splitlines()


def test_only_a_missed_bar_or_a_crash_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert Fakes(goal=(0, counts((1, 1), (0, 5))), absent=(3, counts())).run() == 0
    assert Fakes(slow=(1, counts((0, 1)))).run() == 1
    assert Fakes(slow=(1, counts((0, 1)))).run(bars=False) == 0
    assert Fakes(crashed=(1, None)).run(bars=False) == 1


def test_an_interruption_ends_the_run_with_the_summary_so_far(capsys: pytest.CaptureFixture[str]) -> None:
    fakes = Fakes(first=(0, counts()), stopped=(130, counts()), never=(0, counts()))
    assert fakes.run() == 130
    assert [command[0] for command in fakes.commands] == ["first", "stopped"]
    assert lines(capsys.readouterr().out)["stopped"][-1] == "interrupted"


@pytest.mark.parametrize(
    ("arguments", "passed"),
    [
        ([], ["--out", "out/bench", "--rounds", "5"]),
        (["--quick", "--out", "x"], ["--out", "x", "--quick"]),
        (
            ["--rounds", "2", "--threads", "1", "--write"],
            ["--out", "out/bench", "--rounds", "2", "--threads", "1", "--write"],
        ),
    ],
)
def test_options_are_passed_on(arguments: list[str], passed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(_all, "run_all", lambda names, options, bars: calls.append((options, bars)) or 7)
    assert main(["all", *arguments]) == 7
    assert main(["all", *arguments, "--no-bars"]) == 7
    assert calls == [(passed, True), (passed, False)]


@pytest.mark.slow
def test_processes_that_crash_do_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Real processes, which find the fake benchmarks because a start-up file adds their folder to the package."""
    fakes = {"aborts": "import os; os._exit(9)", "raises": "raise OSError('disk')", "works": "skip('works', 'peer')"}
    for name, end in fakes.items():
        (tmp_path / f"{name}.py").write_text(FAKE.replace("END", end))
    (tmp_path / "sitecustomize.py").write_text(f"import bench\nbench.__path__.append({str(tmp_path)!r})\n")
    root = Path(bench.__file__).parent.parent
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(root)]))
    out = tmp_path / "out"
    assert _all.run_all(sorted(fakes), ["--quick", "--out", str(out)]) == 1
    text = capfd.readouterr().out
    table = lines(text)
    assert table["aborts"][-2:] == ["FAILED", "(9)"]
    assert table["raises"][-2:] == ["FAILED", "(1)"]
    assert table["works"][:7] == ["1", "of", "1", "0", "of", "1", "1"] and table["works"][-1] == "done"
    assert "works: peer is skipped: it is not installed" in text
    assert sorted(path.name for path in out.iterdir()) == ["raises.csv", "works.csv"]
