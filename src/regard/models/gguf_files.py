"""Language models in GGUF files, the format of llama.cpp: weights, settings and tokenizer in one file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers, processors
from torch import Tensor

from ..data.model_tokenizer import ModelTokenizer, byte_level_bpe
from .gpt import GPT, GPTConfig
from .model_directory import block_names, fill, split_fused, tensor_names

_LLAMA = {
    "around_attention.norm": "attn_norm",
    "attention.query": "attn_q",
    "attention.key": "attn_k",
    "attention.value": "attn_v",
    "attention.out": "attn_output",
    "around_feedforward.norm": "ffn_norm",
    "feedforward.gate": "ffn_gate",
    "feedforward.up": "ffn_up",
    "feedforward.down": "ffn_down",
}
"""Layers of a block: our name → theirs. GPT-2 has its queries, keys and values in one tensor, which is split here."""
_SPLIT = {"attention.query": "attn_qkv.0", "attention.key": "attn_qkv.1", "attention.value": "attn_qkv.2"}
_SIZES = {
    "width": "embedding_length",
    "heads": "attention.head_count",
    "kv_heads": "attention.head_count_kv",
    "hidden": "feed_forward_length",
    "layers": "block_count",
    "positions": "context_length",
    "rotary_base": "rope.freq_base",
}
"""Our settings → theirs, which follow the name of the architecture."""
_EPSILON = {"layer": "attention.layer_norm_epsilon", "rms": "attention.layer_norm_rms_epsilon"}
_FORMS: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "llama": {"norm": "rms", "position": "rotary", "feedforward": "gated", "activation": "silu", "bias": "none"},
}
_FORMS["qwen2"] = _FORMS["llama"] | {"bias": "qkv"}
"""Supported architectures, and their settings that are not in the file."""
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
_SPLITTERS: dict[str, pre_tokenizers.PreTokenizer | None] = {
    "default": None,
    "gpt-2": None,
    "smollm": pre_tokenizers.Digits(individual_digits=True),
    "llama-bpe": pre_tokenizers.Split(Regex(_CONTRACTIONS + _WORDS % r"\p{N}{1,3}"), "isolated"),
    "qwen2": pre_tokenizers.Split(Regex(_CONTRACTIONS + _WORDS % r"\p{N}"), "isolated"),
}
"""Splitting of text into words, by the name of the pre-tokenizer in the file. None splits as GPT-2 does."""
CONTROL, USER_DEFINED = 3, 4
"""Types of tokens: special tokens, and others that are never split."""


def load_gguf(path: str | Path, **changes: int | float | str | None) -> tuple[GPT, ModelTokenizer]:
    """Load a language model and its tokenizer from a GGUF file, in evaluation mode, with weights in float32.

    Architectures: llama, qwen2 and gpt2. Quantized weights are converted. Requires `pip install regard[gguf]`.

    Args:
        path: the file.
        changes: settings of `GPTConfig` to override, such as positions=2048.

    Raises:
        ImportError: if the package gguf is not installed.
        ValueError: if the file is damaged or not supported. The message has all keys and values that are not.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "notes.gguf"
    >>> _ = path.write_text("not a model")
    >>> load_gguf(path)
    Traceback (most recent call last):
        ...
    ValueError: ...
    """
    reader = _open(path)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    config = config_from(fields, {tensor.name for tensor in reader.tensors}, path, changes)
    tensors = _read_tensors(reader, fields["general.architecture"], config)
    model = GPT(config)
    fill(model, tensors, _names(model))
    return model.eval(), _tokenizer(fields, path)


def config_from(
    fields: Mapping[str, Any],
    tensors: Iterable[str],
    path: str | Path = "file",
    changes: Mapping[str, Any] | None = None,
) -> GPTConfig:
    """Return our configuration for the fields of a GGUF file, which has these tensors."""
    kind = fields.get("general.architecture")
    if kind not in _FORMS:
        raise ValueError(f"gguf: general.architecture ({kind!r}) of {path} must be one of {', '.join(_FORMS)}.")
    form = _FORMS[kind]
    own = {name.partition(".")[2]: value for name, value in fields.items() if name.startswith(f"{kind}.")}
    names = _SIZES | {"epsilon": _EPSILON[form.get("norm", "layer")]}
    settings = form | {ours: own.pop(theirs) for ours, theirs in names.items() if theirs in own}
    needed = ("width", "heads", "layers", "positions", "epsilon")
    problems = [f"{kind}.{names[ours]} (None) must be present" for ours in needed if ours not in settings]
    problems += _scaling(own, settings, kind)
    head_width = settings.get("width", 0) // max(1, settings.get("heads", 1))
    for name in ("rope.dimension_count", "attention.key_length", "attention.value_length"):
        if own.pop(name, head_width) != head_width:
            value = fields[f"{kind}.{name}"]
            problems.append(f"{kind}.{name} ({value!r}) must be embedding_length / head_count ({head_width})")
    vocabulary = len(fields.get("tokenizer.ggml.tokens", ()))
    if own.pop("vocab_size", vocabulary) != vocabulary:
        problems.append(
            f"{kind}.vocab_size ({fields[f'{kind}.vocab_size']!r}) must be that of the tokens ({vocabulary})"
        )
    problems += [f"{kind}.{name} ({value!r}) must be absent: it is not supported" for name, value in own.items()]
    names_of_tensors = set(tensors)
    if "rope_freqs.weight" in names_of_tensors:
        problems.append("rope_freqs.weight must be absent: frequencies of Llama 3.1 are supported in model directories")
    if not problems:
        settings |= {"vocabulary": vocabulary, "tied": "output.weight" not in names_of_tensors}
        settings["kv_heads"] = None if settings.get("kv_heads") == settings["heads"] else settings.get("kv_heads")
        config = GPTConfig(**(settings | dict(changes or {})))
        problems = [problem.removeprefix("gpt: ").rstrip(".") for problem in config.errors()]
    if problems:
        raise ValueError(f"gguf: {path} must contain a supported {kind} model; got one whose {'; '.join(problems)}.")
    return config


def _scaling(own: dict[str, Any], settings: dict[str, Any], kind: str) -> list[str]:
    """Move the scaling of the rotary frequencies to `settings`. Return the errors for unsupported scaling."""
    scaling = own.pop("rope.scaling.type", "none")
    factor = own.pop("rope.scaling.factor", 1.0)
    if scaling == "linear":
        settings["rotary_factor"] = float(factor)
        return []
    return [] if scaling == "none" else [f"{kind}.rope.scaling.type ({scaling!r}) must be none or linear"]


def _open(path: str | Path) -> Any:
    if not Path(path).is_file():
        raise ValueError(f"gguf: path ({path}) must be a GGUF file; got no such file.")
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise ImportError("gguf: reading of GGUF files requires a package. Try pip install regard[gguf].") from error
    try:
        return GGUFReader(path)
    except (ValueError, IndexError, KeyError, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"gguf: file ({path}) must be a complete GGUF file; got: {error}. Fetch it again.") from error


def _read_tensors(reader: Any, kind: str, config: GPTConfig) -> dict[str, Tensor]:
    """Return the weights by name in float32, in the order of rows of a model directory."""
    from gguf import dequantize

    result: dict[str, Tensor] = {}
    for tensor in reader.tensors:
        value = torch.from_numpy(np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32))
        if kind == "llama" and ".attn_q." in tensor.name:
            value = _unpermuted(value, config.heads)
        elif kind == "llama" and ".attn_k." in tensor.name:
            value = _unpermuted(value, config.kv_heads or config.heads)
        result[tensor.name] = value
    return split_fused(result, ".attn_qkv.")


def _unpermuted(rows: Tensor, heads: int) -> Tensor:
    """Return rows in the order of layout "halves". llama.cpp stores those of each head as pairs: "interleaved"."""
    pairs: Tensor = rows.unflatten(0, (heads, -1, 2))
    return pairs.transpose(1, 2).flatten(0, 2)


def _names(model: GPT) -> dict[str, str]:
    """Map our tensor names to theirs."""
    parts = {"tokens": "token_embd", "positions": "position_embd", "norm": "output_norm"}
    block = _LLAMA if model.config.position == "rotary" else _LLAMA | _SPLIT
    present = model.state_dict()
    names = tensor_names(parts | block_names(model.config.layers, block, "blk"))
    names = {ours: theirs for ours, theirs in names.items() if ours in present}
    return names if model.config.tied else names | {"vocabulary.weight": "output.weight"}


def _tokenizer(fields: Mapping[str, Any], path: str | Path) -> ModelTokenizer:
    """Return the tokenizer of a file: byte-level BPE."""
    own = {name.removeprefix("tokenizer.ggml."): value for name, value in fields.items()}
    model, splitter = own.get("model"), own.get("pre", "default")
    if model != "gpt2" or splitter not in _SPLITTERS:
        raise ValueError(
            f"gguf: tokenizer of {path} must have tokenizer.ggml.model gpt2 and tokenizer.ggml.pre one of "
            f"{', '.join(_SPLITTERS)}; got {model!r} and {splitter!r}. Use the original model directory."
        )
    tokens, merges = own["tokens"], [tuple(merge.split(" ", 1)) for merge in own.get("merges", ())]
    bpe = byte_level_bpe({token: id for id, token in enumerate(tokens)}, merges, ignore_merges=splitter == "llama-bpe")
    if (split := _SPLITTERS[splitter]) is not None:
        whole = splitter != "smollm"  # the expression is that of GPT-2 after digits are separated
        bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not whole)
        bpe.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_])
    if splitter == "qwen2":
        bpe.normalizer = normalizers.NFC()
    kinds = own.get("token_type", [1] * len(tokens))
    for kind in (CONTROL, USER_DEFINED):
        added = [token for token, its in zip(tokens, kinds, strict=True) if its == kind]
        bpe.add_tokens([AddedToken(token, special=kind == CONTROL, normalized=False) for token in added])
    names = {"bos": "bos_token_id", "eos": "eos_token_id", "pad": "padding_token_id"}
    special = {kind: tokens[own[name]] for kind, name in names.items() if own.get(name) is not None}
    if own.get("add_bos_token") and "bos" in special:
        _add_begin(bpe, special["bos"])
    ends = [own[name] for name in ("eot_token_id", "eom_token_id") if own.get(name) is not None]
    return ModelTokenizer(bpe, special, end_ids=ends, chat_template=fields.get("tokenizer.chat_template"))


def _add_begin(tokenizer: Tokenizer, name: str) -> None:
    begin = processors.TemplateProcessing(
        single=f"{name} $A", pair=f"{name} $A {name} $B", special_tokens=[(name, tokenizer.token_to_id(name))]
    )
    tokenizer.post_processor = begin
