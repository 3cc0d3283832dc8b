"""NaN and ∞ in masked positions have no effect on values and gradients; in attended positions they do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import regard
from regard.attention import blocked
from regard.attention.native import engine
from tests.attention.refusals import REFUSED, assert_refused

BACKENDS = ["reference", "blocked", "torch", "auto"]
B, H, TQ, TK, D, DV = 2, 3, 5, 7, 4, 6

# options, and for each batch entry the keys that no query may attend to
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


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_masked_keys_and_values_have_no_effect(backend: str, case: str, bad: float) -> None:
    options, hidden = CASES[case]
    q, k, v = inputs()
    dirty_k, dirty_v = k.detach().clone(), v.detach().clone()
    for entry, keys in enumerate(hidden):
        dirty_k[entry, :, keys] = bad
        dirty_v[entry, :, keys] = bad
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
def test_nonfinite_future_tokens_do_not_affect_the_past(backend: str) -> None:
    q, k, v = inputs()
    k, v = k.detach().clone(), v.detach().clone()
    clean = regard.attend(q, k, v, is_causal=True)
    k[..., 2, :] = torch.nan
    v[..., 3, 1] = torch.inf
    context, m = regard.attend(q, k, v, is_causal=True, backend=backend, return_map=True)
    torch.testing.assert_close(context[..., :2, :], clean[..., :2, :])
    assert context[..., 2:, :].isnan().all()  # these rows attend to it
    assert m[..., 2:, :].isnan().any(-1).all() and not m[..., :2, :].isnan().any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_infinite_value_reaches_the_queries_that_attend_to_it(backend: str) -> None:
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
def test_a_query_without_keys_may_be_nan(backend: str) -> None:
    mask = torch.ones(TQ, TK, dtype=torch.bool)
    mask[1] = False
    q, k, v = inputs()
    dirty = q.detach().clone()
    dirty[..., 1, :] = torch.nan
    clean = run(q, k, v, attn_mask=mask, backend="reference")
    got = run(dirty.requires_grad_(), k, v, attn_mask=mask, backend=backend)
    for wanted, actual in zip(clean, got, strict=True):
        torch.testing.assert_close(actual, wanted)
    assert not got[0][..., 1, :].any()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("weighting", ["softmax", "hard", "uniform"])
def test_rows_without_keys_are_zero_with_finite_gradients(backend: str, weighting: str) -> None:
    if backend == "torch" and weighting == "hard":
        assert_refused(backend, lambda: regard.attend(*inputs(), weighting=weighting, backend=backend))
        return
    mask = torch.ones(TQ, TK, dtype=torch.bool)
    mask[3] = False
    for options in ({"attn_mask": mask}, {"attn_mask": torch.where(mask, 0.0, -torch.inf).double()}, {"lengths": 0}):
        q, k, v = inputs()
        out, *grads = run(q, k, v, weighting=weighting, backend=backend, **options)
        _, m = regard.attend(q, k, v, weighting=weighting, backend=backend, return_map=True, **options)
        assert not out[..., 3, :].any() and not m[..., 3, :].any() and not m.entropy()[..., 3].any()
        assert all(grad.isfinite().all() for grad in grads)
        assert not grads[0][..., 3, :].any()


def test_uniform_weighting_ignores_queries() -> None:
    q, k, v = inputs()
    bad = torch.full_like(q, torch.nan)
    for backend in BACKENDS:
        got = regard.attend(bad, k, v, weighting="uniform", backend=backend)
        torch.testing.assert_close(got, v.mean(-2, keepdim=True).expand_as(got))


SIMILARITIES = ["dot", "cosine", "bilinear", "additive", "callable"]
ISAS = engine.module.isas() if engine.module else []
SERVERS = [*(f"native {isa}" for isa in ISAS), *BACKENDS]


@pytest.fixture
def isa() -> Iterator[None]:
    """Restore the instruction set of the kernels afterwards."""
    used = engine.module.isa() if engine.module else ""
    yield
    if engine.module:
        engine.module.use_isa(used)


def assert_near(got: torch.Tensor, wanted: torch.Tensor) -> None:
    """Compare in float32, relative to the largest number: scores of about 10 and sums of 100 pairs give 1e-5."""
    torch.testing.assert_close(got, wanted, rtol=0, atol=5e-5 * max(1.0, float(wanted.detach().abs().max())))


def similarity_of(name: str) -> tuple[Any, list[torch.Tensor]]:
    """Return a similarity and its parameters."""
    generator = torch.Generator().manual_seed(1)
    w, matrix = torch.randn(D, generator=generator), torch.randn(H, D, D, generator=generator)
    w, matrix = w.requires_grad_(), matrix.requires_grad_()
    kinds: dict[str, tuple[Any, list[torch.Tensor]]] = {
        "bilinear": (regard.Bilinear(matrix), [matrix]),
        "additive": (regard.Additive(w), [w]),
        "callable": (lambda q, k: (q * w) @ k.mT, [w]),
    }
    return kinds.get(name, (name, []))


def all_gradients(x: list[torch.Tensor], name: str, server: str, **options: Any) -> list[torch.Tensor]:
    """Return the context, and gradients of q, k, v and the similarity's parameters."""
    backend, *level = server.split()
    if level and engine.module:
        engine.module.use_isa(level[0])
    leaves = [y.detach().float().requires_grad_() for y in x]
    similarity, parameters = similarity_of(name)
    out = regard.attend(*leaves, similarity=similarity, backend=backend, **options)
    return [out, *torch.autograd.grad((out * out).sum(), [*leaves, *parameters])]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 1e30])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", SIMILARITIES)
@pytest.mark.parametrize("server", SERVERS)
def test_masked_numbers_do_not_affect_gradients(server: str, name: str, case: str, bad: float, isa: None) -> None:
    options, hidden = CASES[case]
    options = {n: x.float() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for n, x in options.items()}
    q, k, v = (x.detach() for x in inputs())
    dirty_k, dirty_v = k.clone(), v.clone()
    for entry, keys in enumerate(hidden):
        dirty_k[entry, :, keys] = bad
        dirty_v[entry, :, keys[0]] = bad
    clean = all_gradients([q, k, v], name, "reference", **options)
    if ((backend := server.split()[0]), name) in REFUSED:
        assert_refused(backend, lambda: all_gradients([q, dirty_k, v], name, server, **options))
        return
    for dirty in ([q, dirty_k, v], [q, k, dirty_v]):
        for wanted, got in zip(clean, all_gradients(dirty, name, server, **options), strict=True):
            assert_near(got, wanted)


@pytest.mark.parametrize("name", SIMILARITIES)
@pytest.mark.parametrize("server", SERVERS)
def test_a_query_without_keys_does_not_affect_gradients(server: str, name: str, isa: None) -> None:
    mask = torch.ones(TQ, TK, dtype=torch.bool)
    mask[1] = False
    q, k, v = (x.detach() for x in inputs())
    dirty = q.clone()
    dirty[..., 1, 0] = torch.nan
    clean = all_gradients([q, k, v], name, "reference", attn_mask=mask)
    if ((backend := server.split()[0]), name) in REFUSED:
        assert_refused(backend, lambda: all_gradients([dirty, k, v], name, server, attn_mask=mask))
        return
    for wanted, got in zip(clean, all_gradients([dirty, k, v], name, server, attn_mask=mask), strict=True):
        assert_near(got, wanted)


@pytest.mark.parametrize("tensor", ["query", "key"])
@pytest.mark.parametrize("infinity", [torch.inf, -torch.inf])
@pytest.mark.parametrize("options", [{}, *(options for options, _ in CASES.values())], ids=["no mask", *CASES])
@pytest.mark.parametrize("server", SERVERS)
def test_attended_scores_of_infinity(
    server: str, options: dict[str, Any], infinity: float, tensor: str, isa: None
) -> None:
    """Scores of +∞ and NaN make a row NaN. Scores of −∞ make it NaN or have weight 0."""
    backend, *level = server.split()
    if level and engine.module:
        engine.module.use_isa(level[0])
    options = {n: x.float() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for n, x in options.items()}
    q, k, v = (x.detach().float() for x in inputs())
    (q if tensor == "query" else k)[0, :, 1, 2] = infinity
    _, uniform = regard.attend(*(torch.zeros_like(x) for x in (q, k, v)), return_map=True, **options)
    allowed = uniform[...] > 0
    bias = options.get("attn_mask")
    scores = q.double() @ k.double().mT / D**0.5
    if bias is not None and bias.is_floating_point():
        scores = scores + bias.double()
    scores = torch.where(allowed, scores, -torch.inf)
    must_be_nan = (scores.isnan() | (scores == torch.inf)).any(-1)
    may_be_nan = (allowed & (scores == -torch.inf)).any(-1)
    weights = torch.where(scores.amax(-1, keepdim=True) == -torch.inf, 0, scores.softmax(-1))
    context = regard.attend(q, k, v, backend=backend, **options)
    assert context[must_be_nan].isnan().all()
    finite = ~must_be_nan & ~(may_be_nan & context.isnan().all(-1))
    assert finite.any()
    torch.testing.assert_close(context[finite].double(), (weights @ v.double())[finite], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("queries", [2, TQ])  # the kernels for few and for many queries
@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("tensor", ["query", "key"])
@pytest.mark.parametrize("infinity", [torch.inf, -torch.inf])
@pytest.mark.parametrize("server", SERVERS)
def test_with_a_mask_an_attended_infinity_makes_rows_nan(
    server: str, infinity: float, tensor: str, softcap: float | None, queries: int, isa: None
) -> None:
    """Every score of the row or column is −∞, so its weights alone would not show it."""
    if softcap is not None and server == "torch":
        assert_refused(server, lambda: regard.attend(*inputs(), softcap=softcap, backend=server))
        return
    q, k, v = (x.detach().float() for x in inputs())
    q, k = q[..., :queries, :].abs(), k.abs()
    other = k if tensor == "query" else q
    other[..., 2] *= -1 if infinity > 0 else 1
    (q if tensor == "query" else k)[:, :, 1, 2] = infinity
    options: dict[str, Any] = {"lengths": torch.tensor([4, 6]), "softcap": softcap}
    context, *gradients = all_gradients([q, k, v], "dot", server, **options)
    nan = torch.zeros_like(context, dtype=torch.bool)
    nan[..., 1 if tensor == "query" else slice(None), :] = True
    torch.testing.assert_close(context.isnan(), nan)
    wanted = all_gradients([q, k, v], "dot", "reference", **options)[1:]
    for got, expected in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("backend", ["native", *BACKENDS])
def test_nan_in_one_packed_sequence_does_not_affect_shared_parameters(backend: str, is_causal: bool) -> None:
    if backend == "native" and engine.module is None:
        pytest.skip(engine.reason)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(9, 2, 16, generator=generator) for _ in range(3))
    weight = torch.randn(16, 16, generator=generator).div(4).requires_grad_()

    def gradient(key: torch.Tensor, using: str) -> torch.Tensor:
        options: dict[str, Any] = {"similarity": regard.Bilinear(weight), "is_causal": is_causal, "backend": using}
        out = regard.attend_packed(q, key, v, [3, 2, 4], **options)
        return torch.autograd.grad((out[3:] ** 2).sum(), weight)[0]

    dirty = k.clone()
    dirty[1] = torch.nan
    assert_near(gradient(dirty, backend), gradient(k, "reference"))


@pytest.mark.parametrize("backend", BACKENDS)
def test_lengths_broadcast_with_shared_keys_that_contain_nan(backend: str) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(*lead, 5, 4, generator=generator) for lead in ((2, 1), (1,), (1,)))
    dirty = k.clone()
    dirty[:, 4] = torch.nan
    wanted = regard.attend(q, k, v, lengths=[4, 3], backend="reference")
    torch.testing.assert_close(regard.attend(q, dirty, v, lengths=[4, 3], backend=backend), wanted)


@pytest.mark.parametrize("name", SIMILARITIES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_inputs_ignored_by_uniform_weighting_have_zero_gradients(backend: str, name: str) -> None:
    similarity, parameters = similarity_of(name)
    q, k, v = (x.detach().float().requires_grad_() for x in inputs())
    mask = torch.zeros(TQ, TK, requires_grad=True)
    out = regard.attend(q, k, v, mask, similarity=similarity, weighting="uniform", backend=backend)
    for gradient in torch.autograd.grad(out.sum(), [q, k, mask, *parameters]):
        assert not gradient.any()


@pytest.mark.parametrize("lead", [(0,), (2, 0, 3), (0, 2)])
@pytest.mark.parametrize("name", ["dot", "cosine", "additive", "callable"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_empty_leading_dimensions(backend: str, name: str, lead: tuple[int, ...]) -> None:
    similarity, parameters = similarity_of(name)
    q, k, v = (torch.randn(*lead, n, D, requires_grad=True) for n in (TQ, TK, TK))
    if (backend, name) in REFUSED:
        assert_refused(backend, lambda: regard.attend(q, k, v, similarity=similarity, backend=backend))
        return
    mask = torch.zeros(TQ, TK, requires_grad=True)
    for masks in ([], [mask]):  # native supports only the first
        leaves = [q, k, v, *masks, *parameters]
        out = regard.attend(q, k, v, *masks, similarity=similarity, backend=backend)
        for gradient, leaf in zip(torch.autograd.grad(out.sum(), leaves), leaves, strict=True):
            assert gradient.shape == leaf.shape and not gradient.any()
