"""Dimensions keep their letters when sizes happen to be equal: each box, against a model whose sizes differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from regard.explain import Chart, draw, explain
from regard.explain.recorded_models import Explained, classifier, image, language_model, translator
from regard.models import (
    GPT,
    Bert,
    BertConfig,
    GPTConfig,
    Seq2Seq,
    Seq2SeqConfig,
    SequenceClassifier,
    Transformer,
    TransformerConfig,
    ViT,
    ViTConfig,
)

WRITTEN = [4, 4, 3]


def letters(chart: Chart) -> list[tuple[str, str]]:
    """The path of every box that has a value, without its tokens, and its letters."""
    paths: dict[int, str] = {}
    for node in chart.nodes:
        above = "" if node.parent is None else paths[node.parent] + " > "
        paths[node.number] = above + node.name["en"].split(":")[0]
    return [
        (paths[node.number], " ".join(chart.values[node.value].letters))
        for node in chart.nodes
        if node.value is not None
    ]


POSITIONS = ("position", "rotary position", "mask", "positions", "equal?")
"""Boxes computed from `arange(n)`, of which only the size is known: they may have a number instead of a letter."""


def differences(different: list[tuple[str, str]], equal: list[tuple[str, str]]) -> list[tuple[str, str, str]]:
    """Return boxes whose letters differ, except for numbers instead of letters in boxes computed from `arange`."""
    wrong = []
    for (path, expected), (other, got) in zip(different, equal, strict=True):
        pairs = list(zip(expected.split(), got.split(), strict=True))
        from_positions = any(name in path.split(" > ") for name in POSITIONS)
        fine = all(a == b or (b.isdecimal() and from_positions) for a, b in pairs)
        if path != other or not fine:
            wrong.append((path, expected, got))
    return wrong


def names(ids: Any) -> list[str]:
    return [f"w{token}" for token in ids]


def translated(model: Any, length: int) -> Explained:
    return translator(model.eval(), [1 + n % 4 for n in range(length)], WRITTEN, names, names, "a translator")


def seq2seq(vocabulary: int, length: int, **settings: Any) -> Explained:
    return translated(Seq2Seq(Seq2SeqConfig(vocabulary, vocabulary, tie="none", **settings)), length)


def transformer(vocabulary: int, length: int, **settings: Any) -> Explained:
    config = TransformerConfig(vocabulary, vocabulary, tie="none", encoder_layers=1, decoder_layers=1, **settings)
    return translated(Transformer(config), length)


def bert(vocabulary: int, length: int, labels: int, **settings: Any) -> Explained:
    model = SequenceClassifier(Bert(BertConfig(vocabulary, layers=1, **settings)), labels).eval()
    return classifier(model, range(length), names(range(length)), "BERT")


def vit(classes: int, side: int, **settings: Any) -> Explained:
    model = ViT(ViTConfig(classes, image=(side, side), layers=1, **settings)).eval()
    return image(model, torch.zeros(1, 1, side, side), names(range(classes)), "ViT")


def gpt(length: int, config: GPTConfig) -> Explained:
    return language_model(GPT(config).eval(), range(length), names, "GPT")


RECURRENT = {"width": 5, "hidden": 7, "encoder_hidden": 11}
CASES: dict[str, tuple[Callable[[], Explained], Callable[[], Explained]]] = {
    **{
        f"{context}, {cell}, {name}": (
            lambda context=context, cell=cell: seq2seq(23, 8, context=context, cell=cell, **RECURRENT),
            lambda context=context, cell=cell, sizes=sizes: seq2seq(8, 8, context=context, cell=cell, **sizes),
        )
        for context in ("additive", "bilinear", "fixed")
        for cell in ("gru", "lstm")
        for name, sizes in {
            "hidden = 2 · encoder_hidden": {"width": 5, "hidden": 22, "encoder_hidden": 11},
            "all equal": {"width": 8, "hidden": 8, "encoder_hidden": 8},
            "C equal": {"width": 8, "hidden": 8, "encoder_hidden": 4},
        }.items()
    },
    "transformer": (
        lambda: transformer(23, 8, width=10, heads=2, hidden=13),
        lambda: transformer(8, 8, width=8, heads=2, hidden=8),
    ),
    "transformer, length of a head": (
        lambda: transformer(23, 4, width=10, heads=2, hidden=13),
        lambda: transformer(8, 4, width=8, heads=2, hidden=4),
    ),
    "bert": (
        lambda: bert(23, 8, 5, width=10, heads=2, hidden=13, positions=32),
        lambda: bert(8, 8, 8, width=8, heads=2, hidden=8, positions=8),
    ),
    "gpt": (
        lambda: gpt(8, GPTConfig(23, width=10, heads=2, hidden=13, layers=1, positions=32)),
        lambda: gpt(8, GPTConfig(8, width=8, heads=2, hidden=8, layers=1, positions=8)),
    ),
    "gpt, as many tokens as predictions": (
        lambda: gpt(8, GPTConfig(23, width=10, heads=2, hidden=13, layers=1, positions=32)),
        lambda: gpt(5, GPTConfig(5, width=10, heads=2, hidden=5, layers=1, positions=5)),
    ),
    "llama": (
        lambda: gpt(9, GPTConfig.llama(vocabulary=23, width=12, heads=2, hidden=13, layers=1)),
        lambda: gpt(8, GPTConfig.llama(vocabulary=8, width=8, heads=2, hidden=8, layers=1)),
    ),
    "llama, length of half a head": (
        lambda: gpt(9, GPTConfig.llama(vocabulary=23, width=12, heads=2, hidden=13, layers=1)),
        lambda: gpt(3, GPTConfig.llama(vocabulary=6, width=12, heads=2, hidden=3, layers=1)),
    ),
    "llama, grouped heads": (
        lambda: gpt(9, GPTConfig.llama(vocabulary=23, width=24, heads=4, kv_heads=2, hidden=13, layers=1)),
        lambda: gpt(4, GPTConfig.llama(vocabulary=16, width=16, heads=4, kv_heads=2, hidden=4, layers=1)),
    ),
    "llama, one key head": (
        lambda: gpt(9, GPTConfig.llama(vocabulary=23, width=24, heads=4, kv_heads=1, hidden=13, layers=1)),
        lambda: gpt(4, GPTConfig.llama(vocabulary=4, width=16, heads=4, kv_heads=1, hidden=16, layers=1)),
    ),
    "vit": (
        lambda: vit(5, 12, patch=4, width=14, heads=2, hidden=17),
        lambda: vit(10, 12, patch=4, width=10, heads=2, hidden=10),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_letters_do_not_depend_on_sizes(name: str) -> None:
    torch.manual_seed(0)
    different, equal = (letters(draw(run())) for run in CASES[name])
    assert differences(different, equal) == []


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith(("gpt", "llama"))])
def test_letters_of_the_factors_do_not_depend_on_sizes(name: str) -> None:
    """Key heads are repeated for the query heads that share them: B H D T, for any sizes."""
    torch.manual_seed(0)
    for run in CASES[name]:
        chart = draw(run())
        factors = {
            node.name["en"]: [" ".join(chart.values[one.value].letters) for one in node.operands]
            for node in chart.nodes
        }
        keys = "Hk·D W" if "head" in name and "half" not in name else "W W"
        assert factors["keys"][:2] == ["B T W", keys] and factors["queries"][:2] == ["B T W", "W W"]
        assert factors["product"] == ["B H T D", "B H D T"]
        assert factors["weighted sum"] == ["B H T T", "B H T D"]
        assert factors["widen"][:2] == ["B T W", "F W"] and factors["narrow"][:2] == ["B T F", "W F"]
        assert factors["logits"] == ["B T W", "V W"]
        assert factors["probabilities"] == factors["likeliest next tokens"] == ["B V"]


@pytest.mark.parametrize("count", [3, 4, 6])
@pytest.mark.parametrize("mechanism", ["dot", "scaled-dot", "cosine", "bilinear", "additive", "mlp", "hard"])
def test_letters_of_attention_do_not_depend_on_the_number_of_keys(mechanism: str, count: int) -> None:
    """Tq is 3, D is 4 and Dv is 6."""
    different, equal = (letters(explain(mechanism, " ".join(names(range(n))))) for n in (11, count))
    assert differences(different, equal) == []


@pytest.mark.parametrize("mechanism", ["self-attention", "masked", "multi-head", "encoder-block"])
@pytest.mark.parametrize("count", [2, 4, 8, 12])
def test_letters_of_self_attention_do_not_depend_on_the_number_of_tokens(mechanism: str, count: int) -> None:
    """W is 8, H is 1 or 2, and F is 12."""
    different, equal = (letters(explain(mechanism, " ".join(names(range(n))))) for n in (11, count))
    assert differences(different, equal) == []
