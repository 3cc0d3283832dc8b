"""Parity with transformers: maps equal eager weights, watched under sdpa and through the implementation "regard"."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

import regard

transformers = pytest.importorskip("transformers")
import regard.huggingface  # noqa: E402  registers
from bench import _sweep  # noqa: E402

WITHIN = 1e-5
SMALL: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED: dict[str, Any] = {**SMALL, "num_key_value_heads": 2, "head_dim": 6}
PAIR: dict[str, Any] = {
    "vocab_size": 61,
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 20,
    "decoder_ffn_dim": 20,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
}


def text(rows: int = 2, length: int = 11) -> dict[str, Tensor]:
    ids = torch.randint(3, 61, (rows, length), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[-1, 9:] = 0  # no window of 4 is all padding: such rows are zero in regard, uniform in transformers
    return {"input_ids": ids, "attention_mask": mask}


def pair() -> dict[str, Tensor]:
    return {**text(), "decoder_input_ids": torch.randint(3, 61, (2, 5), generator=torch.Generator().manual_seed(2))}


def picture() -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(3))}


def sound() -> dict[str, Tensor]:
    features = torch.randn(2, 8, 24, generator=torch.Generator().manual_seed(4))
    return {"input_features": features, "decoder_input_ids": pair()["decoder_input_ids"]}


MODELS: dict[str, tuple[str, dict[str, Any], Any]] = {
    "Bert": ("BertModel", SMALL, text),
    "ViT": ("ViTModel", {**{k: SMALL[k] for k in list(SMALL)[1:5]}, "image_size": 12, "patch_size": 4}, picture),
    "GPT2": ("GPT2Model", {"vocab_size": 61, "n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 64}, text),
    "Llama": ("LlamaModel", GROUPED, text),
    "Gemma2": ("Gemma2Model", {**GROUPED, "sliding_window": 4, "attn_logit_softcapping": 0.5}, text),
    "Gemma3": ("Gemma3TextModel", {**GROUPED, "sliding_window": 4}, text),
    "Qwen2": ("Qwen2Model", SMALL | {"num_key_value_heads": 2}, text),
    "Qwen3": ("Qwen3Model", GROUPED, text),
    "Mistral": ("MistralModel", {**GROUPED, "sliding_window": 4}, text),
    "T5": (
        "T5Model",
        {
            "vocab_size": 61, "d_model": 24, "d_kv": 6, "d_ff": 20, "num_layers": 2, "num_heads": 4, "pad_token_id": 0,
            "eos_token_id": 2, "decoder_start_token_id": 0, "relative_attention_num_buckets": 8,
        },
        pair,
    ),
    "Bart": ("BartModel", PAIR, pair),
    "Marian": ("MarianModel", PAIR, pair),
    "Whisper": (
        "WhisperModel",
        {**PAIR, "num_mel_bins": 8, "max_source_positions": 12, "max_target_positions": 16, "suppress_tokens": None},
        sound,
    ),
    "GptOss": (
        "GptOssModel",
        {**GROUPED, "sliding_window": 4, "num_local_experts": 2, "num_experts_per_tok": 1},
        text,
    ),
}  # fmt: skip
WITHOUT_SDPA = ("Gemma2", "GptOss")  # soft caps and sinks: transformers refuses


def build(name: str) -> tuple[Any, dict[str, Tensor]]:
    kind, settings, inputs = MODELS[name]
    torch.manual_seed(0)
    cls = getattr(transformers, kind)
    config = cls.config_class(**settings)
    model = cls._from_config(config, attn_implementation="eager").eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    return model, inputs()


def weights(outputs: Any) -> list[Any]:
    """Return all attentions of a model's output, in the order encoder, decoder, cross."""
    names = ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions")
    return [m for name in names for m in (outputs.get(name) or ())]


def in_order(seen: Any) -> list[regard.AttentionMap]:
    """Return the watched maps in the same order. Self and cross maps of a decoder alternate when watched."""
    cross = [m for m, kind in zip(seen.maps, seen.kinds, strict=True) if kind == "cross"]
    return [m for m, kind in zip(seen.maps, seen.kinds, strict=True) if kind != "cross"] + cross


def alike(maps: list[Any], dense: list[Tensor]) -> None:
    assert len(maps) == len(dense) > 0
    for m, w in zip(maps, dense, strict=True):
        assert isinstance(m, regard.AttentionMap) and m.shape == tuple(w.shape)
        assert (m.dense() - w).abs().max() <= WITHIN


@pytest.mark.parametrize("name", MODELS)
def test_attentions_of_regard_equal_the_eager_weights(name: str) -> None:
    model, inputs = build(name)
    with torch.no_grad():
        eager = model(**inputs, output_attentions=True)
        model.set_attn_implementation("regard")
        ours = model(**inputs, output_attentions=True)
        plain = model(**inputs)
        with regard.watch(model) as seen:
            watched = model(**inputs)
    alike(weights(ours), weights(eager))
    alike(in_order(seen), weights(eager))
    torch.testing.assert_close(ours[0], eager[0], atol=1e-4, rtol=1e-4)
    assert torch.equal(ours[0], plain[0]) and torch.equal(watched[0], plain[0])


@pytest.mark.parametrize("name", [name for name in MODELS if name not in WITHOUT_SDPA])
def test_maps_watched_under_sdpa_equal_the_eager_weights(name: str) -> None:
    model, inputs = build(name)
    with torch.no_grad():
        eager = model(**inputs, output_attentions=True)
        model.set_attn_implementation("sdpa")
        plain = model(**inputs)
        with regard.watch(model) as seen:
            watched = model(**inputs)
    assert torch.equal(plain[0], watched[0]) and not seen.missed
    alike(in_order(seen), weights(eager))
    causal = {"GPT2", "Llama", "Gemma3", "Qwen2", "Qwen3", "Mistral"}
    if name in ("Bart", "Marian", "Whisper", "T5"):
        assert seen.kinds == ["self"] * 2 + ["causal", "cross"] * 2
    else:
        assert set(seen.kinds) == {"causal" if name in causal else "self"}


@pytest.mark.parametrize("implementation", ["sdpa", "regard"])
@pytest.mark.parametrize("name", ["GPT2", "Mistral", "Bart"])
def test_the_steps_of_a_generation_are_one_map(name: str, implementation: str) -> None:
    kind = {"GPT2": "GPT2LMHeadModel", "Mistral": "MistralForCausalLM", "Bart": "BartForConditionalGeneration"}[name]
    settings = MODELS[name][1]
    torch.manual_seed(0)
    cls = getattr(transformers, kind)
    model = cls._from_config(cls.config_class(**settings), attn_implementation=implementation).eval()
    ids = torch.randint(3, 61, (1, 6), generator=torch.Generator().manual_seed(5))
    with torch.no_grad(), regard.watch(model) as seen:
        generated = model.generate(ids, max_new_tokens=5, min_new_tokens=5, do_sample=False)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        if name == "Bart":
            dense = model(ids, decoder_input_ids=generated[:, :-1], output_attentions=True)
        else:
            dense = model(generated[:, :-1], output_attentions=True)
    alike(in_order(seen), weights(dense))


def test_sinks_get_gradients() -> None:
    model, inputs = build("GptOss")
    gradients = []
    for implementation in ("eager", "regard"):
        model.set_attn_implementation(implementation)
        model.zero_grad()
        model(**inputs)[0].square().sum().backward()
        gradients.append([p.grad.clone() for n, p in model.named_parameters() if "sinks" in n or "q_proj" in n])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-3)


def test_attentions_can_be_used_as_tensors() -> None:
    model, inputs = build("Bert")
    with torch.no_grad():
        dense = torch.stack(model(**inputs, output_attentions=True).attentions)
        model.set_attn_implementation("regard")
        attentions = model(**inputs, output_attentions=True).attentions
    one = attentions[0]
    near = {"atol": WITHIN, "rtol": 0.0}
    torch.testing.assert_close(torch.stack(attentions), dense, **near)
    torch.testing.assert_close(one.mean(1), dense[0].mean(1), **near)
    torch.testing.assert_close(one.mean(dim=(0, 1)), dense[0].mean((0, 1)), **near)
    torch.testing.assert_close(one[0].mean(0), dense[0, 0].mean(0), **near)
    torch.testing.assert_close(one.cpu().detach().sum(-1), torch.ones(2, 4, 11))
    torch.testing.assert_close(one + one, 2 * dense[0], **near)
    numpy.testing.assert_allclose(one.numpy(), dense[0].numpy(), atol=WITHIN)
    numpy.testing.assert_allclose(numpy.asarray(one), dense[0].numpy(), atol=WITHIN)
    numpy.testing.assert_allclose(numpy.stack(attentions).mean(2), dense.mean(2).numpy(), atol=WITHIN)
    assert one.size() == (2, 4, 11, 11) and one.size(-1) == 11 and one.dim() == 4 and one.float() is one
    assert torch.equal(one.argmax(-1), one.dense().argmax(-1))
    ones = torch.ones(2, 4, 3, 11)
    torch.testing.assert_close(ones @ one, ones @ one.dense())


def test_unsupported_arguments_are_refused_by_name() -> None:
    model, _ = build("Llama")
    x = torch.randn(1, 4, 3, 6)
    with pytest.raises(ValueError, match=r"indices of LlamaModel must be None .* sparse attention to chosen keys"):
        regard.huggingface.attention(model, x, x, x, indices=torch.zeros(1))


CLASSES = {
    "equal, equal": (
        "BertModel", "GPT2LMHeadModel", "LlamaForCausalLM", "T5ForConditionalGeneration", "BartModel", "WhisperModel",
        "ViTModel", "Gemma3ForCausalLM", "Gemma3Model", "Gemma4Model", "NllbMoeModel", "BridgeTowerModel",
    ),
    "equal, refused": ("GitModel",),
    "own, refused": (
        "BloomForCausalLM", "BlipModel", "MPNetModel", "LongformerModel", "LEDModel", "LayoutLMv3Model", "CodeGenModel",
        "XGLMModel", "TrOCRForCausalLM", "FalconModel",
    ),
}  # fmt: skip
"""Expected results of `python -m bench huggingface`, for classes with "regard" set after and while building them."""


@pytest.mark.parametrize(("verdict", "name"), [(verdict, name) for verdict in CLASSES for name in CLASSES[verdict]])
def test_every_way_to_regard_gives_the_output_of_eager_or_is_refused(verdict: str, name: str) -> None:
    result = _sweep.examine(name)
    assert f"{result['set']}, {result['built']}" == verdict, result["detail"]


def test_wrong_boolean_masks_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    masks = transformers.AttentionMaskInterface._global_mapping
    monkeypatch.setitem(masks, "regard", transformers.masking_utils.sdpa_mask)
    assert _sweep.examine("NllbMoeModel")["set"] == "wrong"
