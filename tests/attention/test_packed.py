"""Packed sequences give the same results as each sequence alone, on every backend."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard.attention.native import backend as native
from regard.attention.native import engine
from regard.attention.packed_layout import Layout
from tests.attention.refusals import assert_refused
from tests.attention.test_attend import some

LENGTHS = [7, 1, 0, 23, 4, 61, 5, 2]  # around the block sizes of the kernels, empty, and odd
KEY_LENGTHS = [3, 131, 5, 0, 17, 43, 1, 4]  # more than a block, without keys, and without queries
BACKENDS = [
    pytest.param("native", marks=pytest.mark.skipif(engine.module is None, reason=f"native: {engine.reason}")),
    "torch",
    "blocked",
    "reference",
]
native_only = pytest.mark.skipif(engine.module is None, reason=f"native: {engine.reason}")

OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "causal": {"is_causal": True},
    "window": {"window": (5, 2)},
    "causal window, capped": {"is_causal": True, "window": (11, None), "softcap": 2.0},
    "capped": {"softcap": 2.0, "scale": 0.9},
    "dot": {"similarity": "dot", "scale": 0.2},
    "cosine": {"similarity": "cosine", "scale": 3.0},
    "uniform": {"weighting": "uniform", "is_causal": True},
}


def packed(
    heads: int = 3, shared: int = 3, width: int = 13, value_width: int = 17, lengths: Any = LENGTHS, keys: Any = LENGTHS
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values (N, H, ·) in float64."""
    q, k = some(sum(lengths), heads, width), some(sum(keys), shared, width, seed=1)
    return q, k, some(sum(keys), shared, value_width, seed=2)


def alone(attend: Callable[..., Tensor], x: list[Tensor], lengths: list[int], keys: list[int]) -> Tensor:
    """Compute sequence by sequence, heads first."""
    q, k, v = (part.split(cut) for part, cut in zip(x, (lengths, keys, keys), strict=True))
    parts = [attend(*(y.transpose(0, 1) for y in one)).transpose(0, 1) for one in zip(q, k, v, strict=True)]
    return torch.cat(parts)


def gradients(out: Tensor, x: list[Tensor], seed: int = 5) -> tuple[Tensor, ...]:
    grad = some(*out.shape, seed=seed).to(out.dtype)
    return torch.autograd.grad(out, x, grad)


def served(backend: str, options: dict[str, Any]) -> bool:
    """Return whether a backend supports these options. SDPA has no softcap and must refuse it."""
    if backend == "torch" and "softcap" in options:
        assert_refused(backend, lambda: regard.attend_packed(*packed(), LENGTHS, backend=backend, **options))
        return False
    return True


def agree(
    x: tuple[Tensor, ...], backend: str, options: dict[str, Any], dtype: torch.dtype = torch.float32, **more: Any
) -> None:
    """Compare values and gradients with `attend` in float64, sequence by sequence."""
    lengths, keys = more.get("lengths", LENGTHS), more.get("keys", LENGTHS)
    truth = [y.to(dtype).double().requires_grad_() for y in x]
    wanted = alone(lambda *one: regard.attend(*one, backend="reference", **options), truth, lengths, keys)
    ours = [y.to(dtype).requires_grad_() for y in x]
    context = regard.attend_packed(*ours, lengths, None if keys is lengths else keys, backend=backend, **options)
    assert context.dtype == dtype and context.shape == wanted.shape
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    torch.testing.assert_close(context.double(), wanted, **close)
    with torch.no_grad():
        quiet = regard.attend_packed(*ours, lengths, None if keys is lengths else keys, backend=backend, **options)
    assert torch.equal(quiet, context)
    for got, true in zip(gradients(context, ours), gradients(wanted, truth), strict=True):
        largest = float(true.abs().max())
        torch.testing.assert_close(got.double(), true, rtol=close["rtol"], atol=close["atol"] * max(1, largest))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_option_matches_each_sequence_alone(backend: str, options: str) -> None:
    if not served(backend, OPTIONS[options]):
        return
    agree(packed(), backend, OPTIONS[options])


@native_only
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(("width", "value_width"), [(13, 17), (32, 32), (16, 5)])
def test_every_instruction_set(isa: str, options: str, width: int, value_width: int) -> None:
    agree(packed(width=width, value_width=value_width), "native", OPTIONS[options])


@pytest.mark.parametrize("options", ["none", "causal", "window"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_keys_of_other_lengths(backend: str, options: str) -> None:
    agree(packed(keys=KEY_LENGTHS), backend, OPTIONS[options], keys=KEY_LENGTHS)


LOWER_RIGHT = [k - q for q, k in zip(LENGTHS, KEY_LENGTHS, strict=True)]
OFFSETS: dict[str, Any] = {
    "one for all": 2,
    "below 0": -3,
    "lower right": LOWER_RIGHT,
    "a tensor": torch.tensor(LOWER_RIGHT, dtype=torch.int32),
    "beyond all keys": [200, -200, 0, 5, 9, -61, 3, 1],
}


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("options", ["none", "causal", "window", "causal window, capped", "uniform"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_causal_offset(backend: str, options: str, offset: str) -> None:
    """Compare values, gradients and maps with `attend` of each sequence, with its own offset."""
    if not served(backend, OPTIONS[options]):
        return
    asked, offsets = OPTIONS[options], OFFSETS[offset]
    each = iter([offsets] * len(LENGTHS) if isinstance(offsets, int) else [int(n) for n in offsets])
    x = packed(keys=KEY_LENGTHS)
    truth = [y.clone().requires_grad_() for y in x]
    every: list[Tensor] = []

    def one(*parts: Tensor) -> Tensor:
        context, m = regard.attend(*parts, causal_offset=next(each), return_map=True, backend="reference", **asked)
        every.append(m.dense())
        return context

    wanted = alone(one, truth, LENGTHS, KEY_LENGTHS)
    ours = [y.float().requires_grad_() for y in x]
    context, maps = regard.attend_packed(
        *ours, LENGTHS, KEY_LENGTHS, causal_offset=offsets, return_maps=True, backend=backend, **asked
    )
    torch.testing.assert_close(context.double(), wanted, rtol=1e-5, atol=1e-5)
    for got, true in zip(gradients(context, ours), gradients(wanted, truth), strict=True):
        torch.testing.assert_close(got.double(), true, rtol=1e-5, atol=1e-5 * max(1, float(true.detach().abs().max())))
    whole = maps.padded(70, 140).dense().double()
    for m, padded, true in zip(maps, whole, every, strict=True):
        torch.testing.assert_close(m.dense().double(), true, rtol=1e-5, atol=1e-6)
        rows, cols = true.shape[-2:]
        torch.testing.assert_close(padded[:, :rows, :cols], true, rtol=1e-5, atol=1e-6)
        assert not padded[:, rows:].any() and not padded[..., cols:].any()


@native_only
@pytest.mark.parametrize("options", ["causal", "window"])
def test_causal_offset_on_every_instruction_set(isa: str, options: str) -> None:
    """Offsets match their sequences, although the longest are computed first."""
    q, k, v = (y.float() for y in packed(heads=6, shared=2, keys=KEY_LENGTHS))
    asked: dict[str, Any] = {**OPTIONS[options], "causal_offset": LOWER_RIGHT, "enable_gqa": True}
    results = []
    for backend in ("native", "reference"):
        leaves = [y.clone().requires_grad_() for y in (q, k, v)]
        context = regard.attend_packed(*leaves, LENGTHS, KEY_LENGTHS, backend=backend, **asked)
        results.append((context, *gradients(context, leaves)))
    for got, true in zip(*results, strict=True):
        torch.testing.assert_close(got, true, rtol=1e-4, atol=1e-5 * max(1, float(true.detach().abs().max())))


@pytest.mark.parametrize("offset", [3, LOWER_RIGHT, torch.tensor(LOWER_RIGHT)], ids=["int", "list", "tensor"])
def test_causal_offset_under_compile(offset: Any) -> None:
    x = [y.float().requires_grad_() for y in packed(keys=KEY_LENGTHS)]
    lengths = torch.tensor(LENGTHS), torch.tensor(KEY_LENGTHS)

    @torch.compile(backend="aot_eager", fullgraph=True)
    def layer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return regard.attend_packed(q * 2, k, v, *lengths, is_causal=True, causal_offset=offset) + 1

    context = layer(*x)
    wanted = regard.attend_packed(x[0] * 2, *x[1:], *lengths, is_causal=True, causal_offset=offset) + 1
    torch.testing.assert_close(context, wanted)
    for got, true in zip(gradients(context, x), gradients(wanted, x), strict=True):
        torch.testing.assert_close(got, true)


@pytest.mark.parametrize("keys", [LENGTHS, KEY_LENGTHS])
@pytest.mark.parametrize("backend", BACKENDS)
def test_grouped_heads(backend: str, keys: list[int]) -> None:
    agree(packed(heads=6, shared=2, keys=keys), backend, {"enable_gqa": True, "is_causal": True}, keys=keys)


def test_one_key_head_for_all() -> None:
    q, k, v = packed(shared=1)
    agree((q, k, v), "auto", {})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("backend", BACKENDS[:2])
def test_half_precision(backend: str, dtype: torch.dtype) -> None:
    agree(packed(width=16, value_width=16), backend, {"is_causal": True}, dtype)
    agree(packed(keys=KEY_LENGTHS, heads=4, shared=2), backend, {"enable_gqa": True}, dtype, keys=KEY_LENGTHS)


@pytest.mark.parametrize("similarity", ["additive", "bilinear", "per head", "callable"])
def test_similarities_with_parameters(similarity: str) -> None:
    w, matrix = some(3, 13, seed=7).float().requires_grad_(), some(13, 13, seed=8).float().requires_grad_()
    kinds: dict[str, tuple[Any, Tensor]] = {
        "additive": (regard.Additive(w[0]), w),
        "per head": (regard.Additive(w), w),
        "bilinear": (regard.Bilinear(matrix), matrix),
        "callable": (lambda q, k: (q @ matrix) @ k.transpose(-1, -2), matrix),
    }
    asked, parameter = kinds[similarity]
    x = [y.float().requires_grad_() for y in packed()]
    context = regard.attend_packed(*x, LENGTHS, similarity=asked, is_causal=True)
    wanted = alone(lambda *one: regard.attend(*one, similarity=asked, is_causal=True), x, LENGTHS, LENGTHS)
    torch.testing.assert_close(context, wanted, rtol=1e-4, atol=1e-5)
    for got, true in zip(gradients(context, [*x, parameter]), gradients(wanted, [*x, parameter]), strict=True):
        torch.testing.assert_close(got, true, rtol=1e-3, atol=1e-4)


def test_hard_weights_and_dropout() -> None:
    x = [y.float() for y in packed()]
    context = regard.attend_packed(*x, LENGTHS, weighting="hard")
    torch.testing.assert_close(context, alone(lambda *one: regard.attend(*one, weighting="hard"), x, LENGTHS, LENGTHS))
    ones = torch.ones_like(x[2])
    torch.manual_seed(3)
    dropped = regard.attend_packed(*x[:2], ones, LENGTHS, dropout_p=0.5)
    assert not torch.allclose(dropped, ones[:, :, :]) and abs(float(dropped.mean()) - 1) < 0.2


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("lengths", [[], [0], [0, 0], [1], [5], [0, 3, 0]])
def test_few_sequences(backend: str, lengths: list[int]) -> None:
    x = [y.float().requires_grad_() for y in packed(lengths=lengths, keys=lengths)]
    context, maps = regard.attend_packed(*x, lengths, backend=backend, is_causal=True, return_maps=True)
    assert context.shape == (sum(lengths), 3, 17) and [m.shape for m in maps] == [(3, n, n) for n in lengths]
    for grad in torch.autograd.grad(context.sum(), x, allow_unused=True):
        assert grad is None or grad.isfinite().all()
    if sum(lengths):
        agree(packed(lengths=lengths, keys=lengths), backend, {}, lengths=lengths, keys=lengths)


@pytest.mark.parametrize("backend", BACKENDS[:2])
def test_queries_without_keys_get_zeros(backend: str) -> None:
    q, k, v = (y.float().requires_grad_() for y in packed(lengths=[3, 2, 9], keys=[0, 4, 0]))
    context = regard.attend_packed(q, k, v, [3, 2, 9], [0, 4, 0], backend=backend)
    assert not context[:3].any() and not context[5:].any() and context[3:5].all()
    dq, dk, _ = torch.autograd.grad(context.sum(), (q, k, v))
    assert not dq[:3].any() and not dq[5:].any() and dk.isfinite().all()


@pytest.mark.parametrize("backend", BACKENDS[:2])
def test_inputs_need_not_be_contiguous(backend: str) -> None:
    x = [y.float() for y in packed(width=16, value_width=16)]
    wanted = [y.clone().requires_grad_() for y in x]
    truth = regard.attend_packed(*wanted, LENGTHS, backend=backend)
    together = torch.stack(x, 1).requires_grad_()  # (N, 3, H, D), as a joint projection returns them
    context = regard.attend_packed(*together.unbind(1), torch.tensor(LENGTHS, dtype=torch.int32), backend=backend)
    assert torch.equal(context, truth)
    (grad,) = gradients(context, [together])
    assert torch.equal(grad, torch.stack(gradients(truth, wanted), 1))
    heads_first = [y.transpose(0, 1).contiguous().transpose(0, 1) for y in x]
    columns = [y.transpose(1, 2).contiguous().transpose(1, 2) for y in x]  # the last dimension has no unit stride
    for other in (heads_first, columns):
        assert torch.equal(regard.attend_packed(*other, LENGTHS, backend=backend), truth)
    (grad,) = torch.autograd.grad(
        regard.attend_packed(*together.unbind(1), LENGTHS, backend=backend), together, torch.ones(()).expand_as(truth)
    )
    assert grad.isfinite().all()  # a gradient without strides


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("options", ["none", "causal", "window"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_nonfinite_numbers_stay_in_their_sequence(backend: str, options: str, bad: float) -> None:
    x = [y.float() for y in packed(width=16, value_width=16)]
    first, last = sum(LENGTHS[:3]), sum(LENGTHS[:4])
    rest = torch.tensor([n for n in range(len(x[0])) if not first <= n < last])
    clean = [y.clone().requires_grad_() for y in x]
    wanted = regard.attend_packed(*clean, LENGTHS, backend=backend, **OPTIONS[options])
    for y in x:
        y[last - 3 : last] = bad  # the end of one sequence
    dirty = [y.requires_grad_() for y in x]
    context = regard.attend_packed(*dirty, LENGTHS, backend=backend, **OPTIONS[options])
    torch.testing.assert_close(context[rest], wanted[rest])
    assert context[last - 1].isnan().any() and (options != "causal" or context[first : last - 3].isfinite().all())
    got, true = (torch.autograd.grad(out[rest].square().sum(), z) for out, z in ((context, dirty), (wanted, clean)))
    for one, other in zip(got, true, strict=True):
        torch.testing.assert_close(one[rest], other[rest])


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("backend", BACKENDS[:2])
def test_maps_are_exact(backend: str, options: str) -> None:
    if not served(backend, OPTIONS[options]):
        return
    x = [y.float() for y in packed(keys=KEY_LENGTHS)]
    asked = {**OPTIONS[options], "backend": backend}
    context, maps = regard.attend_packed(*x, LENGTHS, KEY_LENGTHS, return_maps=True, **asked)
    assert torch.equal(context, regard.attend_packed(*x, LENGTHS, KEY_LENGTHS, **asked))
    parts = zip(
        x[0].split(LENGTHS), x[1].split(KEY_LENGTHS), x[2].split(KEY_LENGTHS), context.split(LENGTHS), strict=True
    )
    for m, (q, k, v, own_context) in zip(maps, parts, strict=True):
        assert m.shape == (3, len(q), len(k))
        torch.testing.assert_close((m @ v.transpose(0, 1)).transpose(0, 1), own_context, rtol=1e-4, atol=1e-5)
        _, wanted = regard.attend(
            *(y.double().transpose(0, 1) for y in (q, k, v)), return_map=True, **OPTIONS[options], backend="reference"
        )
        torch.testing.assert_close(m.dense().double(), wanted.dense(), rtol=1e-5, atol=1e-6)


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    yield torch.set_num_threads
    torch.set_num_threads(1)


@native_only
@pytest.mark.parametrize("lengths", [LENGTHS, [300, 1, 2, 900, 5, 20]])
def test_threads_do_not_change_results(isa: str, threads: Callable[[int], None], lengths: list[int]) -> None:
    def run() -> tuple[Tensor, ...]:
        x = [
            y.float().requires_grad_()
            for y in packed(heads=8, shared=8, width=16, value_width=16, lengths=lengths, keys=lengths)
        ]
        context = regard.attend_packed(*x, lengths, is_causal=True, backend="native")
        return context, *gradients(context, x)

    one = run()
    threads(2)
    assert all(torch.equal(a, b) for a, b in zip(one, run(), strict=True))


@native_only
@pytest.mark.parametrize("options", ["none", "causal", "causal window, capped"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_long_head_is_divided(
    monkeypatch: pytest.MonkeyPatch, threads: Callable[[int], None], options: str, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(native, "KEYS_PER_TASK", 37)
    lengths = [0, 3, 211, 17]
    threads(2)
    plan = Layout(torch.tensor(lengths), torch.tensor(lengths), 211, 211, True)
    assert plan.effective_sequences() == 1
    x = packed(heads=2, shared=1, lengths=lengths, keys=lengths)
    agree(x, "native", {**OPTIONS[options], "enable_gqa": True}, dtype, lengths=lengths, keys=lengths)


@native_only
def test_the_kernels_do_not_pad(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regard.attention.packed, "_padded", lambda *_: pytest.fail("it was padded"))
    x = [y.float().requires_grad_() for y in packed()]
    for options in OPTIONS.values():
        regard.attend_packed(*x, LENGTHS, **options).sum().backward()


def test_under_autocast() -> None:
    x = [y.float().requires_grad_() for y in packed(width=16, value_width=16)]
    with torch.autocast("cpu", torch.bfloat16):
        context = regard.attend_packed(*x, LENGTHS)
    assert context.dtype == torch.bfloat16
    half = regard.attend_packed(*(y.bfloat16() for y in x), LENGTHS)
    assert torch.equal(context, half)
    assert all(grad.dtype == torch.float32 for grad in gradients(context, x))


@pytest.mark.parametrize("similarity", ["scaled_dot", "cosine"])
def test_one_graph_under_compile(similarity: str) -> None:
    x = [y.float().requires_grad_() for y in packed()]

    @torch.compile(backend="aot_eager", fullgraph=True)
    def layer(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        return regard.attend_packed(q * 2, k, v, lengths, is_causal=True, similarity=similarity) + 1

    for lengths in (LENGTHS, LENGTHS[::-1]):
        context = layer(*x, torch.tensor(lengths))
        wanted = regard.attend_packed(x[0] * 2, *x[1:], lengths, is_causal=True, similarity=similarity) + 1
        torch.testing.assert_close(context, wanted)
        for got, true in zip(gradients(context, x), gradients(wanted, x), strict=True):
            torch.testing.assert_close(got, true)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_opcheck(dtype: torch.dtype) -> None:
    q, k, v = (y.to(dtype).transpose(0, 1).requires_grad_() for y in packed(heads=4, shared=2))
    lengths = torch.tensor(LENGTHS)
    arguments = (q, k, v, lengths, lengths, None, 0, 2, 0.3, None, "auto")
    torch.library.opcheck(torch.ops.regard.packed.default, arguments)
    torch.library.opcheck(torch.ops.regard.packed.default, (*arguments, torch.arange(len(LENGTHS))))


@pytest.mark.parametrize("name", ["packed", "packed_backward"])
def test_programs_exported_before_causal_offset_still_load(name: str) -> None:
    plan = (
        "Tensor q, Tensor k, Tensor v, Tensor lengths, Tensor key_lengths, SymInt? left, SymInt? right, SymInt groups, "
        "float scale, float? softcap, str backend"
    )
    before = {
        "packed": f"regard::packed({plan}) -> Tensor",
        "packed_backward": f"regard::packed_backward(Tensor grad, {plan}) -> (Tensor dq, Tensor dk, Tensor dv)",
    }
    now = getattr(torch.ops.regard, name).default._schema
    assert now.is_backward_compatible_with(torch._C.parse_schema(before[name]))


def test_under_compile() -> None:
    x = [y.float().requires_grad_() for y in packed()]
    lengths = torch.tensor(LENGTHS)

    def layer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        w = regard.Additive(torch.ones(13))  # a graph break
        return regard.attend_packed(q * 2, k, v, lengths, is_causal=True, similarity=w) + 1

    context, wanted = torch.compile(layer, backend="aot_eager")(*x), layer(*x)
    torch.testing.assert_close(context, wanted)
    for got, true in zip(gradients(context, x), gradients(wanted, x), strict=True):
        torch.testing.assert_close(got, true)


@pytest.mark.parametrize("backend", ["blocked", "reference"])
def test_gradcheck(backend: str) -> None:
    lengths = [2, 0, 3]
    x = [y.requires_grad_() for y in packed(width=2, value_width=2, heads=1, shared=1, lengths=lengths, keys=lengths)]
    assert torch.autograd.gradcheck(lambda *y: regard.attend_packed(*y, lengths, is_causal=True, backend=backend), x)


WRONG: list[tuple[Callable[[Tensor, Tensor, Tensor], Any], str]] = [
    (
        lambda q, k, v: regard.attend_packed(q[:, 0], k, v, LENGTHS),
        "attend_packed: query must be a tensor (tokens, heads, width); got 103×13.",
    ),
    (
        lambda q, k, v: regard.attend_packed(q, k, v, [103, 1]),
        "attend_packed: lengths must be at least 0 and add up to the number of queries (103, in 103×3×13); got a sum",
    ),
    (lambda q, k, v: regard.attend_packed(q, k, v, [104, -1]), "; got -1."),
    (
        lambda q, k, v: regard.attend_packed(q, k[:9], v[:9], LENGTHS),
        "attend_packed: key_lengths must be given if key (9×3×13) has not as many rows as query (103×3×13).",
    ),
    (
        lambda q, k, v: regard.attend_packed(q, k[:9], v[:9], LENGTHS, [4, 5]),
        "attend_packed: key_lengths (2) must have as many entries as lengths (8), one per sequence.",
    ),
    (
        lambda q, k, v: regard.attend_packed(q, k, v, torch.ones(8)),
        "attend_packed: lengths (8) must be integers, one per sequence; got float32.",
    ),
    (
        lambda q, k, v: regard.attend_packed(q, k, v, LENGTHS, causal_offset=[1, 2]),
        "attend_packed: causal_offset (2) must be one integer, or one per sequence (8); got int64. For",
    ),
    (
        lambda q, k, v: regard.attend_packed(q, k, v, LENGTHS, causal_offset=torch.ones(8)),
        "attend_packed: causal_offset (8) must be one integer, or one per sequence (8); got float32.",
    ),
    (lambda q, k, v: regard.attend_packed(q, k, v, LENGTHS, return_maps=True)[1].padded(60), "queries (60) must be at"),
    (lambda q, k, v: regard.attend_packed(q, k, v, LENGTHS, window=3), "attend: window (3) must be (left, right)"),
    (
        lambda q, k, v: regard.attend_packed(q, k, v, LENGTHS, backend="gpu"),
        "attend: backend ('gpu') must be auto or one of",
    ),
    (
        lambda q, k, v: regard.attend_packed(q, k, v.double(), LENGTHS),
        "attend: value must have the dtype of query (float32)",
    ),
]


@pytest.mark.parametrize(("call", "message"), WRONG, ids=[message[:50] for _, message in WRONG])
def test_error_messages(call: Callable[[Tensor, Tensor, Tensor], Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call(*(x.float() for x in packed()))
