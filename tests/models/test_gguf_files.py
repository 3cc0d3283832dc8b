"""GGUF files, written here with the writer of llama.cpp: the same model and tokenizer as in a model directory."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import pre_tokenizers

from regard.models import load_gguf, load_gpt
from regard.models.gguf_files import _names, _tokenizer, config_from
from tests.models.tiny_gpts import FORMS, LAYERS, POSITIONS, V, inputs, saved

gguf = pytest.importorskip("gguf")
KINDS = {"llama": "llama", "llama untied": "llama", "qwen2": "qwen2", "gpt2": "gpt2", "llama linear": "llama"}
"""Form of the model → architecture of the file."""
TEXT = "It's 2024: 12345 déjà\n\n\tvu  你好 <|im_start|>x"


def permuted(rows: np.ndarray, heads: int) -> np.ndarray:
    """The order of llama.cpp: channels i and i + D/2 of each head become neighbours."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def write(form: str, folder: Path, *, half: bool = False, **fields: Any) -> tuple[Any, Path]:
    """Write a model of transformers as a directory and as a GGUF file."""
    model = saved(form, folder, **({} if form == "gpt2" else {"hidden_act": "silu"}))
    ours, kind, path = load_gpt(folder), KINDS[form], folder / "model.gguf"
    config = ours.config
    writer = gguf.GGUFWriter(path, kind)
    writer.add_block_count(LAYERS)
    writer.add_context_length(POSITIONS)
    writer.add_embedding_length(config.width)
    writer.add_feed_forward_length(config.inner_width)
    writer.add_head_count(config.heads)
    if kind == "gpt2":
        writer.add_layer_norm_eps(config.epsilon)
    else:
        writer.add_head_count_kv(config.kv_heads or config.heads)
        writer.add_layer_norm_rms_eps(config.epsilon)
        writer.add_rope_freq_base(config.rotary_base)
        writer.add_rope_dimension_count(config.width // config.heads)
    if config.rotary_factor != 1:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_float32(f"{kind}.rope.scaling.factor", config.rotary_factor)
    tokens, merges = vocabulary()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(fields.pop("pre", "smollm"))
    writer.add_token_list(tokens)
    writer.add_token_types([3] * 2 + [1] * (len(tokens) - 2))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    writer.add_chat_template("{{ messages }}")
    for name, value in fields.items():
        (writer.add_bool if isinstance(value, bool) else writer.add_uint32)(name.replace("__", "."), value)
    values = {name: value.numpy() for name, value in ours.state_dict().items()}
    tensors = {theirs: values[mine] for mine, theirs in _names(ours).items()}
    for layer in range(LAYERS):
        prefix = f"blk.{layer}."
        if kind == "llama":
            for name, heads in (("attn_q", config.heads), ("attn_k", config.kv_heads or config.heads)):
                tensors[f"{prefix}{name}.weight"] = permuted(tensors[f"{prefix}{name}.weight"], heads)
        if kind == "gpt2":
            for part in ("weight", "bias"):
                fused = [tensors.pop(f"{prefix}attn_qkv.{n}.{part}") for n in range(3)]
                tensors[f"{prefix}attn_qkv.{part}"] = np.concatenate(fused)
    for name, value in tensors.items():
        if half and name.endswith(("ffn_down.weight", "token_embd.weight")):
            value = value.astype(np.float16)
        writer.add_tensor(name, np.ascontiguousarray(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model, path


def vocabulary() -> tuple[list[str], list[str]]:
    """V tokens: two special ones, then bytes. There are too few ids for all bytes, so some are left out."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())[: V - 5]
    return ["<|im_end|>", "<|im_start|>", *alphabet, "12", "123", "1234"], ["1 2", "12 3", "123 4"]


@pytest.mark.parametrize("form", KINDS)
def test_the_model_is_that_of_the_directory(form: str, tmp_path: Path) -> None:
    model, path = write(form, tmp_path)
    ours, tokenizer = load_gguf(path)
    directory = load_gpt(tmp_path)
    assert not ours.training and len(tokenizer) == V
    expected = directory.state_dict()
    assert ours.state_dict().keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in ours.state_dict().items())
    ids, _ = inputs()
    with torch.no_grad():
        logits = model(ids).logits
        torch.testing.assert_close(ours(ids), logits, rtol=1e-5, atol=1e-5 * float(logits.abs().max()))
    assert FORMS[form][1].get("vocab_size") == ours.config.vocabulary


def test_the_permutation_is_undone(tmp_path: Path) -> None:
    """transformers has its own conversion of the same file."""
    transformers = pytest.importorskip("transformers")
    _, path = write("llama", tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name, dtype=torch.float32)
    ids, _ = inputs()
    with torch.no_grad():
        expected = theirs(ids).logits
        torch.testing.assert_close(
            load_gguf(path)[0](ids), expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max())
        )


def test_other_precisions_are_converted(tmp_path: Path) -> None:
    _, path = write("llama", tmp_path, half=True)
    ours, _ = load_gguf(path, positions=7)
    weight = load_gpt(tmp_path).tokens.weight
    assert ours.config.positions == 7 and torch.equal(ours.tokens.weight, weight.half().float())


def test_the_tokenizer_of_the_file(tmp_path: Path) -> None:
    _, path = write("llama", tmp_path)
    _, tokenizer = load_gguf(path)
    assert tokenizer.special_tokens == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    assert (tokenizer.begin_id, tokenizer.end_ids, tokenizer.chat_template) == (1, {0}, "{{ messages }}")
    digits = tokenizer.pieces(tokenizer.encode("1234<|im_start|>"))
    assert digits == ["1", "2", "3", "4", "<|im_start|>"]  # smollm separates digits
    assert tokenizer.encode("1", special=True) == tokenizer.encode("1")


def test_a_begin_token_that_the_file_demands(tmp_path: Path) -> None:
    _, path = write("llama", tmp_path, tokenizer__ggml__add_bos_token=True, pre="default")
    _, tokenizer = load_gguf(path)
    assert tokenizer.pieces(tokenizer.encode("1234", special=True)) == ["<|im_start|>", "1234"]


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "qwen2", "smollm"])
def test_splitters(pre: str, tmp_path: Path) -> None:
    """Decoding restores every text, and numbers are split as the name of the splitter says."""
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "12", "123", "45", "12345"]
    merges = ["1 2", "12 3", "4 5", "123 45"]
    own = {"model": "gpt2", "pre": pre, "tokens": tokens, "merges": merges}
    tokenizer = _tokenizer({f"tokenizer.ggml.{name}": value for name, value in own.items()}, tmp_path)
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT
    numbers = tokenizer.pieces(tokenizer.encode("12345"))
    assert numbers == {"gpt-2": ["12345"], "llama-bpe": ["123", "45"]}.get(pre, list("12345"))


FIELDS = {
    "general.architecture": "llama",
    "llama.embedding_length": 12,
    "llama.attention.head_count": 2,
    "llama.block_count": 1,
    "llama.context_length": 9,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.tokens": ["a", "b"],
}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"general.architecture": "mamba"},
            r"general\.architecture \('mamba'\) of file must be one of gpt2, llama, qwen2",
        ),
        ({"llama.expert_count": 8}, r"llama\.expert_count \(8\) must be absent: it is not supported"),
        (
            {"llama.rope.dimension_count": 4},
            r"llama\.rope\.dimension_count \(4\) must be embedding_length / head_count \(6\)",
        ),
        ({"llama.rope.scaling.type": "yarn"}, r"llama\.rope\.scaling\.type \('yarn'\) must be none or linear"),
        ({"llama.vocab_size": 3}, r"llama\.vocab_size \(3\) must be that of the tokens \(2\)"),
        ({"llama.attention.head_count": 5}, r"width \(12\) must be divisible by heads \(5\)"),
    ],
)
def test_unsupported_files_are_refused_with_their_values(fields: dict[str, Any], message: str) -> None:
    assert config_from(FIELDS, []).vocabulary == 2
    with pytest.raises(ValueError, match=message):
        config_from(FIELDS | fields, [])


def test_other_unsupported_files_are_refused(tmp_path: Path) -> None:
    missing = {name: value for name, value in FIELDS.items() if name != "llama.block_count"}
    with pytest.raises(ValueError, match=r"llama\.block_count \(None\) must be present"):
        config_from(missing, [])
    with pytest.raises(ValueError, match=r"rope_freqs\.weight must be absent"):
        config_from(FIELDS, ["rope_freqs.weight"])
    with pytest.raises(ValueError, match=r"gguf: path \(.*none\.gguf\) must be a GGUF file; got no such file"):
        load_gguf(tmp_path / "none.gguf")
    _, path = write("llama", tmp_path)
    whole = path.read_bytes()
    for part in (b"", whole[:100], whole[:-100], b"no" + whole):
        path.write_bytes(part)
        with pytest.raises(ValueError, match=r"gguf: file \(.*model\.gguf\) must be a complete GGUF file; got: "):
            load_gguf(path)
    _, path = write("llama", tmp_path, pre="gemma")
    with pytest.raises(ValueError, match=r"tokenizer\.ggml\.pre one of default, .*; got 'gpt2' and 'gemma'\."):
        load_gguf(path)
