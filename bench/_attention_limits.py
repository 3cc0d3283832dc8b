"""Bars and goals of `bench attention`, for each shape and peer.

Bars are about 0.8 of what two cores of a Xeon with AVX-512 reach, so that they guard against a loss of speed there and
on similar machines. docs/performance.md has these numbers, and those behind the reasons of the goals in "Where the time
goes".
"""

from typing import Literal, NamedTuple

from bench.harness import Versus
from regard.attention.native import engine

Shape = tuple[int, int, int, int]


class Limit(NamedTuple):
    """A limit that a ratio must reach (`bar`), and one that it should reach but does not yet (`goal`, and why)."""

    bar: str | None = None
    goal: str | None = None
    reason: str | None = None

    def versus(self, ours: str, peer: str | tuple[str, ...], per: Literal["call", "flops", "bytes"] = "call") -> Versus:
        """Return the comparison. Without the native kernels it has no limits."""
        bar, goal, reason = self if engine.module else Limit()
        return Versus(ours, peer, bar, per=per, goal=goal, reason=reason)


Limits = tuple[Limit, Limit]
"""Limits of forward and of forward + backward."""

COPY = "at 16 tokens, only copying q, k, v and the context takes longer than the goal allows"
PEAK = "at 32 and 64 tokens, the forward goal needs 80 % of the peak of fused multiply-adds, with the softmax on top"
DIAGONAL = "the diagonal cuts through most blocks of 64 or 197 tokens, whose vectors are then only partly used"
SOFTMAX = "the exponentials take 17 % of the time of a block, and a matrix product has none"
STREAM = "limited by memory bandwidth: the peer reads two contiguous streams and computes no softmax"
CACHED = "at 20 keys, eager's (B, Tq, Tk, D) tensor fits into the third-level cache, so that eager is fast as well"
RECIPROCALS = "forward takes 5.7 operations per pair and channel where 4.9 are needed, backward 13.5 where 10.5 are"

DOT: dict[tuple[Shape, bool], dict[str, Limits]] = {  # (B, H, T, D) and is_causal → peer → limits
    ((128, 8, 16, 64), False): {
        "SDPA": (Limit(">= 1.2", ">= 3.5", COPY), Limit(">= 1.3", ">= 3.5", COPY)),
        "eager": (Limit(">= 1.1", ">= 1.6", COPY), Limit(goal=">= 1.6", reason=COPY)),
    },
    ((128, 8, 16, 64), True): {"SDPA": (Limit(">= 1.2"), Limit(">= 1.3"))},
    ((64, 8, 32, 64), False): {"SDPA": (Limit(">= 1.2", ">= 2.4", PEAK), Limit(">= 1.2", ">= 2.5", PEAK))},
    ((64, 8, 32, 64), True): {"SDPA": (Limit(">= 1.2"), Limit(">= 1.3"))},
    ((32, 8, 64, 64), False): {"SDPA": (Limit(">= 1.2", ">= 2", PEAK), Limit(">= 1.3", ">= 1.8", PEAK))},
    ((32, 8, 64, 64), True): {"SDPA": (Limit(">= 1.5", ">= 3", DIAGONAL), Limit(">= 1.5", ">= 2.5", DIAGONAL))},
    ((16, 12, 197, 64), False): {"SDPA": (Limit(">= 1.2"), Limit(">= 1.2"))},
    ((16, 12, 197, 64), True): {"SDPA": (Limit(">= 1.8", ">= 2.5", DIAGONAL), Limit(">= 1.8"))},
    ((8, 12, 512, 64), False): {"SDPA": (Limit(">= 1.15"), Limit(">= 1.1"))},
    ((8, 12, 512, 64), True): {"SDPA": (Limit(">= 1.6"), Limit(">= 1.5"))},
    ((1, 12, 2048, 64), False): {"SDPA": (Limit(">= 1.05"), Limit(">= 1.1"))},
    ((1, 12, 2048, 64), True): {"SDPA": (Limit(">= 1.3"), Limit(">= 1.3"))},
}
LONG: Shape = (1, 8, 8192, 64)
LONG_LIMITS: Limits = (Limit(">= 0.8", ">= 1.05", SOFTMAX), Limit(">= 0.8"))
ONE_QUERY_LIMIT = Limit(">= 0.6", ">= 0.9", STREAM)
ADDITIVE: dict[Shape, dict[str, Limits]] = {  # (B, Tq, Tk, D)
    (64, 20, 20, 256): {
        "eager": (Limit(">= 4", ">= 30", CACHED), Limit(">= 4", ">= 15", CACHED)),
        "compile": (Limit(">= 8"), Limit(">= 6", ">= 12", CACHED)),
    },
    (64, 50, 50, 256): {
        "eager": (Limit(">= 20", ">= 50", RECIPROCALS), Limit(">= 15", ">= 30", RECIPROCALS)),
        "compile": (Limit(">= 10"), Limit(">= 10", ">= 15", RECIPROCALS)),
    },
    (1, 1024, 1024, 256): {
        "eager": (Limit(">= 30", ">= 80", RECIPROCALS), Limit(">= 20", ">= 60", RECIPROCALS)),
        "compile": (Limit(">= 12", ">= 18", RECIPROCALS), Limit(">= 15", ">= 20", RECIPROCALS)),
    },
}
