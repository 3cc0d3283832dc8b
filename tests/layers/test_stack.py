"""Stacks of blocks: packed and padded batches, the first token alone, and fused sums and norms."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from regard.layers import DecoderBlock, DecoderCache, EncoderBlock, FeedForward, MultiHeadAttention
from regard.layers import blocks as block_module
from regard.layers.residual import add_and_norm
from regard.layers.stack import BatchLayout, run_decoder, run_encoder, step_decoder

B, T, TM, W, H, HIDDEN = 3, 5, 7, 24, 2, 29
LENGTHS, MEMORY_LENGTHS = torch.tensor([5, 1, 3]), torch.tensor([2, 7, 4])


def rand(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def encoder(norm_first: bool, layers: int = 3) -> nn.ModuleList:
    return nn.ModuleList(
        EncoderBlock(MultiHeadAttention(W, H), FeedForward(W, HIDDEN), norm_first=norm_first) for _ in range(layers)
    ).double()


def decoder() -> nn.ModuleList:
    return nn.ModuleList(
        DecoderBlock(MultiHeadAttention(W, H), MultiHeadAttention(W, H), FeedForward(W, HIDDEN)) for _ in range(2)
    ).double()


def test_batches_with_padding_are_packed() -> None:
    x = rand(B, T, W)
    layout = BatchLayout.of(x, LENGTHS)
    packed = layout.pack(x)
    assert packed.shape == (9, W) and layout.positions.tolist() == [0, 1, 2, 3, 4, 0, 0, 1, 2]
    back = layout.unpack(packed)
    for row, length in enumerate(LENGTHS.tolist()):
        assert torch.equal(back[row, :length], x[row, :length]) and not back[row, length:].any()
    for lengths in (None, torch.tensor([T] * B)):
        layout = BatchLayout.of(x, lengths)
        assert layout.packed is None and layout.positions is None and layout.pack(x) is x and layout.unpack(x) is x


def test_layouts_of_batches_that_attend_to_each_other_agree() -> None:
    x, memory, full = rand(B, T, W), rand(B, TM, W), torch.tensor([T] * B)
    assert all(one.packed is not None for one in BatchLayout.all_of((x, full), (memory, MEMORY_LENGTHS)))
    assert all(one.packed is None for one in BatchLayout.all_of((x, None), (memory, MEMORY_LENGTHS)))


@pytest.mark.parametrize("norm_first", [False, True])
def test_packed_and_padded_batches_agree(norm_first: bool) -> None:
    """So does the first token alone; maps are (B, H, T, T) either way, and do not change the output."""
    stack, x = encoder(norm_first), rand(B, T, W)
    padded, packed = BatchLayout(LENGTHS, T, None), BatchLayout.of(x, LENGTHS)
    expected, maps = run_encoder(stack, x, padded, return_maps=True)
    result, packed_maps = run_encoder(stack, packed.pack(x), packed, return_maps=True)
    torch.testing.assert_close(result, packed.pack(expected))
    first, first_maps = run_encoder(stack, packed.pack(x), packed, first_token=True, return_maps=True)
    torch.testing.assert_close(first, expected[:, 0])
    assert torch.equal(first, run_encoder(stack, packed.pack(x), packed, first_token=True)[0])
    for one, other, third in zip(maps, packed_maps, first_maps, strict=True):
        assert one.shape == other.shape == third.shape == (B, H, T, T)
        torch.testing.assert_close(other.dense(), third.dense())
        for row, length in enumerate(LENGTHS.tolist()):
            torch.testing.assert_close(other.dense()[row, :, :length], one.dense()[row, :, :length])


def test_a_single_block_computes_the_first_token_alone() -> None:
    stack, x = encoder(True, layers=1), rand(B, T, W)
    layout = BatchLayout.of(x, None)
    result, maps = run_encoder(stack, x, layout, first_token=True)
    torch.testing.assert_close(result, run_encoder(stack, x, layout)[0][:, 0])
    assert maps == []


@torch.no_grad()
def test_a_decoder_packed_padded_and_step_by_step() -> None:
    stack, x, memory = decoder(), rand(B, T, W), rand(B, TM, W)
    layouts = BatchLayout.all_of((x, LENGTHS), (memory, MEMORY_LENGTHS))
    open_layouts = BatchLayout.all_of((x, None), (memory, MEMORY_LENGTHS))
    expected, maps = run_decoder(stack, x, memory, *open_layouts, return_maps=True)
    packed = [layout.pack(one) for layout, one in zip(layouts, (x, memory), strict=True)]
    result, packed_maps = run_decoder(stack, *packed, *layouts, return_maps=True)
    torch.testing.assert_close(result, layouts[0].pack(expected))
    assert [m.shape for m in (*maps, *packed_maps)] == [(B, H, T, TM)] * 4
    caches = [DecoderCache() for _ in stack]
    steps = [step_decoder(stack, x[:, t : t + 1], memory, MEMORY_LENGTHS, caches) for t in range(T)]
    torch.testing.assert_close(torch.cat(steps, 1), expected)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_blocks_one_after_the_other(dropout: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a block, the sum and the norm that follows are one step; a hook on a block has it called."""
    width = 2 * 12
    blocks = [
        EncoderBlock(MultiHeadAttention(width, 2), FeedForward(width, HIDDEN), norm_first=True, dropout=dropout)
        for _ in range(3)
    ]
    x, joints = torch.randn(3, 5, width, requires_grad=True), []
    layout = BatchLayout.of(x, None)
    monkeypatch.setattr(block_module, "add_and_norm", lambda *inputs: (joints.append(1), add_and_norm(*inputs))[1])
    torch.manual_seed(1)
    result, maps = run_encoder(blocks, x, layout, return_maps=True)
    assert len(joints) == 3 and [m.shape for m in maps] == [(3, 2, 5, 5)] * 3
    if not dropout:
        expected = x
        for block in blocks:
            expected = expected + block.attention(block.around_attention.norm(expected))
            expected = expected + block.feedforward(block.around_feedforward.norm(expected))
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
        slopes = [torch.autograd.grad(y.square().sum(), [x, *blocks[0].parameters()]) for y in (result, expected)]
        for a, b in zip(*slopes, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
    seen: list[int] = []
    blocks[1].register_forward_hook(lambda *_: seen.append(1))
    run_encoder(blocks, x, layout)
    assert seen == [1]
    blocks[2].around_attention.register_forward_hook(lambda *_: seen.append(2))
    blocks[2](x)
    assert seen == [1, 2]
