"""Small BERTs of transformers, one for each head, and inputs for them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.models import MaskedTokens, NextSentence, Pretraining, SequenceClassifier, TokenClassifier
from regard.models.bert import Bert

V, W, H, HIDDEN, LAYERS, POSITIONS, C, B, T = 53, 24, 3, 40, 2, 19, 5, 4, 13
LENGTHS = [13, 1, 7, 10]
HEADS: dict[str, type[nn.Module]] = {
    "BertModel": Bert,
    "BertForMaskedLM": MaskedTokens,
    "BertForNextSentencePrediction": NextSentence,
    "BertForPreTraining": Pretraining,
    "BertForSequenceClassification": SequenceClassifier,
    "BertForTokenClassification": TokenClassifier,
}


def theirs(architecture: str, **options: Any) -> Any:
    """A random model of transformers, whose weights are large enough to matter; dropout as usual."""
    transformers = pytest.importorskip("transformers")
    labels = {"id2label": dict(enumerate("vwxyz"))} if "Classification" in architecture else {}
    config = transformers.BertConfig(
        **{
            "vocab_size": V,
            "hidden_size": W,
            "num_attention_heads": H,
            "intermediate_size": HIDDEN,
            "num_hidden_layers": LAYERS,
            "max_position_embeddings": POSITIONS,
        }
        | labels
        | options
    )
    torch.manual_seed(0)
    model = getattr(transformers, architecture)(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(std=0.3).add_(1.0 if "LayerNorm.weight" in name else 0.0)
    model.tie_weights()
    return model


def saved(architecture: str, folder: Path, **options: Any) -> Any:
    model = theirs(architecture, **options)
    model.save_pretrained(folder)
    return model


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    """ids (B, T) with zeros in padding, lengths (B,), segments (B, T)."""
    drawn = torch.Generator().manual_seed(1)
    ids = torch.randint(1, V, (B, T), generator=drawn)
    lengths = torch.tensor(LENGTHS)
    ids[torch.arange(T) >= lengths[:, None]] = 0
    return ids, lengths, (torch.arange(T) >= T // 2).long().expand(B, T).contiguous()


def real() -> Tensor:
    """(B, T): True where there is a token."""
    return torch.arange(T) < torch.tensor(LENGTHS)[:, None]


def outputs(model: Any, ids: Tensor, segments: Tensor) -> list[Tensor]:
    """Return the outputs of a model of transformers in our form: one row per token, without padding."""
    result = model(ids, attention_mask=real().long(), token_type_ids=segments)
    if type(model).__name__ == "BertModel":
        return [result.last_hidden_state[real()], result.pooler_output]
    if type(model).__name__ == "BertForPreTraining":
        return [result.prediction_logits[real()], result.seq_relationship_logits]
    return [result.logits[real()] if result.logits.ndim == 3 else result.logits]


def ours(model: Any, ids: Tensor, lengths: Tensor, segments: Tensor) -> list[Tensor]:
    result = model(ids, lengths, segments)
    result = (result, model.pool(result)) if isinstance(model, Bert) else result
    return [x[real()] if x.ndim == 3 else x for x in (result if isinstance(result, tuple) else (result,))]
