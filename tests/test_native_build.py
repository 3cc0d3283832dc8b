"""The build of the C++ kernels: every file is compiled, and instruction sets share no symbols."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from regard.attention.native import engine

ROOT = Path(__file__).parent.parent
NATIVE = ROOT / "native"
BUILD = ROOT / "build/native"


def test_every_source_file_is_listed() -> None:
    """A file that CMakeLists.txt does not list would not be compiled."""
    code = re.sub(r"#.*", "", (NATIVE / "CMakeLists.txt").read_text(encoding="utf-8"))
    listed = re.findall(r"[\w/]+\.cpp", code)
    assert sorted(listed) == sorted(path.relative_to(NATIVE).as_posix() for path in NATIVE.rglob("*.cpp"))


def test_includes_are_relative_to_native() -> None:
    for path in NATIVE.rglob("*.[ch]pp"):
        for name in re.findall(r'#include "(.*)"', path.read_text(encoding="utf-8")):
            assert (NATIVE / name).is_file(), (path, name)


@pytest.mark.skipif(not shutil.which("make"), reason="needs make")
def test_a_change_of_any_source_file_rebuilds_the_kernels() -> None:
    command = ["make", "--print-data-base", "--question", "--no-builtin-rules", ".venv/ready"]
    database = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    prerequisites = set(" ".join(re.findall(r"^\.venv/ready: (.*)", database, re.MULTILINE)).split())
    files = [path for path in NATIVE.rglob("*") if path.suffix in (".cpp", ".hpp") or path.name == "CMakeLists.txt"]
    assert len(files) > 40
    assert {path.relative_to(ROOT).as_posix() for path in files} <= prerequisites


@pytest.mark.skipif(not shutil.which("make"), reason="needs make")
def test_the_sanitized_build_runs_existing_tests() -> None:
    commands = subprocess.run(["make", "--dry-run", "sanitize"], cwd=ROOT, capture_output=True, text=True).stdout
    named = re.findall(r"tests/\S+\.py", commands)
    assert len(named) >= 8
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_the_readme_names_existing_files() -> None:
    text = (NATIVE / "README.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w/]+/[\w.]*)`", text)
    assert len(named) > 20
    for name in named:
        assert (NATIVE / name).exists() or (ROOT / name).exists(), name
    folders = {f"{path.name}/" for path in NATIVE.iterdir() if path.is_dir()}
    assert folders == set(re.findall(r"^\| `(\w+/)` \|", text, re.MULTILINE))


def symbols(path: Path) -> list[tuple[str, str]]:
    """Return the type letter and the name of each symbol that an object file defines."""
    command = ["nm", "--demangle", "--defined-only", "--format=posix", str(path)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    matches = [re.fullmatch(r"(.*) ([A-Za-z])(?: [0-9a-f]+)*\s*", line) for line in lines]
    return [(match[2], match[1]) for match in matches if match]


def shared(kind: str) -> bool:
    """Return whether a symbol of this type is visible to other object files."""
    return kind.isupper() or kind in "uvw"


@pytest.mark.skipif(not shutil.which("nm"), reason="reads symbols with nm")
def test_instruction_sets_share_no_symbol() -> None:
    """Each set exports its table alone. A build without objcopy cannot ensure that: there, shared symbols must at least
    have the namespace of the set in their names.

    Of several functions with the same name the linker keeps one, for every set: code for AVX-512 could run on a machine
    without it.
    """
    if not (BUILD / "cmake_install.cmake").exists():
        pytest.skip("the kernels were not built in this checkout")
    sets = engine.ISAS if platform.machine() in ("x86_64", "AMD64") else engine.ISAS[:1]
    isolated = (BUILD / f"kernels_{sets[0]}.o").exists()
    for name in sets:
        separate = sorted((BUILD / f"CMakeFiles/kernels_{name}.dir").glob("*/*.o"))
        objects = [BUILD / f"kernels_{name}.o"] if isolated else separate
        assert objects and all(path.exists() for path in objects), f"no object file of {name} in {BUILD}"
        names = [symbol for path in objects for kind, symbol in symbols(path) if shared(kind)]
        assert f"regard::{name}::table" in names
        if isolated:
            assert names == [f"regard::{name}::table"]
        else:
            assert [symbol for symbol in names if f"regard::{name}::" not in symbol] == []
