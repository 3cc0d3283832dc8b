"""The BERT pretraining task: masked language modelling and, optionally, next sentence prediction.

Devlin et al. 2019, section 3.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..data.masked_batches import MaskedBatch, MaskedBatches
from ..data.wordpiece import WordPiece
from ..layers.cross_entropy import ROWS, cross_entropy
from ..models.bert_heads import MaskedTokens, Pretraining
from .task import Loss, Task

SAMPLES = 4


class Pretrain(Task[MaskedBatch]):
    """Task of pretraining a BERT: `training.fit(Pretrain(…), …)`.

        loss = 1/M Σₘ −log p(tokenₘ)  +  1/B Σ_b −log p(follows_b)        the second term only for pairs

    Args:
        model: a `MaskedTokens`, or a `Pretraining` for batches of pairs.
        words: the vocabulary.
        train: training batches.
        valid: batches of held-out text, not shuffled, so that every evaluation masks the same positions.

    >>> import tempfile
    >>> from regard.data import Corpus, encode_passages
    >>> from regard.models import Bert, BertConfig
    >>> words = WordPiece.train(["a low lower lowest", "a new newer newest"] * 9, 40)
    >>> passages = encode_passages(iter([["a low new", "a newest"], ["lowest low"]]), words, longest=8)
    >>> corpus = Corpus.write(tempfile.mkdtemp() + "/corpus", passages)
    >>> bert = Bert(BertConfig(vocabulary=len(words), width=12, heads=3, hidden=24, layers=2), pooler=False)
    >>> model = MaskedTokens(bert)
    >>> task = Pretrain(model, words, *(MaskedBatches(corpus, words, 64, shuffle=turn) for turn in (True, False)))
    >>> with torch.no_grad():                                           # as the training loop does
    ...     task.batch_loss(next(task.train.epoch(0))).count, "loss" in task.evaluate(), len(task.samples())
    (2, True, 2)
    """

    train: MaskedBatches
    goal = ("loss", "min")

    def __init__(
        self, model: MaskedTokens | Pretraining, words: WordPiece, train: MaskedBatches, valid: MaskedBatches
    ) -> None:
        if train.pairs != valid.pairs or train.pairs != isinstance(model, Pretraining):
            raise ValueError(
                f"pretrain: model ({type(model).__name__}) must be a Pretraining for batches of pairs, a MaskedTokens "
                f"for others; got train.pairs {train.pairs} and valid.pairs {valid.pairs}."
            )
        self.model: nn.Module = model
        self.head = model.masked if isinstance(model, Pretraining) else model
        self.next = model.next if isinstance(model, Pretraining) else None
        self.words, self.train, self.valid = words, train, valid

    def batch_loss(self, batch: MaskedBatch) -> Loss:
        """Return the cross-entropy summed over the masked positions, plus that of the next sentence, if predicted.

        The next-sentence loss of an entry has the weight of the masked positions of an entry.
        """
        hidden = self._hidden(batch)  # (B, T, W)
        last = self.head.vocabulary
        features = self.head.transform(hidden[batch.chosen])  # (M, W)
        total = cross_entropy(features, last.weight, last.bias, batch.wanted)
        extras: dict[str, float | Tensor] = {"padding": batch.padding}
        if self.next is not None:
            extras["masked_loss"] = total.detach() / len(features)
            logits = self.next(self.head.bert.pool(hidden, batch.lengths)).float()  # (B, 2)
            total = total + batch.each * F.cross_entropy(logits, batch.other, reduction="sum")
            extras["next_accuracy"] = (logits.argmax(1) == batch.other).float().mean()
        return Loss(total, len(batch.wanted), extras)

    def evaluate(self) -> dict[str, float]:
        """Return the loss and accuracy on masked tokens of held-out text, and the accuracy on next sentences."""
        total = right = count = next_right = pairs = 0.0
        for batch in self.evaluated("batches", self.valid.epoch(0), self.valid.count(0)):
            batch = batch.to(self.device)
            hidden = self._hidden(batch)
            for logits, wanted in self._logits(hidden, batch):
                total += float(F.cross_entropy(logits, wanted, reduction="sum"))
                right += int((logits.argmax(1) == wanted).sum())
            count += len(batch.wanted)
            if self.next is not None:
                next_right += int(
                    (self.next(self.head.bert.pool(hidden, batch.lengths)).argmax(1) == batch.other).sum()
                )
                pairs += len(batch)
        figures = {"loss": total / max(1, count), "accuracy": right / max(1, count)}
        return figures | ({"next_accuracy": next_right / pairs} if pairs else {})

    def samples(self) -> list[tuple[str, str, str]]:
        """Return a few held-out passages: masked, with the model's predictions filled in, and the original."""
        batch = next(self.valid.epoch(0)).to(self.device)
        predictions = torch.cat([logits.argmax(1) for logits, _ in self._logits(self._hidden(batch), batch)])
        filled, real = (batch.ids.masked_scatter(batch.chosen, ids) for ids in (predictions, batch.wanted))
        rows = zip(batch.ids.tolist(), filled.tolist(), real.tolist(), strict=True)
        texts = [tuple(self.words.decode(ids) for ids in row) for row in rows]
        return [(shown, ours, wanted) for shown, ours, wanted in texts[:SAMPLES]]

    def save(self, folder: Path) -> None:
        """Write the vocabulary. The training loop writes the weights."""
        self.words.save(folder)

    def _hidden(self, batch: MaskedBatch) -> Tensor:
        """Return the hidden states (B, T, W)."""
        hidden: Tensor = self.head.bert(batch.ids, batch.lengths, batch.segments if self.train.pairs else None)
        return hidden

    def _logits(self, hidden: Tensor, batch: MaskedBatch) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield logits (n, V) and targets (n,) for successive chunks of masked positions."""
        features = self.head.transform(hidden[batch.chosen])  # (M, W)
        for start in range(0, len(features), ROWS):
            rows = slice(start, start + ROWS)
            yield self.head.vocabulary(features[rows]).float(), batch.wanted[rows]
