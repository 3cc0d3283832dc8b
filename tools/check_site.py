"""Check every link, picture and anchor of a built site: python tools/check_site.py FOLDER"""

from __future__ import annotations

import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class _Page(HTMLParser):
    """Collects the addresses that a page refers to, and the anchors that it has."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.anchors: set[str] = {""}

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("href", "src") and value:
                self.addresses.append(value)
            elif name in ("id", "name") and value:
                self.anchors.add(value)


@cache
def read(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def problems(site: Path) -> list[str]:
    """Return the broken links of all pages. Addresses on other hosts are not opened."""
    result = []
    for path in sorted(site.rglob("*.html")):
        if path.name == "404.html":  # its links are absolute, for a site at the root of a host
            continue
        for address in read(path).addresses:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path.resolve()
            if target.is_dir():
                target /= "index.html"
            anchor = unquote(parts.fragment)
            if not target.is_file():
                result.append(f"{path.relative_to(site)}: {address} does not exist")
            elif target.suffix == ".html" and anchor not in read(target).anchors:
                result.append(f"{path.relative_to(site)}: {address} has no such anchor")
    return result


if __name__ == "__main__":
    broken = problems(Path(sys.argv[1]).resolve())
    sys.exit("\n".join(broken) or 0)
