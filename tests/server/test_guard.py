"""Access control: foreign pages, forged hosts, paths outside the page, invalid requests."""

from __future__ import annotations

import json
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from regard.server.guard import MAX_BODY_SIZE, Guard
from regard.server.static_files import Page
from regard.server.target import Capture, Target
from tests.server.conftest import BASE, asked, run

FUZZ = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8000",
        "127.0.0.1.evil.example",
        "",
        "a b",
        "10.0.0.1",
        "[::2]",
        "127.0.0.1:x",
        "127.0.0.1@evil",
        "\xe9",
    ],
)
def test_foreign_hosts_are_rejected(client: TestClient, host: str) -> None:
    refused = client.get("/api/target", headers={"host": host.encode("latin-1")})
    assert refused.status_code == 421 and "`regard view` printed" in refused.json()["error"]


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:8000", "LOCALHOST", "[::1]:8000", "localhost:9"])
def test_names_of_this_machine_are_accepted(client: TestClient, host: str) -> None:
    assert client.get("/api/target", headers={"host": host}).status_code == 200


def test_two_host_headers_are_rejected(client: TestClient) -> None:
    twice = [("host", "127.0.0.1:8000"), ("host", "evil.example")]
    assert client.get("/api/target", headers=twice).status_code == 421


def test_numeric_addresses_are_accepted_only_with_any_address() -> None:
    narrow, any_address = Guard(None, ["localhost"]), Guard(None, ["localhost"], any_address=True)  # type: ignore[arg-type]
    assert not narrow.ours("10.1.2.3:80") and any_address.ours("10.1.2.3:80") and any_address.ours("[fe80::1]:80")
    assert not any_address.ours("evil.example")


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1:8000", "http://127.0.0.1:3000"])
def test_foreign_origins_are_rejected(client: TestClient, origin: str) -> None:
    for method in ("GET", "POST", "OPTIONS"):
        refused = client.request(method, "/api/target", headers={"origin": origin})
        assert refused.status_code == 403 and origin in refused.json()["error"]
        assert not any(name.startswith("access-control") for name in refused.headers)


def test_other_pages_may_neither_embed_nor_post(client: TestClient) -> None:
    assert client.get("/api/target", headers={"origin": BASE, "sec-fetch-site": "same-origin"}).status_code == 200
    for site in ("cross-site", "same-site"):
        embedded = {"sec-fetch-site": site, "sec-fetch-mode": "no-cors"}
        assert client.get("/api/maps/0/0/overview.png", headers=embedded).status_code == 403
    visit = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert client.get("/", headers=visit).status_code == 200  # a link to the page
    assert client.get("/api/target", headers=visit).status_code == 403
    form = client.post("/api/run", content=b'{"text": "x"}', headers={"content-type": "text/plain"})
    assert form.status_code == 415


@pytest.mark.parametrize("address", ["/", "/api/target", "/api/nothing", "/api/maps/0/0/overview.png"])
def test_every_response_has_the_headers(client: TestClient, address: str) -> None:
    headers = client.get(address).headers
    assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"
    policy = headers["content-security-policy"]
    assert "script-src 'self'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy


@pytest.fixture
def built(tmp_path: Path, saw: Any) -> TestClient:
    page = tmp_path / "web/dist"
    (page / "assets").mkdir(parents=True)
    (page / "index.html").write_text("<!doctype html>page")
    (page / "assets/index-1a2b.js").write_text("let x;")
    (page / "assets/notes.md").write_text("of no known kind")
    (tmp_path / "secret.html").write_text("secret")
    (page / "link.html").symlink_to(tmp_path / "secret.html")
    (page / "up").symlink_to(tmp_path)
    return asked(Capture(saw, "x"), page=Page(page))


def test_the_page_is_served(built: TestClient) -> None:
    assert built.get("/").text == built.get("/index.html").text == "<!doctype html>page"
    assert built.get("/").headers["content-type"] == "text/html; charset=utf-8"
    script = built.get("/assets/index-1a2b.js")
    assert script.text == "let x;" and script.headers["content-type"].startswith("text/javascript")
    assert "immutable" in script.headers["cache-control"] and built.get("/").headers["cache-control"] == "no-cache"
    assert built.head("/").status_code == 200


OUTSIDE = """
/../secret.html /..%2fsecret.html /..%252fsecret.html /%2e%2e/secret.html /%2e%2e%2fsecret.html //etc/passwd
/assets/../../../secret.html /assets/..%5c..%5csecret.html /%2fetc%2fpasswd /link.html /up/secret.html
/assets/notes.md /assets /assets/ /index.html%00.js /./index.html /index.html/
"""


def test_other_paths_are_not_served(built: TestClient) -> None:
    for path in OUTSIDE.split():
        for way in (path, unquote(path), unquote(unquote(path))):
            status, body = raw(built.app, way)
            assert status == 404, way
            assert json.loads(body)["error"].startswith("path ("), way


def raw(app: Any, path: str) -> tuple[int, bytes]:
    """Request a raw path, which clients would normalize."""
    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "scheme": "http", "root_path": ""}
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    run(app({**scope, "headers": [(b"host", b"127.0.0.1:8000")]}, receive, send))
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent)


def test_without_a_page_the_response_explains_how_to_build_one(client: TestClient) -> None:
    description = client.get("/")
    assert description.status_code == 200 and "make page" in description.text and "<script" not in description.text
    assert client.get("/assets/index.js").status_code == 404


@pytest.mark.parametrize(
    ("address", "status", "words"),
    [
        ("/api/maps/9/0/overview.png", 404, "map (9) must be an index in 0…3"),
        ("/api/maps/0/3/overview.png", 404, "head ('3') must be 'mean' or an index in 0…2"),
        ("/api/maps/0/-1/overview.png", 404, "head ('-1')"),
        ("/api/maps/0/²/overview.png", 404, "head"),
        ("/api/maps/٣/0/overview.png", 400, "map"),
        ("/api/maps/0/0/overview.png?size=0", 400, "size ('0') must be an integer in 1…1024"),
        ("/api/maps/0/0/overview.png?size=99999", 400, "size"),
        ("/api/maps/0/0/overview.png?reduce=median", 400, "reduce ('median') must be one of max, mean"),
        ("/api/maps/0/0/overview.png?scale=cubic", 400, "linear, log"),
        ("/api/maps/0/0/overview.png?palette=jet", 400, "light, dark"),
        ("/api/maps/0/0/overview.png?ticket=x", 400, "ticket"),
        ("/api/maps/0/0/tile/5/0/0.pgm", 400, "level ('5') must be an integer in 0…4"),
        ("/api/maps/0/0/tile/4/1e9/0.pgm", 400, "column"),
        ("/api/maps/0/0/tile/4/0/0.jpg", 404, "served"),
        ("/api/maps/0/0/cell", 400, "query (nothing) must be an integer in 0…12"),
        ("/api/maps/0/0/cell?query=0&key=13", 400, "key ('13') must be an integer in 0…12"),
        ("/api/maps/0/0/query/13", 400, "0…12"),
        ("/api/maps/0/0/query/1?top=0", 400, "top ('0') must be an integer in 1…1000"),
        ("/api/maps/0/0/key/x", 400, "key ('x')"),
        ("/api/maps/x/profile", 400, "map ('x')"),
        ("/api/rollout/700", 400, "token ('700') must be an integer in 0…699"),
        ("/api/rollout/1?maps=0,zero", 400, "maps ('zero')"),
        ("/api/rollout/1?maps=3", 400, "maps ('3') must be square maps of one length"),
        ("/api/overlay", 400, "map (nothing)"),
        ("/api/overlay?rollout=2", 400, "rollout ('2') must be one of 0, 1"),
        ("/api/target/", 404, "served"),
        ("/api", 404, "path"),
    ],
)
def test_errors_describe_the_problem(client: TestClient, address: str, status: int, words: str) -> None:
    refused = client.get(address)
    assert refused.status_code == status and words in refused.json()["error"]


def test_other_methods(client: TestClient) -> None:
    for method, address in (("POST", "/api/target"), ("DELETE", "/"), ("GET", "/api/run"), ("PUT", "/api/translate")):
        refused = client.request(method, address)
        assert refused.status_code in (404, 405) and refused.json()["error"], (method, address)


class Echo(Target):
    """A target that accepts any text."""

    can = ("run", "translate")

    def __init__(self, saw: Any) -> None:
        self.snapshot = Capture(saw, "x").snapshot

    def translate(self, text: str, beam: int, n_best: int) -> dict[str, Any]:
        return {"hypotheses": [text, beam, n_best]}

    def run(self, text: str) -> Any:
        if text == "wrong":
            raise ValueError("model: text must be right.")
        return self.snapshot


@pytest.fixture(scope="session")
def echo(saw: Any) -> Iterator[TestClient]:
    with asked(Echo(saw)) as opened:
        yield opened


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"", 400, "must be JSON"),
        (b"{", 400, "must be JSON"),
        (b"\xff\xfe", 400, "must be JSON"),
        (b"[" * 100_000, 400, "must be JSON"),
        (b'{"text": NaN}', 400, "NaN is not JSON"),
        (b"9" * 5000, 400, "must be JSON"),
        (b'["text"]', 400, "must be a JSON object with text, beam, n_best; got a list"),
        (b'{"beam": 5}', 400, "text must be present"),
        (b'{"text": 5}', 400, "text must be of type str; got int"),
        (b'{"text": "a", "beam": true}', 400, "beam must be of type int; got bool"),
        (b'{"text": "a", "beam": 0}', 400, "beam (0) must lie in 1"),
        (b'{"text": "a", "beam": 2, "n_best": 3}', 400, "n_best (3) must lie in 1"),
        (b'{"text": "a", "length": 1}', 400, "'length' must be one of text, beam, n_best"),
        (b'{"text": "\\ud800"}', 400, "an unpaired surrogate at 0"),
        (b'{"text": "' + b"a" * 5001 + b'"}', 413, "text (5,001 characters) must be at most 5,000"),
        (b'{"text": "' + b"a" * MAX_BODY_SIZE + b'"}', 413, "body must be at most 1,048,576 bytes"),
    ],
)
def test_invalid_bodies(echo: TestClient, body: bytes, status: int, words: str) -> None:
    refused = echo.post("/api/translate", content=body, headers={"content-type": "application/json"})
    assert refused.status_code == status and words in refused.json()["error"]


def test_valid_bodies(echo: TestClient) -> None:
    assert echo.post("/api/translate", json={"text": "ä 你", "beam": 3}).json() == {"hypotheses": ["ä 你", 3, 3]}
    assert echo.post("/api/run", json={"text": "x"}).json()["maps"]
    text_ = echo.post("/api/run", json={"text": "wrong"})
    assert text_.status_code == 400 and text_.json()["error"] == "model: text must be right."


def test_a_capture_neither_runs_nor_translates(client: TestClient) -> None:
    assert client.post("/api/run", json={"text": "x"}).status_code == 404
    assert "translator" in client.post("/api/translate", json={"text": "x"}).json()["error"]


PARTS = ["0", "1", "mean", "tile", "api", "maps", "..", "%2e", "-1", "1e5", "9" * 30, "é", "\x00", "0.pgm", "cell"]
WORDS = st.one_of(st.sampled_from([*PARTS, "overview.png", "query"]), st.text(max_size=8))


def description(response: Any) -> None:
    """Check that the response is a result or an error message, and never an internal error."""
    assert response.status_code < 500, response.text
    if response.status_code >= 400:
        assert json.loads(response.content)["error"]


@FUZZ
@given(parts=st.lists(WORDS, max_size=8), query=st.dictionaries(WORDS, WORDS, max_size=3))
def test_any_path(client: TestClient, parts: list[str], query: dict[str, str]) -> None:
    path = "/".join(quote(part, safe="", errors="replace") for part in parts)
    asked = "&".join(
        f"{quote(name, errors='replace')}={quote(value, errors='replace')}" for name, value in query.items()
    )
    description(client.get(f"{BASE}/api/maps/{path}?{asked}"))
    description(client.get(f"{BASE}/{path}?{asked}"))


NAMES = st.sampled_from(["max", "mean", "log", "linear", "dark", ""])
NUMBERS = st.one_of(st.integers(-2, 20).map(str), st.sampled_from(["", "nan", "1.5", "0x1", "+1", " 1", "9" * 40]))


@FUZZ
@given(numbers=st.tuples(*[NUMBERS] * 5), names=st.tuples(*[NAMES] * 3))
def test_any_numbers(client: TestClient, numbers: tuple[str, ...], names: tuple[str, ...]) -> None:
    a, b, c, d, e = numbers
    inspect = dict(zip(("reduce", "scale", "palette"), names, strict=True))
    description(client.get(f"{BASE}/api/maps/{a}/{b}/tile/{c}/{d}/{e}.pgm", params=inspect))
    description(client.get(f"{BASE}/api/maps/{a}/{b}/overview.pgm", params={**inspect, "size": c}))
    description(client.get(f"{BASE}/api/maps/{a}/{b}/overview.png", params={**inspect, "size": c}))
    description(client.get(f"{BASE}/api/maps/{a}/{b}/cell", params={"query": c, "key": d}))
    description(client.get(f"{BASE}/api/overlay", params={"map": a, "head": b, "query": c, "rollout": d, "maps": e}))


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20)),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["text", "beam", "n_best", "x"]), inner)
    ),
    max_leaves=8,
)


@FUZZ
@given(JSON)
def test_any_json(echo: TestClient, contents: Any) -> None:
    for address in ("/api/translate", "/api/run"):
        body = json.dumps(contents).encode()
        description(echo.post(address, content=body, headers={"content-type": "application/json"}))


@FUZZ
@given(st.binary(max_size=60), st.text(string.ascii_letters + "/;=-", max_size=30))
def test_any_body(echo: TestClient, body: bytes, kind: str) -> None:
    description(echo.post("/api/translate", content=body, headers={"content-type": kind}))
    description(echo.post("/api/translate", content=body, headers={"content-type": "application/json"}))


@FUZZ
@given(st.text(st.characters(min_codepoint=33, max_codepoint=255), max_size=30))
def test_any_host_and_origin(client: TestClient, value: str) -> None:
    for name in ("host", "origin", "sec-fetch-site", "content-type", "accept"):
        description(client.get("/api/target", headers={name: value.encode("latin-1")}))
