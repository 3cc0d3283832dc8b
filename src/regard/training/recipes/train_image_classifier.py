"""The recipe of `regard train classify --images`: images and a kind of model → a run.

From top to bottom: settings of the data, images read by them, settings of the recipe, training, test.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import torch

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
from .recipe_settings import checked_settings, outside, read_recipe, wrong_smoothing


@dataclass(frozen=True)
class Pictures:
    """The images to learn from, and how they are changed at random."""

    images: Path
    """A folder of idx files, a folder of classes (or with train and test in it), or an .npz of arrays."""
    held_out: float = 0.05
    """Share of the images to learn from that is held out, by lot: it tells which weights are best."""
    size: int = 0
    """Height and width that images are brought to; 0: those of the first image."""
    colour: Literal["auto", "grey", "colour"] = "auto"
    """What images are brought to; auto: what the first image is."""
    batch: int = 128
    """Images of a batch."""
    flip: float = 0.5
    """Share of images whose left and right are exchanged. Set it to 0 where that changes the class: letters, digits."""
    crop: int = 2
    """Pixels by which images are moved at most, each way."""
    erase: float = 0.25
    """Share of images in which a rectangle is wiped out."""
    mixup: float = 0.0
    """How much two images are mixed: α of Beta(α, α); 0 for not at all."""

    def errors(self) -> list[str]:
        """Everything that is wrong, a sentence each."""
        found = []
        if not self.images.exists():
            found.append(f"data: images ({self.images}) must be a folder or an .npz file; got none there.")
        for name in ("flip", "erase"):
            if not 0 <= getattr(self, name) <= 1:
                found.append(f"data: {name} ({getattr(self, name)}) must lie in [0, 1].")
        for name, low, high in (("size", 0, 2**14), ("crop", 0, 2**14), ("mixup", 0, 2**10), ("batch", 1, 2**20)):
            found += outside(name, getattr(self, name), low, high)
        if not 0 < self.held_out < 1:
            found.append(f"data: held_out ({self.held_out}) must lie in (0, 1). Try 0.05.")
        return found

    @property
    def augmentation(self) -> augment.Augmentation:
        """How images are changed at random."""
        return augment.Augmentation(self.flip, self.crop, self.erase, self.mixup)

    @property
    def shape(self) -> Shape:
        """What images are brought to; 0 where the first image tells."""
        return Shape(self.size, self.size, {"auto": 0, "grey": 1, "colour": 3}[self.colour])


class Prepared(NamedTuple):
    """Images to learn from, held-out ones, those of the test where there are any, and how they are scaled."""

    train: Images
    valid: Images
    test: Images | None
    normal: Normal
    digests: Mapping[str, str]
    """Of images.json and of the inputs."""


def prepare(data: Pictures, folder: Path, seed: int = 0) -> Prepared:
    """Read the images; write their classes, shape and scale to the folder of the run, or check those that are there."""
    read: list[tuple[Images, Images, Images | None, Normal]] = []

    def make() -> None:
        read.append(_read(data, seed))
        train, _, _, normal = read[0]
        write_about(folder, train.classes, train.shape, normal)

    settings, inputs = {**asdict(data), "seed": seed}, (data.images,)
    digests = prepare_once(folder, settings=settings, inputs=inputs, outputs=(FILE,), make=make)
    return Prepared(*(read[0] if read else _read(data, seed)), digests)


def _read(data: Pictures, seed: int) -> tuple[Images, Images, Images | None, Normal]:
    everything = read_images(data.images, shape=data.shape)
    if everything is None:
        raise ValueError(f"images: {data.images} must hold images to learn from (train); got others alone.")
    train, valid = split(everything, data.held_out, seed)
    test = read_images(data.images, "test", shape=everything.shape, classes=everything.classes)
    return train, valid, test, Normal.of(train)


NAME = "images"
PICTURE = "confusion.png"
"""Of the test images, or of the held-out ones where there are none."""


@dataclass(frozen=True)
class Recipe:
    """What every classifier of images is trained by."""

    data: Pictures
    training: Training = field(
        default_factory=lambda: Training(
            epochs=25, learning_rate=1e-3, warmup=400, weight_decay=0.05, betas=(0.9, 0.99), average="exponential"
        )
    )
    smoothing: float = 0.1
    """Share of the probability that all classes have in the loss, so that the model is never wholly sure."""

    def errors(self) -> list[str]:
        """Everything that is wrong, a sentence each."""
        return wrong_smoothing(NAME, self.smoothing)


@dataclass(frozen=True)
class ImagesRecipe(Recipe):
    """A Vision Transformer from images by class."""

    model: ViTConfig = field(default_factory=ViTConfig)


@dataclass(frozen=True)
class CNNRecipe(Recipe):
    """A residual network of convolutions from images by class."""

    model: CNNConfig = field(default_factory=CNNConfig)


KINDS: dict[str, type[ImagesRecipe] | type[CNNRecipe]] = {"vit": ImagesRecipe, "cnn": CNNRecipe}


def train(recipe: ImagesRecipe | CNNRecipe, folder: str | os.PathLike[str], display: Display | None = None) -> Outcome:
    """Read the images, build the model, train, test; on a folder that holds the run, go on with it."""
    folder = Path(folder)
    display = display or Display()
    seed = recipe.training.seed
    settings = checked_settings(recipe, folder, NAME, KINDS)
    images, valid, test, normal, digests = prepare(recipe.data, folder, seed)
    display.say(f"train: {images}; held out: {len(valid):,}" + ("" if test is None else f"; test: {len(test):,}"))
    torch.manual_seed(seed)  # of the first weights
    model = image_model(recipe.model, images.classes, images.shape)
    classifier = ImageClassifier(model, images.classes, images.shape, normal)
    data = recipe.data
    task = ClassifyImages(
        classifier, images, valid, data.batch, data.augmentation, smoothing=recipe.smoothing, seed=seed
    )
    outcome = fit(task, recipe.training, folder, recipe=settings, digests=digests, display=display)
    if is_first_process():
        report(load_image_classifier(folder), test or valid, folder, "held out" if test is None else "test", display)
    return outcome


def report(classifier: ImageClassifier, images: Images, folder: Path, part: str, display: Display) -> None:
    """How good the best weights are: a line of figures, and the confusion matrix as a picture."""
    logits, labels = predicted(classifier, ImageBatches(images, 256, shuffle=False))
    matrix = confusion(logits.argmax(-1), labels, len(classifier.classes))
    save_confusion(matrix, classifier.classes, f1_of(matrix).each.tolist(), folder / PICTURE)
    told = figures(logits, labels)
    display.say(f"{part}: accuracy {told['accuracy']:.4f}, F1 {told['f1']:.4f}: {folder / PICTURE}")


def stored(folder: str | os.PathLike[str]) -> ImagesRecipe | CNNRecipe:
    """The recipe of a run."""
    return read_recipe(folder, NAME, KINDS, "an image classifier")
