"""Generations of the page: their tokens so far, and the model's state for the next one."""

from __future__ import annotations

import math
import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from ..models.generation import Reason, TokenSteps
from ..models.sampling import Sampling
from ..tasks.text_generation import TextSteps
from .guard import RequestError
from .language_target import LanguageTarget, TokenAttention
from .work_queue import Task

MAX_NEW_TOKENS = 4096
"""Maximum number of tokens of a generation."""
MAX_SESSIONS = 8
"""Maximum number of generations that can be continued. A new one closes the least recently used."""


class GenerationSession:
    """One generation. Nothing is computed between requests: `advance` computes the tokens that a client requests.

    `stop` are strings that end the text. With `chat`, the prompt is a message to a model trained on conversations.

    Each method holds `lock`, the lock of the model, during one step at most, so that other requests are served in
    between.
    """

    def __init__(
        self,
        target: LanguageTarget,
        prompt: str,
        sampling: Sampling,
        *,
        tokens: int,
        runners_up: int,
        lock: threading.Lock,
        stop: Sequence[str] = (),
        chat: bool = False,
    ) -> None:
        self.id = secrets.token_hex(8)
        self.revision = 0
        """Number of branches taken. Steps of another revision are of another text."""
        self.limit = tokens
        """Number of tokens after which generation pauses."""
        self.steps: list[dict[str, Any]] = []
        """JSON of the tokens so far."""
        self._target, self._vocabulary, self._lock = target, target.generator.vocabulary, lock
        self._token_steps = TokenSteps(
            target.generator.model,
            [target.encode(prompt, chat=chat)],
            sampling,
            max_new_tokens=MAX_NEW_TOKENS,
            end_ids=target.generator.end_ids,
            runners_up=runners_up,
        )
        self._text_steps = TextSteps(self._vocabulary, self._token_steps, stop)
        self._attention = TokenAttention(target.gpt)
        self._closed = False

    @property
    def reason(self) -> Reason | None:
        """Why there is no next token; None if there is one."""
        reason = self._token_steps.reasons[0]
        return "length" if reason is None and len(self.steps) >= self.limit else reason

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON response of POST /api/generate."""
        prompt = self._vocabulary.pieces(self._token_steps.prompts[0])
        return {"id": self.id, "revision": self.revision, "limit": self.limit, "prompt": prompt}

    def advance(self, first: int, count: int, task: Task) -> dict[str, Any]:
        """Return steps from index `first` on, at most `count`, and compute those that do not exist yet."""
        steps: list[dict[str, Any]] = []
        revision, reason = self.revision, None
        while len(steps) < count and reason is None:
            task.check()
            with self._lock:
                self._check_open()
                self.check_revision(revision)
                self._check_step("from", first, len(self.steps))
                if first + len(steps) == len(self.steps) and self.reason is None:
                    self.steps.append(self._next())
                steps = self.steps[first : first + count]
                reason = self.reason if first + len(steps) == len(self.steps) else None
        return {"revision": revision, "steps": steps, "reason": reason}

    def check_revision(self, revision: int | None) -> None:
        """Raise RequestError if a request is for the text before a branch."""
        if revision is not None and revision != self.revision:
            raise RequestError(
                410, f"revision ({revision}) must be the current one, {self.revision}; the text was branched. Reload."
            )

    def branch(self, step: int, token: int) -> dict[str, Any]:
        """Go back to a step and choose another token there. The next request for steps reports it."""
        with self._lock:
            self._check_open()
            self._check_step("step", step, len(self.steps) - 1)
            self._text_steps.branch(step, token)
            del self.steps[step:]
            self.revision += 1
            self.limit = max(self.limit, step + 1)
            return {"revision": self.revision, "limit": self.limit}

    def resume(self, tokens: int) -> dict[str, Any]:
        """Allow more tokens after the current ones."""
        with self._lock:
            self._check_open()
            if self.reason not in (None, "length") or len(self.steps) >= MAX_NEW_TOKENS:
                ends = {"end": "its end token", "stop": "its stop string", "context": "the context of the model"}
                why = ends.get(self.reason or "", f"{MAX_NEW_TOKENS:,} tokens")
                raise RequestError(
                    400, f"generation ({len(self.steps)} tokens) must not have reached {why}. Branch at a token."
                )
            self.limit = min(len(self.steps) + tokens, MAX_NEW_TOKENS)
            return {"revision": self.revision, "limit": self.limit}

    def attention(self, token: int) -> Tensor:
        """Return the weights of a token of prompt or text on all tokens up to it: (L, H, token + 1)."""
        with self._lock:
            self._check_open()
            ids = [*self._token_steps.prompts[0], *self._token_steps.tokens[0]]
            longest = self._target.gpt.longest
            readable = len(ids) if longest is None else min(len(ids), longest)
            if not 0 <= token < readable:
                raise RequestError(
                    400, f"token ({token}) must be an integer in 0…{readable - 1}, the tokens that the model can read."
                )
            return self._attention.weights(ids[: token + 1])

    def close(self) -> None:
        """Free the caches. Requests that still wait for the model are refused."""
        with self._lock:
            self._closed, self._attention = True, TokenAttention(self._target.gpt)
            self._text_steps.close()

    def _check_open(self) -> None:
        if self._closed:
            raise closed_error(self.id)

    def _next(self) -> dict[str, Any]:
        step, _ = self._text_steps.advance()
        (chosen,), (others,) = step.tokens.tolist(), step.runners_up.tolist()
        names = self._vocabulary.pieces([chosen, *others])
        log_probability, probabilities = float(step.log_probabilities[0]), step.probabilities[0].tolist()
        return {
            "token": names[0],
            "id": chosen,
            "probability": math.exp(log_probability),
            "runners_up": [
                {"token": name, "id": id, "probability": probability}
                for name, id, probability in zip(names[1:], others, probabilities, strict=True)
            ],
        }

    @staticmethod
    def _check_step(name: str, step: int, last: int) -> None:
        if not 0 <= step <= last:
            rule = f"be an integer in 0…{last}" if last >= 0 else "be that of a token; there is none yet"
            raise RequestError(400, f"{name} ({step}) must {rule}.")


def closed_error(id: str) -> RequestError:
    """Return the error for a generation that does not exist or was closed for a newer one."""
    return RequestError(
        410, f"generation ({id[:40]!r}) must be one of the last {MAX_SESSIONS}; it was closed. Generate again."
    )


class Sessions:
    """The generations that can be continued, by id."""

    def __init__(self, limit: int = MAX_SESSIONS) -> None:
        self._limit = limit
        self._sessions: OrderedDict[str, GenerationSession] = OrderedDict()

    def add(self, session: GenerationSession) -> list[GenerationSession]:
        """Add a session and return those that were removed for it, to be closed."""
        self._sessions[session.id] = session
        excess = max(0, len(self._sessions) - self._limit)
        return [self._sessions.popitem(last=False)[1] for _ in range(excess)]

    def get(self, id: str) -> GenerationSession:
        """Return a session and make it the most recently used."""
        if id not in self._sessions:
            raise closed_error(id)
        self._sessions.move_to_end(id)
        return self._sessions[id]


def close_all(sessions: Iterable[GenerationSession]) -> None:
    """Close sessions. Each waits for the model, so call this in a worker thread."""
    for session in sessions:
        session.close()
