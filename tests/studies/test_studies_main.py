"""The command of the studies, and the studies of translators on toy data."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from regard.data.bible import FILES
from studies import alignment, multi30k
from studies.__main__ import known, main

WORDS = {"rot": "red", "blau": "blue", "gross": "big", "klein": "small", "hund": "dog", "ball": "ball"}
SOURCES = [f"{a} {b} {c}" for a in WORDS for b in WORDS for c in WORDS]
TARGETS = [" ".join(WORDS[word] for word in line.split()) for line in SOURCES]


def test_every_study_says_what_it_measures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    said = capsys.readouterr().out
    assert "multi30k" in said and all(len(first) > 20 and first in said for first in known().values())


def test_an_unknown_study_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["multi31k"]) == 2
    assert "(multi31k) must be one of advantages, alignment, " in capsys.readouterr().err


def test_what_a_study_refuses_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(multi30k, "main", lambda rest: (_ for _ in ()).throw(ValueError(f"not with {rest}")))
    assert main(["multi30k", "--x"]) == 1
    assert capsys.readouterr().err == "studies multi30k: not with ['--x']\n"


def test_data_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    with pytest.raises(SystemExit, match="must be a folder that holds multi30k/"):
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
    found = json.loads((tmp_path / "out/results.json").read_text())["fixed"]
    assert "tok:13a" in found["signature"] and len(found["groups"]) == multi30k.GROUPS
    assert len((tmp_path / "out/fixed/test.out").read_text().splitlines()) == 60
    assert (tmp_path / "out/bleu-by-length.png").read_bytes().startswith(b"\x89PNG")
    assert "words of the source" in capsys.readouterr().out


def test_alignments_are_held_against_those_of_people(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def verses(folder: Path, archive: Path | None) -> Path:
        folder.mkdir(parents=True)
        for name, lines in zip(FILES, (SOURCES, TARGETS, ["0-0 1-1 2-2"] * len(SOURCES)), strict=False):
            (folder / name).write_text("\n".join(lines) + "\n")
        return folder

    monkeypatch.setattr(alignment, "prepare", verses)
    monkeypatch.setattr(alignment, "_eflomal", lambda folder: [("forward", [{(0, 0), (1, 1), (2, 2)}] * len(SOURCES))])
    monkeypatch.setattr(alignment, "HELD", 5)
    monkeypatch.setattr(alignment, "COMMON", ["--steps", "8"])
    monkeypatch.setattr(alignment, "MODELS", {"additive": ["--kind", "recurrent", *SMALL], "transformer": SMALL})
    status = main(["alignment", "--minutes", "1000", "--out", str(tmp_path / "out")])
    assert status == 1  # a model that hardly learned is far off
    found = json.loads((tmp_path / "out/results.json").read_text())
    assert found["eflomal, forward"] == 0.0 and 0 < found["additive, output"] <= 1
    # one aligner beside them; a recurrent decoder and three layers, two steps, two directions and both
    assert {"additive, input", "transformer, layer 3 of 3, input, both"} < set(found) and len(found) == 1 + 4 * 2 * 3
    assert "transformer, layer 1 of 3, output" in capsys.readouterr().out
