"""torch.compile, autocast, torch.func, the meta device, gradcheck, and refusals."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

import regard
from regard.attention import backends, blocked
from regard.attention.native import engine
from regard.attention.request import Request


def inputs(*lead: int, dtype: torch.dtype = torch.float64, grad: bool = True) -> list[torch.Tensor]:
    shapes = ((*lead, 5, 4), (*lead, 7, 4), (*lead, 7, 6))
    return [torch.randn(s, dtype=dtype, requires_grad=grad) for s in shapes]


COMMON: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "bottom right": {"is_causal": True, "causal_offset": 2},
    "boolean mask": {"attn_mask": torch.rand(5, 7) > 0.3},
    "float mask": {"attn_mask": torch.randn(5, 7, dtype=torch.float64)},
    "lengths": {"lengths": torch.tensor([3, 7])},
    "window": {"window": (2, 1)},
    "cosine": {"similarity": "cosine", "scale": 4.0},
    "uniform": {"weighting": "uniform"},
}


@pytest.fixture(autouse=True)
def forget_compiled_code() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("case", COMMON)
def test_the_common_call_compiles_to_one_graph(case: str) -> None:
    def model(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return regard.attend(q, k, v, **COMMON[case])

    x = inputs(2, 3)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    wanted, got = model(*x), compiled(*x)
    torch.testing.assert_close(got, wanted)
    for mine, other in zip(torch.autograd.grad(got.sum(), x), torch.autograd.grad(wanted.sum(), x), strict=True):
        torch.testing.assert_close(mine, other)


def test_masked_nan_has_no_effect_when_compiled() -> None:
    q, k, v = inputs(2, 3, grad=False)
    wanted = regard.attend(q, k, v, lengths=torch.tensor([3, 6]))
    k[0, :, 3:], v[0, :, 3:], v[1, :, 6] = torch.nan, torch.nan, torch.inf
    compiled = torch.compile(regard.attend, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, k, v, lengths=torch.tensor([3, 6])), wanted)


def test_a_growing_cache_compiles() -> None:
    """A changing offset becomes a symbol. Conditions that depend on it must still be a plain bool for SDPA."""

    def model(q: torch.Tensor, k: torch.Tensor, offset: int) -> torch.Tensor:
        return regard.attend(q, k, k, is_causal=True, causal_offset=offset)

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for held in range(3):
        q, k = torch.randn(2, 3, 8), torch.randn(2, 3 + held, 8)
        torch.testing.assert_close(compiled(q, k, held), model(q, k, held))


class DataDependent(torch.nn.Module):
    """A batch whose size is a value of a tensor."""

    def __init__(self, mask: str, batch: str) -> None:
        super().__init__()
        self.mask, self.batch = mask, batch

    def forward(self, x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        size: Any = count.item()
        x = x[:size] if self.batch == "slice" else x.new_ones(size, *x.shape[1:]).cumsum(-1)
        keys = x.shape[-2]
        masks: dict[str, Any] = {
            "none": {},
            "whole": {"attn_mask": torch.ones(size, 3, keys, keys, dtype=torch.bool).tril()},
            "shared": {"attn_mask": torch.ones(1, 1, keys, keys, dtype=torch.bool).tril()},
            "over keys": {"attn_mask": torch.arange(keys).expand(size, 1, 1, keys) < 3},
            "float": {"attn_mask": torch.zeros(size, 3, keys, keys).cumsum(-1)},
            "lengths": {"lengths": torch.full((size,), 3)},
        }
        return regard.attend(x, x, x, **masks[self.mask])


@pytest.mark.skipif(engine.module is None, reason="PyTorch's own SDPA compares the sizes")
@pytest.mark.parametrize("strict", [False, True], ids=["", "strict"])
@pytest.mark.parametrize("batch", ["slice", "new"])
@pytest.mark.parametrize("mask", ["none", "whole", "shared", "over keys", "float", "lengths"])
def test_a_batch_that_depends_on_data_is_exported(mask: str, batch: str, strict: bool) -> None:
    model, x = DataDependent(mask, batch), torch.randn(4, 3, 5, 8)
    exported = torch.export.export(model, (x, torch.tensor(3)), strict=strict).module()
    for count in (0, 1, 2, 4):
        torch.testing.assert_close(exported(x, torch.tensor(count)), model(x, torch.tensor(count)))


def test_other_calls_compile_with_a_graph_break() -> None:
    w = torch.randn(4, dtype=torch.float64, requires_grad=True)
    x = inputs(2)

    def model(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return regard.attend(q * 2, k, v, similarity=regard.Additive(w), softcap=3.0) + 1

    torch.testing.assert_close(torch.compile(model, backend="aot_eager")(*x), model(*x))


@pytest.mark.parametrize("backend", ["torch", "blocked", "reference"])
def test_autocast_casts_as_it_does_for_sdpa(backend: str) -> None:
    q, k, v = inputs(2, 3, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        context, m = regard.attend(q, k, v, is_causal=True, backend=backend, return_map=True)
    assert context.dtype == wanted.dtype == torch.bfloat16
    torch.testing.assert_close(context, wanted, rtol=2e-2, atol=2e-2)
    assert m.dtype == torch.float32
    torch.testing.assert_close(m.dense().sum(-1), torch.ones(2, 3, 5))  # its sums stay in float32
    grads = torch.autograd.grad(context.float().sum(), (q, k, v))
    assert all(grad.dtype == torch.float32 and grad.isfinite().all() for grad in grads)


@pytest.mark.parametrize("at", [0, 1, 2])
def test_autocast_does_not_cast_float64(at: int) -> None:
    x = inputs(2, 3, dtype=torch.float32, grad=False)
    x[at] = x[at].double()
    packed = [one.flatten(0, 1).transpose(0, 1)[:5].contiguous() for one in x]  # (5, 6, ·)
    mismatch = r"(key|value) must have the dtype of query \(float(32|64)\); got float(64|32)\."
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for backend in ("auto", "torch", "blocked", "reference"):
            with pytest.raises(ValueError, match=mismatch):
                regard.attend(*x, backend=backend)
        with pytest.raises(ValueError, match=mismatch):
            regard.attend_packed(*packed, [2, 3])


def test_a_callable_runs_under_the_autocast_of_the_call() -> None:
    net = torch.nn.Linear(4, 1)
    q, k, v = inputs(2, dtype=torch.float32)

    def similarity(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return net(a.unsqueeze(-2) * b.unsqueeze(-3)).squeeze(-1)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        context = regard.attend(q, k, v, similarity=similarity)
    assert context.dtype == torch.bfloat16
    grad = torch.autograd.grad(context.float().square().sum(), net.weight)[0]
    wanted = torch.autograd.grad(regard.attend(q, k, v, similarity=similarity).square().sum(), net.weight)[0]
    torch.testing.assert_close(grad, wanted, rtol=0.1, atol=0.05)


def test_vmap_and_func_grad_agree_with_a_leading_dimension() -> None:
    q, k, v = inputs(3, grad=False)
    for options in (
        {},
        {"is_causal": True},
        {"softcap": 2.0},
        {"similarity": regard.Additive(torch.randn(4).double())},
    ):

        def one(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, options: Any = options) -> torch.Tensor:
            return regard.attend(a, b, c, **options)

        torch.testing.assert_close(torch.vmap(one)(q, k, v), regard.attend(q, k, v, **options))
        got = torch.func.grad(lambda a, one=one: one(a, k, v).sum())(q)
        a = q.clone().requires_grad_()
        torch.testing.assert_close(got, torch.autograd.grad(regard.attend(a, k, v, **options).sum(), a)[0])


def test_blocked_refuses_vmap_by_name() -> None:
    q, k, v = inputs(3, grad=False)
    with pytest.raises(ValueError, match=r"backend \('blocked'\) cannot serve this request.*torch.func"):
        torch.vmap(lambda a, b, c: regard.attend(a, b, c, backend="blocked"))(q, k, v)


def test_the_meta_device_gives_shapes() -> None:
    q, k, v = (x.to("meta") for x in inputs(2, 3))
    for options in ({}, {"similarity": regard.Additive(torch.empty(4, device="meta"))}, {"lengths": [3, 4]}):
        context, m = regard.attend(q, k, v, return_map=True, **options)
        assert context.is_meta and context.shape == (2, 3, 5, 6) and context.dtype == q.dtype
        assert m.shape == (2, 3, 5, 7)


@pytest.mark.parametrize(
    "similarity",
    ["dot", "cosine", lambda w, W: regard.Additive(w), lambda w, W: regard.Bilinear(W), "callable"],
    ids=["dot", "cosine", "additive", "bilinear", "callable"],
)
def test_gradcheck_of_the_blocked_backward(similarity: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(blocked.BLOCK, "cpu", 8)
    w = torch.randn(2, dtype=torch.float64, requires_grad=True)
    W = torch.randn(2, 2, dtype=torch.float64, requires_grad=True)
    mask = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    q, k, v = (torch.randn(t, n, dtype=torch.float64, requires_grad=True) for t, n in ((3, 2), (4, 2), (4, 3)))

    def run(q: Any, k: Any, v: Any, mask: Any, w: Any, W: Any) -> torch.Tensor:
        kind: Any = similarity
        if similarity == "callable":
            kind = lambda a, b: torch.tanh((a.unsqueeze(-2) + b.unsqueeze(-3)) @ W) @ w  # noqa: E731
        elif callable(similarity):
            kind = similarity(w, W)
        out = regard.attend(
            q, k, v, mask, is_causal=True, causal_offset=1, softcap=3.0, similarity=kind, backend="blocked"
        )
        return out + 0 * (w.sum() + W.sum())

    assert torch.autograd.gradcheck(run, (q, k, v, mask, w, W))


def test_an_in_place_change_before_the_backward_raises() -> None:
    q, k, v = inputs()
    key = k * 1
    out = regard.attend(q, key, v, backend="blocked")
    with torch.no_grad():
        key.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


WHYS: list[tuple[dict[str, Any], str, str]] = [
    ({}, "torch", "SDPA serves it; native: "),
    ({"softcap": 2.0}, "blocked", "SDPA does not support softcap"),
    ({"weighting": "hard"}, "blocked", "only soft weights"),
    ({"similarity": lambda q, k: q @ k.mT}, "blocked", "only dot products"),
]


@pytest.mark.parametrize("options,backend,why", WHYS)
def test_auto_names_the_reason(options: dict[str, Any], backend: str, why: str) -> None:
    choice = backends.choose(Request.of(*inputs(2), **options))
    assert choice.backend.name == backend and why in choice.why


def test_auto_stores_no_large_mask_and_no_large_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "LARGEST_MASK", 30)
    monkeypatch.setattr(backends, "LARGEST_WEIGHTS", 60)
    x = inputs(2)

    def chosen(**options: Any) -> backends.Choice:
        return backends.choose(Request.of(*x, **options))

    assert chosen(lengths=[2, 3]).backend.name == "torch"  # 14 pairs: one row of keys per entry
    assert chosen(window=(1, 1)).why.startswith("SDPA would need a mask of 35 pairs; native: ")
    assert chosen(dropout_p=0.1).why.startswith("SDPA would store 70 weights; native: ")
    learned = torch.zeros(7, dtype=torch.float64, requires_grad=True)
    assert chosen(attn_mask=learned).why.startswith("SDPA would store 70 weights; native: ")
    with torch.no_grad():
        assert chosen(attn_mask=learned).backend.name == "torch"
    assert chosen(is_causal=True).backend.name == "torch"


def test_import_stays_light() -> None:
    heavy = ("matplotlib", "transformers", "starlette", "rich", "torch._dynamo", "sympy")
    code = f"import regard, sys; print([name for name in {heavy} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"
