"""Text from a language model and its vocabulary: whole texts for a batch of prompts, or a stream for one."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, TypedDict

from ..data import BOS, EOS, Characters, Vocabulary
from ..data.text_arguments import check_text, listed_texts
from ..models.generation import NOTHING, Reason, TokenStep, TokenSteps
from ..models.sampling import Sampling
from ..models.token_decoder import Decoder
from .chat_template import Message, render_chat
from .text_stream import TextStream


class GenerateOptions(TypedDict, total=False):
    """Keyword arguments of `TextGenerator.generate`."""

    max_new_tokens: int
    stop: Sequence[str]
    chat: bool


@dataclass(frozen=True)
class Generation:
    """The text that follows a prompt."""

    prompt: str
    text: str
    """The generated text, without the prompt, the stop string and the end token."""
    tokens: tuple[str, ...]
    """The generated tokens, including the one that ended the text."""
    log_probabilities: tuple[float, ...]
    """log p of each token in the distribution of the model, before `Sampling` restricts it."""
    reason: Reason
    """Why it ended: "end" (an end token), "stop" (a stop string), "length" (max_new_tokens) or "context"."""


@dataclass(frozen=True)
class TextChunk:
    """One token of a stream, and the text that it made certain."""

    text: str
    """New text; empty while a character is incomplete or a stop string may have begun."""
    token: str
    """The token, as shown beside a map."""
    id: int
    log_probability: float
    runners_up: tuple[tuple[str, float], ...]
    """The most probable other tokens, with their probabilities in the distribution of the model."""
    reason: Reason | None
    """Why the text ends with this token; None if it continues."""


class TextGenerator:
    """A language model with its vocabulary.

    Args:
        model: a `GPT` or another `Decoder`.
        vocabulary: a `Vocabulary`, with at most as many ids as the model has. Optional attributes: `begin_id`, the id
            that an empty prompt begins with (default: BOS); `end_ids`, ids that end a text (default: EOS);
            `chat_template` and `special_tokens` (see `render_chat`). If `encode` takes an argument `special`, it adds
            the tokens that the model expects around a prompt.

    >>> import torch
    >>> from regard.data import Characters
    >>> from regard.models import GPT, GPTConfig
    >>> _ = torch.manual_seed(0)
    >>> letters = Characters("abc ")
    >>> model = GPT(GPTConfig(vocabulary=len(letters), width=12, heads=3, layers=2, positions=64))
    >>> generator = TextGenerator(model, letters)
    >>> one, other = generator.generate(["a b", "c"], max_new_tokens=5)
    >>> "".join(chunk.text for chunk in generator.stream("c", max_new_tokens=5)) == other.text
    True
    """

    def __init__(self, model: Decoder[Any], vocabulary: Any) -> None:
        self.model, self.vocabulary = model, vocabulary
        self.begin_id: int | None = getattr(vocabulary, "begin_id", BOS)
        self.end_ids: frozenset[int] = frozenset(getattr(vocabulary, "end_ids", (EOS,)))
        self._adds_tokens = "special" in signature(vocabulary.encode).parameters

    def encode(self, prompt: str, *, chat: bool = False) -> list[int]:
        """Return the ids of a prompt. An empty one begins with `begin_id`.

        chat: the prompt is a message of the user, which is inserted into the chat template of the model.
        """
        text = self.chat_prompt(prompt) if chat else prompt
        # a template contains the special tokens already
        ids = self.vocabulary.encode(text, special=not chat) if self._adds_tokens else self.vocabulary.encode(text)
        if isinstance(self.vocabulary, Characters) and (unknown := self.vocabulary.unknown(text)):
            warnings.warn(f"generate: prompt has characters that the model reads as <unk>: {unknown}.", stacklevel=2)
        if ids:
            return list(ids)
        if self.begin_id is None:
            raise ValueError(f"generate: prompt ({prompt!r}) must not be empty: the vocabulary has no begin token.")
        return [self.begin_id]

    def chat_prompt(self, messages: str | Sequence[Message]) -> str:
        """Return the prompt of a conversation, or of a single message of the user.

        Raises:
            ValueError: if the vocabulary has no chat template, or an invalid one.
        """
        template = getattr(self.vocabulary, "chat_template", None)
        if not isinstance(template, str):
            raise ValueError(
                "chat: the model must have a chat template; got a vocabulary without one. Use a model that was trained "
                "on conversations, or leave out --chat."
            )
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        return render_chat(template, messages, getattr(self.vocabulary, "special_tokens", None))

    def generate(
        self,
        prompts: str | Sequence[str],
        sampling: Sampling | None = None,
        *,
        max_new_tokens: int = 128,
        stop: Sequence[str] = (),
        chat: bool = False,
    ) -> list[Generation]:
        """Generate a text for each prompt, in one batch.

        Args:
            prompts: one text or several.
            sampling: how tokens are chosen; default: from the distribution of the model.
            max_new_tokens: maximum number of tokens of each text.
            stop: strings that end a text.
            chat: prompts are messages of the user, for a model that was trained on conversations.

        Raises:
            ValueError: for invalid arguments. The message has the value and a remedy.
        """
        prompts = listed_texts("generate", prompts)
        if not prompts:
            return []
        stop = _checked_stop(stop)
        ids = [self.encode(prompt, chat=chat) for prompt in prompts]
        steps = TokenSteps(self.model, ids, sampling, max_new_tokens=max_new_tokens, end_ids=self.end_ids)
        streams = [TextStream(self.vocabulary, one, stop) for one in ids]
        texts = ["" for _ in prompts]
        for step in steps:
            for number, token in enumerate(step.tokens.tolist()):
                if token != NOTHING:
                    texts[number] += _new_text(steps, number, token, streams[number])
        results = steps.results()
        return [
            Generation(prompt, text, tuple(self.vocabulary.pieces(one.tokens)), one.log_probabilities, one.reason)
            for prompt, text, one in zip(prompts, texts, results, strict=True)
        ]

    def stream(
        self,
        prompt: str,
        sampling: Sampling | None = None,
        *,
        max_new_tokens: int = 128,
        stop: Sequence[str] = (),
        runners_up: int = 0,
        chat: bool = False,
    ) -> TextSteps:
        """Generate the text that follows one prompt token by token. Arguments as in `generate`.

        runners_up: number of other tokens that each chunk reports.
        """
        stop = _checked_stop(stop)
        steps = TokenSteps(
            self.model,
            [self.encode(check_text("generate", "prompt", prompt), chat=chat)],
            sampling,
            max_new_tokens=max_new_tokens,
            end_ids=self.end_ids,
            runners_up=runners_up,
        )
        return TextSteps(self.vocabulary, steps, stop)


class TextSteps:
    """Iterator over the chunks of one text. It can be left or closed at any time; `branch` goes back."""

    def __init__(self, vocabulary: Vocabulary, steps: TokenSteps[Any], stop: Sequence[str]) -> None:
        self.steps = steps
        """The steps of the generation, with the tokens and log-probabilities so far."""
        self._vocabulary, self._stop = vocabulary, stop
        self._stream = TextStream(vocabulary, steps.prompts[0], stop)

    def __iter__(self) -> Iterator[TextChunk]:
        return self

    def __next__(self) -> TextChunk:
        step, text = self.advance()
        token = int(step.tokens[0])
        others = self._vocabulary.pieces(step.runners_up[0].tolist())
        return TextChunk(
            text=text,
            token=self._vocabulary.pieces([token])[0],
            id=token,
            log_probability=float(step.log_probabilities[0]),
            runners_up=tuple(zip(others, step.probabilities[0].tolist(), strict=True)),
            reason=self.steps.reasons[0],
        )

    def advance(self) -> tuple[TokenStep, str]:
        """Return the next step, and its text as far as it is certain. Raise StopIteration if there is none."""
        step = next(self.steps)
        return step, _new_text(self.steps, 0, int(step.tokens[0]), self._stream)

    def branch(self, step: int, token: int) -> str:
        """Go back to a step, counted from 0, and choose another token there. The next chunk reports it.

        Returns:
            The text of the tokens before that step, as far as it is certain. The next chunks continue it.
        """
        self.steps.branch(step, token)
        self._stream = TextStream(self._vocabulary, self.steps.prompts[0], self._stop)
        return "".join(self._stream.add(before) for before in self.steps.tokens[0])

    def close(self) -> None:
        """End the iteration and free the caches."""
        self.steps.close()


def _new_text(steps: TokenSteps[Any], number: int, token: int, stream: TextStream) -> str:
    """Return the new text of one text of the batch after a step. End it if a stop string occurred."""
    text = "" if steps.reasons[number] == "end" else stream.add(token)
    if stream.stopped:
        steps.finish(number, "stop")
    return text + (stream.finish() if steps.reasons[number] else "")


def _checked_stop(stop: Sequence[str]) -> list[str]:
    """Return the stop strings. They may come from an iterator, which can be read only once."""
    strings = stop if isinstance(stop, str | bytes) or not isinstance(stop, Iterable) else list(stop)
    if not isinstance(strings, list) or not all(isinstance(one, str) and one for one in strings):
        raise ValueError(f"generate: stop ({strings!r}) must be a list of strings, none of them empty.")
    return strings
