"""The three sequence models have the same interface and properties."""

import math
import re
from functools import partial
from typing import Any

import pytest
import torch

from studies._sequence_models import Convolution, Recurrent, SelfAttention

KINDS: dict[str, Any] = {
    "recurrent": Recurrent,
    "convolution": partial(Convolution, kernel=3),
    "attention": partial(SelfAttention, heads=3),
}
LENGTHS = torch.tensor([7, 1, 4])


def build(kind: Any, **changed: Any) -> Any:
    return KINDS[kind](12, **changed).eval()


@pytest.mark.parametrize("kind", KINDS)
def test_padding_is_ignored(kind: str) -> None:
    model, x = build(kind, layers=2), torch.randn(3, 7, 12)
    y = model(x, LENGTHS)
    assert y.shape == (3, 7, 12)
    for row, length in enumerate(LENGTHS.tolist()):
        assert torch.allclose(y[row, :length], model(x[row : row + 1, :length])[0], atol=1e-5)
        assert (y[row, length:] == 0).all()
    x[1, 3:] = 1e6
    assert torch.equal(model(x, LENGTHS)[1], y[1])


@pytest.mark.parametrize("kind", KINDS)
def test_path_matches_the_dependence_of_outputs_on_inputs(kind: str) -> None:
    """The last output depends on the first input, by gradients, if and only if `path` is finite."""
    for length in (1, 3, 4, 5, 9):
        model, x = build(kind, layers=2), torch.randn(1, length, 12, requires_grad=True)
        (model(x)[0, -1] @ torch.randn(12)).backward()
        assert (x.grad[0, 0].abs().sum() > 0) == math.isfinite(model.path(length)), length


def test_steps_and_paths() -> None:
    assert (Recurrent(8, 2).steps(50), Recurrent(8, 2).path(50)) == (100, 50)
    assert (Convolution(8, 3, kernel=3).steps(50), Convolution(8, 3, kernel=3).path(8)) == (3, 3)
    assert Convolution(8, 3, kernel=3).path(9) == math.inf and Convolution(8, 3, kernel=3).path(2) == 1
    assert (SelfAttention(8, 3).steps(50), SelfAttention(8, 3).path(50)) == (3, 1)


def test_the_cell_can_be_chosen() -> None:
    assert isinstance(build("recurrent", cell="lstm").rnn[0], torch.nn.LSTM)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Recurrent(13), "recurrent: width (13) must be even, half for each direction; try 14."),
        (lambda: Recurrent(12, cell="rnn"), "recurrent: cell ('rnn') must be one of gru, lstm."),
        (lambda: Convolution(12, kernel=4), "convolution: kernel (4) must be odd"),
    ],
)
def test_invalid_settings_are_rejected(build: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        build()


def test_invalid_lengths_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"lengths \(2,?\)"):
        build("convolution")(torch.zeros(3, 7, 12), torch.tensor([1, 2]))
