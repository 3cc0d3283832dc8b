"""Parity with PyTorch's SDPA and the attention layers of Keras."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

import regard
from regard.attention import backends
from regard.attention.request import Request
from tests.attention.refusals import assert_refused


@st.composite
def calls(draw: st.DrawFn) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """Draw arguments that SDPA accepts."""
    size = st.integers(1, 6)
    batch, heads, queries, keys, width, value_width = (draw(size) for _ in range(6))
    groups = draw(st.sampled_from([1, 2, 3]))
    lead = draw(st.sampled_from([(), (batch,), (batch, heads)])) if groups == 1 else (batch, heads)
    query_lead = lead if groups == 1 else (batch, heads * groups)
    seed = draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    spread = draw(st.sampled_from([0.0, 1.0, 30.0]))
    tensors = [
        torch.randn(*sizes, generator=generator, dtype=torch.float64) * spread
        for sizes in ((*query_lead, queries, width), (*lead, keys, width), (*lead, keys, value_width))
    ]
    options: dict[str, Any] = {"enable_gqa": True} if groups > 1 else {}
    kind = draw(st.sampled_from(["none", "causal", "boolean", "float", "float with −∞"]))
    mask = torch.randn(*draw(st.sampled_from([(), query_lead])), queries, keys, generator=generator).double()
    options |= {
        "none": {},
        "causal": {"is_causal": True},
        "boolean": {"attn_mask": mask > 0},
        "float": {"attn_mask": mask},
        "float with −∞": {"attn_mask": mask.masked_fill(mask < 0, -torch.inf)},
    }[kind]
    if draw(st.booleans()):
        options["scale"] = draw(st.floats(0.01, 2))  # not ≤ 0, for which SDPA returns NaN under a causal mask
    return tensors, options


@pytest.mark.parametrize("backend", ["torch", "blocked", "reference"])
@settings(max_examples=150, deadline=None)
@given(call=calls())
def test_sdpa(backend: str, call: tuple[list[torch.Tensor], dict[str, Any]]) -> None:
    tensors, options = call
    theirs = [x.clone().requires_grad_() for x in tensors]
    ours = [x.clone().requires_grad_() for x in tensors]
    wanted = scaled_dot_product_attention(*theirs, **options)
    got = regard.attend(*ours, **options, backend=backend)
    torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9)
    reading = torch.linspace(-1, 1, wanted.numel(), dtype=torch.float64).reshape(wanted.shape)
    for mine, other in zip(
        torch.autograd.grad((got * reading).sum(), ours),
        torch.autograd.grad((wanted * reading).sum(), theirs),
        strict=True,
    ):
        torch.testing.assert_close(mine, other, rtol=1e-8, atol=1e-8)


def test_the_positional_arguments_are_sdpas() -> None:
    q, k, v = (torch.randn(2, 3, 5, 4) for _ in range(3))
    mask = torch.rand(5, 5) > 0.3
    got = regard.attend(q, k, v, mask, 0.0, False, 0.7, False)
    torch.testing.assert_close(got, scaled_dot_product_attention(q, k, v, mask, 0.0, False, scale=0.7))


@pytest.mark.parametrize("backend", ["torch", "blocked", "reference"])
@pytest.mark.parametrize("weighting", ["softmax", "hard", "uniform"])
def test_dropout_has_its_probability_and_keeps_the_mean(backend: str, weighting: str) -> None:
    q, k = torch.zeros(400, 3), torch.zeros(50, 3)
    v = torch.eye(50)  # so that the context equals the weights
    if backend == "torch" and weighting == "hard":
        assert_refused(backend, lambda: regard.attend(q, k, v, dropout_p=0.25, weighting=weighting, backend=backend))
        return
    torch.manual_seed(1)
    w = regard.attend(q, k, v, dropout_p=0.25, weighting=weighting, backend=backend)
    wanted = torch.zeros(50).index_fill(0, torch.tensor([0]), 1.0) if weighting == "hard" else torch.full((50,), 0.02)
    alive = w[:, wanted > 0]
    assert abs((alive == 0).float().mean().item() - 0.25) < (0.07 if weighting == "hard" else 0.02)
    kept = alive[alive != 0]
    torch.testing.assert_close(kept, torch.full_like(kept, wanted.max().item() / 0.75))


@pytest.mark.parametrize("weighting", ["softmax", "hard"])
def test_blocked_backward_uses_the_dropout_of_the_forward(weighting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The backward pass draws dropout again: finite differences with the same seed must match."""
    monkeypatch.setitem(regard.attention.blocked.BLOCK, "cpu", 12)
    q, k, v = (torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True) for _ in range(3))

    def fixed(*x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        return regard.attend(*x, dropout_p=0.4, backend="blocked", weighting=weighting)

    wanted = (q, k, v) if weighting == "softmax" else (v,)  # finite differences do not match straight-through gradients
    assert torch.autograd.gradcheck(lambda *x: fixed(*((q, k, v)[: 3 - len(x)]), *x), wanted)


WIDTHS = {
    "no width": ((2, 3, 5, 0), (2, 3, 7, 0), (2, 3, 7, 6)),
    "no width, no heads": ((5, 0), (7, 0), (7, 6)),
    "no width at all": ((2, 5, 0), (2, 7, 0), (2, 7, 0)),
    "no value width": ((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 0)),
    "width": ((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 6)),
}
EXTREMES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "boolean": {"attn_mask": torch.arange(35).reshape(5, 7) % 3 > 0},
    "float": {"attn_mask": torch.linspace(-2, 2, 35).reshape(5, 7)},
    "scaled": {"scale": 2.0},
    "everything dropped": {"dropout_p": 1.0},
    "everything dropped, causal": {"dropout_p": 1.0, "is_causal": True},
}


@pytest.mark.parametrize("backend", ["auto", "native", "torch", "blocked", "reference"])
@pytest.mark.parametrize("case", EXTREMES)
@pytest.mark.parametrize("widths", WIDTHS)
def test_sdpa_without_width_and_with_everything_dropped(widths: str, case: str, backend: str) -> None:
    """Scores of vectors of width 0 are empty sums: zero for any scale. SDPA divides by √0 and agrees."""
    for dtype in (torch.float64, torch.float32):
        options = dict(EXTREMES[case])
        if case == "float":
            options["attn_mask"] = options["attn_mask"].to(dtype)
        theirs, ours = ([torch.ones(s, dtype=dtype).cumsum(-2).requires_grad_() for s in WIDTHS[widths]] for _ in "ab")
        refusal = backends.BACKENDS[backend].refusal(Request.of(*ours, **options)) if backend != "auto" else None
        if refusal:
            continue
        wanted = scaled_dot_product_attention(*theirs, **options)
        got, m = regard.attend(*ours, **options, backend=backend, return_map=True)
        torch.testing.assert_close(got, wanted)
        assert m.dense().shape == (*wanted.shape[:-1], 7)
        torch.testing.assert_close(m.dense().sum(-1), torch.ones(wanted.shape[:-1], dtype=dtype))
        for mine, other in zip(
            torch.autograd.grad(got.sum(), ours), torch.autograd.grad(wanted.sum(), theirs), strict=True
        ):
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend", ["auto", "native", "torch", "blocked", "reference"])
@pytest.mark.parametrize("kind", ["dot", "cosine", "additive", "bilinear", "uniform", "hard"])
def test_no_width_means_equal_scores_for_every_similarity(kind: str, backend: str) -> None:
    q, k, v = torch.randn(2, 5, 0), torch.randn(2, 7, 3 if kind == "bilinear" else 0), torch.randn(2, 7, 6)
    parameters: dict[str, Any] = {
        "additive": regard.Additive(torch.randn(0, requires_grad=True)),
        "bilinear": regard.Bilinear(torch.randn(0, 3, requires_grad=True)),
    }
    if kind in ("uniform", "hard"):
        options: dict[str, Any] = {"weighting": kind}
    else:
        options = {"similarity": parameters.get(kind, kind)}
    if backend != "auto" and backends.BACKENDS[backend].refusal(Request.of(q, k, v, **options)):
        assert_refused(backend, lambda: regard.attend(q, k, v, **options, backend=backend))
        return
    wanted = (v[:, :1] if kind == "hard" else v.mean(-2, keepdim=True)).expand(2, 5, 6)
    context = regard.attend(q, k, v, **options, backend=backend)
    torch.testing.assert_close(context, wanted)
    if kind in parameters:
        (gradient,) = torch.autograd.grad(context.sum(), [parameters[kind].weight])  # raises if it would be None
        assert gradient.shape == parameters[kind].weight.shape


@pytest.fixture(scope="module")
def keras() -> Any:
    os.environ["KERAS_BACKEND"] = "torch"
    return pytest.importorskip("keras")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("score_mode", ["dot", "concat"])
def test_keras_attention(keras: Any, score_mode: str, padded: bool, causal: bool) -> None:
    """Keras takes (query, value, key), in that order, and masks in which True = may attend."""
    q, k, v = torch.randn(2, 5, 4), torch.randn(2, 7, 4), torch.randn(2, 7, 4)
    valid = torch.tensor([3, 7])
    mask = [None, regard.masks.padding(valid, 7)] if padded else None
    layer = keras.layers.Attention(use_scale=score_mode == "dot", score_mode=score_mode)
    layer.build([q.shape, v.shape, k.shape])
    wanted, weights = layer([q, v, k], mask=mask, use_causal_mask=causal, return_attention_scores=True)
    options: dict[str, Any] = {"is_causal": causal, "lengths": valid if padded else None, "return_map": True}
    if score_mode == "dot":
        options |= {"similarity": "dot", "scale": float(layer.scale.value.detach())}
    else:
        options |= {"similarity": regard.Additive(torch.full((4,), float(layer.concat_score_weight.value.detach())))}
    for backend in ("auto", "blocked", "reference"):
        got, m = regard.attend(q, k, v, **options, backend=backend)
        torch.testing.assert_close(got, wanted.detach(), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(m.dense(), weights.detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_keras_additive_attention(keras: Any, causal: bool) -> None:
    q, k, v = torch.randn(2, 5, 4), torch.randn(2, 7, 4), torch.randn(2, 7, 4)
    layer = keras.layers.AdditiveAttention(use_scale=True)
    layer.build([q.shape, v.shape, k.shape])
    layer.scale.assign(torch.randn(4))
    valid = torch.tensor([2, 6])
    wanted = layer([q, v, k], mask=[None, regard.masks.padding(valid, 7)], use_causal_mask=causal)
    w = torch.as_tensor(layer.scale.value).detach()
    for backend in ("auto", "blocked", "reference"):
        got = regard.attend(q, k, v, similarity=regard.Additive(w), lengths=valid, is_causal=causal, backend=backend)
        torch.testing.assert_close(got, wanted.detach(), rtol=1e-5, atol=1e-5)
