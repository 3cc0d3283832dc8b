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

HITS = {
    "python-name": ("module.py", "found = 1\n", "instead of 'found'"),
    "python-part": ("module.py", "def f(told_by=None): ...\n", "instead of 'told'"),
    "python-part-of-class": ("module.py", "class SwiftPath: ...\n", "instead of 'Swift'"),
    "python-attribute": ("module.py", "x.made = 1\n", "instead of 'made'"),
    "python-phrase-in-docstring": ("module.py", '"""Chosen by lot."""\n', "instead of 'by lot'"),
    "python-phrase-in-comment": ("module.py", "x = 1  # whoever calls it\n", "instead of 'whoever'"),
    "python-phrase-in-message": ("module.py", 'raise ValueError("nobody may write")\n', "instead of 'nobody'"),
    "python-phrase-in-test": ("module.py", "def test_whoever_calls_fails(): ...\n", "instead of 'whoever'"),
    "python-opening": ("module.py", '"""What it returns."""\n', "begin with a noun"),
    "python-opening-of-comment": ("module.py", "x = 1  # Of its own.\n", "begin with a full sentence"),
    "c++-name": ("kernel.cpp", "int lost = 0;\n", "instead of 'lost'"),
    "c++-part": ("kernel.hpp", "int meet_rows();\n", "instead of 'meet'"),
    "c++-phrase": ("kernel.cpp", "// computed anew\n", "instead of 'anew'"),
    "c++-phrase-in-message": ("kernel.cpp", 'throw error("nobody may write");\n', "instead of 'nobody'"),
    "c++-opening": ("kernel.cpp", "// How many there are.\n", "begin with a noun"),
    "typescript-name": ("page.ts", "const found = 1;\n", "instead of 'found'"),
    "typescript-part": ("page.tsx", "const pieceCount = 1;\n", "instead of 'piece'"),
    "typescript-phrase": ("page.ts", "/* computed anew */\n", "instead of 'anew'"),
    "typescript-opening": ("page.ts", "/* What it draws. */\n", "begin with a noun"),
    "markdown-name": ("found.md", "A text.\n", "instead of 'found'"),
    "markdown-part": ("all_places.md", "A text.\n", "instead of 'places'"),
    "python-message": (
        "module.py",
        'raise ValueError("lengths must be whole numbers")\n',
        "instead of 'whole numbers'",
    ),
    "python-request": ("module.py", "x = 1  # the maps asked for\n", "instead of 'asked for'"),
    "markdown-condition": ("page.md", "Measured on a busy machine.\n", "instead of 'busy machine'"),
    "markdown-script": ("page.md", "The script is not part of the repository.\n", "instead of 'not part of"),
    "markdown-phrase": ("page.md", "A text\n\nis told to the model.\n", "instead of 'is told'"),
}
"""File name, contents and expected message of one hit for every kind of rule and file."""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder without git that `main` checks instead of the repository, with exceptions of its own."""
    config = (ROOT / "tools/words.toml").read_text(encoding="utf-8").partition("[allowed]")[0] + "[allowed]\n"
    (tmp_path / "words.toml").write_text(config, encoding="utf-8")
    (tmp_path / "source").mkdir()
    monkeypatch.setattr(check_words, "ROOT", tmp_path)
    monkeypatch.setattr(check_words, "CONFIG", tmp_path / "words.toml")
    return tmp_path


def allow(repository: Path, *lines: str) -> None:
    with (repository / "words.toml").open("a", encoding="utf-8") as config:
        config.write("\n".join(lines) + "\n")


@pytest.mark.parametrize("hit", HITS)
def test_a_private_word_is_reported(hit: str, repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name, source, expected = HITS[hit]
    (repository / "source" / name).write_text(source, encoding="utf-8")
    assert check_words.main([]) == 1
    (report,) = capsys.readouterr().out.splitlines()
    assert report.startswith(f"source/{name}:") and expected in report


def test_a_report_names_the_line(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "source/kernel.cpp").write_text("int a;\n\nint found;\n", encoding="utf-8")
    assert check_words.main(["source"]) == 1
    assert capsys.readouterr().out.startswith("source/kernel.cpp:3: found: ")


def test_ordinary_english_and_code_are_not_reported(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sources = {
        "module.py": '"""Return the file that was found in its place."""\n\nx = re.sub("`nobody`", "", "x")\n',
        "kernel.cpp": "// The place that was found. `whoever`\nint x;\n",
        "page.ts": "// Why is this needed? What was lost is recomputed.\nconst x = 1;\n",
        "page.md": "It was found.\n\n```\nwhoever = 1\n```\n",
    }
    for name, source in sources.items():
        (repository / "source" / name).write_text(source, encoding="utf-8")
    assert check_words.main([]) == 0
    assert capsys.readouterr().out == "check_words: no private word.\n"


@pytest.mark.parametrize("entry", ["told_by", "source/module.py:told_by", "source/module.py:by lot"])
def test_an_exception_is_applied_and_reported_if_it_matches_nothing(
    entry: str, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = '"""Chosen by lot."""\n' if "by lot" in entry else "told_by = 1\n"
    path = repository / "source/module.py"
    path.write_text(source, encoding="utf-8")
    assert check_words.main([]) == 1
    allow(repository, f'"{entry}" = "a reason"')
    assert check_words.main([]) == 0
    path.write_text('"""Chosen at random."""\n', encoding="utf-8")
    capsys.readouterr()
    assert check_words.main([]) == 1
    assert capsys.readouterr().out == (
        f"words.toml: allowed ({entry}) must match a name or phrase of the repository; got no match. Remove it.\n"
    )
    assert check_words.main(["source"]) == 0  # a part of the repository need not contain every exception


def test_an_exception_of_one_file_does_not_hold_in_another(repository: Path) -> None:
    allow(repository, '"source/module.py:found" = "a reason"')
    for name in ("module.py", "other.py"):
        (repository / "source" / name).write_text("found = 1\n", encoding="utf-8")
    assert check_words.main(["source/module.py"]) == 0
    assert check_words.main(["source/other.py"]) == 1


def test_an_exception_needs_a_reason(repository: Path) -> None:
    allow(repository, '"found" = " "')
    with pytest.raises(ValueError, match=r"allowed \(found\) must have a reason"):
        check_words.main([])


def test_generated_folders_are_skipped_without_git(repository: Path) -> None:
    for folder in ("node_modules", "build", ".venv"):
        (repository / folder).mkdir()
        (repository / folder / "module.py").write_text("found = 1\n", encoding="utf-8")
    assert check_words.main([]) == 0


def test_make_check_runs_the_checker() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "\ncheck: $(VENV)/ready words\n" in makefile
    assert "\nwords: $(VENV)/ready\n\t$(BIN)/python tools/check_words.py\n" in makefile
    assert "entry: make check\n" in (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
