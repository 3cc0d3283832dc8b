"""Tasks: each combines data, a model, a loss and a metric behind the interface that the training loop expects.

Trained models, ready for use: `load` returns a `Translator`, `TextClassifier`, `ImageClassifier`, `LanguageModel`,
`MaskedLanguageModel` or `Embedder`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.lazy_names import lazy_names

if TYPE_CHECKING:
    from .embedder import Embedder
    from .evaluation import ClassificationScores, LanguageScores, MaskedScores, TranslationScores
    from .image_classification import ClassifyImages
    from .image_classifier import ImageClassifier, Label
    from .language_model import LanguageModel
    from .loading import load_image_classifier, load_text_classifier, load_translator
    from .masked_language_model import MaskedLanguageModel
    from .pretraining import Pretrain
    from .task import Loss, Task
    from .text_classification import Classify
    from .text_classifier import Classifier, TextClassifier
    from .trained_model import TrainedModel, load
    from .translation import Translate
    from .translator import Alignment, AlignOptions, SearchOptions, Translation, Translator
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            ".embedder": ["Embedder"],
            ".evaluation": ["ClassificationScores", "LanguageScores", "MaskedScores", "TranslationScores"],
            ".image_classification": ["ClassifyImages"],
            ".image_classifier": ["ImageClassifier", "Label"],
            ".language_model": ["LanguageModel"],
            ".loading": ["load_image_classifier", "load_text_classifier", "load_translator"],
            ".masked_language_model": ["MaskedLanguageModel"],
            ".pretraining": ["Pretrain"],
            ".task": ["Loss", "Task"],
            ".text_classification": ["Classify"],
            ".text_classifier": ["Classifier", "TextClassifier"],
            ".trained_model": ["TrainedModel", "load"],
            ".translation": ["Translate"],
            ".translator": ["AlignOptions", "Alignment", "SearchOptions", "Translation", "Translator"],
        },
    )

__all__ = [
    "AlignOptions",
    "Alignment",
    "ClassificationScores",
    "Classifier",
    "Classify",
    "ClassifyImages",
    "Embedder",
    "ImageClassifier",
    "Label",
    "LanguageModel",
    "LanguageScores",
    "Loss",
    "MaskedLanguageModel",
    "MaskedScores",
    "Pretrain",
    "SearchOptions",
    "Task",
    "TextClassifier",
    "TrainedModel",
    "Translate",
    "Translation",
    "TranslationScores",
    "Translator",
    "load",
    "load_image_classifier",
    "load_text_classifier",
    "load_translator",
]
