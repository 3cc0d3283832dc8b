"""A language model as a target: it continues prompts and shows what each token attended to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..models.gpt import GPT
from ..tasks.language_model import LanguageModel
from ..tasks.text_generation import TextGenerator
from .guard import RequestError
from .target import Layer, Snapshot, Target, brief

MAX_PROMPT_TOKENS = 4096
"""Maximum number of tokens of a prompt, and of a text whose maps are shown."""


class LanguageTarget(Target):
    """A language model and its vocabulary. `prompt` is the prompt that the page continues first."""

    can = ("generate", "run")

    def __init__(self, generator: TextGenerator, title: str, prompt: str = "") -> None:
        self.generator, self.title, self.prompt = generator, title, prompt
        self.gpt = plain_model(generator.model).eval()
        self.language = LanguageModel(self.gpt, generator.vocabulary)
        """The model as the charts of Explain need it."""
        self.snapshot = Snapshot("language", title, [])
        if prompt:
            self.snapshot = self.first_snapshot(lambda: self.run(prompt))

    @property
    def has_chat(self) -> bool:
        """Whether the model has a chat template."""
        return isinstance(getattr(self.generator.vocabulary, "chat_template", None), str)

    @property
    def limit(self) -> int:
        """Maximum number of tokens of a prompt."""
        longest = self.generator.model.longest
        return MAX_PROMPT_TOKENS if longest is None else min(longest, MAX_PROMPT_TOKENS)

    def encode(self, text: str, *, chat: bool = False) -> list[int]:
        """Return the ids of a text, after checking their number. `chat` puts the chat template around it."""
        ids = self.generator.encode(text, chat=chat)
        if len(ids) > self.limit:
            raise RequestError(
                413,
                f"text ({len(ids):,} tokens) must have at most {self.limit:,} for {self.title}. Send a shorter text.",
            )
        return ids

    @torch.no_grad()
    def run(self, text: str) -> Snapshot:
        """Read a text and return the maps of all blocks."""
        ids = self.encode(text)
        tokens = self.generator.vocabulary.pieces(ids)
        _, maps = self.gpt.hidden(torch.tensor([ids], device=self.gpt.tokens.weight.device), return_maps=True)
        layers = [
            Layer(f"blocks.{number}.attention", "causal", map.tokens(tokens, tokens)) for number, map in enumerate(maps)
        ]
        return Snapshot("language", f"{self.title}: {brief(text)}", layers, text=text)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON response of GET /api/generate."""
        config = self.gpt.config
        return {
            "layers": config.layers,
            "heads": config.heads,
            "longest": self.generator.model.longest,
            "prompt": self.prompt,
            "chat": self.has_chat,
        }


def plain_model(model: Any) -> GPT:
    """Return the `GPT` that can report its attention: the model itself, or the one that a fast decoder was built from.

    Raises:
        ValueError: if there is none.
    """
    plain = model if isinstance(model, GPT) else getattr(model, "model", None)
    if not isinstance(plain, GPT):
        raise ValueError(f"view: model ({type(model).__name__}) must be a GPT, or a fast decoder of one.")
    return plain


class TokenAttention:
    """The attention weights of single tokens of a text that grows and branches.

    Keys and values of the tokens before are cached, so another token costs one call over the tokens that were not read
    yet: one for an earlier token, the new ones for a later token. After a branch, the common beginning is kept. Memory
    is linear in the length of the text.
    """

    def __init__(self, model: GPT) -> None:
        self._model, self._caches = model, model.caches()
        self._read: list[int] = []
        self._last: tuple[tuple[int, ...], Tensor] | None = None

    @torch.no_grad()
    def weights(self, ids: Sequence[int]) -> Tensor:
        """Return the weights of the last token of `ids` on all tokens, of every layer and head: (L, H, T)."""
        if self._last is not None and self._last[0] == tuple(ids):
            return self._last[1]
        known = 0
        while known < min(len(self._read), len(ids) - 1) and self._read[known] == ids[known]:
            known += 1
        for cache in self._caches:
            cache.truncate(known)
        self._read = list(ids[:known])  # nothing more, if the next line fails
        new = torch.tensor([ids[known:]], device=self._model.tokens.weight.device)  # (1, T − known)
        _, maps = self._model.hidden(new, caches=self._caches, return_maps=True)
        self._read = list(ids)
        rows = torch.stack([map[0, :, -1] for map in maps])  # (L, H, T)
        self._last = (tuple(ids), rows)
        return rows
