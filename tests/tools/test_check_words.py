"""The checker of words reports private words and nothing else."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SPEC = importlib.util.spec_from_file_location("check_words", ROOT / "tools" / "check_words.py")
assert SPEC is not None and SPEC.loader is not None
check_words = importlib.util.module_from_spec(SPEC)
sys.modules["check_words"] = check_words
SPEC.loader.exec_module(check_words)


def reports(path: Path, name: str = "module.py") -> list[str]:
    """Return the messages about a file, as if it were called `name` in the repository."""
    rules = check_words.Rules.load()
    return [message for text in check_words.texts(path) for message in rules.check(text, name)]


@pytest.mark.parametrize(
    ("suffix", "source", "word"),
    [
        (".py", "found = 1\n", "found"),
        (".py", "def f(told_by=None): ...\n", "told"),
        (".py", "class SwiftPath: ...\n", "Swift"),
        (".py", "x.made = 1\n", "made"),
        (".py", '"""Chosen by lot."""\n', "by lot"),
        (".py", "x = 1  # whoever calls it\n", "whoever"),
        (".py", 'raise ValueError("nobody may write")\n', "nobody"),
        (".py", "def test_whoever_calls_gets_an_error(): ...\n", "whoever"),
        (".cpp", "int lost = 0;\n", "lost"),
        (".cpp", "// computed anew\n", "anew"),
        (".ts", "const pieceCount = 1;\n", "piece"),
        (".md", "A text\n\nis told to the model.\n", "is told"),
    ],
)
def test_a_private_word_is_reported(suffix: str, source: str, word: str, tmp_path: Path) -> None:
    path = tmp_path / f"module{suffix}"
    path.write_text(source, encoding="utf-8")
    messages = reports(path)
    assert len(messages) == 1 and repr(word) in messages[0]


@pytest.mark.parametrize("opening", ["What it returns.", "Of its own.", "How many there are."])
def test_a_docstring_must_not_begin_with_a_clause(opening: str, tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(f'"""{opening}"""\n', encoding="utf-8")
    assert len(reports(path)) == 1


def test_ordinary_english_and_allowed_names_are_not_reported(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        '"""Return the file that was found in its place."""\n\n'
        "import re\n\n"
        "def connection_made(self): ...\n\n"
        'result = re.sub("`nobody`", "", "x")\n',
        encoding="utf-8",
    )
    assert reports(path) == []
    path = tmp_path / "page.md"
    path.write_text("```\nwhoever = 1\n```\n", encoding="utf-8")
    assert reports(path) == []


def test_an_exception_needs_a_reason(tmp_path: Path) -> None:
    config = tmp_path / "words.toml"
    config.write_text('[identifiers]\n[phrases]\n[openings]\n[allowed]\n"found" = " "\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"allowed \(found\) must have a reason"):
        check_words.Rules.load(config)


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="lists files with git")
def test_python_documentation_and_page_have_no_private_word(capsys: pytest.CaptureFixture[str]) -> None:
    status = check_words.main(["src", "bench", "studies", "tests/core", "tests/data", "docs", "README.md", "web/src"])
    assert capsys.readouterr().out == "check_words: no private word.\n" and status == 0
