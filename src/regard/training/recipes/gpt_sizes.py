"""Shared parts of the recipes with a GPT: model sizes, and initialization from a run or a Hugging Face directory."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ...models.gpt import GPT, GPTConfig
from ...models.gpt_heads import LastTokenClassifier
from ...models.weights import load_weights, weights_of
from ...tasks.language_model import LanguageModel
from ...tasks.loading import load_language_model


@dataclass(frozen=True)
class Sizes:
    """Sizes and names of a GPT that is trained from scratch."""

    width: int = 384
    """Width of embeddings and blocks."""
    heads: int = 6
    """Number of attention heads. The width must be divisible by it."""
    kv_heads: int | None = None
    """Number of key and value heads, each shared by several query heads; must divide `heads`. None for `heads`."""
    hidden: int | None = None
    """Inner width of the feed-forward layers. By default 4 · width."""
    layers: int = 6
    """Number of blocks."""
    norm: Literal["layer", "rms"] = "layer"
    """Normalization: layer norm (GPT-2) or root mean square (Llama)."""
    position: Literal["learned", "rotary"] = "learned"
    """Positional encoding: learned vectors (GPT-2) or rotated queries and keys (Llama)."""
    feedforward: Literal["plain", "gated"] = "plain"
    """Feed-forward layers: two linear layers (GPT-2) or a gate and two linear layers (Llama)."""
    activation: str = "gelu_new"
    """Activation of the feed-forward layers: gelu, gelu_new, gelu_pytorch_tanh, relu, silu or swish."""
    bias: Literal["all", "qkv", "none"] = "all"
    """Biases of linear layers: all of them (GPT-2), only queries, keys and values (Qwen2), or none (Llama)."""
    tied: bool = True
    """Whether the output layer shares the weights of the token embeddings."""
    window: int | None = None
    """Number of latest tokens that a token attends to, including itself; by default all."""
    rotary_base: float = 10000.0
    """Base of the rotary frequencies."""
    dropout: float = 0.0
    """Dropout of the embeddings and of the output of each sublayer."""
    attention_dropout: float = 0.0
    """Dropout of attention weights. The fast kernels do not support it."""

    @classmethod
    def llama(cls) -> Sizes:
        """Return the settings in the form of the Llama family."""
        form = GPTConfig.llama()
        return cls(**{name: getattr(form, name) for name in asdict(cls())})

    def errors(self) -> list[str]:
        """Return one message for each invalid setting."""
        return self.config(1, 1).errors("model")

    def config(self, vocabulary: int, context: int) -> GPTConfig:
        """Return the configuration of a GPT with this number of ids and of positions."""
        return GPTConfig(**asdict(self), vocabulary=vocabulary, positions=context)


def initial_language_model(folder: Path, **changes: Any) -> LanguageModel:
    """Load the language model of a run or of a Hugging Face directory, to continue its training.

    Args:
        folder: the run or Hugging Face directory.
        changes: settings that replace those of its `GPTConfig`, such as the dropout.
    """
    language = load_language_model(folder)
    config = replace(language.model.config, **changes)
    if config == language.model.config:
        return LanguageModel(language.model.train(), language.vocabulary)
    model = GPT(config)
    load_weights(model, weights_of(language.model), str(folder))
    return LanguageModel(model, language.vocabulary)


def initial_classifier(folder: Path, labels: list[str], **changes: Any) -> LastTokenClassifier:
    """Build a classifier on the language model of a run or of a Hugging Face directory, with a random last layer."""
    return LastTokenClassifier(initial_language_model(folder, **changes).model, labels)
