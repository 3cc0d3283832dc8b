"""The house rules: imports point upward, the README's map is the real tree, and what the documents show is so."""

from __future__ import annotations

import ast
import doctest
import re
import subprocess
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src/regard"
PACKAGES = sorted(path.parent.name for path in SOURCE.glob("*/__init__.py"))


def imported(path: Path) -> set[str]:
    """The packages of regard that a file imports, wherever in it."""
    package = ["regard", *path.relative_to(SOURCE).parts[:-1]]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            module = [*base, *(node.module or "").split(".")] if node.module else base
            names = [module] if len(module) > 1 else [[*module, alias.name] for alias in node.names]
        else:
            continue
        found |= {name[1] for name in names if name[0] == "regard" and len(name) > 1}
    return found


def test_the_reader_of_imports_sees_every_form() -> None:
    path = SOURCE / "view/x.py"
    for line, wanted in (
        ("from ..layers.block import EncoderBlock", "layers"),
        ("from .. import attention", "attention"),
        ("import regard.layers.blocks", "layers"),
        ("from regard.pictures import heatmap", "view"),
        ("def f():\n    from ..tasks import x", "tasks"),
        ("from . import fonts", "view"),
    ):
        source = type("Source", (), {"relative_to": path.relative_to, "read_text": lambda self, line=line: line})()
        assert imported(source) == {wanted}, line


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_point_only_upward(package: str) -> None:
    for path in (SOURCE / package).rglob("*.py"):
        below = {name for name in imported(path) if name in PACKAGES and name > package}
        assert not below, f"{path.relative_to(ROOT)} imports {below}, which comes after {package}"
        loose = imported(path) - set(PACKAGES)
        assert not loose, f"{path.relative_to(ROOT)} imports {loose}, which imports it"


def tree_of_readme() -> set[str]:
    """The paths in the README's map, by indentation."""
    block = re.search(r"## The tree.*?```\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block
    paths, above = set(), ""
    for line in block[1].splitlines():
        name = line.split()[0]
        if not line.startswith(" "):
            above = name
        paths.add(above + name if line.startswith(" ") else name)
    return paths


def test_the_map_in_the_readme_is_the_real_tree() -> None:
    shown = tree_of_readme()
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    files = listed.stdout.split() or [str(p.relative_to(ROOT)) for p in ROOT.rglob("*") if p.is_file()]
    real = {f"{path.split('/')[0]}/" for path in files if "/" in path and not path.startswith(".")} - {"src/"}
    inside = [path.removeprefix("src/regard/") for path in files if path.startswith("src/regard/")]
    real |= {f"src/regard/{path.split('/')[0]}/" for path in inside if "/" in path}
    real |= {f"src/regard/{path}" for path in inside if path.endswith(".py") and not path.startswith(("__", *PACKAGES))}
    assert shown == real | {"src/regard/"}


DOCUMENTS = sorted(str(path.relative_to(ROOT)) for path in (*ROOT.glob("README*.md"), *ROOT.glob("docs/*.md")))


@pytest.mark.parametrize("path", DOCUMENTS)
def test_what_a_document_shows_is_so(path: str) -> None:
    torch.manual_seed(0)
    result = doctest.testfile(
        str(ROOT / path), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE, encoding="utf-8"
    )
    assert not result.failed
    for link in re.findall(r"\]\((?!http)([^)#]+)", (ROOT / path).read_text()):
        assert ((ROOT / path).parent / link).exists(), f"{path} points to {link}"


def test_the_readme_shows_examples() -> None:
    assert doctest.testfile(str(ROOT / "README.md"), module_relative=False).attempted >= 4


def test_the_chinese_readme_says_as_much() -> None:
    english, chinese = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh.md"))
    for pattern in (r"^- \*\*", r"\((docs/[^)]+)\)", r"^>>> [^#\n]*[^#\s]", r"`(regard [^`]+)`"):
        said = [sorted(re.findall(pattern, text.split("## Results")[0], re.MULTILINE)) for text in (english, chinese)]
        assert said[0] == said[1] and said[0], pattern


def test_the_readme_names_the_two_commands() -> None:
    readme, makefile = (ROOT / "README.md").read_text(), (ROOT / "Makefile").read_text()
    for command in ("demo", "test"):
        assert f"make {command}" in readme and re.search(f"^{command}:", makefile, re.MULTILINE)
