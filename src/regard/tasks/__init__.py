"""Tasks: each combines data, a model, a loss and a metric behind the interface that the training loop expects.

Trained models, ready for use: `load_translator`, `load_text_classifier`, `load_image_classifier`, `Embedder.load`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.lazy_names import lazy_names

if TYPE_CHECKING:
    from .embedder import Embedder
    from .image_classification import ClassifyImages
    from .image_classifier import ImageClassifier, Label
    from .loading import load_image_classifier, load_text_classifier, load_translator
    from .pretraining import Pretrain
    from .task import Loss, Task
    from .text_classification import Classify
    from .text_classifier import Classifier
    from .translation import Translate
    from .translator import Alignment, AlignOptions, SearchOptions, Translation, Translator
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "AlignOptions": ".translator",
            "Alignment": ".translator",
            "Classifier": ".text_classifier",
            "Classify": ".text_classification",
            "ClassifyImages": ".image_classification",
            "Embedder": ".embedder",
            "ImageClassifier": ".image_classifier",
            "Label": ".image_classifier",
            "Loss": ".task",
            "Pretrain": ".pretraining",
            "SearchOptions": ".translator",
            "Task": ".task",
            "Translate": ".translation",
            "Translation": ".translator",
            "Translator": ".translator",
            "load_image_classifier": ".loading",
            "load_text_classifier": ".loading",
            "load_translator": ".loading",
        },
    )

__all__ = [
    "AlignOptions",
    "Alignment",
    "Classifier",
    "Classify",
    "ClassifyImages",
    "Embedder",
    "ImageClassifier",
    "Label",
    "Loss",
    "Pretrain",
    "SearchOptions",
    "Task",
    "Translate",
    "Translation",
    "Translator",
    "load_image_classifier",
    "load_text_classifier",
    "load_translator",
]
