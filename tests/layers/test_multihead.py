"""Multi-head attention: the equation and its properties. Parity with PyTorch: test_multihead_parity.py."""

import re
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import regard
from regard.layers import Cache, LearnedPosition, MultiHeadAttention, RotaryPosition, merge_heads, split_heads

B, H, TQ, TK, D, KEY, VALUE = 3, 2, 5, 7, 11, 13, 17
WIDTH = H * D
assert_close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-11)


def rand(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def multihead(width: int = WIDTH, heads: int = H, **options) -> MultiHeadAttention:
    return MultiHeadAttention(width, heads, **options).double()


def test_a_query_that_may_attend_to_nothing_is_finite() -> None:
    ours, x = multihead(), rand(B, TQ, WIDTH).requires_grad_()
    nn.init.normal_(ours.out.bias)
    output = ours(x, lengths=[5, 0, 3])
    assert_close(output[1], ours.out.bias.expand(TQ, WIDTH))
    output.sum().backward()
    assert x.grad.isfinite().all() and all(p.grad.isfinite().all() for p in ours.parameters())


# ── what it is made of ──────────────────────────────────────────────────────────────────────────────────────────────


def test_heads_split_and_merge() -> None:
    x = rand(B, TQ, WIDTH)
    assert split_heads(x, H).shape == (B, H, TQ, D)
    assert torch.equal(split_heads(x, H)[:, 1], x[..., D:])
    assert torch.equal(merge_heads(split_heads(x, H)), x)


def by_hand(layer: MultiHeadAttention, query: Tensor, key: Tensor, score) -> Tensor:
    """One head after the other, from the equation."""
    contexts, width = [], layer.width // layer.heads
    for h in range(layer.heads):
        shared = h // (layer.heads // layer.kv_heads)
        mine, theirs = slice(h * width, (h + 1) * width), slice(shared * width, (shared + 1) * width)
        q = query @ layer.query.weight[mine].T + layer.query.bias[mine]
        k = key @ layer.key.weight[theirs].T + layer.key.bias[theirs]
        v = key @ layer.value.weight[theirs].T + layer.value.bias[theirs]
        contexts.append(score(q, k, h).softmax(-1) @ v)
    return torch.cat(contexts, -1) @ layer.out.weight.T + layer.out.bias


class Perceptron(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(2 * width, 1)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        pairs = torch.broadcast_tensors(q.unsqueeze(-2), k.unsqueeze(-3))
        return torch.tanh(self.layer(torch.cat(pairs, -1))).squeeze(-1)


SIMILARITIES = {
    "dot": (lambda: "dot", lambda s, q, k, h: q @ k.mT),
    "scaled_dot": (lambda: "scaled_dot", lambda s, q, k, h: q @ k.mT / q.shape[-1] ** 0.5),
    "cosine": (lambda: "cosine", lambda s, q, k, h: nn.functional.cosine_similarity(q[:, :, None], k[:, None], dim=-1)),
    "additive": (lambda: "additive", lambda s, q, k, h: torch.tanh(q[:, :, None] + k[:, None]) @ s.weight[h]),
    "bilinear": (lambda: "bilinear", lambda s, q, k, h: q @ s.weight[h] @ k.mT),
    "given": (
        lambda: regard.Additive(nn.Parameter(rand(D))),
        lambda s, q, k, h: torch.tanh(q[:, :, None] + k[:, None]) @ s.weight,
    ),
    "module": (lambda: Perceptron(D), lambda s, q, k, h: s(q, k)),
    "function": (
        lambda: lambda q, k: -(q.unsqueeze(-2) - k.unsqueeze(-3)).abs().sum(-1),
        lambda s, q, k, h: -torch.cdist(q, k, p=1),
    ),
}


@pytest.mark.parametrize("kv_heads", [6, 3, 1])
@pytest.mark.parametrize("name", SIMILARITIES)
def test_any_similarity_and_grouped_heads_are_the_equation(name: str, kv_heads: int) -> None:
    make, score = SIMILARITIES[name]
    layer = multihead(6 * D, 6, kv_heads=kv_heads, similarity=make())
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)
    query, key = rand(B, TQ, 6 * D), rand(B, TK, 6 * D)
    output = layer(query, key)
    expected = by_hand(layer, query, key, partial(score, layer.similarity))
    assert_close(output, expected)
    parameters, grad = list(layer.parameters()), rand(*output.shape)
    result = torch.autograd.grad(output, parameters, grad, allow_unused=True)
    for f, w in zip(result, torch.autograd.grad(expected, parameters, grad), strict=True):
        assert_close(f, w)


def test_learned_similarities_are_saved_and_not_shared() -> None:
    layer, other = multihead(similarity="additive"), multihead(similarity="additive")
    assert "similarity.weight" in layer.state_dict()
    other.load_state_dict(layer.state_dict())
    assert other.similarity.weight is not layer.similarity.weight
    assert torch.equal(other.similarity.weight, layer.similarity.weight)


def test_rotary_is_applied_to_queries_and_keys() -> None:
    rotary = RotaryPosition(base=50.0)
    layer, plain = multihead(4 * 6, 4, position=rotary), multihead(4 * 6, 4)
    plain.load_state_dict(layer.state_dict())
    x = rand(B, TQ, 24)
    q, k, v = (split_heads(linear(x), 4) for linear in (layer.query, layer.key, layer.value))
    assert_close(layer(x), layer.out(merge_heads(regard.attend(rotary(q), rotary(k), v))))
    assert not torch.allclose(layer(x), plain(x))
    moved = layer(x, offset=torch.tensor([4, 0, 9]), is_causal=True)
    assert_close(moved, layer(x, is_causal=True))  # distances are all that counts


def test_offset_places_the_queries_of_a_cross_attention() -> None:
    layer = multihead(4 * 6, 4, position=RotaryPosition())
    x, memory = rand(B, TQ, 24), rand(B, TK, 24)
    at_once = layer(x, memory, is_causal=True)
    assert_close(layer(x[:, 2:], memory, is_causal=True, offset=2), at_once[:, 2:])


def test_options_of_the_operator_may_be_bound() -> None:
    windowed = multihead(attend=partial(regard.attend, window=(1, 0)))
    x = rand(B, TK, WIDTH)
    assert_close(windowed(x), windowed(x, attn_mask=regard.masks.sliding(TK, left=1, right=0)))
    cache = Cache()
    assert_close(torch.cat([windowed(x[:, t : t + 1], cache=cache) for t in range(TK)], 1), windowed(x))


def test_dropout_in_training_only_and_before_the_map() -> None:
    layer, x = multihead(dropout=0.5), rand(B, TQ, WIDTH)
    assert not torch.allclose(layer(x), layer(x))
    _, m = layer(x, return_map=True)
    layer.eval()
    assert_close(layer(x), layer(x))
    assert_close(m.dense(), layer(x, return_map=True)[1].dense())


# ── properties ──────────────────────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(TK)), st.sampled_from(["scaled_dot", "additive"]))
def test_self_attention_is_permutation_equivariant(order: list[int], similarity: str) -> None:
    layer, x = multihead(similarity=similarity), rand(B, TK, WIDTH)
    assert_close(layer(x[:, order]), layer(x)[:, order])


@pytest.mark.parametrize("kind", ["rotary", "learned"])
def test_self_attention_with_positions_is_not(kind: str) -> None:
    layer = multihead(4 * 6, 4, position=RotaryPosition() if kind == "rotary" else None)
    learned = LearnedPosition(24, length=TK).double() if kind == "learned" else nn.Identity()
    x, order = rand(B, TK, 24), torch.arange(TK).flip(0)
    if kind == "learned":
        nn.init.normal_(learned.weight)
    assert not torch.allclose(layer(learned(x[:, order])), layer(learned(x))[:, order], atol=1e-3)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, TK - 1), st.sampled_from([2, 1]))
def test_the_future_leaves_the_past_alone(now: int, kv_heads: int) -> None:
    layer, x = multihead(kv_heads=kv_heads), rand(B, TK, WIDTH)
    changed = x.clone()
    changed[:, now:] = torch.randn_like(changed[:, now:]) * 100
    assert torch.equal(layer(x, is_causal=True)[:, :now], layer(changed, is_causal=True)[:, :now])
    assert not torch.allclose(layer(x)[:, :now], layer(changed)[:, :now])


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, TK), min_size=B, max_size=B), st.booleans(), st.sampled_from(["scaled_dot", "bilinear"]))
def test_a_padded_batch_is_each_sequence_alone(lengths: list[int], causal: bool, similarity: str) -> None:
    layer, x = multihead(similarity=similarity), rand(B, TK, WIDTH)
    for entry, length in enumerate(lengths):
        x[entry, length:] = torch.nan
    mask = regard.masks.over_keys(regard.masks.padding(lengths, TK))
    for padding in ({"lengths": lengths}, {"attn_mask": mask}):
        together = layer(x, is_causal=causal, **padding)
        for entry, length in enumerate(lengths):
            assert_close(together[entry, :length], layer(x[entry : entry + 1, :length], is_causal=causal)[0])


POSITIONS = {"none": None, "interleaved": RotaryPosition(), "halves": RotaryPosition(layout="halves", fraction=0.5)}


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=6),
    st.sampled_from([6, 3, 1]),
    st.sampled_from(list(POSITIONS)),
    st.booleans(),
)
def test_step_by_step_is_at_once(steps: list[int], kv_heads: int, position: str, grad: bool) -> None:
    layer, x = multihead(6 * 8, 6, kv_heads=kv_heads, position=POSITIONS[position]), rand(B, sum(steps), 48)
    cache, outputs, maps, start = Cache(capacity=2), [], [], 0
    with torch.set_grad_enabled(grad):
        for length in steps:
            output, m = layer(x[:, start : start + length], is_causal=True, cache=cache, return_map=True)
            outputs.append(output)
            maps.append(m)
            start += length
        whole, whole_map = layer(x, is_causal=True, return_map=True)
    assert_close(torch.cat(outputs, 1), whole)
    start = 0
    for length, m in zip(steps, maps, strict=True):  # a map of an earlier step is still what it was
        assert_close(m.dense(), whole_map[:, :, start : start + length, : start + length])
        start += length
    if grad:
        grad_out, parameters = rand(*whole.shape), list(layer.parameters())
        result = torch.autograd.grad(torch.cat(outputs, 1), parameters, grad_out)
        for f, w in zip(result, torch.autograd.grad(whole, parameters, grad_out), strict=True):
            assert_close(f, w)


@torch.no_grad()
def test_step_by_step_with_padding_on_the_left() -> None:
    layer, x = multihead(4 * 6, 4, position=RotaryPosition()), rand(B, TK, 24)
    padded = torch.tensor([0, 2, 4])
    valid = torch.arange(TK) >= padded[:, None]  # (B, TK)
    cache, outputs = Cache(), []
    for t in range(TK):
        mask = regard.masks.over_keys(valid[:, : t + 1])
        outputs.append(layer(x[:, t : t + 1], attn_mask=mask, is_causal=True, cache=cache))
    together = torch.cat(outputs, 1)
    for entry, skip in enumerate(padded.tolist()):
        assert_close(together[entry, skip:], layer(x[entry : entry + 1, skip:], is_causal=True)[0])


@torch.no_grad()
def test_beams_may_be_reordered_between_steps() -> None:
    layer, x, index = multihead(kv_heads=1), rand(B, 4, WIDTH), torch.tensor([2, 0, 0])
    cache = Cache()
    layer(x[:, :3], is_causal=True, cache=cache)
    cache.reorder(index)
    last = layer(x[:, 3:], is_causal=True, cache=cache)
    assert_close(last, layer(torch.cat((x[index, :3], x[:, 3:]), 1), is_causal=True)[:, 3:])


@pytest.mark.parametrize("grad", [False, True])
def test_cross_attention_computes_its_keys_once(grad: bool) -> None:
    layer, cache = multihead(key_width=KEY, value_width=VALUE, position=None), Cache()
    query, key, value, lengths = rand(B, TQ, WIDTH), rand(B, TK, KEY), rand(B, TK, VALUE), [7, 2, 5]
    calls = []
    layer.key.register_forward_hook(lambda *_: calls.append(1))
    with torch.set_grad_enabled(grad):
        steps = [layer(query[:, t : t + 1], key, value, lengths=lengths, cache=cache) for t in range(TQ)]
    assert len(calls) == 1 and cache.length == TK
    assert_close(torch.cat(steps, 1), layer(query, key, value, lengths=lengths))


@pytest.mark.parametrize("options", [{}, {"similarity": "additive"}, {"kv_heads": 1}])
def test_observing_changes_nothing(options: dict) -> None:
    layer, x = multihead(**options), rand(B, TK, WIDTH)
    output, m = layer(x, is_causal=True, lengths=[7, 4, 0], return_map=True)
    assert torch.equal(output, layer(x, is_causal=True, lengths=[7, 4, 0]))
    assert m.shape == (B, H, TK, TK)
    v = split_heads(layer.value(x), layer.kv_heads).expand(B, H, TK, D)
    assert_close(layer.out(merge_heads(m.dense() @ v)), output)


def test_compiles_whole() -> None:
    torch.compiler.reset()
    layer, x = multihead(4 * 6, 4, kv_heads=2, position=RotaryPosition()), rand(B, TK, 24)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    assert_close(compiled(x, is_causal=True), layer(x, is_causal=True))
    cache = Cache()
    with torch.no_grad():
        steps = [compiled(x[:, t : t + 1], is_causal=True, cache=cache) for t in range(3)]
    assert_close(torch.cat(steps, 1), layer(x, is_causal=True)[:, :3])


def test_autocast_runs_low_and_near() -> None:
    layer, x = MultiHeadAttention(WIDTH, H), torch.randn(B, TQ, WIDTH)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = layer(x, is_causal=True)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.float(), layer(x, is_causal=True), rtol=0.05, atol=0.05)


# ── errors ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: multihead(30, 4), "multihead: width (30) must be divisible by heads (4); try 28 or 32."),
        (lambda: multihead(3, 4), "multihead: width (3) must be divisible by heads (4); try 4."),
        (
            lambda: multihead(24, 6, kv_heads=4),
            "multihead: heads (6) must be divisible by kv_heads (4); try one of 1, 2, 3, 6.",
        ),
        (lambda: multihead(24, 0), "multihead: heads (0) must be at least 1."),
        (lambda: multihead(24, 4, kv_heads=0), "multihead: kv_heads (0) must be at least 1."),
        (lambda: multihead(dropout=1.0), "multihead: dropout (1.0) must lie in [0, 1)"),
        (
            lambda: multihead(similarity="euclid"),
            "multihead: similarity ('euclid') must be one of dot, scaled_dot, cosine, additive, bilinear",
        ),
        (lambda: multihead()(rand(B, TQ, 9)), "multihead: query (3×5×9) must be (batch, length, 22)."),
        (
            lambda: multihead(key_width=KEY)(rand(B, TQ, WIDTH), rand(B, TK, 9)),
            "multihead: key (3×7×9) must be (batch, length, 13).",
        ),
        (
            lambda: multihead()(rand(B, TQ, WIDTH), rand(B, TK, WIDTH), rand(B, TK, 9)),
            "multihead: value (3×7×9) must be (batch, length, 22).",
        ),
        (
            lambda: multihead()(rand(B, TQ, WIDTH), value=rand(B, TK, WIDTH)),
            "multihead: value (3×7×22) must come with a key",
        ),
        (
            lambda: multihead(key_width=KEY)(rand(B, TQ, WIDTH)),
            "multihead: key must be given if key_width (13) and value_width (22) are not the width (22); got None.",
        ),
        (
            lambda: multihead()(rand(B, TQ, WIDTH), attn_mask=torch.ones(B, TQ, TQ) > 0),
            "multihead: attn_mask (3×5×5) must have 2 dimensions, (Tq, Tk), or 4 with heads; got 3. "
            "A mask per batch entry is mask[:, None], the (B·H, Tq, Tk) mask of nn.MultiheadAttention is "
            "mask.unflatten(0, (-1, 2)).",
        ),
        (
            lambda: MultiHeadAttention.from_torch(nn.MultiheadAttention(6, 2, add_bias_kv=True)),
            "multihead: add_bias_kv (True) must be False",
        ),
        (
            lambda: MultiHeadAttention.from_torch(nn.MultiheadAttention(6, 2, add_zero_attn=True)),
            "multihead: add_zero_attn (True) must be False",
        ),
        (
            lambda: MultiHeadAttention.from_torch(nn.Linear(2, 2)),
            "multihead: module must be an nn.MultiheadAttention; got Linear.",
        ),
    ],
)
def test_error_messages(make, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


def test_self_attention_called_with_three_inputs_and_a_cache_raises() -> None:
    layer, x, cache = multihead(), rand(B, TQ, WIDTH), Cache()
    layer(x, x, x, cache=cache)
    with pytest.raises(ValueError, match="Self-attention takes only the"):
        layer(x[:, :1], x[:, :1], x[:, :1], cache=cache)
