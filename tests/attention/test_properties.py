"""Properties that attention has for all inputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import regard
from regard.attention import blocked
from regard.attention.native import engine

KINDS: dict[str, Any] = {
    "dot": "dot",
    "scaled_dot": "scaled_dot",
    "cosine": "cosine",
    "additive": regard.Additive(torch.linspace(-1, 2, 3, dtype=torch.float64)),
    "bilinear": regard.Bilinear(torch.linspace(-1, 1, 9, dtype=torch.float64).reshape(3, 3)),
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(blocked.BLOCK, "cpu", 30)


def draw_inputs(
    seed: int, *, batch: int = 2, queries: int = 4, keys: int = 6, spread: float = 1.0
) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, t, 3, generator=generator, dtype=torch.float64) * spread for t in (queries, keys, keys)]


anything = given(
    seed=st.integers(0, 2**31),
    kind=st.sampled_from(sorted(KINDS)),
    weighting=st.sampled_from(["softmax", "hard", "uniform"]),
    backend=st.sampled_from(["auto", "blocked", "reference"]),
    spread=st.sampled_from([0.1, 1.0, 50.0]),
)
often = settings(max_examples=120, deadline=None)


@often
@anything
def test_weights_are_normalised(seed: int, kind: str, weighting: Any, backend: str, spread: float) -> None:
    """Rows sum to one, or to zero without keys. Masked weights are zero, and none is negative."""
    q, k, v = draw_inputs(seed, spread=spread)
    mask = torch.rand(2, 4, 6, generator=torch.Generator().manual_seed(seed)) > 0.6
    context, m = regard.attend(
        q, k, v, mask, similarity=KINDS[kind], weighting=weighting, backend=backend, return_map=True
    )
    w = m.dense()
    assert (w >= 0).all() and not w[~mask].any()
    torch.testing.assert_close(w.sum(-1), mask.any(-1).double())
    torch.testing.assert_close(w @ v, context)  # the map matches the kernel


@often
@anything
def test_the_future_does_not_affect_the_past(seed: int, kind: str, weighting: Any, backend: str, spread: float) -> None:
    q, k, v = draw_inputs(seed, queries=6, spread=spread)
    other = draw_inputs(seed + 1, queries=6, spread=spread)
    changed = [torch.cat([x[:, :4], y[:, 4:]], 1) for x, y in zip((q, k, v), other, strict=True)]
    options: dict[str, Any] = {"similarity": KINDS[kind], "weighting": weighting, "backend": backend}
    before = regard.attend(q, k, v, is_causal=True, **options)[:, :4]
    after = regard.attend(*changed, is_causal=True, **options)[:, :4]
    torch.testing.assert_close(before, after, rtol=1e-12, atol=1e-12)


@often
@anything
def test_a_padded_batch_matches_each_sequence_alone(
    seed: int, kind: str, weighting: Any, backend: str, spread: float
) -> None:
    q, k, v = draw_inputs(seed, spread=spread)
    lengths = [2, 5]
    options: dict[str, Any] = {"similarity": KINDS[kind], "weighting": weighting, "backend": backend}
    together = regard.attend(q, k, v, lengths=lengths, **options)
    for entry, length in enumerate(lengths):
        alone = regard.attend(q[entry], k[entry, :length], v[entry, :length], **options)
        torch.testing.assert_close(together[entry], alone)


@often
@anything
def test_attention_is_invariant_to_key_order(seed: int, kind: str, weighting: Any, backend: str, spread: float) -> None:
    assume(
        not (weighting == "hard" and kind == "additive" and spread > 1)
    )  # saturated scores tie, and the first key is selected
    q, k, v = draw_inputs(seed, spread=spread)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(seed))
    options: dict[str, Any] = {"similarity": KINDS[kind], "weighting": weighting, "backend": backend}
    straight = regard.attend(q, k, v, **options)
    shuffled = regard.attend(q, k[:, order], v[:, order], **options)
    torch.testing.assert_close(straight, shuffled)
    turned = torch.randperm(4, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(regard.attend(q[:, turned], k, v, **options), straight[:, turned])


@often
@anything
def test_step_by_step_matches_one_call(seed: int, kind: str, weighting: Any, backend: str, spread: float) -> None:
    q, k, v = draw_inputs(seed, queries=6, spread=spread)
    options: dict[str, Any] = {"similarity": KINDS[kind], "weighting": weighting, "backend": backend, "is_causal": True}
    at_once = regard.attend(q, k, v, **options)
    for step in range(6):
        one = regard.attend(q[:, step : step + 1], k[:, : step + 1], v[:, : step + 1], causal_offset=step, **options)
        torch.testing.assert_close(one[:, 0], at_once[:, step])


@pytest.mark.parametrize("backend", ["auto", "blocked", "reference"])
@pytest.mark.parametrize("magnitude", [1e-30, 1e-10, 1e10, 1e18])
def test_cosine_depends_only_on_direction(backend: str, magnitude: float) -> None:
    q, k, v = (x.float() for x in draw_inputs(0))
    wanted = regard.attend(q, k, v, similarity="cosine", backend=backend)
    got = regard.attend(q * magnitude, k * magnitude, v, similarity="cosine", backend=backend)
    torch.testing.assert_close(got, wanted)


def test_large_scores_do_not_overflow() -> None:
    q, k, v = (x.float() for x in draw_inputs(0, spread=1e4))
    for backend in ("auto", *(["native"] if engine.module else []), "torch", "blocked", "reference"):
        context, m = regard.attend(q, k, v, similarity="dot", backend=backend, return_map=True)
        assert context.isfinite().all()
        torch.testing.assert_close(m.dense().sum(-1), torch.ones(2, 4))
