"""Every public operator, layer and model once or more, at small sizes: outputs, gradients and parameter names.

Inputs and parameters do not come from torch's random generator, whose normal numbers differ in the last bit between
machines: they are uniform numbers of numpy's PCG64, seeded by the name of the tensor.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import regard
from regard import layers, masks, models


def values(name: str, *shape: int, scale: float = 1.0) -> Tensor:
    """Uniform numbers between -scale and scale that depend on the name and the shape alone."""
    random = np.random.Generator(np.random.PCG64(zlib.crc32(name.encode())))
    return torch.from_numpy(np.asarray(scale * (2 * random.random(shape) - 1), dtype=np.float32))


def ids(name: str, *shape: int, low: int = 4, high: int = 11) -> Tensor:
    """Token ids from `low` to `high` - 1."""
    return (low + (values(name, *shape) + 1) / 2 * (high - low)).long().clamp(low, high - 1)


def fill(module: nn.Module) -> nn.Module:
    """Give every parameter values that depend on its name and shape alone."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(values(name, *parameter.shape, scale=0.7))
    return module


class Case(NamedTuple):
    """A call: `function(module, *inputs)`. Gradients are taken of float inputs and of parameters."""

    build: Callable[[], nn.Module]
    inputs: tuple[Any, ...]
    function: Callable[..., Any] = lambda module, *inputs: module(*inputs)
    training: bool = False
    gradients: bool = True


class Outcome(NamedTuple):
    tensors: dict[str, Tensor]
    state: dict[str, str]
    """The shape of each entry of the state dictionary."""


def outcome(case: Case) -> Outcome:
    """Run a case: the outputs, then the gradients of their sum, weighted by fixed numbers."""
    module = fill(case.build()).train(case.training)
    state = {name: str(tuple(value.shape)) for name, value in module.state_dict().items()}
    inputs = [x.clone().requires_grad_() if _is_float(x) else x for x in case.inputs] if case.gradients else case.inputs
    torch.manual_seed(0)
    with torch.set_grad_enabled(case.gradients):
        outputs = dict(_flat("output", case.function(module, *inputs)))
    tensors = {name: value.detach().clone().contiguous() for name, value in outputs.items()}
    if case.gradients:
        sums = [(x * values(name, *x.shape)).sum() for name, x in outputs.items() if x.requires_grad]
        torch.stack(sums).sum().backward()
        leaves = [*((f"input.{i}", x) for i, x in enumerate(inputs) if _is_float(x)), *module.named_parameters()]
        tensors |= {f"gradient.{name}": x.grad.contiguous() for name, x in leaves if x.grad is not None}
    return Outcome(tensors, state)


def _is_float(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


def _flat(name: str, output: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors in an output, by a name each; a map counts as its weights."""
    if isinstance(output, Tensor):
        yield name, output
    elif hasattr(output, "dense"):
        yield name, output.dense()
    elif isinstance(output, int | float):
        yield name, torch.tensor(output)
    elif dataclasses.is_dataclass(output):
        for field in dataclasses.fields(output):
            yield from _flat(f"{name}.{field.name}", getattr(output, field.name))
    elif output is not None:
        for number, part in enumerate(output):
            yield from _flat(f"{name}.{number}", part)


class Operator(nn.Module):
    """A function in place of a module, with named tensors as its parameters."""

    def __init__(self, **shapes: tuple[int, ...]) -> None:
        super().__init__()
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(shape)))


def _attend(similarity: Callable[[Any], Any] | str = "scaled_dot", **options: Any) -> Callable[..., Any]:
    """A call of `regard.attend` that returns every view of its map besides the context."""

    def call(module: Any, q: Tensor, k: Tensor, v: Tensor) -> Any:
        asked = similarity if isinstance(similarity, str) else similarity(module)
        context, m = regard.attend(q, k, v, similarity=asked, return_map=True, **options)
        strongest = m.top(2)
        views = [m.entropy(), m.received(), m.pool(2, 3), m.pool(3, 2, "mean"), m.pool(2, 2, "sum"), strongest.values]
        if options.get("weighting") != "uniform":  # whose keys are equally strong: any two may be named
            views.append(strongest.indices)
        return [context, m, *views, m.at(1), m @ values("factor", v.shape[-2], 3), m[1]]

    return call


def _greedy(module: Any, source: Tensor) -> Any:
    result = models.greedy(module, source, torch.tensor([7, 4]), longest=9)
    return [(torch.tensor(one.tokens), one.score) for one in result]


def _beam(module: Any, source: Tensor) -> Any:
    result = models.beam(module, source, torch.tensor([7, 4]), size=3, n_best=2, longest=9)
    return [(torch.tensor(one.tokens), one.score) for sentence in result for one in sentence]


def _decoder_steps(module: Any, x: Tensor, memory: Tensor) -> Tensor:
    cache = layers.DecoderCache()
    return torch.cat([module(x[:, t : t + 1], memory, cache=cache) for t in range(x.shape[1])], 1)


def _cached_steps(module: Any, x: Tensor) -> Tensor:
    cache = layers.Cache()
    return torch.cat([module(x[:, t : t + 1], is_causal=True, cache=cache) for t in range(x.shape[1])], 1)


def _translated(module: Any, source: Tensor, target: Tensor) -> Any:
    memory = module.encode(source, torch.tensor([7, 4]))
    hidden, maps = module.decode(target, memory, return_maps=True)
    return module.logits(hidden), memory, maps, module(source, torch.tensor([7, 4]), target, torch.tensor([3, 5]))


def _context(module: Any, state: Tensor, states: Tensor) -> Any:
    memory = models.Memory(states, torch.tensor([5, 3]), states[:, 0])
    keys = module.keys(memory)
    return module(state, keys), module.maps(state[:, None], keys)


def _sinusoids(module: Any) -> Tensor:
    return layers.sinusoids(torch.arange(5), 6).float()


def _packed(module: Any, q: Tensor, k: Tensor, v: Tensor) -> Any:
    context, maps = regard.attend_packed(q, k, v, [3, 0, 4], [5, 1, 2], is_causal=True, return_maps=True)
    return context, list(maps)


QKV = values("q", 2, 3, 5, 7), values("k", 2, 3, 6, 7), values("v", 2, 3, 6, 4)
X, MEMORY = values("x", 2, 5, 12), values("memory", 2, 7, 10)
TEXTS, SEGMENTS = ids("texts", 3, 7, low=1, high=23), ids("segments", 3, 7, low=0, high=2)
SOURCE, TARGET = ids("source", 2, 7), ids("target", 2, 5, high=13)
ALLOWED = values("allowed", 5, 6) > -0.3
KEEP = [7, 4, 6]
BERT = models.BertConfig(vocabulary=23, width=12, heads=3, hidden=17, layers=2, positions=11)
VIT = models.ViTConfig(classes=3, image=(8, 12), channels=1, width=12, heads=3, hidden=17, layers=2)
CNN = models.CNNConfig(classes=3, channels=2, widths=(5, 7), blocks=1)
TRANSFORMER = models.TransformerConfig(
    11, 13, width=12, heads=3, hidden=17, encoder_layers=2, decoder_layers=2, positions=19
)
GPT2 = models.GPTConfig(vocabulary=23, width=12, heads=3, hidden=17, layers=2, positions=11)
LLAMA = models.GPTConfig.llama(vocabulary=23, width=12, heads=3, kv_heads=1, hidden=17, layers=2, positions=11)
RECURRENT = models.Seq2SeqConfig(11, 13, width=7, hidden=6, encoder_hidden=5)


def _multihead(**options: Any) -> Callable[[], nn.Module]:
    return lambda: layers.MultiHeadAttention(12, 3, **options)


def _encoder(**options: Any) -> Callable[[], nn.Module]:
    return lambda: layers.EncoderBlock(layers.MultiHeadAttention(12, 3), layers.FeedForward(12, 17), **options)


def _decoder() -> nn.Module:
    cross = layers.MultiHeadAttention(12, 3, key_width=10, value_width=10)
    return layers.DecoderBlock(layers.MultiHeadAttention(12, 3), cross, layers.FeedForward(12, 17))


def _bert(pooler: bool = True, **changes: Any) -> models.Bert:
    return models.Bert(dataclasses.replace(BERT, **changes), pooler=pooler)


def _transformer(**changes: Any) -> Callable[[], nn.Module]:
    return lambda: models.Transformer(dataclasses.replace(TRANSFORMER, **changes))


def _gpt(config: models.GPTConfig, **changes: Any) -> Callable[[], nn.Module]:
    return lambda: models.GPT(dataclasses.replace(config, **changes))


def _gpt_steps(module: Any, texts: Tensor) -> Tensor:
    caches = module.caches()
    return torch.cat([module(part, caches=caches) for part in texts.split([3, 1, 1, 2], 1)], 1)


def _recurrent(**changes: Any) -> Callable[[], nn.Module]:
    return lambda: models.Seq2Seq(dataclasses.replace(RECURRENT, **changes))


CASES: dict[str, Case] = {
    # operators, on each backend and with each option
    **{
        f"attend/{backend}": Case(Operator, QKV, _attend(backend=backend, is_causal=True))
        for backend in ("auto", "torch", "blocked", "reference")
    },
    "attend/mask": Case(Operator, QKV, _attend(attn_mask=ALLOWED)),
    "attend/bias": Case(Operator, QKV, _attend(attn_mask=values("bias", 3, 5, 6))),
    "attend/lengths": Case(Operator, QKV, _attend(lengths=[6, 2])),
    "attend/window": Case(Operator, QKV, _attend(window=(2, 1), causal_offset=1)),
    "attend/softcap": Case(Operator, QKV, _attend(softcap=1.5, scale=2.0)),
    "attend/groups": Case(Operator, (values("q", 2, 6, 5, 7), *QKV[1:]), _attend(enable_gqa=True)),
    "attend/dot": Case(Operator, QKV, _attend("dot")),
    "attend/cosine": Case(Operator, QKV, _attend("cosine", scale=5.0)),
    "attend/hard": Case(Operator, QKV, _attend(weighting="hard")),
    "attend/uniform": Case(Operator, QKV, _attend(weighting="uniform", is_causal=True)),
    "Additive/attend": Case(lambda: Operator(w=(7,)), QKV, _attend(lambda module: regard.Additive(module.w))),
    "Bilinear/attend": Case(lambda: Operator(w=(7, 7)), QKV, _attend(lambda module: regard.Bilinear(module.w))),
    "attend_packed/causal": Case(Operator, (values("q", 7, 3, 5), values("k", 8, 3, 5), values("v", 8, 3, 4)), _packed),
    "masks/all": Case(
        Operator,
        (),
        lambda module: [
            masks.causal(4, 5, offset=1),
            masks.sliding(4, 5, left=1, right=2),
            masks.padding([1, 3], 4),
            masks.over_keys(masks.padding([1, 3], 4)),
            masks.from_ignore(torch.tensor([False, True])),
            masks.from_ones(torch.tensor([1, 0])),
        ],
        gradients=False,
    ),
    # layers
    "MultiHeadAttention/self": Case(_multihead(), (X,), lambda m, x: m(x, lengths=[5, 3], return_map=True)),
    "MultiHeadAttention/causal": Case(_multihead(), (X,), lambda m, x: m(x, is_causal=True)),
    "MultiHeadAttention/cross": Case(
        _multihead(key_width=10, value_width=10), (X, MEMORY), lambda m, x, y: m(x, y, y, return_map=True)
    ),
    "MultiHeadAttention/groups": Case(_multihead(kv_heads=1, bias=False), (X,)),
    "MultiHeadAttention/rotary": Case(_multihead(position=layers.RotaryPosition()), (X,)),
    "MultiHeadAttention/additive": Case(_multihead(similarity="additive"), (X,)),
    "MultiHeadAttention/bilinear": Case(_multihead(similarity="bilinear"), (X,)),
    "Cache/steps": Case(_multihead(position=layers.RotaryPosition()), (X,), _cached_steps, gradients=False),
    "EncoderBlock/after": Case(_encoder(), (X,), lambda m, x: m(x, lengths=[5, 3], return_map=True)),
    "EncoderBlock/first": Case(_encoder(norm_first=True), (X,), lambda m, x: m(x, is_causal=True, return_map=True)),
    "EncoderBlock/dropout": Case(_encoder(dropout=0.25), (X,), training=True),
    "EncoderBlock/inference": Case(_encoder(), (X,), gradients=False),
    "DecoderBlock/all": Case(_decoder, (X, MEMORY), lambda m, x, y: m(x, y, memory_lengths=[7, 2], return_maps=True)),
    "DecoderCache/steps": Case(_decoder, (X, MEMORY), _decoder_steps, gradients=False),
    "Residual/after": Case(
        lambda: layers.Residual(nn.LayerNorm(12), norm_first=False), (X,), lambda m, x: m(x, torch.sin)
    ),
    "FeedForward/relu": Case(lambda: layers.FeedForward(12, 17), (X,)),
    "GatedFeedForward/silu": Case(lambda: layers.GatedFeedForward(12, 17), (X,)),
    "Dropout/training": Case(lambda: layers.Dropout(0.3), (X,), training=True),
    "LearnedPosition/offset": Case(lambda: layers.LearnedPosition(12, length=9), (X,), lambda m, x: m(x, offset=2)),
    "SinusoidalPosition/offset": Case(lambda: layers.SinusoidalPosition(12), (X,), lambda m, x: m(x, offset=2)),
    "RotaryPosition/offset": Case(lambda: layers.RotaryPosition(), (X,), lambda m, x: m(x, offset=2)),
    "sinusoids/all": Case(Operator, (), _sinusoids, gradients=False),
    "split_heads/merge": Case(Operator, (X,), lambda m, x: [y := layers.split_heads(x, 3), layers.merge_heads(y * y)]),
    "LearnedSimilarity/additive": Case(
        lambda: layers.LearnedSimilarity(regard.Additive, torch.ones(7)), QKV, _attend(lambda module: module())
    ),
    "AveragePooling/lengths": Case(layers.AveragePooling, (X,), lambda m, x: m(x, lengths=[5, 3], return_map=True)),
    "MaxPooling/lengths": Case(layers.MaxPooling, (X,), lambda m, x: m(x, lengths=[5, 3])),
    "FullyConnectedPooling/lengths": Case(
        lambda: layers.FullyConnectedPooling(12), (X,), lambda m, x: m(x, lengths=[5, 3], return_map=True)
    ),
    "AttentionPooling/additive": Case(
        lambda: layers.AttentionPooling(12, 10, 7, similarity="additive"),
        (X, MEMORY),
        lambda m, x, y: m(x, y, lengths=[7, 2], return_map=True),
    ),
    "KernelPooling/learnable": Case(
        layers.KernelPooling, (X, X + 1, MEMORY[:, :5]), lambda m, *x: m(*x, return_map=True)
    ),
    # models
    "Bert/pooled": Case(_bert, (TEXTS, SEGMENTS), lambda m, t, s: [m(t, KEEP, s, return_maps=True), m.pooled(t, KEEP)]),
    "Bert/mean": Case(lambda: _bert(pool="mean"), (TEXTS,), lambda m, t: m.pooled(t, KEEP)),
    "Bert/inference": Case(_bert, (TEXTS,), lambda m, t: [m(t, KEEP), m(t), m.pooled(t)], gradients=False),
    "MaskedTokens/all": Case(lambda: models.MaskedTokens(_bert(pooler=False)), (TEXTS,), lambda m, t: m(t, KEEP)),
    "NextSentence/all": Case(lambda: models.NextSentence(_bert()), (TEXTS, SEGMENTS), lambda m, t, s: m(t, KEEP, s)),
    "Pretraining/all": Case(lambda: models.Pretraining(_bert()), (TEXTS, SEGMENTS), lambda m, t, s: m(t, KEEP, s)),
    "SequenceClassifier/all": Case(lambda: models.SequenceClassifier(_bert(), 3), (TEXTS,), lambda m, t: m(t, KEEP)),
    "TokenClassifier/all": Case(
        lambda: models.TokenClassifier(_bert(pooler=False), 3), (TEXTS,), lambda m, t: m(t, KEEP)
    ),
    "SentenceEmbedder/all": Case(lambda: models.SentenceEmbedder(_bert()), (TEXTS,), lambda m, t: m(t, KEEP)),
    "GPT/gpt2": Case(_gpt(GPT2), (TEXTS,), lambda m, t: m(t, KEEP, return_maps=True)),
    "GPT/llama": Case(_gpt(LLAMA), (TEXTS,), lambda m, t: m(t, KEEP, return_maps=True)),
    "GPT/biases": Case(_gpt(LLAMA, bias="qkv", tied=False, rotary_factor=3.0), (TEXTS,), lambda m, t: m(t)),
    "GPT/window": Case(
        _gpt(LLAMA, window=3, rotary_factor=3.0, rotary_bands=(0.5, 2.0, 7)), (TEXTS,), lambda m, t: m(t)
    ),
    "GPT/steps": Case(_gpt(LLAMA, window=3), (TEXTS,), _gpt_steps, gradients=False),
    "GPT/dropout": Case(_gpt(GPT2, dropout=0.25), (TEXTS,), lambda m, t: m(t, KEEP), training=True),
    "ViT/class": Case(
        lambda: models.ViT(VIT), (values("images", 2, 1, 8, 12),), lambda m, x: [m(x, return_maps=True), m.encode(x)]
    ),
    "ViT/mean": Case(
        lambda: models.ViT(dataclasses.replace(VIT, pool="mean", position="sinusoidal", stem=5)),
        (values("images", 2, 1, 8, 12),),
    ),
    "CNN/evaluation": Case(lambda: models.CNN(CNN), (values("images", 3, 2, 8, 12),)),
    "CNN/training": Case(lambda: models.CNN(CNN), (values("images", 3, 2, 8, 12),), training=True),
    "Transformer/first": Case(_transformer(), (SOURCE, TARGET), _translated),
    "Transformer/after": Case(
        _transformer(norm_first=False, tie="none", activation="gelu"), (SOURCE, TARGET), _translated
    ),
    "Transformer/rotary": Case(_transformer(position="rotary"), (SOURCE, TARGET), _translated),
    "Transformer/learned": Case(_transformer(position="learned"), (SOURCE, TARGET), _translated),
    "Transformer/dropout": Case(_transformer(dropout=0.25), (SOURCE, TARGET), _translated, training=True),
    "Seq2Seq/additive": Case(_recurrent(), (SOURCE, TARGET), _translated),
    "Seq2Seq/lstm": Case(_recurrent(cell="lstm", context="bilinear", layers=2), (SOURCE, TARGET), _translated),
    "Seq2Seq/fixed": Case(_recurrent(context="fixed", bidirectional=False), (SOURCE, TARGET), _translated),
    "greedy/transformer": Case(_transformer(), (SOURCE,), _greedy, gradients=False),
    "greedy/recurrent": Case(_recurrent(), (SOURCE,), _greedy, gradients=False),
    "beam/transformer": Case(_transformer(), (SOURCE,), _beam, gradients=False),
    "beam/recurrent": Case(_recurrent(), (SOURCE,), _beam, gradients=False),
    "AttentiveContext/additive": Case(
        lambda: models.AttentiveContext(6, 4), (values("state", 2, 6), values("states", 2, 5, 4)), _context
    ),
    "FixedContext/all": Case(models.FixedContext, (values("state", 2, 6), values("states", 2, 5, 4)), _context),
}
"""By the public name that is called and a variant."""

ELSEWHERE = {
    "AttentionMap": "returned by every case of attend",
    "load": "the stored runs are opened by commands",
    "load_capture": "the stored capture is opened",
    "train_image_classifier": "the runs are made with the same recipe",
    "train_language_model": "the runs are made with the same recipe",
    "train_masked_language_model": "the runs are made with the same recipe",
    "train_text_classifier": "the runs are made with the same recipe",
    "train_translator": "the runs are made with the same recipe",
    "watch": "the capture is made with it",
    "show_heatmaps": "a drawing: depends on the fonts of the machine",
    "DecoderMaps": "returned by DecoderBlock",
    "merge_heads": "in the case of split_heads",
    "Hypothesis": "returned by greedy and beam",
    "Memory": "in the cases of contexts and translators",
    "EncoderDecoder": "a protocol",
    "Translator": "the former name of EncoderDecoder",
    "load_bert": "the stored export is read",
    "save_bert": "the export is written with it",
    "load_gpt": "compared with transformers in tests/models",
    "save_gpt": "compared with transformers in tests/models",
    "load_gguf": "compared with transformers in tests/models",
    "load_vit": "compared with transformers in tests/models",
    "save_vit": "compared with transformers in tests/models",
    "to_ctranslate2": "compared with CTranslate2 in tests/models",
    "Decoder": "a protocol",
    "Sampling": "compared with transformers in tests/models",
    "generate": "compared with transformers in tests/models",
    "generate_steps": "compared with transformers in tests/models",
    "TokenSteps": "returned by generate_steps",
    "TokenStep": "returned by generate_steps",
    "TokenGeneration": "returned by generate",
    "LastTokenClassifier": "a linear layer on the GPT of other cases",
    "BertConfig": "of Bert",
    "GPTConfig": "of GPT",
    "CNNConfig": "of CNN",
    "Seq2SeqConfig": "of Seq2Seq",
    "TransformerConfig": "of Transformer",
    "ViTConfig": "of ViT",
}
"""Public names without a case of their own, and where they are used."""
