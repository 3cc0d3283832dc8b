"""What ran: operations, what they read and wrote, and running them again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

ALLOCATIONS = frozenset(("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"))
"""Operations that return uninitialized memory."""
MOVES = ALLOCATIONS | frozenset(
    (
        *("view", "_unsafe_view", "reshape", "_reshape_alias", "alias", "detach", "view_as", "as_strided", "unfold"),
        *("t", "transpose", "permute", "expand", "unsqueeze", "squeeze", "select", "slice", "split"),
        *("split_with_sizes", "unbind", "clone", "_to_copy", "copy_", "lift_fresh"),
    )
)
"""Operations that compute nothing."""


@dataclass(eq=False)
class Frame:
    """Something that was under way: a step in time, a module, a stage, or a call of PyTorch."""

    number: int
    parent: Frame | None
    kind: str
    """group, step, module, stage, attention or call"""
    name: str
    of: Any = None
    """The module, the similarity, the function."""
    given: tuple[Shown, ...] = ()
    """The tensors of a call, as they were."""
    made: tuple[Shown, ...] = ()
    """Those that a call gave, or the first of a module."""
    numbers: tuple[float, ...] = ()
    """The plain numbers of a call."""
    time: int | None = None


@dataclass(frozen=True, eq=False)
class Shown:
    """A tensor at one moment."""

    tensor: int
    letters: tuple[str, ...]
    shape: tuple[int, ...]
    values: Tensor
    """A copy of its first cells: see `glimpse`."""
    needs: frozenset[int]
    """The operations that made it, or wrote last to its memory."""
    scale: float | None = None
    """The number that is painted in the strongest color; None for the largest of its own."""


@dataclass(frozen=True)
class Ref:
    """A tensor among the arguments of an operation, by its number."""

    tensor: int


@dataclass(eq=False)
class Operation:
    number: int
    function: Any
    args: Any
    kwargs: Any
    made: tuple[int | None, ...]
    """The tensors it gave, by number."""
    frame: Frame
    needs: frozenset[int] = frozenset()
    """Operations that made its arguments, or wrote last to their memory."""
    sources: frozenset[int] = frozenset()
    """Of what it reads, the tensors that no operation made."""
    moves: bool = False
    """Whether it computes nothing: the same numbers under another shape or at another place."""


@dataclass
class Recording:
    """What ran, in order."""

    operations: list[Operation] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    """Kept, so that no memory is used twice."""
    inputs: dict[int, str] = field(default_factory=dict)
    weights: dict[int, str] = field(default_factory=dict)
    constants: set[int] = field(default_factory=set)
    """Tensors written out in the code."""
    outputs: list[int] = field(default_factory=list)
    makers: dict[int, int] = field(default_factory=dict)
    """Tensor → the operation that made it."""
    writers: dict[int, int] = field(default_factory=dict)
    """Output → the operation that wrote last to its memory."""

    def kept(self) -> list[Operation]:
        """The operations that an output depends on, in order; the others are checks, and lead nowhere."""
        wanted = [self.writers[output] for output in self.outputs if output in self.writers]
        wanted += [self.makers[output] for output in self.outputs if output in self.makers]
        reached: set[int] = set()
        while wanted:
            number = wanted.pop()
            if number not in reached:
                reached.add(number)
                wanted += self.operations[number].needs
        return [operation for operation in self.operations if operation.number in reached]

    def orphans(self) -> list[str]:
        """What kept operations read that nobody gave: neither an input nor a weight nor another operation."""
        known = {*self.inputs, *self.weights, *self.constants}
        return [
            f"{operation.function} reads tensor {tensor} of shape {tuple(self.tensors[tensor].shape)}"
            for operation in self.kept()
            for tensor in operation.sources
            if tensor not in known
        ]

    def replay(self, leave_out: int | None = None) -> list[Tensor]:
        """Run the kept operations again, from the inputs and the weights alone."""
        held = {number: self.tensors[number] for number in (*self.weights, *self.constants)}
        held |= {number: self.tensors[number].clone() for number in self.inputs}

        def real(x: Any) -> Any:
            return held[x.tensor] if isinstance(x, Ref) else x

        with torch.no_grad():
            for operation in self.kept():
                if operation.number == leave_out:
                    continue
                found = operation.function(*tree_map(real, operation.args), **tree_map(real, operation.kwargs))
                for made, tensor in zip(operation.made, tree_leaves(found), strict=True):
                    if made is not None:
                        held[made] = tensor
        return [held[output] for output in self.outputs]
