"""The table of `auto`: from results to lines, kept line by line."""

from pathlib import Path

import pytest

from bench import auto
from bench.harness import Options, Result, measure
from regard.attention import measured


def result(ours: str, peer: str, ratio: float, case: str = "forward", shape: str = "(2, 4, 8, 16, 32)") -> Result:
    return Result(case, shape, "float32", ours, peer, "peer/ours", ratio, ratio, ratio, None, None, 3)


def test_ratios_of_times_become_parts_of_the_best_speed() -> None:
    (line,) = auto._lines([result("torch", "native", 0.5), result("torch", "reference", 4.0)])
    assert line == measured.Line(
        "float32", False, False, (8, 8, 16, 32), (("torch", 0.5), ("native", 1.0), ("reference", 0.125))
    )
    (line,) = auto._lines([result("torch", "native", 2.0, "forward + backward causal")])
    assert (line.causal, line.gradient, line.order) == (True, True, ("torch", "native"))


def test_lines_are_kept_unless_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "TABLE", tmp_path / "choices.csv")
    auto.TABLE.write_text(measured.write([], "nowhere"))
    write = Options(write=True)
    auto.conclude([result("torch", "native", 0.5), result("torch", "native", 0.5, "forward causal")], write)
    said = auto.conclude([result("torch", "native", 2.0)], write)
    lines = measured.parse(auto.TABLE.read_text())
    assert [(line.causal, line.order[0]) for line in lines] == [(False, "torch"), (True, "native")]
    assert "1 lines measured, 1 kept" in said


def test_the_conclusion_names_the_worst_call_with_a_bar() -> None:
    found = [result("auto", "SDPA", 0.99), result("auto", "native", 0.98, "forward causal")]
    barred = [Result(**{**vars(r), "bar": ">= 0.97", "met": True}) for r in found]
    said = auto.conclude([*barred, result("auto", "SDPA", 0.1)], Options())
    assert said.startswith("2 calls with a bar; the worst is 0.98 of native, forward causal (2, 4, 8, 16, 32) float32;")


def test_the_grid_is_large_enough() -> None:
    barred = sum(4 if s[2] == s[3] else 2 for s in auto.SQUARE + auto.CROSS + auto.BETWEEN)
    assert barred >= 60 and len({*auto.SQUARE, *auto.CROSS, *auto.BETWEEN, *auto.TINY}) >= 30
    assert not {*auto.BETWEEN} & {*auto.SQUARE, *auto.CROSS, *auto.TINY}


@pytest.mark.parametrize("write", [False, True])
def test_the_contenders_agree(write: bool) -> None:
    for case in auto.cases(Options(quick=True, write=write)):
        assert measure(case, rounds=1, seconds=1e-5)
