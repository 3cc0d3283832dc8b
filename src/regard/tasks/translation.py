"""Translation as a task: a batch of pairs → loss; held-out pairs → BLEU, chrF and the share of exact translations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from ..core.files import write_text
from ..data import Batch, Batches
from ..layers.cross_entropy import cross_entropy
from .bleu import References
from .task import Loss, Task
from .translator import Translator

SAMPLES = 8
EVALUATION = "evaluation.json"
"""The file of a run that keeps the tokenizer of BLEU and the signatures of the scores."""


class Translate(Task):
    """What the training loop trains: `training.fit(Translate(…), …)`.

    Args:
        translator: the model and its vocabularies.
        train: batches to learn from.
        valid: batches of the held-out pairs, not shuffled.
        texts: the held-out pairs as texts.
        smoothing: of the labels, in training only.
        longest: ids of a translation when evaluating.
        tokenizer: sacreBLEU's, for BLEU; default: the one that fits the script of the held-out targets.
    """

    goal = ("bleu", "max")

    def __init__(
        self,
        translator: Translator,
        train: Batches,
        valid: Batches,
        texts: Sequence[tuple[str, str]],
        *,
        smoothing: float = 0.1,
        longest: int = 100,
        tokenizer: str | None = None,
    ) -> None:
        if not texts:
            raise ValueError("translate: texts (0 pairs) must hold some pairs; got none. They tell how good it is.")
        self.translator, self.model = translator, cast(nn.Module, translator.model)
        self.train, self.valid, self.texts = train, valid, texts
        self.smoothing, self.longest = smoothing, longest
        self.references = References([target for _, target in texts], tokenizer)

    def batch_loss(self, batch: Batch) -> Loss:
        """Cross-entropy summed over the tokens to be written; padding takes no part."""
        return Loss(self._total(batch, self.smoothing), batch.tokens, {"padding": batch.padding})

    def evaluate(self) -> dict[str, float]:
        """Loss per token without smoothing; of greedy translations BLEU, chrF and the share that is exact."""
        total = count = 0.0
        for batch in self.valid.epoch(0):
            total += float(self._total(batch.to(self.device), 0.0))
            count += batch.tokens
        ours, references = self._translated(), self.references
        return {
            "loss": total / count,
            "bleu": references.bleu(ours),
            "chrf": references.chrf(ours),
            "exact": exact(ours, references.texts),
        }

    def samples(self) -> list[tuple[str, str, str]]:
        ours = self._translated(SAMPLES)
        return [(source, text, wanted) for (source, wanted), text in zip(self.texts, ours, strict=False)]

    def save(self, folder: Path) -> None:
        """Write the vocabularies and how BLEU and chrF are computed; the loop writes the weights."""
        self.translator.source.save(folder / "source.json")
        self.translator.target.save(folder / "target.json")
        self.save_evaluation(folder)

    def save_evaluation(self, folder: Path) -> None:
        """Write how BLEU and chrF are computed, so that every evaluation of a run is computed alike."""
        described = {"tokenizer": self.references.tokenizer, **self.references.signatures}
        write_text(folder / EVALUATION, json.dumps(described, indent=2) + "\n")

    def _translated(self, first: int | None = None) -> list[str]:
        sources = [source for source, _ in self.texts[:first]]
        return [found[0].text for found in self.translator.translate(sources, size=1, longest=self.longest)]

    def _total(self, batch: Batch, smoothing: float) -> Tensor:
        model = self.translator.model
        memory = model.encode(batch.source, batch.source_lengths)
        hidden = model.decode(batch.target[:, :-1], memory, lengths=batch.target_lengths)  # (B, T, W)
        steps = torch.arange(hidden.shape[1], device=hidden.device)
        there = steps < batch.target_lengths.unsqueeze(1)  # (B, T)
        last = model.vocabulary
        return cross_entropy(hidden[there], last.weight, last.bias, batch.target[:, 1:][there], smoothing)


def exact(ours: Sequence[str], wanted: Sequence[str]) -> float:
    """The share of texts without a mistake.

    >>> exact(["2012-05-03", "2012-05-04"], ["2012-05-03", "2012-05-05"])
    0.5
    """
    return sum(map(str.__eq__, ours, wanted)) / len(wanted)
