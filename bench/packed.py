"""Attention over sentences of different lengths: packed against padded and nested, forward and with gradients.

64 sentences of 5 to 60 tokens (mean 22), 12 heads of width 32. A packed batch has less than half as many rows as a
padded one. `attend` takes the lengths; SDPA takes a mask. Every contender starts with projections in the layout of a
layer, padded or packed, and returns contexts and gradients in the same layout. Padding rows are not compared.

Two more peers take packed rows: SDPA called once per sentence, and SDPA of a jagged `torch.nested` tensor. On a CPU the
latter needs contiguous inputs, which are copied for it, and has no causal mask.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

import regard
from bench._skips import skip
from bench.harness import Case, Options, Versus
from bench.parity import Parity
from regard.data import pack, unpack

SENTENCES, HEADS, WIDTH = 64, 12, 32
SHORTEST, LONGEST, MEAN = 3, 60, 20.0
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def cases(options: Options) -> Iterator[Case]:
    lengths = sentence_lengths(8 if options.quick else SENTENCES)
    for is_causal in (False, True):
        for backward in (False, True):
            yield packed_case(lengths, is_causal, backward, None if options.quick else ">= 1.0")


def sentence_lengths(count: int) -> Tensor:
    """Draw sentence lengths from a gamma distribution of shape 2, clipped at both ends."""
    generator = torch.Generator().manual_seed(1)
    two = torch.empty(2, count).exponential_(generator=generator).sum(0)
    lengths = (SHORTEST + two * (MEAN - SHORTEST) / 2).clamp(max=LONGEST).long()
    lengths[0] = LONGEST
    return lengths


def packed_case(lengths: Tensor, is_causal: bool, backward: bool, bar: str | None = None) -> Case:
    generator = torch.Generator().manual_seed(2)
    rows = torch.randn(int(lengths.sum()), 3, HEADS, WIDTH, generator=generator)  # q, k and v of each token
    upstream = torch.randn(len(rows), HEADS, WIDTH, generator=generator)
    padded, padded_upstream = unpack(rows, lengths), unpack(upstream, lengths)
    mask = _mask(lengths, is_causal)

    def packed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return regard.attend_packed(q, k, v, lengths, is_causal=is_causal)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return regard.attend(q, k, v, lengths=lengths, is_causal=is_causal)

    def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    contenders = {
        "packed": _step(packed, rows, upstream if backward else None),
        "padded attend": _step(_heads_first(attend), padded, padded_upstream if backward else None),
        "padded SDPA": _step(_heads_first(sdpa), padded, padded_upstream if backward else None),
        "SDPA per sentence": _step(sdpa_per_sentence(lengths, is_causal), rows, upstream if backward else None),
    }
    if is_causal:
        skip("packed", "jagged SDPA with a causal mask", "PyTorch has no such kernel for CPUs")
    else:
        contenders["jagged SDPA"] = _step(jagged_sdpa(lengths), rows, upstream if backward else None)
    return Case(
        ("forward + backward" if backward else "forward") + (", causal" if is_causal else ""),
        f"{len(lengths)} sentences, {len(rows):,} tokens in {len(lengths) * int(lengths.max()):,} padded positions",
        contenders,
        [Versus("packed", name, bar) for name in contenders if name != "packed"],
        Parity("packed", view=lambda outputs: [_valid_tokens(output, lengths) for output in outputs]),
    )


def sdpa_per_sentence(lengths: Tensor, is_causal: bool) -> Attend:
    """Return attention over packed rows (N, H, D) as one SDPA call per sentence."""
    sizes = lengths.tolist()

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        sentences = zip(*(x.transpose(0, 1).split(sizes, 1) for x in (q, k, v)), strict=True)  # (H, T, D)
        contexts = [F.scaled_dot_product_attention(q, k, v, is_causal=is_causal) for q, k, v in sentences]
        return torch.cat(contexts, 1).transpose(0, 1)  # (N, H, D)

    return run


def jagged_sdpa(lengths: Tensor) -> Attend:
    """Return attention over packed rows (N, H, D) as SDPA of jagged nested tensors."""
    offsets = F.pad(lengths.cumsum(0), (1, 0))
    shortest, longest = int(lengths.min()), int(lengths.max())

    def nested(x: Tensor) -> Tensor:
        rows = torch.nested.nested_tensor_from_jagged(x.contiguous(), offsets, min_seqlen=shortest, max_seqlen=longest)
        return rows.transpose(1, 2)  # (B, H, T, D), T differs

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(nested(q), nested(k), nested(v)).transpose(1, 2).values()

    return run


def _mask(lengths: Tensor, is_causal: bool) -> Tensor:
    positions = torch.arange(int(lengths.max()))
    valid = (positions < lengths[:, None])[:, None, None, :]  # (B, 1, 1, T)
    return valid & (positions <= positions[:, None]) if is_causal else valid


def _step(attend: Attend, projected: Tensor, upstream: Tensor | None) -> Callable[[], tuple[Tensor, ...]]:
    """Return a function from (…, 3, H, D) to the context and, with `upstream`, the gradient of the projections."""
    inputs = projected.clone().requires_grad_(upstream is not None)

    def run() -> tuple[Tensor, ...]:
        context = attend(*inputs.unbind(-3))
        if upstream is None:
            return (context,)
        return context.detach(), *torch.autograd.grad(context, inputs, upstream)

    return run


def _heads_first(attend: Attend) -> Attend:
    """Wrap `attend` for layers that put tokens before heads: (B, T, H, D) in and out."""

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)).transpose(1, 2)

    return run


def _valid_tokens(output: Tensor, lengths: Tensor) -> Tensor:
    return output if len(output) == int(lengths.sum()) else pack(output, lengths).values
