"""Recurrence step by step: outputs and gradients equal those of nn.GRU, nn.LSTM and their cells."""

import re

import pytest
import torch
from torch import Tensor, nn

from regard.layers.recurrent import CELLS, RecurrentState, run_rnn

T, B, E, C, W = 4, 3, 5, 7, 2
cells = pytest.mark.parametrize("cell", CELLS)


def rand(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def state_of(cell: str) -> RecurrentState:
    return RecurrentState(E, C, W, cell=cell).double()


def begin(cell: str) -> tuple[Tensor, ...]:
    return tuple(rand(B, W) for _ in range(2 if cell == "lstm" else 1))


def unrolled(state: RecurrentState, y: Tensor, contexts: Tensor, hidden: tuple[Tensor, ...]) -> Tensor:
    steps, states = state.unroll(y), []
    for context in contexts:
        hidden = steps.step(context, hidden)
        states.append(hidden[0])
    return torch.stack(states)


@cells
def test_steps_are_the_cell_of_torch(cell: str) -> None:
    state, hidden = state_of(cell), begin(cell)
    theirs = {"gru": nn.GRUCell, "lstm": nn.LSTMCell}[cell](E + C, W, dtype=torch.float64)
    theirs.load_state_dict({name.removesuffix("_l0"): x for name, x in state.rnn.state_dict().items()})
    y, contexts, result = rand(T, B, E), rand(T, B, C), hidden
    steps = state.unroll(y)
    for t in range(T):
        expected = theirs(torch.cat((y[t], contexts[t]), -1), result if cell == "lstm" else result[0])
        result = steps.step(contexts[t], result)
        for ours, other in zip(result, expected if cell == "lstm" else (expected,), strict=True):
            torch.testing.assert_close(ours, other)


@cells
@pytest.mark.parametrize("used", [T, 2])
def test_gradients_are_those_of_torch(cell: str, used: int) -> None:
    """Check inputs, contexts, the first state and every weight, also if the last states are not used."""
    state, grad = state_of(cell), rand(used, B, W)
    inputs, result = [rand(T, B, E), rand(T, B, C), *begin(cell)], []
    leaves = [*state.rnn.parameters()]
    for run in (
        lambda y, c, *h: unrolled(state, y, c, h),
        lambda y, c, *h: run_rnn(state.rnn, torch.cat((y, c), -1), tuple(x[None] for x in h))[0],
    ):
        variables = [x.clone().requires_grad_() for x in inputs]
        output = run(*variables)
        result.append((output, torch.autograd.grad(output[:used], [*variables, *leaves], grad)))
    torch.testing.assert_close(result[0], result[1])


@cells
def test_gradcheck(cell: str) -> None:
    state = state_of(cell)
    names = [name for name, _ in state.rnn.named_parameters()]

    def run(y: Tensor, contexts: Tensor, *rest: Tensor) -> Tensor:
        weights, hidden = rest[: len(names)], rest[len(names) :]
        held = {f"state.rnn.{name}": x for name, x in zip(names, weights, strict=True)}
        return torch.func.functional_call(_Unrolled(state), held, (y, contexts, hidden))

    inputs = [rand(2, B, E), rand(2, B, C), *(p.detach().clone() for p in state.rnn.parameters()), *begin(cell)]
    assert torch.autograd.gradcheck(run, [x.requires_grad_() for x in inputs])


class _Unrolled(nn.Module):
    def __init__(self, state: RecurrentState) -> None:
        super().__init__()
        self.state = state

    def forward(self, y: Tensor, contexts: Tensor, hidden: tuple[Tensor, ...]) -> Tensor:
        return unrolled(self.state, y, contexts, hidden)


@cells
def test_one_context_for_all_steps_at_once(cell: str) -> None:
    state, hidden, y, context = state_of(cell), begin(cell), rand(T, B, E), rand(B, C)
    torch.testing.assert_close(state.at_once(y, context, hidden), unrolled(state, y, context.expand(T, B, C), hidden))


@cells
def test_two_passes_before_one_backward(cell: str) -> None:
    # each pass finds the gradients of its own steps
    state, hidden = state_of(cell), begin(cell)
    runs = [(rand(T, B, E), rand(T, B, C)) for _ in range(2)]
    result = [unrolled(state, *run, hidden).sum() for run in runs]
    together = torch.autograd.grad(result[0] + result[1], state.rnn.weight_hh_l0)[0]
    apart = [torch.autograd.grad(unrolled(state, *run, hidden).sum(), state.rnn.weight_hh_l0)[0] for run in runs]
    torch.testing.assert_close(together, apart[0] + apart[1])


def test_unknown_cell() -> None:
    with pytest.raises(ValueError, match=re.escape("recurrent state: cell ('rnn') must be one of gru, lstm.")):
        RecurrentState(1, 1, 1, cell="rnn")
