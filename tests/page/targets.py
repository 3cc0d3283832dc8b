"""Targets with made-up maps for the browser tests: large enough to zoom into, and the same in every run."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

import regard
from regard.data import Characters
from regard.data.vocabulary import NAMES
from regard.lens.patch_weights import Patches
from regard.models import GPT, GPTConfig
from regard.server.language_target import LanguageTarget
from regard.server.target import Capture, Snapshot, Target, snapshot
from regard.tasks.text_generation import TextGenerator

ROOT = Path(__file__).parents[2]
LEXICON = {"the": "die", "cat": "Katze", "sits": "sitzt", "on": "auf", "mat": "Matte", "a": "eine", "red": "rote"}


def words(count: int) -> list[str]:
    """Byte-level BPE tokens of a text."""
    tokens: list[str] = []
    for word in (ROOT / "LICENSE").read_text(encoding="utf-8").split():
        first, *others = re.findall(r"[A-Za-z]{1,7}|[^A-Za-z]+", word)
        tokens += [f"Ġ{first}", *others]
    return tokens[:count]


def attention(queries: list[str], keys: list[str], heads: int, seed: int, causal: bool = False) -> regard.AttentionMap:
    """Return a map (1, heads, Tq, Tk) that resembles a trained model's: it attends to near tokens, to equal tokens and
    to the first one."""
    features = [_features(queries, keys, seed + head) for head in range(heads)]
    q, k = (torch.stack(side)[None] for side in zip(*features, strict=True))  # (1, H, T, 41)
    _, map = regard.attend(q, k, torch.zeros_like(k), is_causal=causal, scale=0.5, return_map=True)
    return map.tokens(queries, keys)


def _features(queries: list[str], keys: list[str], seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    embedding = {word: torch.randn(16, generator=generator) for word in sorted({*queries, *keys})}
    rates = 1 / (10 ** torch.linspace(0, 3.5, 12))
    strength = torch.tensor([2.2, 0.5, 1.5]) * (0.4 + 1.2 * torch.rand(3, generator=generator))
    near, same, first = (float(x) for x in strength)

    def side(tokens: list[str], delay: int, sink: Tensor) -> Tensor:
        angle = (torch.arange(len(tokens))[:, None] - delay) * rates
        wave = torch.cat([angle.sin(), angle.cos()], 1) * near
        return torch.cat([wave, torch.stack([embedding[word] for word in tokens]) * same, sink[:, None]], 1)

    start = torch.zeros(len(keys))
    start[0] = 4.0
    return side(queries, 1 + seed % 3, torch.full((len(queries),), first)), side(keys, 0, start)


class Rerunnable(Capture):
    """A capture that accepts another text: the maps do not change, and the title is the text."""

    can = ("run",)

    def run(self, text: str) -> Snapshot:
        return replace(self.snapshot, title=text, version="rerun")


def capture(length: int, layers: int = 2, heads: int = 3) -> Target:
    """Causal layers over a long text, and one layer across two texts."""
    tokens = words(length + 90)
    text, written, read = tokens[:length], tokens[length:], tokens[:120]
    maps = [attention(text, text, heads, 10 * layer, causal=True) for layer in range(1, layers + 1)]
    maps.append(attention(written, read, 2, 10 * (layers + 1)))
    names = [*(f"model.layers.{layer}.self_attn" for layer in range(layers)), "decoder.layers.0.cross_attn"]
    kinds = [*["causal"] * layers, "cross"]
    return Rerunnable(_seen(names, kinds, maps), "a made-up capture")


def images() -> Target:
    """An image of 14 × 14 patches, recorded in three layers of four heads."""
    patches = ["[CLS]", *(f"{row},{column}" for row in range(14) for column in range(14))]
    maps = [attention(patches, patches, 4, 10 * layer) for layer in range(1, 4)]
    for map in maps:
        map.tokens(None, None)
    names = [f"encoder.layers.{layer}.attention" for layer in range(3)]
    return target_of("images", names, ["self"] * 3, maps, _photograph(), Patches(14, 14, 1))


def target_of(kind: str, names: list[str], kinds: list[str], maps: list[Any], *image: Any) -> Target:
    """Return a target with these maps, and if given an image and its patches."""
    target = Target()
    target.snapshot = snapshot(_seen(names, kinds, maps, *image), kind, f"a made-up {kind}")
    return target


def _seen(names: list[str], kinds: list[str], maps: list[Any], image: Any = None, patches: Any = None) -> Any:
    return SimpleNamespace(names=names, kinds=kinds, maps=maps, image=image, patches=patches)


def _photograph() -> Tensor:
    """A hill under the sun, uint8 (224, 224, 3)."""
    y, x = torch.meshgrid(torch.linspace(-1, 1, 224), torch.linspace(-1, 1, 224), indexing="ij")
    sun = torch.exp(-((x - 0.3) ** 2 + (y + 0.35) ** 2) * 9)
    hill = ((y - 0.35 + 0.25 * torch.sin(3 * x)) > 0).float()
    colours = [0.55 + 0.4 * sun - 0.25 * hill, 0.65 + 0.25 * sun - 0.15 * hill, 0.85 - 0.3 * sun - 0.5 * hill]
    return (torch.stack(colours, -1).clamp(0, 1) * 255).to(torch.uint8)


class Translator(Target):
    """Translates word for word, the last word first, so that links cross."""

    can = ("translate",)
    snapshot = Snapshot("translator", "a made-up translator", [])

    def translate(self, text: str, beam: int, n_best: int) -> dict[str, Any]:
        return {"hypotheses": [_hypothesis(text.split(), position) for position in range(n_best)]}


def _hypothesis(source: list[str], position: int) -> dict[str, Any]:
    target = [LEXICON.get(word.lower(), word[::-1]) for word in reversed(source)]
    order = [*reversed(range(len(source))), len(source)]
    weights = torch.full((len(order), len(order)), 0.2 / len(order))
    for row, column in enumerate(order):
        weights[row, column] += 0.8 - 0.1 * position
    return {
        "text": " ".join(target) + "!" * position,
        "score": -0.3 - 0.4 * position,
        "source": [*source, "</s>"],
        "target": [*target, "</s>"],
        "weights": (weights / weights.sum(-1, keepdim=True)).tolist(),
        "source_words": source,
        "target_words": target,
        "links": [[column, row] for row, column in enumerate(order[:-1])],
    }


def language_model(positions: int = 64) -> LanguageTarget:
    """A GPT with random weights over letters. Its weights are large, so that heads differ and few tokens are likely."""
    letters = Characters.train(["abcdefghijklmnopqrstuvwxyz ,.\n"])
    config = GPTConfig(vocabulary=len(letters), width=24, heads=3, layers=2, positions=positions, tied=False)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model = GPT(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(8 if parameter.ndim == 2 else 1)
            model.norm.bias[0], model.vocabulary.weight[:, 0] = 10, 0
            model.vocabulary.weight[: len(NAMES), 0] = -10  # never an end token or another special one
    return LanguageTarget(TextGenerator(model, letters), "a made-up language model")
