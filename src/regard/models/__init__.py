"""Models: translators, recurrent and Transformers, and the search over them; BERT and its heads."""

from .bert import Bert, BertConfig
from .bert_files import load_bert, save_bert
from .bert_heads import MaskedTokens, NextSentence, Pretraining, SentenceEmbedder, SequenceClassifier, TokenClassifier
from .context import AttentiveContext, FixedContext
from .search import Hypothesis, beam, greedy
from .seq2seq import Seq2Seq, Seq2SeqConfig
from .transformer import Transformer, TransformerConfig
from .translator import Memory, Translator

__all__ = [
    "AttentiveContext",
    "Bert",
    "BertConfig",
    "FixedContext",
    "Hypothesis",
    "MaskedTokens",
    "Memory",
    "NextSentence",
    "Pretraining",
    "SentenceEmbedder",
    "Seq2Seq",
    "Seq2SeqConfig",
    "SequenceClassifier",
    "TokenClassifier",
    "Transformer",
    "TransformerConfig",
    "Translator",
    "beam",
    "greedy",
    "load_bert",
    "save_bert",
]
