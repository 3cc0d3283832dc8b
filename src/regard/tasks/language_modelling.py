"""The language modelling task: predict the next token; loss, perplexity and bits per character of held-out text."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ..data.bare_text import FILE
from ..data.corpus import Corpus
from ..data.token_windows import TokenBatch, TokenWindows, consecutive_windows
from .language_model import BATCH_TOKENS, LanguageModel, perplexity_of
from .task import Loss, Task

CONTINUATION = 200
"""Maximum number of tokens of a sample."""


class LanguageModelling(Task[TokenBatch]):
    """Task of training a language model: `training.fit(LanguageModelling(…), …)`.

        loss = 1/N Σₙ −log p(tokenₙ | tokens before it in its window)

    Args:
        language: the model and its vocabulary.
        train: random windows of the training text.
        valid: the held-out text, from `text_chunks.encode_chunks`.
        most_tokens: number of held-out tokens to predict in an evaluation; None for all.
    """

    train: TokenWindows
    goal = ("loss", "min")

    def __init__(
        self, language: LanguageModel, train: TokenWindows, valid: Corpus, *, most_tokens: int | None = None
    ) -> None:
        self.valid = valid.ids[0]
        """(N,): ids of the held-out text."""
        if len(self.valid) < 2:
            raise ValueError(
                f"data: held-out text ({len(self.valid)} tokens) must have at least 2. Give --valid FILE, or another "
                "--hold-out."
            )
        self.language, self.train, self.most_tokens = language, train, most_tokens
        self.model: nn.Module = language.model
        self.tokens_per_character = len(self.valid) / int(valid.ids[1].sum(dtype=np.int64))

    def batch_loss(self, batch: TokenBatch) -> Loss:
        """Return the cross-entropy summed over all tokens of the windows."""
        return Loss(self.language.batch_loss(batch), batch.ids.numel())

    def evaluate(self) -> dict[str, float]:
        """Return the loss in nats per token, perplexity, and bits per character, of consecutive held-out windows."""
        total, count = 0.0, 0
        context = self.train.context
        size = max(1, BATCH_TOKENS // context)
        predicted = min(len(self.valid) - 1, self.most_tokens or len(self.valid))
        batches = consecutive_windows(self.valid, context, size, most_tokens=self.most_tokens)
        for batch in self.evaluated("windows", batches, max(1, math.ceil(predicted / (size * context)))):
            total += float(self.language.batch_loss(batch))
            count += batch.ids.numel()
        loss = total / count
        bits = loss / math.log(2) * self.tokens_per_character
        return {"loss": loss, "perplexity": perplexity_of(loss), "bits_per_character": bits}

    def samples(self) -> list[tuple[str, str, str]]:
        """Return the beginning of the held-out text, a sampled continuation, and the real one."""
        size = min(self.train.context // 4 + 1, len(self.valid) - 1)
        prompt, real = self.valid[:size], self.valid[size : min(self.train.context, size + CONTINUATION)]
        sampled = self._continuation(prompt, self.train.context)
        shown = (self.language.vocabulary.decode(ids).replace("\n", "\n  ") for ids in (prompt, sampled, real))
        return [tuple(shown)]  # type: ignore[list-item]  # three texts

    def save(self, folder: Path) -> None:
        """Write the vocabulary. The training loop writes the weights."""
        self.language.vocabulary.save(folder / FILE)

    def _continuation(self, prompt: np.ndarray, longest: int) -> list[int]:
        """Sample tokens after a prompt. The generator is its own, so that training draws the same numbers."""
        model, generator = self.language.model, torch.Generator().manual_seed(0)
        caches, sampled = model.caches(longest), []
        ids = torch.from_numpy(prompt.astype(np.int64))[None].to(self.device)  # (1, T)
        with torch.compiler.set_stance("force_eager"):  # a compiled block would be compiled again for its cache
            for _ in range(min(CONTINUATION, longest - len(prompt))):
                hidden = model.hidden(ids, caches=caches)[:, -1]  # (1, W)
                probabilities = model.vocabulary(hidden).float().softmax(-1).cpu()  # (1, V)
                ids = torch.multinomial(probabilities, 1, generator=generator).to(self.device)  # (1, 1)
                sampled.append(int(ids))
        return sampled
