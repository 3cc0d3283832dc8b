"""Text classification from the command line: pretrain, finetune, resume, classify, export."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest
from safetensors import SafetensorError

from regard.commands.main import main
from regard.tasks.loading import load_text_classifier
from regard.training import logbook
from regard.training.recipes import train_text_classifier as recipe
from tests.tasks.sample_texts import write_labelled, write_plain

SMALL = ["--vocabulary", "80", "--width", "16", "--heads", "2", "--hidden", "32", "--layers", "1", "--positions", "32"]
SHORT = ["--steps", "6", "--longest", "24", "--tokens", "200", "--log-every", "2"]


@pytest.fixture(autouse=True, scope="module")
def no_drawing() -> object:
    """Drawing the curves would take longer than a small run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logbook, "draw", lambda records, goal: b"")
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("classify")
    write_labelled(path / "train.tsv", 120)
    write_labelled(path / "valid.tsv", 20, seed=1)
    write_plain(path / "text.txt", 80)
    return path


@pytest.fixture(scope="module", params=["masked", "pairs"])
def pretrained(request: pytest.FixtureRequest, folder: Path) -> Path:
    run = folder / request.param
    options = ["--next-sentence", "--whole-words"] if request.param == "pairs" else []
    text = ["--text", str(folder / "text.txt"), "--documents", "line", "--hold-out", "0.2"]
    assert main(["train", "pretrain", str(run), *text, *options, *SMALL, *SHORT]) == 0
    return run


@pytest.fixture(scope="module")
def run(pretrained: Path, folder: Path) -> Path:
    path = folder / f"from-{pretrained.name}"
    data = ["--data", str(folder / "train.tsv"), "--valid", str(folder / "valid.tsv")]
    assert main(["train", "classify", str(path), *data, "--from", str(pretrained), *SHORT, "--layer-decay", "0.9"]) == 0
    return path


def test_a_pretraining_run_has_all_files(pretrained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("config.json", "bert.json", "tokenizer.json", "model.safetensors", "metrics.jsonl", "samples.txt"):
        assert (pretrained / name).stat().st_size, name
    last = json.loads((pretrained / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["step"] == 6 and ("next_accuracy" in last) == (pretrained.name == "pairs")
    assert main(["train", "pretrain", str(pretrained)]) == 0  # with its stored settings
    assert "already finished by steps" in capsys.readouterr().out


def test_finetuning_starts_from_the_pretrained_model(run: Path) -> None:
    config = json.loads((run / "config.json").read_text())
    assert config["recipe"] == "classify" and config["kind"] == "finetune" and config["layer_decay"] == 0.9
    assert (run / "tokenizer.json").read_text() == (Path(config["start"]) / "tokenizer.json").read_text()
    saved = json.loads((run / "confusion.json").read_text())
    assert saved["names"] == ["bad", "good"] and sum(map(sum, saved["matrix"])) == 20
    assert (run / "confusion.png").stat().st_size
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert {"accuracy", "f1", "loss"} <= last.keys()


def test_finetuning_can_change_pooling_and_dropout(
    pretrained: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, again = folder / f"mean-{pretrained.name}", folder / f"again-{pretrained.name}"
    data = ["--data", str(folder / "train.tsv"), "--valid", str(folder / "valid.tsv"), *SHORT]
    options = ["--pool", "mean", "--dropout", "0.3"]
    assert main(["train", "classify", str(path), *data, "--from", str(pretrained), *options]) == 0
    assert main(["train", "classify", str(again), *data, "--from", str(path)]) == 0
    for run in (path, again):  # the second inherits them from the first
        config = load_text_classifier(run).model.bert.config
        assert (config.pool, config.dropout) == ("mean", 0.3)
    assert main(["export", str(path), "--to", "huggingface"]) == 1
    assert "pool ('mean') must be 'first'" in capsys.readouterr().err


def test_a_run_resumes_without_its_pretrained_model(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(run, tmp_path / "run")  # the other tests share the original
    start = Path(json.loads((run / "config.json").read_text())["start"])
    start.rename(start.with_name("elsewhere"))
    try:
        assert main(["train", "classify", str(run), "--steps", "8"]) == 0
    finally:
        start.with_name("elsewhere").rename(start)
    assert json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["step"] == 8
    assert main(["train", "classify", str(run), "--steps", "8", "--longest", "9"]) == 1
    assert "texts.longest (24 there, 9 here)" in capsys.readouterr().err


def test_texts_and_lines_are_classified_alike(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["a lovely film", "dull"]
    assert main(["classify", str(run), *texts, "--all"]) == 0
    output = capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in texts)))
    assert main(["classify", str(run), "--top", "2"]) == 0
    assert capsys.readouterr().out == output
    rows = [line.split("\t") for line in output.splitlines()]
    assert all({row[0], row[2]} == {"good", "bad"} and float(row[1]) >= float(row[3]) for row in rows)
    assert main(["classify", str(run), *texts]) == 0
    assert [line.split("\t") for line in capsys.readouterr().out.splitlines()] == [row[:2] for row in rows]


def test_files_are_classified_and_an_empty_line_stays_empty(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in.txt").write_text("a lovely film\n\n \ndull\n")
    assert main(["classify", str(run), "--file", str(tmp_path / "in.txt"), "--out", str(tmp_path / "out.tsv")]) == 0
    assert capsys.readouterr().out == ""
    lines = (tmp_path / "out.tsv").read_text().splitlines()
    assert [bool(line) for line in lines] == [True, False, False, True]
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in a terminal
    assert main(["classify", str(run), "--file", str(tmp_path / "in.txt"), "--out", str(tmp_path / "out.tsv")]) == 0
    assert "4/?" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    assert main(["classify", str(run), "in.txt"]) == 0
    assert "in.txt is read as a text. It is also the name of a file: --file in.txt reads" in capsys.readouterr().err
    assert main(["classify", str(run), "a", "--file", "in.txt"]) == 1
    assert "texts (1) and files (1) must not both be given" in capsys.readouterr().err
    assert main(["classify", str(run), "--file", "none.txt"]) == 1
    assert "file (none.txt) must exist" in capsys.readouterr().err


def test_an_export_for_transformers_gives_the_same_result(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    transformers = pytest.importorskip("transformers")
    assert main(["export", str(run), "--to", "huggingface"]) == 0
    exported = run / "huggingface"
    assert capsys.readouterr().out.strip() == str(exported)
    text = "the story was truly awful"
    for target in (run, exported):
        assert main(["classify", str(target), text]) == 0
    ours, again = capsys.readouterr().out.splitlines()
    assert ours == again
    model = transformers.AutoModelForSequenceClassification.from_pretrained(exported)
    tokens = transformers.AutoTokenizer.from_pretrained(exported)(text, return_tensors="pt")
    probabilities = model(**tokens).logits.softmax(-1)[0].detach()
    best = int(probabilities.argmax())
    assert f"{model.config.id2label[best]}\t{float(probabilities[best]):.4f}" == ours


def test_an_export_does_not_overwrite_a_run(
    run: Path, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = (run / "model.safetensors").read_bytes()
    assert main(["export", str(run), "--out", str(run)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"regard export: folder ({run}) must not hold a run") and error.count("\n") == 1
    with pytest.raises(ValueError, match="must not hold a run"):
        load_text_classifier(run).export(run)
    assert (run / "model.safetensors").read_bytes() == weights

    def full(*_: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("regard.models.model_directory.save_file", full)
    assert main(["export", str(run), "--out", str(folder / "full")]) == 1
    error = capsys.readouterr().err
    assert error.startswith(
        f"regard export: {folder / 'full'} must be writable; got I/O error: No space left on device"
    )
    assert error.count("\n") == 1 and not (folder / "full").exists()


def test_finetuning_from_a_hugging_face_directory(run: Path, folder: Path) -> None:
    assert main(["export", str(run), "--to", "huggingface", "--out", str(folder / "hf")]) == 0
    path, data = folder / f"hf-{run.name}", ["--data", str(folder / "train.tsv")]
    assert main(["train", "classify", str(path), *data, "--from", str(folder / "hf"), *SHORT]) == 0
    assert load_text_classifier(path).labels == ("bad", "good")


def test_training_from_scratch_with_a_held_out_split(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "scratch"
    data = ["--data", str(folder / "train.tsv"), "--hold-out", "0.25", "--smoothing", "0.1"]
    assert main(["train", "classify", str(path), *data, *SMALL, *SHORT]) == 0
    stored = recipe.stored(path)
    assert isinstance(stored, recipe.ScratchRecipe) and stored.model.width == 16 and stored.texts.hold_out == 0.25
    assert main(["classify", str(path), "great"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split("\t")[0] in ("good", "bad")


def test_bad_input_is_named(folder: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new, data = str(tmp_path / "run"), ["--data", str(folder / "train.tsv")]
    (tmp_path / "one.tsv").write_text("x\ta\ny\ta\n")
    (tmp_path / "other.tsv").write_text("x\tgood\ny\tmixed\n")
    cases = {
        "train (none.tsv) must be an existing file": ["train", "classify", new, "--data", "none.tsv"],
        "train (imgs_typo) must be an existing file of labelled texts, or a folder or .npz file of images": [
            "train",
            "classify",
            new,
            "--train",
            "imgs_typo",
            "--patch",
            "8",
        ],
        "smoothing (1.0) must lie in": ["train", "classify", new, *data, "--smoothing", "1"],
        "labels (a) must be at least two different ones": [
            "train",
            "classify",
            new,
            "--data",
            str(tmp_path / "one.tsv"),
            "--hold-out",
            "0.5",
        ],
        "label (mixed) in line 2": ["train", "classify", new, *data, "--valid", str(tmp_path / "other.tsv")],
        "path (nowhere) must be the folder of a run or of a Hugging Face model; it does not exist": [
            "train",
            "classify",
            new,
            *data,
            "--from",
            "nowhere",
        ],
        "positions (32) must be at least longest; got 99": [
            "train",
            "classify",
            new,
            *data,
            "--from",
            str(run),
            "--longest",
            "99",
        ],
        "layer_decay (2.0) must lie": ["train", "classify", new, *data, "--from", str(run), "--layer-decay", "2"],
        "dropout (1.0) must lie": ["train", "classify", new, *data, "--from", str(run), "--dropout", "1"],
        "kind (mlp) must be one of scratch, finetune": ["train", "classify", new, *data, "--kind", "mlp"],
        "text (none.txt) must be an existing file": ["train", "pretrain", new, "--text", "none.txt"],
        "mask (0.0) must lie in": ["train", "pretrain", new, "--text", str(folder / "text.txt"), "--mask", "0"],
        "pairs need a second document": [
            "train",
            "pretrain",
            new,
            "--text",
            str(folder / "text.txt"),
            "--valid",
            str(folder / "text.txt"),
            "--next-sentence",
        ],
        "top (0) must be at least 1": ["classify", str(run), "a", "--top", "0"],
        "plot (x.png) needs an image classifier": ["classify", str(run), "a", "--plot", "x.png"],
        "plot (x.bmp) must end in .png, .svg or .pdf": ["classify", str(run), "a", "--plot", "x.bmp"],
        "a Hugging Face model; got a folder without config.json": ["classify", str(tmp_path), "a"],
    }
    for message, arguments in cases.items():
        assert main(arguments) == 1, message
        assert message in capsys.readouterr().err.replace("\n", " "), message
    pretrained = recipe.stored(run).start  # type: ignore[union-attr]
    assert main(["classify", str(pretrained), "a"]) == 1
    assert "must be a run of a text classifier; got a run of pretrain" in capsys.readouterr().err
    damaged = shutil.copytree(run, tmp_path / "damaged")  # the other tests share the original
    (damaged / "model.safetensors").write_bytes((run / "model.safetensors").read_bytes()[:-9])
    assert main(["classify", str(damaged), "a"]) == 1
    assert "model.safetensors must be a complete safetensors file" in capsys.readouterr().err


def test_help_lists_the_settings(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, wanted in (
        (["pretrain", "--help"], ["--train", "--documents", "--vocabulary", "--help-all", "example:"]),
        (["pretrain", "--help-all"], ["--whole-words", "--next-sentence", "--documents", "--vocabulary"]),
        (["classify", "--help"], ["--train", "--valid", "--from", "--minutes", "example:"]),
        (["classify", "--help-all"], ["--train", "--hold-out", "--text-column", "--width"]),
        (["classify", "--from", "x", "--help-all"], ["--from", "--layer-decay"]),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["train", *arguments])
        output = capsys.readouterr().out
        assert ended.value.code == 0 and all(option in output for option in wanted)
