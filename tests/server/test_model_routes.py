"""Charts over HTTP: the list, the responses, the errors."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import torch
from starlette.testclient import TestClient

from regard.explain import MECHANISMS, explain
from regard.models import Seq2Seq, Seq2SeqConfig
from regard.server.target import Snapshot, Target
from regard.tasks.translator import Translator
from tests.page.targets import language_model
from tests.server.conftest import asked


def test_every_mechanism_is_listed_and_served(client: TestClient) -> None:
    offered = client.get("/api/explain").json()
    assert [one["name"] for one in offered["mechanisms"]] == list(MECHANISMS) and offered["run"] is None
    assert client.get("/api/explain/multi-head?text=a b c").json() == _plain(explain("multi-head", "a b c").to_dict())


def test_invalid_requests_are_rejected_with_a_message(client: TestClient) -> None:
    for path, status, words in (
        ("rnn", 404, "mechanism ('rnn') must be one of encoder-decoder"),
        ("run", 404, "mechanism ('run') must be one of"),
        (f"bert?text={'a ' * 30}", 400, "text (30 words) must have 1 to 24"),
        (f"bert?text={'a' * 501}", 413, "text (501 characters) must be at most 500"),
    ):
        answer = client.get(f"/api/explain/{path}")
        assert answer.status_code == status and words in answer.json()["error"], path


class _Words:
    """A vocabulary of single letters."""

    def encode(self, text: str) -> list[int]:
        return [4 + ord(letter) - ord("a") for letter in text.split()]

    def encode_all(self, texts: list[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def pieces(self, ids: list[int]) -> list[str]:
        return [f"p{token}" for token in ids]

    def decode(self, ids: list[int]) -> str:
        return " ".join(self.pieces(ids))


def test_the_model_of_the_target_is_explained_as_run() -> None:
    torch.manual_seed(0)
    words = _Words()
    model = Seq2Seq(Seq2SeqConfig(30, 30, width=5, hidden=7, encoder_hidden=4)).eval()
    target = Target()
    target.snapshot = Snapshot("translator", "a run", [])
    target.translator = Translator(model, words, words)  # type: ignore[attr-defined, arg-type]
    with asked(target) as client:
        assert client.get("/api/explain").json()["run"] == "a run"
        chart = client.get("/api/explain/run?text=a b c").json()
        assert chart["title"] == "a run" and chart["tokens"]["Ts"] == ["p4", "p5", "p6", "p3"]
        assert chart["steps"] == len(chart["written"])
        refused = client.get("/api/explain/run")
        assert refused.status_code == 400 and "must be run on a text" in refused.json()["error"]


def test_a_language_model_is_explained_with_the_end_of_a_long_prompt() -> None:
    target = language_model()
    with asked(target) as client:
        assert client.get("/api/explain").json()["run"] == "a made-up language model"
        short = client.get("/api/explain/run?text=the cat").json()
        assert short["tokens"]["T"] == [*"the", "␣", *"cat"] and short["title"] == "a made-up language model"
        text = "abcdefghijklmnopqrstuvwxyz"
        long = client.get(f"/api/explain/run?text={text}").json()
        assert long["tokens"]["T"] == list(text[2:])
        assert long["title"] == "a made-up language model (the last 24 of 26 tokens)"
        logits = target.gpt(torch.tensor([target.encode(text)[2:]]))[0, -1]
        best = target.generator.vocabulary.pieces([int(logits.argmax())])
        assert long["tokens"]["K"][:1] == best


def test_a_model_without_a_chart_is_not_offered() -> None:
    target = Target()
    target.snapshot = Snapshot("images", "a run", [])
    target.classifier = SimpleNamespace(model=torch.nn.Linear(2, 2))  # type: ignore[attr-defined]
    with asked(target) as client:
        assert client.get("/api/explain").json()["run"] is None


def _plain(response: dict[str, object]) -> dict[str, object]:
    """Convert to JSON and back: tuples become lists."""
    import json

    return json.loads(json.dumps(response))


def test_a_target_without_a_model_has_no_run() -> None:
    from regard.server.model_routes import explainable_model

    assert explainable_model(SimpleNamespace()) is None  # type: ignore[arg-type]
    assert explainable_model(SimpleNamespace(classifier="model", image=Path("x.png"))) == ("model", Path("x.png"))  # type: ignore[arg-type]
