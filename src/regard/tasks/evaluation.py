"""Evaluation of trained models on any file: translations, classes and next or masked tokens."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import numpy as np
import torch

from ..data import Batches, Columns, Corpus, encode_pairs, read_pairs
from ..data.documents import Documents, encode_passages, read_documents
from ..data.image_batches import ImageBatches
from ..data.image_files import read_images
from ..data.labelled_text import numbers_of, read_labelled
from ..data.masked_batches import MaskedBatches
from ..data.text_chunks import encode_chunks, read_chunks
from .bleu import References
from .language_model import BATCH_TOKENS, mean_loss, perplexity_of
from .metrics import confusion, f1_of, figures
from .pretraining import Pretrain
from .translation import exact, total_loss

if TYPE_CHECKING:
    from torch import Tensor

    from .image_classifier import ImageClassifier
    from .language_model import LanguageModel
    from .masked_language_model import MaskedLanguageModel
    from .text_classifier import TextClassifier
    from .translator import Translator


class TranslationScores(TypedDict):
    """Scores of a translator."""

    pairs: int
    loss: float
    """−log p of a token of the references."""
    bleu: float
    chrf: float
    exact: float
    """Fraction of translations that equal their reference."""
    signatures: dict[str, str]
    """Signatures of sacreBLEU, which describe how BLEU and chrF were computed."""


class ClassificationScores(TypedDict):
    """Scores of a classifier."""

    examples: int
    loss: float
    accuracy: float
    f1: float
    """Mean of the F1 of all classes that occur."""
    labels: list[str]
    f1_by_label: dict[str, float]
    confusion: list[list[int]]
    """Number of examples by true label (rows) and predicted label (columns)."""


class LanguageScores(TypedDict):
    """Scores of a language model."""

    tokens: int
    characters: int
    loss: float
    """−log p of a token."""
    perplexity: float
    bits_per_character: float


class MaskedScores(TypedDict):
    """Scores of a masked language model."""

    loss: float
    """−log p of a masked token."""
    accuracy: float
    """Fraction of masked tokens that are predicted correctly."""


def evaluate_translator(
    translator: Translator,
    files: Sequence[str | Path],
    *,
    size: int = 5,
    longest: int = 128,
    header: bool | None = None,
) -> TranslationScores:
    """Translate the sources of sentence pairs and compare with their targets.

    Args:
        translator: the translator.
        files: two files with one sentence per line, or one file of SOURCE TAB TARGET lines.
        size: beam size; 1 for greedy search.
        longest: maximum number of tokens of a translation.
        header: whether the first line of a TSV file names its columns. By default, known names are detected.
    """
    pairs = list(read_pairs(files, header=header))
    references = References([target for _, target in pairs])
    translations = translator([source for source, _ in pairs], size=size, longest=longest)
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        corpus = Corpus.write(Path(folder) / "corpus", encode_pairs(pairs, translator.source, translator.target))
        batches = Batches(corpus, BATCH_TOKENS, shuffle=False)
        totals = [
            (float(total_loss(translator.model, batch.to(translator.device))), batch.tokens)
            for batch in batches.epoch(0)
        ]
    return {
        "pairs": len(pairs),
        "loss": sum(total for total, _ in totals) / sum(tokens for _, tokens in totals),
        "bleu": references.bleu(translations),
        "chrf": references.chrf(translations),
        "exact": exact(translations, references.texts),
        "signatures": references.signatures,
    }


def evaluate_text_classifier(
    classifier: TextClassifier,
    file: str | Path,
    *,
    text_column: str = "",
    label_column: str = "",
    header: bool | None = None,
) -> ClassificationScores:
    """Classify labelled texts and compare with their labels. See `read_labelled` for the file."""
    examples = list(read_labelled(file, columns=Columns(text_column, label_column, header)))
    wanted = torch.tensor(numbers_of(examples, classifier.labels, Path(file)))  # (N,)
    probabilities = classifier.probabilities([example.text for example in examples])  # (N, C)
    return _classification(probabilities.clamp_min(1e-30).log(), wanted, classifier.labels)


def evaluate_image_classifier(classifier: ImageClassifier, path: str | Path) -> ClassificationScores:
    """Classify the images of a folder or an .npz file: its test part, or all images if it has none.

    Raises:
        ValueError: if there are no images, or classes that the model does not know.
    """
    from .image_classification import predicted

    options = {"shape": classifier.shape, "classes": classifier.classes}
    images = read_images(path, "test", **options) or read_images(path, "train", **options)  # type: ignore[arg-type]  # the values of a dictionary have one type
    if images is None:
        raise ValueError(f"images: {path} must hold images with labels; got none.")
    logits, wanted = predicted(classifier, ImageBatches(images, 256, shuffle=False).epoch(0))
    return _classification(logits, wanted, classifier.classes)


def _classification(logits: Tensor, wanted: Tensor, labels: Sequence[str]) -> ClassificationScores:
    matrix = confusion(logits.argmax(1), wanted, len(labels))
    scores, each = figures(logits, wanted), f1_of(matrix).each.tolist()
    return {
        "examples": len(wanted),
        "loss": scores["loss"],
        "accuracy": scores["accuracy"],
        "f1": scores["f1"],
        "labels": list(labels),
        "f1_by_label": dict(zip(labels, each, strict=True)),
        "confusion": matrix.tolist(),
    }


def evaluate_language_model(language: LanguageModel, files: Sequence[str | Path]) -> LanguageScores:
    """Predict each token of text files but the first, in windows side by side of the length of the context.

    Raises:
        ValueError: if the text has fewer than two tokens.
    """
    parts = list(encode_chunks(read_chunks(files), language.vocabulary))
    ids = np.concatenate([ids for (ids, _), _ in parts])  # (N,)
    characters = sum(int(counts.sum()) for _, (counts, _) in parts)
    if len(ids) < 2:
        raise ValueError(f"language: text ({len(ids)} tokens) must have at least 2 tokens. Give more text.")
    loss = mean_loss(language, ids)
    return {
        "tokens": len(ids) - 1,
        "characters": characters,
        "loss": loss,
        "perplexity": perplexity_of(loss),
        "bits_per_character": loss / math.log(2) * len(ids) / characters,
    }


def evaluate_masked_language_model(
    model: MaskedLanguageModel, files: Sequence[str | Path], *, documents: Documents = "blank", mask: float = 0.15
) -> MaskedScores:
    """Predict masked tokens of text files. The same positions are masked in every evaluation.

    Args:
        model: the model.
        files: text files.
        documents: document separator: a blank line, every line, or the end of the file.
        mask: fraction of tokens to predict.
    """
    longest = model.bert.config.positions - model.words.added
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        passages = encode_passages(read_documents(list(files), documents), model.words, longest)
        corpus = Corpus.write(Path(folder) / "corpus", passages)
        batches = MaskedBatches(corpus, model.words, BATCH_TOKENS, share=mask, shuffle=False)
        scores = Pretrain(model.head, model.words, batches, batches).evaluate()
    return {"loss": scores["loss"], "accuracy": scores["accuracy"]}
