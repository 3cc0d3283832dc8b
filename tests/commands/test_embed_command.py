"""The command `regard embed`."""

import gzip
import io
import json
from pathlib import Path

import numpy as np
import pytest

from regard.commands import embed
from regard.commands.main import main
from tests.tasks.test_embedder import TEXTS, folder  # noqa: F401  (a fixture)


def rows(output: str) -> np.ndarray:
    return np.array([json.loads(line)["embedding"] for line in output.splitlines()], dtype=np.float32)


def test_texts_lines_and_files_give_the_same(
    folder: Path,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert main(["embed", str(folder), *TEXTS]) == 0
    output = capsys.readouterr().out
    assert [json.loads(line)["text"] for line in output.splitlines()] == TEXTS
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{text}\n" for text in TEXTS)))
    assert main(["embed", str(folder)]) == 0
    assert capsys.readouterr().out == output
    (tmp_path / "a.txt").write_text("".join(f"{text}\r\n" for text in TEXTS[:2]), newline="")
    (tmp_path / "b.gz").write_bytes(gzip.compress("\n".join(TEXTS[2:]).encode()))
    files = ["--file", str(tmp_path / "a.txt"), "--file", str(tmp_path / "b.gz")]
    assert main(["embed", str(folder), *files, "--out", str(tmp_path / "new/x.npy"), "--batch-tokens", "20"]) == 0
    assert f"{tmp_path / 'new/x.npy'} (6 × 24, float32)" in capsys.readouterr().out
    embeddings = np.load(tmp_path / "new/x.npy")
    assert embeddings.dtype == np.float32
    np.testing.assert_allclose(embeddings, rows(output), atol=1e-6)


def test_many_lines_are_embedded_in_chunks(
    folder: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(embed, "CHUNK", 4)
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(TEXTS * 4)))
    assert main(["embed", str(folder), "--out", str(tmp_path / "x.npy")]) == 0
    embeddings = np.load(tmp_path / "x.npy")
    assert embeddings.shape == (24, 24)
    np.testing.assert_allclose(embeddings[:6], embeddings[18:], atol=1e-6)
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert main(["embed", str(folder), "--out", str(tmp_path / "none.npy")]) == 0
    assert np.load(tmp_path / "none.npy").shape == (0, 24)


def test_an_empty_line_stays_empty(folder: Path, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "a.txt").write_bytes(b"a cat\n\n \n\n")
    for end in ("npy", "jsonl"):
        out = str(tmp_path / f"x.{end}")
        assert main(["embed", str(folder), "--file", str(tmp_path / "a.txt"), "--out", out]) == 0
    embeddings = np.load(tmp_path / "x.npy")
    assert embeddings.shape == (4, 24) and not embeddings[1:].any() and embeddings[0].any()
    lines = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    assert [line["embedding"] is None for line in lines] == [False, True, True, True]


def test_runs_embed_if_they_hold_a_bert(
    folder: Path,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "text.txt").write_text("a cat sat\na dog ran\n" * 9)
    sizes = ["--width", "8", "--hidden", "8", "--heads", "2", "--layers", "1", "--steps", "1", "--warmup", "0"]
    for recipe, more in (
        ("pretrain", ["--documents", "line", "--hold-out", "0.3", "--vocabulary", "40"]),
        ("language", ["--vocabulary", "characters", "--context", "8"]),
    ):
        command = ["train", recipe, str(tmp_path / recipe), "--train", str(tmp_path / "text.txt"), *sizes, *more]
        assert main(command) == 0
    capsys.readouterr()
    assert main(["embed", str(tmp_path / "pretrain"), "a cat"]) == 0
    assert rows(capsys.readouterr().out).shape == (1, 8)
    assert main(["embed", str(tmp_path / "language"), "a cat"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "must hold a BERT; got a run of language, which cannot embed sentences" in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a", "--out", "x.csv"], "out (x.csv) must end in .npy, or in .jsonl for JSON lines"),
        (["a", "--file", "b"], "texts (1) and files (1) must not both be given"),
        (["--file", "nowhere.txt"], "file (nowhere.txt) must exist"),
        (["a", "--batch-tokens", "0"], "batch-tokens (0) must be at least 1"),
    ],
)
def test_bad_input_is_named(
    folder: Path,  # noqa: F811
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["embed", str(folder), *arguments]) == 1
    assert f"regard embed: {message}" in capsys.readouterr().err


def test_unreadable_input_is_named(
    folder: Path,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["embed", str(tmp_path), "a"]) == 1
    assert (
        f"folder ({tmp_path}) must be a model directory of Hugging Face; got a folder without config.json"
        in capsys.readouterr().err
    )
    assert not (tmp_path / "x.npy").exists()
    (tmp_path / "a.txt").write_bytes(b"a\xff\n")
    assert main(["embed", str(folder), "--file", str(tmp_path / "a.txt")]) == 1
    assert "must be text in UTF-8" in capsys.readouterr().err
