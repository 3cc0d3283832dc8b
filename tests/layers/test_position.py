"""Positions compared with the equations of their papers."""

import math
import re
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.layers import LearnedPosition, RotaryPosition, SinusoidalPosition, sinusoids

B, H, T, W = 2, 3, 5, 14
LAYOUTS = ("interleaved", "halves")


def x(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*(shape or (B, T, W)), dtype=dtype)


def everyone() -> list:
    return [SinusoidalPosition(W), LearnedPosition(W, length=23).double(), RotaryPosition()]


def test_sinusoids_are_the_papers() -> None:
    table = sinusoids(torch.arange(T), W)
    for p in range(T):
        for i in range(W // 2):
            angle = p / 10000 ** (2 * i / W)
            assert table[p, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-12)
            assert table[p, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-12)
    halves = sinusoids(torch.arange(T), W, layout="halves")
    assert torch.equal(halves, torch.cat((table[:, 0::2], table[:, 1::2]), -1))


def test_sinusoids_are_exact_at_large_positions() -> None:
    far = 1_000_003
    expected = [math.sin(far / 10000 ** (2 * i / W)) for i in range(W // 2)]
    result = SinusoidalPosition(W)(torch.zeros(1, W), offset=far)[0, 0::2]
    assert result.tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rotary_is_a_rotation_of_pairs(layout: str) -> None:
    inputs, width = x(B, H, T, W), W
    turned = RotaryPosition(layout=layout, base=77.0)(inputs, 4)
    for i in range(width // 2):
        a, b = (2 * i, 2 * i + 1) if layout == "interleaved" else (i, i + width // 2)
        for p in range(T):
            angle = torch.tensor((p + 4) * 77.0 ** (-2 * i / width), dtype=torch.float64)
            pair = torch.complex(inputs[..., p, a], inputs[..., p, b]) * torch.polar(torch.ones_like(angle), angle)
            torch.testing.assert_close(turned[..., p, a], pair.real)
            torch.testing.assert_close(turned[..., p, b], pair.imag)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 50), st.integers(0, 50), st.integers(-40, 4000), st.sampled_from(LAYOUTS))
def test_rotary_scores_know_only_the_distance(i: int, j: int, shift: int, layout: str) -> None:
    rotary, q, k = RotaryPosition(layout=layout), x(1, W), x(1, W)
    here = (rotary(q, i) * rotary(k, j)).sum()
    there = (rotary(q, i + shift) * rotary(k, j + shift)).sum()
    torch.testing.assert_close(here, there, rtol=1e-9, atol=1e-9)


def test_rotary_layouts_are_permutations_of_each_other() -> None:
    inputs = x()
    order = torch.cat((torch.arange(0, W, 2), torch.arange(1, W, 2)))  # pairs side by side → halves
    interleaved, split = RotaryPosition()(inputs), RotaryPosition(layout="halves")(inputs[..., order])
    torch.testing.assert_close(interleaved[..., order], split)


def test_rotary_turns_a_fraction_of_the_width() -> None:
    inputs = x(T, 20)
    turned = RotaryPosition(fraction=0.3)(inputs)
    torch.testing.assert_close(turned[:, :6], RotaryPosition()(inputs[:, :6]))
    assert torch.equal(turned[:, 6:], inputs[:, 6:])


@pytest.mark.parametrize("position", everyone(), ids=lambda p: type(p).__name__)
def test_offset_continues_a_sequence(position) -> None:
    whole = x(B, 11, W)
    at_once = position(whole, 3)
    steps = [position(whole[:, start : start + 4], 3 + start) for start in (0, 4, 8)]
    torch.testing.assert_close(torch.cat(steps, 1), at_once)
    assert not torch.allclose(at_once, position(whole))


@pytest.mark.parametrize("position", everyone(), ids=lambda p: type(p).__name__)
@pytest.mark.parametrize("shape", [(B, T, W), (B, H, T, W)])
def test_offset_per_batch_entry(position, shape: tuple[int, ...]) -> None:
    inputs = x(*shape)
    result = position(inputs, torch.tensor([7, 2]))
    torch.testing.assert_close(result, torch.stack((position(inputs[0], 7), position(inputs[1], 2))))
    torch.testing.assert_close(position(inputs, torch.tensor(7)), position(inputs, 7))


def test_left_padding_starts_sentences_at_zero() -> None:
    learned, inputs = LearnedPosition(W, length=23).double(), x()
    result = learned(inputs, torch.tensor([-2, 0]))
    torch.testing.assert_close(result[0, 2:], learned(inputs[0, 2:]))
    torch.testing.assert_close(result[0, :2], inputs[0, :2] + learned.weight[0])  # padding


def test_learned_adds_its_table() -> None:
    learned, inputs = LearnedPosition(W, length=9).double(), x().requires_grad_()
    torch.testing.assert_close(learned(inputs, 4), inputs + learned.weight[4:])
    learned(inputs, 4).sum().backward()
    assert torch.equal(learned.weight.grad, torch.tensor([[0.0]] * 4 + [[float(B)]] * 5).double().expand(9, W))
    embedding = torch.nn.Embedding(9, W)
    learned.load_state_dict(embedding.state_dict())


def test_only_learned_tables_are_saved() -> None:
    assert [list(p.state_dict()) for p in everyone()] == [[], ["weight"], []]


@pytest.mark.parametrize("position", everyone(), ids=lambda p: type(p).__name__)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_dtype_is_that_of_the_input_and_angles_stay_fine(position, dtype: torch.dtype) -> None:
    inputs = x(dtype=dtype)
    result = position.to(dtype)(inputs, 18)
    assert result.dtype == dtype
    exact = position.double()(inputs.double(), 18)
    assert (result - exact).abs().max() <= 4 * torch.finfo(dtype).eps * exact.abs().max()


def test_rotary_keeps_no_table_that_does_not_fit() -> None:
    rotary, whole = RotaryPosition(), x(B, H, 9, W)
    calls = [(whole, 0), (whole, 1), (whole[..., :5, :], 1), (whole[..., :5, :4], 1), (whole[..., :5, :4].float(), 1)]
    for inputs, offset in [*calls, *calls[::-1]]:
        for _ in range(2):
            assert torch.equal(rotary(inputs, offset), RotaryPosition()(inputs, offset))
    rotary.base = 50.0
    assert torch.equal(rotary(whole), RotaryPosition(base=50.0)(whole))


def test_rotary_trains_after_inference_mode() -> None:
    rotary, inputs = RotaryPosition(), x().requires_grad_()
    with torch.inference_mode():
        rotary(inputs.detach())
    rotary(inputs).square().sum().backward()
    torch.testing.assert_close(inputs.grad, 2 * inputs)  # a rotation keeps lengths


@pytest.mark.parametrize("position", everyone(), ids=lambda p: type(p).__name__)
def test_compiles_whole(position) -> None:
    torch.compiler.reset()
    compiled, inputs = torch.compile(position, fullgraph=True, backend="eager"), x()
    position(inputs, 2)
    for offset in (0, 3, torch.tensor([1, 2])):
        torch.testing.assert_close(compiled(inputs, offset), position(inputs, offset))


def test_meta_device_gives_shapes() -> None:
    for position in everyone():
        assert position.to("meta")(torch.empty(B, T, W, device="meta"), 3).shape == (B, T, W)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: SinusoidalPosition(5),
            "sinusoidal position: width (5) must be even, for sines and cosines; try 4 or 6.",
        ),
        (
            lambda: SinusoidalPosition(0),
            "sinusoidal position: width (0) must be even, for sines and cosines; try 2.",
        ),
        (lambda: SinusoidalPosition(4, base=1.0), "sinusoidal position: base (1.0) must be more than 1"),
        (
            lambda: RotaryPosition(layout="thirds"),
            "rotary position: layout ('thirds') must be one of interleaved, halves.",
        ),
        (lambda: RotaryPosition(fraction=1.5), "rotary position: fraction (1.5) must lie in (0, 1]"),
        (
            lambda: RotaryPosition(fraction=0.5)(x()),
            "rotary position: fraction (0.5) must rotate an even number of channels, 2 or more; got 7 of 14.",
        ),
        (lambda: SinusoidalPosition(4)(x()), "sinusoidal position: x (2×5×14) must be (..., length, 4)"),
        (lambda: LearnedPosition(4, length=3)(x()), "learned position: x (2×5×14) must be (..., length, 4)"),
        (lambda: LearnedPosition(4, length=0), "learned position: length (0) must be at least 1."),
        (
            lambda: LearnedPosition(W, length=9)(x(), 5),
            "learned position: length (9) must reach every entry; got 5 from offset 5, the last at position 9. "
            "Cut the input, build it with length=10, or use SinusoidalPosition or RotaryPosition, which have no limit.",
        ),
        (
            lambda: LearnedPosition(W, length=9)(x(), torch.tensor([0, 6])),
            "learned position: length (9) must reach every entry; got 5 from offset 6, the last at position 10.",
        ),
        (lambda: LearnedPosition(W, length=9)(x(), -1), "learned position: offset (-1) must be at least 0."),
        (
            lambda: RotaryPosition()(x(), torch.tensor([1, 2, 3])),
            "rotary position: offset (3) must be an integer, or one per batch entry (2); got int64.",
        ),
        (
            lambda: RotaryPosition()(x(), torch.tensor([1.0, 2.0])),
            "rotary position: offset (2) must be an integer, or one per batch entry (2); got float32.",
        ),
        (
            lambda: RotaryPosition()(x(5, 14), torch.arange(5)),
            "rotary position: offset (5) must be an integer, or one per batch entry (1)",
        ),
    ],
)
def test_error_messages(make, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_scaled_frequencies(precision: torch.dtype) -> None:
    """At position 1 the angle is the frequency: divided by the factor, or only where there are few periods."""
    ones = torch.cat((torch.ones(1, 8), torch.zeros(1, 8)), -1).to(precision)  # pairs (1, 0) become (cos, sin)
    options: dict[str, Any] = {"layout": "halves", "base": 100.0, "precision": precision}

    def frequencies(**more: Any) -> torch.Tensor:
        turned = RotaryPosition(**options, **more)(ones, 1)
        return torch.atan2(turned[0, 8:], turned[0, :8])

    plain = 100.0 ** (-torch.arange(8, dtype=precision) / 8)
    torch.testing.assert_close(frequencies(), plain)
    torch.testing.assert_close(frequencies(factor=4.0), plain / 4)
    periods = 30 * plain / (2 * torch.pi)  # 4.8, 2.7, 1.5, 0.85, …
    expected = torch.where(periods < 1, plain / 4, plain)
    between = (periods > 1) & (periods < 3)
    assert between.sum() == 2
    kept = (periods - 1) / 2
    expected = torch.where(between, (1 - kept) * plain / 4 + kept * plain, expected)
    torch.testing.assert_close(frequencies(factor=4.0, bands=(1.0, 3.0, 30)), expected)


def test_the_precision_of_angles() -> None:
    inputs = x(1, W)
    exact, coarse = (RotaryPosition(precision=kind)(inputs, 4001) for kind in (torch.float64, torch.float32))
    assert 1e-6 < (exact - coarse).abs().max() < 1e-2
    assert exact.dtype == coarse.dtype == inputs.dtype


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"factor": 0.0}, "rotary position: factor (0.0) must be more than 0: frequencies are divided by it."),
        (
            {"bands": (4.0, 1.0, 9)},
            "rotary position: bands ((4.0, 1.0, 9)) must be (low, high, length) with 0 < low < high",
        ),
        (
            {"precision": torch.float16},
            "rotary position: precision (torch.float16) must be torch.float32 or torch.float64.",
        ),
    ],
)
def test_invalid_frequencies(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        RotaryPosition(**options)


def test_angles_computed_in_inference_mode_serve_training() -> None:
    rotary, inputs = RotaryPosition(base=123.0), x()
    with torch.inference_mode():
        expected = rotary(inputs, 3)
    turned = rotary(inputs.requires_grad_(), 3)
    turned.sum().backward()
    assert torch.equal(turned, expected) and inputs.grad is not None
