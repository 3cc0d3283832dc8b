"""Pretraining as a task: pieces of a text are hidden, and said from what is around them; does a sentence follow?

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


class Pretrain(Task):
    """What the training loop trains: `training.fit(Pretrain(…), …)`.

        loss = 1/M Σₘ −log p(pieceₘ)  +  1/B Σ_b −log p(follows_b)        the second where there are pairs

    Args:
        model: a `MaskedTokens`, or for batches of pairs a `Pretraining`.
        words: what the ids mean.
        train: batches to learn from.
        valid: batches of held-out text, not shuffled: the same places are hidden at every evaluation.
    """

    train: MaskedBatches
    goal = ("loss", "min")

    def __init__(
        self, model: MaskedTokens | Pretraining, words: WordPiece, train: MaskedBatches, valid: MaskedBatches
    ) -> None:
        if train.pairs != valid.pairs or train.pairs != isinstance(model, Pretraining):
            raise ValueError(
                f"pretrain: model ({type(model).__name__}) must be a Pretraining for batches of pairs, a MaskedTokens "
                f"for others; got pairs {train.pairs} to learn from and {valid.pairs} held out."
            )
        self.model: nn.Module = model
        self.head = model.masked if isinstance(model, Pretraining) else model
        self.next = model.next if isinstance(model, Pretraining) else None
        self.words, self.train, self.valid = words, train, valid

    def batch_loss(self, batch: MaskedBatch) -> Loss:
        """Cross-entropy over the chosen places alone, summed; a pair weighs as much as the places of an entry."""
        hidden = self._hidden(batch)  # (B, T, W)
        last = self.head.vocabulary
        said = self.head.transform(hidden[batch.chosen])  # (M, W)
        total = cross_entropy(said, last.weight, last.bias, batch.wanted)
        extras: dict[str, float | Tensor] = {"padding": batch.padding}
        if self.next is not None:
            extras["masked_loss"] = total.detach() / len(said)
            logits = self.next(self.head.bert.pool(hidden, batch.lengths)).float()  # (B, 2)
            total = total + batch.each * F.cross_entropy(logits, batch.other, reduction="sum")
            extras["next_accuracy"] = (logits.argmax(1) == batch.other).float().mean()
        return Loss(total, len(batch.wanted), extras)

    def evaluate(self) -> dict[str, float]:
        """Of the hidden pieces of held-out text: loss, and the share said right; of pairs, the share told right."""
        total = right = count = told = pairs = 0.0
        for batch in self.valid.epoch(0):
            batch = batch.to(self.device)
            hidden = self._hidden(batch)
            for logits, wanted in self._logits(hidden, batch):
                total += float(F.cross_entropy(logits, wanted, reduction="sum"))
                right += int((logits.argmax(1) == wanted).sum())
            count += len(batch.wanted)
            if self.next is not None:
                told += int((self.next(self.head.bert.pool(hidden, batch.lengths)).argmax(1) == batch.other).sum())
                pairs += len(batch)
        figures = {"loss": total / max(1, count), "accuracy": right / max(1, count)}
        return figures | ({"next_accuracy": told / pairs} if pairs else {})

    def samples(self) -> list[tuple[str, str, str]]:
        """Some held-out passages as the model meets them, with what it says filled in, and as they are."""
        batch = next(self.valid.epoch(0)).to(self.device)
        said = torch.cat([logits.argmax(1) for logits, _ in self._logits(self._hidden(batch), batch)])
        filled, real = (batch.ids.masked_scatter(batch.chosen, ids) for ids in (said, batch.wanted))
        rows = zip(batch.ids.tolist(), filled.tolist(), real.tolist(), strict=True)
        texts = [tuple(self.words.decode(ids) for ids in row) for row in rows]
        return [(shown, ours, wanted) for shown, ours, wanted in texts[:SAMPLES]]

    def save(self, folder: Path) -> None:
        """The vocabulary; the weights are the loop's."""
        self.words.save(folder)

    def _hidden(self, batch: MaskedBatch) -> Tensor:
        """(B, T, W)."""
        found: Tensor = self.head.bert(batch.ids, batch.lengths, batch.segments if self.train.pairs else None)
        return found

    def _logits(self, hidden: Tensor, batch: MaskedBatch) -> Iterator[tuple[Tensor, Tensor]]:
        """Logits of some places at a time (n, V), and what is wanted there (n,)."""
        said = self.head.transform(hidden[batch.chosen])  # (M, W)
        for start in range(0, len(said), ROWS):
            rows = slice(start, start + ROWS)
            yield self.head.vocabulary(said[rows]).float(), batch.wanted[rows]
