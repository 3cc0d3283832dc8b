"""Translation from the command line: train, resume, translate, align, draw, export."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest

from regard.commands.main import main
from regard.data import Characters
from regard.models import Transformer, TransformerConfig
from regard.tasks import Translator
from regard.training.recipes import train_translator as recipe
from tests.tasks.conftest import pairs

SMALL = [
    *("--vocabulary", "60", "--tokens", "200", "--width", "16", "--hidden", "16"),
    *("--warmup", "2", "--log-every", "2"),
]
KINDS = {
    "transformer": ["--heads", "2", "--encoder-layers", "1", "--decoder-layers", "1"],
    "recurrent": ["--kind", "recurrent", "--encoder-hidden", "16"],
}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("texts")
    for name, count in (("train", 80), ("valid", 10)):
        lines = "".join(f"{source}\t{target}\n" for source, target in pairs(count, seed=len(name)))
        (folder / f"{name}.tsv").write_text(lines, encoding="utf-8")
    return ["--train", str(folder / "train.tsv"), "--valid", str(folder / "valid.tsv")]


@pytest.fixture(scope="module", params=KINDS)
def run(request: pytest.FixtureRequest, texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / request.param
    assert main(["train", "translate", str(folder), *texts, "--steps", "4", *SMALL, *KINDS[request.param]]) == 0
    return folder


def test_a_run_has_all_files(run: Path) -> None:
    for name in ("config.json", "source.json", "target.json", "model.safetensors", "metrics.jsonl", "samples.txt"):
        assert (run / name).stat().st_size, name
    config = json.loads((run / "config.json").read_text())
    assert config["recipe"] == "translate" and config["kind"] == run.name and config["training"]["steps"] == 4


def test_a_run_resumes_where_it_ended(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, steps = shutil.copytree(run, tmp_path / "run"), 6  # the other tests share the original
    assert main(["train", "translate", str(run), "--steps", str(steps)]) == 0
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["step"] == steps and "bleu" in last
    assert main(["train", "translate", str(run), "--steps", str(steps), "--width", "8"]) == 1
    assert "model.width (16 there, 8 here)" in capsys.readouterr().err


def test_texts_and_lines_are_translated_alike(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sentences = ["the cat", "a dog sees the bird", ""]
    options = ["--beam", "2", "--longest", "8"]
    assert main(["translate", str(run), *sentences, *options]) == 0
    output = capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in sentences)))
    assert main(["translate", str(run), *options]) == 0
    assert capsys.readouterr().out == output and output.count("\n") == 3


def test_n_best_lists_have_numbers_and_scores(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["translate", str(run), "the cat", "a dog", "--beam", "3", "--n-best", "2", "--longest", "6"]) == 0
    rows = [line.split(" ||| ") for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == ["0", "0", "1", "1"] and float(rows[0][2]) >= float(rows[1][2])


@pytest.mark.parametrize("step", ["output", "input"])
def test_alignments_and_pictures(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], step: str) -> None:
    plot = tmp_path / "deep/alignment.png"
    options = ["--beam", "1", "--longest", "6", "--alignments", step, "--plot", str(plot)]
    assert main(["translate", str(run), "the cat sees", "a dog", *options]) == 0
    for line, words in zip(capsys.readouterr().out.splitlines(), (3, 2), strict=True):
        text, links = line.split("\t")
        linked = [tuple(map(int, link.split("-"))) for link in links.split()]
        assert len(linked) == len(text.split()) and all(source < words for source, _ in linked)
    assert plot.stat().st_size and plot.with_stem("alignment-2").stat().st_size


def test_only_a_transformer_is_exported(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["export", str(run), "--to", "ctranslate2"])
    if run.name == "transformer":
        assert status == 0 and (run / "ctranslate2/model.bin").exists()
    else:
        error = capsys.readouterr().err
        assert status == 1 and "model (Seq2Seq) must be a Transformer" in error and "--kind transformer" in error


def test_an_unsupported_export_names_a_remedy(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(run), "--to", "huggingface"]) == 1
    assert f"must be ctranslate2 for a Translator; {run} has one. Try regard export {run}" in capsys.readouterr().err
    letters = Characters("ab")
    rotary = Transformer(TransformerConfig(6, 6, width=8, heads=2, hidden=8, position="rotary"))
    with pytest.raises(
        ValueError, match=r"position \(rotary\) must be sinusoidal or learned: .* Train with --position"
    ):
        Translator(rotary, letters, letters).export("nowhere")


def test_files_are_translated_and_an_empty_line_stays_empty(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in.txt").write_text("a dog\n\n \na man\n")
    options = ["--file", str(tmp_path / "in.txt"), "--beam", "2", "--alignments", "--longest", "5"]
    assert main(["translate", str(run), *options, "--out", str(tmp_path / "out.txt")]) == 0
    assert main(["translate", str(run), *options]) == 0
    lines = (tmp_path / "out.txt").read_text(encoding="utf-8").split("\n")
    assert len(lines) == 5 and [line.strip() for line in lines[1:3]] == ["", ""]
    assert capsys.readouterr().out == "\n".join(lines)
    monkeypatch.chdir(tmp_path)
    assert main(["translate", str(run), "in.txt", "--beam", "1", "--longest", "5"]) == 0
    assert "in.txt is read as a text. It is also the name of a file: --file in.txt reads" in capsys.readouterr().err


def test_a_fixed_context_has_no_alignments(
    texts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fixed = ["--kind", "recurrent", "--context", "fixed", "--encoder-hidden", "16"]
    assert main(["train", "translate", str(tmp_path / "run"), *texts, "--steps", "2", *SMALL, *fixed]) == 0
    assert main(["translate", str(tmp_path / "run"), "a", "--alignments"]) == 1
    assert "has a fixed context. Train with" in capsys.readouterr().err


def test_chinese_is_scored_by_its_characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run keeps its initial BLEU tokenizer, and a better Chinese translation scores higher."""
    words = {"le": "那", "un": "一只", "chat": "猫", "chien": "狗", "oiseau": "鸟", "voit": "看见"}
    for name, count in (("train", 40), ("valid", 5)):
        lines = [(source, "".join(words[word] for word in target.split())) for source, target in pairs(count, seed=3)]
        (tmp_path / f"{name}.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in lines), encoding="utf-8")
    data = ["--train", str(tmp_path / "train.tsv"), "--valid", str(tmp_path / "valid.tsv")]
    run, options = tmp_path / "run", [*data, *SMALL, *KINDS["recurrent"]]
    assert main(["train", "translate", str(run), *options, "--steps", "2"]) == 0
    kept = json.loads((run / "evaluation.json").read_text())
    assert kept["tokenizer"] == "zh" and "|tok:zh|" in kept["bleu"] and "nc:6" in kept["chrf"]
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert {"bleu", "chrf", "exact", "loss"} <= last.keys()
    used: list[str | None] = []
    original = recipe.Translate
    monkeypatch.setattr(recipe, "Translate", lambda *a, tokenizer, **o: used.append(tokenizer) or original(*a, **o))
    (run / "evaluation.json").write_text('{"tokenizer": "char"}')
    assert main(["train", "translate", str(run), "--steps", "3"]) == 0 and used == ["char"]


def test_bad_input_is_named(texts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = ["--train", "none.de", "none.en", "--valid", "none.tsv", "--tokens", "0"]
    assert main(["train", "translate", str(tmp_path / "run"), *missing]) == 1
    output = capsys.readouterr().err
    assert all(part in output for part in ("train (none.de)", "train (none.en)", "valid (none.tsv)", "tokens (0)"))
    assert not (tmp_path / "run").exists()
    assert main(["train", "translate", str(tmp_path / "run"), *texts, "--kind", "mlp"]) == 1
    assert "kind (mlp) must be one of transformer, recurrent" in capsys.readouterr().err
    assert main(["translate", str(tmp_path), "a"]) == 1
    assert f"path ({tmp_path}) must be the folder of a run" in capsys.readouterr().err
    assert main(["train"]) == 2
    assert "recipes:" in capsys.readouterr().out


def test_help_lists_the_settings(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["train", "translate", "--help-all"])
    output = capsys.readouterr().out
    assert (
        ended.value.code == 0 and "--learning-rate" in output and "--encoder-layers" in output and "subwords" in output
    )


def test_the_stored_recipe_has_the_requested_settings(run: Path) -> None:
    stored = recipe.stored(run)
    assert type(stored) is recipe.KINDS[run.name] and stored.model.width == 16 and stored.data.vocabulary == 60
