"""Generation of tokens by a language model, step by step, with prompts of different lengths in one batch.

    >>> import torch
    >>> from regard.models import GPT, GPTConfig
    >>> _ = torch.manual_seed(0)
    >>> model = GPT(GPTConfig(vocabulary=50, width=12, heads=3, layers=2, positions=16))
    >>> [(len(one.tokens), one.reason) for one in generate(model, [[1, 2, 3], [4]], max_new_tokens=5)]
    [(5, 'length'), (5, 'length')]

`TokenSteps` is the loop. A text ends for one of four reasons:

    "end"       one of the end ids was chosen
    "stop"      the caller ended it with `finish`, for example at a stop string
    "length"    it has max_new_tokens
    "context"   the model can read no more tokens (`Decoder.longest`)
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from numbers import Integral
from typing import Generic, Literal, TypeAlias

import torch
from torch import Tensor

from ..core.messages import number_errors
from ..core.settings import refuse
from .beam_search import evaluating
from .sampling import Sampling
from .token_decoder import Decoder, State

Reason: TypeAlias = Literal["end", "stop", "length", "context"]
MAX_RESERVED = 512
"""Maximum number of new tokens to allocate memory for in advance. Caches grow if there are more."""
NOTHING = -1
"""Token of a text that ended at an earlier step."""


@dataclass(frozen=True)
class TokenStep:
    """One step of a generation of B texts, with the K most probable other tokens.

    >>> from regard.models import GPT, GPTConfig
    >>> model = GPT(GPTConfig(vocabulary=50, width=12, heads=3, layers=2, positions=16))
    >>> step = next(generate_steps(model, [[1, 2], [3]], runners_up=4))
    >>> tuple(step.tokens.shape), tuple(step.runners_up.shape), step.reasons
    ((2,), (2, 4), (None, None))
    """

    tokens: Tensor
    """(B,): the chosen tokens; −1 for texts that ended before."""
    log_probabilities: Tensor
    """(B,): log p of the chosen tokens in the distribution of the model, before `Sampling` restricts it."""
    runners_up: Tensor
    """(B, K): the most probable tokens other than the chosen one, best first."""
    probabilities: Tensor
    """(B, K): their probabilities in the distribution of the model."""
    reasons: tuple[Reason | None, ...]
    """Why each text ended at this step or before; None if it continues."""


@dataclass(frozen=True)
class TokenGeneration:
    """The tokens generated for one prompt.

    >>> from regard.models import GPT, GPTConfig
    >>> model = GPT(GPTConfig(vocabulary=50, width=12, heads=3, layers=2, positions=16))
    >>> [result] = generate(model, [[1, 2, 3]], max_new_tokens=4)
    >>> len(result.tokens), result.reason
    (4, 'length')
    """

    tokens: tuple[int, ...]
    """Ids, including the one that ended the text."""
    log_probabilities: tuple[float, ...]
    """log p of each token in the distribution of the model."""
    reason: Reason


def generate(
    decoder: Decoder[State],
    prompts: Sequence[Sequence[int]],
    sampling: Sampling | None = None,
    *,
    max_new_tokens: int = 128,
    end_ids: Collection[int] = (),
) -> list[TokenGeneration]:
    """Generate tokens for each prompt. See `TokenSteps` for the arguments.

    >>> from regard.models import GPT, GPTConfig
    >>> model = GPT(GPTConfig(vocabulary=50, width=12, heads=3, layers=2, positions=16))
    >>> [len(one.tokens) for one in generate(model, [[1, 2, 3], [4]], max_new_tokens=4)]
    [4, 4]
    """
    steps = TokenSteps(decoder, prompts, sampling, max_new_tokens=max_new_tokens, end_ids=end_ids)
    for _ in steps:
        pass
    return steps.results()


def generate_steps(
    decoder: Decoder[State],
    prompts: Sequence[Sequence[int]],
    sampling: Sampling | None = None,
    *,
    max_new_tokens: int = 128,
    end_ids: Collection[int] = (),
    runners_up: int = 0,
) -> TokenSteps[State]:
    """Return an iterator over the steps of a generation. See `TokenSteps`.

    >>> from regard.models import GPT, GPTConfig
    >>> model = GPT(GPTConfig(vocabulary=50, width=12, heads=3, layers=2, positions=16))
    >>> len([step.tokens for step in generate_steps(model, [[1, 2, 3]], max_new_tokens=4)])
    4
    """
    return TokenSteps(decoder, prompts, sampling, max_new_tokens=max_new_tokens, end_ids=end_ids, runners_up=runners_up)


class TokenSteps(Generic[State]):
    """Iterator over the steps of a generation: each `next` computes one `TokenStep`.

    A text that ended is removed from the batch, so that no further step is computed for it. Nothing runs between two
    steps, so the iterator can be left or closed at any time.

    Args:
        decoder: a `GPT` or another `Decoder`.
        prompts: ids of each prompt, at least one. The prompts of a batch may have different lengths.
        sampling: how tokens are chosen; default: from the distribution of the model. Each text has its own random
            numbers from the same seed, so that it does not depend on the rest of the batch.
        max_new_tokens: maximum number of tokens of each text.
        end_ids: ids that end a text.
        runners_up: K, number of other tokens that each step reports.

    Raises:
        ValueError: for invalid arguments. The message has the value and a remedy.

    >>> from regard.models import GPT, GPTConfig
    >>> _ = torch.manual_seed(0)
    >>> model = GPT(GPTConfig(vocabulary=50, width=12, heads=3, layers=2, positions=16))
    >>> steps = TokenSteps(model, [[1, 2, 3]], Sampling(temperature=0.0), max_new_tokens=3, runners_up=1)
    >>> first, *others = steps
    >>> steps.branch(1, int(others[0].runners_up))     # replace the second token by the second best
    >>> [int(step.tokens) for step in steps] == [int(step.tokens) for step in others]
    False
    >>> steps = TokenSteps(model, [[1, 2], [3]], max_new_tokens=5)
    >>> _ = next(steps)
    >>> steps.finish(0)                                # a stop string was found in the first text
    >>> _ = next(steps)
    >>> steps.close()
    >>> [len(one.tokens) for one in steps.results()]
    [1, 2]
    """

    def __init__(
        self,
        decoder: Decoder[State],
        prompts: Sequence[Sequence[int]],
        sampling: Sampling | None = None,
        *,
        max_new_tokens: int = 128,
        end_ids: Collection[int] = (),
        runners_up: int = 0,
    ) -> None:
        self.decoder, self.sampling = decoder, Sampling() if sampling is None else sampling
        if not isinstance(self.sampling, Sampling):
            got = type(sampling).__name__
            raise ValueError(
                f"generate: sampling ({sampling!r}) must be a Sampling; got {got}. Try Sampling(temperature=0)."
            )
        self.prompts = [[int(id) for id in prompt] for prompt in prompts]
        self.max_new_tokens, self.end_ids, self.runners_up = max_new_tokens, frozenset(end_ids), runners_up
        refuse([*self._errors(), *self.sampling.errors("generate")])
        self.tokens: list[list[int]] = [[] for _ in self.prompts]
        """The tokens generated so far."""
        self.log_probabilities: list[list[float]] = [[] for _ in self.prompts]
        self.reasons: list[Reason | None] = [None for _ in self.prompts]
        """Why each text ended; None while it continues."""
        self._rows = list(range(len(self.prompts)))  # the text of each row of the state
        self._generators = [self.sampling.generator() for _ in self.prompts]
        self._state: State | None = None
        self._seen: Tensor | None = None  # (b, V): tokens of the prompt and of the text so far, of each row
        self._forced: int | None = None
        self._closed = False

    def __iter__(self) -> Iterator[TokenStep]:
        return self

    @torch.no_grad()  # on each call: a generator function would leave gradients disabled for the caller
    def __next__(self) -> TokenStep:
        if self._closed or all(self.reasons):
            raise StopIteration
        with evaluating(self.decoder) if getattr(self.decoder, "training", False) else nullcontext():
            logits = self._begin() if self._state is None else self._step(self._state)  # (b, V)
        all_scores = logits.float().log_softmax(-1)  # (b, V)
        if bool(all_scores.amax(-1).isnan().any()):
            raise ValueError(
                f"generate: logits must be finite for some token; got none for token "
                f"{len(self.tokens[self._rows[0]]) + 1}. Check the weights of the model."
            )
        chosen = self._choose(logits)  # (b,)
        scores = all_scores.gather(1, chosen[:, None]).squeeze(1)  # (b,)
        for text, token, score in zip(self._rows, chosen.tolist(), scores.tolist(), strict=True):
            self.tokens[text].append(token)
            self.log_probabilities[text].append(score)
            self.reasons[text] = self._reason(text)
        return self._report(chosen, scores, all_scores)

    def finish(self, text: int, reason: Reason = "stop") -> None:
        """End a text of the batch, also if it ended for another reason at this step. The other texts continue."""
        self.reasons[text] = reason

    def branch(self, step: int, token: int) -> None:
        """Go back to a step, counted from 0, and choose `token` there. The next step reports it, and later ones follow.

        They equal those of a new generation from the prompt, the tokens before that step, and `token`. Only for a
        single text.
        """
        count = len(self.tokens[0])
        if len(self.prompts) > 1 or self._closed or not 0 <= step < count:
            got = f"{len(self.prompts)} texts" if len(self.prompts) > 1 else "a closed one" if self._closed else count
            raise ValueError(f"generate: branch ({step}) must be a step of one open text, in 0…{count - 1}; got {got}.")
        if not 0 <= token < self._size:
            raise ValueError(f"generate: token ({token}) must lie in 0…{self._size - 1}, the vocabulary of the model.")
        assert self._state is not None
        # the last token before the step is read again, because its logits were not kept
        self._state.truncate(len(self.prompts[0]) + step - 1)
        del self.tokens[0][step:], self.log_probabilities[0][step:]
        self.reasons, self._generators = [None], [self.sampling.generator()]
        self._seen, self._forced = None, token

    def close(self) -> None:
        """End the iteration and free the caches."""
        self._closed, self._state = True, None

    def results(self) -> list[TokenGeneration]:
        """Return the generated tokens. Texts that were not continued to their end have the reason "stop"."""
        texts = zip(self.tokens, self.log_probabilities, self.reasons, strict=True)
        return [TokenGeneration(tuple(tokens), tuple(scores), reason or "stop") for tokens, scores, reason in texts]

    def _begin(self) -> Tensor:
        lengths = torch.tensor([len(prompt) for prompt in self.prompts])
        ids = torch.zeros(len(lengths), int(lengths.max()), dtype=torch.long)  # (B, T)
        for row, prompt in zip(ids, self.prompts, strict=True):
            row[: len(prompt)] = torch.tensor(prompt)
        capacity = ids.shape[1] + min(self.max_new_tokens, MAX_RESERVED)
        same = bool((lengths == lengths[0]).all())
        self._state, logits = self.decoder.begin(ids, None if same else lengths, capacity=capacity)
        self._size, self._device = logits.shape[-1], logits.device
        return logits

    def _step(self, state: State) -> Tensor:
        remaining = [row for row, text in enumerate(self._rows) if self.reasons[text] is None]
        if len(remaining) < len(self._rows):
            index = torch.tensor(remaining, device=self._device)
            state.reorder(index)
            self._rows = [self._rows[row] for row in remaining]
            self._generators = [self._generators[row] for row in remaining]
            self._seen = None if self._seen is None else self._seen[index]
        last = [(self.tokens[text] or self.prompts[text])[-1] for text in self._rows]
        return self.decoder.step(torch.tensor(last), state)

    def _choose(self, logits: Tensor) -> Tensor:
        """Return the next token of each row, (b,)."""
        if self.sampling.repetition_penalty != 1 and self._seen is None:
            self._seen = torch.zeros_like(logits, dtype=torch.bool)  # (b, V)
            for row, text in enumerate(self._rows):
                self._seen[row, [*self.prompts[text], *self.tokens[text]]] = True
        if self._forced is not None:
            chosen, self._forced = torch.tensor([self._forced], device=logits.device), None
        else:
            chosen = self.sampling.choose(logits, self._generators, self._seen)
        if self._seen is not None:
            self._seen.scatter_(1, chosen[:, None], True)
        return chosen

    def _reason(self, text: int) -> Reason | None:
        """Return why a text ends with its last token, or None."""
        tokens, longest = self.tokens[text], self.decoder.longest
        if tokens[-1] in self.end_ids:
            return "end"
        if len(tokens) >= self.max_new_tokens:
            return "length"
        full = longest is not None and len(self.prompts[text]) + len(tokens) > longest
        return "context" if full else None

    def _report(self, chosen: Tensor, scores: Tensor, all_scores: Tensor) -> TokenStep:
        count = min(self.runners_up, self._size - 1)
        best = all_scores.topk(count + 1 if count else 0)  # (b, K + 1)
        # the chosen token moves to the end; the last one leaves if it is not among the best
        order = (best.indices == chosen[:, None]).sort(dim=-1, stable=True).indices[:, :count]  # (b, K)
        values = (chosen, scores, best.indices.gather(1, order), best.values.gather(1, order).exp())
        fills = (NOTHING, 0.0, NOTHING, 0.0)
        rows = torch.tensor(self._rows, device=chosen.device)
        columns: list[Tensor] = []
        for value, fill in zip(values, fills, strict=True):
            column = value.new_full((len(self.prompts), *value.shape[1:]), fill)  # (B,) or (B, K)
            column[rows] = value
            columns.append(column)
        tokens, log_probabilities, runners_up, probabilities = columns
        return TokenStep(tokens, log_probabilities, runners_up, probabilities, tuple(self.reasons))

    def _errors(self) -> list[str]:
        problems, longest = [], self.decoder.longest
        if not self.prompts:
            problems.append("generate: prompts ([]) must not be empty.")
        for number, prompt in enumerate(self.prompts, 1):
            if not prompt:
                problems.append(f"generate: prompt {number} ([]) must have at least one token.")
        too_long = [index for index, prompt in enumerate(self.prompts) if longest is not None and len(prompt) > longest]
        if too_long:
            first, others = too_long[0], len(too_long) - 1
            problems.append(
                f"generate: prompt {first + 1} ({len(self.prompts[first]):,} tokens) must have at most {longest:,}, "
                f"the context of the model. Shorten it{f' and {others:,} more' if others else ''}."
            )
        if wrong := number_errors("generate", Integral, max_new_tokens=self.max_new_tokens, runners_up=self.runners_up):
            return problems + wrong
        if self.max_new_tokens < 1:
            problems.append(f"generate: max_new_tokens ({self.max_new_tokens}) must be at least 1.")
        if self.runners_up < 0:
            problems.append(f"generate: runners_up ({self.runners_up}) must be 0 or more.")
        return problems
