"""Models: translators with recurrent states, with and without attention, and Transformers; and the search over them.
Of images: the Vision Transformer and a residual network."""

from .cnn import CNN, CNNConfig
from .context import AttentiveContext, FixedContext
from .search import Hypothesis, beam, greedy
from .seq2seq import Seq2Seq, Seq2SeqConfig
from .transformer import Transformer, TransformerConfig
from .translator import Memory, Translator
from .vit import ViT, ViTConfig

__all__ = [
    "CNN",
    "AttentiveContext",
    "CNNConfig",
    "FixedContext",
    "Hypothesis",
    "Memory",
    "Seq2Seq",
    "Seq2SeqConfig",
    "Transformer",
    "TransformerConfig",
    "Translator",
    "ViT",
    "ViTConfig",
    "beam",
    "greedy",
]
