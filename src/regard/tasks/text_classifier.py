"""A classifier: a model that names the class of a text, and its vocabulary, from text to probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..data.text_batches import padded_batches, padded_rows
from ..data.wordpiece import WordPiece
from ..models.bert_heads import SequenceClassifier


@dataclass(frozen=True)
class Classifier:
    """A model and what its ids mean.

    Texts are read in batches of like length, and come back in the order they were given.
    """

    model: SequenceClassifier
    words: WordPiece
    longest: int = 512
    """Ids of a text; the end of a longer one is not read."""

    @property
    def labels(self) -> tuple[str, ...]:
        return self.model.labels

    @torch.inference_mode()
    def probabilities(self, texts: str | Sequence[str], *, tokens: int = 4096) -> Tensor:
        """p(class | text), (N, C), in the order of `labels`; (C,) for a single string.

        Raises:
            ValueError: for an empty text, by its number.
        """
        if isinstance(texts, str):
            return self.probabilities([texts], tokens=tokens)[0]
        for number, text in enumerate(texts, 1):
            if not text.strip():
                raise ValueError(f"classify: text {number} ({text!r}) must hold something to read; got none.")
        device = next(self.model.parameters()).device
        ids = [found.ids for found in self.words.encode_all(list(texts), longest=self.longest)]
        found = torch.empty(len(ids), len(self.labels))
        for places in padded_batches([len(one) for one in ids], tokens):
            rows, lengths = padded_rows([ids[place] for place in places], self.words.pad, device)  # (B, T), (B,)
            found[places] = self.model(rows, lengths).float().softmax(1).cpu()
        return found
