"""Blocks: parity with nn.TransformerEncoderLayer and nn.TransformerDecoderLayer, and decoding step by step."""

import re
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import regard
from regard.layers import (
    Cache,
    DecoderBlock,
    DecoderCache,
    Dropout,
    EncoderBlock,
    FeedForward,
    GatedFeedForward,
    MultiHeadAttention,
    RotaryPosition,
)

B, H, T, TM, D, HIDDEN = 3, 2, 5, 7, 11, 13
WIDTH = H * D
assert_close = partial(torch.testing.assert_close, rtol=1e-9, atol=1e-10)


def rand(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def theirs(kind: type, **options) -> nn.Module:
    layer = kind(WIDTH, H, HIDDEN, dtype=torch.float64, **{"dropout": 0.0, "batch_first": True} | options)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.4)  # gains of one and biases of zero would hide a swap
    return layer


def gradients(module: nn.Module) -> dict[str, Tensor]:
    """Gradients by the names of PyTorch's layers, whichever of the two it is."""
    if not isinstance(module, EncoderBlock | DecoderBlock):
        return {name: parameter.grad for name, parameter in module.named_parameters()}
    result = {}
    attentions = {"self_attn": module.attention, "multihead_attn": getattr(module, "cross_attention", None)}
    for name, attention in attentions.items():
        if attention is None:
            continue
        parts = (attention.query, attention.key, attention.value)
        result[f"{name}.in_proj_weight"] = torch.cat([part.weight.grad for part in parts])
        result[f"{name}.out_proj.weight"] = attention.out.weight.grad
        if attention.out.bias is not None:
            result[f"{name}.in_proj_bias"] = torch.cat([part.bias.grad for part in parts])
            result[f"{name}.out_proj.bias"] = attention.out.bias.grad
    around = [module.around_attention, getattr(module, "around_cross_attention", None), module.around_feedforward]
    norms = {f"norm{n}": a.norm for n, a in enumerate((a for a in around if a is not None), 1)}
    for name, part in {"linear1": module.feedforward.up, "linear2": module.feedforward.down, **norms}.items():
        result |= {f"{name}.{n}": p.grad for n, p in part.named_parameters()}
    return result


def assert_same(ours: nn.Module, layer: nn.Module, our_run, their_run, *inputs: Tensor) -> None:
    """Outputs, input gradients and parameter gradients agree."""
    grad, results = rand(*inputs[0].shape), []
    for run in (our_run, their_run):
        leaves = [x.clone().requires_grad_() for x in inputs]
        output = run(*leaves)
        output.backward(grad)
        results.append((output, [x.grad for x in leaves]))
    assert_close(results[0][0], results[1][0])
    for result, expected in zip(results[0][1], results[1][1], strict=True):
        assert_close(result, expected)
    result, expected = gradients(ours), gradients(layer)
    assert result.keys() == expected.keys()
    for name in expected:
        assert_close(result[name], expected[name], msg=lambda text, name=name: f"{name}: {text}")


def ignored(length: int) -> Tensor:
    """Padding in PyTorch's polarity."""
    return ~regard.masks.padding([length, 2, length - 1], length)


OPTIONS = [
    {"norm_first": norm_first, "activation": activation, "bias": bias}
    for norm_first in (False, True)
    for activation in ("relu", F.gelu)
    for bias in (True, False)
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("masked", ["none", "padding", "causal", "float"])
def test_encoder_matches_torch(options: dict, masked: str) -> None:
    layer = theirs(nn.TransformerEncoderLayer, **options)
    ours = EncoderBlock.from_torch(layer)
    bias = rand(T, T)
    their_how, our_how = {
        "none": ({}, {}),
        "padding": ({"src_key_padding_mask": ignored(T)}, {"lengths": [T, 2, T - 1]}),
        "causal": ({"src_mask": torch.ones(T, T, dtype=torch.bool).triu(1)}, {"is_causal": True}),
        "float": ({"src_mask": bias}, {"attn_mask": bias}),
    }[masked]
    assert_same(ours, layer, lambda x: ours(x, **our_how), lambda x: layer(x, **their_how), rand(B, T, WIDTH))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("masked", ["none", "padding", "causal", "everything"])
def test_decoder_matches_torch(options: dict, masked: str) -> None:
    layer = theirs(nn.TransformerDecoderLayer, **options)
    ours = DecoderBlock.from_torch(layer)
    later, some = torch.ones(T, T, dtype=torch.bool).triu(1), torch.rand(T, TM) > 0.7
    some[:, 0] = False
    their_how, our_how = {
        "none": ({}, {"is_causal": False}),
        "padding": (
            {"tgt_key_padding_mask": ignored(T), "memory_key_padding_mask": ignored(TM)},
            {"is_causal": False, "lengths": [T, 2, T - 1], "memory_lengths": [TM, 2, TM - 1]},
        ),
        "causal": ({"tgt_mask": later}, {}),
        "everything": (
            {"tgt_mask": later, "memory_mask": some, "memory_key_padding_mask": ignored(TM)},
            {"memory_mask": regard.masks.from_ignore(some), "memory_lengths": [TM, 2, TM - 1]},
        ),
    }[masked]
    assert_same(
        ours,
        layer,
        lambda x, memory: ours(x, memory, **our_how),
        lambda x, memory: layer(x, memory, **their_how),
        rand(B, T, WIDTH),
        rand(B, TM, WIDTH),
    )


def test_batch_second_is_a_transpose_away() -> None:
    layer, x, memory = theirs(nn.TransformerEncoderLayer, batch_first=False), rand(B, T, WIDTH), rand(B, TM, WIDTH)
    assert_close(EncoderBlock.from_torch(layer)(x), layer(x.transpose(0, 1)).transpose(0, 1))
    layer = theirs(nn.TransformerDecoderLayer, batch_first=False)
    expected = layer(x.transpose(0, 1), memory.transpose(0, 1)).transpose(0, 1)
    assert_close(DecoderBlock.from_torch(layer)(x, memory, is_causal=False), expected)


def test_the_fast_path_of_torch_agrees() -> None:
    layer = theirs(nn.TransformerEncoderLayer).eval()
    x, ours = rand(B, T, WIDTH), EncoderBlock.from_torch(layer)
    with torch.inference_mode():
        assert_close(ours(x), layer(x))


@pytest.mark.parametrize("kind", [nn.TransformerEncoderLayer, nn.TransformerDecoderLayer])
def test_dropout_is_applied_where_torch_applies_it(kind: type) -> None:
    layer = theirs(kind, dropout=0.25, layer_norm_eps=1e-3).eval()
    ours = (EncoderBlock if kind is nn.TransformerEncoderLayer else DecoderBlock).from_torch(layer)
    assert not ours.training
    counted = [m.p for m in ours.modules() if isinstance(m, Dropout)]
    assert counted == [m.p for m in layer.modules() if isinstance(m, nn.Dropout)]
    assert [m.dropout for m in ours.modules() if isinstance(m, MultiHeadAttention)] == [0.25] * (len(counted) - 2)
    assert {m.eps for m in ours.modules() if isinstance(m, nn.LayerNorm)} == {1e-3}


def test_dropout_leaves_the_way_around_alone() -> None:
    block = EncoderBlock(MultiHeadAttention(6, 2), FeedForward(6, 5), dropout=0.5, norm=nn.Identity)
    for parameter in block.parameters():
        nn.init.zeros_(parameter)
    nn.init.ones_(block.attention.out.bias)  # attention gives ones, feed-forward zeros
    assert set(block(torch.full((B, 50, 6), 8.0)).flatten().tolist()) == {8.0, 10.0}
    assert set(block.eval()(torch.full((B, 50, 6), 8.0)).flatten().tolist()) == {9.0}


def encoder(norm_first: bool, **options) -> EncoderBlock:
    attention, feedforward = MultiHeadAttention(24, 4, **options), GatedFeedForward(24, HIDDEN)
    return EncoderBlock(attention, feedforward, norm_first=norm_first, norm=nn.RMSNorm).double()


def decoder(norm_first: bool = True, **options) -> DecoderBlock:
    attention = MultiHeadAttention(24, 4, **options)
    cross = MultiHeadAttention(24, 4, key_width=17, value_width=17, **options)
    return DecoderBlock(attention, cross, FeedForward(24, HIDDEN), norm_first=norm_first).double()


@pytest.mark.parametrize("norm_first", [True, False])
def test_any_part_may_be_passed_in(norm_first: bool) -> None:
    block, x = encoder(norm_first, similarity="additive"), rand(B, T, 24)
    first, second = block.around_attention.norm, block.around_feedforward.norm
    assert isinstance(first, nn.RMSNorm) and first is not second
    if norm_first:
        middle = x + block.attention(first(x))
        expected = middle + block.feedforward(second(middle))
    else:
        middle = first(x + block.attention(x))
        expected = second(middle + block.feedforward(middle))
    assert_close(block(x), expected)


@pytest.mark.parametrize("options", [{}, {"position": RotaryPosition()}, {"kv_heads": 2, "position": RotaryPosition()}])
@pytest.mark.parametrize("grad", [False, True])
def test_decoding_step_by_step_is_at_once(options: dict, grad: bool) -> None:
    block, x, memory = decoder(**options), rand(B, T, 24), rand(B, TM, 17)
    how, cache, outputs, maps, read = {"memory_lengths": [7, 3, 5]}, DecoderCache(), [], [], []
    block.cross_attention.key.register_forward_hook(lambda *_: read.append(1))
    with torch.set_grad_enabled(grad):
        for t in range(T):
            assert cache.length == t
            output, seen = block(x[:, t : t + 1], memory, cache=cache, return_maps=True, **how)
            outputs.append(output)
            maps.append(seen)
        assert len(read) == 1  # the memory's keys were computed at the first step alone
        whole, whole_maps = block(x, memory, return_maps=True, **how)
    assert_close(torch.cat(outputs, 1), whole)
    for t, seen in enumerate(maps):
        assert_close(seen.attention.dense(), whole_maps.attention[:, :, t : t + 1, : t + 1])
        assert_close(seen.cross_attention.dense(), whole_maps.cross_attention[:, :, t : t + 1])


@torch.no_grad()
def test_beams_may_be_reordered() -> None:
    block, x, memory, index = decoder(), rand(B, 4, 24), rand(B, TM, 17), torch.tensor([2, 0, 0])
    cache = DecoderCache()
    block(x[:, :3], memory, cache=cache)
    cache.reorder(index)
    last = block(x[:, 3:], memory[index], cache=cache)
    assert_close(last, block(torch.cat((x[index, :3], x[:, 3:]), 1), memory[index])[:, 3:])


@torch.no_grad()
def test_a_language_model_is_a_causal_encoder_with_a_cache() -> None:
    block, x, cache = encoder(True, position=RotaryPosition()), rand(B, T, 24), Cache()
    steps = [block(x[:, t : t + 1], is_causal=True, cache=cache) for t in range(T)]
    assert_close(torch.cat(steps, 1), block(x, is_causal=True))


def test_the_future_leaves_the_past_alone_unless_it_may() -> None:
    block, x, memory = decoder(), rand(B, T, 24), rand(B, TM, 17)
    changed = torch.cat((x[:, :3], rand(B, T - 3, 24)), 1)
    assert torch.equal(block(x, memory)[:, :3], block(changed, memory)[:, :3])
    assert not torch.allclose(block(x, memory, is_causal=False)[:, :3], block(changed, memory, is_causal=False)[:, :3])


def test_a_padded_batch_is_each_sequence_alone() -> None:
    block, x, memory = decoder(False), rand(B, T, 24), rand(B, TM, 17)
    lengths, memory_lengths = [5, 1, 3], [2, 7, 4]
    together = block(x, memory, is_causal=False, lengths=lengths, memory_lengths=memory_lengths)
    for entry, (own, read) in enumerate(zip(lengths, memory_lengths, strict=True)):
        alone = block(x[entry : entry + 1, :own], memory[entry : entry + 1, :read], is_causal=False)
        assert_close(together[entry, :own], alone[0])


def test_observing_changes_nothing() -> None:
    block, x, memory = decoder(), rand(B, T, 24), rand(B, TM, 17)
    output, maps = block(x, memory, return_maps=True)
    assert torch.equal(output, block(x, memory))
    assert (maps.attention.shape, maps.cross_attention.shape) == ((B, 4, T, T), (B, 4, T, TM))
    assert torch.equal(maps.attention.dense(), maps.attention.dense().tril())
    block = encoder(True)
    output, seen = block(x, lengths=[5, 4, 0], return_map=True)
    assert torch.equal(output, block(x, lengths=[5, 4, 0])) and seen.shape == (B, 4, T, T)


def test_error_messages() -> None:
    with pytest.raises(
        ValueError,
        match=re.escape(
            "decoder block: the width of cross_attention (30) must be that of attention (24). A memory of another "
            "width is MultiHeadAttention(24, …, key_width=…, value_width=…)."
        ),
    ):
        DecoderBlock(MultiHeadAttention(24, 4), MultiHeadAttention(30, 5), FeedForward(24, 7))
    with pytest.raises(ValueError, match=re.escape("block: layer must be an nn.TransformerEncoderLayer; got Linear.")):
        EncoderBlock.from_torch(nn.Linear(2, 2))
    with pytest.raises(ValueError, match=re.escape("block: layer must be an nn.TransformerDecoderLayer; got Trans")):
        DecoderBlock.from_torch(nn.TransformerEncoderLayer(4, 2))


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("position", [None, RotaryPosition()])
def test_the_first_token_alone(norm_first: bool, position: RotaryPosition | None) -> None:
    """`first` is what `forward` has there, of a batch and of packed sequences, and so are the gradients."""
    width = 2 * 12
    attention = MultiHeadAttention(width, 2, position=position)
    block = EncoderBlock(attention, FeedForward(width, HIDDEN), norm_first=norm_first).double()
    for p in block.parameters():
        nn.init.normal_(p, std=0.4)
    x, lengths = rand(9, width).requires_grad_(), torch.tensor([4, 1, 4])
    starts = torch.tensor([0, 4, 5])
    for first, whole in (
        (block.first(x, packed=lengths), block(x, packed=lengths)[starts]),
        (block.first(x.view(3, 3, width)), block(x.view(3, 3, width))[:, 0]),
    ):
        assert_close(first, whole)
        weights = rand(*first.shape)
        slopes = [torch.autograd.grad((y * weights).sum(), [x, *block.parameters()]) for y in (first, whole)]
        for a, b in zip(*slopes, strict=True):
            assert_close(a, b)
