"""Messages of the widget: the answers are equal to those of the HTTP API, and work that is not needed is stopped."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import regard
from regard.notebook import display, kernel_bridge
from regard.notebook.kernel_bridge import KernelBridge
from regard.server.target import Capture, Target
from tests.server.conftest import asked, seen


class Browser:
    """Keeps the answers that a browser would receive."""

    def __init__(self, target: Target) -> None:
        self.answers: dict[tuple[object, object], tuple[object, bytes]] = {}
        self.messages = 0
        self.bridge = KernelBridge(target, self.receive)

    def receive(self, content: dict[str, Any], buffers: list[bytes]) -> None:
        self.messages += 1
        for answer, buffer in zip(content["answers"], buffers, strict=True):
            self.answers[content["view"], answer["id"]] = answer["status"], bytes(buffer)

    def ask(self, id: int, path: str, body: str | None = None, view: str = "a") -> None:
        self.bridge.receive({"view": view, "requests": [{"id": id, "path": path, "body": body}]})


@pytest.fixture(scope="module")
def capture() -> Target:
    return Capture(seen(), "a capture")


@pytest.fixture
def browser(capture: Target) -> Iterator[Browser]:
    opened = Browser(capture)
    yield opened
    opened.bridge.close()


PATHS = [
    "api/target",
    "api/progress",
    "api/maps/2/1/overview.pgm?size=96&reduce=max&scale=log",
    "api/maps/2/mean/tile/9/1/0.pgm?reduce=mean&scale=linear&ticket=3",
    "api/maps/0/2/cell?query=3&key=5",
    "api/maps/3/0/query/10?top=7",
    "api/maps/3/0/key/600?top=7",
    "api/maps/1/0/received",
    "api/maps/1/profile",
    "api/overlay?rollout=1&query=2",
    "api/image.png",
    "api/maps/9/0/received",
    "api/maps/0/0/cell?query=3&key=99",
    "api/nothing%20here",
]


def test_answers_are_those_of_the_http_api(capture: Target, browser: Browser) -> None:
    for id, path in enumerate(PATHS):
        browser.ask(id, path)
    browser.bridge.wait()
    client = asked(capture)
    for id, path in enumerate(PATHS):
        response = client.get(f"/{path}")
        assert browser.answers["a", id] == (response.status_code, response.content), path
    assert {status for status, _ in browser.answers.values()} == {200, 400, 404}


def test_answers_that_are_ready_together_are_one_message(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    async def call(app: object, path: str, body: str | None) -> kernel_bridge.Answer:
        go_on.wait(60)  # blocks the event loop until all requests have arrived
        return kernel_bridge.Answer(200, path.encode())

    monkeypatch.setattr(kernel_bridge, "call", call)
    requests = [{"id": id, "path": f"{id}", "body": None} for id in range(5)]
    browser.bridge.receive({"view": "a", "requests": requests[:3]})
    browser.bridge.receive({"view": "a", "requests": requests[3:]})
    go_on.set()
    browser.bridge.wait()
    assert browser.answers == {("a", id): (200, b"%d" % id) for id in range(5)}
    assert browser.messages < 5


def test_a_request_with_a_body(capture: Target, browser: Browser) -> None:
    browser.ask(1, "api/run", '{"text": "hello"}')
    browser.bridge.wait()
    response = asked(capture).post("/api/run", json={"text": "hello"})
    assert browser.answers["a", 1] == (response.status_code, response.content) == (404, response.content)


def test_the_page_waits_for_a_port(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_bridge, "standalone_page", lambda: "<html data-notebook>")
    browser.bridge.receive({"view": "b", "requests": [{"id": 0, "page": True}]})
    browser.bridge.wait()
    assert browser.answers["b", 0] == (200, b"<html data-notebook>")


@pytest.mark.parametrize("stop", [{"requests": [{"id": 1, "abort": True}]}, {"closed": True}])
def test_work_that_is_not_needed_is_stopped(stop: dict[str, object]) -> None:
    started, goes_on = threading.Event(), threading.Event()

    class Slow(Target):
        can = ("run",)
        snapshot = Capture(seen(), "slow").snapshot

        def run(self, text: str) -> Any:
            started.set()
            goes_on.wait(60)
            return self.snapshot

    browser = Browser(Slow())
    browser.ask(1, "api/run", '{"text": "x"}')
    assert started.wait(60)
    browser.bridge.receive({"view": "a", **stop})
    goes_on.set()
    browser.ask(2, "api/progress", view="b")
    browser.bridge.wait()
    assert list(browser.answers) == [("b", 2)]
    browser.bridge.close()


def test_maps_and_captures_are_targets() -> None:
    _, m = regard.attend(*(torch.randn(1, 2, 5, 4),) * 3, is_causal=True, return_map=True)
    (layer,) = display.target_of(m.tokens(list("abcde"), list("abcde"))).snapshot.layers
    assert (layer.kind, layer.count, layer.query_tokens) == ("causal", 2, list("abcde"))
    with pytest.raises(ValueError, match="there is no map"):
        display.target_of(regard.lens.Seen())


def test_without_a_notebook_there_is_only_the_picture() -> None:
    _, m = regard.attend(*(torch.randn(1, 2, 5, 4),) * 3, return_map=True)
    assert m._repr_mimebundle_() == ({}, {})
    assert regard.lens.Seen()._repr_mimebundle_() == ({}, {})


def test_without_anywidget_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display.importlib.util, "find_spec", lambda name: None)
    _, m = regard.attend(*(torch.randn(5, 4),) * 3, return_map=True)
    with pytest.raises(ImportError, match=r"pip install 'regard\[notebook\]'"):
        m.widget()


def test_the_widget_receives_and_sends_messages() -> None:
    pytest.importorskip("anywidget")
    if not (display.assets.FOLDER / "index.html").is_file():
        pytest.skip("the page is not built")
    _, m = regard.attend(*(torch.randn(1, 2, 5, 4),) * 3, return_map=True)
    widget: Any = m.widget(height=300)
    sent: list[Any] = []
    widget.send = lambda content, buffers: sent.append((content, buffers))
    request = {"id": 4, "path": "api/maps/0/0/received", "body": None}
    widget._handle_custom_msg({"view": "a", "requests": [request]}, [])
    widget.bridge.wait()
    assert sent[0][0] == {"view": "a", "answers": [{"id": 4, "status": 200}]}
    assert widget.height == 300
    widget.close()
