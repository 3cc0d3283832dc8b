"""The text classification task: loss of a batch of labelled texts, accuracy and F1 on held-out texts."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..data.text_batches import TextBatch, TextBatches
from .metrics import confusion, figures
from .task import Loss, Task
from .text_classifier import TextClassifier

SAMPLES = 8


class Classify(Task[TextBatch]):
    """Task of training a text classifier: `training.fit(Classify(…), …)`.

        loss = 1/B Σ_b −log p(label_b | text_b)

    Args:
        classifier: the model and its vocabulary.
        train: training batches.
        valid: batches of held-out texts, not shuffled.
        smoothing: label smoothing, in training only.
        layer_decay: ratio of the learning rate of each layer to that of the layer above it; 1 for equal rates.

    >>> import tempfile
    >>> from regard.data import Corpus, WordPiece
    >>> from regard.models import Bert, BertConfig, SequenceClassifier
    >>> words = WordPiece.train(["a low lower lowest", "a new newer newest"] * 9, 40)
    >>> texts = [("a low", 0), ("newest", 1), ("a new", 1)]
    >>> folder = tempfile.mkdtemp()
    >>> corpus = Corpus.write(folder + "/corpus", [(words.encode(text).ids, [label]) for text, label in texts])
    >>> bert = Bert(BertConfig(vocabulary=len(words), width=12, heads=3, hidden=24, layers=2))
    >>> classifier = TextClassifier(SequenceClassifier(bert, ["old", "new"]), words)
    >>> task = Classify(classifier, *(TextBatches(corpus, 64, pad=words.pad, shuffle=turn) for turn in (True, False)))
    >>> task.batch_loss(next(task.train.epoch(0))).count, list(task.evaluate())
    (3, ['loss', 'accuracy', 'f1'])
    >>> int(task.confusion().sum()), [sample[0] for sample in task.samples()]
    (3, ['a low', 'newest', 'a new'])
    """

    goal = ("accuracy", "max")
    unit = "texts"

    def __init__(
        self,
        classifier: TextClassifier,
        train: TextBatches,
        valid: TextBatches,
        *,
        smoothing: float = 0.0,
        layer_decay: float = 1.0,
    ) -> None:
        self.classifier = classifier
        self.model: nn.Module = classifier.model
        self.train, self.valid, self.smoothing = train, valid, smoothing
        self.rates = layer_rates(self.model, layer_decay)

    def batch_loss(self, batch: TextBatch) -> Loss:
        """Return the cross-entropy summed over the texts."""
        logits = self.model(batch.ids, batch.lengths).float()  # (B, C)
        total = F.cross_entropy(logits, batch.labels, reduction="sum", label_smoothing=self.smoothing)
        right = (logits.argmax(1) == batch.labels).float().mean()
        return Loss(total, len(batch), {"accuracy": right})

    def evaluate(self) -> dict[str, float]:
        """Return the loss, accuracy and macro F1 on the held-out texts."""
        return figures(*self._held_out())

    def confusion(self) -> Tensor:
        """Return the confusion matrix (C, C) of the held-out texts."""
        logits, wanted = self._held_out()
        return confusion(logits.argmax(1), wanted, logits.shape[1])

    def samples(self) -> list[tuple[str, str, str]]:
        """Return a few held-out texts, the predicted label with its probability, and the true label."""
        corpus, words, labels = self.valid.corpus, self.classifier.words, self.classifier.labels
        first = range(min(SAMPLES, len(corpus)))
        batch = self.valid.batch(torch.arange(len(first)).numpy()).to(self.device)
        best = self.model(batch.ids, batch.lengths).float().softmax(1).max(1)
        ours = [f"{labels[index]} ({value:.2f})" for value, index in zip(*(x.tolist() for x in best), strict=True)]
        return [(words.decode(corpus[n][0]), ours[n], labels[int(corpus[n][1][0])]) for n in first]

    def save(self, folder: Path) -> None:
        """Write the vocabulary. The training loop writes the weights."""
        self.classifier.words.save(folder)

    def _held_out(self) -> tuple[Tensor, Tensor]:
        """Return the logits (N, C) and labels (N,) of the held-out texts."""
        logits, wanted = [], []
        for batch in self.evaluated("batches", self.valid.epoch(0), self.valid.count(0)):
            batch = batch.to(self.device)
            logits.append(self.model(batch.ids, batch.lengths).float().cpu())
            wanted.append(batch.labels.cpu())
        return torch.cat(logits), torch.cat(wanted)


def layer_rates(model: nn.Module, decay: float) -> dict[str, float]:
    """Return the learning rate factor of each parameter of a BERT or GPT with a head: dᵏ for k layers below the head.

    Lower layers hold more general features and should change less (Howard & Ruder 2018, section 3.2).

    >>> from ..models.bert import Bert, BertConfig
    >>> from ..models.bert_heads import SequenceClassifier
    >>> model = SequenceClassifier(Bert(BertConfig(vocabulary=9, width=4, heads=1, hidden=4, layers=2)), 2)
    >>> rates = layer_rates(model, 0.5)
    >>> [rates[name] for name in ("classes.bias", "bert.blocks.1.attention.out.bias", "bert.tokens.weight")]
    [1.0, 0.5, 0.125]
    """
    if not 0 < decay <= 1:
        raise ValueError(f"classify: layer decay ({decay}) must lie in (0, 1]. Use 1 for equal rates.")
    layers = 1 + max((_layer(name) for name, _ in model.named_parameters()), default=-1)
    rates = {}
    for name, _ in model.named_parameters():
        if _layer(name) >= 0:
            rates[name] = decay ** (layers - _layer(name))
        elif name.startswith(("bert.", "gpt.")) and not name.startswith(("bert.pooler.", "gpt.norm.")):
            rates[name] = decay ** (layers + 1)
        else:  # above the last block
            rates[name] = 1.0
    return rates


def _layer(name: str) -> int:
    return int(name.split(".")[2]) if name.startswith(("bert.blocks.", "gpt.blocks.")) else -1
