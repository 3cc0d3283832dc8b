"""Read and verify the settings and the best weights in the folder of a run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.digests import Damaged, file_digest, json_digest
from ..core.json_files import JSON, read_json_object
from ..core.messages import few
from ..core.tensor_files import read_tensors_and_metadata
from ..models.weights import load_weights


def read_fingerprints(metadata: Mapping[str, str], path: Path) -> dict[str, str]:
    """Return the digests in the metadata of a tensor file. Earlier versions wrote none."""
    try:
        return dict(json.loads(metadata.get("fingerprints", "{}")))
    except (ValueError, TypeError) as error:
        raise Damaged(f"training: {path} must have digests in its metadata; got {error}.") from error


def compare_fingerprints(expected: Mapping[str, str], current: Mapping[str, str], path: Path) -> None:
    """Raise ValueError that names every file that changed since the weights in `path` were written."""
    changed = [name for name in expected if current.get(name) != expected[name]]
    if changed:
        listed = few([f"{name} ({'changed' if name in current else 'missing'})" for name in changed])
        raise ValueError(
            f"training: files of the run must be those that {path} was trained with; these differ: {listed}. "
            "Restore them from a copy, or train in another folder."
        )


LIMITS = ("steps", "epochs", "minutes")
"""Settings that may be raised on an existing run. All other settings identify the run and must not change."""


CONFIG = "config.json"


def read_config(folder: str | os.PathLike[str]) -> dict[str, JSON]:
    """Read the settings of a run and verify their digest.

    >>> import tempfile
    >>> import numpy as np
    >>> from regard.data import Augmentation, Images, Normal, Shape
    >>> from regard.models import CNN, CNNConfig
    >>> from regard.tasks import ClassifyImages, ImageClassifier
    >>> from regard.training import Silent, Training, fit
    >>> images = Images(np.repeat(np.uint8([20, 240, 20, 240]), 64).reshape(4, 8, 8), [0, 1, 0, 1], ["dark", "light"])
    >>> model = CNN(CNNConfig(classes=2, widths=(4,), blocks=1))
    >>> classifier = ImageClassifier(model, images.classes, Shape(8, 8, 1), Normal((0.5,), (0.25,)))
    >>> task = ClassifyImages(classifier, images, images, batch=4, augmentation=Augmentation(crop=0, erase=0.0))
    >>> folder = tempfile.mkdtemp() + "/run"
    >>> _ = fit(task, Training(steps=2, warmup=1, device="cpu"), folder, display=Silent())
    >>> read_config(folder)["training"]["steps"]
    2
    """
    path = Path(folder) / CONFIG
    config = read_json_object(path, "the settings of a run", "Give another folder.", where="training")
    digest = config.pop("sha256", None)  # earlier versions wrote none
    if digest is not None and json_digest(config) != digest:
        raise Damaged(
            f"training: {path} must match the digest written into it; got another digest, so the file was edited. "
            "Restore it, and change settings on the command line."
        )
    return config


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    return dict(json.loads(json.dumps(config, default=str)))


def config_digest(config: Mapping[str, Any]) -> str:
    """Return the digest of all settings except the limits, which may be raised, and settings that are None."""
    limits = {f"training.{name}" for name in LIMITS}
    settings = flat(_plain(config))
    return json_digest({k: v for k, v in settings.items() if k not in limits and v is not None})


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested settings to dotted names.

    >>> flat({"training": {"steps": 3}, "task": "dates"})
    {'training.steps': 3, 'task': 'dates'}
    """
    result: dict[str, Any] = {}
    for name, value in values.items():
        result |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return result


def read_weights(folder: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Read the best weights of a run.

    Raises:
        ValueError: if there are no weights, if they are damaged, or if the settings or vocabularies changed since they
            were trained.

    >>> import tempfile
    >>> import numpy as np
    >>> from regard.data import Augmentation, Images, Normal, Shape
    >>> from regard.models import CNN, CNNConfig
    >>> from regard.tasks import ClassifyImages, ImageClassifier
    >>> from regard.training import Silent, Training, fit
    >>> images = Images(np.repeat(np.uint8([20, 240, 20, 240]), 64).reshape(4, 8, 8), [0, 1, 0, 1], ["dark", "light"])
    >>> model = CNN(CNNConfig(classes=2, widths=(4,), blocks=1))
    >>> classifier = ImageClassifier(model, images.classes, Shape(8, 8, 1), Normal((0.5,), (0.25,)))
    >>> task = ClassifyImages(classifier, images, images, batch=4, augmentation=Augmentation(crop=0, erase=0.0))
    >>> folder = tempfile.mkdtemp() + "/run"
    >>> _ = fit(task, Training(steps=2, warmup=1, device="cpu"), folder, display=Silent())
    >>> from regard.training import weights_of
    >>> read_weights(folder).keys() == weights_of(model).keys()
    True
    """
    folder = Path(folder)
    path = folder / "model.safetensors"
    if not path.exists():
        raise ValueError(f"training: {path} must exist; got a folder without it. Train there first, or give another.")
    tensors, metadata = read_tensors_and_metadata(path)
    expected = read_fingerprints(metadata, path)
    names = [name for name in expected if name != CONFIG and not name.startswith("data/")]  # the data may be absent
    current = {name: file_digest(folder / name) for name in names if (folder / name).is_file()}
    if CONFIG in expected:
        current[CONFIG] = config_digest(read_config(folder))
    compare_fingerprints({name: expected[name] for name in expected if name in (CONFIG, *names)}, current, path)
    return tensors


def load_best(model: torch.nn.Module, folder: str | os.PathLike[str]) -> None:
    """Load the best weights of a run into a model.

    >>> import tempfile
    >>> import numpy as np
    >>> from regard.data import Augmentation, Images, Normal, Shape
    >>> from regard.models import CNN, CNNConfig
    >>> from regard.tasks import ClassifyImages, ImageClassifier
    >>> from regard.training import Silent, Training, fit
    >>> images = Images(np.repeat(np.uint8([20, 240, 20, 240]), 64).reshape(4, 8, 8), [0, 1, 0, 1], ["dark", "light"])
    >>> model = CNN(CNNConfig(classes=2, widths=(4,), blocks=1))
    >>> classifier = ImageClassifier(model, images.classes, Shape(8, 8, 1), Normal((0.5,), (0.25,)))
    >>> task = ClassifyImages(classifier, images, images, batch=4, augmentation=Augmentation(crop=0, erase=0.0))
    >>> folder = tempfile.mkdtemp() + "/run"
    >>> _ = fit(task, Training(steps=2, warmup=1, device="cpu"), folder, display=Silent())
    >>> from regard.training import weights_of
    >>> other = CNN(model.config)
    >>> load_best(other, folder)
    >>> torch.equal(weights_of(other)["classifier.bias"], read_weights(folder)["classifier.bias"])
    True
    """
    load_weights(model, read_weights(folder), str(Path(folder) / "model.safetensors"))
