"""Language models of Hugging Face: reading and writing of model directories of GPT-2 and of the Llama family."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from ..core.tensors import dtype
from ..data.model_tokenizer import ModelTokenizer
from .gpt import GPT, GPTConfig
from .gpt_settings import architecture_of, config_from, config_to
from .model_directory import (
    block_names,
    fill,
    join_fused,
    read_config,
    read_tensors,
    split_fused,
    tensor_names,
    write,
)

_GPT2 = {
    "around_attention.norm": "ln_1",
    "attention.query": "attn.c_attn.0",
    "attention.key": "attn.c_attn.1",
    "attention.value": "attn.c_attn.2",
    "attention.out": "attn.c_proj",
    "around_feedforward.norm": "ln_2",
    "feedforward.up": "mlp.c_fc",
    "feedforward.down": "mlp.c_proj",
}
"""Layers of a block: our name → theirs. GPT-2 stores queries, keys and values as one layer, which is split here."""
_LLAMA = {
    "around_attention.norm": "input_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.out": "self_attn.o_proj",
    "around_feedforward.norm": "post_attention_layernorm",
    "feedforward.gate": "mlp.gate_proj",
    "feedforward.up": "mlp.up_proj",
    "feedforward.down": "mlp.down_proj",
}
_FUSED = ".attn.c_attn."
_TRANSPOSED = (".attn.c_attn.weight", ".attn.c_proj.weight", ".mlp.c_fc.weight", ".mlp.c_proj.weight")
"""Weights that GPT-2 stores as (in, out)."""
_PREFIX = {"gpt2": "transformer.", "llama": "model."}
_HEAD = "lm_head.weight"
# masks and frequencies that older versions stored
_BUFFERS = ("*.attn.bias", "*.attn.masked_bias", "*.rotary_emb.inv_freq")


def load_gpt(folder: str | Path, **changes: int | float | str | None) -> GPT:
    """Load a language model from a model directory, in evaluation mode.

    Architectures: GPT-2, Llama, Qwen2 and Mistral, with an output layer or without one. SmolLM2 and many others are
    Llama models. Use `ModelTokenizer.load(folder)` for the vocabulary.

    Args:
        folder: with `config.json` and `model.safetensors`, its parts, or `pytorch_model.bin`.
        changes: settings of `GPTConfig` to override, such as dropout=0.0.

    Raises:
        ValueError: for an unsupported config and for tensors that do not fit. The message lists all problems.

    >>> import tempfile
    >>> from .gpt import GPTConfig
    >>> folder = tempfile.mkdtemp()
    >>> save_gpt(GPT(GPTConfig.llama(vocabulary=50, width=12, heads=3, layers=2)), folder)
    >>> load_gpt(folder, dropout=0.1).config.norm
    'rms'
    """
    config = config_from(read_config(folder), folder, changes)
    tensors = read_tensors(folder)
    gpt2 = config.position == "learned"
    tensors = _from_gpt2(tensors) if gpt2 else tensors
    prefix = _PREFIX["gpt2" if gpt2 else "llama"]
    if not any(name.startswith(prefix) for name in tensors):
        prefix = ""
    model = GPT(config)
    fill(model, tensors, names_of(model, prefix), ignored=(*_BUFFERS, _HEAD))
    if config.tied and _HEAD in tensors and not torch.equal(tensors[_HEAD], tensors[f"{prefix}{_tokens(config)}"]):
        raise ValueError(
            f"gpt: tie_word_embeddings (True) of {folder} must hold for its tensors; got an {_HEAD} that differs from "
            "the embeddings. Set it to false in config.json, or pass tied=False."
        )
    return model.eval()


def save_gpt(model: GPT, folder: str | Path, tokenizer: ModelTokenizer | None = None) -> None:
    """Write a language model as a model directory for `transformers`. Other files in the folder stay.

    The architecture is the one that computes the same: GPT-2 for layer norm and learned positions; Llama for RMS norm
    and rotary positions, Qwen2 if queries, keys and values have biases, Mistral if there is a window. Dropout of
    embeddings and sublayers, which only matters in training, is stored for GPT-2 only.

    Args:
        model: the model.
        folder: created if necessary.
        tokenizer: written to the same folder if given; `config.json` then has the ids of its special tokens.

    Raises:
        ValueError: if no architecture expresses the settings of the model. The message lists them.

    >>> import tempfile
    >>> from .gpt import GPTConfig
    >>> folder = tempfile.mkdtemp()
    >>> save_gpt(GPT(GPTConfig(vocabulary=50, width=12, heads=3, layers=2)), folder)
    >>> sorted(path.name for path in Path(folder).iterdir())
    ['config.json', 'model.safetensors']
    """
    architecture = architecture_of(model.config)
    special = {} if tokenizer is None else {f"{kind}_token_id": id for kind, id in tokenizer.special_ids.items()}
    values = model.state_dict()
    gpt2 = architecture == "GPT2LMHeadModel"
    names = names_of(model, _PREFIX["gpt2" if gpt2 else "llama"])
    tensors = {theirs: values[ours] for ours, theirs in names.items()}
    stored = config_to(model.config, architecture) | {"dtype": dtype(model.tokens.weight)} | special
    write(folder, stored, _to_gpt2(tensors) if gpt2 else tensors)
    if tokenizer is not None:
        tokenizer.save(folder)


def names_of(model: GPT, prefix: str) -> dict[str, str]:
    """Map our tensor names to theirs. Of fused tensors of GPT-2, the parts are named.

    `prefix` precedes all names but that of the output layer.
    """
    config = model.config
    gpt2 = config.position == "learned"
    parts = {"tokens": "wte", "positions": "wpe", "norm": "ln_f"} if gpt2 else {"tokens": "embed_tokens"}
    parts |= {} if gpt2 else {"norm": "norm"}
    parts |= block_names(config.layers, _GPT2 if gpt2 else _LLAMA, "h" if gpt2 else "layers")
    present = model.state_dict()
    names = {ours: f"{prefix}{theirs}" for ours, theirs in tensor_names(parts).items() if ours in present}
    return names if config.tied else names | {"vocabulary.weight": _HEAD}


def _tokens(config: GPTConfig) -> str:
    return "wte.weight" if config.position == "learned" else "embed_tokens.weight"


def _from_gpt2(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Transpose the weights of GPT-2 to (out, in), and split queries, keys and values."""
    return split_fused(_transposed(tensors), _FUSED)


def _to_gpt2(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Undo `_from_gpt2`."""
    return _transposed(join_fused(tensors, _FUSED))


def _transposed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Transpose the weights that GPT-2 stores in the other order, in either direction."""
    return {
        name: value.t() if name.endswith(_TRANSPOSED) and value.ndim == 2 else value for name, value in tensors.items()
    }
