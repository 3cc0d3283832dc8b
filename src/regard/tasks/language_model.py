"""A language model: a GPT and its vocabulary, from texts to the probabilities of their tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Unpack, overload

import numpy as np
import torch
from torch import Tensor

from ..attention import AttentionMap
from ..data.model_tokenizer import model_tokenizer
from ..data.text_arguments import check_text
from ..data.token_windows import TokenBatch, consecutive_windows
from ..data.vocabulary import Vocabulary
from ..layers.cross_entropy import cross_entropy
from ..models.gpt import GPT
from ..models.huggingface_gpt import save_gpt
from ..models.sampling import Sampling
from .block_maps import block_maps
from .model_summary import summary
from .text_generation import GenerateOptions, Generation, TextGenerator, TextSteps

if TYPE_CHECKING:
    from .evaluation import LanguageScores

BATCH_TOKENS = 4096
"""Number of tokens that are scored at a time."""


@dataclass(frozen=True)
class LanguageModel:
    """A GPT and its vocabulary.

    >>> from ..data import Characters
    >>> from ..models import GPTConfig
    >>> letters = Characters.train(["to be or not to be"])
    >>> language = LanguageModel(GPT(GPTConfig(vocabulary=len(letters), width=8, heads=2, layers=1)).eval(), letters)
    >>> language
    LanguageModel(GPT, 3,024 parameters, vocabulary=11, context=256)
    >>> tuple(language.logits("to be").shape), [m.shape for m in language.maps("to be")]
    ((5, 11), [(2, 5, 5)])
    >>> [one] = language.generate("to ", Sampling(temperature=0), max_new_tokens=4)
    >>> len(one.text), "".join(chunk.text for chunk in language.stream("to ", max_new_tokens=4)) != ""
    (4, True)
    >>> len(language("to ", Sampling(temperature=0), max_new_tokens=4)), len(language(["to", "be"], max_new_tokens=2))
    (4, 2)
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "text.txt").write_text("to be or not to be")
    >>> language.evaluate(folder / "text.txt")["characters"], language.export(folder / "exported").name
    (18, 'exported')
    >>> language.context, language.device.type
    (256, 'cpu')
    >>> ids = torch.tensor([[4, 5, 6]])
    >>> language.batch_loss(TokenBatch(ids, ids)).shape               # the sum over all tokens
    torch.Size([])
    >>> 10 < language.perplexity("not to be") < 12          # without training, about the size of the vocabulary
    True
    """

    model: GPT
    vocabulary: Vocabulary

    def __repr__(self) -> str:
        return summary(self, self.model, vocabulary=len(self.vocabulary), context=self.context)

    @property
    def context(self) -> int:
        """Maximum number of tokens that the model reads."""
        return self.model.config.positions

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return next(self.model.parameters()).device

    @overload
    def __call__(  # type: ignore[overload-overlap]  # a string is a sequence of strings, too
        self, prompts: str, sampling: Sampling | None = None, **options: Unpack[GenerateOptions]
    ) -> str: ...
    @overload
    def __call__(
        self, prompts: Sequence[str], sampling: Sampling | None = None, **options: Unpack[GenerateOptions]
    ) -> list[str]: ...
    def __call__(
        self, prompts: str | Sequence[str], sampling: Sampling | None = None, **options: Unpack[GenerateOptions]
    ) -> str | list[str]:
        """Return the text that follows a prompt, or each of several prompts. See `TextGenerator.generate`."""
        texts = [one.text for one in self.generate(prompts, sampling, **options)]
        return texts[0] if isinstance(prompts, str) else texts

    def evaluate(self, *files: str | Path) -> LanguageScores:
        """Predict each token of text files but the first: loss, perplexity and bits per character.

        The text is read in windows side by side, as in `perplexity`.
        """
        from .evaluation import evaluate_language_model

        return evaluate_language_model(self, files)

    def export(self, folder: str | Path) -> Path:
        """Write a directory that `transformers` loads, with the tokenizer. Return the folder.

        Raises:
            ValueError: if no architecture of `transformers` computes the same; the message names the settings.
        """
        save_gpt(self.model, folder, model_tokenizer(self.vocabulary))
        return Path(folder)

    @torch.inference_mode()
    def logits(self, text: str) -> Tensor:
        """Return the logits of the next token after each token of a text: (T, V).

        Raises:
            ValueError: if the text is empty or longer than the context.
        """
        logits: Tensor = self.model(self._ids(text))[0]  # (T, V)
        return logits

    @torch.no_grad()
    def maps(self, text: str) -> list[AttentionMap]:
        """Return the attention map of each block for a text: (H, T, T), with its tokens along both axes.

        Raises:
            ValueError: if the text is empty or longer than the context.
        """
        ids = self._ids(text)
        _, maps = self.model.hidden(ids, return_maps=True)
        tokens = self.vocabulary.pieces(ids[0])
        return block_maps(maps, tokens, tokens)

    def perplexity(self, text: str) -> float:
        """Return exp(mean of −log p(token | tokens before it)) of a text. The first token is not predicted.

        A text longer than the context is scored in windows side by side: the first tokens of a window have little
        context.

        Raises:
            ValueError: if the text has fewer than two tokens.
        """
        ids = np.array(self.vocabulary.encode(check_text("language", "text", text)), np.int64)
        if len(ids) < 2:
            raise ValueError(f"language: text ({text!r}) must have at least 2 tokens; got {len(ids)}.")
        return perplexity_of(mean_loss(self, ids))

    def generate(
        self, prompts: str | Sequence[str], sampling: Sampling | None = None, **options: Unpack[GenerateOptions]
    ) -> list[Generation]:
        """Generate the text that follows each prompt, in one batch. See `TextGenerator.generate`."""
        return TextGenerator(self.model, self.vocabulary).generate(prompts, sampling, **options)

    def stream(
        self, prompt: str, sampling: Sampling | None = None, *, runners_up: int = 0, **options: Unpack[GenerateOptions]
    ) -> TextSteps:
        """Generate the text that follows one prompt token by token. See `TextGenerator.stream`."""
        generator = TextGenerator(self.model, self.vocabulary)
        return generator.stream(prompt, sampling, runners_up=runners_up, **options)

    def batch_loss(self, batch: TokenBatch) -> Tensor:
        """Return Σ −log p(target) of a batch: ()."""
        batch = batch.to(self.device)
        hidden = self.model.hidden(batch.ids).flatten(0, 1)  # (B·T, W)
        return cross_entropy(hidden, self.model.vocabulary.weight, None, batch.targets.flatten())

    def _ids(self, text: str) -> Tensor:
        ids = self.vocabulary.encode(check_text("language", "text", text))
        if not 1 <= len(ids) <= self.context:
            raise ValueError(
                f"language: text ({len(ids)} tokens) must have 1 to {self.context} tokens, the context of the model."
            )
        return torch.tensor([ids], device=self.device)  # (1, T)


@torch.inference_mode()
def mean_loss(language: LanguageModel, ids: np.ndarray) -> float:
    """Return the mean of −log p(token | tokens before it) of a text from its ids (N,), as for `perplexity`."""
    size = max(1, BATCH_TOKENS // language.context)
    batches = consecutive_windows(ids, language.context, size)
    return sum(float(language.batch_loss(batch)) for batch in batches) / (len(ids) - 1)


def perplexity_of(loss: float) -> float:
    """Return exp(loss), for a loss above 700 that of 700: the range of a float ends there.

    >>> perplexity_of(0.0), perplexity_of(1e6) < math.inf
    (1.0, True)
    """
    return math.exp(min(loss, 700.0))
