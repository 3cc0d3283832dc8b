"""The translation task: loss of a batch of pairs, BLEU, chrF and exact matches on held-out pairs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from ..core.chunks import chunks
from ..core.files import write_text
from ..data import Batch, Batches
from ..layers.cross_entropy import cross_entropy
from ..models import EncoderDecoder
from .bleu import References
from .task import Loss, Task
from .translator import Translator

SAMPLES = 8
CHUNK = 128
"""Number of texts that are translated at once in an evaluation."""
EVALUATION = "evaluation.json"
"""File in the folder of a run with the BLEU tokenizer and the signatures of the scores."""


class Translate(Task[Batch]):
    """Task of training a translator: `training.fit(Translate(…), …)`.

    Args:
        translator: the model and its vocabularies.
        train: training batches.
        valid: batches of held-out pairs, not shuffled.
        texts: the held-out pairs as texts.
        smoothing: label smoothing, in training only.
        longest: maximum number of tokens of a translation during evaluation.
        tokenizer: sacreBLEU tokenizer; by default, chosen by the script of the held-out targets.

    >>> import tempfile
    >>> from regard.data import Characters, Corpus, encode_pairs
    >>> from regard.models import Transformer, TransformerConfig
    >>> letters, pairs = Characters("abc"), [("ab", "ba"), ("c", "c"), ("abc", "cba")]
    >>> folder = Path(tempfile.mkdtemp())
    >>> corpus = Corpus.write(folder / "corpus", encode_pairs(pairs, letters, letters))
    >>> model = Transformer(TransformerConfig(len(letters), len(letters), width=8, heads=2, hidden=16))
    >>> batches = Batches(corpus, 64), Batches(corpus, 64, shuffle=False)
    >>> task = Translate(Translator(model, letters, letters), *batches, pairs, longest=8)
    >>> loss = task.batch_loss(next(task.train.epoch(0)))
    >>> loss.count, list(task.evaluate()), len(task.samples())          # 6 letters and 3 EOS
    (9, ['loss', 'bleu', 'chrf', 'exact'], 3)
    >>> task.save(folder)
    >>> task.save_evaluation(folder)                                    # `save` does this, too
    >>> sorted(path.name for path in folder.glob("*.json"))
    ['evaluation.json', 'source.json', 'target.json']
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
            raise ValueError(
                "translate: texts (0 pairs) must hold at least one pair; got none. They are needed for evaluation."
            )
        self.translator, self.model = translator, cast(nn.Module, translator.model)
        self.train, self.valid, self.texts = train, valid, texts
        self.smoothing, self.longest = smoothing, longest
        self.references = References([target for _, target in texts], tokenizer)

    def batch_loss(self, batch: Batch) -> Loss:
        """Return the cross-entropy summed over the target tokens, without padding."""
        return Loss(total_loss(self.translator.model, batch, self.smoothing), batch.tokens, {"padding": batch.padding})

    def evaluate(self) -> dict[str, float]:
        """Return the loss per token without smoothing, and BLEU, chrF and exact matches of greedy translations."""
        total = count = 0.0
        for batch in self.evaluated("batches", self.valid.epoch(0), self.valid.count(0)):
            total += float(total_loss(self.translator.model, batch.to(self.device)))
            count += batch.tokens
        ours = self._translated()
        references = self.references
        if len(ours) < len(references.texts):  # the time of the evaluation was over
            references = References(references.texts[: len(ours)], references.tokenizer)
        return {
            "loss": total / count,
            "bleu": references.bleu(ours),
            "chrf": references.chrf(ours),
            "exact": exact(ours, references.texts),
        }

    def samples(self) -> list[tuple[str, str, str]]:
        """Return a few held-out texts, their greedy translations, and the references."""
        ours = self.translator([source for source, _ in self.texts[:SAMPLES]], size=1, longest=self.longest)
        return [(source, text, wanted) for (source, wanted), text in zip(self.texts, ours, strict=False)]

    def save(self, folder: Path) -> None:
        """Write the vocabularies and the evaluation settings. The training loop writes the weights."""
        self.translator.source.save(folder / "source.json")
        self.translator.target.save(folder / "target.json")
        self.save_evaluation(folder)

    def save_evaluation(self, folder: Path) -> None:
        """Write how BLEU and chrF are computed, so that all evaluations of a run are comparable."""
        evaluation = {"tokenizer": self.references.tokenizer, **self.references.signatures}
        write_text(folder / EVALUATION, json.dumps(evaluation, indent=2) + "\n")

    def _translated(self) -> list[str]:
        parts = list(chunks((source for source, _ in self.texts), CHUNK))
        done = self.evaluated("texts", parts, len(parts))
        return [text for chunk in done for text in self.translator(chunk, size=1, longest=self.longest)]


def total_loss(model: EncoderDecoder, batch: Batch, smoothing: float = 0.0) -> Tensor:
    """Return Σ −log p(token) over the target tokens of a batch, without padding: ()."""
    memory = model.encode(batch.source, batch.source_lengths)
    hidden = model.decode(batch.target[:, :-1], memory, lengths=batch.target_lengths)  # (B, T, W)
    steps = torch.arange(hidden.shape[1], device=hidden.device)
    inside = steps < batch.target_lengths.unsqueeze(1)  # (B, T)
    last = model.vocabulary
    return cross_entropy(hidden[inside], last.weight, last.bias, batch.target[:, 1:][inside], smoothing)


def exact(ours: Sequence[str], wanted: Sequence[str]) -> float:
    """Return the fraction of texts that match exactly.

    >>> exact(["2012-05-03", "2012-05-04"], ["2012-05-03", "2012-05-05"])
    0.5
    """
    return sum(map(str.__eq__, ours, wanted)) / len(wanted)
