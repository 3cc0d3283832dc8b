"""Layers built on the attention operator: multi-head attention, positions, feed-forward, blocks and pooling."""

from .blocks import DecoderBlock, DecoderMaps, EncoderBlock
from .cache import Cache, DecoderCache
from .dropout import Dropout
from .feedforward import FeedForward, GatedFeedForward
from .learned_similarity import LearnedSimilarity
from .multihead import MultiHeadAttention, merge_heads, split_heads
from .pooling import AttentionPooling, AveragePooling, FullyConnectedPooling, KernelPooling, MaxPooling
from .position import LearnedPosition, RotaryPosition, SinusoidalPosition, sinusoids
from .residual import Residual

__all__ = [
    "AttentionPooling",
    "AveragePooling",
    "Cache",
    "DecoderBlock",
    "DecoderCache",
    "DecoderMaps",
    "Dropout",
    "EncoderBlock",
    "FeedForward",
    "FullyConnectedPooling",
    "GatedFeedForward",
    "KernelPooling",
    "LearnedPosition",
    "LearnedSimilarity",
    "MaxPooling",
    "MultiHeadAttention",
    "Residual",
    "RotaryPosition",
    "SinusoidalPosition",
    "merge_heads",
    "sinusoids",
    "split_heads",
]
