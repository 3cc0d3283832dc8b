"""Request handlers of generations: start, steps, branch, continue, and the attention of a token.

Like tiles, steps are computed on request. A client stops a generation by sending no more requests, and a closed page
computes nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from ..models.sampling import SEEDS, Sampling
from .generation_session import MAX_NEW_TOKENS, GenerationSession, Sessions, close_all
from .guard import (
    RequestError,
    integer_field,
    json_response,
    number_field,
    parse_head,
    parse_integer,
    read_fields,
    text_field,
)
from .head_statistics import numbers
from .language_target import LanguageTarget
from .target import Target
from .work_queue import Task, WorkQueue

T = TypeVar("T")
Handlers = dict[str, Callable[[Request], Awaitable[Response]]]
MAX_PROMPT_LENGTH = 100_000
"""Maximum number of characters of a prompt."""
MAX_COUNT = 64
"""Maximum number of steps in one response."""
MAX_RUNNERS_UP = 50
MAX_STOP, MAX_STOP_LENGTH = 8, 200
"""Maximum number of stop strings, and of characters of each."""
MAX_ID = 10**9
NUMBERS = [field.name for field in fields(Sampling) if field.name not in ("seed", "top_k")]
"""Settings of `Sampling` that are not integers."""


class GenerationRoutes:
    """The request handlers. `lock` is the lock of the model."""

    def __init__(self, target: Target, queue: WorkQueue, lock: threading.Lock) -> None:
        self._target, self._queue, self._lock = target, queue, lock
        self.sessions = Sessions()

    def get(self) -> Handlers:
        """Return the handlers of GET requests by path."""
        at = "/api/generate/{id}"
        return {"/api/generate": self.info, f"{at}/steps": self.steps, f"{at}/attention": self.attention}

    def post(self) -> Handlers:
        """Return the handlers of POST requests by path."""
        at = "/api/generate/{id}"
        return {"/api/generate": self.start, f"{at}/branch": self.branch, f"{at}/continue": self.resume}

    def _language(self) -> LanguageTarget:
        if not isinstance(self._target, LanguageTarget):
            raise RequestError(
                404, "this target must be a language model to generate. Open a folder of `regard train language`."
            )
        return self._target

    async def info(self, request: Request) -> Response:
        return json_response(self._language().to_dict())

    async def start(self, request: Request) -> Response:
        target = self._language()
        known: dict[str, type] = {"text": str, "tokens": int, "runners_up": int, "seed": int, "top_k": int}
        known |= {**dict.fromkeys(NUMBERS, float), "stop": list, "chat": bool}
        body = await read_fields(request, known)
        text, stop, chat = text_field(body, MAX_PROMPT_LENGTH), _stop_field(body), body.get("chat", False)
        tokens = integer_field(body, "tokens", 1, MAX_NEW_TOKENS, 64)
        runners_up = integer_field(body, "runners_up", 0, MAX_RUNNERS_UP, 8)
        sampling = Sampling(
            seed=integer_field(body, "seed", 0, SEEDS - 1, 0),
            top_k=integer_field(body, "top_k", 0, MAX_ID, Sampling.top_k),
            **{name: number_field(body, name, getattr(Sampling, name)) for name in NUMBERS},
        )

        def job(task: Task) -> GenerationSession:
            counts = {"tokens": tokens, "runners_up": runners_up}
            return GenerationSession(target, text, sampling, **counts, lock=self._lock, stop=stop, chat=chat)

        session = await self._submit(request, "the prompt", job)
        removed = self.sessions.add(session)
        if removed:
            await self._submit(request, "the prompt", lambda task: close_all(removed))
        return json_response(session.to_dict())

    async def steps(self, request: Request) -> Response:
        session = self._session(request)
        first = parse_integer("from", request.query_params.get("from"), 0, MAX_NEW_TOKENS, 0)
        count = parse_integer("count", request.query_params.get("count"), 1, MAX_COUNT, 1)
        return json_response(
            await self._submit(request, "the next token", lambda task: session.advance(first, count, task))
        )

    async def branch(self, request: Request) -> Response:
        session = self._session(request)
        body = await read_fields(request, {"step": int, "token": int})
        for name in ("step", "token"):
            if name not in body:
                raise RequestError(400, f"body: {name} must be present.")
        step, token = integer_field(body, "step", 0, MAX_NEW_TOKENS, 0), integer_field(body, "token", 0, MAX_ID, 0)
        return json_response(await self._submit(request, "the branch", lambda task: session.branch(step, token)))

    async def resume(self, request: Request) -> Response:
        session = self._session(request)
        body = await read_fields(request, {"tokens": int})
        tokens = integer_field(body, "tokens", 1, MAX_NEW_TOKENS, 64)
        return json_response(await self._submit(request, "the next token", lambda task: session.resume(tokens)))

    async def attention(self, request: Request) -> Response:
        session, config = self._session(request), self._language().gpt.config
        parameters = request.query_params
        token = parse_integer("token", parameters.get("token"), 0, MAX_ID)
        layer = parse_integer("layer", parameters.get("layer"), 0, config.layers - 1, config.layers - 1)
        head = parse_head(parameters.get("head", "mean"), config.heads)
        rows = await self._submit(request, f"the attention of token {token}", lambda task: session.attention(token))
        row = rows[layer].mean(0) if head is None else rows[layer, head]  # (T,)
        return json_response({"token": token, "weights": numbers(row)})

    def _session(self, request: Request) -> GenerationSession:
        self._language()
        session, revision = self.sessions.get(request.path_params["id"]), request.query_params.get("revision")
        if revision is not None:
            session.check_revision(parse_integer("revision", revision, 0, MAX_ID))
        return session

    async def _submit(self, request: Request, label: str, job: Callable[[Task], T]) -> T:
        """Run a job in a worker thread. A ValueError of the model is returned to the client."""

        def run(task: Task) -> T:
            try:
                return job(task)
            except ValueError as error:
                raise RequestError(400, str(error)) from error

        return await self._queue.submit(request, label, run)


def _stop_field(body: Mapping[str, Any]) -> list[str]:
    """Return the field `stop`: a list of strings that end a text."""
    stop: list[str] = body.get("stop", [])
    if len(stop) > MAX_STOP:
        raise RequestError(400, f"body: stop ({len(stop)} strings) must have at most {MAX_STOP}.")
    for one in stop:
        if not isinstance(one, str) or not 1 <= len(one) <= MAX_STOP_LENGTH:
            shown = f"{one!r:.40}"
            raise RequestError(400, f"body: stop ({shown}) must be strings of 1…{MAX_STOP_LENGTH} characters.")
    return stop
