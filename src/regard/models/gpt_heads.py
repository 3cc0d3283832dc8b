"""A head of a `GPT`: prediction of the class of a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, overload

import torch
from torch import Tensor, nn

from ..attention import AttentionMap
from ..attention.packed_layout import Lengths
from ..core.tensors import shape
from ..core.typed_call import same_type
from ..layers import Dropout
from .bert_heads import class_names
from .gpt import GPT


class LastTokenClassifier(nn.Module):
    """Predict one class for a text from the hidden state of its last token, the only one that has read all of it.

        logits = W · dropout(h_T) + b

    Shapes: (B, T) → (B, C). `classes` is C, or the names of the classes. No text may be empty.
    Paper: Radford et al. 2018 (GPT), section 3.2. Differs from it: no token is added to the end of the text.

    >>> from regard.models import GPTConfig
    >>> model = LastTokenClassifier(GPT(GPTConfig(vocabulary=50, width=12, heads=3, layers=2)), ["bad", "good"])
    >>> tuple(model(torch.randint(50, (3, 7)), lengths=[7, 4, 6]).shape), model.labels
    ((3, 2), ('bad', 'good'))
    """

    def __init__(self, gpt: GPT, classes: int | Sequence[str]) -> None:
        super().__init__()
        self.labels = class_names("last token classifier", classes)
        self.gpt = gpt
        self.dropout = Dropout(gpt.config.dropout)
        self.classes = nn.Linear(gpt.config.width, len(self.labels))
        nn.init.normal_(self.classes.weight, std=0.02)
        nn.init.zeros_(self.classes.bias)

    @overload
    def forward(
        self, ids: Tensor, lengths: Lengths | None = None, *, return_maps: Literal[False] = False
    ) -> Tensor: ...
    @overload
    def forward(
        self, ids: Tensor, lengths: Lengths | None = None, *, return_maps: Literal[True]
    ) -> tuple[Tensor, list[AttentionMap]]: ...
    @overload
    def forward(
        self, ids: Tensor, lengths: Lengths | None = None, *, return_maps: bool
    ) -> Tensor | tuple[Tensor, list[AttentionMap]]: ...
    def forward(
        self, ids: Tensor, lengths: Lengths | None = None, *, return_maps: bool = False
    ) -> Tensor | tuple[Tensor, list[AttentionMap]]:
        """Return logits (B, C), or (logits, maps). See `GPT.forward` for the arguments.

        Raises:
            ValueError: if a text is empty.
        """
        count = torch.full((len(ids),), ids.shape[1]) if lengths is None else torch.as_tensor(lengths)  # (B,)
        if not ids.shape[1] or (not torch.compiler.is_compiling() and len(count) and int(count.min()) < 1):
            raise ValueError(
                f"last token classifier: ids ({shape(ids)}) must hold no empty text; got lengths {count.tolist()}."
            )
        result = self.gpt.hidden(ids, lengths, return_maps=return_maps)
        hidden, maps = result if isinstance(result, tuple) else (result, [])
        rows = torch.arange(len(ids), device=hidden.device)
        last = hidden[rows, count.to(hidden.device) - 1]  # (B, W)
        logits = self.classes(self.dropout(last))  # (B, C)
        return (logits, maps) if return_maps else logits

    if TYPE_CHECKING:

        @same_type(forward)
        def __call__(self, *args: object, **kwargs: object) -> object: ...
