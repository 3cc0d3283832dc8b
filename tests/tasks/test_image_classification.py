"""The image classification task: loss, metrics, classification of files, and attention."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from regard.data.augment import Augmentation, mixup
from regard.data.image_batches import Images, Normal, Shape
from regard.data.image_files import decode
from regard.models.cnn import CNN, CNNConfig
from regard.models.vit import ViT, ViTConfig
from regard.tasks.image_classification import ClassifyImages
from regard.tasks.image_classifier import ImageClassifier, read_about
from regard.tasks.loading import load_image_classifier
from regard.training.recipes.train_image_classifier import Pictures, prepare

SIZES = {"classes": 3, "image": (8, 12), "patch": 4, "width": 12, "heads": 3, "hidden": 24, "layers": 2}
PLAIN = Augmentation(flip=0.0, crop=0, erase=0.0)
NORMAL = Normal((0.5,), (0.25,))


def images(count: int = 30) -> Images:
    random = np.random.default_rng(0)
    return Images(random.integers(0, 256, (count, 8, 12), np.uint8), np.arange(count) % 3, ["ant", "bee", "cat"])


@pytest.fixture
def classifier() -> ImageClassifier:
    torch.manual_seed(0)
    return ImageClassifier(ViT(ViTConfig(**SIZES)), ["ant", "bee", "cat"], Shape(8, 12, 1), NORMAL)  # type: ignore[arg-type]


def task(classifier: ImageClassifier, changes: Augmentation = PLAIN, smoothing: float = 0.0) -> ClassifyImages:
    return ClassifyImages(classifier, images(), images(7), 10, changes, smoothing=smoothing, seed=1)


def test_the_loss_is_the_sum_over_images(classifier: ImageClassifier) -> None:
    one = task(classifier, smoothing=0.1)
    batch = next(one.batches(0, start=0, rank=0, world=1))
    loss = one.loss(batch)
    logits = one.model(NORMAL(batch.images))
    wanted = F.cross_entropy(logits, batch.labels, reduction="sum", label_smoothing=0.1)
    assert torch.allclose(loss.total, wanted) and loss.count == 10 == len(batch) and one.batches_in(0) == 3


def test_a_mixture_counts_for_both_classes(classifier: ImageClassifier) -> None:
    one = task(classifier, replace(PLAIN, mixup=1.0))
    batch = next(one.batches(0, start=0, rank=0, world=1))
    torch.manual_seed(5)
    total = one.loss(batch).total
    torch.manual_seed(5)
    for _ in range(1):  # the random numbers drawn by the other augmentations
        torch.rand(len(batch)), torch.rand(5, len(batch))
    mixed = mixup(NORMAL(batch.images), batch.labels, 1.0)
    log = one.model(mixed.images).log_softmax(-1)
    rows = torch.arange(10)
    wanted = -(mixed.share * log[rows, mixed.labels] + (1 - mixed.share) * log[rows, mixed.others]).sum()
    assert torch.allclose(total, wanted, atol=1e-4)


def test_augmentation_follows_the_seed(classifier: ImageClassifier) -> None:
    one = task(classifier, Augmentation())
    batch = next(one.batches(0, start=0, rank=0, world=1))
    totals = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        totals.append(one.loss(batch).total.item())
    assert totals[0] == totals[1] != totals[2]


def test_an_empty_share_has_no_loss(classifier: ImageClassifier) -> None:
    one = task(classifier)
    *_, last = one.batches(0, start=0, rank=11, world=12)
    assert len(last) == 0
    loss = one.loss(last)
    loss.total.backward()
    assert loss.total == 0 and loss.count == 0 and all(p.grad is not None for p in one.model.parameters())


def test_metrics_and_samples(classifier: ImageClassifier) -> None:
    one = task(classifier)
    metrics = one.evaluate()
    logits = classifier.logits(images(7).take(np.arange(7)))
    assert metrics["accuracy"] == pytest.approx(float((logits.argmax(-1) == images(7).labels).double().mean()))
    assert metrics["loss"] == pytest.approx(float(F.cross_entropy(logits, images(7).labels)))
    assert 0 <= metrics["f1"] <= 1
    samples = one.samples()
    assert len(samples) == 7 and samples[1][2] == "bee" and re.fullmatch(r"(ant|bee|cat)\t0\.\d{4}", samples[0][1])


def test_classify_files_pillow_images_and_arrays(classifier: ImageClassifier, tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (8, 12), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "x.png")
    labels = classifier.classify(
        [tmp_path / "x.png", str(tmp_path / "x.png"), Image.fromarray(pixels), pixels], batch=3
    )
    assert len({str(one) for one in labels}) == 1 and len(labels) == 4
    logits = classifier.model.eval()(NORMAL(torch.from_numpy(pixels)[None, None]))
    assert torch.allclose(labels[3].probabilities, logits.softmax(-1)[0], atol=1e-6)
    assert labels[0].name == classifier.classes[int(logits.argmax())]
    assert classifier.classify([]) == []
    other = np.random.default_rng(1).integers(0, 256, (40, 30, 3), np.uint8)  # resized to the shape of the model
    assert 0 < classifier.classify([other])[0].probability <= 1
    (tmp_path / "y.png").write_text("no image")
    with pytest.raises(ValueError, match=r"images: file \(.*y.png\) must be an image"):
        classifier.classify([tmp_path / "x.png", tmp_path / "y.png"])


def test_attention_of_the_class_token(classifier: ImageClassifier) -> None:
    pixels = images().take([3])
    for training in (True, False):
        classifier.model.train(training)
        attention = classifier.look(pixels[0, 0].numpy())
        assert classifier.model.training is training  # the mode is restored
    assert attention is not None and attention.shape == (2, 3)
    _, maps = classifier.model(NORMAL(pixels), return_maps=True)
    assert torch.allclose(attention.flatten(), maps[-1].dense()[0, :, 0, 1:].mean(0), atol=1e-6)
    mean = ImageClassifier(ViT(ViTConfig(pool="mean", **SIZES)), classifier.classes, classifier.shape, NORMAL)  # type: ignore[arg-type]
    attention = mean.look(pixels[0, 0].numpy())
    assert (
        attention is not None and attention.shape == (2, 3) and float(attention.sum()) == pytest.approx(1.0, abs=1e-4)
    )
    cnn = ImageClassifier(CNN(CNNConfig(3, widths=(4,))), classifier.classes, classifier.shape, NORMAL)
    assert cnn.look(pixels[0, 0].numpy()) is None


def test_classes_shape_and_normalization_are_saved(classifier: ImageClassifier, tmp_path: Path) -> None:
    classifier.save(tmp_path)
    assert read_about(tmp_path) == (classifier.classes, classifier.shape, NORMAL)
    (tmp_path / "images.json").write_text("{}")
    with pytest.raises(ValueError, match=re.escape(f"images: {tmp_path / 'images.json'} must hold the classes")):
        read_about(tmp_path)


def test_invalid_data_settings_are_named(tmp_path: Path) -> None:
    wrong = Pictures(tmp_path / "x", held_out=0.0, size=-1, batch=0, flip=2.0, erase=-1.0)
    errors = "\n".join(wrong.errors())
    for name in ("images", "held_out", "size", "batch", "flip", "erase"):
        assert f"data: {name} (" in errors
    assert Pictures(tmp_path).errors() == []
    (tmp_path / "test").mkdir()
    with pytest.raises(ValueError, match=r"must hold training images \(train\); got only others"):
        prepare(Pictures(tmp_path), tmp_path / "run")


def with_random_weights(image: tuple[int, int], channels: int) -> ImageClassifier:
    torch.manual_seed(0)
    model = ViT(ViTConfig(**SIZES | {"image": image, "channels": channels})).eval()  # type: ignore[arg-type]
    for parameter in model.parameters():  # so that the prediction depends on the image
        torch.nn.init.normal_(parameter, std=0.3)
    normal = Normal((0.5,) * channels, (0.25,) * channels)
    return ImageClassifier(model, ["ant", "bee", "cat"], Shape(*image, channels), normal)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(90, 40), (40, 90), (16, 16)], ids=str)
def test_transformers_predicts_the_same_for_an_exported_model(
    tmp_path: Path, channels: int, size: tuple[int, int]
) -> None:
    transformers = pytest.importorskip("transformers")
    classifier = with_random_weights((16, 16), channels)
    pixels = np.random.default_rng(0).integers(0, 256, (5, 9, 3)[: 2 if channels == 1 else 3], np.uint8)
    picture = Image.fromarray(pixels).resize(size)
    folder = classifier.export(tmp_path / "out")
    inputs = transformers.AutoImageProcessor.from_pretrained(folder)(picture, return_tensors="pt")
    with torch.inference_mode():
        logits = transformers.AutoModelForImageClassification.from_pretrained(folder)(**inputs).logits
    ours = classifier.classify([picture])[0].probabilities
    torch.testing.assert_close(logits.softmax(-1)[0], ours, atol=1e-4, rtol=0)
    torch.testing.assert_close(load_image_classifier(folder).classify([picture])[0].probabilities, ours)


def test_the_export_of_a_model_of_oblong_images_warns(classifier: ImageClassifier, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"image \(8 × 12\) is not square, .* Crop images to 12:8 first"):
        classifier.export(tmp_path)
    transformers = pytest.importorskip("transformers")
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 256, (16, 24), np.uint8)
    inputs = processor(Image.fromarray(pixels), return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(inputs[0], NORMAL(decode(pixels, classifier.shape)[None])[0], atol=1e-5, rtol=0)
