"""Data sets: from text to ids to batches."""

from ..attention.packing import Packed, pack, unpack
from .augment import Augmentation
from .byte_subwords import ByteSubwords
from .characters import Characters
from .corpus import Corpus, encode_pairs
from .documents import encode_passages, read_documents
from .image_batches import ImageBatch, ImageBatches, Images, Normal, Shape
from .image_files import Folder, read_images
from .labelled_text import Columns, Example, read_labelled
from .masked_batches import MaskedBatch, MaskedBatches
from .model_tokenizer import ModelTokenizer
from .pair_batches import Batch, Batches, Plan
from .subwords import Subwords
from .text_batches import TextBatch, TextBatches
from .text_files import Report, read_pairs
from .vocabulary import BOS, EOS, PAD, UNK, Vocabulary, load_vocabulary
from .wordpiece import Encoded, WordPiece

__all__ = [
    "BOS",
    "EOS",
    "PAD",
    "UNK",
    "Augmentation",
    "Batch",
    "Batches",
    "ByteSubwords",
    "Characters",
    "Columns",
    "Corpus",
    "Encoded",
    "Example",
    "Folder",
    "ImageBatch",
    "ImageBatches",
    "Images",
    "MaskedBatch",
    "MaskedBatches",
    "ModelTokenizer",
    "Normal",
    "Packed",
    "Plan",
    "Report",
    "Shape",
    "Subwords",
    "TextBatch",
    "TextBatches",
    "Vocabulary",
    "WordPiece",
    "encode_pairs",
    "encode_passages",
    "load_vocabulary",
    "pack",
    "read_documents",
    "read_images",
    "read_labelled",
    "read_pairs",
    "unpack",
]
