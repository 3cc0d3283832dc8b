"""Models: translators with recurrent states, with and without attention, and Transformers; and the search over them."""

from .context import AttentiveContext, FixedContext
from .search import Hypothesis, beam, greedy
from .seq2seq import Seq2Seq, Seq2SeqConfig
from .transformer import Transformer, TransformerConfig
from .translator import Memory, Translator

__all__ = [
    "AttentiveContext",
    "FixedContext",
    "Hypothesis",
    "Memory",
    "Seq2Seq",
    "Seq2SeqConfig",
    "Transformer",
    "TransformerConfig",
    "Translator",
    "beam",
    "greedy",
]
