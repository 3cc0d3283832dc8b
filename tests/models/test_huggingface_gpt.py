"""GPT against transformers: GPT-2, Llama, Qwen2 and Mistral, with outputs, gradients and directories both ways."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from regard.models import GPT, GPTConfig, load_gpt, save_gpt
from regard.models.gpt_settings import architecture_of, config_from
from regard.models.huggingface_gpt import _from_gpt2, names_of
from tests.models.tiny_gpts import FORMS, GROUPS, H, T, V, inputs, real, saved, theirs

transformers = pytest.importorskip("transformers")
each = pytest.mark.parametrize("form", FORMS)
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@each
def test_logits_and_gradients_of_padded_batches(form: str, tmp_path: Path) -> None:
    model, mine = saved(form, tmp_path), load_gpt(tmp_path, dropout=0.0)
    assert not mine.training
    ids, lengths = inputs()
    expected = model(ids, attention_mask=real().long()).logits[real()]
    result = mine(ids, lengths)[real()]
    scale = float(expected.detach().abs().max())
    torch.testing.assert_close(result / scale, expected / scale, **CLOSE)
    drawn = torch.randn(result.shape, generator=torch.Generator().manual_seed(2)) / result.numel() ** 0.5
    for output in (expected, result):
        (output * drawn).sum().backward()
    grads = {name: parameter.grad for name, parameter in model.named_parameters()}
    gpt2 = form.startswith("gpt2")
    grads = _from_gpt2(grads) if gpt2 else grads
    names, own = names_of(mine, "transformer." if gpt2 else "model."), dict(mine.named_parameters())
    assert set(names) == set(own) and set(names.values()) == set(grads)
    for ours, name in names.items():
        scale = max(1.0, float(grads[name].abs().max()))  # gradients are sums over the batch: 1e-5 of the largest
        torch.testing.assert_close(own[ours].grad / scale, grads[name] / scale, **CLOSE, msg=lambda m, n=name: n + m)


@each
@pytest.mark.parametrize("chunks", [[1] * T, [5, 1, 4, 3], [T]], ids=["steps", "chunks", "at once"])
def test_cached_logits(form: str, chunks: list[int], tmp_path: Path) -> None:
    model, mine = saved(form, tmp_path), load_gpt(tmp_path)
    ids = torch.randint(V, (3, T), generator=torch.Generator().manual_seed(3))
    caches = mine.caches(capacity=2)
    with torch.no_grad():
        expected = model(ids).logits
        result = torch.cat([mine(part, caches=caches) for part in ids.split(chunks, 1)], 1)
    scale = float(expected.abs().max())
    torch.testing.assert_close(result / scale, expected / scale, **CLOSE)


@each
def test_there_and_back(form: str, tmp_path: Path) -> None:
    saved(form, tmp_path / "theirs")
    model = load_gpt(tmp_path / "theirs")
    save_gpt(model, tmp_path / "ours")
    kind = getattr(transformers, architecture_of(model.config))
    assert kind.__name__ == FORMS[form][0] or form == "mistral without window"  # which is a Llama
    again, report = kind.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report.values()), report
    again.save_pretrained(tmp_path / "again")
    first = load_file(tmp_path / "theirs/model.safetensors")
    for folder in ("ours", "again"):
        result = load_file(tmp_path / folder / "model.safetensors")
        assert result.keys() == first.keys() and all(torch.equal(result[name], first[name]) for name in first)
        assert load_gpt(tmp_path / folder).config == model.config
    ids, _ = inputs()
    with torch.no_grad():
        first = getattr(transformers, FORMS[form][0]).from_pretrained(tmp_path / "theirs")
        assert torch.equal(again(ids).logits, first(ids).logits)


@pytest.mark.parametrize("form", ["gpt2", "llama"])
def test_names_without_prefix_and_stored_buffers(form: str, tmp_path: Path) -> None:
    model = saved(form, tmp_path)
    prefix = "transformer." if form == "gpt2" else "model."
    stored = {name.removeprefix(prefix): value for name, value in load_file(tmp_path / "model.safetensors").items()}
    if form == "gpt2":
        stored["h.0.attn.bias"] = torch.ones(1, 1, 41, 41).tril()
        stored["h.1.attn.masked_bias"] = torch.tensor(-1e4)
    else:
        stored["layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(7)
    stored["lm_head.weight"] = model.lm_head.weight.detach().clone()  # tied, but stored
    save_file(stored, tmp_path / "model.safetensors", {"format": "pt"})
    mine, (ids, _) = load_gpt(tmp_path), inputs()
    with torch.no_grad():
        expected = model(ids).logits
        torch.testing.assert_close(mine(ids), expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))
    stored["lm_head.weight"] += 1
    save_file(stored, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"gpt: tie_word_embeddings \(True\) of .* lm_head\.weight that differs"):
        load_gpt(tmp_path)


def test_an_untied_model_without_an_output_layer_is_refused(tmp_path: Path) -> None:
    theirs("llama untied").model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"missing: lm_head\.weight\n"):
        load_gpt(tmp_path)


def test_older_configs_of_rotary_frequencies() -> None:
    older = {"model_type": "llama", "hidden_size": 84, "num_attention_heads": 6, "rope_theta": 5e5}
    config = config_from(older)
    assert (config.rotary_base, config.rotary_factor, config.rotary_bands) == (5e5, 1.0, None)
    config = config_from(older | {"rope_scaling": {"type": "linear", "factor": 2}})
    assert (config.rotary_base, config.rotary_factor, config.rotary_bands) == (5e5, 2.0, None)
    llama3 = {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}
    config = config_from(older | {"rope_scaling": llama3, "max_position_embeddings": 99})
    assert (config.rotary_factor, config.rotary_bands) == (8.0, (1.0, 4.0, 99))


def test_windows_of_qwen2() -> None:
    sizes = {"model_type": "qwen2", "hidden_size": 84, "num_attention_heads": 6, "num_key_value_heads": 6}
    sizes |= {"num_hidden_layers": 3, "sliding_window": 5}
    assert config_from(sizes).window is None
    assert config_from(sizes | {"use_sliding_window": True, "max_window_layers": 3}).window is None
    assert config_from(sizes | {"use_sliding_window": True, "max_window_layers": 0}).window == 5
    with pytest.raises(ValueError, match=r"max_window_layers \(2\) must give all layers a sliding window, or none"):
        config_from(sizes | {"use_sliding_window": True, "max_window_layers": 2})
    mixed = ["full_attention", "sliding_attention", "full_attention"]
    with pytest.raises(ValueError, match=r"layer_types \(\['full_attention', .*must give all layers"):
        config_from(sizes | {"use_sliding_window": True, "layer_types": mixed})


LLAMA = {"model_type": "llama", "hidden_size": 84, "num_attention_heads": 6}
GPT2 = {"model_type": "gpt2"}


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        ({"model_type": "bert"}, r"model_type \('bert'\) of config must be one of gpt2, llama, qwen2, mistral\."),
        ({}, r"model_type \(None\)"),
        (LLAMA | {"recipe": {}}, "got a run of regard"),
        (LLAMA | {"head_dim": 10}, r"head_dim \(10\) must be hidden_size / num_attention_heads \(14\)"),
        (LLAMA | {"attention_bias": True}, r"attention_bias \(True\) must equal mlp_bias \(False\)"),
        (LLAMA | {"hidden_act": "quick_gelu"}, r"hidden_act \('quick_gelu'\) must be one of gelu, "),
        (LLAMA | {"hidden_size": "84"}, r"hidden_size \('84'\) must be of type int"),
        (LLAMA | {"vocab_size": True}, r"vocab_size \(True\) must be of type int"),
        (LLAMA | {"num_attention_heads": 5}, r"width \(84\) must be divisible by heads \(5\)"),
        (
            LLAMA | {"rope_scaling": {"rope_type": "yarn", "factor": 4}},
            r"rope_type \('yarn'\) must be one of default, ",
        ),
        (LLAMA | {"rope_scaling": {"rope_type": "linear"}}, r"factor \(None\) must be a number"),
        (LLAMA | {"rope_theta": 10**400}, r"rope_theta \(10+\) must be a number"),
        (LLAMA | {"rope_parameters": {"mscale": 1}}, r"rope_parameters \(mscale\) must have no key besides"),
        (LLAMA | {"rope_parameters": {"partial_rotary_factor": 0.5}}, r"partial_rotary_factor \(0\.5\) must be 1"),
        (LLAMA | {"partial_rotary_factor": 0.5}, r"partial_rotary_factor \(0\.5\) must be 1"),
        (LLAMA | {"quantization_config": {"bits": 4}}, r"quantization_config \(\{'bits': 4\}\) must be absent"),
        (LLAMA | {"rope_theta": 0.5}, r"rotary_base \(0\.5\) must be more than 1"),
        (GPT2 | {"scale_attn_by_inverse_layer_idx": True}, r"scale_attn_by_inverse_layer_idx \(True\) must be False"),
        (GPT2 | {"scale_attn_weights": False}, r"scale_attn_weights \(False\) must be True"),
        (GPT2 | {"reorder_and_upcast_attn": True}, r"reorder_and_upcast_attn \(True\) must be False"),
        (GPT2 | {"add_cross_attention": True}, r"add_cross_attention \(True\) must be False"),
        (GPT2 | {"resid_pdrop": 0.2}, r"resid_pdrop \(0\.2\) must be that of embd_pdrop \(0\.1\); pass dropout="),
        (GPT2 | {"n_head": 7, "embd_pdrop": 2}, r"resid_pdrop .*width \(768\).*dropout|dropout \(2\).*width"),
        ({"model_type": "mistral", "sliding_window": "no"}, r"sliding_window \('no'\) must be of type int or null"),
        ({"model_type": "mistral", "layer_types": 5}, r"layer_types \(5\) must be a list of names"),
        ({"model_type": "mistral", "layer_types": [{}]}, r"layer_types \(\[\{\}\]\) must be a list of names"),
        ({"model_type": "qwen2", "max_window_layers": "2"}, r"max_window_layers \('2'\) must be of type int"),
        (GPT2 | {"layer_norm_epsilon": 10**400}, r"layer_norm_epsilon \(10+\) must be finite"),
    ],
)
def test_unsupported_configs_are_refused_with_their_values(stored: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config_from(stored)


def test_changes_override_unsupported_settings() -> None:
    assert config_from(GPT2 | {"resid_pdrop": 0.2}, changes={"dropout": 0.0}).dropout == 0.0
    with pytest.raises(ValueError, match=r"gpt: changes \(drop\) must be settings of GPTConfig\."):
        config_from(GPT2, changes={"drop": 0.0})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"norm": "rms"}, r"position \('learned'\) whose norm \('rms'\) is not 'layer'\. Save it as a run"),
        ({"kv_heads": 2, "window": 3}, r"window \(3\) is not None; kv_heads \(2\) is not heads \(6\)"),
        ({"position": "rotary"}, r"norm \('layer'\) is not 'rms'; feedforward \('plain'\) is not 'gated'"),
        ({"bias": "none"}, r"bias \('none'\) is not 'all'"),
    ],
)
def test_models_without_a_counterpart_are_not_saved(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    model = GPT(GPTConfig(vocabulary=V, width=36, heads=6, layers=1, **settings))
    with pytest.raises(ValueError, match=message):
        save_gpt(model, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_window_does_not_go_with_all_biases() -> None:
    assert architecture_of(GPTConfig.llama(bias="qkv", window=3)) == "Qwen2ForCausalLM"
    with pytest.raises(ValueError, match=r"bias \('all'\) does not go with a window \(3\)"):
        architecture_of(GPTConfig.llama(bias="all", window=3))


def test_transformers_loads_a_new_model(tmp_path: Path) -> None:
    config = GPTConfig.llama(vocabulary=V, width=84, heads=H, kv_heads=GROUPS, layers=2, positions=41)
    torch.manual_seed(0)
    model, (ids, _) = GPT(config).eval(), inputs()
    save_gpt(model.to(torch.bfloat16), tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert again.config.intermediate_size == 4 * 84
    with torch.no_grad():
        torch.testing.assert_close(load_gpt(tmp_path)(ids), again(ids).logits, **CLOSE)
