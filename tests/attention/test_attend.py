"""Every backend × similarity × weighting × mask × dtype against the float64 oracle: values and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from regard.attention import blocked
from tests.attention.oracle import Problem, gradients

B, H, TQ, TK, D, DV = 2, 3, 7, 11, 5, 13  # distinct primes where possible, to detect swapped axes
SIMILARITIES = ["dot", "scaled_dot", "cosine", "bilinear", "additive", "mlp"]
NO_REDUCTION = ["additive", "mlp"]
"""Similarities that dot products cannot express, so that SDPA does not serve them."""
WEIGHTINGS = ["softmax", "hard", "uniform"]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def some(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=torch.float64)


def ragged(*shape: int) -> torch.Tensor:
    """A boolean mask with an empty row and an empty column."""
    mask = some(*shape, seed=5) > -0.5
    mask[..., 2, :] = False
    mask[..., :, 4] = False
    return mask


MASKS: dict[str, dict[str, Any]] = {
    "none": {},
    "causal": {"is_causal": True},
    "causal, bottom right": {"is_causal": True, "causal_offset": TK - TQ},
    "causal, before all keys": {"is_causal": True, "causal_offset": -3},
    "causal, one offset each": {"is_causal": True, "causal_offset": torch.tensor([-2, 4])},
    "window": {"window": (2, 1)},
    "window, open left, causal": {"window": (None, 3), "is_causal": True, "causal_offset": 2},
    "window, open right": {"window": (0, None)},
    "lengths": {"lengths": torch.tensor([4, 9])},
    "length of nothing": {"lengths": [0, 11]},
    "one length": {"lengths": 6},
    "boolean": {"attn_mask": ragged(TQ, TK)},
    "boolean, whole": {"attn_mask": ragged(B, H, TQ, TK)},
    "boolean, over keys": {"attn_mask": torch.arange(TK) < torch.tensor([3, 8]).reshape(B, 1, 1, 1)},
    "float": {"attn_mask": some(H, TQ, TK, seed=1)},
    "float, one per query": {"attn_mask": some(TQ, 1, seed=1)},
    "float with −∞": {"attn_mask": some(B, 1, TQ, TK, seed=2).masked_fill(~ragged(TQ, TK), -torch.inf)},
    "all together": {
        "attn_mask": ragged(B, 1, TQ, TK),
        "is_causal": True,
        "causal_offset": 3,
        "window": (6, None),
        "lengths": torch.tensor([10, 7]),
        "softcap": 2.5,
    },
}


def problem(similarity: str, options: dict[str, Any]) -> Problem:
    width = {"W": some(D, D, seed=8) / 2} if similarity == "bilinear" else {}
    parameters = {
        "additive": {"w": some(D, seed=9)},
        "mlp": {"w1": some(D, 3, seed=6), "w2": some(3, seed=7)},
    }.get(similarity, width)
    return Problem(some(B, H, TQ, D), some(B, H, TK, D, seed=3), some(B, H, TK, DV), similarity, parameters, options)


def served(similarity: str, weighting: str, options: dict[str, Any]) -> list[str]:
    fused = similarity not in NO_REDUCTION or weighting == "uniform"
    fused &= weighting != "hard" and (not options.get("softcap") or weighting == "uniform")
    return ["reference", "blocked", "auto"] + (["torch"] if fused else [])


def assert_as_near(
    name: str, got: torch.Tensor, plain: torch.Tensor, truth: torch.Tensor, size: float | None = None
) -> None:
    """Assert that our error is at most twice that of plain PyTorch at the same dtype, plus a few roundings.

    `size` is the magnitude of the summed numbers: a small difference of large numbers has their rounding error. In
    float64 the oracle is itself plain PyTorch, so only the few roundings count.
    """
    assert got.shape == truth.shape and got.dtype == plain.dtype
    roundings = 64 if got.dtype == torch.float64 else 8
    size = max(1.0, truth.abs().max().item() if size is None else size)
    ours = (got.double() - truth).abs().max().item()
    theirs = (plain.double() - truth).abs().max().item()
    allowance = 2 * theirs + roundings * torch.finfo(got.dtype).eps * size
    assert ours <= allowance, f"{name}: error {ours:.2e} above {allowance:.2e}; plain PyTorch's is {theirs:.2e}"


def check(
    case: Problem,
    backends: list[str],
    dtype: torch.dtype = torch.float64,
    roundings: dict[str, int] | None = None,
) -> None:
    """Check context and gradients of some backends. `roundings` allows more roundings for some gradients."""
    exact = {name: x.detach().double().requires_grad_() for name, x in case.leaves(dtype).items()}
    plain_x = case.leaves(dtype)
    truth, plain = case.plain(exact), case.plain(plain_x)
    wanted, plain_grads = gradients(truth, exact), gradients(plain, plain_x)
    size = max(grad.abs().max().item() for grad in wanted.values())
    reading = torch.linspace(-1, 1, truth.numel(), dtype=torch.float64).reshape(truth.shape)
    if not case.options.get("enable_gqa"):  # the gradients of scores are differences of the gradients of weights
        size = max(size, (reading @ exact["v"].detach().mT).abs().max().item())
    for backend in backends:
        x = case.leaves(dtype)
        ours = case.ours(x, backend)
        assert_as_near(f"{backend}, context", ours, plain, truth)
        for name, grad in gradients(ours, x).items():
            scaled = size * (roundings or {}).get(name, 8) / 8
            assert_as_near(f"{backend}, gradient of {name}", grad, plain_grads[name], wanted[name], scaled)


@pytest.fixture(params=["one block", "small blocks"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make blocks so small that even problems of a test's size need several."""
    if request.param == "small blocks":
        monkeypatch.setitem(blocked.BLOCK, "cpu", B * H * 12)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_every_backend_agrees_with_the_oracle(similarity: str, weighting: str, mask: str, blocks: None) -> None:
    options = {**MASKS[mask], "weighting": weighting}
    check(problem(similarity, options), served(similarity, weighting, options))


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize("mask", ["none", "causal", "lengths", "boolean", "float with −∞", "all together"])
@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_error_is_at_most_twice_plain_pytorch(similarity: str, mask: str, dtype: torch.dtype, blocks: None) -> None:
    check(problem(similarity, MASKS[mask]), served(similarity, "softmax", MASKS[mask]), dtype)


@pytest.mark.parametrize("scale", [0.3, 2.0, 0.0, -1.0])
@pytest.mark.parametrize("similarity", ["dot", "scaled_dot", "cosine", "bilinear"])
def test_scale_multiplies_scores(similarity: str, scale: float) -> None:
    for options in ({}, {"is_causal": True}):
        check(problem(similarity, {"scale": scale, **options}), ["reference", "blocked", "torch"])


@pytest.mark.parametrize("mask", ["none", "causal, one offset each", "lengths", "boolean, whole", "float with −∞"])
def test_grouped_heads(mask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(blocked.BLOCK, "cpu", 200)
    options = {**MASKS[mask], "enable_gqa": True}
    if "attn_mask" in options and options["attn_mask"].ndim == 4:
        options["attn_mask"] = options["attn_mask"][:, :1]
    case = Problem(some(B, 6, TQ, D), some(B, 2, TK, D), some(B, 2, TK, DV), options=options)
    check(case, ["reference", "blocked", "torch"])


@pytest.mark.parametrize(
    "leads",
    [
        ((), (), ()),
        ((2,), (2,), (2,)),
        ((2, 3), (1, 3), (2, 1)),
        ((3,), (2, 1), (2, 3)),
        ((), (2, 3), ()),
        ((2, 1, 3), (1, 4, 3), (4, 1)),
        ((2, 3), (2, 3), (5, 2, 3)),
        ((0,), (0,), (0,)),
        ((2, 0), (2, 0), (2, 0)),
    ],
    ids=str,
)
def test_leading_dimensions_are_free_and_broadcast(leads: Any, blocks: None) -> None:
    q, k, v = (some(*lead, t, w) for lead, t, w in zip(leads, (TQ, TK, TK), (D, D, DV), strict=True))
    for options in ({}, {"is_causal": True}, {"attn_mask": ragged(TQ, TK)}):
        if 0 not in leads[0]:
            check(Problem(q, k, v, options=options), ["reference", "blocked", "torch"])
            continue
        for backend in ("reference", "blocked", "torch"):
            shape = Problem(q, k, v).ours({"q": q, "k": k, "v": v}, backend, **options).shape
            assert shape == (*torch.broadcast_shapes(*leads), TQ, DV)


@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("queries,keys", [(1, TK), (TQ, 1), (1, 1), (TQ, 0), (0, TK), (0, 0)])
def test_few_queries_or_keys(queries: int, keys: int, similarity: str) -> None:
    base = problem(similarity, {})
    for weighting in WEIGHTINGS:
        case = Problem(
            base.q[..., :queries, :],
            base.k[..., :keys, :],
            base.v[..., :keys, :],
            similarity,
            base.parameters,
            {"weighting": weighting},
        )
        if keys and queries:
            check(case, served(similarity, weighting, {}))
            continue
        for backend in served(similarity, weighting, {}):
            x = case.leaves(torch.float64)
            out = case.ours(x, backend)
            assert out.shape == (B, H, queries, DV) and not out.any()
            assert all(not grad.any() for grad in gradients(out, x).values())


@pytest.mark.parametrize("backend", ["reference", "blocked", "torch"])
def test_inputs_need_not_be_contiguous(backend: str) -> None:
    q = some(B, TQ, H, D).transpose(1, 2)
    k = some(B, H, D, TK).mT
    v = some(B, H, 2 * TK, DV)[:, :, ::2]
    assert not (q.is_contiguous() or k.is_contiguous() or v.is_contiguous())
    case = Problem(q, k, v, options={"is_causal": True})
    got = case.ours({"q": q, "k": k, "v": v}, backend)
    torch.testing.assert_close(got, case.plain({"q": q, "k": k, "v": v}))


def test_a_callable_and_grouped_heads() -> None:
    q, k, v = some(B, 6, TQ, D), some(B, 3, TK, D), some(B, 3, TK, DV)
    spread = {"q": q, "k": k.repeat_interleave(2, 1), "v": v.repeat_interleave(2, 1), "w1": some(D, 3), "w2": some(3)}
    case = Problem(q, k, v, "mlp", {"w1": spread["w1"], "w2": spread["w2"]}, {"enable_gqa": True})
    wanted = Problem(q, k, v, "mlp").plain(spread)
    for backend in ("reference", "blocked", "auto"):
        torch.testing.assert_close(case.ours(case.leaves(torch.float64), backend), wanted)


def test_per_head_parameters() -> None:
    for similarity, parameters in (("additive", {"w": some(H, 1, 1, D)}), ("bilinear", {"W": some(H, D, D)})):
        case = Problem(some(B, H, TQ, D), some(B, H, TK, D), some(B, H, TK, DV), similarity, parameters)
        x = case.leaves(torch.float64)
        ours = dict(x)
        if similarity == "additive":
            ours["w"] = x["w"].reshape(H, D)
        for backend in ("reference", "blocked"):
            torch.testing.assert_close(case.ours(ours, backend), case.plain(x))


def test_hard_attention_selects_the_first_key_on_ties() -> None:
    q, k = torch.ones(1, 2), torch.tensor([[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]])
    v = torch.tensor([[1.0], [2.0], [3.0]])
    for backend in ("reference", "blocked"):
        assert hard_context(q, k, v, backend).item() == 2.0


def hard_context(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, backend: str) -> torch.Tensor:
    return Problem(q, k, v, options={"weighting": "hard"}).ours({"q": q, "k": k, "v": v}, backend)


def test_entries_processed_separately_have_different_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked, "MIN_SKIPPED_PAIRS", 0)
    q, v = torch.zeros(3, 40, 2), torch.eye(30).expand(3, 30, 30)  # the context equals the weights
    k = torch.zeros(3, 30, 2)
    x = {"q": q, "k": k, "v": v}
    kept = Problem(q, k, v).ours(x, "blocked", dropout_p=0.5, lengths=[30, 30, 20])[:, :, :20] != 0
    assert 0.4 < kept.float().mean() < 0.6
    assert not torch.equal(kept[0], kept[1]) and not torch.equal(kept[1], kept[2])


def test_gradients_of_many_blocks_are_summed_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounding a gradient to bfloat16 after every block would accumulate errors."""
    q, k, v = (torch.randn(600, 4, generator=torch.Generator().manual_seed(i)).bfloat16() for i in range(3))
    grads = []
    for budget in (2**20, 600 * 4):
        monkeypatch.setitem(blocked.BLOCK, "cpu", budget)
        x = {name: leaf.clone().requires_grad_() for name, leaf in zip("qkv", (q, k, v), strict=True)}
        grads.append(gradients(Problem(q, k, v).ours(x, "blocked"), x)["q"].double())
    one_rounding = torch.finfo(torch.bfloat16).eps * grads[0].abs()
    assert ((grads[0] - grads[1]).abs() <= one_rounding + 1e-7).all()


def test_the_gradient_of_additive_weights_is_accurate() -> None:
    """The gradient is a sum over all pairs: 66,820 here."""
    case = Problem(some(2, 130, 5), some(2, 257, 5, seed=1), some(2, 257, 40, seed=2), "additive", {"w": some(5)})
    check(case, ["reference", "blocked"], torch.float32)


def test_long_ragged_batches_are_processed_entry_by_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """If skipping keys past a length saves enough work, each entry is processed separately."""
    monkeypatch.setattr(blocked, "MIN_SKIPPED_PAIRS", 0)
    monkeypatch.setitem(blocked.BLOCK, "cpu", 64)
    seen: list[int] = []
    real = blocked._values

    def counted(request: Any, block: Any) -> torch.Tensor:
        seen.append(request.entries * (block.rows.stop - block.rows.start) * (block.cols.stop - block.cols.start))
        return real(request, block)

    monkeypatch.setattr(blocked, "_values", counted)
    for similarity in ("scaled_dot", "additive"):
        seen.clear()
        case = problem(similarity, {"lengths": torch.tensor([2, 9]), "attn_mask": some(B, H, TQ, TK, seed=1)})
        case.ours(case.leaves(torch.float64), "blocked")
        assert sum(seen) == H * TQ * (2 + 9)
        check(case, ["blocked"])
