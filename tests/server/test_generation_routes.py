"""Generation over HTTP: steps, branches, the attention of a token, limits, errors, cancellation."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from starlette.testclient import TestClient

from regard.data import Characters
from regard.models import GPT, GPTConfig
from regard.models.generation import generate
from regard.models.sampling import Sampling
from regard.server import generation_session
from regard.server.generation_session import GenerationSession, Sessions
from regard.server.language_target import LanguageTarget, TokenAttention, plain_model
from regard.server.routes import create
from regard.server.work_queue import Stopped, Task
from regard.tasks.text_generation import TextGenerator
from tests.server.conftest import asked, run

LETTERS = Characters("abcdefg .")
HEADS, LAYERS, POSITIONS = 3, 2, 29


def language(**settings: Any) -> LanguageTarget:
    torch.manual_seed(0)
    sizes = {"vocabulary": len(LETTERS), "width": 12, "heads": HEADS, "layers": LAYERS, "positions": POSITIONS}
    model = GPT(GPTConfig(**{**sizes, **settings}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6 if parameter.ndim == 2 else 1)  # so that heads and tokens differ
    generator = TextGenerator(model, LETTERS)
    generator.end_ids = frozenset()  # texts of random weights would end anywhere
    return LanguageTarget(generator, "tiny", "a b")


@pytest.fixture(scope="module")
def target() -> LanguageTarget:
    return language()


@pytest.fixture(scope="module")
def client(target: LanguageTarget) -> Iterator[TestClient]:
    with asked(target) as opened:
        yield opened


def start(client: TestClient, text: str = "abc", **fields: Any) -> str:
    answer = client.post("/api/generate", json={"text": text, "tokens": 6, **fields})
    assert answer.status_code == 200, answer.text
    return f"/api/generate/{answer.json()['id']}"


def steps(client: TestClient, at: str, first: int = 0, count: int = 64) -> dict[str, Any]:
    answer = client.get(f"{at}/steps?from={first}&count={count}")
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


def ids(answer: dict[str, Any]) -> list[int]:
    return [step["id"] for step in answer["steps"]]


def test_a_language_model_is_described(client: TestClient) -> None:
    about = client.get("/api/target").json()
    assert (about["kind"], about["title"], about["text"]) == ("language", "tiny: a b", "a b")
    assert about["can"] == ["map", "text", "generate", "run"] and len(about["maps"]) == LAYERS
    info = {"layers": 2, "heads": 3, "longest": 29, "prompt": "a b", "chat": False}
    assert client.get("/api/generate").json() == info


@pytest.mark.parametrize("fields", [{"temperature": 0}, {"seed": 3, "temperature": 0.8, "top_p": 0.9, "top_k": 5}])
def test_steps_are_those_of_the_generator(client: TestClient, target: LanguageTarget, fields: dict[str, Any]) -> None:
    at = start(client, **fields, runners_up=3)
    answers = [steps(client, at, number, 1) for number in range(6)]
    chunks = list(target.generator.stream("abc", Sampling(**{"seed": 0, **fields}), max_new_tokens=6, runners_up=3))
    assert [ids(answer) for answer in answers] == [[chunk.id] for chunk in chunks]
    assert [answer["reason"] for answer in answers] == [None] * 5 + ["length"]
    for answer, chunk in zip(answers, chunks, strict=True):
        (step,) = answer["steps"]
        assert step["token"] == chunk.token
        assert step["probability"] == pytest.approx(torch.tensor(chunk.log_probability).exp().item())
        others = [(one["token"], one["probability"]) for one in step["runners_up"]]
        assert others == [(token, pytest.approx(probability)) for token, probability in chunk.runners_up]
        assert LETTERS.pieces([one["id"] for one in step["runners_up"]]) == [token for token, _ in others]


def test_steps_may_be_requested_again_and_in_any_portions(client: TestClient) -> None:
    one, other = start(client, seed=5), start(client, seed=5)
    first = steps(client, one, 0, 4)
    assert first["reason"] is None and len(first["steps"]) == 4
    assert steps(client, one, 2, 2)["steps"] == first["steps"][2:]
    whole = steps(client, other)
    assert whole["steps"][:4] == first["steps"] and whole["reason"] == "length"
    assert steps(client, one, 4) == {**whole, "steps": whole["steps"][4:]}
    assert steps(client, one, 6) == {"revision": 0, "steps": [], "reason": "length"}


def test_a_branch_equals_a_new_prompt(client: TestClient, target: LanguageTarget) -> None:
    at = start(client, seed=2)
    before = ids(steps(client, at))
    other = steps(client, at)["steps"][3]["runners_up"][1]["id"]
    assert client.post(f"{at}/branch", json={"step": 3, "token": other}).json() == {"revision": 1, "limit": 6}
    after = steps(client, at)
    assert ids(after)[:4] == [*before[:3], other] and after["reason"] == "length" and after["revision"] == 1
    prompt = [*LETTERS.encode("abc"), *before[:3], other]
    (fresh,) = generate(target.generator.model, [prompt], Sampling(seed=2), max_new_tokens=2)
    assert tuple(ids(after)[4:]) == fresh.tokens
    old = client.get(f"{at}/steps?revision=0")
    assert old.status_code == 410 and "revision (0) must be the current one, 1" in old.json()["error"]


def test_more_tokens_after_the_requested_ones(client: TestClient) -> None:
    at, longer = start(client, seed=4), start(client, seed=4, tokens=9)
    assert steps(client, at)["reason"] == "length"
    assert client.post(f"{at}/continue", json={"tokens": 3}).json() == {"revision": 0, "limit": 9}
    assert steps(client, at) == steps(client, longer)


def test_an_end_token_ends_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    target = language()
    with asked(target) as client:
        chosen = ids(steps(client, start(client, seed=4)))
        target.generator.end_ids = frozenset(chosen[2:3])
        at = start(client, seed=4)
        answer = steps(client, at)
        last = chosen.index(chosen[2])
        assert ids(answer) == chosen[: last + 1] and answer["reason"] == "end"
        refused = client.post(f"{at}/continue", json={"tokens": 3})
        assert refused.status_code == 400 and "must not have reached its end token" in refused.json()["error"]
        other = next(id for id in range(4, len(LETTERS)) if id != chosen[2])
        client.post(f"{at}/branch", json={"step": last, "token": other})
        assert ids(steps(client, at, count=last + 1)) == [*chosen[:last], other]


def test_a_stop_string_ends_the_text(client: TestClient) -> None:
    chosen = ids(steps(client, start(client, seed=4, tokens=12)))
    texts = [LETTERS.decode(chosen[:length]) for length in range(13)]
    stop = texts[-1][3:5]
    length = next(length for length, text in enumerate(texts) if stop in text)
    at = start(client, seed=4, tokens=12, stop=["zz", stop])
    answer = steps(client, at)
    assert len(answer["steps"]) == length and answer["reason"] == "stop"
    refused = client.post(f"{at}/continue", json={"tokens": 3})
    assert refused.status_code == 400 and "must not have reached its stop string" in refused.json()["error"]
    first, second = LETTERS.encode(stop)
    client.post(f"{at}/branch", json={"step": length - 1, "token": second})  # the tokens before are part of the string
    assert steps(client, at)["reason"] == "stop"
    other = next(id for id in range(4, len(LETTERS)) if id not in (first, second))
    client.post(f"{at}/branch", json={"step": length - 1, "token": other})
    assert steps(client, at, count=length)["reason"] is None


def test_a_chat_template_is_put_around_a_message() -> None:
    class Conversations(Characters):
        chat_template = "{% for m in messages %}a.{{ m.content }}.{% endfor %}g"

    target = language()
    target.generator.vocabulary = Conversations("abcdefg .")
    with asked(target) as client:
        assert client.get("/api/generate").json()["chat"] is True
        started = client.post("/api/generate", json={"text": "bc", "chat": True}).json()
        assert "".join(started["prompt"]) == "a.bc.g"
        assert client.post("/api/generate", json={"text": "bc"}).json()["prompt"] == ["b", "c"]


def test_without_a_template_there_is_no_chat(client: TestClient) -> None:
    assert client.get("/api/generate").json()["chat"] is False
    refused = client.post("/api/generate", json={"text": "bc", "chat": True})
    assert refused.status_code == 400 and "must have a chat template" in refused.json()["error"]


def test_a_full_context_ends_the_text(client: TestClient) -> None:
    at = start(client, "a" * 20, tokens=64, temperature=0)
    answer = steps(client, at)
    assert answer["reason"] == "context" and len(answer["steps"]) == POSITIONS - 20 + 1
    refused = client.post(f"{at}/continue", json={"tokens": 3})
    assert refused.status_code == 400 and "must not have reached the context of the model" in refused.json()["error"]
    assert client.get(f"{at}/attention?token={POSITIONS - 1}").status_code == 200
    refused = client.get(f"{at}/attention?token={POSITIONS}")
    assert refused.status_code == 400 and "token (29) must be an integer in 0…28" in refused.json()["error"]


@pytest.mark.parametrize("settings", [{}, {"position": "rotary", "kv_heads": 1}, {"window": 4}])
def test_attention_is_that_of_a_call_over_the_text(settings: dict[str, Any]) -> None:
    target = language(**settings)
    with asked(target) as client:
        at = start(client)
        text = [*LETTERS.encode("abc"), *ids(steps(client, at))]
        _, maps = target.gpt(torch.tensor([text]), return_maps=True)
        for token in (8, 0, 5, 8, 2):  # forward and backward
            for layer, head in ((0, 2), (1, 0), (1, "mean")):
                heads = maps[layer].dense()[0, :, token, : token + 1]  # (H, token + 1)
                weights = heads.mean(0) if head == "mean" else heads[int(head)]
                answer = client.get(f"{at}/attention?token={token}&layer={layer}&head={head}").json()
                assert answer["token"] == token
                assert answer["weights"] == pytest.approx(weights.tolist(), abs=1e-5)


def test_attention_follows_a_branch(client: TestClient, target: LanguageTarget) -> None:
    at = start(client, seed=1)
    before = ids(steps(client, at))
    client.get(f"{at}/attention?token=8")
    other = LETTERS.encode("g" if before[1] != LETTERS.encode("g")[0] else "f")[0]
    client.post(f"{at}/branch", json={"step": 1, "token": other})
    text = [*LETTERS.encode("abc"), *ids(steps(client, at))]
    _, maps = target.gpt(torch.tensor([text]), return_maps=True)
    answer = client.get(f"{at}/attention?token=7&layer=0&head=1").json()
    assert answer["weights"] == pytest.approx(maps[0].dense()[0, 1, 7, :8].tolist(), abs=1e-5)


def test_attention_processes_only_new_tokens(target: LanguageTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    whole = target.gpt.hidden

    def counted(new: torch.Tensor, **options: Any) -> Any:
        read.append(new.shape[1])
        return whole(new, **options)

    monkeypatch.setattr(target.gpt, "hidden", counted)
    attention, text = TokenAttention(target.gpt), LETTERS.encode("abcdefgabc")
    for length in (8, 8, 4, 10):
        assert attention.weights(text[:length]).shape == (LAYERS, HEADS, length)
    attention.weights([*text[:3], text[0], text[0]])
    assert read == [8, 1, 6, 2]


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"text": "a" * 30}, 413, "text (30 tokens) must have at most 29 for tiny"),
        ({"text": "a" * 100_001}, 413, "text (100,001 characters) must be at most 100,000"),
        ({"tokens": 0}, 400, "tokens (0) must lie in 1…4096"),
        ({"tokens": 4097}, 400, "tokens (4097) must lie in 1…4096"),
        ({"runners_up": 51}, 400, "runners_up (51) must lie in 0…50"),
        ({"seed": -1}, 400, "seed (-1) must lie in 0…"),
        ({"seed": True}, 400, "seed must be of type int; got bool"),
        ({"top_p": 3}, 400, "top_p (3.0) must lie in (0, 1]"),
        ({"top_p": True}, 400, "top_p must be of type float; got bool"),
        ({"temperature": 10**400}, 400, "temperature (inf) must be a finite number"),
        ({"temperature": -(10**400)}, 400, "temperature (-inf) must be a finite number"),
        ({"repetition_penalty": 1e-300}, 400, "repetition_penalty (1e-300) must lie in [0.001, 1000]"),
        ({"other": 1}, 400, "'other' must be one of text, tokens"),
        ({"chat": 1}, 400, "chat must be of type bool; got int"),
        ({"stop": "x"}, 400, "stop must be of type list; got str"),
        ({"stop": [""]}, 400, "stop ('') must be strings of 1…200 characters"),
        ({"stop": ["a", 5]}, 400, "stop (5) must be strings of 1…200 characters"),
        ({"stop": ["a"] * 9}, 400, "stop (9 strings) must have at most 8"),
    ],
)
def test_invalid_settings_are_refused(client: TestClient, fields: dict[str, Any], status: int, words: str) -> None:
    answer = client.post("/api/generate", json={"text": "a", **fields})
    assert answer.status_code == status and words in answer.json()["error"], answer.text


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("steps?from=7", 400, "from (7) must be an integer in 0…6"),
        ("steps?from=x", 400, "from ('x') must be an integer in 0…4096"),
        ("steps?count=65", 400, "count ('65') must be an integer in 1…64"),
        ("steps?revision=1", 410, "revision (1) must be the current one, 0"),
        ("attention", 400, "token (nothing) must be an integer"),
        ("attention?token=9", 400, "token (9) must be an integer in 0…8"),
        ("attention?token=0&layer=2", 400, "layer ('2') must be an integer in 0…1"),
        ("attention?token=0&head=3", 400, "head ('3') must be 'mean' or an index in 0…2"),
        ("attention?token=0&head=-1", 400, "head ('-1') must be 'mean' or an index in 0…2"),
    ],
)
def test_invalid_requests_are_refused(client: TestClient, path: str, status: int, words: str) -> None:
    at = start(client)
    steps(client, at)
    answer = client.get(f"{at}/{path}")
    assert answer.status_code == status and words in answer.json()["error"], answer.text


def test_invalid_branches_are_refused(client: TestClient) -> None:
    at = start(client)
    for computed, body, words in (
        (0, {"step": 0, "token": 5}, "step (0) must be that of a token; there is none yet"),
        (6, {"step": 6, "token": 5}, "step (6) must be an integer in 0…5"),
        (6, {"step": 1, "token": len(LETTERS)}, f"token ({len(LETTERS)}) must lie in 0…{len(LETTERS) - 1}"),
        (6, {"step": 1}, "token must be present"),
        (6, {"step": -1, "token": 5}, "step (-1) must lie in 0…4096"),
    ):
        if computed:
            steps(client, at)
        answer = client.post(f"{at}/branch", json=body)
        assert answer.status_code == 400 and words in answer.json()["error"], answer.text
    assert steps(client, at)["revision"] == 0


def test_only_a_language_model_generates(saw: Any) -> None:
    from regard.server.target import Capture

    with asked(Capture(saw, "a capture", batch=1)) as client:
        for answer in (client.get("/api/generate"), client.post("/api/generate", json={"text": "a"})):
            assert answer.status_code == 404 and "must be a language model" in answer.json()["error"]
    with pytest.raises(ValueError, match=r"model \(Linear\) must be a GPT"):
        plain_model(torch.nn.Linear(1, 1))


def test_the_oldest_generation_is_closed(target: LanguageTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    with asked(target) as client:
        client.app.state.app.generation.sessions = Sessions(2)  # type: ignore[attr-defined]
        first, second = start(client), start(client)
        steps(client, first, 0, 1)  # the second one is now the least recently used
        start(client)
        assert steps(client, first)["reason"] == "length"
        gone = client.get(f"{second}/steps")
        assert gone.status_code == 410 and "it was closed. Generate again." in gone.json()["error"]


def session(target: LanguageTarget, **options: Any) -> GenerationSession:
    settings = {"tokens": 6, "runners_up": 1, "lock": threading.Lock(), **options}
    return GenerationSession(target, "abc", Sampling(temperature=0.0), **settings)


def test_a_stopped_request_keeps_the_tokens_so_far(target: LanguageTarget) -> None:
    class StopsAfter(Task):
        checks = 0

        def check(self) -> None:
            self.checks += 1
            if self.checks > 3:
                raise Stopped(self.label)

    one, whole = session(target), session(target).advance(0, 6, Task())
    with pytest.raises(Stopped):
        one.advance(0, 6, StopsAfter())
    assert one.steps == whole["steps"][:3]
    assert one.advance(0, 6, Task()) == whole


def test_a_closed_generation_frees_its_caches(target: LanguageTarget) -> None:
    one = session(target)
    one.advance(0, 2, Task())
    one.close()
    for act in (lambda: one.advance(0, 3, Task()), lambda: one.branch(0, 5), lambda: one.attention(0)):
        with pytest.raises(Exception, match="was closed"):
            act()


def test_the_length_is_bounded(target: LanguageTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation_session, "MAX_NEW_TOKENS", 5)
    one = session(target, tokens=2)
    assert one.advance(0, 9, Task())["reason"] == "length"
    assert one.resume(100) == {"revision": 0, "limit": 5}
    assert len(one.advance(0, 9, Task())["steps"]) == 5
    with pytest.raises(Exception, match=r"generation \(5 tokens\) must not have reached 5 tokens"):
        one.resume(1)


def test_other_requests_are_served_between_two_steps(target: LanguageTarget) -> None:
    """The attention of a token needs the model, and waits for one step of another client at most."""
    lock = threading.Lock()
    one = session(target, lock=lock)
    between: list[int] = []

    class AsksBetween(Task):
        def check(self) -> None:
            if one.steps:
                between.append(one.attention(3).shape[-1])  # would wait forever if the lock were held

    one.advance(0, 4, AsksBetween())
    assert between == [4, 4, 4]


def test_many_clients_get_their_own_texts(target: LanguageTarget) -> None:
    """Each request of twelve clients at once is answered, and each text is that of its seed."""
    import httpx

    with asked(target) as client:
        alone = {seed: ids(steps(client, start(client, seed=seed))) for seed in range(6)}

    async def scene() -> None:
        app = create(target)
        app.state.app.generation.sessions = Sessions(12)
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:

            async def text(seed: int) -> list[int]:
                body = {"text": "abc", "tokens": 6, "seed": seed}
                at = f"/api/generate/{(await http.post('/api/generate', json=body)).json()['id']}"
                return [ids((await http.get(f"{at}/steps?from={step}")).json())[0] for step in range(6)]

            texts = await asyncio.gather(*(text(number % 6) for number in range(12)))
        app.state.app.queue.close()
        assert texts == [alone[number % 6] for number in range(12)]

    run(scene())


def test_a_closed_page_stops_the_computation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client disconnects during the second step. That step ends, and no other one is computed."""
    target = language()
    app = create(target)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        at = start(client)
        session = app.state.app.generation.sessions.get(at.rpartition("/")[2])
        waits, goes_on = threading.Event(), threading.Event()
        step = target.gpt.step

        def slow(*arguments: Any) -> torch.Tensor:
            waits.set()
            assert goes_on.wait(30)
            return step(*arguments)

        monkeypatch.setattr(target.gpt, "step", slow)
        sent: list[Any] = []

        async def scene() -> None:
            async def receive() -> dict[str, Any]:
                while not waits.is_set():
                    await asyncio.sleep(0.01)
                return {"type": "http.disconnect"}

            async def send(message: Any) -> None:
                sent.append(message)

            scope = {"type": "http", "method": "GET", "path": f"{at}/steps", "query_string": b"count=6"}
            await app({**scope, "headers": [(b"host", b"127.0.0.1")]}, receive, send)

        run(scene())
        assert sent[0]["status"] == 499
        goes_on.set()
        app.state.app.queue._pool.shutdown(wait=True)
        assert len(session.steps) == 2


def test_a_text_is_run_for_its_maps(client: TestClient, target: LanguageTarget) -> None:
    before = target.snapshot
    try:
        about = client.post("/api/run", json={"text": "abcd"}).json()
        assert [(one["name"], one["kind"], one["heads"], one["keys"]) for one in about["maps"]] == [
            ("blocks.0.attention", "causal", 3, 4),
            ("blocks.1.attention", "causal", 3, 4),
        ]
        assert about["can"] == ["map", "text", "generate", "run"] and about["tokens"] == {"t0": list("abcd")}
        refused = client.post("/api/run", json={"text": "a" * 30})
        assert refused.status_code == 413
    finally:
        target.snapshot = before
