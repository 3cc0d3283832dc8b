"""The custom operator `regard::dot`: schema, shapes and gradient; traced calls compared with eager ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

import regard
from regard.attention.native import engine

pytestmark = pytest.mark.skipif(engine.module is None, reason=f"native: {engine.reason}")
B, H, TQ, TK, D, DV = 2, 4, 5, 7, 8, 6

CALLS: dict[str, dict[str, Any]] = {
    "open": {},
    "causal": {"is_causal": True},
    "bottom right": {"is_causal": True, "causal_offset": 2},
    "offsets": {"is_causal": True, "causal_offset": torch.tensor([1, -2])},
    "window, softcap": {"window": (2, 1), "softcap": 3.0},
    "lengths": {"lengths": torch.tensor([3, 7])},
    "one length": {"lengths": 4},
    "boolean": {"attn_mask": torch.rand(TQ, TK, generator=torch.Generator().manual_seed(0)) > 0.3},
    "float per head": {"attn_mask": torch.randn(H, TQ, TK, generator=torch.Generator().manual_seed(0))},
    "cosine": {"similarity": "cosine", "scale": 4.0},
    "uniform": {"weighting": "uniform"},
}


@pytest.fixture(autouse=True)
def forget_compiled_code() -> None:
    torch._dynamo.reset()


def inputs(*lead: int, heads: int = H) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((*lead, H, TQ, D), (*lead, heads, TK, D), (*lead, heads, TK, DV))
    return tuple(torch.randn(shape, generator=generator).requires_grad_() for shape in shapes)


def with_gradients(function: Any, x: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    context = function(*x)
    return context, *torch.autograd.grad(context.square().sum(), x)


def assert_same(got: tuple[torch.Tensor, ...], wanted: tuple[torch.Tensor, ...]) -> None:
    for name, mine, other in zip(("context", "dq", "dk", "dv"), got, wanted, strict=True):
        torch.testing.assert_close(mine, other, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize(
    "plan",
    [
        (None, None, None, None, None, 1, 0.3, None),
        (None, torch.tensor([1, 2]), torch.tensor([3, 7]), None, 0, 1, 0.3, 2.0),
        (torch.rand(1, 1, TQ, TK) > 0.3, None, None, 2, 3, 2, 1.0, None),
    ],
    ids=["open", "positions", "dense, grouped"],
)
def test_opcheck(plan: tuple[Any, ...]) -> None:
    q, k, v = inputs(B, heads=H // plan[5])
    torch.library.opcheck(torch.ops.regard.dot.default, (q, k, v, *plan))
    q, k, v = (x.detach() for x in (q, k, v))
    context, lse = torch.ops.regard.dot.default(q, k, v, *plan)
    arguments = (torch.randn_like(context), context, lse, q, k, v, *plan)
    torch.library.opcheck(torch.ops.regard.dot_backward.default, arguments)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_compiles(dtype: torch.dtype) -> None:
    def model(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return regard.attend(q, k, v, backend="native", is_causal=True)

    x = tuple(tensor.detach().to(dtype).requires_grad_() for tensor in inputs(B))
    result = with_gradients(torch.compile(model, fullgraph=True, backend="aot_eager"), x)
    assert all(tensor.dtype == dtype for tensor in result)
    assert_same(result, with_gradients(model, x))


@pytest.mark.parametrize("name", CALLS)
def test_a_call_compiles_to_one_graph(name: str) -> None:
    def model(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return regard.attend(q, k, v, backend="native", **CALLS[name])

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert_same(with_gradients(compiled, inputs(B)), with_gradients(model, inputs(B)))
    with torch.no_grad():
        assert torch.equal(compiled(*inputs(B)), model(*inputs(B)))


@pytest.mark.parametrize("lead", [(), (3,), (2, 1, 3)])
def test_any_leading_dimensions_compile(lead: tuple[int, ...]) -> None:
    def model(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return regard.attend(q, k[..., :1, :, :], v, attn_mask=CALLS["boolean"]["attn_mask"], backend="native")

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert_same(with_gradients(compiled, inputs(*lead)), with_gradients(model, inputs(*lead)))


@pytest.mark.parametrize("lead", [(B,), (B, 3)])
def test_grouped_heads_and_lengths_compile(lead: tuple[int, ...]) -> None:
    def model(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return regard.attend(q, k, v, enable_gqa=True, lengths=torch.tensor([3, 7]), backend="native")

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert_same(with_gradients(compiled, inputs(*lead, heads=2)), with_gradients(model, inputs(*lead, heads=2)))


def test_sizes_may_be_symbols() -> None:
    def model(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, offset: int) -> torch.Tensor:
        return regard.attend(q, k, v, is_causal=True, causal_offset=offset, backend="native")

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=True)
    for held in range(3):
        x = (torch.randn(2, 3, 8), torch.randn(2, 3 + held, 8), torch.randn(2, 3 + held, 5))
        torch.testing.assert_close(compiled(*x, held), model(*x, held))


def test_an_export_has_one_operator_for_every_size() -> None:
    class Model(torch.nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return regard.attend(q, k, v, is_causal=True, backend="native")

    q, k, v = (x.detach() for x in inputs(B))
    batch, queries, keys = (torch.export.Dim(name) for name in ("batch", "queries", "keys"))
    sizes = ({0: batch, 2: queries}, {0: batch, 2: keys}, {0: batch, 2: keys})
    exported = torch.export.export(Model(), (q, k, v), dynamic_shapes=sizes)
    assert [str(node.target) for node in exported.graph.nodes if "regard" in str(node.target)] == ["regard.dot.default"]
    other = tuple(torch.randn(3, H, t, w) for t, w in ((11, D), (13, D), (13, DV)))
    torch.testing.assert_close(exported.module()(*other), Model()(*other))


@pytest.mark.parametrize("nonfinite", [torch.nan, torch.inf])
def test_masked_nonfinite_numbers_have_no_effect_when_compiled(nonfinite: float) -> None:
    def model(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return regard.attend(q, k, v, lengths=torch.tensor([3, 6]), backend="native")

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    wanted = with_gradients(model, inputs(B))
    q, k, v = (x.detach().clone() for x in inputs(B))
    k[0, :, 3:], v[0, :, 3:], v[1, :, 6] = nonfinite, nonfinite, nonfinite
    assert_same(with_gradients(compiled, tuple(x.requires_grad_() for x in (q, k, v))), wanted)


def test_attended_nonfinite_numbers_match_an_eager_call() -> None:
    def model(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return regard.attend(q, k, v, is_causal=True, backend="native")

    q, k, v = (x.detach().clone() for x in inputs(B))
    k[0, 1, 2], v[1, 0, 3, 1], q[1, 2, 4] = torch.nan, torch.inf, torch.nan
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    upstream = torch.randn(B, H, TQ, DV)
    got, wanted = compiled(q, k, v), model(q, k, v)
    assert torch.equal(got.isnan(), wanted.isnan()) and wanted.isnan().any() and not wanted.isnan().all()
    mine, other = (torch.autograd.grad(context, (q, k, v), upstream) for context in (got, wanted))
    for a, b in zip(mine, other, strict=True):
        torch.testing.assert_close(a, b)


def test_lengths_are_clamped_to_the_keys() -> None:
    """Tracing cannot read values, so the kernels clamp lengths themselves."""

    def model(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return regard.attend(q, k, v, lengths=lengths, backend="native")

    x = tuple(t.detach() for t in inputs(B))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    got = compiled(*x, torch.tensor([10**6, -5]))
    torch.testing.assert_close(got, model(*x, torch.tensor([TK, 0])))


def test_torch_func_inside_compiled_code_uses_pytorch_operators() -> None:
    q, k, v = (x.detach() for x in inputs(B))

    def each(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.vmap(lambda a, b, c: regard.attend(a, b, c, is_causal=True))(q, k, v)

    def slope(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.func.grad(lambda a: regard.attend(a, k, v, is_causal=True).square().sum())(q)

    for model in (each, slope):
        torch.testing.assert_close(torch.compile(model, fullgraph=True, backend="aot_eager")(q, k, v), model(q, k, v))
    with pytest.raises(ValueError, match=r"cannot serve this request: torch.func can transform only"):
        torch.vmap(lambda a, b, c: regard.attend(a, b, c, backend="native"))(q, k, v)


def test_fake_tensors_give_shapes() -> None:
    with FakeTensorMode() as mode:
        q, k, v = (mode.from_tensor(x.detach()) for x in inputs(B))
        context = regard.attend(q, k, v, is_causal=True, backend="native")
    assert context.shape == (B, H, TQ, DV) and type(context).__name__ == "FakeTensor"


def test_a_dispatch_mode_sees_one_operator() -> None:
    class Watch(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[str] = []

        def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen.append(str(op))
            return op(*args, **(kwargs or {}))

    with Watch() as watch:
        x = tuple(x.detach() for x in inputs(B))
        watch.seen.clear()
        context = regard.attend(*x, backend="native")
    assert watch.seen == ["regard.dot.default"]
    assert torch.equal(context, regard.attend(*x, backend="native"))


def test_the_log_sum_exp_has_no_gradient() -> None:
    context, lse = torch.ops.regard.dot.default(*inputs(B), *(None,) * 5, 1, 1.0, None)
    assert context.requires_grad and not lse.requires_grad


def test_tangents_are_refused_not_dropped() -> None:
    q, k, v = (x.detach() for x in inputs(B))
    with forward_ad.dual_level(), pytest.raises(ValueError, match="it has no forward-mode derivatives"):
        regard.attend(forward_ad.make_dual(q, torch.ones_like(q)), k, v, backend="native")


def test_the_operator_has_second_derivatives() -> None:
    x = inputs(B)

    def second(context: torch.Tensor) -> tuple[torch.Tensor, ...]:
        gradients = torch.autograd.grad(context.square().sum(), x, create_graph=True)
        return torch.autograd.grad(sum(gradient.square().sum() for gradient in gradients), x)

    context, _ = torch.ops.regard.dot.default(*x, *(None,) * 5, 1, 1.0, None)
    wanted = second(regard.attend(*x, scale=1.0, backend="reference"))
    torch.testing.assert_close(second(context), wanted, rtol=1e-3, atol=1e-3)


def test_the_backward_operator_has_no_derivative() -> None:
    q, k, v = inputs(B)
    context, lse = torch.ops.regard.dot.default(q, k, v, *(None,) * 5, 1, 1.0, None)
    plan = (q, k, v, *(None,) * 5, 1, 1.0, None)
    dq, _, _ = torch.ops.regard.dot_backward.default(context.detach(), context.detach(), lse, *plan)
    with pytest.raises(RuntimeError, match=r"first derivatives only.*backend='reference'"):
        dq.sum().backward()
