"""Shared parts of the BERT recipes: model sizes, and initialization from a run or a Hugging Face directory."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from ...data.wordpiece import WordPiece
from ...models.bert import Bert, BertConfig
from ...models.bert_heads import SequenceClassifier
from ...models.huggingface_bert import load_bert
from ...tasks.loading import best, is_run


@dataclass(frozen=True)
class Sizes:
    """Sizes of a BERT that is trained from scratch."""

    vocabulary: int = 8000
    """Maximum size of the vocabulary, which is learned from the text."""
    width: int = 256
    """Width of the embeddings and of every block."""
    heads: int = 4
    """Number of attention heads. The width must be divisible by it."""
    hidden: int = 1024
    """Hidden width of the feed-forward layers."""
    layers: int = 4
    """Number of blocks."""
    positions: int = 512
    """Maximum number of tokens of a text."""
    dropout: float = 0.1
    """Dropout of the embeddings and of the output of each sublayer."""
    attention_dropout: float = 0.0
    """Dropout of attention weights. The fast kernels do not support it."""
    pool: Literal["first", "mean"] = "first"
    """Pooling for classification and next sentence prediction: the first token, [CLS], or the mean of all tokens."""

    def errors(self) -> list[str]:
        """Return one message for each invalid setting."""
        return BertConfig(**asdict(self)).errors("model")

    def config(self, words: WordPiece) -> BertConfig:
        """Return the configuration of a BERT with this vocabulary."""
        return BertConfig(**{**asdict(self), "vocabulary": len(words), "pad": words.pad})


def initial_classifier(folder: Path, labels: list[str], **changes: Any) -> SequenceClassifier:
    """Build a classifier on the BERT of a run or of a Hugging Face directory. Missing layers are initialized at random.

    Args:
        folder: the run or Hugging Face directory.
        labels: names of the classes.
        changes: settings that replace those of its `BertConfig`.
    """
    if not is_run(folder):
        return load_bert(folder, SequenceClassifier, fresh=True, classes=labels, **changes).train()
    source = best(folder).bert
    assert isinstance(source, Bert)
    model = SequenceClassifier(Bert(replace(source.config, **changes)), labels)
    weights = source.state_dict()
    with torch.no_grad():
        for name, value in model.bert.state_dict().items():
            if name in weights:  # all but the pooler, which a masked language model does not have
                value.copy_(weights[name])
    return model
