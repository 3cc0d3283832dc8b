"""Training in one call, files of settings, and runs that continue others."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch

import regard
from regard.commands.main import main
from regard.core.setting_files import read_settings
from regard.core.setting_options import options_of
from regard.models.weights import weights_of
from regard.tasks import (
    Embedder,
    ImageClassifier,
    LanguageModel,
    MaskedLanguageModel,
    TextClassifier,
    Translator,
)
from regard.training import Silent, Training, read_config, setting_types
from regard.training.recipes.recipe_choice import MODULES
from tests.tasks.conftest import pairs
from tests.tasks.sample_texts import write_labelled, write_plain

SMALL: dict[str, Any] = {"width": 8, "hidden": 8, "steps": 2, "warmup": 1, "display": Silent()}
BERT: dict[str, Any] = {**SMALL, "heads": 2, "layers": 1, "vocabulary": 60, "longest": 24}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for name, count in (("train", 60), ("valid", 8)):
        lines = "".join(f"{source}\t{target}\n" for source, target in pairs(count, seed=count))
        (folder / f"{name}.tsv").write_text(lines, encoding="utf-8")
    write_labelled(folder / "reviews.tsv", 40)
    write_plain(folder / "plain.txt", 40)
    pixels = np.random.default_rng(0).integers(0, 256, (24, 8, 8), np.uint8)
    np.savez(folder / "images.npz", images=pixels, labels=np.arange(24) % 2)
    return folder


def recurrent(data: Path, folder: Path, **changes: Any) -> Translator:
    settings: dict[str, Any] = {**SMALL, "kind": "recurrent", "vocabulary": 60, "encoder_hidden": 8, **changes}
    return regard.train_translator(folder, train=data / "train.tsv", valid=data / "valid.tsv", **settings)


@pytest.fixture(scope="module")
def translator(data: Path) -> Path:
    recurrent(data, data / "translator")
    return data / "translator"


def test_a_translator(translator: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = regard.load(translator)
    assert isinstance(model, Translator)
    text = pairs(1, seed=1)[0][0]
    assert model(text, longest=5) == model([text, ""], longest=5)[0] == model.translate(text, longest=5)[0].text
    assert model([text, "  "], longest=5)[1] == ""
    assert [m.shape[0] for m in model.maps(text)] == [1]
    scores = model.evaluate(data / "valid.tsv", size=2)
    assert scores["pairs"] == 8 and scores["signatures"]["bleu"].startswith("nrefs:1")
    assert main(["evaluate", str(translator), str(data / "valid.tsv"), "--beam", "2", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed.keys() == scores.keys() and printed["signatures"] == scores["signatures"]
    assert all(printed[name] == pytest.approx(scores[name]) for name in ("loss", "bleu", "chrf", "exact"))
    assert main(["evaluate", str(translator), str(data / "valid.tsv")]) == 0
    output = capsys.readouterr().out
    assert "pairs 8\n" in output and f"chrf signature: {scores['signatures']['chrf']}\n" in output


def test_the_loss_of_evaluate_is_the_one_of_training(translator: Path, data: Path) -> None:
    lines = [json.loads(line) for line in (translator / "metrics.jsonl").read_text().splitlines()]
    logged = next(line["loss"] for line in lines if line["event"] == "evaluate")
    assert regard.load(translator, Translator).evaluate(data / "valid.tsv")["loss"] == pytest.approx(logged, rel=1e-4)


def test_a_call_without_settings_resumes(translator: Path) -> None:
    before = read_config(translator)
    model = regard.train_translator(translator, display=Silent())
    assert isinstance(model, Translator) and read_config(translator) == before
    assert regard.train_translator(translator, steps=3, display=Silent())
    assert read_config(translator)["training"]["steps"] == 3  # type: ignore[index, call-overload]


def test_a_text_classifier(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = regard.train_text_classifier(tmp_path / "run", train=data / "reviews.tsv", **BERT)
    assert type(regard.load(tmp_path / "run")) is TextClassifier is type(model)
    text = (data / "reviews.tsv").read_text().split("\t")[0]
    assert model(text) in model.labels and model([text, text]) == [model(text)] * 2
    assert [m.shape[0] for m in model.maps(text)] == [2]
    scores = model.evaluate(data / "reviews.tsv")
    assert scores["examples"] == 40 == sum(map(sum, scores["confusion"]))
    right = sum(row[index] for index, row in enumerate(scores["confusion"]))
    assert scores["accuracy"] == right / 40 and list(scores["f1_by_label"]) == list(model.labels)
    assert main(["evaluate", str(tmp_path / "run"), str(data / "reviews.tsv")]) == 0
    assert "true \\ predicted" in capsys.readouterr().out
    same = regard.load(model.export(tmp_path / "exported"), TextClassifier)
    assert torch.allclose(same.probabilities([text]), model.probabilities([text]), atol=1e-6)
    assert isinstance(regard.load(tmp_path / "exported", Embedder), Embedder)


def test_a_masked_language_model(data: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {**BERT, "documents": "line", "hold_out": 0.2, "next_sentence": True}
    model = regard.train_masked_language_model(tmp_path / "run", train=[data / "plain.txt"], **settings)
    assert isinstance(regard.load(tmp_path / "run"), MaskedLanguageModel)
    (best,) = model.predictions("a [MASK] film", top=3)
    assert len(best) == 3 and best[0][0] == model("a [MASK] film")[0]
    assert 0 < model.evaluate(data / "plain.txt", documents="line")["loss"] < 10
    exported = regard.load(model.export(tmp_path / "exported"))
    assert isinstance(exported, MaskedLanguageModel) and exported("a [MASK] film") == model("a [MASK] film")
    with pytest.raises(ValueError, match=r"text \('a film'\) must contain \[MASK\]"):
        model("a film")


@pytest.mark.parametrize("vocabulary", ["characters", 300])
def test_a_language_model(data: Path, tmp_path: Path, vocabulary: Any) -> None:
    settings: dict[str, Any] = {"vocabulary": vocabulary, "heads": 2, "layers": 1, "context": 16, "kind": "llama"}
    model = regard.train_language_model(tmp_path / "run", train=data / "plain.txt", **SMALL, **settings)
    scores = model.evaluate(data / "plain.txt")
    text = (data / "plain.txt").read_text(encoding="utf-8")
    assert scores["characters"] == len(text)
    assert scores["perplexity"] == pytest.approx(model.perplexity(text), rel=1e-4)
    assert scores["bits_per_character"] == pytest.approx(
        scores["loss"] / np.log(2) * (scores["tokens"] + 1) / len(text)
    )
    exported = regard.load(model.export(tmp_path / "exported"))
    assert isinstance(exported, LanguageModel)
    ids = model.vocabulary.encode(text[:40])
    assert exported.vocabulary.encode(text[:40]) == ids and exported.vocabulary.decode(ids) == text[:40]
    assert torch.allclose(exported.logits(text[:10]), model.logits(text[:10]), atol=1e-5)


def test_an_image_classifier(data: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"heads": 2, "layers": 1, "hold_out": 0.2, "crop": 0}
    model = regard.train_image_classifier(tmp_path / "run", train=data / "images.npz", **SMALL, **settings)
    grey = np.zeros((8, 8), np.uint8)
    assert model([grey]) == [model(grey)] and [m.shape for m in model.maps(grey)] == [(2, 5, 5)]
    assert model.evaluate(data / "images.npz")["examples"] == 24
    exported = regard.load(model.export(tmp_path / "exported"))
    assert isinstance(exported, ImageClassifier)
    pixels = torch.zeros(1, 1, 8, 8, dtype=torch.uint8)
    assert torch.allclose(exported.logits(pixels), model.logits(pixels), atol=1e-5)


def test_wrong_settings_have_the_message_of_the_command(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError) as caught:
        recurrent(data, tmp_path / "run", clip=-1.0, width=0)
    options = ["--train", str(data / "train.tsv"), "--valid", str(data / "valid.tsv"), "--kind", "recurrent"]
    sizes = ["--vocabulary", "60", "--encoder-hidden", "8", "--hidden", "8", "--steps", "2", "--warmup", "1"]
    run = ["train", "translate", str(tmp_path / "run"), *options, *sizes, "--clip=-1", "--width", "0"]
    assert main(run) == 1
    assert capsys.readouterr().err.removeprefix("regard train: ").strip() == str(caught.value)
    with pytest.raises(ValueError, match=r"settings: widht \(8\) must be a known setting; .* Did you mean width\?"):
        recurrent(data, tmp_path / "run", widht=8)
    with pytest.raises(ValueError, match=r"settings: train must be given; got nothing"):
        regard.train_translator(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_settings_from_a_file(data: Path, translator: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toml = f"train = '{data / 'train.tsv'}'\nvalid = ['{data / 'valid.tsv'}']\nkind = 'recurrent'\nvocabulary = 60\n"
    (tmp_path / "a.toml").write_text(f"{toml}hidden = 8\nencoder-hidden = 8\n[training]\nsteps = 5\nwarmup = 1\n")
    command = ["train", "translate", str(tmp_path / "a"), "--config", str(tmp_path / "a.toml"), "--steps", "1"]
    assert main([*command, "--width", "4"]) == 0
    config: Any = read_config(tmp_path / "a")
    assert config["kind"] == "recurrent" and config["model"]["hidden"] == 8 and config["model"]["width"] == 4
    assert config["training"]["steps"] == 1 and config["data"]["train"] == [str(data / "train.tsv")]
    regard.train_translator(tmp_path / "b", config=translator / "config.json", width=6, display=Silent())
    other: Any = read_config(tmp_path / "b")
    assert other["model"] == {**read_config(translator)["model"], "width": 6}  # type: ignore[dict-item]
    pytest.importorskip("yaml")
    (tmp_path / "c.yaml").write_text("training: {steps: 1, warmup: 0}\nwidth: 4\nhidden: 4\n")
    regard.train_translator(tmp_path / "c", train=data / "train.tsv", config=tmp_path / "c.yaml", display=Silent())
    text = "train: x\nlearning_rate: 2e-3\ntraining: {clip: 1E0, betas: [9e-1, .95e0], weight_decay: 0.5, steps: 3}\n"
    (tmp_path / "e.yaml").write_text(f"{text}names: ['2e-3', e3, 1e, 0x1e3]\n")
    values = read_settings(tmp_path / "e.yaml")
    assert values == {
        "train": "x",
        "learning_rate": 2e-3,
        "training": {"clip": 1.0, "betas": [0.9, 0.95], "weight_decay": 0.5, "steps": 3},
        "names": ["2e-3", "e3", "1e", 0x1E3],
    }
    assert type(values["training"]["clip"]) is float
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ValueError, match=r"no PyYAML to read it with. Try pip install pyyaml"):
        regard.train_translator(tmp_path / "d", config=tmp_path / "c.yaml")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.toml", "x = ", r"must be a toml file; got Invalid value \(at end of document\)"),
        ("a.json", "[]", "must be a file of settings, a JSON object; got a list"),
        ("a.ini", "", r"must end in .json, .toml, .yaml, .yml; got .ini"),
        ("a.toml", "recipe = 'language'", "must hold settings of translate; got those of language"),
        ("a.toml", "widht = 3", r"settings: widht \(3\) must be a known setting"),
        ("a.toml", "width = 'wide'", r"settings: width \('wide'\) must be of type int; got str"),
        ("a.toml", "kind = ['recurrent']", r"translate: kind \(\['recurrent'\]\) must be one of"),
        ("a.toml", "steps = 3\n[training]\nsteps = 4", r"settings: steps \(4\) must be set once; got two values"),
        ("a.toml", "epochs = 2000000000", r"training: epochs \(2000000000\) must be at most 1,000,000"),
        ("a.toml", f"clip = {10**400}", r"training: clip \(inf\) must be 0 or more and finite"),
        ("a.toml", "x = " + "[" * 3000, "must be a toml file; got more than 64 nested objects and lists"),
        ("a.toml", "a." * 100 + "x = 1", "must be a toml file; got more than 64 nested objects and lists"),
        ("a.yaml", "x: " + "[" * 3000, "must be a yaml file; got more than 64 nested objects and lists"),
        ("a.yaml", "a: &a [*a]", "must be a yaml file; got more than 64 nested objects and lists"),
        ("a.yaml", "training: {5: 6}", r"settings: 5 \(6\) must be a known setting"),
        ("a.yaml", "null: 6", r"settings: None \(6\) must be a known setting"),
    ],
)
def test_a_wrong_file_of_settings_is_named(tmp_path: Path, name: str, content: str, message: str) -> None:
    if name.endswith(".yaml"):
        pytest.importorskip("yaml")
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        regard.train_translator(tmp_path / "run", train="x", config=tmp_path / name)


def test_an_integer_beyond_those_of_tensors_is_a_float(data: Path, tmp_path: Path) -> None:
    sizes: Any = {"kind": "recurrent", "vocabulary": 60, "width": 4, "hidden": 4, "encoder_hidden": 4}
    train, run = data / "train.tsv", tmp_path / "run"
    regard.train_translator(run, train=train, **sizes, steps=1, warmup=0, clip=10**30, display=Silent())
    config: Any = read_config(run)
    assert config["training"]["clip"] == 1e30


@pytest.mark.parametrize("path", [5, None, b"run", ["run"]])
def test_a_path_of_another_type_is_refused(path: Any) -> None:
    calls: list[tuple[str, Callable[[], object]]] = [
        ("load: path", lambda: regard.load(path)),
        ("training: folder", lambda: regard.train_language_model(path, train="x")),
    ]
    if path is not None:
        calls.append(("settings: config", lambda: regard.train_language_model("run", train="x", config=path)))
    for name, call in calls:
        with pytest.raises(ValueError, match=re.escape(f"{name} ({path!r}) must be a string or a path; got")):
            call()


def test_a_translator_continues_another(data: Path, translator: Path, tmp_path: Path) -> None:
    (tmp_path / "more.tsv").write_text((data / "valid.tsv").read_text() * 3)
    run = tmp_path / "run"
    command = ["train", "translate", str(run), "--from", str(translator), "--train", str(tmp_path / "more.tsv")]
    assert main([*command, "--steps", "1", "--warmup", "0", "--learning-rate", "1e-9", "--average", "none"]) == 0
    before, after = (regard.load(folder, Translator) for folder in (translator, run))
    assert before.source.encode("a man") == after.source.encode("a man")
    for name, value in weights_of(before.model).items():  # type: ignore[arg-type]  # a translator is a module
        assert torch.allclose(value, weights_of(after.model)[name], atol=1e-6), name  # type: ignore[arg-type]  # likewise
    config: Any = read_config(run)
    assert config["kind"] == "recurrent" and config["start"] == str(translator) and config["model"]["width"] == 8
    with pytest.raises(ValueError, match=r"translate: vocabulary \(50\) must be that of .*, whose vocabularies"):
        regard.train_translator(tmp_path / "x", start=translator, vocabulary=50)
    with pytest.raises(ValueError, match=r"translate: kind \(transformer\) must be that of .*; got recurrent"):
        regard.train_translator(tmp_path / "x", start=translator, kind="transformer", train=tmp_path / "more.tsv")


def test_pairs_are_held_out_by_their_source(data: Path, tmp_path: Path) -> None:
    from regard.training.recipes.train_translator import Parallel, _pairs

    (tmp_path / "all.tsv").write_text("".join(f"source {n % 50}\ttarget {n}\n" for n in range(100)))
    config = Parallel((tmp_path / "all.tsv",), hold_out=0.3)
    train, valid = ({source for source, _ in _pairs(config, held)} for held in (False, True))
    assert len(train) + len(valid) == 50 and not train & valid and 5 <= len(valid) <= 25
    with pytest.raises(ValueError, match=r"data: held-out pairs \(0\) must be at least one. Give --valid FILE, or a l"):
        list(_pairs(Parallel((tmp_path / "all.tsv",), hold_out=1e-9), True))


@pytest.mark.parametrize(
    ("recipe", "types"),
    [
        ("translate", setting_types.TranslatorSettings),
        ("language", setting_types.LanguageModelSettings),
        ("pretrain", setting_types.PretrainingSettings),
        ("classify", setting_types.TextClassifierSettings),
        ("images", setting_types.ImageClassifierSettings),
    ],
)
def test_types_of_settings_are_those_of_the_recipes(recipe: str, types: Any) -> None:
    derived = {"source_vocabulary", "target_vocabulary", "classes", "image", "channels", "pooler"}
    arguments = {"train", "valid", "from"}
    hints: dict[str, set[str]] = {}
    for kind in MODULES[recipe].KINDS.values():
        for option in options_of(kind):
            if option.name not in derived | arguments:
                hints.setdefault(option.name, set()).update(arms(option.hint))
    assert {name: arms(hint) for name, hint in get_type_hints(types).items()} == hints


def arms(hint: Any) -> set[str]:
    """Return the types of a union as texts."""
    from types import UnionType
    from typing import Union, get_args, get_origin

    return {str(arm) for arm in (get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,))}


def test_types_of_training_settings() -> None:
    assert get_type_hints(setting_types.TrainingSettings) == get_type_hints(Training)


def test_load_errors_name_the_path(tmp_path: Path, translator: Path) -> None:
    with pytest.raises(ValueError, match=r"load: path \(.*nowhere\) must be the folder of a run.*it does not exist"):
        regard.load(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    with pytest.raises(ValueError, match=r"must be a run of regard, or a model directory of a BERT.*; got t5"):
        regard.load(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "mamba", "architectures": 5, "recipe": []}')
    with pytest.raises(ValueError, match="; got mamba"):
        regard.load(tmp_path)
    with pytest.raises(ValueError, match=r"language: .* must be a run of a language model; got a run of translate"):
        regard.load(translator, LanguageModel)


@pytest.mark.parametrize(
    ("files", "message"),
    [(["reviews.tsv"] * 2, "files (2) must be one for a classifier"), (["nowhere"], "file (nowhere) must exist")],
)
def test_errors_of_evaluate(
    data: Path, tmp_path: Path, files: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    regard.train_text_classifier(tmp_path / "run", train=data / "reviews.tsv", **BERT)
    paths = [str(data / name) if name != "nowhere" else name for name in files]
    assert main(["evaluate", str(tmp_path / "run"), *paths]) == 1
    assert message in capsys.readouterr().err


def test_a_run_that_is_a_file_is_refused(data: Path, tmp_path: Path) -> None:
    for folder in (data / "train.tsv", data / "train.tsv" / "run"):
        with pytest.raises(ValueError, match=r"run \(.*\) must be a folder; got the file .*train\.tsv\. Give the path"):
            recurrent(data, folder)


def test_a_run_that_is_not_writable_is_refused(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != tmp_path)
    with pytest.raises(ValueError, match=r"run \(.*\) must be writable; .* is not\. Give a folder"):
        recurrent(data, tmp_path / "run")


def test_a_folder_in_place_of_a_file_is_named(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"data: train \(.*\) must be a file; got a folder"):
        regard.train_language_model(tmp_path / "run", train=data, **SMALL)


def test_evaluation_reads_a_header(data: Path, tmp_path: Path) -> None:
    """A run that was trained with --header can be evaluated on a file with the same first line."""
    rows = (data / "reviews.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "a.tsv").write_text("".join(["review\tstars\n", *rows[-30:]]), encoding="utf-8")
    model = regard.train_text_classifier(tmp_path / "run", train=tmp_path / "a.tsv", header=True, **BERT)
    assert model.evaluate(tmp_path / "a.tsv", header=True)["examples"] == 30
    assert main(["evaluate", str(tmp_path / "run"), str(tmp_path / "a.tsv"), "--header"]) == 0
    assert main(["evaluate", str(tmp_path / "run"), str(tmp_path / "a.tsv")]) == 1


def test_export_chooses_the_format_by_the_model(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(tmp_path / "run")
    regard.train_masked_language_model(run, train=data / "plain.txt", documents="line", **BERT)
    assert main(["export", run, "--to", "ctranslate2"]) == 1
    assert "to (ctranslate2) must be huggingface for a MaskedLanguageModel" in capsys.readouterr().err
    assert main(["export", run]) == 0
    assert capsys.readouterr().out.strip() == str(Path(run) / "huggingface")
    assert (Path(run) / "huggingface/config.json").exists()
