"""A recorded computation: its operations with their inputs and outputs, and a way to replay them."""

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
"""Operations that only allocate, reshape or copy."""


@dataclass(eq=False)
class Frame:
    """A part of the computation: a time step, a module, a stage, or a call of a PyTorch function."""

    number: int
    parent: Frame | None
    kind: str
    """One of "group", "step", "module", "stage", "attention", "call"."""
    name: str
    of: Any = None
    """The module, similarity or function."""
    inputs: tuple[TensorView, ...] = ()
    """Tensor arguments of a call, at the time of the call."""
    outputs: tuple[TensorView, ...] = ()
    """Output tensors of a call, or the first output of a module."""
    numbers: tuple[float, ...] = ()
    """Numeric arguments of a call."""
    causal: bool = False
    """Whether a module was called with is_causal."""
    time: int | None = None


@dataclass(frozen=True, eq=False)
class TensorView:
    """The first cells of a tensor at one point in time."""

    tensor: int
    letters: tuple[str, ...]
    shape: tuple[int, ...]
    values: Tensor
    """A copy of the first cells: see `first_cells`."""
    needs: frozenset[int]
    """The operations that created the tensor or wrote last to its memory."""
    scale: float | None = None
    """The value drawn in the strongest colour; None for the largest absolute value."""


@dataclass(frozen=True)
class Ref:
    """Reference to a tensor argument, by number."""

    tensor: int


@dataclass(eq=False)
class Operation:
    """One recorded operation of the dispatcher."""

    number: int
    function: Any
    args: Any
    kwargs: Any
    outputs: tuple[int | None, ...]
    """Numbers of its output tensors; None for outputs that are not tensors."""
    frame: Frame
    needs: frozenset[int] = frozenset()
    """Operations that created its arguments or wrote last to their memory."""
    sources: frozenset[int] = frozenset()
    """Tensor arguments that no operation created."""
    moves: bool = False
    """Whether it only reshapes or copies data."""


@dataclass
class Recording:
    """The recorded operations, in execution order."""

    operations: list[Operation] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    """All tensors; held so that memory is not reused."""
    inputs: dict[int, str] = field(default_factory=dict)
    weights: dict[int, str] = field(default_factory=dict)
    constants: set[int] = field(default_factory=set)
    """Tensors created from literals in the code."""
    outputs: list[int] = field(default_factory=list)
    makers: dict[int, int] = field(default_factory=dict)
    """Tensor → the operation that created it."""
    writers: dict[int, int] = field(default_factory=dict)
    """Output → the operation that wrote last to its memory."""

    def relevant_operations(self) -> list[Operation]:
        """Return the operations that an output depends on, in order. Others, such as checks, are dropped."""
        pending = [self.writers[output] for output in self.outputs if output in self.writers]
        pending += [self.makers[output] for output in self.outputs if output in self.makers]
        reached: set[int] = set()
        while pending:
            number = pending.pop()
            if number not in reached:
                reached.add(number)
                pending += self.operations[number].needs
        return [operation for operation in self.operations if operation.number in reached]

    def orphans(self) -> list[str]:
        """Describe tensors of unknown origin: not an input, a weight, a constant or the output of an operation."""
        known = {*self.inputs, *self.weights, *self.constants}
        return [
            f"{operation.function} reads tensor {tensor} of shape {tuple(self.tensors[tensor].shape)}"
            for operation in self.relevant_operations()
            for tensor in operation.sources
            if tensor not in known
        ]

    def replay(self, leave_out: int | None = None) -> list[Tensor]:
        """Run the relevant operations again from inputs, weights and constants only."""
        values = {number: self.tensors[number] for number in (*self.weights, *self.constants)}
        values |= {number: self.tensors[number].clone() for number in self.inputs}

        def resolve(x: Any) -> Any:
            return values[x.tensor] if isinstance(x, Ref) else x

        with torch.no_grad():
            for operation in self.relevant_operations():
                if operation.number == leave_out:
                    continue
                result = operation.function(*tree_map(resolve, operation.args), **tree_map(resolve, operation.kwargs))
                for output, tensor in zip(operation.outputs, tree_leaves(result), strict=True):
                    if output is not None:
                        values[output] = tensor
        return [values[output] for output in self.outputs]
