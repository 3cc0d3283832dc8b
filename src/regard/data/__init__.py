"""Data: text → ids → batches."""

from .batches import Batch, Batches, Plan
from .characters import Characters
from .corpus import Corpus, encode_pairs
from .parallel import Report, read_pairs
from .subwords import Subwords
from .vocabulary import BOS, EOS, PAD, UNK, Vocabulary, load_vocabulary
from .wordpiece import WordPiece

__all__ = [
    "BOS",
    "EOS",
    "PAD",
    "UNK",
    "Batch",
    "Batches",
    "Characters",
    "Corpus",
    "Plan",
    "Report",
    "Subwords",
    "Vocabulary",
    "WordPiece",
    "encode_pairs",
    "load_vocabulary",
    "read_pairs",
]
