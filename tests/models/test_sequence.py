"""Three ways of processing a sequence keep one contract."""

import math
import re
from typing import Any

import pytest
import torch

from regard.models.sequence import Convolution, Recurrent, SelfAttention, SequenceConfig, TextClassifier, mixer

KINDS = ("recurrent", "convolution", "attention")
LENGTHS = torch.tensor([7, 1, 4])


def made(kind: Any, **changed: Any) -> Any:
    return mixer(SequenceConfig(kind=kind, width=12, heads=3, kernel=3, dropout=0.0, **changed)).eval()


@pytest.mark.parametrize("kind", KINDS)
def test_padding_is_left_out(kind: str) -> None:
    model, x = made(kind, layers=2), torch.randn(3, 7, 12)
    y = model(x, LENGTHS)
    assert y.shape == (3, 7, 12)
    for row, length in enumerate(LENGTHS.tolist()):
        assert torch.allclose(y[row, :length], model(x[row : row + 1, :length])[0], atol=1e-5)
        assert (y[row, length:] == 0).all()
    x[1, 3:] = 1e6
    assert torch.equal(model(x, LENGTHS)[1], y[1])


@pytest.mark.parametrize("kind", KINDS)
def test_how_far_an_entry_reaches(kind: str) -> None:
    """What the properties say, by gradients: does the last output depend on the first input?"""
    for length in (1, 3, 4, 5, 9):
        model, x = made(kind, layers=2), torch.randn(1, length, 12, requires_grad=True)
        (model(x)[0, -1] @ torch.randn(12)).backward()
        assert (x.grad[0, 0].abs().sum() > 0) == math.isfinite(model.path(length)), length


def test_steps_and_paths() -> None:
    assert (Recurrent(8, 2).steps(50), Recurrent(8, 2).path(50)) == (100, 50)
    assert (Convolution(8, 3, kernel=3).steps(50), Convolution(8, 3, kernel=3).path(8)) == (3, 3)
    assert Convolution(8, 3, kernel=3).path(9) == math.inf and Convolution(8, 3, kernel=3).path(2) == 1
    assert (SelfAttention(8, 3).steps(50), SelfAttention(8, 3).path(50)) == (3, 1)


@pytest.mark.parametrize("pool", ["mean", "max", "learned"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_classifier_of_texts(kind: Any, pool: Any) -> None:
    config = SequenceConfig(vocabulary=11, classes=5, kind=kind, width=12, heads=3, pool=pool)
    model, ids = TextClassifier(config).eval(), torch.randint(0, 11, (3, 7))
    logits = model(ids, LENGTHS)
    assert logits.shape == (3, 5)
    ids[1, 1:] = 0
    assert torch.allclose(model(ids, LENGTHS)[1], logits[1], atol=1e-6)
    model.train()(ids, LENGTHS).square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_a_cell_of_choice() -> None:
    assert isinstance(made("recurrent", cell="lstm").rnn[0], torch.nn.LSTM)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kind": "fourier"}, "sequence: kind ('fourier') must be one of recurrent, convolution, attention."),
        ({"pool": "sum"}, "sequence: pool ('sum') must be one of mean, max, learned."),
        ({"vocabulary": 0}, "sequence: vocabulary (0) must be at least 1."),
        ({"kind": "recurrent", "width": 13}, "recurrent: width (13) must be even, a half for each direction; try 14."),
        ({"kind": "convolution", "kernel": 4}, "convolution: kernel (4) must be odd"),
        ({"kind": "recurrent", "cell": "rnn"}, "recurrent: cell ('rnn') must be one of gru, lstm."),
    ],
)
def test_settings_that_do_not_fit(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        TextClassifier(SequenceConfig(**({"vocabulary": 11, "classes": 5, "width": 12, "heads": 3} | changed)))


def test_lengths_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match=r"lengths \(2,?\)"):
        made("convolution")(torch.zeros(3, 7, 12), torch.tensor([1, 2]))
    with pytest.raises(ValueError, match="sequence: lengths"):
        TextClassifier(SequenceConfig(11, 5, width=12, heads=3))(
            torch.zeros(3, 7, dtype=torch.long), torch.tensor([0, 1, 2])
        )
