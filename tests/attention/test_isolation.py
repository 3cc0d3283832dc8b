"""What is masked out has no effect, whatever it holds, in values and in gradients; what is attended to has."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import regard
from regard.attention import blocked

BACKENDS = ["reference", "blocked", "torch", "auto"]
B, H, TQ, TK, D, DV = 2, 3, 5, 7, 4, 6

# each: options, and for every entry of the batch the keys that no query may attend to
CASES: dict[str, tuple[dict[str, Any], list[list[int]]]] = {
    "lengths": ({"lengths": torch.tensor([4, 6])}, [[4, 5, 6], [6]]),
    "boolean": ({"attn_mask": (torch.arange(TK) != 2).reshape(1, TK)}, [[2], [2]]),
    "float": ({"attn_mask": torch.where(torch.arange(TK) > 0, 0.5, -torch.inf).expand(TQ, TK)}, [[0], [0]]),
    "causal": ({"is_causal": True}, [[5, 6], [5, 6]]),
    "window": ({"window": (None, 0), "causal_offset": torch.tensor([1, -2])}, [[6], [3, 4, 5, 6]]),
}


def inputs(seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((B, H, TQ, D), (B, H, TK, D), (B, H, TK, DV))
    return [torch.randn(s, generator=generator, dtype=torch.float64, requires_grad=True) for s in shapes]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(blocked.BLOCK, "cpu", 60)


def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> tuple[torch.Tensor, ...]:
    out = regard.attend(q, k, v, **options)
    return out, *torch.autograd.grad((out * out).sum(), (q, k, v))


@pytest.mark.parametrize("junk", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_masked_keys_and_values_have_no_effect(backend: str, case: str, junk: float) -> None:
    options, hidden = CASES[case]
    q, k, v = inputs()
    dirty_k, dirty_v = k.detach().clone(), v.detach().clone()
    for entry, keys in enumerate(hidden):
        dirty_k[entry, :, keys] = junk
        dirty_v[entry, :, keys] = junk
    clean = run(q, k, v, backend="reference", **options)
    dirty = run(q, dirty_k.requires_grad_(), dirty_v.requires_grad_(), backend=backend, **options)
    for name, wanted, got in zip(("context", "dq", "dk", "dv"), clean, dirty, strict=True):
        torch.testing.assert_close(got, wanted, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("backend", BACKENDS)
def test_masked_keys_of_grouped_heads_have_no_effect(backend: str) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(B, n, t, D, generator=generator).double() for n, t in ((6, TQ), (2, TK), (2, TK)))
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    dirty_k, dirty_v = k.detach().clone(), v.detach().clone()
    dirty_k[:, 1, 4:], dirty_v[:, 1, 4:] = torch.nan, torch.inf
    options: dict[str, Any] = {"enable_gqa": True, "lengths": [4, 3]}
    clean = run(q, k, v, backend="reference", **options)
    dirty = run(q, dirty_k.requires_grad_(), dirty_v.requires_grad_(), backend=backend, **options)
    for wanted, got in zip(clean, dirty, strict=True):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_bad_future_leaves_the_past_alone(backend: str) -> None:
    q, k, v = inputs()
    k, v = k.detach().clone(), v.detach().clone()
    clean = regard.attend(q, k, v, is_causal=True)
    k[..., 2, :] = torch.nan
    v[..., 3, 1] = torch.inf
    context, m = regard.attend(q, k, v, is_causal=True, backend=backend, return_map=True)
    torch.testing.assert_close(context[..., :2, :], clean[..., :2, :])
    assert context[..., 2:, :].isnan().all()  # these do attend to it: nothing is hidden
    assert m[..., 2:, :].isnan().any(-1).all() and not m[..., :2, :].isnan().any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_infinite_value_reaches_those_who_attend_to_it(backend: str) -> None:
    q, k, v = inputs()
    v = v.detach().clone()
    v[:, :, 1, 2] = torch.inf
    v[:, :, 3, 2] = -torch.inf
    context = regard.attend(q, k, v, is_causal=True, backend=backend)
    assert context[..., 0, :].isfinite().all()
    assert (context[..., 1:3, 2] == torch.inf).all()
    assert context[..., 3:, 2].isnan().all()  # ∞ − ∞
    others = [c for c in range(DV) if c != 2]
    assert context[..., others].isfinite().all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_query_that_attends_to_nothing_may_hold_nan(backend: str) -> None:
    mask = torch.ones(TQ, TK, dtype=torch.bool)
    mask[1] = False
    q, k, v = inputs()
    dirty = q.detach().clone()
    dirty[..., 1, :] = torch.nan
    clean = run(q, k, v, attn_mask=mask, backend="reference")
    got = run(dirty.requires_grad_(), k, v, attn_mask=mask, backend=backend)
    for wanted, found in zip(clean, got, strict=True):
        torch.testing.assert_close(found, wanted)
    assert not got[0][..., 1, :].any()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("weighting", ["softmax", "hard", "uniform"])
def test_rows_without_keys_are_zero_with_finite_gradients(backend: str, weighting: str) -> None:
    if backend == "torch" and weighting == "hard":
        pytest.skip("SDPA has soft weights only")
    mask = torch.ones(TQ, TK, dtype=torch.bool)
    mask[3] = False
    for options in ({"attn_mask": mask}, {"attn_mask": torch.where(mask, 0.0, -torch.inf).double()}, {"lengths": 0}):
        q, k, v = inputs()
        out, *grads = run(q, k, v, weighting=weighting, backend=backend, **options)
        _, m = regard.attend(q, k, v, weighting=weighting, backend=backend, return_map=True, **options)
        assert not out[..., 3, :].any() and not m[..., 3, :].any() and not m.entropy()[..., 3].any()
        assert all(grad.isfinite().all() for grad in grads)
        assert not grads[0][..., 3, :].any()


def test_uniform_weighting_ignores_what_a_query_holds() -> None:
    q, k, v = inputs()
    bad = torch.full_like(q, torch.nan)
    for backend in BACKENDS:
        got = regard.attend(bad, k, v, weighting="uniform", backend=backend)
        torch.testing.assert_close(got, v.mean(-2, keepdim=True).expand_as(got))
