"""Calls of the public interface with the types that they must have.

mypy and pyright check this file (`make check`); it is never run. A wrong overload, or Any where a type is known, makes
`assert_type` an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import assert_type

import torch
from torch import Tensor, nn

import regard
from regard.attention import AttentionMap, PackedMaps
from regard.data import Batch, Batches, Characters, Images, Vocabulary, load_vocabulary
from regard.explain import Chart, explain
from regard.layers import (
    AttentionPooling,
    AveragePooling,
    DecoderBlock,
    DecoderMaps,
    EncoderBlock,
    FeedForward,
    KernelPooling,
    LearnedPosition,
    MultiHeadAttention,
)
from regard.lens import Profile, Rollout, Seen
from regard.models import (
    Bert,
    EncoderDecoder,
    Memory,
    Pretraining,
    Seq2Seq,
    SequenceClassifier,
    Transformer,
    ViT,
    beam,
    load_bert,
)
from regard.pictures import Picture
from regard.tasks import (
    Alignment,
    ImageClassifier,
    LanguageModel,
    Loss,
    MaskedLanguageModel,
    Task,
    TextClassifier,
    TrainedModel,
    Translation,
    Translator,
    load_image_classifier,
    load_text_classifier,
    load_translator,
)
from regard.training import Hook, Outcome, Training, fit, from_json


def operator(q: Tensor, k: Tensor, v: Tensor, flag: bool) -> None:
    assert_type(regard.attend(q, k, v), Tensor)
    assert_type(regard.attend(q, k, v, is_causal=True, return_map=False), Tensor)
    assert_type(regard.attend(q, k, v, return_map=True), tuple[Tensor, AttentionMap])
    assert_type(regard.attend(q, k, v, return_map=flag), Tensor | tuple[Tensor, AttentionMap])
    assert_type(regard.attend_packed(q, k, v, [3, 2]), Tensor)
    assert_type(regard.attend_packed(q, k, v, [3, 2], return_maps=True), tuple[Tensor, PackedMaps])
    assert_type(regard.attend_packed(q, k, v, [3, 2], return_maps=flag), Tensor | tuple[Tensor, PackedMaps])
    assert_type(regard.masks.causal(4), Tensor)


def similarities(q: Tensor, w: Tensor, network: nn.Module) -> None:
    def distance(q: Tensor, k: Tensor) -> Tensor:
        return -torch.cdist(q, k)

    regard.attend(q, q, q, similarity="cosine")
    regard.attend(q, q, q, similarity=regard.Additive(w))
    regard.attend(q, q, q, similarity=regard.Bilinear(w))
    regard.attend(q, q, q, similarity=distance)
    regard.attend(q, q, q, similarity=network)
    regard.attend(q, q, q, similarity="cosin")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    regard.attend(q, q, q, weighting="hardest")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]


def attention_map(m: AttentionMap, maps: PackedMaps, x: Tensor) -> None:
    assert_type(m[0, ..., 3:5], Tensor)
    assert_type(m.dense(), Tensor)
    assert_type(m.at(0, 3), AttentionMap)
    assert_type(m.shape, tuple[int, ...])
    assert_type(m.size(), torch.Size)
    assert_type(m.size(-1), int)
    assert_type(m.to("cpu"), AttentionMap)
    assert_type(m.to(torch.float64), AttentionMap | Tensor)
    assert_type(m @ x, Tensor)
    assert_type(m.tokens(query=["a"]), AttentionMap)
    assert_type(m.save("map.png", heads=[0, 1], scale="log"), Path)
    assert_type(m.show(title="map"), None)
    assert_type(maps[0], AttentionMap)
    assert_type(maps[1:], list[AttentionMap])
    m.save("map.png", colours="Reds")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def watching(model: nn.Module, x: Tensor) -> None:
    with regard.watch(model, layers="decoder.*") as seen:
        model(x)
    assert_type(seen, Seen)
    assert_type(seen[0], AttentionMap)
    assert_type(seen["encoder"], AttentionMap)
    assert_type(seen[1:3], Seen)
    assert_type(seen.filter(kind="cross"), Seen)
    assert_type(seen.rollout(), Rollout)
    assert_type(seen.profile(batch=1), Profile)
    assert_type(seen.grid(layers=[0, 1], scale="linear"), Picture)
    assert_type(seen.missed, list[str])
    assert_type(regard.load_capture("seen.safetensors"), Seen)


def layers(x: Tensor, flag: bool) -> None:
    attention = MultiHeadAttention(12, 3, similarity="additive")
    assert_type(attention(x), Tensor)
    assert_type(attention(x, lengths=[5, 4], return_map=True), tuple[Tensor, AttentionMap])
    assert_type(attention(x, packed=[5, 4], return_map=True), tuple[Tensor, PackedMaps])
    assert_type(attention(x, return_map=flag), Tensor | tuple[Tensor, AttentionMap | PackedMaps])
    assert_type(attention.forward(x, x), Tensor)
    encoder = EncoderBlock(attention, FeedForward(12, 48))
    assert_type(encoder(x, is_causal=True), Tensor)
    assert_type(encoder(x, return_map=True), tuple[Tensor, AttentionMap])
    assert_type(encoder.first(x), Tensor)
    decoder = DecoderBlock(attention, attention, FeedForward(12, 48))
    assert_type(decoder(x, x), Tensor)
    assert_type(decoder(x, x, memory_lengths=[3], return_maps=True), tuple[Tensor, DecoderMaps])
    assert_type(FeedForward(12, 48)(x), Tensor)
    assert_type(LearnedPosition(12, length=64)(x, offset=3), Tensor)
    assert_type(AveragePooling()(x), Tensor)
    assert_type(KernelPooling()(x, x, x, return_map=True), tuple[Tensor, AttentionMap])
    assert_type(AttentionPooling(4, 6, 8)(x, x, return_map=flag), Tensor | tuple[Tensor, AttentionMap])
    attention(x, retrun_map=True)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]


def models(
    bert: Bert, pretraining: Pretraining, vit: ViT, transformer: Transformer, seq2seq: Seq2Seq, x: Tensor
) -> None:
    assert_type(bert(x), Tensor)
    assert_type(bert(x, return_maps=True), tuple[Tensor, list[AttentionMap]])
    assert_type(bert.pooled(x), Tensor)
    assert_type(pretraining(x), tuple[Tensor, Tensor])
    assert_type(pretraining(x, return_maps=True), tuple[tuple[Tensor, Tensor], list[AttentionMap]])
    assert_type(vit(x), Tensor)
    assert_type(vit.encode(x, return_maps=True), tuple[Tensor, list[AttentionMap]])
    assert_type(transformer.encode(x, x), Memory)
    assert_type(transformer.decode(x, transformer.encode(x, x)), Tensor)
    assert_type(transformer(x, x, x, x), Tensor)
    for model in (transformer, seq2seq):
        translation_model: EncoderDecoder = model
        beam(translation_model, x, x, size=4)
    assert_type(load_bert("folder", SequenceClassifier), SequenceClassifier)
    assert_type(load_bert("folder"), nn.Module)


def trained_models(flag: bool) -> None:
    translator = load_translator("runs/x")
    assert_type(translator, Translator)
    assert_type(translator.translate("one text"), list[Translation])
    assert_type(translator.translate(["one", "two"], size=1), list[list[Translation]])
    assert_type(translator.translate("one", return_maps=True), tuple[list[Translation], list[AttentionMap]])
    assert_type(
        translator.translate(["one"], return_maps=True), tuple[list[list[Translation]], list[list[AttentionMap]]]
    )
    translator.translate("one", return_maps=flag)
    assert_type(translator.align(translator.known("a", "b")), Alignment)
    assert_type(translator.align(translator.translate(["a"])), list[Alignment])
    assert_type(translator("one text", size=1), str)
    assert_type(translator(["one", "two"]), list[str])
    assert_type(translator.maps("one text"), list[AttentionMap])
    assert_type(translator.evaluate("test.tsv")["bleu"], float)
    assert_type(regard.load("runs/x"), TrainedModel)
    assert_type(regard.load("runs/x", Translator), Translator)
    assert_type(regard.load("runs/l", LanguageModel)("a prompt"), str)
    assert_type(regard.load("runs/l", LanguageModel).evaluate("text.txt")["perplexity"], float)
    assert_type(regard.load("runs/y", TextClassifier)(["a text"]), list[str])
    assert_type(regard.load("runs/y", TextClassifier).evaluate("texts.tsv")["confusion"], list[list[int]])
    assert_type(regard.load("runs/z", ImageClassifier)("cat.png"), str)
    assert_type(regard.train_translator("runs/x", train=("a.de", "a.en"), minutes=3, kind="recurrent"), Translator)
    assert_type(regard.train_language_model("runs/l", train="text.txt", vocabulary="characters"), LanguageModel)
    assert_type(regard.train_text_classifier("runs/y", train=Path("texts.tsv"), start="runs/b"), TextClassifier)
    assert_type(regard.train_image_classifier("runs/z", train="images", widths=(4, 8)), ImageClassifier)
    assert_type(regard.train_masked_language_model("runs/b", train=["a.txt"], mask=0.3), MaskedLanguageModel)
    regard.train_translator("runs/x", minuts=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    regard.train_translator("runs/x", width="wide")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(load_text_classifier("runs/y"), TextClassifier)
    assert_type(load_text_classifier("runs/y").probabilities(["a text"]), Tensor)
    assert_type(load_image_classifier("runs/z"), ImageClassifier)
    assert_type(load_image_classifier("runs/z").look("cat.png"), Tensor | None)


class Copy(Task[Batch]):
    """A task of a user."""

    goal = ("loss", "min")

    def __init__(self, model: nn.Module, train: Batches) -> None:
        self.model, self.train = model, train

    def batch_loss(self, batch: Batch) -> Loss:
        return Loss(self.model(batch.source).sum(), batch.tokens)

    def evaluate(self) -> dict[str, float]:
        return {"loss": 0.0}


def training(model: nn.Module, batches: Batches) -> None:
    def log(record: Mapping[str, object]) -> None:
        print(record)

    hook: Hook = log
    assert_type(fit(Copy(model, batches), Training(steps=3), "runs/copy", hooks=[hook]), Outcome)
    assert_type(from_json(Training, "{}"), Training)
    assert_type(next(batches.epoch(0)), Batch)


def data_and_charts(images: Images) -> None:
    vocabulary: Vocabulary = Characters.train(["abc"])
    assert_type(vocabulary.encode("a"), list[int])
    assert_type(load_vocabulary("source.json"), Vocabulary)
    assert_type(images.take([0, 1]), Tensor)
    assert_type(explain("bahdanau", "the cat sat"), Chart)
    show: Callable[..., object] = regard.show_heatmaps
    del show
