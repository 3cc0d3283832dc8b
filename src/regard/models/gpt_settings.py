"""Settings of language models in `config.json` of Hugging Face, in both directions: GPT-2, Llama, Qwen2, Mistral."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..core.json_files import is_finite_number
from .bert import ACTIVATIONS
from .gpt import GPTConfig
from .model_directory import refuse_run

Setting = tuple[str, Any]
"""Their name and their default."""
ARCHITECTURES = {
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "mistral": "MistralForCausalLM",
}
"""Supported values of model_type."""
_LLAMA: dict[str, Setting] = {
    "vocabulary": ("vocab_size", 32000),
    "width": ("hidden_size", 4096),
    "heads": ("num_attention_heads", 32),
    "kv_heads": ("num_key_value_heads", None),
    "hidden": ("intermediate_size", 11008),
    "layers": ("num_hidden_layers", 32),
    "positions": ("max_position_embeddings", 2048),
    "activation": ("hidden_act", "silu"),
    "tied": ("tie_word_embeddings", False),
    "epsilon": ("rms_norm_eps", 1e-6),
    "attention_dropout": ("attention_dropout", 0.0),
}
_SETTINGS: dict[str, dict[str, Setting]] = {
    "gpt2": {
        "vocabulary": ("vocab_size", 50257),
        "width": ("n_embd", 768),
        "heads": ("n_head", 12),
        "hidden": ("n_inner", None),
        "layers": ("n_layer", 12),
        "positions": ("n_positions", 1024),
        "activation": ("activation_function", "gelu_new"),
        "tied": ("tie_word_embeddings", True),
        "epsilon": ("layer_norm_epsilon", 1e-5),
        "dropout": ("embd_pdrop", 0.1),
        "attention_dropout": ("attn_pdrop", 0.1),
    },
    "llama": _LLAMA,
    "qwen2": _LLAMA
    | {
        "vocabulary": ("vocab_size", 151936),
        "kv_heads": ("num_key_value_heads", 32),
        "hidden": ("intermediate_size", 22016),
        "positions": ("max_position_embeddings", 32768),
    },
    "mistral": _LLAMA
    | {
        "kv_heads": ("num_key_value_heads", 8),
        "hidden": ("intermediate_size", 14336),
        "positions": ("max_position_embeddings", 131072),
    },
}
"""For each model_type: our setting → theirs."""
_KINDS: dict[str, tuple[type, ...]] = {"activation": (str,), "tied": (bool,), "kv_heads": (int, type(None))}
_KINDS |= {"hidden": (int, type(None))} | dict.fromkeys(("epsilon", "dropout", "attention_dropout"), (int, float))
_REQUIRED: dict[str, tuple[Any, ...]] = {
    "is_decoder": (False, True),
    "add_cross_attention": (False,),
    "pruned_heads": ({},),
    "quantization_config": (),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "reorder_and_upcast_attn": (False,),
    "partial_rotary_factor": (1,),
}
"""Settings that change what is computed, and the values that are supported. A missing one or null is supported."""
_ROTARY_KEYS = {"rope_type", "type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor"}
_ROTARY_KEYS |= {"original_max_position_embeddings", "partial_rotary_factor"}


class _Reader:
    """Reads the settings of a `config.json` and collects everything that is not supported."""

    def __init__(self, stored: Mapping[str, Any]) -> None:
        self.stored = stored
        self.kind = str(stored.get("model_type"))
        self.problems: list[str] = []

    def settings(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of a `GPTConfig`. Those in `changes` are not read."""
        self._check_required()
        settings: dict[str, Any] = {}
        for ours, (theirs, default) in _SETTINGS[self.kind].items():
            value = self.stored.get(theirs, default)
            kinds = _KINDS.get(ours, (int,))
            if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                self.problems.append(f"{theirs} ({value!r}) must be of type {kinds[0].__name__}")
            elif isinstance(value, int | float) and not isinstance(value, bool) and not is_finite_number(value):
                self.problems.append(f"{theirs} ({value!r}) must be finite, and at most the largest float")
            elif ours == "activation" and value not in ACTIVATIONS:
                self.problems.append(f"{theirs} ({value!r}) must be one of {', '.join(ACTIVATIONS)}")
            else:
                settings[ours] = value
        if self.kind == "gpt2":
            if "dropout" not in changes:
                self._require("resid_pdrop", settings.get("dropout"), default=0.1, rule="that of embd_pdrop")
            return settings
        settings |= {"norm": "rms", "position": "rotary", "feedforward": "gated", "bias": self._bias()}
        if settings.get("kv_heads") == settings.get("heads"):
            settings["kv_heads"] = None
        self._check_head_width(settings)
        settings["window"] = self._window(settings.get("layers", 0))
        return settings | self._rotary(settings.get("positions"))

    def _check_required(self) -> None:
        for name, allowed in _REQUIRED.items():
            value = self.stored.get(name)
            if value is not None and value not in allowed:
                rule = f"be {allowed[0]!r}" if allowed else "be absent: the weights must be plain numbers"
                self.problems.append(f"{name} ({value!r}) must {rule}")

    def _require(self, name: str, value: Any, *, default: Any, rule: str) -> None:
        got = self.stored.get(name, default)
        if got != value:
            self.problems.append(f"{name} ({got!r}) must be {rule} ({value!r}); pass dropout=… to set both")

    def _check_head_width(self, settings: Mapping[str, Any]) -> None:
        head_width, width, heads = self.stored.get("head_dim"), settings.get("width"), settings.get("heads")
        if head_width is not None and width and heads and head_width != width / heads:
            wanted = f"hidden_size / num_attention_heads ({width / heads:g})"
            self.problems.append(f"head_dim ({head_width!r}) must be {wanted}")

    def _bias(self) -> str:
        if self.kind == "qwen2":
            return "qkv"
        if self.kind == "mistral":
            return "none"
        attention, feedforward = (self.stored.get(name) or False for name in ("attention_bias", "mlp_bias"))
        if bool(attention) != bool(feedforward):
            self.problems.append(f"attention_bias ({attention!r}) must equal mlp_bias ({feedforward!r})")
        return "all" if attention else "none"

    def _window(self, layers: int) -> int | None:
        """Return the window of all layers. Qwen2 can have one in some layers only, which is not supported."""
        window = self.stored.get("sliding_window", None if self.kind == "llama" else 4096)
        kinds, full = self.stored.get("layer_types") or [], self.stored.get("max_window_layers", 28)
        if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
            self.problems.append(f"layer_types ({kinds!r}) must be a list of names")
            return None
        if self.kind == "qwen2":
            if not self.stored.get("use_sliding_window"):
                window = None
            if not isinstance(full, int):
                self.problems.append(f"max_window_layers ({full!r}) must be of type int")
                return None
            has_full, has_window = window is None or full > 0, window is not None and full < layers
            kinds = kinds or ["full_attention"] * has_full + ["sliding_attention"] * has_window
        if self.kind == "llama" or window is None or (kinds and set(kinds) == {"full_attention"}):
            return None
        if kinds and set(kinds) != {"sliding_attention"}:
            name = "layer_types" if self.stored.get("layer_types") else "max_window_layers"
            self.problems.append(
                f"{name} ({self.stored.get(name, 28)!r}) must give all layers a sliding window, or none; "
                "use_sliding_window may be false for texts within the window"
            )
        if not isinstance(window, int) or isinstance(window, bool):
            self.problems.append(f"sliding_window ({window!r}) must be of type int or null")
            return None
        return window

    def _rotary(self, positions: Any) -> dict[str, Any]:
        """Return the settings of the frequencies: `rope_parameters`, or the older `rope_theta` and `rope_scaling`."""
        scaling = self.stored.get("rope_parameters") or self.stored.get("rope_scaling") or {}
        if not isinstance(scaling, dict):
            self.problems.append(f"rope_parameters ({scaling!r}) must be an object or null")
            return {}
        base = scaling.get("rope_theta", self.stored.get("rope_theta", 10000.0))
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        name = "rope_parameters" if self.stored.get("rope_parameters") else "rope_scaling"
        if unknown := sorted(scaling.keys() - _ROTARY_KEYS):
            self.problems.append(
                f"{name} ({', '.join(unknown)}) must have no key besides {', '.join(sorted(_ROTARY_KEYS))}"
            )
        if scaling.get("partial_rotary_factor", 1) != 1:
            self.problems.append(f"partial_rotary_factor ({scaling['partial_rotary_factor']!r}) must be 1")
        if kind not in ("default", "linear", "llama3"):
            self.problems.append(f"rope_type ({kind!r}) must be one of default, linear, llama3")
            return {}
        original = scaling.get("original_max_position_embeddings", self.stored.get("original_max_position_embeddings"))
        numbers = {"rope_theta": base}
        if kind != "default":
            numbers["factor"] = scaling.get("factor")
        if kind == "llama3":
            numbers |= {key: scaling.get(key) for key in ("low_freq_factor", "high_freq_factor")}
            numbers["original_max_position_embeddings"] = positions if original is None else original
        if wrong := [
            f"{key} ({value!r}) must be a number" for key, value in numbers.items() if not is_finite_number(value)
        ]:
            self.problems += wrong
            return {}
        settings: dict[str, Any] = {"rotary_base": float(base), "rotary_factor": float(numbers.get("factor", 1.0))}
        if kind == "llama3":
            low, high = float(numbers["low_freq_factor"]), float(numbers["high_freq_factor"])
            settings["rotary_bands"] = (low, high, int(numbers["original_max_position_embeddings"]))
        return settings


def config_from(
    stored: Mapping[str, Any], where: str | Path = "config", changes: Mapping[str, Any] | None = None
) -> GPTConfig:
    """Return our configuration for that of a `config.json`. `changes` override its settings.

    Raises:
        ValueError: for unsupported settings and invalid sizes. The message lists them all.

    >>> config_from({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "rope_theta": 5e5}).rotary_base
    500000.0
    """
    changes = dict(changes or {})
    if unknown := sorted(changes.keys() - {field.name for field in fields(GPTConfig)}):
        raise ValueError(f"gpt: changes ({', '.join(unknown)}) must be settings of GPTConfig.")
    refuse_run("gpt", stored, where)
    reader = _Reader(stored)
    if reader.kind not in ARCHITECTURES:
        raise ValueError(
            f"gpt: model_type ({stored.get('model_type')!r}) of {where} must be one of {', '.join(ARCHITECTURES)}."
        )
    config = GPTConfig(**({"vocabulary": 1} | reader.settings(changes) | changes))
    problems = reader.problems + [problem.removeprefix("gpt: ").rstrip(".") for problem in config.errors()]
    if problems:
        raise ValueError(
            f"gpt: {where} must describe a supported {ARCHITECTURES[reader.kind]}; got one whose {'; '.join(problems)}."
        )
    return config


def architecture_of(config: GPTConfig) -> str:
    """Return the architecture of `transformers` that computes the same.

    Raises:
        ValueError: if there is none. The message lists the settings that do not go together.

    >>> architecture_of(GPTConfig()), architecture_of(GPTConfig.llama(window=9))
    ('GPT2LMHeadModel', 'MistralForCausalLM')
    """
    problems = list(_unlike_gpt2(config) if config.position == "learned" else _unlike_llama(config))
    if problems:
        raise ValueError(
            f"gpt: model must be expressible as {', '.join(ARCHITECTURES.values())}; got one with position "
            f"({config.position!r}) whose {'; '.join(problems)}. Save it as a run of regard instead."
        )
    if config.position == "learned":
        return ARCHITECTURES["gpt2"]
    if config.bias == "qkv":
        return ARCHITECTURES["qwen2"]
    return ARCHITECTURES["llama" if config.window is None else "mistral"]


def config_to(config: GPTConfig, architecture: str) -> dict[str, Any]:
    """Return the `config.json` of our configuration, in the form of one of `ARCHITECTURES`."""
    kind = next(kind for kind, name in ARCHITECTURES.items() if name == architecture)
    stored: dict[str, Any] = {"architectures": [architecture], "model_type": kind}
    stored |= {theirs: getattr(config, ours) for ours, (theirs, _) in _SETTINGS[kind].items()}
    stored |= {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    if kind == "gpt2":
        return stored | {"resid_pdrop": config.dropout}
    stored |= {"intermediate_size": config.inner_width, "num_key_value_heads": config.kv_heads or config.heads}
    rotary: dict[str, Any] = {"rope_type": "default", "rope_theta": config.rotary_base}
    if config.rotary_bands is not None:
        low, high, length = config.rotary_bands
        rotary |= {"rope_type": "llama3", "factor": config.rotary_factor, "low_freq_factor": low}
        rotary |= {"high_freq_factor": high, "original_max_position_embeddings": length}
    elif config.rotary_factor != 1:
        rotary |= {"rope_type": "linear", "factor": config.rotary_factor}
    stored |= {"rope_parameters": rotary, "rope_theta": config.rotary_base}  # versions before 5 read rope_theta
    if len(rotary) > 2:
        stored["rope_scaling"] = {key: value for key, value in rotary.items() if key != "rope_theta"}
    if kind == "llama":
        biased = config.bias == "all"
        return stored | {"attention_bias": biased, "mlp_bias": biased}
    stored["sliding_window"] = config.window
    if kind == "qwen2":
        stored |= {"use_sliding_window": config.window is not None, "max_window_layers": 0}
    return stored


def _unlike_gpt2(config: GPTConfig) -> Iterator[str]:
    for name, expected in (("norm", "layer"), ("feedforward", "plain"), ("bias", "all"), ("window", None)):
        if getattr(config, name) != expected:
            yield f"{name} ({getattr(config, name)!r}) is not {expected!r}"
    if config.kv_heads not in (None, config.heads):
        yield f"kv_heads ({config.kv_heads}) is not heads ({config.heads})"


def _unlike_llama(config: GPTConfig) -> Iterator[str]:
    for name, expected in (("norm", "rms"), ("feedforward", "gated")):
        if getattr(config, name) != expected:
            yield f"{name} ({getattr(config, name)!r}) is not {expected!r}"
    if config.bias == "all" and config.window is not None:
        yield f"bias ('all') does not go with a window ({config.window})"
