"""Open a path as a target of the server."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..core.digests import Damaged
from ..core.json_files import explain_missing, read_json_object
from .target import TARGET_KINDS, Capture, Target


def open_target(
    path: str | os.PathLike[str],
    text: str | None = None,
    image: str | os.PathLike[str] | None = None,
    batch: int = 0,
) -> Target:
    """Open a capture, a run or a model directory. A model is run on the text or the image.

    For a language model, the text is the first prompt. In a model directory, a text that is too long for a prompt is
    shown as maps.

    Raises:
        ValueError, OSError: if the path cannot be shown.
    """
    path, image = Path(path), None if image is None else Path(image)
    if path.suffix == ".gguf":
        raise ValueError(
            f"view: TARGET ({path}) must be {TARGET_KINDS}; got a GGUF file. `regard generate {path} TEXT --watch "
            "FILE.safetensors` writes a capture of it."
        )
    if path.is_file():
        capture = _capture(path, batch)
        if text is not None or image is not None:
            raise ValueError(f"view: a text or an image must be passed with a model; {path} is a capture.")
        return capture
    config = _config(path)
    if "recipe" in config:
        return _run(path, config["recipe"], text, image)
    if "model_type" in config:
        language = _language_directory(path, config, text) if image is None and _is_language_model(config) else None
        if language is not None:
            return language
        from .huggingface_target import Model

        return Model(path, config, text, image)
    raise ValueError(f"view: TARGET ({path}) must be {TARGET_KINDS}; its config.json describes neither.")


def _capture(path: Path, batch: int) -> Capture:
    from ..lens.captures import load_capture

    try:
        return Capture(load_capture(path), path.name, batch)
    except Damaged:
        if path.suffix == ".safetensors":
            raise
        raise ValueError(
            f"view: TARGET ({path}) must be {TARGET_KINDS}; got another file. `regard view MODEL --file {path}` shows "
            "what a model attends to in this text."
        ) from None


def _run(path: Path, recipe: object, text: str | None, image: Path | None) -> Target:
    from .run_target import Classifier, TextClassifier, TranslatorTarget

    kinds: dict[object, tuple[str, Callable[[Path, str | None], Target]]] = {
        "translate": ("a translator", TranslatorTarget),
        "classify": ("a text classifier", TextClassifier),
        "language": ("a language model", _language_model),
    }
    if recipe in kinds:
        kind, target = kinds[recipe]
        if image is not None:
            raise ValueError(f"view: --image must be used with an image model; {path} is {kind}. Pass --text.")
        return target(path, text)
    if recipe == "images":
        if text is not None:
            raise ValueError(
                f"view: --text must be used with a text model; {path} is an image classifier. Pass --image."
            )
        return Classifier(path, image)
    raise ValueError(
        f"view: TARGET ({path}) must be a run of translate, classify, images or language; got a run of {recipe}."
    )


def _language_model(path: Path, prompt: str | None) -> Target:
    from ..tasks.open_language_model import open_language_model
    from .language_target import LanguageTarget

    return LanguageTarget(open_language_model(path), path.resolve().name, prompt or "")


def _language_directory(path: Path, config: dict[str, Any], prompt: str | None) -> Target | None:
    """Open the language model of a Hugging Face directory.

    Returns None for a prompt that only `transformers` can read: because it is too long to be continued, or because
    regard does not support the model.
    """
    from ..tasks.loading import GPT_TYPES
    from ..tasks.open_language_model import open_language_model
    from .language_target import MAX_PROMPT_TOKENS, LanguageTarget

    if prompt is None:
        return _language_model(path, None)
    if config["model_type"] not in GPT_TYPES:
        return None
    try:
        generator = open_language_model(path)
    except ValueError:
        return None
    if len(generator.encode(prompt)) > MAX_PROMPT_TOKENS:
        return None
    return LanguageTarget(generator, path.resolve().name, prompt)


def _is_language_model(config: dict[str, Any]) -> bool:
    """Return whether the config of a Hugging Face directory names a model that predicts the next token."""
    names = config.get("architectures") or []
    return any(str(name).endswith(("ForCausalLM", "LMHeadModel")) for name in names)


def _config(folder: Path) -> dict[str, Any]:
    problem = explain_missing(folder, "config.json")
    if problem is not None:
        raise ValueError(f"view: TARGET ({folder}) must be {TARGET_KINDS}; {problem}.")
    return read_json_object(
        folder / "config.json", "the settings of a run or of a model", "Pass another folder.", where="view"
    )
