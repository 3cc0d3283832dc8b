"""Seq2Seq: its context, its state, and its attention maps."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import regard
from regard.models import AttentiveContext, FixedContext, Seq2Seq
from regard.models.decoder_context import CONTEXTS, context_of
from regard.models.encoder_decoder import Memory
from tests.models.translators import LENGTHS, RECURRENT, TARGET, TS, B, T, build, sentences

SEEING = [name for name in CONTEXTS if name != "fixed"]


def rand(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def assert_close(result: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(result, expected, rtol=1e-9, atol=1e-10)


def scores(context: AttentiveContext, s: Tensor, h: Tensor) -> Tensor:
    """The equations, a pair at a time."""
    if context.similarity_name == "additive":
        return context.similarity.weight @ torch.tanh(context.query(s) + context.key(h))
    if context.similarity_name == "cosine":
        return context.sharpness * torch.cosine_similarity(s, h, dim=0)
    return s @ context.key(h)


@pytest.mark.parametrize("name", SEEING)
def test_context_is_its_equation(name: str) -> None:
    context = context_of(name, 8, 8).double()
    memory, state = Memory(rand(B, TS, 8), torch.tensor(LENGTHS)), rand(B, 8)
    result = context(state, context.keys(memory))
    for b, length in enumerate(LENGTHS):
        h = memory.states[b, :length]
        e = torch.stack([scores(context, state[b], x) for x in h])
        weights = torch.nn.functional.one_hot(e.argmax(), length).double() if name == "hard" else e.softmax(0)
        assert_close(result[b], weights @ h)


@pytest.mark.parametrize("name", SEEING)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_map_is_of_the_weights_that_were_used(name: str, dtype: torch.dtype) -> None:
    model, (source, lengths, target) = build(name, dtype), sentences()
    used = []
    model.context.register_forward_hook(lambda module, inputs, context: used.append(context))
    memory = model.encode(source, lengths)
    _, (m,) = model.decode(target, memory, return_maps=True)
    contexts = torch.stack(used, 1)  # (B, T, C)
    assert contexts.shape[1] == T
    torch.testing.assert_close((m @ memory.states.unsqueeze(1)).squeeze(1), contexts.detach(), rtol=1e-5, atol=1e-6)
    if name == "hard":
        assert set(m.dense().unique().tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("name", [*SEEING, "transformer"])
def test_attention_to_the_source_is_cross_attention_at_any_length(name: str) -> None:
    model, (source, lengths, _) = build(name, torch.float32).eval(), sentences()
    for length in (TS - 1, TS, TS + 1):
        target = torch.randint(4, 9, (B, length))
        with regard.watch(model) as seen, torch.no_grad():
            model.decode(target, model.encode(source, lengths))
        crossing = [m.shape[-2:] for m, kind in zip(seen, seen.kinds, strict=True) if kind == "cross"]
        assert crossing and set(crossing) == {(length, TS)}


def test_fixed_context_is_the_last_state_of_each_direction() -> None:
    model, (source, lengths, _) = build("fixed"), sentences()
    memory = model.encode(source, lengths)
    for b, length in enumerate(LENGTHS):
        expected = torch.cat((memory.states[b, length - 1, :4], memory.states[b, 0, 4:]))
        assert memory.summary is not None
        assert_close(memory.summary[b], expected)
    assert isinstance(model.context, FixedContext)


@pytest.mark.parametrize("name", ["fixed", "deep fixed"])
def test_a_constant_context_at_once_is_the_loop(name: str) -> None:
    model, (source, lengths, target) = build(name), sentences()
    results = []
    for constant in (True, False):
        model.context.constant = constant
        model.zero_grad()
        output = model.decode(target, model.encode(source, lengths))
        output.square().sum().backward()
        results.append((output, [p.grad.clone() for p in model.parameters()]))
    torch.testing.assert_close(results[0], results[1])


def test_a_context_of_ones_own() -> None:
    class Mean(nn.Module):
        constant = False

        def keys(self, memory: Memory) -> Memory:
            return memory

        def forward(self, state: Tensor, memory: Memory) -> Tensor:
            value, how = memory.states, {"weighting": "uniform", "lengths": memory.lengths}
            return regard.attend(state[:, None], value, value, **how).squeeze(1)

        def maps(self, states: Tensor, memory: Memory) -> list:
            return []

    model, (source, lengths, target) = Seq2Seq(RECURRENT, Mean()), sentences()
    assert model(source, lengths, target, torch.full((B,), T)).shape == (B, T, TARGET)


@pytest.mark.parametrize("name", ["additive", "bilinear", "lstm", "fixed"])
def test_gradcheck(name: str) -> None:
    small = replace(build(name).config, width=2, hidden=2, encoder_hidden=1, target_vocabulary=5, source_vocabulary=5)
    model = Seq2Seq(small).double()
    source, target, lengths = torch.tensor([[4, 1, 3], [1, 3, 0]]), torch.tensor([[2, 4], [2, 1]]), torch.tensor([3, 2])
    names = [name for name, _ in model.named_parameters()]

    def run(*parameters: Tensor) -> Tensor:
        held = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(model, held, (source, lengths, target, torch.tensor([2, 2])))

    assert torch.autograd.gradcheck(run, [p.detach().clone().requires_grad_() for p in model.parameters()])


def test_no_target_tokens() -> None:
    for name in ("additive", "transformer"):
        model, (source, lengths, target) = build(name), sentences()
        assert model(source, lengths, target[:, :0], torch.zeros(B, dtype=torch.long)).shape == (B, 0, TARGET)


def test_in_inference_mode() -> None:
    model, (source, lengths, target) = build("additive", torch.float32), sentences()
    expected = model(source, lengths, target, torch.full((B,), T))
    with torch.inference_mode():
        torch.testing.assert_close(model(source, lengths, target, torch.full((B,), T)), expected)


def test_autocast() -> None:
    model, (source, lengths, target) = build("additive", torch.float32).train(), sentences()
    expected = model(source, lengths, target, torch.full((B,), T))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = model(source, lengths, target, torch.full((B,), T))
    torch.testing.assert_close(result.float(), expected, rtol=0.1, atol=0.05)
    result.float().sum().backward()
