"""Training a language model: steps against nanoGPT at two sizes, and the loss on held-out Shakespeare.

Set REGARD_NANOGPT to a clone of nanoGPT (its model.py is imported), and REGARD_DATA to the folder that contains
tinyshakespeare/input.txt.gz. Both train the same architecture on characters, with nanoGPT's settings for a CPU. A step
draws a batch of random windows, computes loss and gradients, clips them and updates the weights. nanoGPT runs as it is,
with PyTorch's fused AdamW, and compiled; the fastest of them counts. It always computes in float32 on a CPU, and so
do the contenders `regard` and `regard, compiled`, whose blocks are compiled.

The bars are goals. At the first size, matrix products take 60 % of a step of 37 ms on two cores of an AMD EPYC. Alone,
products of these shapes run at 150 to 190 GFLOP/s with MKL and at 160 to 210 with oneDNN, so that the 3.6 GFLOP of a
step take about 20 ms: a step that did nothing else would be about 1.75 times as fast as nanoGPT's 35 ms. In bfloat16
the products run at 250 to 420 GFLOP/s.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.harness import Case, Figure, Options, Versus
from bench.peers import data
from regard.data import Characters, Corpus
from regard.data.text_chunks import encode_chunks, part_of, read_chunks
from regard.data.token_windows import TokenWindows, windows_at
from regard.models import GPT, GPTConfig
from regard.tasks.language_model import LanguageModel
from regard.tasks.language_modelling import LanguageModelling
from regard.training import Training, seed_all
from regard.training.distributed import Group
from regard.training.session import Session
from regard.training.signals import Signals

STEPS = 2000
RATE, WARMUP, FINAL, BETAS, DECAY = 1e-3, 100, 0.1, (0.9, 0.99), 0.1


@dataclass(frozen=True)
class Size:
    """Sizes of a model and its batches."""

    layers: int
    heads: int
    width: int
    context: int
    batch: int
    bar: str
    rounds: int
    """Maximum number of rounds."""

    def __str__(self) -> str:
        return f"{self.layers} layers, width {self.width}, {self.batch} × {self.context} tokens"


SIZES = (Size(4, 4, 128, 64, 12, ">= 2.0", 40), Size(6, 6, 384, 256, 16, ">= 1.3", 5))
QUICK = Size(1, 2, 16, 8, 4, ">= 1.0", 2)


def cases(options: Options) -> Iterator[Case]:
    for size in (QUICK,) if options.quick else SIZES:
        contenders: dict[str, Callable[[], object]] = {
            "regard": our_steps(size),
            "regard, compiled": our_steps(size, compiled=True),
            "regard, bfloat16": our_steps(size, precision="bfloat16"),
            "nanoGPT": their_steps(size),
            "nanoGPT, fused AdamW": their_steps(size, fused=True),
            "nanoGPT, compiled": their_steps(size, fused=True, compiled=True),
        }
        peers = tuple(name for name in contenders if name.startswith("nanoGPT"))
        ours = ("regard, compiled", "regard, bfloat16")
        versus = (Versus("regard", peers, size.bar), *(Versus(name, peers) for name in ours))
        yield Case("training steps", str(size), contenders, versus, most_rounds=size.rounds)


def figures(options: Options) -> Iterator[Figure]:
    size, steps = (QUICK, 5) if options.quick else (SIZES[0], STEPS)
    shape = f"{size}, {steps:,} steps"
    yield Figure("held-out loss, regard", shape, partial(our_loss, size, steps), "nats", "<= 1.88")
    yield Figure("held-out loss, regard, bfloat16", shape, partial(our_loss, size, steps, "bfloat16"), "nats")
    yield Figure("held-out loss, nanoGPT", shape, partial(their_loss, size, steps), "nats")


@cache
def shakespeare() -> tuple[Characters, Corpus, Corpus]:
    """Return the characters, the first 90 % of the text, and the rest."""
    path = data("tinyshakespeare") / "input.txt.gz"
    text = "".join(read_chunks([path]))
    letters, cut = Characters.train([text]), int(0.9 * len(text))
    folder = Path(tempfile.mkdtemp(prefix="bench-language-"))
    parts = {"train": (0, cut), "valid": (cut, None)}
    corpora = [
        Corpus.write_flat(folder / name, encode_chunks(part_of([text], *part), letters)) for name, part in parts.items()
    ]
    return letters, corpora[0], corpora[1]


def our_session(size: Size, steps: int = STEPS, precision: str = "float32", *, compiled: bool = False) -> Session:
    """Return a session of `regard train language`, without its files."""
    letters, train, valid = shakespeare()
    seed_all(0)
    config = GPTConfig(
        vocabulary=len(letters),
        width=size.width,
        heads=size.heads,
        layers=size.layers,
        positions=size.context,
        activation="gelu",
        bias="none",
    )
    windows = TokenWindows(train.ids[0], size.context, size.batch)
    task = LanguageModelling(LanguageModel(GPT(config), letters), windows, valid)
    settings = Training(
        steps=steps, learning_rate=RATE, warmup=min(WARMUP, steps), final_rate=FINAL, betas=BETAS, weight_decay=DECAY
    )
    settings = replace(settings, device="cpu", precision=precision, compile=compiled)  # type: ignore[arg-type]
    return Session(task, settings.check(), Group(0, 1, torch.device("cpu")), Signals())


def our_steps(size: Size, precision: str = "float32", *, compiled: bool = False) -> Callable[[], object]:
    session = our_session(size, precision=precision, compiled=compiled)
    batches = session.batches()
    return lambda: session.step(next(batches))


def our_loss(size: Size, steps: int, precision: str = "float32") -> float:
    session = our_session(size, steps, precision)
    batches = session.batches()
    for _ in range(steps):
        session.step(next(batches))
    session.model.eval()
    with torch.no_grad():
        return session.task.evaluate()["loss"]


@cache
def nanogpt() -> Any:
    """Import model.py of nanoGPT."""
    folder = os.environ.get("REGARD_NANOGPT")
    path = Path(folder or "", "model.py")
    if folder is None or not path.is_file():
        raise SystemExit(
            f"bench: REGARD_NANOGPT ({folder}) must be a folder with the model.py of nanoGPT; got none. Clone it from "
            "GitHub (karpathy/nanoGPT)."
        )
    spec = importlib.util.spec_from_file_location("nanogpt_model", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclass looks itself up
    spec.loader.exec_module(module)
    return module


class Theirs:
    """nanoGPT's model and optimizer, with the calls of its training script."""

    def __init__(self, size: Size, *, fused: bool = False, compiled: bool = False) -> None:
        letters, train, _ = shakespeare()
        self.ids, self.size, self.number = train.ids[0], size, 0
        torch.manual_seed(1337)
        with contextlib.redirect_stdout(io.StringIO()):
            config = nanogpt().GPTConfig(
                block_size=size.context,
                vocab_size=len(letters),
                n_layer=size.layers,
                n_head=size.heads,
                n_embd=size.width,
                dropout=0.0,
                bias=False,
            )
            self.plain = nanogpt().GPT(config)
            self.optimizer = self.plain.configure_optimizers(DECAY, RATE, BETAS, "cpu")
        if fused:
            groups = [{name: each[name] for name in ("params", "weight_decay")} for each in self.optimizer.param_groups]
            self.optimizer = torch.optim.AdamW(groups, lr=RATE, betas=BETAS, fused=True)
        self.model = torch.compile(self.plain) if compiled else self.plain

    def step(self) -> float:
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = self._rate()
        starts = torch.randint(len(self.ids) - self.size.context, (self.size.batch,)).numpy()
        batch = windows_at(self.ids, starts, self.size.context)
        _, loss = self.model(batch.ids, batch.targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.plain.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.number += 1
        return float(loss.detach())

    def _rate(self) -> float:
        if self.number < WARMUP:
            return RATE * (self.number + 1) / (WARMUP + 1)
        share = min(1.0, (self.number - WARMUP) / (STEPS - WARMUP))
        return RATE * (FINAL + (1 - FINAL) * (1 + math.cos(math.pi * share)) / 2)

    @torch.no_grad()
    def held_out_loss(self) -> float:
        """Return the loss on the windows that `LanguageModelling.evaluate` uses, but for the last, shorter one."""
        ids = shakespeare()[2].ids[0]
        starts = np.arange((len(ids) - 1) // self.size.context) * self.size.context
        self.plain.eval()
        losses = [
            float(self.plain(batch.ids, batch.targets)[1]) * len(batch)
            for chosen in np.array_split(starts, max(1, len(starts) // 64))
            for batch in [windows_at(ids, chosen, self.size.context)]
        ]
        return sum(losses) / len(starts)


def their_steps(size: Size, *, fused: bool = False, compiled: bool = False) -> Callable[[], object]:
    return Theirs(size, fused=fused, compiled=compiled).step


def their_loss(size: Size, steps: int) -> float:
    theirs = Theirs(size, fused=True)
    for _ in range(steps):
        theirs.step()
    return theirs.held_out_loss()
