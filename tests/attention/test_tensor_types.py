"""Subclasses of torch.Tensor: a `CausalBias` is converted, unknown subclasses are refused."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.masked import masked_tensor
from torch.nn.attention.bias import CausalBias, causal_lower_right, causal_upper_left
from torch.nn.functional import scaled_dot_product_attention

import regard
from regard.attention.native import engine

BACKENDS = ["auto", "native", "torch", "blocked", "reference"]
SIZES = [(4, 6), (6, 4), (5, 5)]
B, H, D = 2, 3, 8


def tensors(queries: int = 4, keys: int = 6, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(7)
    return [torch.randn(B, H, t, D, dtype=dtype) for t in (queries, keys, keys)]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    if request.param == "native" and engine.module is None:
        pytest.skip(engine.reason)
    return str(request.param)


@pytest.fixture(params=[causal_upper_left, causal_lower_right], ids=["upper left", "lower right"])
def corner(request: pytest.FixtureRequest) -> Any:
    return request.param


def bias_of(corner: Any, queries: int, keys: int) -> tuple[CausalBias, Tensor]:
    """Return a bias, and the boolean mask it represents."""
    offset = keys - queries if corner is causal_lower_right else 0
    with pytest.warns(UserWarning) if offset < 0 else torch.no_grad():
        bias = corner(queries, keys)
    return bias, torch.ones(queries, keys, dtype=torch.bool).tril(offset)


@pytest.mark.parametrize("queries,keys", SIZES)
def test_a_causal_bias_matches_its_mask(backend: str, corner: Any, queries: int, keys: int) -> None:
    x, (bias, mask) = tensors(queries, keys), bias_of(corner, queries, keys)
    for options in ({}, {"is_causal": True, "causal_offset": 1}, {"window": (1, 2)}, {"lengths": [2, 3]}):
        theirs, ours = ([y.clone().requires_grad_() for y in x] for _ in range(2))
        wanted = regard.attend(*theirs, mask, **options, backend="reference")
        got, m = regard.attend(*ours, bias, **options, return_map=True, backend=backend)
        assert type(got) is Tensor
        torch.testing.assert_close(got, wanted)
        reached = regard.attend(*x, mask, **options, return_map=True)[1].dense()
        torch.testing.assert_close(m.dense(), reached)
        for mine, other in zip(
            torch.autograd.grad(got.square().sum(), ours),
            torch.autograd.grad(wanted.square().sum(), theirs),
            strict=True,
        ):
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("function", [scaled_dot_product_attention, regard.attend], ids=["SDPA", "attend"])
@pytest.mark.parametrize("queries,keys", [(4, 6), (5, 5)])
def test_watching_a_causal_bias(corner: Any, queries: int, keys: int, function: Any) -> None:
    class Model(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
            return function(q, k, v, bias)

    (q, k, v), (bias, mask) = tensors(queries, keys), bias_of(corner, queries, keys)
    model = Model()
    with regard.watch(model) as seen:
        out = model(q, k, v, bias)
    weights = ((q @ k.mT) / D**0.5).masked_fill(~mask, -torch.inf).softmax(-1)
    assert not seen.missed and type(out) is Tensor
    torch.testing.assert_close(seen[0].dense(), weights)
    torch.testing.assert_close(out, weights @ v)


def test_a_causal_bias_compiles_to_one_graph() -> None:
    torch._dynamo.reset()
    x, bias = tensors(), causal_lower_right(4, 6)
    compiled = torch.compile(lambda q, k, v, b: regard.attend(q, k, v, b), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*x, bias), regard.attend(*x, is_causal=True, causal_offset=2))


def test_masks_merge_with_a_causal_bias() -> None:
    merged = regard.masks.merge(causal_lower_right(2, 3), torch.tensor([True, False, True]))
    assert merged is not None and merged.tolist() == [[True, False, False], [True, False, True]]


class Renamed(Tensor):
    """A subclass that overrides no operator."""


class Overriding(Tensor):
    """A subclass that intercepts every call, so its memory may have any meaning."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


class Handling(Tensor):
    """A subclass that implements `attend` itself."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return "handled" if func is regard.attend else super().__torch_function__(func, types, args, kwargs or {})


NAMES = ["query", "key", "value", "attn_mask"]


def arguments(at: int, change: Any) -> list[Any]:
    arguments_ = [*tensors(), torch.ones(4, 6).tril()]
    arguments_[at] = change(arguments_[at])
    return arguments_


@pytest.mark.parametrize("at", range(4), ids=NAMES)
def test_a_subclass_without_overrides_is_accepted(at: int, backend: str) -> None:
    wanted = regard.attend(*arguments(at, lambda x: x), backend=backend)
    got = regard.attend(*arguments(at, lambda x: x.as_subclass(Renamed)), backend=backend)
    torch.testing.assert_close(got.as_subclass(Tensor), wanted)
    got = regard.attend(*arguments(at, lambda x: nn.Parameter(x, requires_grad=at < 3)), backend=backend)
    assert type(got) is Tensor
    torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("at", range(4), ids=NAMES)
def test_a_subclass_that_implements_attend_is_called(at: int) -> None:
    assert regard.attend(*arguments(at, lambda x: x.as_subclass(Handling))) == "handled"


def jagged(x: Tensor) -> Tensor:
    return torch.nested.nested_tensor([torch.randn(3, D), torch.randn(4, D)], layout=torch.jagged)


def nested(x: Tensor) -> Tensor:
    return torch.nested.nested_tensor([torch.randn(3, D), torch.randn(4, D)])


NESTED = "{} must be a tensor of one shape; got a nested tensor. For sequences of different lengths try regard.att"
REFUSED = [
    (lambda x: x.as_subclass(Overriding), "{} must be a plain tensor or nn.Parameter; got Overriding"),
    (lambda x: masked_tensor(x, x > 0), "{} must be a plain tensor or nn.Parameter; got MaskedTensor"),
    (jagged, NESTED),
    (nested, NESTED),
    (lambda x: x.to_sparse(), "{} must be dense; got layout sparse_coo. Try {}.to_dense()"),
]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("at", range(4), ids=NAMES)
@pytest.mark.parametrize("change,message", REFUSED, ids=["overriding", "masked", "jagged", "nested", "sparse"])
def test_unknown_subclasses_are_refused(change: Any, message: str, at: int) -> None:
    with pytest.raises(ValueError, match=re.escape("attend: " + message.format(NAMES[at], NAMES[at]))):
        regard.attend(*arguments(at, change))


def test_the_parameters_of_a_similarity_are_checked_too() -> None:
    q, k, v = tensors()
    w = torch.ones(D).as_subclass(Overriding)
    with pytest.raises(ValueError, match=re.escape("Additive(w): w must be a plain tensor or nn.Parameter; got Over")):
        regard.attend(q, k, v, similarity=regard.Additive(w))
    with pytest.raises(ValueError, match="attend_packed: query must be a tensor of one shape; got a nested tensor"):
        regard.attend_packed(jagged(q), k, v, [3, 4])


def test_the_result_of_an_operation_on_a_causal_bias_is_refused() -> None:
    """An operation on a CausalBias returns another one with uninitialized memory."""
    x = tensors()
    for change in (lambda b: b.double(), lambda b: b[:1], lambda b: b.detach()):
        with pytest.raises(ValueError, match="got the result of an operation on one, which holds no numbers"):
            regard.attend(*x, change(causal_lower_right(4, 6)))
    with pytest.raises(ValueError, match=re.escape("(a CausalBias of 4×5) must have the size of the scores, 4×6")):
        regard.attend(*x, causal_lower_right(4, 5))


def test_distributed_tensors_are_refused_by_name() -> None:
    class Local(Overriding):
        def to_local(self) -> Tensor:
            return self.as_subclass(Tensor)

    with pytest.raises(ValueError, match=r"got Local, .* Try key.to_local\(\)"):
        regard.attend(*arguments(1, lambda x: x.as_subclass(Local)))
