"""The cost of watching a model: BERT-base with 512 tokens and GPT-2 with 2,048, watched and unwatched.

The models are those of transformers with random weights. Two more models have no bar: a timm Vision Transformer, and a
small Gemma-2, whose soft cap and window run through `regard.attend` because PyTorch's SDPA supports neither. Watched
and unwatched models run the same kernels, so their outputs must be bitwise equal before they are timed. The third
contender is the usual alternative, `output_attentions=True` with attn_implementation="eager", which stores every
weight. It runs twice: in the same process, and in its own process with default settings, because watching makes the C
library keep freed memory, which speeds up the whole process. Memory is that of one run with its result, minus that of
the unwatched run.
"""

import importlib
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

import regard
from bench import _peers, memory
from bench._child_process import ChildProcess
from bench._peers import load
from bench._skips import skip
from bench.harness import Case, Figure, Options, Versus
from bench.parity import Parity

SHAPES = {"BERT-base": 512, "GPT-2": 2048}
FEW = 16
OTHERS = {"Gemma-2": (1, 1024), "timm ViT": (4, 3, 224, 224)}
IMPLEMENTATIONS = {"Gemma-2": "regard"}
"""Attention implementations other than SDPA."""
Shape = tuple[int, ...]


def cases(options: Options) -> Iterator[Case]:
    for name, tokens in SHAPES.items():
        shape: Shape = (1, tokens // 8 if options.quick else tokens)
        bar = None if options.quick else "<= 1.03"
        if available(name):
            yield _watched(name, shape, bar, options)
    for name, whole in OTHERS.items():
        if not available(name):
            continue
        shape = whole if not options.quick else (1, *whole[1:]) if len(whole) > 2 else (1, whole[1] // 8)
        yield _watched(name, shape, None, options)
    shape = (1, SHAPES["GPT-2"] // (8 if options.quick else 1))
    if available("GPT-2"):
        yield _against_eager(shape, options)


def _against_eager(shape: Shape, options: Options) -> Case:
    """Return the case of watching against storing every weight, in the same process and in its own."""
    child = ChildProcess("bench.watch:alone", "eager", "GPT-2", shape, options.quick, threads=options.threads)
    bars = {"eager, same process": ">= 1.5", "eager, own process": ">= 3.0"}
    return Case(
        "GPT-2, watched against output_attentions=True",
        str(shape),
        {
            "watched": partial(watched, "GPT-2", shape, options.quick),
            "eager, same process": partial(eager, "GPT-2", shape, options.quick),
            "eager, own process": child,
        },
        versus=[Versus("watched", peer, None if options.quick else bar) for peer, bar in bars.items()],
        parity=Parity("eager, own process", rtol=1e-3, atol=1e-4, view=hidden),
        most_rounds=5,
    )


def _watched(name: str, shape: Shape, bar: str | None, options: Options) -> Case:
    """Return the case of a model watched against the same model unwatched, whose outputs must be bitwise equal."""
    return Case(
        f"{name}, watched",
        str(shape),
        {way: partial(WAYS[way], name, shape, options.quick) for way in ("watched", "sdpa")},
        versus=[Versus("watched", "sdpa", bar, "ours/peer")],
        parity=Parity("sdpa", rtol=0.0, atol=0.0, view=hidden),
        most_rounds=15 if name == "BERT-base" else 9,
        close=0.02,
    )


def figures(options: Options) -> Iterator[Figure]:
    if not available("GPT-2"):
        return
    shape = (1, SHAPES["GPT-2"] // (8 if options.quick else 1))

    def share() -> float:
        def peak(way: str) -> int:
            return memory.peak("bench.watch:setup", way, "GPT-2", shape, options.quick, threads=options.threads)

        plain = peak("sdpa")
        return (peak("watched") - plain) / max(1, peak("eager") - plain)

    yield Figure("GPT-2, extra memory of watching", str(shape), share, "of eager", None if options.quick else "<= 0.05")


def hidden(output: Any) -> Tensor:
    """Return the output that all variants compute."""
    if isinstance(output, ChildProcess):
        return output.fetch()
    return output[0] if isinstance(output[0], Tensor) else output[0].last_hidden_state


@torch.no_grad()
def sdpa(name: str, shape: Shape, small: bool) -> object:
    return model(name, IMPLEMENTATIONS.get(name, "sdpa"), small)(inputs(shape)), None


@torch.no_grad()
def watched(name: str, shape: Shape, small: bool) -> object:
    watchable = model(name, IMPLEMENTATIONS.get(name, "sdpa"), small)
    with regard.watch(watchable) as seen:
        output = watchable(inputs(shape))
    assert len(seen) == (len(watchable.blocks) if name == "timm ViT" else watchable.config.num_hidden_layers)
    return output, seen


@torch.no_grad()
def eager(name: str, shape: Shape, small: bool) -> object:
    return model(name, "eager", small)(inputs(shape), output_attentions=True), None


WAYS = {"sdpa": sdpa, "watched": watched, "eager": eager}


@cache
def model(name: str, implementation: str, small: bool) -> Any:
    """Build a model; every implementation gets the same random weights."""
    torch.manual_seed(0)
    if name == "timm ViT":
        return load("timm").create_model("vit_small_patch16_224", depth=2 if small else 12).eval()
    transformers = load("transformers")  # before regard.huggingface: handles a torchvision that cannot be loaded
    if name == "Gemma-2":
        importlib.import_module("regard.huggingface")
    kind, config = {
        "BERT-base": (transformers.BertModel, transformers.BertConfig()),
        "GPT-2": (transformers.GPT2Model, transformers.GPT2Config(n_positions=2048)),
        "Gemma-2": (transformers.Gemma2Model, transformers.Gemma2Config(**GEMMA)),
    }[name]
    if small:
        config.num_hidden_layers = 2
    return kind._from_config(config, attn_implementation=implementation).eval()


GEMMA = {
    "vocab_size": 30_000,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "sliding_window": 256,
    "attn_logit_softcapping": 50.0,
}


def available(name: str) -> bool:
    """Return whether the package of a model is installed; otherwise name the model as skipped."""
    package = "timm" if name == "timm ViT" else "transformers"
    if not _peers.installed(package):
        skip("watch", name, f"{package} is not installed")
        return False
    return True


@cache
def inputs(shape: Shape) -> Tensor:
    """Return tokens (B, T) or images (B, 3, height, width)."""
    generator = torch.Generator().manual_seed(0)
    if len(shape) == 4:
        return torch.rand(shape, generator=generator)
    return torch.randint(0, 30_000, shape, generator=generator)


def alone(way: str, name: str, shape: list[int], small: bool) -> Callable[[], Tensor]:
    """Return one run for `bench._child_process`, which keeps only the common output."""
    whole = (shape[0], shape[1])
    return lambda: hidden(WAYS[way](name, whole, small))


def setup(way: str, name: str, shape: list[int], small: bool) -> Callable[[], object]:
    """Return one run for `bench.memory`, whose result is kept alive."""
    held: list[object] = []
    WAYS[way](name, (1, FEW), small)
    whole = (shape[0], shape[1])
    inputs(whole)

    def run() -> None:
        held.append(WAYS[way](name, whole, small))

    return run
