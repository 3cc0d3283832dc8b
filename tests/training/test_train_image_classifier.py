"""The image classification recipe: training, resuming, loading and drawing, for ViT and CNN."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from regard.commands.main import main
from regard.models.cnn import CNNConfig
from regard.models.huggingface_vit import save_vit
from regard.models.vit import ViT, ViTConfig
from regard.pictures.image_overlay import overlay
from regard.tasks import loading
from regard.tasks.image_classification import ClassifyImages
from regard.tasks.loading import load_image_classifier
from regard.training import Interrupted, Silent, Training, parse
from regard.training.recipes import train_image_classifier
from regard.training.recipes.train_image_classifier import KINDS, CNNRecipe, ImagesRecipe, Pictures, stored, train
from tests.tasks.test_pretraining import Broken
from tests.training.test_loop import same_runs


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of train and test images with a dark square on the left or right, one class for each side."""
    folder, random = tmp_path_factory.mktemp("squares"), np.random.default_rng(0)
    for part, count in (("train", 60), ("test", 20)):
        for number in range(count):
            side = number % 2
            pixels = random.integers(150, 256, (8, 8), np.uint8)
            pixels[2:6, 4 * side : 4 * side + 4] //= 4
            path = folder / part / ("left", "right")[side] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path)
    return folder


def recipe(data: Path, steps: int = 40) -> ImagesRecipe:
    return ImagesRecipe(
        Pictures(data, held_out=0.2, batch=16, flip=0.0, crop=0, erase=0.0),
        Training(steps=steps, warmup=10, learning_rate=5e-3, evaluate_every=20, log_every=20, device="cpu"),
        model=ViTConfig(width=16, heads=2, hidden=32, layers=2),
    )


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "vit"
    train(recipe(data), folder, Silent())
    return folder


def test_it_learns_and_reports_metrics(run: Path, data: Path) -> None:
    classifier = load_image_classifier(run)
    assert isinstance(classifier.model, ViT) and classifier.model.config.image == (8, 8)
    files = sorted((data / "test").rglob("*.png"))
    labels = classifier.classify(files)
    assert np.mean([one.name == file.parent.name for one, file in zip(labels, files, strict=True)]) >= 0.9
    saved = json.loads((run / "confusion.json").read_text())
    assert saved["names"] == ["left", "right"] and sum(map(sum, saved["matrix"])) == 20 and saved["accuracy"] >= 0.9
    assert (run / "confusion.png").stat().st_size > 1000
    assert "held-out image 0" in (run / "samples.txt").read_text()
    assert stored(run) == recipe(data)


def test_an_interrupted_run_ends_with_the_same_weights(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(recipe(data, 20), tmp_path / "whole", Silent())
    with monkeypatch.context() as patch:
        patch.setattr(
            train_image_classifier, "ClassifyImages", lambda *args, **kwargs: Broken(ClassifyImages(*args, **kwargs), 7)
        )
        with pytest.raises(Interrupted):
            train(recipe(data, 20), tmp_path / "broken", Silent())
    train(recipe(data, 20), tmp_path / "broken", Silent())
    assert same_runs(tmp_path / "whole", tmp_path / "broken")


def test_the_commands(
    data: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = ["--width", "16", "--heads", "2", "--hidden", "32", "--layers", "1", "--steps", "2", "--warmup", "0"]
    folder = str(tmp_path / "run")
    assert main(["train", "classify", folder, "--images", str(data), *sizes]) == 0
    assert main(["train", "classify", folder]) == 0  # already finished
    files = [str(data / f"test/{side}/{number}.png") for number, side in enumerate(("left", "right"))]
    capsys.readouterr()
    assert main(["classify", str(run), "--plot", str(tmp_path / "seen.png"), *files]) == 0
    assert [line.split("\t")[0] for line in capsys.readouterr().out.splitlines()] == ["left", "right"]
    assert (tmp_path / "seen.png").exists() and (tmp_path / "seen-2.png").exists()
    save_vit(load_image_classifier(run).model, tmp_path / "hf", ["left", "right"])
    normal = load_image_classifier(run).normal
    preprocessor = {"image_mean": normal.mean, "image_std": normal.deviation}
    for wrong in (5, "x", [0.5, 0.5], ["a"], [True], {}):
        (tmp_path / "hf/preprocessor_config.json").write_text(json.dumps({**preprocessor, "image_mean": wrong}))
        if wrong:
            with pytest.raises(ValueError, match=r"image_mean \(.*\) of .* must be 1 numbers, one for each channel"):
                load_image_classifier(tmp_path / "hf")
    (tmp_path / "hf/preprocessor_config.json").write_text(json.dumps(preprocessor))
    assert main(["classify", str(tmp_path / "hf"), "--all", files[0]]) == 0
    assert capsys.readouterr().out.startswith("left\t")
    (tmp_path / "no.png").write_text("text")
    assert main(["classify", str(run), str(tmp_path / "no.png")]) == 1
    assert "no.png" in capsys.readouterr().err


def test_a_convolutional_network(data: Path, tmp_path: Path) -> None:
    cnn_recipe = CNNRecipe(
        Pictures(data, batch=16), Training(steps=4, warmup=1, device="cpu"), model=CNNConfig(widths=(4, 8), blocks=1)
    )
    train(cnn_recipe, tmp_path, Silent())
    assert stored(tmp_path) == cnn_recipe and load_image_classifier(tmp_path).look(np.zeros((8, 8), np.uint8)) is None


def test_the_command_line(data: Path) -> None:
    settings = parse(KINDS["vit"], ["--images", str(data), "--width", "64", "--epochs", "3", "--crop", "1"], flat=True)
    assert isinstance(settings, ImagesRecipe)
    assert (settings.data.images, settings.model.width, settings.training.epochs, settings.data.crop) == (
        data,
        64,
        3,
        1,
    )
    assert isinstance(parse(KINDS["cnn"], ["--images", str(data), "--widths", "4", "8"], flat=True), CNNRecipe)
    with pytest.raises(ValueError, match=r"data: images \(nowhere\) must be an existing folder"):
        parse(KINDS["vit"], ["--images", "nowhere"], flat=True)


def test_images_of_one_class_are_refused(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A model of one class is right about every image, which says nothing."""
    (tmp_path / "parent").mkdir()
    (tmp_path / "parent" / "animals").symlink_to(data / "test")
    with pytest.raises(ValueError) as caught:
        train(recipe(tmp_path / "parent"), tmp_path / "run", Silent())
    assert str(caught.value) == (
        f"images: classes (animals) of {tmp_path / 'parent'} must be at least two different ones; got 1. Pass the "
        "folder that has one subfolder for each class, not the folder of one class or a folder above."
    )
    np.savez(tmp_path / "x.npz", images=np.zeros((6, 8, 8), np.uint8), labels=np.full(6, 2))
    assert main(["train", "classify", str(tmp_path / "other"), "--train", str(tmp_path / "x.npz")]) == 1
    assert "classes (2) of " in capsys.readouterr().err


def test_mismatched_runs_are_refused(run: Path, data: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"recipe": "translate", "kind": "vit"}')
    with pytest.raises(ValueError, match="must be a run of an image classifier; got a run of translate"):
        load_image_classifier(tmp_path)
    with pytest.raises(ValueError, match=re.escape("vit: image (8×8) must be divisible by the patch (5)")):
        train(
            ImagesRecipe(Pictures(data), Training(steps=1, warmup=0), model=ViTConfig(patch=5)),
            tmp_path / "x",
            Silent(),
        )
    weights = run / "model.safetensors"
    whole = weights.read_bytes()
    try:
        weights.write_bytes(whole[:-10])
        with pytest.raises(ValueError, match=re.escape(str(weights))):
            load_image_classifier(run)
    finally:
        weights.write_bytes(whole)


def test_the_attention_overlay_is_drawn(run: Path, data: Path, tmp_path: Path) -> None:
    classifier, file = load_image_classifier(run), data / "test/left/0.png"
    attention = classifier.look(file)
    assert attention is not None and attention.shape == (2, 2)
    for image in (np.asarray(Image.open(file)), np.zeros((3, 8, 8), np.uint8), np.zeros((8, 8, 3), np.uint8)):
        overlay(image, attention, tmp_path / "seen.png", title="left $1$")
        assert Image.open(tmp_path / "seen.png").size[0] > 500
    with pytest.raises(ValueError, match=r"overlay: weights \(4,\) must be"):
        overlay(np.zeros((8, 8), np.uint8), attention.flatten(), tmp_path / "seen.png")
    with pytest.raises(ValueError, match=r"overlay: image \(float64 \(8, 8\)\) must be bytes"):
        overlay(np.zeros((8, 8)), attention, tmp_path / "seen.png")


def test_loading_reads_only_the_model_settings(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {**loading.read_config(run), "data": "gone", "training": None}
    monkeypatch.setattr(loading, "read_config", lambda folder: config)
    assert load_image_classifier(run).classes == ["left", "right"]
    config["model"] = {**config["model"], "widht": 8}
    with pytest.raises(ValueError, match=r"settings: model\.widht \(8\) must be a known setting"):
        load_image_classifier(run)
    config["model"] = None
    with pytest.raises(ValueError, match=r"settings: model \(None\) must be an object with settings"):
        load_image_classifier(run)
