"""The benchmark of a language model of poems, with a few poems and two steps."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from bench import poems
from bench._skips import Missing
from bench.harness import Options, measure_figure

POEM = "春曉\n春眠不覺曉，處處聞啼鳥。\n夜來風雨聲，花落知多少。"


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Options:
    (tmp_path / "tang-poems").mkdir()
    (tmp_path / "tang-poems/poems.txt.gz").write_bytes(gzip.compress((f"{POEM}\n\n" * 40).encode()))
    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    monkeypatch.setattr(poems, "CONTEXT", 32)
    monkeypatch.setattr(poems, "LONGEST", 20)
    poems.trained.cache_clear()
    return Options(quick=True, out=tmp_path / "out")


def test_a_model_is_trained_and_writes(options: Options) -> None:
    loss, share, real = (measure_figure(figure) for figure in poems.figures(options))
    assert 0 < loss.median < 7 and 0 <= share.median <= 1 and real.median == 1
    assert loss.shape == "38 poems, 2 steps" and real.shape == "2 poems"
    folder, _ = poems.trained(options)
    assert folder == options.out / "poems/run" and (folder / "model.safetensors").exists()
    assert (options.out / "poems/text/valid.txt").read_text(encoding="utf-8") == f"{POEM}\n\n" * 2
    assert len(poems.write(folder, ["春曉", "夜", "春"])) == 3


def test_the_full_run_takes_ten_minutes_and_has_a_bar(options: Options) -> None:
    settings = poems.recipe(options.out, quick=False).training
    assert settings.minutes == 10 and settings.steps is None and not settings.errors()
    assert [figure.bar for figure in poems.figures(Options(out=options.out))] == [None, ">= 0.9", None]


def test_verses_are_counted() -> None:
    seven = "故人西辭黃鶴樓，煙花三月下揚州。"
    assert poems.share_of(poems.verses_of(POEM.partition("\n")[2])) == 1
    assert poems.share_of(poems.verses_of(f"{seven}\n{seven}")) == 1
    assert poems.share_of(poems.verses_of("終和且平，春眠不覺曉。")) == 0.5
    assert poems.share_of(poems.verses_of("春眠不覺曉，處處聞啼鳥")) == 0.5  # no mark at the end
    assert poems.share_of(poems.verses_of("春眠不覺曉，處處聞啼鳥…")) == 1  # not finished: not counted
    assert poems.share_of([]) == 0


def test_missing_poems_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    with pytest.raises(Missing, match=r"must be a folder that contains tang-poems/"):
        next(poems.figures(Options()))
