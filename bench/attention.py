"""regard.attend, backend by backend, against PyTorch's SDPA and eager PyTorch; forward and forward + backward.

Eager is the explicit softmax(q·kᵀ/√D)·v that people write by hand. Parity is with SDPA computed in float64.
"""

import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

import regard
from bench.harness import Case, Options, Versus
from bench.parity import Parity
from regard.attention import engine

SHAPES = ((128, 8, 16, 64), (32, 8, 64, 64), (16, 12, 197, 64), (8, 12, 512, 64), (1, 12, 2048, 64))  # (B, H, T, D)
BACKENDS = ("auto", "native", "blocked", "torch") if engine.module else ("auto", "blocked", "torch")
PEERS = ("SDPA", "eager")
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def cases(options: Options) -> Iterator[Case]:
    for shape in SHAPES[:2] if options.quick else SHAPES:
        for is_causal in (False, True):
            for backward in (False, True):
                yield case(shape, is_causal, backward)


def case(shape: tuple[int, int, int, int], is_causal: bool, backward: bool) -> Case:
    """One shape: every backend and every peer in the same rounds."""
    generator = torch.Generator().manual_seed(0)
    q, k, v, upstream = (torch.randn(shape, generator=generator) for _ in range(4))  # (B, H, T, D)
    functions = contenders(is_causal)

    def oracle() -> object:
        exact = inputs(q, k, v, torch.float64, backward)
        return step(functions["SDPA"], exact, upstream.double() if backward else None)()

    given = inputs(q, k, v, torch.float32, backward)
    steps = {name: step(function, given, upstream if backward else None) for name, function in functions.items()}
    name = ("forward + backward" if backward else "forward") + (" causal" if is_causal else "")
    return Case(
        name,
        str(shape),
        steps,
        versus=[Versus(backend, peer) for backend in BACKENDS for peer in PEERS],
        parity=Parity(oracle, rtol=1e-4, atol=2e-5),
        flops=dict.fromkeys(steps, flops(shape, is_causal, backward)),
    )


def contenders(is_causal: bool) -> dict[str, Attend]:
    def ours(backend: str) -> Attend:
        return lambda q, k, v: regard.attend(q, k, v, is_causal=is_causal, backend=backend)

    return {
        **{backend: ours(backend) for backend in BACKENDS},
        "SDPA": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=is_causal),
        "eager": lambda q, k, v: eager(q, k, v, is_causal),
    }


def eager(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Tensor:
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])  # (B, H, T, T)
    if is_causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)  # (T, T)
        scores = scores.masked_fill(future, -math.inf)
    return scores.softmax(-1) @ v  # (B, H, T, D)


def inputs(q: Tensor, k: Tensor, v: Tensor, dtype: torch.dtype, backward: bool) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (tensor.to(dtype).requires_grad_(backward) for tensor in (q, k, v))
    return q, k, v


def step(function: Attend, given: tuple[Tensor, Tensor, Tensor], upstream: Tensor | None) -> Callable[[], object]:
    """One call, with its gradients if there is a gradient from above."""
    if upstream is None:
        return lambda: function(*given)

    def forward_and_backward() -> object:
        context = function(*given)
        return context, *torch.autograd.grad(context, given, upstream)

    return forward_and_backward


def flops(shape: tuple[int, int, int, int], is_causal: bool, backward: bool) -> float:
    """Operations that are needed: two matrix products forward, five backward (scores once more), half when causal."""
    batch, heads, tokens, width = shape
    pairs = tokens * (tokens + 1) / 2 if is_causal else tokens * tokens
    return batch * heads * pairs * width * 2 * (7 if backward else 2)
