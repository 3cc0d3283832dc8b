"""Extension of Griffe that turns docstrings into valid Markdown, for the API reference of `make docs`.

Docstrings are written for readers of the source and of `help()`: examples stand without a fence, and shapes such as
(*lead, Tq, D) without backticks. Markdown would read the first as quotations and the asterisks of the second as
emphasis.
"""

from __future__ import annotations

import re

import griffe

BACKTICKS = re.compile(r"(`[^`]*`)")


def escape(line: str) -> str:
    """Escape the characters with a meaning in Markdown, except in backticks.

    >>> escape("(*lead, D) of `*lead` and <pad>")
    '(\\\\*lead, D) of `*lead` and &lt;pad>'
    """
    parts = BACKTICKS.split(line)
    parts[::2] = [part.replace("*", "\\*").replace("<", "&lt;").replace("][", "]\\[") for part in parts[::2]]
    return "".join(parts)


def to_markdown(text: str) -> str:
    """Return a docstring with its examples in fences and its other text escaped.

    Blocks of equations, which are indented after an empty line, stay unchanged. The indented lines of a section such
    as `Args:` do not follow an empty line.

    >>> print(to_markdown("Sum (*lead).\\n\\n    a * b\\n\\n>>> 1 + 1\\n2"))
    Sum (\\*lead).
    <BLANKLINE>
        a * b
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    """
    lines: list[str] = []
    kind = ""
    before = ""
    for line in text.splitlines():
        if line.startswith(">>> ") and kind != "example":
            kind = "example"
            lines.append("```pycon")
        elif kind == "example" and not line.strip():
            kind = ""
            lines.append("```")
        elif kind != "example":
            indented = line.startswith("    ")
            kind = "code" if indented and (kind == "code" or not before.strip()) else ""
        lines.append(line if kind else escape(line))
        before = line
    return "\n".join([*lines, "```"] if kind == "example" else lines)


class DocstringMarkdown(griffe.Extension):
    """Applies `to_markdown` to every docstring."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Rewrite the docstring of an object once it and its members are loaded."""
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value)
