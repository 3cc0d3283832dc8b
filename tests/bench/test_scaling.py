"""The scaling benchmark: exact fits, series that end in time, and the chart."""

import math
from pathlib import Path

import pytest

from bench import scaling
from bench.harness import Figure, Options, measure_figure
from bench.scaling import Series, exponent, figures


def test_the_exponent_of_a_power_law_is_exact() -> None:
    assert exponent({n: 3e-9 * n**2 for n in scaling.LENGTHS}) == pytest.approx(2.0)
    assert exponent({n: 5.0 * n for n in scaling.LENGTHS}) == pytest.approx(1.0)
    assert math.isnan(exponent({512: 1.0}))


def test_memory_below_the_floor_is_ignored() -> None:
    mib = scaling.memory.MIB
    assert exponent({n: n * mib / 1e5 for n in scaling.LENGTHS}, scaling.FLOOR) == 0.0
    grown = {n: max(3, n / 1024) * mib for n in scaling.LENGTHS}
    assert exponent(grown, scaling.FLOOR) == pytest.approx(1.0)


def test_a_series_ends_before_a_call_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "seconds", lambda run: 7.0)
    monkeypatch.setattr(scaling, "timed_call", lambda *_: None)
    monkeypatch.setattr(scaling, "LONGEST", 27.0)
    monkeypatch.setattr(Series, "memory", lambda self, length: self.above.setdefault(length, 1.0))
    generator = figures(Options())
    first = [next(generator) for _ in range(2)]
    assert [f.name for f in first] == ["dot forward, time", "dot forward, memory"]
    for figure in first:
        measure_figure(figure)
    assert (fit := next(generator)).shape == "512…512, longer calls exceed 27 s" and fit.bar == "<= 2.05"
    assert measure_figure(fit).met is False  # one length gives no slope; NaN meets no bar


@pytest.mark.parametrize("verb", scaling.VERBS)
@pytest.mark.parametrize("kind", scaling.WIDTH)
def test_every_call_runs(kind: str, verb: str) -> None:
    assert scaling.timed_call(kind, verb, 64)() is not None
    assert scaling.setup(kind, verb, 64)() is not None


def test_the_chart_is_drawn(tmp_path: Path) -> None:
    measured = [
        Figure(f"dot forward, {what}", f"({n}, 64)", lambda n=n: float(n), unit)  # type: ignore[misc]
        for what, unit in (("time", "s"), ("memory", "MiB"))
        for n in (512, 1024)
    ]
    fit = Figure("dot forward, time", "512…1024", lambda: 1.0, "exponent of N")
    summary = scaling.conclude([measure_figure(f) for f in (*measured, fit)], Options(out=tmp_path / "deep"))
    assert summary == f"picture: {tmp_path / 'deep' / 'scaling.png'}"
    assert (tmp_path / "deep" / "scaling.png").read_bytes().startswith(b"\x89PNG")
