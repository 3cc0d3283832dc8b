"""Recorded generation with transformers: every row of every map equals that of eager attention."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import regard

transformers = pytest.importorskip("transformers")
import regard.huggingface  # noqa: E402  registers

WITHIN = 1e-5
NEW = 6
SMALL: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "GPT2": ("GPT2LMHeadModel", {"vocab_size": 61, "n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    "Llama": ("LlamaForCausalLM", SMALL),  # grouped heads
    "Mistral": ("MistralForCausalLM", {**SMALL, "sliding_window": 4}),
}
STATIC = {"cache_implementation": "static", "disable_compile": True}
WAYS: dict[str, tuple[int, dict[str, Any], int | None]] = {
    "greedy": (2, {}, 1),
    "sampled": (3, {"do_sample": True}, 1),
    "beams": (1, {"num_beams": 4}, None),
    "sampled beams": (2, {"num_beams": 3, "do_sample": True}, None),
    "static": (2, STATIC, 1),
    "static beams": (1, {**STATIC, "num_beams": 3}, None),
    "no cache": (1, {"use_cache": False}, NEW),
    "lookup": (1, {"prompt_lookup_num_tokens": 2}, None),
    "assisted": (1, {"assistant_model": "another"}, None),
    "assisted by an equal": (1, {"assistant_model": "equal"}, None),
}
"""Batch size, options of `generate`, and the number of maps per layer, if it is known."""


def build(name: str, implementation: str, seed: int = 0) -> Any:
    kind, settings = MODELS[name]
    torch.manual_seed(seed)
    cls = getattr(transformers, kind)
    model = cls._from_config(cls.config_class(**settings), attn_implementation=implementation).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def generate(model: Any, way: str, **more: Any) -> Tensor:
    batch, options, _ = WAYS[way]
    ids = torch.randint(3, 61, (batch, 6), generator=torch.Generator().manual_seed(5))
    torch.manual_seed(0)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of transformers, on settings
        return model.generate(ids, max_new_tokens=NEW, min_new_tokens=NEW, **{**options, **more})


def eager_calls(model: Any, way: str, **more: Any) -> list[tuple[Tensor, ...]]:
    """Return the attentions of every forward pass of a generation."""
    calls: list[tuple[Tensor, ...]] = []
    hook = model.register_forward_hook(lambda _, __, output: calls.append(output.attentions))
    generate(model, way, output_attentions=True, return_dict_in_generate=True, **more)
    hook.remove()
    return calls


def error(result: Tensor, expected: Tensor) -> float:
    """Return the distance of rows from the expected ones. These may lack the first keys, which a window drops."""
    keys, errors = min(expected.shape[-1], result.shape[-1]), []
    for first in range(result.shape[-1] - keys + 1):
        positioned = torch.zeros_like(result)
        positioned[..., first : first + keys] = expected[..., :keys]
        errors.append(max(float((result - positioned).abs().max()), float(expected[..., keys:].abs().sum())))
    return min(errors)


@pytest.mark.parametrize("implementation", ["sdpa", "regard"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_generation_gives_the_eager_weights(name: str, way: str, implementation: str) -> None:
    model, more = build(name, implementation), {}
    if helper := WAYS[way][1].get("assistant_model"):
        more["assistant_model"] = build(name, implementation, 0 if helper == "equal" else 1)
    plain = generate(model, way, **more)
    with regard.watch(model) as seen:
        watched = generate(model, way, **more)
    assert torch.equal(plain, watched) and not seen.missed
    for one in (model, *more.values()):
        one.set_attn_implementation("eager")
    calls = eager_calls(model, way, **more)
    for layer in range(2):
        maps = [m for name, m in seen.items() if f".{layer}." in name]
        expected = [call[layer] for call in calls]
        for m in maps:
            rows = m.dense()
            while rows.shape[-2]:
                now = expected.pop(0)
                assert error(rows[..., : now.shape[-2], :], now) <= WITHIN
                rows = rows[..., now.shape[-2] :, :]
        assert not expected
        assert WAYS[way][2] in (None, len(maps))
