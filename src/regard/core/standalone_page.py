"""The page of `regard view` as one HTML document that loads nothing: for saved captures and for notebooks."""

from __future__ import annotations

import re

from .assets import page_folder


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
    body = f'<script type="module">{_inline(script.read_text(encoding="utf-8"))}</script>'
    if recording is not None:
        body = f"{json_element('recording', recording)}\n{body}"
    page = with_inlined(style.read_text(encoding="utf-8"), body)
    return page.replace("<html ", "<html data-notebook ", 1) if recording is None else page


def with_inlined(style: str, body: str, scripts: str = "'unsafe-inline'") -> str:
    """Return index.html with a style and elements at the end of its body, in place of the files that it loads.

    `scripts` are the sources of scripts in the content security policy, by which nothing else can be loaded.
    """
    template = (page_folder() / "index.html").read_text(encoding="utf-8")
    bare = re.sub(r"\s*<(?:script[^>]*src=[^>]*></script|link[^>]*)>", "", template)
    policy = f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:"
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}" />\n<style>{style}</style>'
    before, _, after = bare.partition("</head>")
    middle, _, end = after.rpartition("</body>")
    return f"{before}{head}\n</head>{middle}{body}\n</body>{end}"


def json_element(id: str, text: str) -> str:
    """Return a script element with JSON, which cannot end the element early."""
    return f'<script type="application/json" id="{id}">{escaped(text)}</script>'


def escaped(text: str) -> str:
    """Return JSON without `<`, which could end a script element.

    >>> escaped('["</script>"]')
    '["\\\\u003c/script>"]'
    """
    return text.replace("<", "\\u003c")


def _inline(script: str) -> str:
    """Escape what would end a script element, or start a comment in it."""
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")
