"""The recipe of `regard train classify --images`: trains an image classifier.

From top to bottom: data settings, reading of the images, recipe settings, training, test.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import torch

from ...core.setting_options import named
from ...core.settings import LATER, to_values
from ...data import augment
from ...data.image_batches import ImageBatches, Images, Normal, Shape, split
from ...data.image_files import read_images
from ...models.cnn import CNNConfig
from ...models.vit import ViTConfig
from ...pictures.training_charts import save_confusion
from ...tasks.image_classification import ClassifyImages, predicted
from ...tasks.image_classifier import FILE, ImageClassifier, write_about
from ...tasks.loading import image_model, load_image_classifier
from ...tasks.metrics import confusion, f1_of, figures
from ..config import Training
from ..distributed import is_first_process
from ..logbook import Outcome
from ..loop import fit
from ..progress import Display
from .preparation import prepare_once
from .recipe_settings import checked_settings, range_errors, read_recipe, smoothing_errors


@dataclass(frozen=True)
class Pictures:
    """Settings of the images and their augmentation."""

    images: Path = field(metadata=named("train"))
    """A folder of idx files, a folder with one subfolder per class (or with train and test), or an .npz of arrays."""
    held_out: float = field(default=0.05, metadata=named("hold_out"))
    """Fraction of the training images held out at random, to select the best weights."""
    size: int = 0
    """Height and width to resize images to; 0 uses the size of the first image."""
    colour: Literal["auto", "grey", "colour"] = "auto"
    """Convert images to greyscale or color; auto uses the mode of the first image."""
    batch: int = 128
    """Batch size."""
    flip: float = 0.5
    """Probability of a horizontal flip. Set it to 0 if flipping changes the class, as with letters and digits."""
    crop: int = 2
    """Maximum shift of a random crop, in pixels."""
    erase: float = 0.25
    """Probability of erasing a random rectangle."""
    mixup: float = 0.0
    """Strength of mixup: α of Beta(α, α); 0 disables it."""
    valid: Path | None = field(default=None, metadata=LATER)
    """Held-out images to select the best weights, in the same format. By default, a fraction is held out."""

    def errors(self) -> list[str]:
        """Return one message for each invalid setting."""
        errors = []
        if not self.images.exists():
            errors.append(f"data: images ({self.images}) must be an existing folder or .npz file.")
        if self.valid is not None and not self.valid.exists():
            errors.append(f"data: valid ({self.valid}) must be an existing folder or .npz file.")
        for name in ("flip", "erase"):
            if not 0 <= getattr(self, name) <= 1:
                errors.append(f"data: {name} ({getattr(self, name)}) must lie in [0, 1].")
        for name, low, high in (("size", 0, 2**14), ("crop", 0, 2**14), ("mixup", 0, 2**10), ("batch", 1, 2**20)):
            errors += range_errors(name, getattr(self, name), low, high)
        if not 0 < self.held_out < 1:
            errors.append(f"data: held_out ({self.held_out}) must lie in (0, 1). Try 0.05.")
        return errors

    @property
    def augmentation(self) -> augment.Augmentation:
        """Random augmentation of the training images."""
        return augment.Augmentation(self.flip, self.crop, self.erase, self.mixup)

    @property
    def shape(self) -> Shape:
        """Shape of the images; 0 for a dimension given by the first image."""
        return Shape(self.size, self.size, {"auto": 0, "grey": 1, "colour": 3}[self.colour])


class Prepared(NamedTuple):
    """Training, validation and test images (if any), and their normalization."""

    train: Images
    valid: Images
    test: Images | None
    normal: Normal
    digests: Mapping[str, str]
    """Digests of images.json and of the inputs."""


def prepare(data: Pictures, folder: Path, seed: int = 0) -> Prepared:
    """Read the images. Write their classes, shape and normalization to the folder of the run, or verify them."""
    read: list[tuple[Images, Images, Images | None, Normal]] = []

    def make() -> None:
        read.append(_read(data, seed))
        train, _, _, normal = read[0]
        write_about(folder, train.classes, train.shape, normal)

    settings = {**to_values(data), "seed": seed}
    inputs = (data.images,) if data.valid is None else (data.images, data.valid)
    digests = prepare_once(folder, settings=settings, inputs=inputs, outputs=(FILE,), make=make)
    return Prepared(*(read[0] if read else _read(data, seed)), digests)


def _read(data: Pictures, seed: int) -> tuple[Images, Images, Images | None, Normal]:
    images = read_images(data.images, shape=data.shape)
    if images is None:
        raise ValueError(f"images: {data.images} must hold training images (train); got only others.")
    _check_classes(images, data.images)
    if data.valid is None:
        train, valid = split(images, data.held_out, seed)
    else:
        train, held = images, read_images(data.valid, shape=images.shape, classes=images.classes)
        if held is None:
            raise ValueError(f"images: {data.valid} must hold images in a folder for each class; got only others.")
        valid = held
    test = read_images(data.images, "test", shape=images.shape, classes=images.classes)
    return train, valid, test, Normal.of(train)


def _check_classes(images: Images, path: Path) -> None:
    """Raise ValueError if all images have the same class: a model would be right about all of them at once."""
    names = [images.classes[label] for label in images.labels.unique().tolist()]
    if len(names) < 2:
        raise ValueError(
            f"images: classes ({', '.join(names)}) of {path} must be at least two different ones; got {len(names)}. "
            "Pass the folder that has one subfolder for each class, not the folder of one class or a folder above."
        )


NAME = "images"
PICTURE = "confusion.png"
"""Picture of the confusion matrix of the test images, or of the held-out images if there are no test images."""


@dataclass(frozen=True)
class Recipe:
    """Settings shared by all image classifiers."""

    data: Pictures
    training: Training = field(
        default_factory=lambda: Training(
            epochs=25, learning_rate=1e-3, warmup=0.05, weight_decay=0.05, betas=(0.9, 0.99), average="exponential"
        )
    )
    smoothing: float = 0.1
    """Label smoothing: probability that the loss spreads over all classes."""

    def errors(self) -> list[str]:
        """Return one message for each invalid setting."""
        return smoothing_errors(NAME, self.smoothing)


@dataclass(frozen=True)
class ImagesRecipe(Recipe):
    """Train a Vision Transformer on labelled images."""

    model: ViTConfig = field(default_factory=ViTConfig)


@dataclass(frozen=True)
class CNNRecipe(Recipe):
    """Train a residual convolutional network on labelled images."""

    model: CNNConfig = field(default_factory=CNNConfig)


KINDS: dict[str, type[ImagesRecipe] | type[CNNRecipe]] = {"vit": ImagesRecipe, "cnn": CNNRecipe}


def train(recipe: ImagesRecipe | CNNRecipe, folder: str | os.PathLike[str], display: Display | None = None) -> Outcome:
    """Read the images, build the model, train and test it. If the folder holds the run, resume it."""
    folder = Path(folder)
    display = display or Display()
    seed = recipe.training.seed
    settings = checked_settings(recipe, folder, NAME, KINDS)
    images, valid, test, normal, digests = prepare(recipe.data, folder, seed)
    display.say(f"train: {images}; held out: {len(valid):,}" + ("" if test is None else f"; test: {len(test):,}"))
    torch.manual_seed(seed)  # seeds the initial weights
    model = image_model(recipe.model, images.classes, images.shape)
    classifier = ImageClassifier(model, images.classes, images.shape, normal)
    data = recipe.data
    task = ClassifyImages(
        classifier, images, valid, data.batch, data.augmentation, smoothing=recipe.smoothing, seed=seed
    )
    outcome = fit(task, recipe.training, folder, recipe=settings, digests=digests, display=display)
    if is_first_process():
        part, images_of_part = ("held out", valid) if test is None else ("test", test)
        display.say(f"{part}: evaluating the best weights on {len(images_of_part):,} images …")
        report(load_image_classifier(folder), images_of_part, folder, part, display)
    return outcome


def report(classifier: ImageClassifier, images: Images, folder: Path, part: str, display: Display) -> None:
    """Print accuracy and F1 of the best weights, and save the confusion matrix as a picture."""
    logits, labels = predicted(classifier, ImageBatches(images, 256, shuffle=False).epoch(0))
    matrix = confusion(logits.argmax(-1), labels, len(classifier.classes))
    save_confusion(matrix, classifier.classes, f1_of(matrix).each.tolist(), folder / PICTURE)
    metrics = figures(logits, labels)
    display.say(f"{part}: accuracy {metrics['accuracy']:.4f}, F1 {metrics['f1']:.4f}: {folder / PICTURE}")


def stored(folder: str | os.PathLike[str]) -> ImagesRecipe | CNNRecipe:
    """Read the recipe of a run."""
    return read_recipe(folder, NAME, KINDS, "an image classifier")
