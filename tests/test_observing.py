"""Observing never changes a result by a bit: with and without maps, watched or not, the same calls compute it.

Equal bits of different calls are luck, which another processor does not have. So each case is tested twice: on its
bits, and on the attention calls, which have to be the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import regard
from regard.attention import blocked, packed, reference, sdpa
from regard.attention.native import backend as native
from regard.attention.native import engine, packed_dot
from regard.data import BOS, EOS
from regard.layers import (
    AttentionPooling,
    AveragePooling,
    Cache,
    DecoderBlock,
    DecoderCache,
    EncoderBlock,
    FeedForward,
    FullyConnectedPooling,
    KernelPooling,
    MultiHeadAttention,
    RotaryPosition,
)
from regard.models import (
    Bert,
    BertConfig,
    MaskedTokens,
    NextSentence,
    Pretraining,
    SentenceEmbedder,
    Seq2Seq,
    Seq2SeqConfig,
    SequenceClassifier,
    TokenClassifier,
    Transformer,
    TransformerConfig,
    ViT,
    ViTConfig,
    beam,
    greedy,
)
from regard.models.decoder_context import CONTEXTS
from regard.models.fast_inference import FastDecoder, FastEncoder, fast_decoder
from regard.tasks.translator import Translation, Translator
from tests.attention.refusals import assert_refused

W, H, V = 24, 3, 37
LENGTHS = [61, 1, 40, 17, 9, 53]  # enough tokens for the joint projections, and no two sequences alike
KEY_LENGTHS = [5, 44, 1, 30, 61, 12]
B, T = len(LENGTHS), 64  # the padding is longer than any sequence


@dataclass(frozen=True)
class Case:
    """A module, and a call of it that may return maps."""

    make: Callable[[], nn.Module]
    call: Callable[[Any, bool], Any]
    """(module, whether maps are requested) → output, or (output, maps)"""
    maps: bool = True
    """Whether the module can return maps."""
    watched: bool = True
    """Whether the module has attention to watch."""
    trains: bool = True


def initialized(build: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    module = build()
    for parameter in module.parameters():
        if parameter.ndim == 1:
            nn.init.normal_(parameter, std=0.3)
    return module


def rand(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def ids(*shape: int, seed: int = 2) -> Tensor:
    return torch.randint(EOS + 1, V, shape, generator=torch.Generator().manual_seed(seed))


X, FLAT, MEMORY, FLAT_MEMORY = rand(B, T, W), rand(sum(LENGTHS), W), rand(B, T, W, seed=3), rand(sum(KEY_LENGTHS), W)
CUT, KEY_CUT = torch.tensor(LENGTHS), torch.tensor(KEY_LENGTHS)
IDS, SEGMENTS = ids(B, T), ids(B, T, seed=4) % 2
IMAGES = rand(7, 1, 28, 28)


def attention(**options: Any) -> Callable[[], nn.Module]:
    return lambda: MultiHeadAttention(W, H, **options)


def encoder(norm_first: bool = True, **options: Any) -> Callable[[], nn.Module]:
    return lambda: EncoderBlock(
        MultiHeadAttention(W, H, **options), FeedForward(W, 40), norm_first=norm_first, dropout=0.1
    )


def decoder() -> nn.Module:
    return DecoderBlock(MultiHeadAttention(W, H), MultiHeadAttention(W, H), FeedForward(W, 40), dropout=0.1)


def steps(block: nn.Module, maps: bool) -> Any:
    """Decode three steps with a cache."""
    cache, outputs, shown = DecoderCache(), [], []
    for t in range(3):
        result = block(X[:, t : t + 1], MEMORY, memory_lengths=KEY_CUT, cache=cache, return_maps=maps)
        outputs.append(result[0] if maps else result)
        shown.append(result[1] if maps else None)
    return (torch.cat(outputs, 1), shown) if maps else torch.cat(outputs, 1)


def cached(module: nn.Module, maps: bool) -> Any:
    cache = Cache()
    module(X[:, :5], is_causal=True, cache=cache)
    return module(X[:, 5:9], is_causal=True, cache=cache, return_map=maps)


def bert(head: Callable[[Bert], nn.Module], **options: Any) -> Callable[[], nn.Module]:
    config = BertConfig(V, W, H, 40, 2, T, dropout=0.1, **options)
    return lambda: head(Bert(config))


def read(model: nn.Module, maps: bool, lengths: Any = CUT) -> Any:
    return model(IDS, lengths, SEGMENTS, return_maps=maps)


def translator(config: Any) -> Callable[[], nn.Module]:
    return lambda: Seq2Seq(config) if isinstance(config, Seq2SeqConfig) else Transformer(config)


def decode(model: Any, maps: bool, lengths: Any = CUT) -> Any:
    memory = model.encode(IDS, KEY_CUT)
    return model.decode(IDS, memory, lengths=lengths, return_maps=maps)


def recur(model: Any, maps: bool) -> Any:
    return model.decode(IDS[:, :7], model.encode(IDS, KEY_CUT), return_maps=maps)


TRANSFORMER = TransformerConfig(V, V, W, H, 40, 2, 2, dropout=0.1)
RECURRENT = Seq2SeqConfig(V, V, width=10, hidden=8, encoder_hidden=4, dropout=0.1)
IMAGE = ViTConfig(classes=10, width=W, heads=H, hidden=40, layers=2, dropout=0.1)
HEADS: dict[str, Callable[[Bert], nn.Module]] = {
    "bert": lambda bert: bert,
    "masked tokens": MaskedTokens,
    "next sentence": NextSentence,
    "pretraining": Pretraining,
    "sequence classifier": lambda bert: SequenceClassifier(bert, 3),
    "token classifier": lambda bert: TokenClassifier(bert, 3),
    "sentence embedder": SentenceEmbedder,
}
PACKED: dict[str, Any] = {"packed": LENGTHS}
CASES: dict[str, Case] = {
    "multihead": Case(attention(), lambda m, maps: m(X, is_causal=True, return_map=maps)),
    "multihead, lengths": Case(attention(), lambda m, maps: m(X, lengths=CUT, return_map=maps)),
    "multihead, dropout": Case(attention(dropout=0.2), lambda m, maps: m(X, lengths=CUT, return_map=maps)),
    "multihead, packed": Case(attention(), lambda m, maps: m(FLAT, **PACKED, return_map=maps)),
    "multihead, packed, dropout": Case(attention(dropout=0.2), lambda m, maps: m(FLAT, **PACKED, return_map=maps)),
    "multihead, packed, additive": Case(
        attention(similarity="additive"), lambda m, maps: m(FLAT, **PACKED, is_causal=True, return_map=maps)
    ),
    "multihead, packed, rotary, shared heads": Case(
        attention(kv_heads=1, position=RotaryPosition()), lambda m, maps: m(FLAT, **PACKED, return_map=maps)
    ),
    "multihead, packed, cross": Case(
        attention(), lambda m, maps: m(FLAT, FLAT_MEMORY, packed=(LENGTHS, KEY_LENGTHS), return_map=maps)
    ),
    "multihead, cache": Case(attention(), cached, trains=False),
    "multihead, window": Case(
        attention(attend=partial(regard.attend, window=(7, 0), softcap=5.0)), lambda m, maps: m(X, return_map=maps)
    ),
    "encoder block": Case(encoder(), lambda m, maps: m(X, lengths=CUT, return_map=maps)),
    "encoder block, norm after": Case(encoder(False), lambda m, maps: m(X, lengths=CUT, return_map=maps)),
    "encoder block, packed": Case(encoder(), lambda m, maps: m(FLAT, **PACKED, return_map=maps)),
    "encoder block, first": Case(encoder(), lambda m, maps: m.first(X, return_map=maps)),
    "encoder block, first, packed": Case(encoder(False), lambda m, maps: m.first(FLAT, packed=CUT, return_map=maps)),
    "encoder block, first, rotary": Case(
        encoder(position=RotaryPosition(), kv_heads=1), lambda m, maps: m.first(X, return_map=maps)
    ),
    "encoder block, first, packed, dropout": Case(
        encoder(dropout=0.2), lambda m, maps: m.first(FLAT, packed=CUT, return_map=maps)
    ),
    "decoder block": Case(decoder, lambda m, maps: m(X, MEMORY, memory_lengths=KEY_CUT, return_maps=maps)),
    "decoder block, packed": Case(
        decoder, lambda m, maps: m(FLAT, FLAT_MEMORY, packed=(LENGTHS, KEY_LENGTHS), return_maps=maps)
    ),
    "decoder block, steps": Case(decoder, steps, trains=False),
    "average pooling": Case(AveragePooling, lambda m, maps: m(X, lengths=CUT, return_map=maps), watched=False),
    "fully connected pooling": Case(
        lambda: FullyConnectedPooling(W), lambda m, maps: m(X, lengths=CUT, return_map=maps)
    ),
    "attention pooling": Case(
        lambda: AttentionPooling(W, W, 8, similarity="additive", dropout=0.2),
        lambda m, maps: m(X, MEMORY, lengths=KEY_CUT, return_map=maps),
    ),
    "kernel pooling": Case(KernelPooling, lambda m, maps: m(X, MEMORY, MEMORY, lengths=KEY_CUT, return_map=maps)),
    **{f"{name}": Case(bert(head), read) for name, head in HEADS.items()},
    "bert, whole texts": Case(bert(HEADS["bert"]), partial(read, lengths=None)),
    "bert, full lengths": Case(bert(HEADS["sequence classifier"]), partial(read, lengths=[T] * B)),
    "bert, an empty text": Case(bert(HEADS["sequence classifier"]), partial(read, lengths=[0, *LENGTHS[1:]])),
    "bert, mean": Case(bert(HEADS["sequence classifier"], pool="mean"), read),
    "bert, dropout of weights": Case(bert(HEADS["sequence classifier"], attention_dropout=0.2), read),
    "transformer": Case(translator(TRANSFORMER), decode),
    "transformer, norm after": Case(translator(replace(TRANSFORMER, norm_first=False)), decode),
    "transformer, rotary": Case(translator(replace(TRANSFORMER, position="rotary")), decode),
    "transformer, whole targets": Case(translator(TRANSFORMER), partial(decode, lengths=None)),
    "transformer, forward": Case(translator(TRANSFORMER), lambda m, maps: m(IDS, KEY_CUT, IDS, CUT), maps=False),
    **{
        f"seq2seq, {name}": Case(translator(replace(RECURRENT, context=name)), recur, watched=name != "fixed")
        for name in CONTEXTS
    },
    "vit, class token": Case(lambda: ViT(IMAGE), lambda m, maps: m(IMAGES, return_maps=maps)),
    "vit, mean": Case(lambda: ViT(replace(IMAGE, pool="mean")), lambda m, maps: m(IMAGES, return_maps=maps)),
    "vit, dropout of weights": Case(
        lambda: ViT(replace(IMAGE, attention_dropout=0.2)), lambda m, maps: m(IMAGES, return_maps=maps)
    ),
    "vit, tokens": Case(lambda: ViT(IMAGE), lambda m, maps: m.encode(IMAGES, return_maps=maps)),
}


@dataclass(frozen=True)
class Run:
    """Results of a call, and the attention calls that computed them."""

    outputs: list[Tensor]
    gradients: list[Tensor | None]
    random: Tensor
    calls: list[Any]


def run(case: Case, training: bool, maps: bool, watched: bool) -> Run:
    module = initialized(case.make).train(training)
    torch.manual_seed(5)
    with counting() as calls, regard.watch(module) if watched else nullcontext() as seen:
        result = case.call(module, maps)
    outputs = [x for x in tree_leaves(result[0] if maps else result) if isinstance(x, Tensor)]
    random = torch.get_rng_state()
    gradients: list[Tensor | None] = []
    parameters = list(module.parameters())
    if training and parameters:
        gradients = list(torch.autograd.grad(sum(x.square().sum() for x in outputs), parameters, allow_unused=True))  # type: ignore[arg-type]
    if watched and case.watched:
        assert len(seen) and not seen.missed, f"nothing was seen: {seen.missed}"
    return Run(outputs, gradients, random, calls)


@contextmanager
def counting() -> Iterator[list[Any]]:
    """Record every request with its backend, shapes, strides, dtype and threads."""
    calls: list[Any] = []

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(request: Any, *rest: Any) -> Any:
            tensors = [(tuple(x.shape), x.stride(), x.dtype) for x in (request.q, request.k, request.value)]
            calls.append((name, tensors, type(request.similarity), request.dropout_p, torch.get_num_threads()))
            return function(request, *rest)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for backend in (native, sdpa, blocked, reference):
            patch.setattr(backend, "context", counted(backend.name, backend.context))
        patch.setattr(packed_dot, "context", counted("packed", packed_dot.context))
        patch.setattr(packed, "_padded", counted("padded", packed._padded))
        yield calls


@pytest.fixture(params=["native, 1 thread", "native, 4 threads", "PyTorch, 4 threads"])
def host(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run with the native kernels, and as on a machine without a compiler."""
    who, threads = request.param.split(", ")
    if who == "PyTorch":
        monkeypatch.setattr(engine, "module", None)
    elif engine.module is None:
        pytest.skip(f"native: {engine.reason}")
    before = torch.get_num_threads()
    torch.set_num_threads(int(threads[0]))
    yield
    torch.set_num_threads(before)


def same(one: Run, other: Run) -> None:
    assert one.calls == other.calls
    assert len(one.outputs) == len(other.outputs) and all(map(torch.equal, one.outputs, other.outputs))
    assert torch.equal(one.random, other.random), "random numbers were drawn to observe"
    for a, b in zip(one.gradients, other.gradients, strict=True):
        assert (a is None and b is None) or (a is not None and b is not None and torch.equal(a, b))


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize(
    ("name", "training"),
    [
        pytest.param(name, training, id=f"{name}-{'training' if training else 'evaluating'}")
        for name, case in CASES.items()
        for training in (False, True)
        if case.trains or not training
    ],
)
def test_observing_does_not_change_a_result(name: str, training: bool) -> None:
    case = CASES[name]
    with nullcontext() if training else torch.no_grad():
        alone = run(case, training, maps=False, watched=False)
        assert alone.calls or name == "seq2seq, fixed"
        same(alone, run(case, training, maps=False, watched=True))
        if case.maps:
            same(alone, run(case, training, maps=True, watched=False))
            same(alone, run(case, training, maps=True, watched=True))


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize("name", [name for name in CASES if CASES[name].maps and name != "seq2seq, fixed"])
def test_maps_show_the_actual_computation(name: str) -> None:
    """Every row of every map sums to one, or to zero in padding. Watched and returned maps are the same."""
    case = CASES[name]
    module = initialized(case.make).eval()
    with torch.no_grad(), regard.watch(module) as seen:
        _, maps = case.call(module, True)
    returned = [m for m in tree_leaves(maps) if isinstance(m, regard.AttentionMap)] + [
        m for several in tree_leaves(maps) if isinstance(several, regard.attention.PackedMaps) for m in several
    ]
    assert returned
    for m in [*returned, *seen]:
        total = m.dense().sum(-1)
        torch.testing.assert_close(total, (total > 0.5).to(total.dtype), rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize("name", ["bert", "sequence classifier"])
def test_packed_maps_have_the_weights_of_each_text_alone(name: str) -> None:
    model = initialized(CASES[name].make).eval()
    with torch.no_grad(), regard.watch(model) as seen:
        _, maps = read(model, True)
        alone = [
            model(IDS[b : b + 1, :n], None, SEGMENTS[b : b + 1, :n], return_maps=True)[1] for b, n in enumerate(LENGTHS)
        ]
    for layer, m in enumerate(maps):
        assert m.shape == (B, H, T, T)
        for b, n in enumerate(LENGTHS):
            weights = m[b]
            torch.testing.assert_close(weights[:, :n, :n], alone[b][layer].dense()[0], rtol=1e-4, atol=1e-5)
            assert not weights[:, n:].any() and not weights[..., n:].any()
    first = seen[0]  # as long as the longest text
    assert seen.names[0] == f"{'' if name == 'bert' else 'bert.'}blocks.0.attention"
    torch.testing.assert_close(first.dense(), maps[0][:, :, : max(LENGTHS), : max(LENGTHS)], rtol=1e-5, atol=1e-6)


Search = Callable[[Any], Any]
SEARCHES: dict[str, Search] = {
    "greedy": lambda model: greedy(model, IDS, KEY_CUT, longest=9),
    "beam": lambda model: beam(model, IDS, KEY_CUT, size=4, n_best=2, longest=9),
}


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize("fast", [True, False], ids=["fast", "plain"])
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("config", ["before", "rotary", "recurrent"])
def test_watching_does_not_change_a_search(config: str, search: str, fast: bool) -> None:
    configs = {"before": TRANSFORMER, "rotary": replace(TRANSFORMER, position="rotary"), "recurrent": RECURRENT}
    model: Any = initialized(translator(configs[config])).eval()
    results = []
    for watched in (False, True):
        with counting() as calls, regard.watch(model) if watched else nullcontext() as seen:
            chosen = fast_decoder(model) if fast else model
            assert isinstance(chosen, FastDecoder) is (fast and config != "recurrent")
            results.append((SEARCHES[search](chosen), calls))
    assert results[0] == results[1]
    assert len(seen) and not seen.missed


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize("search", SEARCHES)
def test_fast_decoding_shows_the_maps_of_the_model(search: str) -> None:
    """Both decoders join steps into the same maps, and reordered beams are kept separate."""
    model: Any = initialized(translator(TRANSFORMER)).eval()
    maps = []
    for one in (model, fast_decoder(model)):
        with regard.watch(model) as seen:
            SEARCHES[search](one)
        maps.append(seen)
    assert maps[0].names == maps[1].names and maps[0].kinds == maps[1].kinds
    for a, b in zip(*maps, strict=True):
        torch.testing.assert_close(a.dense(), b.dense(), rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize("size", [1, 3])
def test_watching_does_not_change_translations(size: int) -> None:
    """Several batches, which run in parallel unless the model is watched."""
    model: Any = initialized(translator(TRANSFORMER)).eval()
    user = Translator(model, None, None)  # type: ignore[arg-type]  # ids alone
    rows = [(*ids(n, seed=n).tolist(), EOS) for n in LENGTHS]
    results: list[Any] = []
    for watched in (False, True):
        with regard.watch(model) if watched else nullcontext() as seen:
            results.append(user.search(rows, size=size, longest=7, tokens=150))
    assert results[0] == results[1] and len(seen)


@pytest.mark.usefixtures("host")
def test_watching_does_not_change_embeddings() -> None:
    model: Any = initialized(bert(HEADS["bert"])).eval()
    flat = torch.cat([row[:n] for row, n in zip(IDS, LENGTHS, strict=True)])
    results, every = [], []
    for watched in (False, True):
        with counting() as calls, regard.watch(model) if watched else nullcontext() as seen:
            results.append(FastEncoder(model)(flat, LENGTHS))
        every.append(calls)
    assert torch.equal(*results) and every[0] == every[1] and every[0]
    assert seen.names == ["blocks.0.attention", "blocks.1.attention"]
    with torch.no_grad():
        _, maps = model(IDS, CUT, return_maps=True)
    for m, wanted in zip(seen, maps, strict=True):
        torch.testing.assert_close(m.dense(), wanted[:, :, : max(LENGTHS), : max(LENGTHS)], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", ["auto", "native", "torch", "blocked", "reference"])
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"is_causal": True, "dropout_p": 0.3}], ids=str)
def test_operators(backend: str, options: dict[str, Any]) -> None:
    padded, flat = [rand(B, H, T, 8, seed=n) for n in range(3)], [rand(sum(LENGTHS), H, 8, seed=n) for n in range(3)]
    if backend == "native" and (engine.module is None or "dropout_p" in options):  # no kernels, or none with dropout
        assert_refused(backend, lambda: regard.attend(*padded, **options, lengths=CUT, backend=backend))
        return
    watching: list[AbstractContextManager[Any]] = [nullcontext(), regard.watch(nn.Identity())]
    results: list[Any] = []
    for watch in watching:
        for maps in (False, True):
            torch.manual_seed(0)
            with counting() as calls, watch if maps else nullcontext():
                one = regard.attend(*padded, **options, lengths=CUT, backend=backend, return_map=maps)
                other = regard.attend_packed(*flat, LENGTHS, **options, backend=backend, return_maps=maps)
            results.append((*((one[0], other[0]) if maps else (one, other)), calls))
    for one, other, calls in results[1:]:
        assert torch.equal(one, results[0][0]) and torch.equal(other, results[0][1]) and calls == results[0][2]


def test_maps_restore_mode_and_random_state() -> None:
    """Neither the training mode nor the following random numbers change."""
    model: Any = initialized(translator(TRANSFORMER)).train()
    user = Translator(model, None, None)  # type: ignore[arg-type]
    one = Translation("", "", 0.0, (5, 6, 7, EOS), (8, 9, BOS))
    before = torch.get_rng_state()
    first, second = (user._map([one], -1) for _ in range(2))
    assert model.training and torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.dense(), second.dense())
