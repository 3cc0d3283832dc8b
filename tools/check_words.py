"""Report private words in identifiers and prose: `python tools/check_words.py [PATH…]`; `make check` runs it.

Identifiers are read from the syntax tree of Python files and from the code of C++ and TypeScript files. Prose is
docstrings, comments and messages of source files, and the text of Markdown files. `tools/words.toml` has the words,
what to write instead, and the exceptions with their reasons. Without a path the whole repository is checked, and
exceptions that match nothing are reported too. The exit status is 1 if anything is reported.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
CONFIG = Path(__file__).with_name("words.toml")
EXCLUDED = ("tests/tools/test_check_words.py",)
"""Files whose private words are test data."""
GENERATED = ("node_modules", "build", "dist", "out")
"""Folders to skip in a copy of the sources without git."""
SUFFIXES = (".py", ".cpp", ".hpp", ".ts", ".tsx", ".md")
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
CODE_TOKEN = re.compile(
    r'(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<string>"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|`(?:\\.|[^`\\])*`)|'
    r"(?P<name>[A-Za-z_]\w*)",
    re.DOTALL,
)
FENCED_CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
INLINE_CODE = re.compile(r"`[^`\n]*`")
DOCTEST = re.compile(r"^\s*(>>>|\.\.\. ).*(\n(?!\s*$).*)*", re.MULTILINE)


@dataclass(frozen=True)
class Text:
    """A name or a passage of prose, with the line where it begins."""

    line: int
    text: str
    kind: str
    """"identifier", "opening prose" (a docstring or comment) or "prose"."""


@dataclass(frozen=True)
class Rules:
    """The contents of `words.toml`."""

    identifiers: dict[str, str]
    phrases: dict[re.Pattern[str], str]
    openings: dict[str, str]
    allowed: dict[str, str]
    used: set[str] = field(default_factory=set)
    """Exceptions that `check` has applied so far."""

    @classmethod
    def load(cls, path: Path = CONFIG) -> Rules:
        config = tomllib.loads(path.read_text(encoding="utf-8"))
        for name, reason in config["allowed"].items():
            if not reason.strip():
                raise ValueError(f"{path.name}: allowed ({name}) must have a reason; got an empty string.")
        phrases = {re.compile(rf"\b({phrase})\b", re.IGNORECASE): hint for phrase, hint in config["phrases"].items()}
        return cls(config["identifiers"], phrases, config["openings"], config["allowed"])

    def check(self, text: Text, path: str) -> Iterator[str]:
        """Yield a message for every rule that `text` breaks."""
        if text.kind == "identifier":
            for word in WORD.findall(text.text):
                if word.lower() in self.identifiers and not self._allows(text.text, f"{path}:{text.text}"):
                    yield f"{text.text}: instead of {word!r}: {self.identifiers[word.lower()]}"
            return
        prose = INLINE_CODE.sub("`", DOCTEST.sub("", text.text))
        for phrase, hint in self.phrases.items():
            for match in phrase.finditer(prose):
                if not self._allows(f"{path}:{match[0]}"):
                    yield f"{_around(prose, match)}: instead of {match[0]!r}: {hint}"
        if text.kind == "opening prose":
            for opening, hint in self.openings.items():
                if prose.startswith(opening) and not prose.split("\n")[0].rstrip().endswith("?"):
                    yield f"{prose.splitlines()[0][:60]}: begin with {hint}"

    def _allows(self, *entries: str) -> bool:
        matches = [entry for entry in entries if entry in self.allowed]
        self.used.update(matches)
        return bool(matches)

    def unused(self) -> list[str]:
        """Return a message for every exception that `check` has not applied."""
        return [
            f"{CONFIG.name}: allowed ({entry}) must match a name or phrase of the repository; got no match. Remove it."
            for entry in self.allowed
            if entry not in self.used
        ]


def _around(prose: str, match: re.Match[str]) -> str:
    return " ".join(prose[max(0, match.start() - 30) : match.end() + 20].split())


def texts(path: Path) -> Iterator[Text]:
    """Yield the identifiers and the prose of a file."""
    source = path.read_text(encoding="utf-8")
    yield Text(1, path.stem, "identifier")
    if path.suffix == ".py":
        yield from _python_identifiers(ast.parse(source))
        yield from _python_prose(source)
    elif path.suffix == ".md":
        yield Text(1, FENCED_CODE.sub(lambda code: "\n" * code[0].count("\n"), source), "prose")
    else:
        yield from _code(source)


def _python_identifiers(tree: ast.Module) -> Iterator[Text]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if node.name.startswith("test_"):  # a sentence
                yield Text(node.lineno, node.name.removeprefix("test_").replace("_", " "), "prose")
            else:
                yield Text(node.lineno, node.name, "identifier")
        elif isinstance(node, ast.arg):
            yield Text(node.lineno, node.arg, "identifier")
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield Text(node.lineno, node.id, "identifier")
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield Text(node.lineno, node.attr, "identifier")


def _python_prose(source: str) -> Iterator[Text]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Text(token.start[0], token.string.lstrip("#: "), "opening prose")
        elif token.type == tokenize.STRING:
            documentation = re.match(r'r?"""(.*)"""$', token.string, re.DOTALL)
            if documentation:
                yield Text(token.start[0], documentation[1], "opening prose")
            else:
                yield Text(token.start[0], token.string, "prose")
        elif token.type == getattr(tokenize, "FSTRING_MIDDLE", -1):  # from Python 3.12 on
            yield Text(token.start[0], token.string, "prose")


def _code(source: str) -> Iterator[Text]:
    for token in CODE_TOKEN.finditer(source):
        line = source.count("\n", 0, token.start()) + 1
        if token["comment"]:
            yield Text(line, token["comment"].lstrip("/* ").removesuffix("*/"), "opening prose")
        elif token["string"]:
            yield Text(line, token["string"][1:-1], "prose")
        else:
            yield Text(line, token["name"], "identifier")


def files(arguments: list[str]) -> list[Path]:
    """Return the files under `arguments`, or all that belong to the repository."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *arguments]
    try:
        names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):  # an unpacked archive, or no git
        names = _names_without_git(arguments)
    return [
        ROOT / name for name in names if name.endswith(SUFFIXES) and name not in EXCLUDED and (ROOT / name).exists()
    ]


def _names_without_git(arguments: list[str]) -> list[str]:
    names = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*") if path.is_file())
    own = [name for name in names if not any(part.startswith(".") or part in GENERATED for part in name.split("/"))]
    return [name for name in own if not arguments or any(f"{name}/".startswith(f"{path}/") for path in arguments)]


def main(arguments: list[str]) -> int:
    rules = Rules.load(CONFIG)
    reports = []
    for path in files(arguments):
        name = path.relative_to(ROOT).as_posix()
        seen = set()
        for text in texts(path):
            for message in rules.check(text, name):
                if message not in seen:  # a name is reported once per file
                    seen.add(message)
                    reports.append(f"{name}:{text.line}: {message}")
    if not arguments:
        reports += rules.unused()
    print("\n".join(reports) if reports else "check_words: no private word.")
    return int(bool(reports))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
