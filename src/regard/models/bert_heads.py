"""What is put on a `Bert`: layers that predict tokens, sentences and classes, and sentence embeddings.

Each head holds its `bert` and takes the same ids, lengths and segments. Padding beyond `lengths` has no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from ..layers import Dropout
from .bert import ACTIVATIONS, Bert, initialise

Lengths = Tensor | Sequence[int] | None


class _Head(nn.Module):
    """A BERT, and what `read` makes of its hidden vectors (B, T, W), or of its pooled ones (B, W)."""

    name: str
    """In messages."""
    pooled = False

    def __init__(self, bert: Bert) -> None:
        super().__init__()
        self.bert = _pooled(bert, self.name) if self.pooled else bert

    def forward(
        self, ids: Tensor, lengths: Lengths = None, segments: Tensor | None = None, *, return_maps: bool = False
    ) -> Any:
        run = self.bert.pooled if self.pooled else self.bert
        return _with_maps(run, (ids, lengths, segments), self.read, return_maps)

    def read(self, vectors: Tensor) -> Tensor:
        raise NotImplementedError


class _Classifier(_Head):
    """logits = W · dropout(vectors) + b; `classes` is their number, or their names."""

    def __init__(self, bert: Bert, classes: int | Sequence[str]) -> None:
        super().__init__(bert)
        config = bert.config
        self.labels = tuple(f"LABEL_{n}" for n in range(classes)) if isinstance(classes, int) else tuple(classes)
        if not self.labels or len(set(self.labels)) < len(self.labels):
            raise ValueError(f"{self.name}: classes ({classes!r}) must be at least one, each of another name.")
        self.dropout = Dropout(config.dropout if config.head_dropout is None else config.head_dropout)
        self.classes = nn.Linear(config.width, len(self.labels))
        initialise(self.classes)

    def read(self, vectors: Tensor) -> Tensor:
        return self.classes(self.dropout(vectors))


class MaskedTokens(nn.Module):
    """Predicts tokens that were masked, from what is around them.

        logits = E · norm(activation(W·h + b)) + c          E: the token embeddings (or weights of their own)

    Shapes: hidden (…, W) → logits (…, V).
    Paper: Devlin et al. 2019, section 3.1, task 1.

    >>> import torch
    >>> from regard.models import BertConfig
    >>> model = MaskedTokens(Bert(BertConfig(vocabulary=50, width=12, heads=3, hidden=24, layers=2), pooler=False))
    >>> ids, masked = torch.randint(1, 50, (2, 7)), torch.zeros(2, 7, dtype=torch.bool)
    >>> masked[0, 3] = masked[1, 1] = masked[1, 2] = True
    >>> tuple(model(ids).shape), tuple(model(ids, places=masked).shape)
    ((2, 7, 50), (3, 50))
    """

    def __init__(self, bert: Bert) -> None:
        super().__init__()
        config = bert.config
        self.bert = bert
        self.dense = nn.Linear(config.width, config.width)
        self.norm = nn.LayerNorm(config.width, eps=config.epsilon)
        self.activation = ACTIVATIONS[config.activation]
        self.vocabulary = nn.Linear(config.width, config.vocabulary)
        for module in (self.dense, self.vocabulary):
            initialise(module)
        if config.tied:
            self.vocabulary.weight = bert.tokens.weight

    def transform(self, hidden: Tensor) -> Tensor:
        """(…, W) → (…, W): what `vocabulary` multiplies. A loss that fuses the last layer takes both."""
        return self.norm(self.activation(self.dense(hidden)))

    def logits(self, hidden: Tensor) -> Tensor:
        """(…, W) → (…, V)."""
        return self.vocabulary(self.transform(hidden))

    def forward(
        self,
        ids: Tensor,
        lengths: Lengths = None,
        segments: Tensor | None = None,
        *,
        places: Tensor | None = None,
        return_maps: bool = False,
    ) -> Any:
        """Logits (B, T, V); or of `places` alone, a boolean (B, T), row by row: (M, V). And maps where asked for."""

        def read(hidden: Tensor) -> Tensor:
            return self.logits(hidden if places is None else hidden[places])

        return _with_maps(self.bert, (ids, lengths, segments), read, return_maps)


class NextSentence(_Head):
    """Tells whether the second text of a pair follows the first.

        logits = W · pooled + b                              class 0: it does; class 1: it is another

    Shapes: (B, T) → (B, 2). Paper: Devlin et al. 2019, section 3.1, task 2.
    """

    name, pooled = "next sentence", True

    def __init__(self, bert: Bert) -> None:
        super().__init__(bert)
        self.next = nn.Linear(bert.config.width, 2)
        initialise(self.next)

    def read(self, vectors: Tensor) -> Tensor:
        return self.next(vectors)


class Pretraining(nn.Module):
    """Both tasks of pretraining on one BERT: `masked` is a `MaskedTokens`, `next` a linear layer over the pooled.

    Shapes: (B, T) → logits of tokens (B, T, V) and of what follows (B, 2). Paper: Devlin et al. 2019, section 3.1.
    """

    def __init__(self, bert: Bert) -> None:
        super().__init__()
        self.masked = MaskedTokens(_pooled(bert, "pretraining"))
        self.next = nn.Linear(bert.config.width, 2)
        initialise(self.next)

    @property
    def bert(self) -> Bert:
        return self.masked.bert

    def forward(
        self,
        ids: Tensor,
        lengths: Lengths = None,
        segments: Tensor | None = None,
        *,
        places: Tensor | None = None,
        return_maps: bool = False,
    ) -> Any:
        """(tokens, next), or ((tokens, next), maps); tokens as those of `MaskedTokens`, `places` too."""

        def both(hidden: Tensor) -> tuple[Tensor, Tensor]:
            chosen = hidden if places is None else hidden[places]
            return self.masked.logits(chosen), self.next(self.bert.pool(hidden, lengths))

        return _with_maps(self.bert, (ids, lengths, segments), both, return_maps)


class SequenceClassifier(_Classifier):
    """One class for a text or a pair of texts.

        logits = W · dropout(pooled) + b

    Shapes: (B, T) → (B, C). `classes` is C, or the names of the classes. Paper: Devlin et al. 2019, section 4.1.

    >>> import torch
    >>> from regard.models import BertConfig
    >>> config = BertConfig(vocabulary=50, width=12, heads=3, hidden=24, layers=2)
    >>> model = SequenceClassifier(Bert(config), ["bad", "good"])
    >>> tuple(model(torch.randint(1, 50, (3, 7)), lengths=[7, 4, 6]).shape), model.labels
    ((3, 2), ('bad', 'good'))
    """

    name, pooled = "sequence classifier", True


class TokenClassifier(_Classifier):
    """One class for each token.

        logitsₜ = W · dropout(hₜ) + b

    Shapes: (B, T) → (B, T, C). `classes` is C, or the names of the classes. Paper: Devlin et al. 2019, section 5.3.
    """

    name = "token classifier"


class SentenceEmbedder(_Head):
    """A vector of length one for a text: texts of like meaning have vectors of like direction.

        e = m / ‖m‖,   m = Σₜ hₜ / length

    Shapes: (B, T) → (B, W); of an empty row, zeros. Paper: Reimers and Gurevych 2019, section 3.

    >>> import torch
    >>> from regard.models import BertConfig
    >>> model = SentenceEmbedder(Bert(BertConfig(vocabulary=50, width=12, heads=3, hidden=24, layers=2)))
    >>> model(torch.randint(1, 50, (3, 7)), lengths=[7, 4, 6]).norm(dim=1).round(decimals=3).tolist()
    [1.0, 1.0, 1.0]
    """

    def read(self, vectors: Tensor) -> Tensor:
        return F.normalize(vectors.sum(1), dim=1)  # padding is zero, and the direction of a sum is that of the mean


def _with_maps(bert: Callable[..., Any], inputs: tuple[Any, ...], read: Any, return_maps: bool) -> Any:
    """What a head reads off what a BERT gives, hidden or pooled vectors, and its maps where asked for."""
    result = bert(*inputs, return_maps=return_maps)
    return (read(result[0]), result[1]) if return_maps else read(result)


def _pooled(bert: Bert, where: str) -> Bert:
    if bert.pooler is None:
        raise ValueError(f"{where}: bert must have a pooler; got one without. Build it as Bert(config, pooler=True).")
    return bert
