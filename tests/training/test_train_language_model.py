"""`regard train language`: preparation, resuming, continuing another model, classifiers on it, and every refusal."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

import regard
from bench import kills
from regard.commands.main import main
from regard.data import ByteSubwords, Characters, Corpus
from regard.data.model_tokenizer import ModelTokenizer
from regard.models import GPT, GPTConfig, save_gpt
from regard.models.sampling import Sampling
from regard.server.guard import RequestError
from regard.server.language_target import LanguageTarget
from regard.server.open_target import open_target
from regard.tasks import loading
from regard.tasks.loading import load_language_model, load_text_classifier
from regard.training import Silent
from regard.training.recipes.train_language_model import Text, prepare
from tests.tasks.sample_texts import write_labelled
from tests.training.processes import ROOT
from tests.training.test_loop import lines

TINY = ["--width", "16", "--heads", "2", "--layers", "1", "--context", "12", "--batch", "4", "--warmup", "2"]
TRAIN = ("--train", "text.txt")
OFTEN = ["--log-every", "2", "--evaluate-every", "4", "--save-every", "2"]
TEXT = "".join(f"the {a} sees  a {b}.\n" for a in ("cat", "dog", "bird") for b in ("mouse", "house", "tree", "月亮"))


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(TEXT * 4)


def run(*words: str) -> int:
    return main(["train", "language", *words])


def fresh(folder: str, *words: str, steps: int = 8) -> Path:
    assert run(folder, "--train", "text.txt", *TINY, *OFTEN, "--steps", str(steps), *words) == 0
    return Path(folder)


def test_a_run_resumes_with_its_own_warm_up() -> None:
    """Earlier versions had other defaults; resuming does not require the user to repeat them."""
    fresh("run", "--vocabulary", "characters", steps=4)
    assert run("run", "--train", "text.txt", "--steps", "6") == 0
    language = regard.train_language_model("run", train="text.txt", steps=8, display=Silent())
    assert isinstance(language.vocabulary, Characters)
    assert json.loads(Path("run/config.json").read_text())["training"]["warmup"] == 2
    assert run("run", "--steps", "9", "--warmup", "0.1") == 1, "but it does not change"


def test_characters_and_the_split_of_the_text() -> None:
    folder = fresh("run", "--vocabulary", "characters")
    train, valid = (Corpus.open(folder / "data" / name) for name in ("train", "valid"))
    cut = int(0.9 * len(TEXT * 4))
    language = load_language_model(folder)
    assert isinstance(language.vocabulary, Characters)
    assert language.vocabulary.decode(train.ids[0]) == (TEXT * 4)[:cut]
    assert language.vocabulary.decode(valid.ids[0]) == (TEXT * 4)[cut:]
    assert int(valid.ids[1].sum()) == len(TEXT * 4) - cut
    assert language.model.config == GPTConfig(
        vocabulary=len(language.vocabulary), width=16, heads=2, layers=1, positions=12
    )
    assert "\n  dog \n= " in (folder / "samples.txt").read_text()
    evaluations = [line for line in lines(folder) if line["event"] == "evaluate"]
    assert len(evaluations) == 2 and evaluations[-1]["perplexity"] == pytest.approx(math.exp(evaluations[-1]["loss"]))


def test_subwords_and_validation_files(capsys: pytest.CaptureFixture[str]) -> None:
    Path("valid.txt").write_text("a bird, 鸟!\n")
    folder = fresh("run", "--vocabulary", "270", "--valid", "valid.txt", "--kind", "llama", "--evaluate-tokens", "3")
    assert "vocabulary: 270 tokens" in capsys.readouterr().out
    language = load_language_model(folder)
    assert isinstance(language.vocabulary, ByteSubwords) and language.model.config.norm == "rms"
    assert language.vocabulary.decode(Corpus.open(folder / "data/valid").ids[0]) == "a bird, 鸟!\n"
    assert language.vocabulary.decode(Corpus.open(folder / "data/train").ids[0]) == TEXT * 4
    assert run("run", "--steps", "10") == 0, "resumes with its kind"
    assert json.loads((folder / "config.json").read_text())["kind"] == "llama"


def test_windows_and_batches_do_not_cause_another_preparation() -> None:
    config, messages = Text((Path("text.txt"),)), list[str]()
    for change in ({}, {"context": 5, "batch": 2, "evaluate_tokens": 9}, {"hold_out": 0.5}):
        prepare(dataclasses.replace(config, **change), Path("run"), Characters.train, messages.append)
    assert sum("vocabulary" in line for line in messages) == 2
    Path("text.txt").write_text("other text " * 20)
    prepare(config, Path("run"), Characters.train, messages.append)
    assert sum("vocabulary" in line for line in messages) == 3


def test_continuing_a_run_starts_from_its_weights() -> None:
    first = fresh("first", "--vocabulary", "characters", "--steps", "40", "--learning-rate", "1e-2")
    Path("more.txt").write_text("a cat, a dog, and Ω.\n" * 9)
    words = ["--train", "more.txt", "--from", "first", "--steps", "2", "--warmup", "1", "--learning-rate", "1e-7"]
    assert run("second", *words) == 0
    a, b = load_language_model(first), load_language_model("second")
    assert b.vocabulary.encode("the Ω") == a.vocabulary.encode("the Ω") and b.context == a.context == 12
    torch.testing.assert_close(a.logits("the cat"), b.logits("the cat"), rtol=1e-3, atol=1e-3)
    shutil.rmtree(first)
    assert run("second", "--steps", "4") == 0, "a started run does not need the first any more"


def test_a_hugging_face_directory_is_continued(capsys: pytest.CaptureFixture[str]) -> None:
    subwords = ByteSubwords.train([TEXT], 280)
    model = GPT(GPTConfig(vocabulary=len(subwords), width=16, heads=2, layers=1, positions=20))
    Path("gpt2").mkdir()
    save_gpt(model, "gpt2")
    ModelTokenizer(Tokenizer.from_str(_saved(subwords))).save("gpt2")
    words = ["--train", "text.txt", "--from", "gpt2", "--steps", "2", "--warmup", "1", "--batch", "2"]
    assert run("run", *words, "--dropout", "0.2") == 0
    language = load_language_model("run")
    assert language.model.config == dataclasses.replace(model.config, dropout=0.2) and language.context == 20
    assert loading.is_gpt(Path("gpt2")) and loading.positions(Path("gpt2")) == 20
    write_labelled(Path("labelled.tsv"), 40)
    command = [
        "train",
        "classify",
        "mood",
        "--data",
        "labelled.tsv",
        "--from",
        "gpt2",
        "--longest",
        "20",
        "--epochs",
        "1",
    ]
    assert main(command) == 0
    for folder in ("gpt2", "run"):
        capsys.readouterr()
        assert main(["generate", folder, "the ", "--tokens", "3", "--temperature", "0"]) == 0
        expected = load_language_model(folder).generate("the ", Sampling(temperature=0), max_new_tokens=3)
        assert capsys.readouterr().out == expected[0].text + "\n"


def _saved(subwords: ByteSubwords) -> str:
    subwords.save("subwords.json")
    return Path("subwords.json").read_text(encoding="utf-8")


def test_a_classifier_on_a_language_model(capsys: pytest.CaptureFixture[str]) -> None:
    write_labelled(Path("labelled.tsv"), 250)
    Path("text.txt").write_text(Path("labelled.tsv").read_text())
    fresh("gpt", "--vocabulary", "characters", "--context", "60", "--steps", "30", "--learning-rate", "1e-2")
    command = ["train", "classify", "mood", "--data", "labelled.tsv", "--from", "gpt", "--longest", "60"]
    assert main([*command, "--epochs", "10", "--learning-rate", "1e-2", "--layer-decay", "0.9"]) == 0
    assert load_text_classifier("mood").labels == ("bad", "good")
    assert json.loads(Path("mood/confusion.json").read_text())
    shutil.rmtree("gpt")
    assert main(["train", "classify", "mood", "--epochs", "11"]) == 0, "resumes without the language model"
    capsys.readouterr()
    assert main(["classify", "mood", "a lovely film", "the awful story"]) == 0
    assert [line.split("\t")[0] for line in capsys.readouterr().out.splitlines()] == ["good", "bad"]
    target = open_target("mood", "a lovely film")
    assert "mood: good (" in target.snapshot.title and target.snapshot.layers[0].key_tokens == list("a lovely film")
    assert main(["export", "mood", "--to", "huggingface"]) == 1
    assert "model must be a classifier on a BERT; got one on a GPT" in capsys.readouterr().err
    assert main(["train", "classify", "more", "--data", "labelled.tsv", "--from", "mood", "--longest", "60"]) == 1
    assert "mood must be a run of a language model; got a run of classify" in capsys.readouterr().err


def test_a_pool_for_a_gpt_and_too_long_texts_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    fresh("gpt", "--vocabulary", "characters")
    write_labelled(Path("labelled.tsv"), 40)
    command = ["train", "classify", "mood", "--data", "labelled.tsv", "--from", "gpt", "--pool", "mean"]
    assert main(command) == 1
    error = capsys.readouterr().err
    assert "model: positions (12) must be at least longest; got 128. Try --longest 12." in error
    assert "classify: pool (mean) must be omitted for a GPT, which is read at the last token." in error


def test_other_commands_refuse_a_language_model_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    fresh("run", "--vocabulary", "characters")
    capsys.readouterr()
    for command, expected in (("classify", "a text classifier"), ("translate", "a translator")):
        assert main([command, "run", "a text"]) == 1
        assert f"run must be a run of {expected}; got a run of language" in capsys.readouterr().err
    assert main(["train", "pretrain", "run"]) == 1
    assert "run must be a run of pretraining; got a run of language" in capsys.readouterr().err


def test_the_attention_for_a_text_is_shown() -> None:
    fresh("run", "--vocabulary", "characters", "--layers", "2")
    target = open_target("run", "the cat sees")
    assert isinstance(target, LanguageTarget) and target.prompt == "the cat sees"
    snapshot = target.run("the cat sees")
    assert snapshot.title == "run: the cat sees"
    assert [(layer.kind, layer.count, layer.keys) for layer in snapshot.layers] == [("causal", 2, 12)] * 2
    assert snapshot.layers[0].key_tokens == list("the cat sees")
    assert target.run("a dog").layers[0].keys == 5
    with pytest.raises(RequestError, match=r"text \(18 tokens\) must have at most 12 for run"):
        target.run("the cat sees a dog")
    with pytest.raises(ValueError, match=r"run is a language model\. Pass --text\."):
        open_target("run", image="x.png")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--train", "none.txt"], "data: train (none.txt) must be an existing file."),
        (["--train"], "data: train (0 files) must be at least one file."),
        ([*TRAIN, "--valid", "none"], "data: valid (none) must be an existing file."),
        ([*TRAIN, "--hold-out", "1"], "data: hold_out (1.0) must be a fraction above 0 and below 1."),
        ([*TRAIN, "--batch", "0"], "data: batch (0) must be at least 1."),
        ([*TRAIN, "--context", "0"], "data: context (0) must be at least 1."),
        ([*TRAIN, "--evaluate-tokens", "0"], "data: evaluate_tokens (0) must be at least 1."),
        ([*TRAIN, "--vocabulary", "256"], "data: vocabulary (256) must be at least 257."),
        ([*TRAIN, "--heads", "5"], "model: width (384) must be divisible by heads (5)"),
        ([*TRAIN, "--kind", "rnn"], "kind (rnn) must be one of gpt2, llama, finetune."),
        (
            [*TRAIN, "--vocabulary", "characters", "--context", "2000"],
            "must be longer than context (2000)",
        ),
        ([*TRAIN, "--hold-out", "0.0001"], "data: held-out text (1 tokens) must have at least 2."),
        (
            [*TRAIN, "--from", "none"],
            "load: path (none) must be the folder of a run or of a Hugging Face model; it does not exist.",
        ),
        (
            [*TRAIN, "--from", "gpt", "--context", "13"],
            "model: positions (12) must be at least context; got 13.",
        ),
        (
            [*TRAIN, "--from", "gpt", "--dropout", "1"],
            "language: dropout (1.0) must lie in [0, 1). Try 0.",
        ),
    ],
)
def test_errors_name_setting_and_value(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    if "gpt" in words:
        fresh("gpt", "--vocabulary", "characters")
    assert run("run", *words) == 1
    assert message in capsys.readouterr().err


def test_the_help_lists_the_settings(capsys: pytest.CaptureFixture[str]) -> None:
    for words, expected in (
        (["--help-all"], ["--vocabulary", "--evaluate-tokens", "--context", "--kv-heads", "form of GPT-2"]),
        (["--kind", "llama", "--help-all"], ["form of Llama", "(default: rms)"]),
        (["--from", "x", "--help-all"], ["Continue the training", "--dropout"]),
    ):
        with pytest.raises(SystemExit) as end:
            run(*words)
        assert end.value.code == 0
        text = capsys.readouterr().out
        assert all(word in text for word in expected), text
    assert main(["train", "--help"]) == 0
    assert "language    plain text → a GPT" in capsys.readouterr().out


def test_two_processes_compute_the_same_as_one() -> None:
    words = ["train", "language", "two", "--train", "text.txt", *TINY, *OFTEN, "--steps", "6", "--vocabulary", "270"]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "regard"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([*command, *words], env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    fresh("one", "--vocabulary", "270", steps=6)
    for a, b in zip(lines(Path("one")), lines(Path("two")), strict=True):
        assert (a["event"], a["step"], a.get("tokens")) == (b["event"], b["step"], b.get("tokens"))
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)


def test_preparation_and_training_may_be_killed_at_any_moment() -> None:
    """`python -m bench kills` does so forty times, for every recipe."""
    assert kills.campaign(3, recipes=("language",), pairs=3000) == 0
