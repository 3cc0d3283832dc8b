"""Types of the settings that the training functions accept by name.

They repeat the fields of the recipes, where each is documented (`regard train RECIPE --help-all`), because type
checkers cannot derive them. A test compares both.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal, TypeAlias, TypedDict

File: TypeAlias = str | os.PathLike[str]
"""Path of a file or folder."""
Files: TypeAlias = File | Sequence[File]
"""Paths of one or more files."""


class TrainingSettings(TypedDict, total=False):
    """Settings of the training loop: the fields of `Training`."""

    steps: int | None
    epochs: int | None
    minutes: float | None
    learning_rate: float
    warmup: float
    schedule: Literal["cosine", "linear", "inverse_sqrt", "constant"]
    final_rate: float
    betas: tuple[float, float]
    epsilon: float
    weight_decay: float
    clip: float
    accumulate: int
    average: Literal["none", "exponential", "last"]
    average_decay: float
    average_states: int
    average_every: int
    evaluate_every: int
    patience: int
    log_every: int
    save_every: int
    save_seconds: float
    seed: int
    device: str
    precision: Literal["auto", "float32", "bfloat16"]
    compile: bool


class ModelSettings(TrainingSettings, total=False):
    """Settings of the training loop, and sizes that all models have."""

    width: int
    heads: int
    layers: int
    attention_dropout: float


class TranslatorSettings(ModelSettings, total=False):
    """Settings of `train_translator`, for both kinds of model."""

    smoothing: float
    vocabulary: int
    subwords: Literal["bpe", "unigram", "characters"]
    joint: bool
    longest: int
    tokens: int
    badly_encoded: float | None
    hold_out: float | None
    header: bool | None
    hidden: int
    encoder_layers: int
    decoder_layers: int
    norm_first: bool
    position: Literal["sinusoidal", "learned", "rotary"]
    similarity: str
    activation: Literal["relu", "gelu", "silu"]
    dropout: float
    tie: Literal["none", "target", "all"]
    positions: int
    encoder_hidden: int
    cell: Literal["gru", "lstm"]
    bidirectional: bool
    context: str


class LanguageModelSettings(ModelSettings, total=False):
    """Settings of `train_language_model`, for all kinds of model."""

    vocabulary: Literal["characters"] | int
    hold_out: float
    context: int | None
    batch: int
    evaluate_tokens: int | None
    badly_encoded: float | None
    kv_heads: int | None
    hidden: int | None
    norm: Literal["layer", "rms"]
    position: Literal["learned", "rotary"]
    feedforward: Literal["plain", "gated"]
    activation: str
    bias: Literal["all", "qkv", "none"]
    tied: bool
    window: int | None
    rotary_base: float
    dropout: float | None


class BertSettings(ModelSettings, total=False):
    """Settings that the training of every BERT has."""

    hold_out: float
    lower: bool
    longest: int
    tokens: int
    badly_encoded: float | None
    vocabulary: int
    hidden: int
    positions: int


class PretrainingSettings(BertSettings, total=False):
    """Settings of `train_masked_language_model`."""

    documents: Literal["blank", "line", "file"]
    mask: float
    whole_words: bool
    next_sentence: bool
    dropout: float
    pool: Literal["first", "mean"]


class TextClassifierSettings(BertSettings, total=False):
    """Settings of `train_text_classifier`, from scratch and from a pretrained model."""

    smoothing: float
    layer_decay: float
    dropout: float | None
    pool: Literal["first", "mean"] | None
    text_column: str
    label_column: str
    header: bool | None


class ImageClassifierSettings(ModelSettings, total=False):
    """Settings of `train_image_classifier`, for both kinds of model."""

    smoothing: float
    hold_out: float
    size: int
    colour: Literal["auto", "grey", "colour"]
    batch: int
    flip: float
    crop: int
    erase: float
    mixup: float
    patch: int
    stem: int
    hidden: int
    pool: Literal["class", "mean"]
    position: Literal["learned", "sinusoidal"]
    activation: Literal["relu", "gelu", "silu"]
    dropout: float
    norm_epsilon: float
    widths: tuple[int, ...]
    blocks: int
