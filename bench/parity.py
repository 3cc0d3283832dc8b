"""Check that the contenders of a benchmark compute the same outputs before they are timed."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch


class ParityError(AssertionError):
    """Raised if contenders compute different outputs, which makes a comparison of their times meaningless."""


@dataclass(frozen=True)
class Parity:
    """Contenders must agree with the oracle: |got − wanted| ≤ atol + rtol·|wanted|, elementwise.

    Outputs are tensors, or tuples, lists and dictionaries of them, compared in float64. NaN never agrees.

    >>> Parity("slow", atol=0.1).check("halves", {"fast": lambda: 0.5, "slow": lambda: 1 / 2})
    """

    oracle: str | Callable[[], object]
    """Name of a contender, or a function such as a float64 reference."""
    rtol: float = 1e-4
    atol: float = 1e-5
    contenders: tuple[str, ...] = ()
    """Contenders to compare; empty for all."""
    view: Callable[[Any], object] = field(default=lambda output: output)
    """Selects the part of a contender's output to compare. An oracle function returns that part directly."""

    def names(self) -> tuple[str, ...]:
        """Return the contenders that this check refers to."""
        return (*self.contenders, self.oracle) if isinstance(self.oracle, str) else self.contenders

    def check(self, where: str, contenders: Mapping[str, Callable[[], object]]) -> None:
        """Call each contender once and raise ParityError, with the values, at the first that disagrees."""
        if isinstance(self.oracle, str):
            oracle, wanted = self.oracle, _tensors(self.view(contenders[self.oracle]()))
        else:
            oracle, wanted = "the oracle", _tensors(self.oracle())
        for name in self.contenders or contenders:
            if name != oracle:
                got = _tensors(self.view(contenders[name]()))
                self._compare_shapes(f"{where}: the outputs of {name}", got, oracle, wanted)
                for position, (a, b) in enumerate(zip(got, wanted, strict=True)):
                    self._compare(f"{where}: output {position} of {name}", a, oracle, b)

    def _compare_shapes(self, what: str, got: list[torch.Tensor], oracle: str, wanted: list[torch.Tensor]) -> None:
        shapes, wanted_shapes = [tuple(t.shape) for t in got], [tuple(t.shape) for t in wanted]
        if shapes != wanted_shapes:
            raise ParityError(
                f"{what} ({shapes}) must have the shapes of {oracle}; got {wanted_shapes}. Nothing was timed."
            )

    def _compare(self, what: str, got: torch.Tensor, oracle: str, wanted: torch.Tensor) -> None:
        got, wanted = got.detach().double().flatten(), wanted.detach().double().flatten()
        excess = (got - wanted).abs() - (self.atol + self.rtol * wanted.abs())
        wrong = ~(excess <= 0)  # not `excess > 0`, so that NaN counts as wrong
        if not wrong.any():
            return
        at = int(torch.where(wrong, excess.nan_to_num(nan=math.inf), -math.inf).argmax())
        raise ParityError(
            f"{what} ({got[at].item():.9g} at flat index {at}) must equal that of {oracle} within atol={self.atol:g}, "
            f"rtol={self.rtol:g}; got {wanted[at].item():.9g} there, a difference of "
            f"{(got[at] - wanted[at]).abs().item():.3g}; {int(wrong.sum())} of {got.numel()} elements differ. "
            "Nothing was timed."
        )


def _tensors(output: object) -> list[torch.Tensor]:
    """Return the tensors of a nested output, in order."""
    if isinstance(output, Mapping):
        output = tuple(output.values())
    if isinstance(output, tuple | list):
        return [tensor for part in output for tensor in _tensors(part)]
    return [torch.as_tensor(output)]
