"""Pooling compared with its equations, with NaN in padding."""

import re
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import regard
from regard.layers import AttentionPooling, AveragePooling, FullyConnectedPooling, KernelPooling, MaxPooling
from tests.allocations import peak_allocated

B, TQ, T, W, D, DV = 3, 2, 7, 5, 11, 13
assert_close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-11)
LENGTHS = st.lists(st.integers(0, T), min_size=B, max_size=B)


def rand(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def padded(lengths: list[int], width: int = W, fill: float = torch.nan) -> Tensor:
    x = rand(B, T, width)
    for entry, length in enumerate(lengths):
        x[entry, length:] = fill
    return x.requires_grad_()


def ways(lengths: list[int]) -> list[dict]:
    """Every way to say what is padding; the last two need both."""
    longer, mask = [min(T, length + 1) for length in lengths], regard.masks.padding(lengths, T)
    even, odd = [lengths[0], *longer[1:]], [longer[0], *lengths[1:]]
    return [
        {"lengths": lengths},
        {"lengths": torch.tensor(lengths)},
        {"mask": mask},
        {"lengths": even, "mask": regard.masks.padding(odd, T)},
        {"lengths": odd, "mask": regard.masks.padding(even, T)},
    ]


def without_query() -> list[nn.Module]:
    deep = nn.Sequential(nn.Linear(W, 3), nn.Tanh(), nn.Linear(3, 1))
    pools = [AveragePooling(), MaxPooling(), FullyConnectedPooling(W), FullyConnectedPooling(W, deep)]
    return [pool.double() for pool in pools]


def with_query() -> list[nn.Module]:
    names = ("scaled_dot", "dot", "cosine", "additive", "bilinear")
    return [AttentionPooling(D, W, 4, similarity=name).double() for name in names] + [KernelPooling(0.7).double()]


def ask(pool: nn.Module, query: Tensor, key: Tensor, value: Tensor, **options):
    """Any of them, called alike."""
    if not isinstance(pool, AttentionPooling | KernelPooling):
        return pool(key, **options)
    return pool(query[..., :W] if isinstance(pool, KernelPooling) else query, key, value, **options)


def named(pool: nn.Module) -> str:
    return type(pool).__name__ + ("-" + str(pool.similarity)[:12] if isinstance(pool, AttentionPooling) else "")


# ── without a query ─────────────────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=20, deadline=None)
@given(LENGTHS)
def test_average_is_the_mean_of_valid_entries(lengths: list[int]) -> None:
    for how in ways(lengths):
        x = padded(lengths)
        result, m = AveragePooling()(x, **how, return_map=True)
        for entry, length in enumerate(lengths):
            assert_close(result[entry], x[entry, :length].mean(0) if length else rand(W) * 0)
            expected = torch.zeros(1, T, dtype=torch.float64)
            expected[:, :length] = 1 / max(1, length)
            assert_close(m[entry], expected)


@settings(max_examples=20, deadline=None)
@given(LENGTHS)
def test_max_is_that_of_valid_entries(lengths: list[int]) -> None:
    for how in ways(lengths):
        x = padded(lengths)
        result = MaxPooling()(x, **how)
        for entry, length in enumerate(lengths):
            assert_close(result[entry], x[entry, :length].amax(0) if length else rand(W) * 0)


def test_an_average_compares_nothing() -> None:
    x = rand(B, T, W)
    x[:, 2, 0] = torch.nan
    result = AveragePooling()(x)
    assert result[:, 0].isnan().all()
    assert_close(result[:, 1:], x.mean(1)[:, 1:])


@pytest.mark.parametrize("deep", [False, True])
def test_fully_connected_pooling_weights_salient_entries(deep: bool) -> None:
    pool, x = without_query()[3 if deep else 2], padded([7, 3, 1])
    result, m = pool(x, lengths=[7, 3, 1], return_map=True)
    for entry, length in enumerate([7, 3, 1]):
        weights = pool.score(x[entry, :length]).softmax(0)  # (length, 1)
        assert_close(result[entry], (weights * x[entry, :length]).sum(0))
        assert_close(m[entry, 0, :length], weights.squeeze(-1).detach())
    assert len(list(pool.parameters())) == (4 if deep else 1)


@pytest.mark.parametrize("pool", without_query(), ids=lambda p: type(p).__name__)
def test_leading_dimensions_are_free(pool: nn.Module) -> None:
    x = rand(2, B, T, W)
    assert_close(pool(x)[1], pool(x[1]))
    assert_close(pool(x[0, 0]), pool(x[0])[0])
    lengths = torch.tensor([[1, 7, 0], [2, 3, 5]])
    assert_close(pool(x, lengths=lengths)[1, 2], pool(x[1, 2, :5]))
    assert_close(pool(x, lengths=[4, 6])[1], pool(x[1, :, :6]))
    assert_close(pool(x, lengths=4), pool(x[:, :, :4]))
    assert torch.equal(pool(x[:, :, :0]), torch.zeros(2, B, W).double())


# ── with a query ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["scaled_dot", "additive", "bilinear"])
def test_attention_pooling_is_the_equation(name: str) -> None:
    pool = AttentionPooling(D, W, 4, similarity=name).double()
    query, key, value = rand(B, TQ, D), rand(B, T, W), rand(B, T, DV)
    q, k = query @ pool.query.weight.T, key @ pool.key.weight.T
    scores = {
        "scaled_dot": lambda: q @ k.mT / 2,
        "additive": lambda: torch.tanh(q[:, :, None] + k[:, None]) @ pool.similarity.weight,
        "bilinear": lambda: q @ pool.similarity.weight @ k.mT,
    }[name]()
    context, m = pool(query, key, value, return_map=True)
    assert_close(m.dense(), scores.softmax(-1).detach())
    assert_close(context, scores.softmax(-1) @ value)
    assert_close(pool(query, key), scores.softmax(-1) @ key)


def test_attention_pooling_takes_options_of_the_operator() -> None:
    pool = AttentionPooling(D, W, 4, attend=partial(regard.attend, weighting="hard")).double()
    query, key, value = rand(B, TQ, D), rand(B, T, W), rand(B, T, DV)
    context, m = pool(query, key, value, return_map=True)
    best = m.dense().argmax(-1)
    assert_close(context, value.gather(1, best.unsqueeze(-1).expand(B, TQ, DV)))
    dropping = AttentionPooling(D, W, 4, dropout=0.5).double()
    assert not torch.allclose(dropping(query, key), dropping(query, key))
    dropping.eval()
    assert_close(dropping(query, key), dropping(query, key))


def nadaraya_watson(query: Tensor, key: Tensor, value: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Σⱼ K(q − kⱼ)·vⱼ / Σⱼ K(q − kⱼ), K(u) = exp(−‖u·w‖²/2), as the papers have it."""
    kernel = torch.exp(-((query.unsqueeze(-2) - key.unsqueeze(-3)) * w).square().sum(-1) / 2)
    weights = kernel / kernel.sum(-1, keepdim=True)
    return weights @ value, weights


@settings(max_examples=20, deadline=None)
@given(st.floats(0.05, 2), st.integers(1, 4), st.integers(1, 6), st.booleans())
def test_kernel_pooling_is_nadaraya_watson(w: float, width: int, value_width: int, learnable: bool) -> None:
    pool = KernelPooling(w, learnable=learnable).double()
    query, key, value = (x.requires_grad_() for x in (rand(B, TQ, width), rand(B, T, width), rand(B, T, value_width)))
    expected, weights = nadaraya_watson(query, key, value, pool.w)
    result, m = pool(query, key, value, return_map=True)
    assert_close(result, expected)
    assert_close(m.dense(), weights.detach())
    leaves, grad = [query, key, value, *([pool.w] if learnable else [])], rand(*result.shape)
    for f, g in zip(
        torch.autograd.grad(result, leaves, grad), torch.autograd.grad(expected, leaves, grad), strict=True
    ):
        assert_close(f, g)
    assert pool.w.requires_grad == learnable and "w" in pool.state_dict()


def test_gradients_of_the_kernel_are_right() -> None:
    def pool(query: Tensor, key: Tensor, value: Tensor, w: Tensor) -> Tensor:
        return torch.func.functional_call(KernelPooling(), {"w": w}, (query, key, value), {"lengths": [7, 3, 0]})

    inputs = rand(B, TQ, 2), rand(B, T, 2), rand(B, T, 3), torch.tensor(0.8, dtype=torch.float64)
    assert torch.autograd.gradcheck(pool, [x.requires_grad_() for x in inputs])


def test_kernel_pooling_is_accurate_far_from_zero() -> None:
    query, key, value = torch.randn(B, TQ, 1) + 4096, torch.randn(B, T, 1) + 4096, torch.randn(B, T, 1)
    exact, _ = nadaraya_watson(query.double(), key.double(), value.double(), torch.tensor(3.0))
    longer = [nn.functional.pad(x, (0, 0, 0, 90)) for x in (key, value)]  # zeros, far from all keys
    for result in (KernelPooling(3.0)(query, key, value), KernelPooling(3.0)(query, *longer, lengths=[T] * B)):
        torch.testing.assert_close(result.double(), exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_kernel_is_computed_in_float32_at_least(dtype: torch.dtype) -> None:
    query, key, value = torch.randn(B, TQ, 3).to(dtype), torch.randn(B, T, 3).to(dtype), torch.randn(B, T, 2).to(dtype)
    exact, _ = nadaraya_watson(query.double(), key.double(), value.double(), torch.tensor(4.0))
    result = KernelPooling(4.0)(query, key, value)
    assert result.dtype == dtype
    assert (result - exact).abs().max() <= torch.finfo(dtype).eps * value.abs().max()
    with torch.autocast("cpu", dtype=dtype):
        result = KernelPooling(4.0)(query.float(), key.float(), value.float())
    torch.testing.assert_close(result.double(), exact, rtol=1e-4, atol=1e-5)


def test_the_kernel_takes_memory_in_proportion_to_length() -> None:
    pool, (q, k, v) = KernelPooling(), (torch.randn(1, 4096, 8, requires_grad=True) for _ in range(3))
    assert peak_allocated(lambda: pool(q, k, v, lengths=[4000]).sum().backward()) < 8 << 20  # the weights: 64 MiB


# ── padding ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("fill", [torch.nan, torch.inf, 1e9])
@pytest.mark.parametrize("pool", without_query() + with_query(), ids=named)
def test_padding_has_no_effect_forward_or_backward(pool: nn.Module, fill: float) -> None:
    lengths, query = [7, 3, 0], rand(B, TQ, D).requires_grad_()

    def run(fill: float, call) -> list[Tensor]:
        """The output and the gradients of all that has one."""
        torch.manual_seed(5)
        key, value = padded(lengths, fill=fill), padded(lengths, DV, fill=fill)
        output = call(key, value)
        grads = torch.autograd.grad(output.square().sum(), [key, value, query, *pool.parameters()], allow_unused=True)
        return [output, *(grad for grad in grads if grad is not None)]

    def alone(key: Tensor, value: Tensor) -> Tensor:
        parts = [
            ask(pool, query[entry : entry + 1], key[entry : entry + 1, :length], value[entry : entry + 1, :length])
            for entry, length in ((0, 7), (1, 3))
        ]
        return torch.cat((*parts, torch.zeros_like(parts[0])))

    expected = run(fill, alone)
    assert len(expected) >= 2
    for how in ways(lengths):
        for result, exact in zip(run(fill, lambda k, v, how=how: ask(pool, query, k, v, **how)), expected, strict=True):
            assert_close(result, exact)


@pytest.mark.parametrize("pool", with_query(), ids=named)
def test_without_valid_keys_the_context_is_zero(pool: nn.Module) -> None:
    query, key, value = rand(B, TQ, D), rand(B, T, W), rand(B, T, DV)
    assert torch.equal(ask(pool, query, key, value, lengths=0), torch.zeros(B, TQ, DV).double())
    assert torch.equal(ask(pool, query, key[:, :0], value[:, :0]), torch.zeros(B, TQ, DV).double())


def test_the_map_of_an_average_can_be_looked_at() -> None:
    x = rand(B, T, W)
    result, m = AveragePooling()(x, lengths=[7, 2, 0], return_map=True)
    assert torch.equal(result, AveragePooling()(x, lengths=[7, 2, 0])) and m.shape == (B, 1, T)
    assert m.entropy()[:2].flatten().exp().tolist() == pytest.approx([7, 2])


@pytest.mark.parametrize("pool", without_query()[:3], ids=lambda p: type(p).__name__)
def test_compiles_whole(pool: nn.Module) -> None:
    torch.compiler.reset()
    x, lengths = rand(B, T, W), torch.tensor([7, 3, 0])
    assert_close(torch.compile(pool, fullgraph=True, backend="eager")(x, lengths=lengths), pool(x, lengths=lengths))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MaxPooling()(rand(W)), "max pooling: the entries (5) must be (..., length, width); got 1 dimensions."),
        (
            lambda: MaxPooling()(rand(B, T, W), lengths=[1, 8, 2]),
            "max pooling: lengths (8) must lie in 0…7, the number of entries.",
        ),
        (lambda: AveragePooling()(rand(B, T, W), lengths=-1), "average pooling: lengths (-1) must lie in 0…7"),
        (
            lambda: AveragePooling()(rand(B, T, W), lengths=[1, 2]),
            "average pooling: lengths (2, int64) must be one integer, or one per batch entry, 3.",
        ),
        (
            lambda: AveragePooling()(rand(B, T, W), lengths=torch.ones(B)),
            "average pooling: lengths (3, float32) must be one integer",
        ),
        (
            lambda: MaxPooling()(rand(B, T, W), mask=torch.ones(B, T)),
            "max pooling: mask (3×7) must be boolean, True = valid; got float32. "
            "regard.masks.from_ones converts numbers",
        ),
        (
            lambda: MaxPooling()(rand(B, T, W), mask=torch.ones(B, 6) > 0),
            "max pooling: mask (3×6) must fit the entries, 3×7.",
        ),
        (
            lambda: MaxPooling()(rand(B, T, W), mask=torch.ones(B, 1) > 0),
            "max pooling: mask (3×1) must fit the entries, 3×7.",
        ),
        (
            lambda: FullyConnectedPooling(4)(rand(B, T, W)),
            "fully connected pooling: x (3×7×5) must be (..., length, 4).",
        ),
        (
            lambda: FullyConnectedPooling(W, nn.Identity())(rand(B, T, W)),
            "fully connected pooling: score must give one number per entry, 3×7×1; got 3×7×5. "
            "End it with nn.Linear(…, 1).",
        ),
        (
            lambda: AttentionPooling(D, W, 4)(rand(B, TQ, 9), rand(B, T, W)),
            "attention pooling: query (3×2×9) must be (..., length, 11).",
        ),
        (
            lambda: AttentionPooling(D, W, 4)(rand(B, TQ, D), rand(B, T, 9)),
            "attention pooling: key (3×7×9) must be (..., length, 5).",
        ),
        (lambda: AttentionPooling(D, W, 4, dropout=-0.5), "attention pooling: dropout (-0.5) must lie in [0, 1)"),
        (
            lambda: AttentionPooling(D, W, 4, similarity="euclid"),
            "attention pooling: similarity ('euclid') must be one of",
        ),
        (
            lambda: KernelPooling()(rand(B, TQ, 9), rand(B, T, W), rand(B, T, W)),
            "kernel pooling: key (3×7×5) must be (..., length, 9).",
        ),
    ],
)
def test_error_messages(make, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make()
