"""The page of `regard view` as one HTML document that loads nothing: for saved captures and for notebooks."""

from __future__ import annotations

import re

from .assets import page_folder

POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
"""Content security policy of the document: nothing is loaded."""


def standalone_page(recording: str | None = None) -> str:
    """Return the page with its script and its style inlined.

    Args:
        recording: JSON with the answers of the server. Without it, the page sends its requests through a message port.

    Raises:
        FileNotFoundError: if the page is not built.
    """
    folder = page_folder()
    script, style = ((folder / "alone" / name) for name in ("page.js", "style.css"))
    if not script.is_file():
        raise FileNotFoundError(f"view: the page ({script}) is not built; run `make page`.")
    template = (folder / "index.html").read_text(encoding="utf-8")
    bare = re.sub(r"\s*<(?:script[^>]*src=[^>]*></script|link[^>]*)>", "", template)
    policy = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}" />'
    head = f"{policy}\n<style>{style.read_text(encoding='utf-8')}</style>"
    body = f'<script type="module">{_inline(script.read_text(encoding="utf-8"))}</script>'
    if recording is None:
        bare = bare.replace("<html ", "<html data-notebook ", 1)
    else:
        escaped = recording.replace("<", "\\u003c")
        body = f'<script type="application/json" id="recording">{escaped}</script>\n{body}'
    before, _, after = bare.partition("</head>")
    middle, _, end = after.rpartition("</body>")
    return f"{before}{head}\n</head>{middle}{body}\n</body>{end}"


def _inline(script: str) -> str:
    """Escape what would end a script element, or start a comment in it."""
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")
