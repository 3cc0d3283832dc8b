"""regard.attend against SDPA, eager PyTorch, torch.compile, one large matrix product and the memory bandwidth.

Eager is the explicit softmax(q·kᵀ/√D)·v that is usually written by hand, with w·tanh(q + k) as the score for additive
attention. Bars apply to the native kernels only. Outputs are compared with SDPA in float64, or with the named peer
where float64 would take longer than the measurement. --quick is a smoke test without bars.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

import regard
from bench import memory
from bench._attention_limits import ADDITIVE, DOT, LONG, LONG_LIMITS, ONE_QUERY_LIMIT, Limit, Limits, Shape
from bench._skips import skip
from bench.harness import Case, Figure, Options, Versus
from bench.parity import Parity
from regard.attention.native import engine

BACKENDS = ("native", "auto", "blocked") if engine.module else ("auto", "blocked")
PEERS = ("SDPA", "eager")
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
PRODUCT = 4096
"""Rows and columns of the large matrix product."""
ONE_QUERY = (64, 128, 256, 512, 1024, 2048, 4096)
"""Numbers of keys, for batch size 64, 8 heads and head width 64."""
FEW_ROUNDS = 5
"""Number of rounds for calls that take seconds."""
FEW = 256
"""Number of tokens of the tiny warm-up call."""


def cases(options: Options) -> Iterator[Case]:
    for case in _cases(options):
        without = [replace(versus, bar=None, goal=None, reason=None) for versus in case.versus]
        yield replace(case, versus=without) if options.quick else case


def _cases(options: Options) -> Iterator[Case]:
    for (shape, is_causal), limits in [*DOT.items()][: 2 if options.quick else None]:
        for backward in (False, True):
            yield dot_case(shape, is_causal, backward, limits)
    for backward in (False, True):
        yield long_case((1, 2, 512, 64) if options.quick else LONG, backward)
    for keys in ONE_QUERY[: 1 if options.quick else None]:
        yield one_query_case(8 if options.quick else 64, keys)
    compiled = compiled_additive()
    for shape, limits in [*ADDITIVE.items()][: 1 if options.quick else None]:
        for backward in (False, True):
            yield additive_case(shape, backward, limits, compiled)


def figures(options: Options) -> Iterator[Figure]:
    shape = (1, 1024 if options.quick else 16384, 128)  # (B, T, D)
    for name, setup in (("forward", "additive_forward"), ("forward + backward", "additive_backward")):

        def measure(setup: str = setup) -> float:
            return memory.peak(f"bench.attention:{setup}", shape, threads=options.threads) / memory.MIB

        yield Figure(f"additive {name}, memory", str(shape), measure, "MiB", None if options.quick else "<= 256")


def dot_case(shape: Shape, is_causal: bool, backward: bool, limits: dict[str, Limits]) -> Case:
    """Return the case of one shape, which times every backend and every peer in the same rounds."""
    q, k, v, upstream = draw(shape, 4)  # (B, H, T, D)
    functions = contenders(is_causal)

    def oracle() -> object:
        exact = inputs((q, k, v), torch.float64, backward)
        return step(functions["SDPA"], exact, upstream.double() if backward else None)()

    arguments = inputs((q, k, v), torch.float32, backward)
    steps = {name: step(functions[name], arguments, upstream if backward else None) for name in (*BACKENDS, *PEERS)}
    first, *others = BACKENDS
    held = {peer: pair[backward] for peer, pair in limits.items()}
    return Case(
        _name("", backward, is_causal),
        str(shape),
        steps,
        versus=[held.get(peer, Limit()).versus(first, peer) for peer in PEERS]
        + [Versus(name, "SDPA") for name in others],
        parity=Parity(oracle, rtol=1e-4, atol=2e-5),
        flops=dict.fromkeys(steps, flops(shape, is_causal, backward)),
    )


def long_case(shape: Shape, backward: bool) -> Case:
    """Compare the operations per second of a long sequence with those of one large matrix product."""
    q, k, v, upstream = draw(shape, 4)
    a, b = draw((PRODUCT, PRODUCT) if shape == LONG else (64, 64), 2)
    functions = contenders(is_causal=False)
    arguments = inputs((q, k, v), torch.float32, backward)
    steps = {name: step(functions[name], arguments, upstream if backward else None) for name in (BACKENDS[0], "SDPA")}
    work = {**dict.fromkeys(steps, flops(shape, False, backward)), "mm": 2.0 * len(a) ** 3}
    return Case(
        _name("", backward),
        str(shape),
        {**steps, "mm": lambda: a @ b},
        versus=[LONG_LIMITS[backward].versus(BACKENDS[0], "mm", "flops"), Versus(BACKENDS[0], "SDPA")],
        parity=Parity("SDPA", rtol=1e-3, atol=1e-4, contenders=(BACKENDS[0],)),
        flops=work,
        most_rounds=FEW_ROUNDS,
    )


def one_query_case(batch: int, keys: int) -> Case:
    """Compare the bytes per second of a decoder step, which reads every key and value once, with only reading them."""
    q = draw((batch, 8, 1, 64), 1)[0]
    k, v = draw((batch, 8, keys, 64), 2)
    rows = [x.view(-1, 64 * keys) for x in (k, v)]
    ones = torch.ones(64 * keys)
    functions = contenders(is_causal=False)
    steps: dict[str, Callable[[], object]] = {
        name: step(functions[name], (q, k, v), None) for name in (BACKENDS[0], "SDPA", "eager")
    }
    steps["read (mv)"] = lambda: [x @ ones for x in rows]
    steps["read (sum)"] = lambda: [x.sum() for x in rows]
    return Case(
        "one query",
        str((batch, 8, keys, 64)),
        steps,
        versus=[
            ONE_QUERY_LIMIT.versus(BACKENDS[0], ("read (mv)", "read (sum)"), "bytes"),
            Versus(BACKENDS[0], "SDPA"),
            Versus(BACKENDS[0], "eager"),
        ],
        parity=Parity("SDPA", rtol=1e-3, atol=1e-4, contenders=(BACKENDS[0], "eager")),
        bytes=dict.fromkeys(steps, float(k.nbytes + v.nbytes)),
    )


def additive_case(
    shape: Shape, backward: bool, limits: dict[str, Limits], compiled: Callable[..., Tensor] | None
) -> Case:
    batch, queries, keys, width = shape
    (q, upstream), (k, v) = draw((batch, queries, width), 2), draw((batch, keys, width), 2)
    arguments = inputs((q, k, v, draw((width,), 1)[0] / math.sqrt(width)), torch.float32, backward)

    def ours(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
        return regard.attend(q, k, v, similarity=regard.Additive(w), backend=BACKENDS[0])

    functions: dict[str, Callable[..., Tensor]] = {BACKENDS[0]: ours, "eager": eager_additive}
    if compiled is not None:
        functions["compile"] = compiled
    peers = [peer for peer in limits if peer in functions]

    def compared(output: object) -> object:
        """Average the gradient of w over queries. It is a sum, and eager rounds it the most of all outputs."""
        return (*output[:-1], output[-1] / (batch * queries)) if isinstance(output, tuple) else output

    return Case(
        _name("additive ", backward),
        str(shape),
        {name: step(function, arguments, upstream if backward else None) for name, function in functions.items()},
        versus=[limits[peer][backward].versus(BACKENDS[0], peer) for peer in peers],
        parity=Parity("eager", rtol=1e-3, atol=1e-4, view=compared),
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
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])  # (B, H, Tq, Tk)
    if is_causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)  # (Tq, Tk)
        scores = scores.masked_fill(future, -math.inf)
    return scores.softmax(-1) @ v  # (B, H, Tq, D)


def eager_additive(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
    scores = torch.tanh(q.unsqueeze(-2) + k.unsqueeze(-3)) @ w  # (B, Tq, Tk)
    return scores.softmax(-1) @ v  # (B, Tq, Dv)


def compiled_additive() -> Callable[..., Tensor] | None:
    """Return `eager_additive` compiled by torch.compile, or None with a message if compilation fails."""
    compiled: Callable[..., Tensor] = torch.compile(eager_additive, dynamic=False)
    try:
        compiled(*draw((1, 2, 4), 3), torch.ones(4))
    except Exception as error:  # compilers, or missing ones, raise many types
        reason = str(error).strip().partition("\n")[0]
        skip("attention", "torch.compile", reason)
        return None
    return compiled


def draw(shape: Sequence[int], count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(tuple(shape), generator=generator) for _ in range(count)]


def inputs(arguments: Sequence[Tensor], dtype: torch.dtype, backward: bool) -> tuple[Tensor, ...]:
    return tuple(x.detach().to(dtype).requires_grad_(backward) for x in arguments)


def step(function: Callable[..., Tensor], arguments: Sequence[Tensor], upstream: Tensor | None) -> Callable[[], object]:
    """Return a function that makes one call, and computes the gradients if `upstream` is given."""
    if upstream is None:
        return lambda: function(*arguments)

    def forward_and_backward() -> object:
        context = function(*arguments)
        return context, *torch.autograd.grad(context, tuple(arguments), upstream)

    return forward_and_backward


def flops(shape: Shape, is_causal: bool, backward: bool) -> float:
    """Return the required operations: 2 matrix products forward, 5 backward (scores are recomputed), half if causal."""
    batch, heads, tokens, width = shape
    pairs = tokens * (tokens + 1) / 2 if is_causal else tokens * tokens
    return batch * heads * pairs * width * 2 * (7 if backward else 2)


def additive_forward(shape: list[int]) -> Callable[[], object]:
    return _additive_memory(shape, backward=False)


def additive_backward(shape: list[int]) -> Callable[[], object]:
    return _additive_memory(shape, backward=True)


def _additive_memory(shape: list[int], backward: bool) -> Callable[[], object]:
    """Return the call on inputs (B, T, D) that is measured, after a warm-up call on few tokens."""
    batch, tokens, width = shape

    def call(length: int) -> Callable[[], object]:
        q, k, v, upstream = draw((batch, length, width), 4)
        arguments = inputs((q, k, v, torch.ones(width)), torch.float32, backward)

        def attend(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
            return regard.attend(q, k, v, similarity=regard.Additive(w))

        return step(attend, arguments, upstream if backward else None)

    call(min(FEW, tokens))()
    return call(tokens)


def _name(prefix: str, backward: bool, is_causal: bool = False) -> str:
    return prefix + ("forward + backward" if backward else "forward") + (" causal" if is_causal else "")
