"""Multi-head attention: parity with nn.MultiheadAttention, by copied weights."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn

import regard
from regard.layers import MultiHeadAttention

B, H, TQ, TK, D, KEY, VALUE = 3, 2, 5, 7, 11, 13, 17
WIDTH = H * D
assert_close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-11)


def rand(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def their_masks(kind: str, queries: int, keys: int) -> dict[str, Tensor]:
    """Masks in the polarity of nn.MultiheadAttention; no row is masked whole, for that is NaN there."""
    ignore = torch.zeros(B, keys, dtype=torch.bool)
    ignore[1, 4:] = ignore[2, 1:] = True
    some = torch.rand(queries, keys) > 0.6
    some[:, 0] = False
    heads = torch.rand(B * H, queries, keys) > 0.6
    heads[..., 0] = False
    return {
        "none": {},
        "padding": {"key_padding_mask": ignore},
        "boolean": {"attn_mask": some},
        "float": {"attn_mask": rand(queries, keys)},
        "per head": {"attn_mask": heads},
        "float per head": {"attn_mask": rand(B * H, queries, keys)},
        "causal": {"attn_mask": torch.ones(queries, keys, dtype=torch.bool).triu(1)},
        "padding and boolean": {"attn_mask": some, "key_padding_mask": ignore},
        "padding and float": {"attn_mask": rand(queries, keys), "key_padding_mask": ignore.double() * -3},
    }[kind]


KINDS = (
    "none",
    "padding",
    "boolean",
    "float",
    "per head",
    "float per head",
    "causal",
    "padding and boolean",
    "padding and float",
)


def our_mask(attn_mask: Tensor | None = None, key_padding_mask: Tensor | None = None) -> Tensor | None:
    if attn_mask is not None:
        attn_mask = regard.masks.from_ignore(attn_mask)
        attn_mask = attn_mask.unflatten(0, (-1, H)) if attn_mask.ndim == 3 else attn_mask
    if key_padding_mask is not None:
        key_padding_mask = regard.masks.over_keys(regard.masks.from_ignore(key_padding_mask))
    return regard.masks.merge(attn_mask, key_padding_mask)


def their_gradients(module: nn.MultiheadAttention) -> list[Tensor]:
    packed = module.in_proj_weight
    weights = (
        packed.grad.chunk(3)
        if packed is not None
        else [w.grad for w in (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)]
    )
    biases = [] if module.in_proj_bias is None else [*module.in_proj_bias.grad.chunk(3), module.out_proj.bias.grad]
    return [*weights, module.out_proj.weight.grad, *biases]


def our_gradients(layer: MultiHeadAttention) -> list[Tensor]:
    layers = (layer.query, layer.key, layer.value, layer.out)
    return [x.weight.grad for x in layers] + [x.bias.grad for x in layers if x.bias is not None]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("widths", [(WIDTH, WIDTH), (KEY, VALUE), (WIDTH, VALUE)])
@pytest.mark.parametrize("bias", [True, False])
def test_matches_torch_in_output_and_gradients(kind: str, widths: tuple[int, int], bias: bool) -> None:
    theirs = nn.MultiheadAttention(
        WIDTH, H, kdim=widths[0], vdim=widths[1], bias=bias, batch_first=True, dtype=torch.float64
    )
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.4)  # biases start at zero, which would hide them
    ours = MultiHeadAttention.from_torch(theirs)
    inputs = rand(B, TQ, WIDTH), rand(B, TK, widths[0]), rand(B, TK, widths[1])
    masks, grad = their_masks(kind, TQ, TK), rand(B, TQ, WIDTH)
    results = []
    for run in (
        lambda q, k, v: theirs(q, k, v, **masks, average_attn_weights=False),
        lambda q, k, v: ours(q, k, v, attn_mask=our_mask(**masks), return_map=True),
    ):
        leaves = [x.clone().requires_grad_() for x in inputs]
        output, weights = run(*leaves)
        output.backward(grad)
        results.append((output, weights, [x.grad for x in leaves]))
    (output, weights, gradients), (our_output, our_map, our_input_gradients) = results
    assert_close(our_output, output)
    assert_close(our_map.dense(), weights)
    for result, expected in zip(
        our_input_gradients + our_gradients(ours), gradients + their_gradients(theirs), strict=True
    ):
        assert_close(result, expected)


def test_matches_torch_for_itself_causal_and_padded() -> None:
    theirs = nn.MultiheadAttention(WIDTH, H, batch_first=True, dtype=torch.float64)
    ours, x, lengths = MultiHeadAttention.from_torch(theirs), rand(B, TQ, WIDTH), torch.tensor([5, 1, 3])
    later = torch.ones(TQ, TQ, dtype=torch.bool).triu(1)
    expected, _ = theirs(x, x, x, attn_mask=later, key_padding_mask=~regard.masks.padding(lengths, TQ))
    assert_close(ours(x, is_causal=True, lengths=lengths), expected)
    assert_close(ours(x, x, x, is_causal=True, lengths=lengths), expected)


def test_matches_torch_without_a_batch_and_with_the_batch_second() -> None:
    theirs = nn.MultiheadAttention(WIDTH, H, dtype=torch.float64)
    ours, q, k = MultiHeadAttention.from_torch(theirs), rand(B, TQ, WIDTH), rand(B, TK, WIDTH)
    assert_close(ours(q, k), theirs(*(x.transpose(0, 1) for x in (q, k, k)))[0].transpose(0, 1))
    mask = torch.rand(H, TQ, TK) > 0.5
    mask[..., 0] = False
    assert_close(ours(q[0], k[0], attn_mask=~mask), theirs(q[0], k[0], k[0], attn_mask=mask)[0])


def test_from_torch_takes_over_mode_dtype_dropout_and_frozen_weights() -> None:
    theirs = nn.MultiheadAttention(WIDTH, H, dropout=0.25, dtype=torch.bfloat16).eval()
    theirs.in_proj_weight.requires_grad_(False)
    ours = MultiHeadAttention.from_torch(theirs)
    assert ours.dropout == 0.25 and not ours.training and ours.out.weight.dtype == torch.bfloat16
    assert not ours.key.weight.requires_grad and ours.key.bias.requires_grad and ours.out.weight.requires_grad
    with torch.no_grad():
        ours.query.weight.zero_()
    assert theirs.in_proj_weight.abs().sum() > 0  # copied, not shared
