"""Open a language model for generation."""

from __future__ import annotations

import os

from ..models.fast_gpt import fast_gpt
from .loading import load_language_model
from .text_generation import TextGenerator


def open_language_model(path: str | os.PathLike[str]) -> TextGenerator:
    """Open the language model of a run, of a Hugging Face directory or of a .gguf file.

    Raises:
        ValueError: if there is no language model. The message has the path.
    """
    language = load_language_model(path)
    return TextGenerator(fast_gpt(language.model), language.vocabulary)
