"""Models: recurrent and Transformer translators with beam search; BERT and its heads; GPT; Vision Transformer and
residual network for images."""

from .beam_search import Hypothesis, beam, greedy
from .bert import Bert, BertConfig
from .bert_heads import MaskedTokens, NextSentence, Pretraining, SentenceEmbedder, SequenceClassifier, TokenClassifier
from .cnn import CNN, CNNConfig
from .ctranslate2_export import to_ctranslate2
from .decoder_context import AttentiveContext, FixedContext
from .encoder_decoder import EncoderDecoder, Memory
from .generation import TokenGeneration, TokenStep, TokenSteps, generate, generate_steps
from .gguf_files import load_gguf
from .gpt import GPT, GPTConfig
from .gpt_heads import LastTokenClassifier
from .huggingface_bert import load_bert, save_bert
from .huggingface_gpt import load_gpt, save_gpt
from .huggingface_vit import load_vit, save_vit
from .sampling import Sampling
from .seq2seq import Seq2Seq, Seq2SeqConfig
from .token_decoder import Decoder
from .transformer import Transformer, TransformerConfig
from .vit import ViT, ViTConfig

Translator = EncoderDecoder
"""Deprecated: the former name of `EncoderDecoder`."""

__all__ = [
    "CNN",
    "GPT",
    "AttentiveContext",
    "Bert",
    "BertConfig",
    "CNNConfig",
    "Decoder",
    "EncoderDecoder",
    "FixedContext",
    "GPTConfig",
    "Hypothesis",
    "LastTokenClassifier",
    "MaskedTokens",
    "Memory",
    "NextSentence",
    "Pretraining",
    "Sampling",
    "SentenceEmbedder",
    "Seq2Seq",
    "Seq2SeqConfig",
    "SequenceClassifier",
    "TokenClassifier",
    "TokenGeneration",
    "TokenStep",
    "TokenSteps",
    "Transformer",
    "TransformerConfig",
    "Translator",
    "ViT",
    "ViTConfig",
    "beam",
    "generate",
    "generate_steps",
    "greedy",
    "load_bert",
    "load_gguf",
    "load_gpt",
    "load_vit",
    "save_bert",
    "save_gpt",
    "save_vit",
    "to_ctranslate2",
]
