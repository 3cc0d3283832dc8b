"""Heads of a `Bert`: prediction of tokens, sentences and classes, and sentence embeddings.

Each head has a `bert` attribute and takes the same ids, lengths and segments. Padding after `lengths` has no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from torch import Tensor, nn
from torch.nn import functional as F

from ..attention import AttentionMap
from ..attention.packed_layout import Lengths
from ..core.typed_call import same_type
from ..layers import Dropout
from .bert import ACTIVATIONS, Bert, ReadsText, initialise

Result = TypeVar("Result")


class _Head(nn.Module):
    """A BERT and a `read` method, which is applied to its hidden vectors (B, T, W), or its pooled ones (B, W)."""

    name: str
    """Name of the head in messages."""
    pooled = False

    def __init__(self, bert: Bert) -> None:
        super().__init__()
        self.bert = _pooled(bert, self.name) if self.pooled else bert

    @same_type(ReadsText.forward)
    def forward(
        self, ids: Tensor, lengths: Lengths | None = None, segments: Tensor | None = None, *, return_maps: bool = False
    ) -> Tensor | tuple[Tensor, list[AttentionMap]]:
        """Return the output of the head for ids (B, T) of these lengths; with return_maps also the maps of the BERT."""
        run = self.bert.pooled if self.pooled else self.bert
        return _with_maps(run, (ids, lengths, segments), self.read, return_maps)

    if TYPE_CHECKING:

        @same_type(forward)
        def __call__(self, *args: object, **kwargs: object) -> object: ...

    def read(self, vectors: Tensor) -> Tensor:
        """Return the output of the head from hidden vectors (B, T, W) or pooled ones (B, W)."""
        raise NotImplementedError


class _Classifier(_Head):
    """logits = W · dropout(vectors) + b. `classes` is the number of classes or their names."""

    def __init__(self, bert: Bert, classes: int | Sequence[str]) -> None:
        super().__init__(bert)
        config = bert.config
        self.labels = class_names(self.name, classes)
        self.dropout = Dropout(config.dropout if config.head_dropout is None else config.head_dropout)
        self.classes = nn.Linear(config.width, len(self.labels))
        initialise(self.classes)

    def read(self, vectors: Tensor) -> Tensor:
        logits: Tensor = self.classes(self.dropout(vectors))
        return logits


def class_names(where: str, classes: int | Sequence[str]) -> tuple[str, ...]:
    """Return the names of classes, given their number or names. Raise ValueError if there are none, or equal ones."""
    labels = tuple(f"LABEL_{n}" for n in range(classes)) if isinstance(classes, int) else tuple(classes)
    if not labels or len(set(labels)) < len(labels):
        raise ValueError(f"{where}: classes ({classes!r}) must be at least one, with different names.")
    return labels


class _TokenHead(nn.Module, Generic[Result]):
    """A head that predicts tokens, of all positions or only of some."""

    bert: Bert

    @overload
    def forward(
        self,
        ids: Tensor,
        lengths: Lengths | None = None,
        segments: Tensor | None = None,
        *,
        places: Tensor | None = None,
        return_maps: Literal[False] = False,
    ) -> Result: ...
    @overload
    def forward(
        self,
        ids: Tensor,
        lengths: Lengths | None = None,
        segments: Tensor | None = None,
        *,
        places: Tensor | None = None,
        return_maps: Literal[True],
    ) -> tuple[Result, list[AttentionMap]]: ...
    @overload
    def forward(
        self,
        ids: Tensor,
        lengths: Lengths | None = None,
        segments: Tensor | None = None,
        *,
        places: Tensor | None = None,
        return_maps: bool,
    ) -> Result | tuple[Result, list[AttentionMap]]: ...
    def forward(
        self,
        ids: Tensor,
        lengths: Lengths | None = None,
        segments: Tensor | None = None,
        *,
        places: Tensor | None = None,
        return_maps: bool = False,
    ) -> Result | tuple[Result, list[AttentionMap]]:
        """Return the prediction, of tokens only where `places` (B, T) is true; with return_maps also the maps."""

        def read(hidden: Tensor) -> Result:
            return self._read(hidden, lengths, places)

        return _with_maps(self.bert, (ids, lengths, segments), read, return_maps)

    if TYPE_CHECKING:

        @same_type(forward)
        def __call__(self, *args: object, **kwargs: object) -> object: ...

    def _read(self, hidden: Tensor, lengths: Lengths | None, places: Tensor | None) -> Result:
        raise NotImplementedError


class MaskedTokens(_TokenHead[Tensor]):
    """Predict masked tokens from their context.

        logits = E · norm(activation(W·h + b)) + c          E: the token embeddings (or separate weights)

    Shapes: (B, T) → (B, T, V); with `places` (B, T), only the M positions where it is true: (M, V).
    Paper: Devlin et al. 2019, section 3.1, task 1.

    >>> import torch
    >>> from regard.models import BertConfig
    >>> model = MaskedTokens(Bert(BertConfig(vocabulary=50, width=12, heads=3, hidden=24, layers=2), pooler=False))
    >>> ids, masked = torch.randint(1, 50, (2, 7)), torch.zeros(2, 7, dtype=torch.bool)
    >>> masked[0, 3] = masked[1, 1] = masked[1, 2] = True
    >>> tuple(model(ids).shape), tuple(model(ids, places=masked).shape)
    ((2, 7, 50), (3, 50))
    >>> hidden = model.bert(ids)
    >>> torch.equal(model.logits(hidden), model.vocabulary(model.transform(hidden)))
    True
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
        """Return the input of `vocabulary`: (…, W) → (…, W). A loss that fuses the last layer uses both."""
        transformed: Tensor = self.norm(self.activation(self.dense(hidden)))
        return transformed

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of hidden vectors: (…, W) → (…, V)."""
        logits: Tensor = self.vocabulary(self.transform(hidden))
        return logits

    def _read(self, hidden: Tensor, lengths: Lengths | None, places: Tensor | None) -> Tensor:
        return self.logits(hidden if places is None else hidden[places])


class NextSentence(_Head):
    """Predict whether the second text of a pair follows the first.

        logits = W · pooled + b                              class 0: it follows; class 1: it does not

    Shapes: (B, T) → (B, 2). Paper: Devlin et al. 2019, section 3.1, task 2.

    >>> import torch
    >>> from regard.models import BertConfig
    >>> config = BertConfig(vocabulary=50, width=12, heads=3, hidden=24, layers=2)
    >>> model, ids = NextSentence(Bert(config)).eval(), torch.randint(1, 50, (3, 7))
    >>> torch.equal(model(ids), model.read(model.bert.pooled(ids)))
    True
    >>> tuple(model(ids).shape)
    (3, 2)
    """

    name, pooled = "next sentence", True

    def __init__(self, bert: Bert) -> None:
        super().__init__(bert)
        self.next = nn.Linear(bert.config.width, 2)
        initialise(self.next)

    def read(self, vectors: Tensor) -> Tensor:
        logits: Tensor = self.next(vectors)
        return logits


class Pretraining(_TokenHead[tuple[Tensor, Tensor]]):
    """Both pretraining tasks on one BERT. `masked` is a `MaskedTokens`, `next` a linear layer on the pooled vector.

    Shapes: (B, T) → logits of tokens (B, T, V), or (M, V) as in `MaskedTokens`, and of the next sentence (B, 2).
    Paper: Devlin et al. 2019, section 3.1.

    >>> import torch
    >>> from regard.models import BertConfig
    >>> config = BertConfig(vocabulary=50, width=12, heads=3, hidden=24, layers=2)
    >>> model = Pretraining(Bert(config))
    >>> (tokens, next_sentence), maps = model(torch.randint(1, 50, (3, 7)), return_maps=True)
    >>> tuple(tokens.shape), tuple(next_sentence.shape), len(maps), len(model.bert.blocks)
    ((3, 7, 50), (3, 2), 2, 2)
    """

    def __init__(self, bert: Bert) -> None:
        super().__init__()
        self.masked = MaskedTokens(_pooled(bert, "pretraining"))
        self.next = nn.Linear(bert.config.width, 2)
        initialise(self.next)

    @property
    def bert(self) -> Bert:  # type: ignore[override]  # the one of `masked`, which is never replaced
        """The BERT that both tasks share."""
        return self.masked.bert

    def _read(self, hidden: Tensor, lengths: Lengths | None, places: Tensor | None) -> tuple[Tensor, Tensor]:
        chosen = hidden if places is None else hidden[places]
        return self.masked.logits(chosen), self.next(self.bert.pool(hidden, lengths))


class SequenceClassifier(_Classifier):
    """Predict one class for a text or a pair of texts.

        logits = W · dropout(pooled) + b

    Shapes: (B, T) → (B, C). `classes` is C, or the names of the classes. Paper: Devlin et al. 2019, section 4.1.

    >>> import torch
    >>> from regard.models import BertConfig
    >>> config = BertConfig(vocabulary=50, width=12, heads=3, hidden=24, layers=2)
    >>> model = SequenceClassifier(Bert(config), ["bad", "good"])
    >>> tuple(model(torch.randint(1, 50, (3, 7)), lengths=[7, 4, 6]).shape), model.labels
    ((3, 2), ('bad', 'good'))
    >>> tuple(model.read(torch.zeros(3, 12)).shape)                     # from pooled vectors
    (3, 2)
    """

    name, pooled = "sequence classifier", True


class TokenClassifier(_Classifier):
    """Predict one class for each token.

        logitsₜ = W · dropout(hₜ) + b

    Shapes: (B, T) → (B, T, C). `classes` is C, or the names of the classes. Paper: Devlin et al. 2019, section 5.3.

    >>> import torch
    >>> from regard.models import BertConfig
    >>> config = BertConfig(vocabulary=50, width=12, heads=3, hidden=24, layers=2)
    >>> model = TokenClassifier(Bert(config), ["name", "other"])
    >>> tuple(model(torch.randint(1, 50, (3, 7))).shape), tuple(model.read(torch.zeros(3, 7, 12)).shape)
    ((3, 7, 2), (3, 7, 2))
    """

    name = "token classifier"


class SentenceEmbedder(_Head):
    """Compute a unit vector for a text. Texts of similar meaning have vectors of similar direction.

        e = m / ‖m‖,   m = Σₜ hₜ / length

    Shapes: (B, T) → (B, W); zeros for an empty row. Paper: Reimers and Gurevych 2019, section 3.

    >>> import torch
    >>> from regard.models import BertConfig
    >>> model = SentenceEmbedder(Bert(BertConfig(vocabulary=50, width=12, heads=3, hidden=24, layers=2)))
    >>> model(torch.randint(1, 50, (3, 7)), lengths=[7, 4, 6]).norm(dim=1).round(decimals=3).tolist()
    [1.0, 1.0, 1.0]
    >>> model.read(torch.ones(1, 4, 9))[0, 0]                           # from hidden vectors: 1/√9
    tensor(0.3333)
    """

    def read(self, vectors: Tensor) -> Tensor:
        return F.normalize(vectors.sum(1), dim=1)  # padding is zero, and the sum has the direction of the mean


def _with_maps(
    bert: Callable[..., Any], inputs: tuple[Any, ...], read: Callable[[Tensor], Result], return_maps: bool
) -> Result | tuple[Result, list[AttentionMap]]:
    """Apply `read` to the output of a BERT, hidden or pooled vectors, and return the maps if requested."""
    result = bert(*inputs, return_maps=return_maps)
    return (read(result[0]), result[1]) if return_maps else read(result)


def _pooled(bert: Bert, where: str) -> Bert:
    if bert.pooler is None:
        raise ValueError(f"{where}: bert must have a pooler; got one without. Build it as Bert(config, pooler=True).")
    return bert
