"""A text classifier: a model and its vocabulary, from texts to class probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..data.bare_text import BareText
from ..data.text_batches import padded_batches, padded_rows
from ..data.wordpiece import WordPiece
from ..models.bert_heads import SequenceClassifier
from ..models.gpt_heads import LastTokenClassifier


@dataclass(frozen=True)
class Classifier:
    """A classification model on a BERT or GPT, and its vocabulary.

    Texts are classified in batches of similar length. Results are in the order of the inputs. `load_text_classifier`
    loads a trained one; this one has random weights:

    >>> from regard.models import Bert, BertConfig
    >>> words = WordPiece.train(["a low lower lowest", "a new newer newest"] * 9, 40)
    >>> bert = Bert(BertConfig(vocabulary=len(words), width=12, heads=3, hidden=24, layers=2))
    >>> classifier = Classifier(SequenceClassifier(bert, ["old", "new"]).eval(), words)
    >>> classifier.labels, tuple(classifier.probabilities(["a low", "newest", "a new"]).shape)
    (('old', 'new'), (3, 2))
    """

    model: SequenceClassifier | LastTokenClassifier
    words: WordPiece | BareText
    longest: int = 512
    """Maximum number of tokens of a text. Longer texts are truncated."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes."""
        return self.model.labels

    @torch.inference_mode()
    def probabilities(self, texts: str | Sequence[str], *, tokens: int = 4096) -> Tensor:
        """Return p(class | text), (N, C), in the order of `labels`; (C,) for a single string.

        Raises:
            ValueError: if a text is empty; the message gives its number.
        """
        if isinstance(texts, str):
            return self.probabilities([texts], tokens=tokens)[0]
        for number, text in enumerate(texts, 1):
            if not text.strip():
                raise ValueError(f"classify: text {number} ({text!r}) must not be empty.")
        device = next(self.model.parameters()).device
        ids = [encoding.ids for encoding in self.words.encode_all(list(texts), longest=self.longest)]
        probabilities = torch.empty(len(ids), len(self.labels))
        for indices in padded_batches([len(sequence) for sequence in ids], tokens):
            rows, lengths = padded_rows([ids[index] for index in indices], self.words.pad, device)  # (B, T), (B,)
            probabilities[indices] = self.model(rows, lengths).float().softmax(1).cpu()
        return probabilities
