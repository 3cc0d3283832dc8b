"""Tensors without their own memory raise an error and never reach the kernels."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import regard
from regard.attention.cells import Cells
from regard.attention.native import additive as native_additive
from regard.attention.native import backend as native
from regard.attention.native import decoding, engine, few_rows, fused, views
from regard.attention.native.plan import Plan, address, addressable
from regard.attention.packed_layout import Layout
from regard.attention.request import Request
from regard.attention.similarity import Additive, Dot

SOURCES = Path(regard.__file__).parent
COMPUTE = {"dot_forward", "dot_backward", "additive_forward", "additive_backward", "compute_view", "gelu"}
COMPUTE |= {"add_norm", "add_norm_backward", "log_softmax_top_k", "reorder_rows", "large_pages"}
COMPUTE |= {"few_rows", "row_norm", "rotate_append"}
needs_kernels = pytest.mark.skipif(engine.module is None, reason="there are no native kernels here")


class Wrapper(Tensor):
    """A tensor subclass whose data is stored elsewhere, like a DTensor."""

    @staticmethod
    def __new__(cls, x: Tensor) -> Wrapper:
        return Tensor._make_wrapper_subclass(cls, x.shape, dtype=x.dtype, device=x.device)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.split(".")[0]
        if name in ("detach", "expand", "view", "unsqueeze", "alias", "_unsafe_view"):
            with torch._C._DisableTorchDispatch():
                shape = func(torch.empty(args[0].shape, device="meta"), *args[1:], **(kwargs or {})).shape
            return Wrapper(torch.empty(shape))
        raise NotImplementedError(name)


def freed(x: Tensor, copies: int = 1) -> Tensor:
    """Return the last of some copies in one storage, which is then freed."""
    x = torch.stack([x] * copies)[-1]
    x.untyped_storage().resize_(0)
    return x


def fake(x: Tensor) -> Tensor:
    return FakeTensorMode().from_tensor(x)


UNREADABLE: dict[str, Callable[[Tensor], Tensor]] = {
    "meta": lambda x: x.to("meta"),
    "fake": fake,
    "freed": freed,
    "freed, a view": lambda x: freed(x, 2),
    "wrapper": Wrapper,
    "sparse": lambda x: x.to_sparse(),
    "negated": torch._neg_view,
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_a_tensor_without_memory_has_no_address(kind: str) -> None:
    x = torch.randn(2, 3)
    assert address(x) == x.data_ptr() and address(None) == 0 and addressable(torch.nn.Parameter(x))
    assert address(torch.empty(0, 3)) == torch.empty(0, 3).data_ptr()
    bad = UNREADABLE[kind](x)
    assert not addressable(bad)
    with pytest.raises(ValueError, match=r"native: a tensor \(2×3\) must be a plain, dense one in CPU memory; got"):
        address(bad)


def test_a_tensor_inside_vmap_has_no_address() -> None:
    known = []
    torch.vmap(lambda x: (known.append(addressable(x)), x)[1])(torch.randn(2, 3))
    assert known == [False]


def test_every_address_for_the_kernels_comes_from_one_function() -> None:
    """Only `attention/native` calls kernels, and only `plan.address` calls `data_ptr` there."""
    users = set()
    for path in sorted(SOURCES.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        names = {node.attr for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)}
        if path.parent == SOURCES / "attention/native":
            assert ("data_ptr" in names) == (path.name == "plan.py"), path
        if names & COMPUTE and ("engine.module" in text or "kernels()" in text or "_native" in text):
            users.add(str(path.relative_to(SOURCES / "attention/native")))  # raises outside it
    assert users >= {"additive.py", "backend.py", "decoding.py", "few_rows.py", "fused.py", "views.py"}


@pytest.fixture
def unreached(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Replace the kernels by functions that fail the test: with a wrong address they would crash the process."""

    def reached(*args: Any) -> None:
        raise AssertionError("a kernel was called with a tensor that it cannot read")

    known = {name: getattr(engine.module, name) for name in dir(engine.module) if not name.startswith("__")}
    assert known.keys() >= COMPUTE
    monkeypatch.setattr(engine, "module", SimpleNamespace(**{**known, **dict.fromkeys(COMPUTE, reached)}))
    yield


T, D = 6, 8
PLAN = Plan(1, 2, 1, 1.0, 0.0, None, ())
LAYOUT = Layout(torch.tensor([T]), torch.tensor([T]), T, T, True)


def request(q: Tensor, k: Tensor, additive: bool = False) -> Request:
    similarity = Additive(torch.ones(D)) if additive else Dot(1.0)
    return Request(q, k, None, similarity, lead=(1, 2))


def entry_points(bad: Callable[[Tensor], Tensor], at: int) -> dict[str, Callable[[], Any]]:
    """Return every call of a kernel, with a tensor that it cannot read as first, second or third argument."""
    q, k, v = (bad(torch.randn(1, 2, T, D)) if i == at else torch.randn(1, 2, T, D) for i in range(3))
    first, second, third = (bad(torch.randn(T, D)) if i == at else torch.randn(T, D) for i in range(3))
    row = bad(torch.randn(D)) if at else torch.randn(D)
    w, softmax = torch.ones(1, 2, D), torch.zeros(2, 1, 2, T)
    grad, out = torch.randn(1, 2, T, D), torch.randn(1, 2, T, D)
    packed = PLAN._replace(layout=LAYOUT)
    cells, statistic = Cells(0, T, 2), torch.zeros(1, 2, T)
    heads = [bad(torch.randn(2, T, D)) if i == at else torch.randn(2, T, D) for i in range(3)]
    calls: dict[str, Callable[[], Any]] = {
        "dot forward": lambda: native._forward(q, k, v, PLAN),
        "dot backward": lambda: native._backward(PLAN, q, k, v, out, softmax, grad),
        "additive forward": lambda: native_additive.forward(q, k, v, w, PLAN, None, keep=False),
        "additive forward, kept": lambda: native_additive.forward(q, k, v, w, PLAN, None, keep=True),
        "gelu": lambda: fused.kernels().gelu(fused._sizes(first), *fused._pointers(first, row, second), 1),
        "add and norm": lambda: fused._normed(first, second, row, row, 1e-5, (0, 0), third),
        "packed forward": lambda: native._forward(*heads, packed),
        "packed backward": lambda: native._backward(
            packed, *heads, torch.randn(2, T, D), torch.zeros(2, 2, T), torch.randn(2, T, D)
        ),
    }
    if at < 2:
        for additive in (False, True):
            r = request(q, k, additive)
            calls |= {
                f"statistic {additive}": lambda r=r: views.statistic(r),
                f"weights {additive}": lambda r=r: views.weights(r, statistic, slice(0, T)),
                f"top {additive}": lambda r=r: views.top(r, statistic, 2),
                f"entropy {additive}": lambda r=r: views.entropy(r, statistic),
                f"received {additive}": lambda r=r: views.received(r, statistic),
                f"times {additive}": lambda r=r: views.matmul(r, statistic, torch.randn(1, 2, T, 3)),
                f"before {additive}": lambda r=r: views.rmatmul(r, statistic, torch.randn(1, 2, 3, T)),
                f"pool {additive}": lambda r=r: views.pool(r, statistic, cells, cells, "max"),
            }
    if at == 0:
        calls["log_softmax_top_k"] = lambda: decoding.log_softmax_top_k(bad(torch.randn(2, 5)), 2)
    return calls


@needs_kernels
@pytest.mark.parametrize("kind", ["freed", "freed, a view", "meta"])
def test_every_entry_point_raises_an_error(kind: str, unreached: None) -> None:
    for at in range(3):
        for name, enter in entry_points(UNREADABLE[kind], at).items():
            if name == "log_softmax_top_k" and kind == "meta":
                continue  # PyTorch supports it
            with pytest.raises(ValueError, match=r"native: a tensor .* must be a plain"):
                enter()
                pytest.fail(f"{name}: no refusal")


@needs_kernels
@pytest.mark.parametrize("kind", ["freed", "freed, a view"])
def test_calls_of_decoding_steps_are_not_bound_to_freed_tensors(kind: str, unreached: None) -> None:
    def tensors(at: int, *sizes: tuple[int, ...]) -> list[Tensor]:
        return [UNREADABLE[kind](torch.randn(size)) if i == at else torch.randn(size) for i, size in enumerate(sizes)]

    def linear(at: int) -> Any:
        x, weight, y, gain = tensors(at, (2, D), (T, D), (2, T), (D,))
        return few_rows.bind_linear(x, weight, None, y, norm=few_rows.RowNorm(gain, None, 1e-5, centered=False))

    def attention(at: int) -> Any:
        q, key, value, context = tensors(at, (1, 2, 1, D), (1, 2, T, D), (1, 2, T, D), (1, 2, 1, D))
        return few_rows.bind_attention(q, key, value, context, offsets=None, left=None)

    def rotate(at: int) -> Any:
        qkv, key, value, table = tensors(at, (1, 1, 6, D), (1, 2, T, D), (1, 2, T, D), (T, D // 2))
        rotation = few_rows.Rotation(table, torch.ones(T, D // 2))
        return few_rows.bind_rotate_append(qkv, 2, rotation, torch.tensor([0]), (key, value))

    for bind in (linear, attention, rotate):
        for at in range(4):
            with pytest.raises(ValueError, match=r"native: a tensor .* must be a plain"):
                bind(at)
                pytest.fail(f"{bind.__name__}: tensor {at} was not refused")


@needs_kernels
@pytest.mark.parametrize("kind", ["freed", "wrapper", "fake", "meta"])
def test_maps_of_tensors_without_memory_do_not_use_the_kernels(kind: str, unreached: None) -> None:
    q, k = torch.randn(1, 2, T, D), torch.randn(1, 2, T, D)
    bad = UNREADABLE[kind]
    for one, other in ((bad(q), k), (q, bad(k))):
        assert views.refusal(request(one, other)) is not None


@needs_kernels
@pytest.mark.parametrize("similarity", ["scaled_dot", "cosine", "additive"])
def test_a_lazy_negation_is_resolved(similarity: str) -> None:
    """`torch._neg_view` marks a tensor as negated; the numbers in memory have the other sign."""
    torch.manual_seed(0)
    chosen: Any = Additive(torch._neg_view(torch.randn(8))) if similarity == "additive" else similarity
    results = []
    for backend in ("native", "reference"):
        torch.manual_seed(1)
        q, k, v = (torch._neg_view(torch.randn(1, 2, 9, 8)).requires_grad_() for _ in range(3))
        mask = torch._neg_view(torch.randn(9, 9))
        context, m = regard.attend(q, k, v, mask, similarity=chosen, backend=backend, return_map=True)
        gradients = torch.autograd.grad(context, (q, k, v), torch._neg_view(torch.randn(1, 2, 9, 8)))
        results.append([context.detach(), m.dense(), m.received(), *gradients])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
