"""The native kernels on every available instruction set, compared with float64 and, bit for bit, with themselves."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import regard
from regard.attention.native import additive, engine
from tests.attention.oracle import Problem, gradients
from tests.attention.refusals import assert_refused
from tests.attention.test_attend import MASKS, check, problem, some

pytestmark = pytest.mark.skipif(engine.module is None, reason=f"native: {engine.reason}")


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("similarity", ["dot", "scaled_dot", "cosine", "bilinear", "additive"])
def test_every_mask_agrees_with_the_oracle(isa: str, similarity: str, mask: str) -> None:
    options = MASKS[mask]
    if "attn_mask" in options and options["attn_mask"].is_floating_point():
        case = problem(similarity, {key: value for key, value in options.items() if key != "attn_mask"})
        x = case.leaves(torch.float32)
        with torch.no_grad():
            got = case.ours(x, "native", attn_mask=options["attn_mask"].float())
        wanted = case.ours({n: leaf.double() for n, leaf in x.items()}, "reference", attn_mask=options["attn_mask"])
        torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-5)
        return
    check(problem(similarity, options), ["native"], torch.float32)
    check(problem(similarity, {**options, "weighting": "uniform"}), ["native"], torch.float32)


SIZES = [
    *((1, 1, 1, 1), (1, 200, 64, 64), (2, 130, 20, 33), (3, 257, 7, 70), (4, 64, 64, 64), (5, 40, 16, 16)),
    *((16, 16, 64, 64), (97, 129, 33, 17), (130, 257, 5, 40), (300, 65, 80, 128)),
]


@pytest.mark.parametrize("queries,keys,width,value_width", SIZES)
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"window": (40, 3), "softcap": 3.0}], ids=str)
def test_every_size(isa: str, queries: int, keys: int, width: int, value_width: int, options: Any) -> None:
    case = Problem(
        some(2, queries, width), some(2, keys, width, seed=1), some(2, keys, value_width, seed=2), options=options
    )
    check(case, ["native"], torch.float32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("queries,keys,width,value_width", SIZES)
def test_half_precision(isa: str, dtype: torch.dtype, queries: int, keys: int, width: int, value_width: int) -> None:
    q, k, v = some(2, queries, width), some(2, keys, width, seed=1), some(2, keys, value_width, seed=2)
    for options in ({}, {"is_causal": True, "softcap": 3.0}):
        check(Problem(q, k, v, options=options), ["native"], dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("queries", [1, 5])
def test_every_half_precision_number_is_read_exactly(isa: str, dtype: torch.dtype, queries: int) -> None:
    """A single key has weight 1, so the context is its value, even if subnormal, ∞ or NaN."""
    v = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype).reshape(256, 1, 256)
    q = torch.zeros(256, queries, 3, dtype=dtype)
    context = regard.attend(q, q[:, :1], v, backend="native")
    torch.testing.assert_close(context, v.expand_as(context), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("queries", [1, 5])
def test_gradients_are_rounded_to_nearest(isa: str, dtype: torch.dtype, queries: int) -> None:
    """A single key has weight 1, so the gradient of its value is that of the context, for any float32."""
    upper = torch.arange(-(2**15), 2**15, dtype=torch.int32) << 16
    lower = torch.tensor([0, 1, 0xFFF, 0x1000, 0x1001, 0x2FFF, 0x3000, 0x3001, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
    grad = (upper[:, None] | lower.int()).view(torch.float32).reshape(-1, 1, 1, 256)  # ties, subnormals, ∞, NaN
    q = torch.zeros(len(grad), 1, queries, 3, dtype=dtype)
    k, v = q[:, :, :1], torch.zeros(len(grad), 1, 1, 256, dtype=dtype)
    context, lse = torch.ops.regard.dot.default(q, k, v, None, None, None, None, None, 1, 1.0, None)
    from_above = torch.cat((grad, torch.zeros(len(grad), 1, queries - 1, 256)), 2)  # (B, 1, Tq, 256)
    *_, dv = torch.ops.regard.dot_backward.default(
        from_above, context, lse, q, k, v, None, None, None, None, None, 1, 1.0, None
    )
    torch.testing.assert_close(dv, grad.to(dtype), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("kept", [0, 2])
@pytest.mark.parametrize("queries,keys,width,value_width", [*SIZES, (200, 200, 64, 64), (5, 3, 256, 1)])
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"window": (40, 3), "softcap": 3.0}], ids=str)
def test_every_size_of_additive(
    isa: str,
    queries: int,
    keys: int,
    width: int,
    value_width: int,
    options: Any,
    kept: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Test with and without scores saved for the backward pass."""
    monkeypatch.setattr(additive, "MAX_SAVED_RATIO", kept)
    case = Problem(
        some(2, queries, width),
        some(2, keys, width, seed=1),
        some(2, keys, value_width, seed=2),
        "additive",
        {"w": some(width, seed=3)},
        options,
    )
    check(case, ["native"], torch.float32)


@pytest.mark.parametrize("queries", [1, 3, 19, 70])
@pytest.mark.parametrize("lead", [(2, 3, None), (2, 1, None), (3, None), (2, 3, 1)], ids=str)
def test_dense_masks_of_many_blocks(isa: str, lead: tuple[int | None, ...], queries: int) -> None:
    """Several vectors of queries and blocks of keys; broadcast over batch, heads, or queries."""
    shape = [queries if size is None else size for size in lead]
    allowed = some(*shape, 300, seed=5) > -0.5
    allowed[..., 40:200] &= shape[-2] == 1  # a range that most queries may not attend to
    q, k, v = some(2, 3, queries, 24), some(2, 3, 300, 24, seed=1), some(2, 3, 300, 10, seed=2)
    for options in ({}, {"is_causal": True, "causal_offset": 230}):
        check(Problem(q, k, v, options={"attn_mask": allowed, **options}), ["native"], torch.float32)
        added = torch.where(allowed, some(*shape, 300, seed=6), -torch.inf)
        x = {"q": q.float(), "k": k.float(), "v": v.float()}
        wanted = regard.attend(q, k, v, added, backend="reference", **options)
        got = regard.attend(*x.values(), added.float(), backend="native", **options)
        torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("queries", [2, 7, 101])
@pytest.mark.parametrize("similarity", ["scaled_dot", "additive"])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_gradients_under_a_float_mask(isa: str, softcap: float | None, similarity: str, queries: int) -> None:
    """The mask itself requires no gradient. The softcap applies to the scores before the mask is added."""
    added = torch.where(some(queries, 83) > -1, some(queries, 83, seed=1), -torch.inf)
    q, k, v = some(2, queries, 5), some(2, 83, 5, seed=1), some(2, 83, 13, seed=2)
    case = Problem(q, k, v, similarity, {"w": some(5, seed=3)} if similarity == "additive" else {})
    x = case.leaves(torch.float32)
    got = gradients(case.ours(x, "native", attn_mask=added.float(), softcap=softcap), x)
    x = case.leaves(torch.float64)
    wanted = gradients(case.ours(x, "reference", attn_mask=added, softcap=softcap), x)
    gradients_ = {name: grad.double() for name, grad in got.items()}
    torch.testing.assert_close(gradients_, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("queries", [1, 3, 7])
@pytest.mark.parametrize("similarity", ["scaled_dot", "additive"])
@pytest.mark.parametrize("options", [{}, {"lengths": [3, 11]}, {"is_causal": True, "causal_offset": [4, -2]}], ids=str)
def test_grouped_heads(isa: str, options: Any, similarity: str, queries: int) -> None:
    options = {**options, "enable_gqa": True}
    parameters = {"w": some(5, seed=3)} if similarity == "additive" else {}
    q, k, v = some(2, 6, queries, 5), some(2, 2, 11, 5), some(2, 2, 11, 13)
    check(Problem(q, k, v, similarity, parameters, options), ["native"], torch.float32)


@pytest.mark.parametrize("leads", [((), (), ()), ((2,),) * 3, ((2, 3), (1, 3), (2, 1)), ((2, 1, 3), (1, 4, 3), (4, 1))])
def test_leading_dimensions(leads: Any) -> None:
    q, k, v = (some(*lead, t, w) for lead, t, w in zip(leads, (7, 11, 11), (5, 5, 13), strict=True))
    for options in ({}, {"is_causal": True}, {"attn_mask": some(7, 11) > 0}):
        check(Problem(q, k, v, options=options), ["native"], torch.float32)


def test_additive_weights_per_head(isa: str) -> None:
    case = Problem(some(2, 3, 7, 5), some(2, 3, 11, 5), some(2, 3, 11, 13), "additive", {"w": some(3, 1, 1, 5)})
    x = case.leaves(torch.float32)
    got = case.ours({**x, "w": x["w"].reshape(3, 5)}, "native")
    torch.testing.assert_close(got, case.plain(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [5.0, 12.0, 30.0, 50.0, torch.inf])
def test_additive_scores_of_any_range(isa: str, size: float) -> None:
    """Inputs out of the range of the exponentials are computed with tanh instead; results are never wrong."""
    q, k, v = some(2, 9, 6), some(2, 13, 6, seed=1), some(2, 13, 4, seed=2)
    q[0, 3], k[0, 5], k[1, 7] = size, -size if size < torch.inf else 1.0, 2.0
    check(Problem(q, k, v, "additive", {"w": some(6, seed=3)}), ["native"], torch.float32)


def test_empty_queries_and_keys() -> None:
    for queries, keys in ((5, 0), (0, 5), (0, 0)):
        case = Problem(some(2, 3, queries, 4), some(2, 3, keys, 4), some(2, 3, keys, 6))
        x = case.leaves(torch.float32)
        out = case.ours(x, "native")
        assert out.shape == (2, 3, queries, 6) and not out.any()
        assert all(not grad.any() for grad in gradients(out, x).values())


def test_inputs_need_not_be_contiguous(isa: str) -> None:
    q = some(2, 7, 3, 5).float().transpose(1, 2)
    k = some(2, 3, 5, 11).float().mT
    v = some(2, 3, 22, 13).float()[:, :, ::2]
    case = Problem(q, k, v)
    torch.testing.assert_close(case.ours({"q": q, "k": k, "v": v}, "native"), case.plain({"q": q, "k": k, "v": v}))


def five_of_seven(mask: str, queries: int) -> dict[str, Any]:
    """Return a mask under which no query attends to the last two of seven keys."""
    masks = {
        "causal": {"is_causal": True, "causal_offset": 5 - queries},
        "window": {"window": (3, 1), "causal_offset": 4 - queries},
        "lengths": {"lengths": [5, 5]},
        "boolean": {"attn_mask": torch.arange(7) < 5},
        "float": {"attn_mask": torch.where(torch.arange(7) < 5, 0.5, -torch.inf)},
    }
    return masks[mask]


@pytest.mark.parametrize("nonfinite", [torch.nan, torch.inf])
@pytest.mark.parametrize("width", [13, 16])  # widths of values: contexts are written directly, or through a buffer
@pytest.mark.parametrize("queries", [2, 8])
@pytest.mark.parametrize("mask", ["causal", "window", "lengths", "boolean", "float"])
def test_masked_keys_and_values_have_no_effect(isa: str, mask: str, queries: int, width: int, nonfinite: float) -> None:
    q, k, v = (some(2, 3, t, d).float() for t, d in ((queries, 8), (7, 8), (7, width)))
    options = five_of_seven(mask, queries)
    wanted = problem_run(q, k, v, options)
    k, v = k.clone(), v.clone()
    k[:, :, 5:], v[:, :, 5:] = nonfinite, nonfinite
    for got, clean in zip(problem_run(q, k, v, options), wanted, strict=True):
        torch.testing.assert_close(got, clean)


def problem_run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    x = [leaf.clone().requires_grad_() for leaf in (q, k, v)]
    out = regard.attend(*x, backend="native", **mask)
    return out, *torch.autograd.grad(out.square().sum(), x)


def test_attended_nan_reaches_the_context() -> None:
    q, k, v = (some(5, 8).float() for _ in range(3))
    k[2] = torch.nan
    context, m = regard.attend(q, k, v, is_causal=True, backend="native", return_map=True)
    assert context[:2].isfinite().all() and context[2:].isnan().all()
    assert m.statistic[2:].isnan().all() and m.statistic[:2].lse.isfinite().all()


def test_maps_and_threads_do_not_change_results(isa: str) -> None:
    q, k, v = (some(2, 3, 300, 64, seed=i).float() for i in range(3))
    alone = regard.attend(q, k, v, is_causal=True, backend="native")
    observed, m = regard.attend(q, k, v, is_causal=True, backend="native", return_map=True)
    torch.set_num_threads(2)
    try:
        threaded = regard.attend(q, k, v, is_causal=True, backend="native")
    finally:
        torch.set_num_threads(1)
    assert torch.equal(alone, observed) and torch.equal(alone, threaded)
    other = regard.attend(q, k, v, is_causal=True, backend="blocked", return_map=True)[1].statistic
    torch.testing.assert_close(m.statistic.highest, other.highest)
    torch.testing.assert_close(m.statistic.total, other.total)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 10.0, 50.0])
def test_large_and_small_scores(isa: str, scale: float) -> None:
    check(
        Problem(some(3, 40, 16), some(3, 70, 16, seed=1), some(3, 70, 16, seed=2), options={"scale": scale}),
        ["native"],
        torch.float32,
    )


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"weighting": "hard"}, "no hard weighting"),
    ({"dropout_p": 0.1}, "no dropout"),
    ({"similarity": lambda q, k: q @ k.mT}, "not callables"),
    ({"attn_mask": torch.zeros(5, 5, requires_grad=True)}, "does not compute the gradient of a float mask"),
    ({"lengths": torch.tensor([[1, 2, 3]])}, "one number of lengths per batch entry, not one per head"),
]


@pytest.mark.parametrize("options,why", REFUSED)
def test_refusals_name_the_reason(options: dict[str, Any], why: str) -> None:
    x = torch.randn(1, 3, 5, 4)
    with pytest.raises(ValueError, match=f"backend .'native'. cannot serve this request: .*{why}"):
        regard.attend(x, x, x, backend="native", **options)
    with pytest.raises(ValueError, match="computes in float32, not in float64"):
        regard.attend(x.double(), x.double(), x.double(), backend="native")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("mask", ["none", "causal", "lengths", "boolean", "all together"])
def test_additive_half_precision(isa: str, mask: str, dtype: torch.dtype) -> None:
    check(problem("additive", MASKS[mask]), ["native"], dtype)


def prepared_steps(backend: str, dtype: torch.dtype, prepare: bool) -> list[torch.Tensor]:
    """Run three decoder steps with one query each, and return their outputs and joint gradients."""
    key, value, w = (some(*s).to(dtype).requires_grad_() for s in ((2, 11, 5), (2, 11, 13), (5,)))
    similarity = regard.Additive(w)
    similarity = similarity.prepare(key) if prepare else similarity
    queries = [some(2, 1, 5, seed=step).to(dtype).requires_grad_() for step in range(3)]
    contexts = [regard.attend(q, key, value, lengths=[4, 11], similarity=similarity, backend=backend) for q in queries]
    total = sum(c.square().sum() for c in contexts)
    assert isinstance(total, torch.Tensor)
    return [*contexts, *torch.autograd.grad(total, [key, value, w, *queries])]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("backend", ["native", "blocked", "reference", "auto"])
def test_prepared_keys_change_nothing(backend: str, dtype: torch.dtype) -> None:
    if backend == "native" and dtype == torch.float64:  # computes in float32
        assert_refused(backend, lambda: prepared_steps(backend, dtype, True))
        return
    for got, wanted in zip(prepared_steps(backend, dtype, True), prepared_steps(backend, dtype, False), strict=True):
        assert torch.equal(got, wanted)


def test_prepared_keys_are_computed_once(isa: str) -> None:
    key, value, w = some(2, 11, 5).float(), some(2, 11, 13).float(), some(5).float()
    similarity = regard.Additive(w).prepare(key)
    assert similarity.prepared is not None

    def step() -> torch.Tensor:
        return regard.attend(some(2, 1, 5).float(), key, value, similarity=similarity, backend="native")

    first, exponentials = step(), similarity.prepared.exponentials
    assert exponentials is not None and torch.equal(step(), first)
    assert similarity.prepared.exponentials is exponentials
    exponentials.mul_(2)  # recomputing them would undo this
    assert not torch.equal(step(), first)
    key.add_(1)  # now they do not belong to this key any more
    wanted = regard.attend(some(2, 1, 5).float(), key, value, similarity=regard.Additive(w), backend="native")
    assert torch.equal(step(), wanted)
    other = key.clone()
    assert torch.equal(
        regard.attend(some(2, 1, 5).float(), other, value, similarity=similarity, backend="native"), wanted
    )
    with pytest.raises(ValueError, match=r"Additive\.prepare: key must be a tensor; got list"):
        regard.Additive(w).prepare([1.0])  # type: ignore[arg-type]
