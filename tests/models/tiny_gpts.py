"""Small language models of transformers, one for each supported form, and inputs for them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

V, W, H, GROUPS, HIDDEN, LAYERS, POSITIONS, B, T = 53, 42, 6, 3, 37, 2, 41, 4, 13
"""Prime or with prime factors, so that no two dimensions are confused. Rotary heads are of width 14: W_ROTARY / H."""
W_ROTARY = 84
LENGTHS = [13, 1, 7, 10]
_GPT2 = {"vocab_size": V, "n_embd": W, "n_head": H, "n_layer": LAYERS, "n_positions": POSITIONS}
_GPT2 |= {"n_inner": HIDDEN, "bos_token_id": None, "eos_token_id": None}
_LLAMA = {
    "vocab_size": V,
    "hidden_size": W_ROTARY,
    "num_attention_heads": H,
    "num_key_value_heads": GROUPS,
    "intermediate_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "max_position_embeddings": POSITIONS,
    "bos_token_id": None,
    "eos_token_id": None,
}
_LLAMA3 = {"rope_type": "llama3", "rope_theta": 300.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LLAMA3 |= {"original_max_position_embeddings": 23}
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", _GPT2),
    "gpt2 untied": ("GPT2LMHeadModel", _GPT2 | {"tie_word_embeddings": False, "activation_function": "relu"}),
    "llama": ("LlamaForCausalLM", _LLAMA | {"rms_norm_eps": 1e-3, "tie_word_embeddings": True}),
    "llama untied": ("LlamaForCausalLM", _LLAMA | {"num_key_value_heads": H, "hidden_act": "gelu"}),
    "llama biased": ("LlamaForCausalLM", _LLAMA | {"attention_bias": True, "mlp_bias": True}),
    "llama linear": (
        "LlamaForCausalLM",
        _LLAMA | {"rope_parameters": {"rope_type": "linear", "rope_theta": 77.0, "factor": 3.0}},
    ),
    "llama3": ("LlamaForCausalLM", _LLAMA | {"rope_parameters": _LLAMA3}),
    "qwen2": ("Qwen2ForCausalLM", _LLAMA),
    "qwen2 window": (
        "Qwen2ForCausalLM",
        _LLAMA | {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 0},
    ),
    "mistral": ("MistralForCausalLM", _LLAMA | {"sliding_window": 5}),
    "mistral without window": ("MistralForCausalLM", _LLAMA | {"sliding_window": None}),
}
"""Name → architecture and settings."""


def theirs(form: str, **options: Any) -> Any:
    """A random model of transformers, whose weights are large enough to matter; without dropout."""
    transformers = pytest.importorskip("transformers")
    architecture, settings = FORMS[form]
    kind = getattr(transformers, architecture)
    config = kind.config_class(**settings | options)
    torch.manual_seed(0)
    model = kind._from_config(config, attn_implementation="sdpa").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_norm = "ln_" in name or "norm" in name
            parameter.normal_(std=0.2).add_(1.0 if is_norm and name.endswith("weight") else 0.0)
    model.tie_weights()
    return model


def saved(form: str, folder: Path, **options: Any) -> Any:
    model = theirs(form, **options)
    model.save_pretrained(folder)
    return model


def inputs() -> tuple[Tensor, Tensor]:
    """ids (B, T) with zeros in padding, lengths (B,)."""
    drawn = torch.Generator().manual_seed(1)
    ids = torch.randint(1, V, (B, T), generator=drawn)
    lengths = torch.tensor(LENGTHS)
    ids[~real()] = 0
    return ids, lengths


def real() -> Tensor:
    """(B, T): True where there is a token."""
    return torch.arange(T) < torch.tensor(LENGTHS)[:, None]
