"""Rules of the project: no imports by string, unique base names, and documentation that matches the code."""

from __future__ import annotations

import ast
import doctest
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src/regard"
PACKAGES = sorted(path.parent.name for path in SOURCE.glob("*/__init__.py"))
IMPORTING = {"__init__.py", "attention/native/engine.py", "core/lazy_names.py"}
"""Modules that may import another by a string: the registration with transformers, the kernels, and lazy names.

Lazy names are also imported under `if TYPE_CHECKING:`, which import-linter reads.
"""


def hidden_imports(source: str) -> list[int]:
    """Return the lines that import a module by a string, which import-linter cannot detect."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if (isinstance(node, ast.Attribute) and node.attr == "import_module")
        or (isinstance(node, ast.Name) and node.id in ("import_module", "__import__"))
    ]


def test_hidden_imports_are_found_in_every_form() -> None:
    for line in ("importlib.import_module(name)", "import_module('regard.x')", "__import__('regard')"):
        assert hidden_imports(f"x = 1\n{line}") == [2]


def test_no_module_is_imported_by_a_string() -> None:
    importing = {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if hidden_imports(path.read_text())}
    assert importing == IMPORTING


CLOCK = re.compile(r"""setattr\(\s*(["'](\w+\.)*time\.\w+["']|(\w+\.)*time,)""")


@pytest.mark.parametrize(
    "line", ['setattr("time.monotonic", f)', 'setattr("regard.a.time.time", f)', 'setattr(time, "sleep", f)']
)
def test_a_replaced_clock_is_found_in_every_form(line: str) -> None:
    assert CLOCK.search(f"    monkeypatch.{line}")


def test_no_test_replaces_the_clock_of_the_whole_process() -> None:
    """The event loops of other threads read it too, and would wait forever: use the fixture `set_clock`."""
    paths = [path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
    assert [path for path in paths if CLOCK.search(path.read_text())] == []


@pytest.mark.parametrize("folder", ["src/regard", "tests"])
def test_no_two_modules_share_a_base_name(folder: str) -> None:
    files = [path for path in (ROOT / folder).rglob("*.py") if path.parent != SOURCE / "commands"]
    counts = Counter(path.stem for path in files if path.stem not in ("__init__", "conftest"))
    assert [name for name, count in counts.items() if count > 1] == []


def test_the_changelog_names_modules_that_exist() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").partition("### Moved modules")[2]
    moved = re.findall(r"^\| `(regard[\w.]*)` \| (.*) \|$", text, re.MULTILINE)
    assert len(moved) > 100
    for before, now in moved:
        for module in re.findall(r"`(regard\.[\w.]+)`", now):
            path = SOURCE.parent / module.replace(".", "/")
            assert path.with_suffix(".py").is_file() or path.is_dir(), f"{before} has not moved to {module}"


def tree_of_readme() -> set[str]:
    """Return the paths in the README's tree."""
    block = re.search(r"## The tree.*?```\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block
    paths, above = set(), ""
    for line in block[1].splitlines():
        name = line.split()[0]
        if not line.startswith(" "):
            above = name
        paths.add(above + name if line.startswith(" ") else name)
    return paths


def unpacked_files() -> list[Path]:
    """Return the files of an unpacked sdist, without those that a build creates."""
    generated = {"__pycache__", "assets", "build", "dist", "node_modules", "out"}
    files = (path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file())
    return [path for path in files if not generated.intersection(path.parts)]


def test_the_tree_in_the_readme_is_correct() -> None:
    shown = tree_of_readme()
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    files = listed.stdout.split() or [str(path) for path in unpacked_files()]
    real = {f"{path.split('/')[0]}/" for path in files if "/" in path and not path.startswith(".")} - {"src/"}
    inside = [path.removeprefix("src/regard/") for path in files if path.startswith("src/regard/")]
    real |= {f"src/regard/{path.split('/')[0]}/" for path in inside if "/" in path}
    real |= {f"src/regard/{path}" for path in inside if path.endswith(".py") and not path.startswith(("__", *PACKAGES))}
    assert shown == real | {"src/regard/"}


DOCUMENTS = sorted(
    str(path.relative_to(ROOT))
    for path in (*ROOT.glob("README*.md"), *ROOT.glob("*/*.md"), *ROOT.glob("docs/*/**/*.md"))
)


@pytest.mark.parametrize("path", DOCUMENTS)
def test_examples_in_a_document_are_correct(path: str) -> None:
    torch.manual_seed(0)
    result = doctest.testfile(
        str(ROOT / path), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE, encoding="utf-8"
    )
    assert not result.failed
    for link in re.findall(r"\]\((?!http)([^)#]+)", (ROOT / path).read_text()):
        assert ((ROOT / path).parent / link).exists(), f"{path} points to {link}"


def test_the_readme_shows_examples() -> None:
    assert doctest.testfile(str(ROOT / "README.md"), module_relative=False).attempted >= 4


def test_the_chinese_readme_has_the_same_content() -> None:
    readmes = [(ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh.md")]
    readmes = [text.replace("(docs/zh/", "(docs/") for text in readmes]  # a Chinese page where there is one
    for pattern in (r"^- \*\*", r"\((docs/[^)]+)\)", r"^>>> [^#\n]*[^#\s]", r"`((?:regard|python -m) [^`]+)`"):
        english, chinese = (sorted(re.findall(pattern, text, re.MULTILINE)) for text in readmes)
        assert english == chinese and english, pattern
    tables = [re.findall(r"^\|(.*)\|$", text, re.MULTILINE) for text in readmes]
    results = [[re.findall(r"\d[\d.]*", row.partition(" | ")[2]) for row in table] for table in tables]
    assert results[0] == results[1] and len(results[0]) > 20


def test_the_readme_names_the_two_commands() -> None:
    readme, makefile = (ROOT / "README.md").read_text(), (ROOT / "Makefile").read_text()
    for command in ("demo", "test"):
        assert f"make {command}" in readme and re.search(f"^{command}:", makefile, re.MULTILINE)
