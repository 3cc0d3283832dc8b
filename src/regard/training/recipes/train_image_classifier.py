"""The recipe of `regard train classify --images`: images and a kind of model → a run."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from ...core.settings import errors_of, from_values
from ...data.image_batches import ImageBatches, Images
from ...models.cnn import CNNConfig
from ...models.vit import ViTConfig
from ...tasks.image_classification import ClassifyImages, ImageClassifier, Pictures, figures, predicted, prepare
from ...tasks.loading import image_model, load_image_classifier
from ...tasks.metrics import confusion, f1_of, save_confusion
from ..config import Training, refuse
from ..logbook import Outcome
from ..loop import fit
from ..progress import Display
from ..run_folder import check_settings, read_config

NAME = "images"
load = load_image_classifier
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
        wrong = not 0 <= self.smoothing < 1
        return [f"images: smoothing ({self.smoothing}) must lie in [0, 1). Try 0.1."] if wrong else []


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
    refuse(errors_of(recipe))
    display = display or Display()
    seed = recipe.training.seed
    found = settings(recipe)
    check_settings(folder, {"training": asdict(recipe.training), **found})
    images, valid, test, normal, digests = prepare(recipe.data, folder, seed)
    display.say(f"train: {images}; held out: {len(valid):,}" + ("" if test is None else f"; test: {len(test):,}"))
    torch.manual_seed(seed)  # of the first weights
    model = image_model(recipe.model, images.classes, images.shape)
    classifier = ImageClassifier(model, images.classes, images.shape, normal)
    data = recipe.data
    task = ClassifyImages(
        classifier, images, valid, data.batch, data.augmentation, smoothing=recipe.smoothing, seed=seed
    )
    outcome = fit(task, recipe.training, folder, recipe=found, digests=digests, display=display)
    if os.environ.get("RANK", "0") == "0":
        report(load_image_classifier(folder), test or valid, folder, "held out" if test is None else "test", display)
    return outcome


def report(classifier: ImageClassifier, images: Images, folder: Path, part: str, display: Display) -> None:
    """How good the best weights are: a line of figures, and the confusion matrix as a picture."""
    logits, labels = predicted(classifier, ImageBatches(images, 256, shuffle=False))
    matrix = confusion(logits.argmax(-1), labels, len(classifier.classes))
    save_confusion(matrix, classifier.classes, f1_of(matrix).each.tolist(), folder / PICTURE)
    told = figures(matrix)
    display.say(f"{part}: accuracy {told['accuracy']:.4f}, F1 {told['f1']:.4f}: {folder / PICTURE}")


def settings(recipe: ImagesRecipe | CNNRecipe) -> dict[str, object]:
    """What a run keeps of a recipe besides the settings of training."""
    (kind,) = (name for name, known in KINDS.items() if type(recipe) is known)
    told = asdict(recipe)
    del told["training"]
    return {"recipe": NAME, "kind": kind, **told}


def stored(folder: str | os.PathLike[str]) -> ImagesRecipe | CNNRecipe:
    """The recipe of a run."""
    folder = Path(folder)
    found = read_config(folder)
    kind = KINDS.get(str(found.pop("kind", "")))
    if found.pop("recipe", None) != NAME or kind is None:
        raise ValueError(f"images: {folder} must be a run of a classifier of images; got another. Give its folder.")
    return from_values(kind, found)
