"""The mechanisms with a chart. Each is a minimal model with random weights from a fixed seed.

Different dimensions have different sizes (W = 8, H = 2, T = 5), so that swapped axes are visible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..attention import Additive, Bilinear, attend
from ..attention.request import Weighting
from ..data import EOS
from ..data.scripts import split_words
from ..layers import EncoderBlock, FeedForward, MultiHeadAttention
from ..models import (
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
from .operation_recorder import Recorder
from .recorded_models import LONGEST, Explained, Namer, classifier, image, language_model, translator

SEED = 0
DEFAULT_TEXT = "the cat sat on it"
END_OF_TEXT = "<|endoftext|>"
"""The token between two texts in the vocabulary of GPT-2."""


@dataclass(frozen=True)
class Mechanism:
    """A mechanism with a chart.

    >>> MECHANISMS["scaled-dot"].explain("注意力").tokens["Tk"]
    ['注', '意', '力']
    """

    name: str
    explain: Callable[[str | None], Explained]
    text: str | None = None
    """Default text; None if the mechanism does not process text."""


def words_of(text: str | None) -> list[str]:
    """Return the words of a text, or of the default text. The number of words is limited.

    >>> words_of("注意力")
    ['注', '意', '力']
    """
    words = split_words(DEFAULT_TEXT if text is None else text)
    if not 1 <= len(words) <= LONGEST:
        raise ValueError(
            f"explain: text ({len(words)} words) must have 1 to {LONGEST}: a chart shows each. Pass --text WORDS."
        )
    return words


def vectors(text: str | None, width: int) -> tuple[Tensor, list[str]]:
    """Return a random vector for each word, (1, T, W). Equal words have equal vectors."""
    words = words_of(text)
    table = {word: torch.randn(width) for word in words}
    return torch.stack([table[word] for word in words])[None], words


def attention(similarity: str = "scaled_dot", weighting: Weighting = "softmax") -> Callable[[str | None], Explained]:
    """Return the explanation of attention with three queries, and one key and value for each word."""

    def explain(text: str | None) -> Explained:
        torch.manual_seed(SEED)
        width, sizes = 4, {"Tq": 3, "D": 4, "Dv": 6}
        keys, words = vectors(text, width)
        inputs = {
            "query": (torch.randn(3, width), "Tq D"),
            "key": (keys[0], "Tk D"),
            "value": (torch.randn(len(words), 6), "Tk Dv"),
        }
        learned: Any = similarity
        if similarity == "additive":
            inputs["w"] = (torch.randn(width), "D")
            learned = Additive(inputs["w"][0])
        elif similarity == "bilinear":
            inputs["W"] = (torch.randn(width, width), "D D")
            learned = Bilinear(inputs["W"][0])
        elif similarity == "mlp":
            inputs["W1"], inputs["w2"] = (torch.randn(2 * width, 7), "2·D M"), (torch.randn(7), "M")
            learned = _Network(inputs["W1"][0], inputs["w2"][0])
        recorder = Recorder(None, inputs, {**sizes, "Tk": len(words), "M": 7})
        query, key, value = (inputs[name][0] for name in ("query", "key", "value"))
        with recorder.recording():
            output = recorder.output(attend(query, key, value, similarity=learned, weighting=weighting))
        title = f"{'hard' if weighting == 'hard' else similarity.replace('_', ' ')} attention"
        return Explained(title, recorder, output, {"Tk": words}, open=("attention", "similarity"))

    return explain


class _Network:
    """score = w₂·tanh(W₁·[q; k])"""

    def __init__(self, first: Tensor, second: Tensor) -> None:
        self.first, self.second = first, second

    def __call__(self, q: Tensor, k: Tensor) -> Tensor:
        wide = (*q.shape[:-1], k.shape[-2], q.shape[-1])  # (..., Tq, Tk, D)
        pairs = torch.cat((q.unsqueeze(-2).expand(wide), k.unsqueeze(-3).expand(wide)), -1)
        return torch.tanh(pairs @ self.first) @ self.second  # (..., Tq, Tk)


def self_attention(heads: int = 1, causal: bool = False) -> Callable[[str | None], Explained]:
    def explain(text: str | None) -> Explained:
        torch.manual_seed(SEED)
        x, words = vectors(text, 8)
        layer = _randomize(MultiHeadAttention(8, heads))
        recorder = Recorder(layer, {"x": (x, "B T W")}, {"T": len(words), "H": heads, "W": 8, "D": 8 // heads})
        with recorder.recording():
            output = recorder.output(layer(x, is_causal=causal))
        name = "multi-head self-attention" if heads > 1 else "self-attention"
        return Explained(f"masked {name}" if causal else name, recorder, output, {"T": words}, open=("attention",))

    return explain


def encoder_block(text: str | None) -> Explained:
    torch.manual_seed(SEED)
    x, words = vectors(text, 8)
    block = _randomize(EncoderBlock(MultiHeadAttention(8, 2), FeedForward(8, 12)))
    recorder = Recorder(block, {"x": (x, "B T W")}, {"T": len(words), "H": 2, "W": 8, "D": 4, "F": 12})
    with recorder.recording():
        output = recorder.output(block(x))
    parts = ("attention and residual", "feed-forward and residual")
    return Explained("encoder block", recorder, output, {"T": words}, open=parts)


def recurrent(context: str) -> Callable[[str | None], Explained]:
    """Return the explanation of a recurrent translator: an encoder, then c, f and g at each step."""

    def explain(text: str | None) -> Explained:
        torch.manual_seed(SEED)
        source, names = _ids(words_of(text))
        config = Seq2SeqConfig(len(names), len(names), width=5, hidden=7, encoder_hidden=4, context=context, tie="none")
        model = _randomize(Seq2Seq(config))
        title = "encoder-decoder with a fixed context" if context == "fixed" else "Bahdanau attention"
        return translator(model, source, None, _namer(names), _namer(names), title)

    return explain


def transformer(text: str | None) -> Explained:
    torch.manual_seed(SEED)
    source, names = _ids(words_of(text))
    size = {"width": 8, "heads": 2, "hidden": 12, "encoder_layers": 2, "decoder_layers": 2}
    model = _randomize(Transformer(TransformerConfig(len(names), len(names), **size, tie="none")))  # type: ignore[arg-type]  # the values of a dictionary have one type
    return translator(model, source, None, _namer(names), _namer(names), "Transformer")


def bert(text: str | None) -> Explained:
    torch.manual_seed(SEED)
    words = ["[CLS]", *words_of(text), "[SEP]"]
    ids, names = _ids(words, closed=False)
    config = BertConfig(len(names), width=8, heads=2, hidden=12, layers=2, positions=32)
    return classifier(_randomize(SequenceClassifier(Bert(config), 3)), ids, words, "BERT")


def gpt(text: str | None) -> Explained:
    torch.manual_seed(SEED)
    words = words_of(text)
    names = list(dict.fromkeys([*words, *words_of(None), END_OF_TEXT]))  # enough words for every prediction
    config = GPTConfig(len(names), width=8, heads=2, hidden=12, layers=2, positions=32)
    model = _randomize(GPT(config))
    return language_model(model, [names.index(word) for word in words], _namer(names), "GPT")


def vit(text: str | None) -> Explained:
    if text is not None:
        raise ValueError(f"explain: text ({text!r}) must be omitted: vit processes an image, not a text.")
    torch.manual_seed(SEED)
    side = torch.linspace(-1, 1, 12)
    disc = ((side[:, None] - 0.2) ** 2 + (side + 0.1) ** 2 < 0.4).float()[None, None]  # (1, 1, 12, 12)
    config = ViTConfig(5, image=(12, 12), patch=4, width=12, heads=2, hidden=14, layers=2)
    return image(_randomize(ViT(config)), disc, [*"abcde"], "Vision Transformer")


def _ids(words: Sequence[str], closed: bool = True) -> tuple[list[int], list[str]]:
    """Return the ids of words and their vocabulary. With `closed`, EOS is appended."""
    names = ["<pad>", "<unk>", "<s>", "</s>"]
    names += [word for word in dict.fromkeys(words) if word not in names]
    return [*(names.index(word) for word in words), *([EOS] if closed else [])], names


def _namer(names: Sequence[str]) -> Namer:
    return lambda ids: [names[token] for token in ids]


def _randomize(model: Any) -> Any:
    """Return the model in evaluation mode, with biases and weights large enough to be visible."""
    for parameter in model.parameters():
        if parameter.ndim == 1:
            nn.init.normal_(parameter, mean=float(parameter.detach().mean() > 0.5), std=0.2)
        elif parameter.detach().std() < 0.1:
            nn.init.normal_(parameter, std=0.5)
    return model.eval()


MECHANISMS: dict[str, Mechanism] = {
    one.name: one
    for one in (
        Mechanism("encoder-decoder", recurrent("fixed"), DEFAULT_TEXT),
        Mechanism("bahdanau", recurrent("additive"), DEFAULT_TEXT),
        Mechanism("dot", attention("dot"), DEFAULT_TEXT),
        Mechanism("scaled-dot", attention(), DEFAULT_TEXT),
        Mechanism("cosine", attention("cosine"), DEFAULT_TEXT),
        Mechanism("bilinear", attention("bilinear"), DEFAULT_TEXT),
        Mechanism("additive", attention("additive"), DEFAULT_TEXT),
        Mechanism("mlp", attention("mlp"), DEFAULT_TEXT),
        Mechanism("soft", attention("dot"), DEFAULT_TEXT),
        Mechanism("hard", attention("dot", "hard"), DEFAULT_TEXT),
        Mechanism("self-attention", self_attention(), DEFAULT_TEXT),
        Mechanism("masked", self_attention(causal=True), DEFAULT_TEXT),
        Mechanism("multi-head", self_attention(2), DEFAULT_TEXT),
        Mechanism("encoder-block", encoder_block, DEFAULT_TEXT),
        Mechanism("transformer", transformer, DEFAULT_TEXT),
        Mechanism("bert", bert, DEFAULT_TEXT),
        Mechanism("gpt", gpt, DEFAULT_TEXT),
        Mechanism("vit", vit),
    )
}
"""Mechanisms by name, in the order in which they build on each other."""
