"""What watching a model costs: BERT-base at 512 tokens and GPT-2 at 2,048, against the same models unwatched.

The models are those of transformers with random weights. Watched and unwatched run the same kernels, so their outputs
must agree to the bit before anything is timed. The third contender is what people do today: `output_attentions=True`
with attn_implementation="eager", which stores every weight. Memory is that of one run while its result is held, above
the memory of the unwatched run.
"""

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

import regard
from bench import memory
from bench.harness import Case, Figure, Options, Versus
from bench.parity import Parity

SHAPES = {"BERT-base": 512, "GPT-2": 2048}
FEW = 16


def cases(options: Options) -> Iterator[Case]:
    for name, tokens in SHAPES.items():
        shape = (1, tokens // 8 if options.quick else tokens)
        bar = None if options.quick else "<= 1.03"
        yield Case(
            f"{name}, watched",
            str(shape),
            {way: partial(WAYS[way], name, shape, options.quick) for way in ("watched", "sdpa")},
            versus=[Versus("watched", "sdpa", bar, "ours/peer")],
            parity=Parity("sdpa", rtol=0.0, atol=0.0, view=hidden),
            most_rounds=9,
        )
    shape = (1, SHAPES["GPT-2"] // (8 if options.quick else 1))
    yield Case(
        "GPT-2, against output_attentions=True",
        str(shape),
        {way: partial(WAYS[way], "GPT-2", shape, options.quick) for way in ("watched", "eager")},
        versus=[Versus("watched", "eager", None if options.quick else ">= 3.0")],
        parity=Parity("eager", rtol=1e-3, atol=1e-4, view=hidden),
        most_rounds=5,
    )


def figures(options: Options) -> Iterator[Figure]:
    shape = (1, SHAPES["GPT-2"] // (8 if options.quick else 1))

    def share() -> float:
        def peak(way: str) -> int:
            return memory.peak("bench.watch:setup", way, "GPT-2", shape, options.quick, threads=options.threads)

        plain = peak("sdpa")
        return (peak("watched") - plain) / max(1, peak("eager") - plain)

    yield Figure("GPT-2, extra memory of watching", str(shape), share, "of eager", None if options.quick else "<= 0.05")


def hidden(output: Any) -> Tensor:
    """The part that all ways compute."""
    return output[0].last_hidden_state


@torch.no_grad()
def sdpa(name: str, shape: tuple[int, int], small: bool) -> object:
    return model(name, "sdpa", small)(tokens(shape)), None


@torch.no_grad()
def watched(name: str, shape: tuple[int, int], small: bool) -> object:
    watchable = model(name, "sdpa", small)
    with regard.watch(watchable) as seen:
        output = watchable(tokens(shape))
    assert len(seen) == watchable.config.num_hidden_layers
    return output, seen


@torch.no_grad()
def eager(name: str, shape: tuple[int, int], small: bool) -> object:
    return model(name, "eager", small)(tokens(shape), output_attentions=True), None


WAYS = {"sdpa": sdpa, "watched": watched, "eager": eager}


@cache
def model(name: str, implementation: str, small: bool) -> Any:
    """Twins with the same random weights."""
    from transformers import BertConfig, BertModel, GPT2Config, GPT2Model

    torch.manual_seed(0)
    kind, config = (BertModel, BertConfig()) if name == "BERT-base" else (GPT2Model, GPT2Config(n_positions=2048))
    if small:
        config.num_hidden_layers = 2
    return kind._from_config(config, attn_implementation=implementation).eval()


@cache
def tokens(shape: tuple[int, int]) -> Tensor:
    return torch.randint(0, 30_000, shape, generator=torch.Generator().manual_seed(0))


def setup(way: str, name: str, shape: list[int], small: bool) -> Callable[[], object]:
    """For `bench.memory`: one run whose result is held until the next would come."""
    held: list[object] = []
    WAYS[way](name, (1, FEW), small)
    whole = (shape[0], shape[1])
    tokens(whole)

    def run() -> None:
        held.append(WAYS[way](name, whole, small))

    return run
