"""Transformer: parity with nn.Transformer by copied weights, and initialization."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from regard.layers import DecoderBlock, EncoderBlock, SinusoidalPosition, stack
from regard.models import Transformer
from tests.models.translators import ATTENTIVE, B, T, build, sentences


def theirs(norm_first: bool) -> nn.Transformer:
    config = ATTENTIVE
    module = nn.Transformer(
        config.width,
        config.heads,
        config.encoder_layers,
        config.decoder_layers,
        config.hidden,
        dropout=0.0,
        batch_first=True,
        norm_first=norm_first,
        dtype=torch.float64,
    )
    if not norm_first:  # theirs normalises once more at the end in any case; the paper does not
        module.encoder.norm, module.decoder.norm = nn.Identity(), nn.Identity()
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)
    return module


def taken_over(module: nn.Transformer, norm_first: bool) -> Transformer:
    ours = Transformer(replace(ATTENTIVE, norm_first=norm_first, dropout=0.0)).double()
    ours.encoder = nn.ModuleList(EncoderBlock.from_torch(layer) for layer in module.encoder.layers)
    ours.decoder = nn.ModuleList(DecoderBlock.from_torch(layer) for layer in module.decoder.layers)
    ours.encoder_norm.load_state_dict(module.encoder.norm.state_dict())
    ours.decoder_norm.load_state_dict(module.decoder.norm.state_dict())
    return ours


@pytest.mark.parametrize("norm_first", [True, False])
def test_parity_with_torch(norm_first: bool) -> None:
    module = theirs(norm_first)
    ours, (source, lengths, target) = taken_over(module, norm_first), sentences()
    ignored = torch.arange(source.shape[1]) >= lengths[:, None]
    index = SinusoidalPosition(ATTENTIVE.width)

    def embed(table: nn.Embedding, ids: Tensor) -> Tensor:
        return index(table(ids) * math.sqrt(ATTENTIVE.width))

    expected = module(
        embed(ours.source, source),
        embed(ours.target, target),
        tgt_mask=nn.Transformer.generate_square_subsequent_mask(T, dtype=torch.float64),
        src_key_padding_mask=ignored,
        memory_key_padding_mask=ignored,
    )
    result = ours.decode(target, ours.encode(source, lengths))
    torch.testing.assert_close(result, expected, rtol=1e-9, atol=1e-10)
    grad = torch.randn_like(expected)
    (by_theirs,) = torch.autograd.grad(expected, ours.source.weight, grad)
    (by_ours,) = torch.autograd.grad(result, ours.source.weight, grad)
    torch.testing.assert_close(by_ours, by_theirs, rtol=1e-9, atol=1e-10)


def test_initialization_follows_the_paper() -> None:
    model = Transformer(replace(ATTENTIVE, width=48, hidden=96))
    for block in (*model.encoder, *model.decoder):
        for layer in (block.attention.query, block.attention.out, block.feedforward.up, block.feedforward.down):
            bound = math.sqrt(6 / sum(layer.weight.shape))
            assert 0.9 * bound < layer.weight.abs().max() <= bound and not layer.bias.any()
    assert abs(model.target.weight.std() * math.sqrt(48) - 1) < 0.1


def test_learned_positions_end() -> None:
    model, (source, lengths, _) = build("learned"), sentences()
    assert model.longest == 9 and build("transformer").longest is None
    with pytest.raises(ValueError, match="learned position: length \\(9\\) must reach every entry; got 10"):
        model.decode(torch.full((B, 10), 5), model.encode(source, lengths))


def test_maps_are_those_of_the_blocks() -> None:
    model, (source, lengths, target) = build("transformer"), sentences()
    memory = model.encode(source, lengths)
    _, maps = model.decode(target, memory, return_maps=True)
    x = model._embed(model.target, model.target_position, target)
    for block, m in zip(model.decoder, maps, strict=True):
        x, shown = block(x, memory.states, memory_lengths=lengths, return_maps=True)
        torch.testing.assert_close(m.dense(), shown.cross_attention.dense())


PACKED = ["transformer", "norm after", "learned", "rotary", "additive transformer", "bilinear transformer"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", PACKED)
def test_padding_is_not_computed(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    model, (source, lengths, target) = build(name, dtype), sentences()
    target_lengths = torch.tensor([2, 5, 0])
    rows = []
    for block in (*model.encoder, *model.decoder):
        block.feedforward.register_forward_pre_hook(lambda _, inputs: rows.append(tuple(inputs[0].shape[:-1])))
    memory = model.encode(source, lengths)
    result = model.decode(target, memory, lengths=target_lengths)
    assert rows == [(int(lengths.sum()),)] * 2 + [(7,)] * 2
    grad = torch.randn_like(result)
    gradients = torch.autograd.grad(result, list(model.parameters()), grad, allow_unused=True)
    monkeypatch.setattr(stack, "padded", lambda *_: False)
    padded = model.encode(source, lengths)
    counts = torch.arange(T) < target_lengths[:, None]
    expected = torch.where(counts[..., None], model.decode(target, padded, lengths=target_lengths), 0)
    close = {"rtol": 1e-9, "atol": 1e-10} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(result, expected, **close)
    assert not memory.states[1, 2:].any()
    for got, true in zip(
        gradients, torch.autograd.grad(expected, list(model.parameters()), grad, allow_unused=True), strict=True
    ):
        if true is None:
            assert got is None
        else:
            torch.testing.assert_close(got, true, rtol=close["rtol"], atol=10 * close["atol"])
