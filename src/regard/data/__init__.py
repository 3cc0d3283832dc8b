"""Data sets: from text to ids to batches."""

from ..attention.packing import Packed, pack, unpack
from .byte_subwords import ByteSubwords
from .characters import Characters
from .corpus import Corpus, encode_pairs
from .model_tokenizer import ModelTokenizer
from .pair_batches import Batch, Batches, Plan
from .subwords import Subwords
from .text_files import Report, read_pairs
from .vocabulary import BOS, EOS, PAD, UNK, Vocabulary, load_vocabulary
from .wordpiece import WordPiece

__all__ = [
    "BOS",
    "EOS",
    "PAD",
    "UNK",
    "Batch",
    "Batches",
    "ByteSubwords",
    "Characters",
    "Corpus",
    "ModelTokenizer",
    "Packed",
    "Plan",
    "Report",
    "Subwords",
    "Vocabulary",
    "WordPiece",
    "encode_pairs",
    "load_vocabulary",
    "pack",
    "read_pairs",
    "unpack",
]
