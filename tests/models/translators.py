"""Small translators of every kind, and sentences for them."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from regard.data import BOS, EOS
from regard.models import Seq2Seq, Seq2SeqConfig, Transformer, TransformerConfig
from regard.models.decoder_context import CONTEXTS

B, TS, T, SOURCE, TARGET = 3, 7, 5, 17, 19
LENGTHS = (7, 2, 5)
RECURRENT = Seq2SeqConfig(SOURCE, TARGET, width=10, hidden=8, encoder_hidden=4)
ATTENTIVE = TransformerConfig(SOURCE, TARGET, width=12, heads=3, hidden=14, encoder_layers=2, decoder_layers=2)

CONFIGS: dict[str, Seq2SeqConfig | TransformerConfig] = {
    **{name: replace(RECURRENT, context=name) for name in CONTEXTS},
    "lstm": replace(RECURRENT, cell="lstm", tie="none"),
    "deep": replace(RECURRENT, layers=3),
    "deep lstm": replace(RECURRENT, layers=2, cell="lstm", bidirectional=False, encoder_hidden=8),
    "deep fixed": replace(RECURRENT, layers=2, context="fixed"),
    "one direction": replace(RECURRENT, bidirectional=False, encoder_hidden=8, context="dot"),
    "transformer": ATTENTIVE,
    "norm after": replace(ATTENTIVE, norm_first=False, activation="gelu"),
    "learned": replace(ATTENTIVE, position="learned", positions=9, tie="none"),
    "rotary": replace(ATTENTIVE, position="rotary"),
    "dot transformer": replace(ATTENTIVE, similarity="dot"),
    "cosine transformer": replace(ATTENTIVE, similarity="cosine"),
    "additive transformer": replace(ATTENTIVE, similarity="additive"),
    "bilinear transformer": replace(ATTENTIVE, similarity="bilinear", activation="silu"),
    "joint": replace(ATTENTIVE, source_vocabulary=TARGET, tie="all"),
}


def build(name: str, dtype: torch.dtype = torch.float64) -> Seq2Seq | Transformer:
    config = CONFIGS[name]
    model = Seq2Seq(config) if isinstance(config, Seq2SeqConfig) else Transformer(config)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            nn.init.normal_(parameter, std=0.3)  # biases of zero would hide a swap
    return model.to(dtype).eval()


def sentences(dtype: torch.dtype = torch.long) -> tuple[Tensor, Tensor, Tensor]:
    """Source, its lengths, and target input; what is beyond a length is noise."""
    target = torch.randint(EOS + 1, TARGET, (B, T))
    target[:, 0] = BOS
    return torch.randint(EOS + 1, SOURCE, (B, TS)), torch.tensor(LENGTHS), target
