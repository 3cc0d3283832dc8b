"""The mechanisms that can be explained, each as small as shows it whole; its weights are random, from a fixed seed.

Sizes that differ have different letters: W = 8, H = 2, T = 5, so that a swapped axis shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..attention import Additive, Bilinear, attend
from ..data import BOS, EOS
from ..data.scripts import split_words
from ..layers import EncoderBlock, FeedForward, MultiHeadAttention
from ..models import (
    Bert,
    BertConfig,
    Seq2Seq,
    Seq2SeqConfig,
    SequenceClassifier,
    Transformer,
    TransformerConfig,
    ViT,
    ViTConfig,
    greedy,
)
from .operation_recorder import Recorder

Namer = Callable[[Iterable[int]], list[str]]
STEPS = 4
"""Steps of a decoder with random weights: it knows no end."""
LONGEST = 24
"""Tokens that are read or written at most: a chart is to be looked at."""
SEED = 0
_SAID = "the cat sat on it"


@dataclass
class Explained:
    """What ran, and what its rows mean."""

    title: str
    recorder: Recorder
    output: Tensor
    """What the model gave; of a decoder, the logits of all steps, (steps, V)."""
    tokens: dict[str, list[str]] = field(default_factory=dict)
    """Names of the places along a letter: {"T": ["the", "cat"]}; y: what each step of a decoder is given."""
    written: list[str] = field(default_factory=list)
    """What a decoder wrote, step by step."""
    open: tuple[str, ...] = ()
    """Boxes that are open at first, by their English names."""


@dataclass(frozen=True)
class Mechanism:
    name: str
    explain: Callable[[str | None], Explained]
    text: str | None = None
    """What it reads where nothing else is given; None where it reads vectors."""


def words_of(text: str | None) -> list[str]:
    """The words of a text, bounded; where none is given, those of an example.

    >>> words_of("注意力")
    ['注', '意', '力']
    """
    words = split_words(_SAID if text is None else text)
    if not 1 <= len(words) <= LONGEST:
        raise ValueError(
            f"explain: text ({len(words)} words) must have 1 to {LONGEST}: a chart shows each. Give --text WORDS."
        )
    return words


def vectors(text: str | None, width: int) -> tuple[Tensor, list[str]]:
    """One random vector for each word, the same for the same word: (1, T, W)."""
    words = words_of(text)
    table = {word: torch.randn(width) for word in words}
    return torch.stack([table[word] for word in words])[None], words


def attention(similarity: str = "scaled_dot", weighting: str = "softmax") -> Callable[[str | None], Explained]:
    """Three queries and one key and value for each word: similarity, weighting, weighted sum."""

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
        given = (inputs[name][0] for name in ("query", "key", "value"))
        with recorder.recording():
            output = recorder.output(attend(*given, similarity=learned, weighting=weighting))  # type: ignore[arg-type]
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
        layer = _noisy(MultiHeadAttention(8, heads))
        recorder = Recorder(layer, {"x": (x, "B T W")}, {"T": len(words), "H": heads, "W": 8, "D": 8 // heads})
        with recorder.recording():
            output = recorder.output(layer(x, is_causal=causal))
        name = "multi-head self-attention" if heads > 1 else "self-attention"
        return Explained(f"masked {name}" if causal else name, recorder, output, {"T": words}, open=("attention",))

    return explain


def encoder_block(text: str | None) -> Explained:
    torch.manual_seed(SEED)
    x, words = vectors(text, 8)
    block = _noisy(EncoderBlock(MultiHeadAttention(8, 2), FeedForward(8, 12)))
    recorder = Recorder(block, {"x": (x, "B T W")}, {"T": len(words), "H": 2, "W": 8, "D": 4, "F": 12})
    with recorder.recording():
        output = recorder.output(block(x))
    parts = ("attention and residual", "feed-forward and residual")
    return Explained("encoder block", recorder, output, {"T": words}, open=parts)


def recurrent(context: str) -> Callable[[str | None], Explained]:
    """A recurrent translator: encoder, then c, f and g at each step."""

    def explain(text: str | None) -> Explained:
        torch.manual_seed(SEED)
        source, names = _ids(words_of(text))
        config = Seq2SeqConfig(len(names), len(names), width=5, hidden=7, encoder_hidden=4, context=context, tie="none")
        model = _noisy(Seq2Seq(config))
        title = "encoder-decoder with a fixed context" if context == "fixed" else "Bahdanau attention"
        return translator(model, source, None, _named(names), _named(names), title)

    return explain


def transformer(text: str | None) -> Explained:
    torch.manual_seed(SEED)
    source, names = _ids(words_of(text))
    size = {"width": 8, "heads": 2, "hidden": 12, "encoder_layers": 2, "decoder_layers": 2}
    model = _noisy(Transformer(TransformerConfig(len(names), len(names), **size, tie="none")))  # type: ignore[arg-type]
    return translator(model, source, None, _named(names), _named(names), "Transformer")


def translator(
    model: Any, source: Sequence[int], written: Sequence[int] | None, read: Namer, write: Namer, title: str
) -> Explained:
    """A translator at work: the source is read, and each step writes a token, as the search runs it.

    written: what it is to write, the end of the sentence with it; None for what it writes by itself.
    read, write: the names of ids.
    """
    ids, lengths = torch.tensor([[*source]]), torch.tensor([len(source)])
    if written is None:
        (best,) = greedy(model, ids, lengths, longest=STEPS)
        written = [*best.tokens, EOS]
    written = list(written)[:LONGEST]
    recorder = Recorder(model, {"source": (ids, "B Ts"), "length": (lengths, "B")}, _sizes(model.config, len(source)))
    logits = []
    with recorder.recording():
        with recorder.frame("group", "encoder"):
            memory = model.encode(ids, lengths)
        with recorder.frame("group", "begin"):
            state = model.begin(memory)
        for number, token in enumerate([BOS, *written[:-1]], 1):
            given = recorder.input(f"y{number - 1}", torch.tensor([token]), "B")
            with recorder.step(number):
                found, state = model.step(given, state)
            logits.append(recorder.output(found))
    size = model.config.target_vocabulary
    tokens = {"Ts": read(source), "y": write([BOS, *written[:-1]])}
    tokens |= {"V": write(range(size))} if size <= LONGEST else {}
    shown = ("step", "context c", "attention", "decoder block 1", "cross-attention and residual", "cross-attention")
    return Explained(title, recorder, torch.cat(logits), tokens, write(written), shown)


def bert(text: str | None) -> Explained:
    torch.manual_seed(SEED)
    words = ["[CLS]", *words_of(text), "[SEP]"]
    ids, names = _ids(words, closed=False)
    config = BertConfig(len(names), width=8, heads=2, hidden=12, layers=2, positions=32)
    return classifier(_noisy(SequenceClassifier(Bert(config), 3)), ids, words, "BERT")


def classifier(model: SequenceClassifier, ids: Sequence[int], tokens: Sequence[str], title: str) -> Explained:
    """A BERT that classifies a text."""
    given, config = torch.tensor([[*ids]]), model.bert.config
    sizes = {"T": len(ids), "H": config.heads, "W": config.width, "D": config.width // config.heads}
    sizes |= {"F": config.hidden, "V": config.vocabulary, "K": len(model.labels), "N": config.positions}
    recorder = Recorder(model, {"ids": (given, "B T")}, sizes)
    with recorder.recording():
        output = recorder.output(model(given))
    labels = list(map(str, model.labels))
    return Explained(title, recorder, output, {"T": list(tokens), "K": labels}, open=("BERT",))


def vit(text: str | None) -> Explained:
    if text is not None:
        raise ValueError(f"explain: text ({text!r}) must be left out: vit looks at an image, and reads nothing.")
    torch.manual_seed(SEED)
    side = torch.linspace(-1, 1, 12)
    disc = ((side[:, None] - 0.2) ** 2 + (side + 0.1) ** 2 < 0.4).float()[None, None]  # (1, 1, 12, 12)
    config = ViTConfig(5, image=(12, 12), patch=4, width=12, heads=2, hidden=14, layers=2)
    return image(_noisy(ViT(config)), disc, [*"abcde"], "Vision Transformer")


def image(model: ViT, pixels: Tensor, labels: Sequence[str], title: str) -> Explained:
    """A Vision Transformer that looks at an image, (1, C, height, width)."""
    config = model.config
    rows, columns = (size // config.patch for size in pixels.shape[-2:])
    tokens = [f"{row + 1},{column + 1}" for row in range(rows) for column in range(columns)]
    every = ["class", *tokens] if model.first is not None else tokens
    sizes = {"T": len(every), "P": len(tokens), "W": config.width, "H": config.heads, "D": config.width // config.heads}
    sizes |= {"F": config.hidden, "K": config.classes, "p": config.patch, "Yp": rows, "Xp": columns}
    recorder = Recorder(model, {"image": (pixels, "B C Yp·p Xp·p")}, sizes)
    with recorder.recording():
        output = recorder.output(model(pixels))
    return Explained(title, recorder, output, {"T": every, "P": tokens, "K": list(labels)})


def _sizes(config: Any, source: int) -> dict[str, int]:
    found = {"Ts": source, "W": config.width, "V": config.target_vocabulary}
    if isinstance(config, Seq2SeqConfig):
        wide = config.encoder_hidden * (2 if config.bidirectional else 1)
        found |= {"S": config.hidden, "C": wide, "E": config.encoder_hidden}
        return found | {f"{n}·S": n * config.hidden for n in (2, 3, 4)}
    return found | {"H": config.heads, "D": config.width // config.heads, "F": config.hidden}


def _ids(words: Sequence[str], closed: bool = True) -> tuple[list[int], list[str]]:
    """Ids of words, from a vocabulary of no others; EOS at the end where it is `closed`."""
    names = ["<pad>", "<unk>", "<s>", "</s>"]
    names += [word for word in dict.fromkeys(words) if word not in names]
    return [*(names.index(word) for word in words), *([EOS] if closed else [])], names


def _named(names: Sequence[str]) -> Namer:
    return lambda ids: [names[token] for token in ids]


def _noisy(model: Any) -> Any:
    """In evaluation mode, with biases and weights large enough to be seen."""
    for parameter in model.parameters():
        if parameter.ndim == 1:
            nn.init.normal_(parameter, mean=float(parameter.detach().mean() > 0.5), std=0.2)
        elif parameter.detach().std() < 0.1:
            nn.init.normal_(parameter, std=0.5)
    return model.eval()


MECHANISMS: dict[str, Mechanism] = {
    one.name: one
    for one in (
        Mechanism("encoder-decoder", recurrent("fixed"), _SAID),
        Mechanism("bahdanau", recurrent("additive"), _SAID),
        Mechanism("dot", attention("dot"), _SAID),
        Mechanism("scaled-dot", attention(), _SAID),
        Mechanism("cosine", attention("cosine"), _SAID),
        Mechanism("bilinear", attention("bilinear"), _SAID),
        Mechanism("additive", attention("additive"), _SAID),
        Mechanism("mlp", attention("mlp"), _SAID),
        Mechanism("soft", attention("dot"), _SAID),
        Mechanism("hard", attention("dot", "hard"), _SAID),
        Mechanism("self-attention", self_attention(), _SAID),
        Mechanism("masked", self_attention(causal=True), _SAID),
        Mechanism("multi-head", self_attention(2), _SAID),
        Mechanism("encoder-block", encoder_block, _SAID),
        Mechanism("transformer", transformer, _SAID),
        Mechanism("bert", bert, _SAID),
        Mechanism("vit", vit),
    )
}
"""By name, in the order in which they build on each other."""
