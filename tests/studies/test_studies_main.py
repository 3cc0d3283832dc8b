"""The command of the studies, and the studies of translators on toy data."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from regard.data.bible import FILES
from studies import alignment, multi30k
from studies.__main__ import main, study_names

WORDS = {"rot": "red", "blau": "blue", "gross": "big", "klein": "small", "hund": "dog", "ball": "ball"}
SOURCES = [f"{a} {b} {c}" for a in WORDS for b in WORDS for c in WORDS]
TARGETS = [" ".join(WORDS[word] for word in line.split()) for line in SOURCES]


def test_every_study_has_a_description(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    output = capsys.readouterr().out
    assert "multi30k" in output and all(len(first) > 20 and first in output for first in study_names().values())


def test_an_unknown_study_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["multi31k"]) == 2
    assert "(multi31k) must be one of advantages, alignment, " in capsys.readouterr().err


def test_an_error_of_a_study_is_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(multi30k, "main", lambda rest: (_ for _ in ()).throw(ValueError(f"not with {rest}")))
    assert main(["multi30k", "--x"]) == 1
    assert capsys.readouterr().err == "studies multi30k: not with ['--x']\n"


def test_missing_data_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    with pytest.raises(SystemExit, match="must be a folder that contains multi30k/"):
        main(["multi30k"])


SMALL = ["--width", "16", "--hidden", "16", "--tokens", "200", "--warmup", "5", "--vocabulary", "60"]


def test_multi30k_is_scored_whole_and_by_length(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for part in ("train", "val", "test_2016_flickr"):
        for language, lines in (("de", SOURCES), ("en", TARGETS)):
            path = tmp_path / f"multi30k/{part}.{language}.gz"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(gzip.compress("\n".join(lines[:60]).encode() + b"\n"))
    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    monkeypatch.setattr(
        multi30k, "MODELS", {"fixed": ["--kind", "recurrent", "--context", "fixed", "--steps", "8", *SMALL]}
    )
    assert main(["multi30k", "--minutes", "1000", "--models", "fixed", "--out", str(tmp_path / "out")]) == 0
    results = json.loads((tmp_path / "out/results.json").read_text())["fixed"]
    assert "tok:13a" in results["signature"] and len(results["groups"]) == multi30k.GROUPS
    assert len((tmp_path / "out/fixed/test.out").read_text().splitlines()) == 60
    assert (tmp_path / "out/bleu-by-length.png").read_bytes().startswith(b"\x89PNG")
    assert "words per source" in capsys.readouterr().out


def test_alignments_are_compared_with_manual_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def verses(folder: Path, archive: Path | None) -> Path:
        folder.mkdir(parents=True)
        for name, lines in zip(FILES, (SOURCES, TARGETS, ["0-0 1-1 2-2"] * len(SOURCES)), strict=False):
            (folder / name).write_text("\n".join(lines) + "\n")
        return folder

    monkeypatch.setattr(alignment, "prepare", verses)
    monkeypatch.setattr(alignment, "_eflomal", lambda folder: [("forward", [{(0, 0), (1, 1), (2, 2)}] * len(SOURCES))])
    monkeypatch.setattr(alignment, "VALIDATION", 5)
    monkeypatch.setattr(alignment, "COMMON", ["--steps", "8"])
    monkeypatch.setattr(alignment, "MODELS", {"additive": ["--kind", "recurrent", *SMALL], "transformer": SMALL})
    status = main(["alignment", "--minutes", "1000", "--out", str(tmp_path / "out")])
    assert status == 1  # a barely trained model misses the bar
    results = json.loads((tmp_path / "out/results.json").read_text())
    assert results["eflomal, forward"] == 0.0 and 0 < results["additive, output"] <= 1
    # one aligner; one recurrent and three Transformer layers, each with two steps and three directions
    assert {"additive, input", "transformer, layer 3 of 3, input, both"} < set(results) and len(
        results
    ) == 1 + 4 * 2 * 3
    assert "transformer, layer 1 of 3, output" in capsys.readouterr().out
