"""The wheel and the sdist: their configuration, their content, and the page inside."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("scikit_build_core")

ROOT = Path(__file__).parent.parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
OLD, NEW = 1_000_000_000, 1_000_000_001
BUILD = """
import sys; sys.path.insert(0, "tools"); import build_backend as backend
backend.build_page = lambda: None  # whether it is built is tested below
settings = {"wheel.cmake": "false", "wheel.py-api": "py3", "build-dir": sys.argv[2] + "/build"}
getattr(backend, sys.argv[1])(sys.argv[2], settings)
"""


def tool(name: str) -> ModuleType:
    """Import a script of tools/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


backend, check_archives = tool("build_backend"), tool("check_archives")


def build(hook: str, folder: Path) -> Path:
    """Run a hook of the backend, without the kernels, and return the archive."""
    command = [sys.executable, "-c", BUILD, hook, str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return next(path for path in folder.iterdir() if path.is_file())


def sources() -> set[str]:
    """Return the files of the repository, new ones included, and of the page if it is built."""
    command = ["git", "ls-files", "-co", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.splitlines()
    if not listed:
        pytest.skip("not a checkout")
    return {name for name in listed if (ROOT / name).is_file()} | check_archives.page_files()


def without_page(problems: list[str]) -> list[str]:
    """Return the problems that do not only mean that the page is not built here."""
    built = (ROOT / check_archives.PAGE / "index.html").is_file()
    return [problem for problem in problems if built or not problem.startswith("page (")]


def test_the_sdist_contains_every_file_of_the_repository(tmp_path: Path) -> None:
    expected = sources()
    with tarfile.open(build("build_sdist", tmp_path)) as sdist:
        names = [member.name.partition("/")[2] for member in sdist if member.isfile()]
    assert without_page(list(check_archives.sdist_problems(names, expected))) == []


def test_the_wheel_contains_the_package_and_the_page(tmp_path: Path) -> None:
    expected = sources()
    with zipfile.ZipFile(build("build_wheel", tmp_path)) as wheel:
        problems = without_page(list(check_archives.wheel_problems(wheel.namelist(), expected)))
    assert len(problems) == 1 and "kernels (regard/_native.*) must be one file; got 0" in problems[0]
    assert "src/regard/data/romeo_and_juliet.txt.gz" in expected  # the text of `regard demo --language`


def test_missing_and_stray_files_are_reported() -> None:
    files = {"README.md", "src/regard/a.py", "src/regard/assets/page/index.html"}
    wheel = {"regard/a.py", "regard/assets/page/index.html", "regard/_native.abi3.so", "regard-1.dist-info/RECORD"}
    assert list(check_archives.wheel_problems(wheel, files)) == []
    assert list(check_archives.sdist_problems(files | {"PKG-INFO"}, files)) == []
    problems = list(check_archives.wheel_problems({"regard/b.py"}, files))
    assert [problem.split()[0] for problem in problems] == [
        "kernels",
        "page",
        "regard/a.py",
        "regard/assets/page/index.html",
        "regard/b.py",
    ]


def test_the_kernels_use_the_stable_abi_of_python_3_12() -> None:
    assert PROJECT["tool"]["scikit-build"]["wheel"]["py-api"] == "cp312"
    cmake = (ROOT / "native/CMakeLists.txt").read_text(encoding="utf-8")
    assert re.search(r"nanobind_add_module\(_native STABLE_ABI ", cmake)
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "native/binding").iterdir())
    assert not re.search(r"\bPy(Tuple|List)_GET_\w+", code)  # not in the stable ABI; use NB_TUPLE_GET_ITEM


def checkout(folder: Path, *, page: int | None, source: int) -> Path:
    """Write a checkout whose page and sources have these modification times."""
    files = {"web/src/main.ts": source, "web/test/main.test.ts": NEW + 1, "web/node_modules/a.js": NEW + 1}
    for name, time in {**files, **({} if page is None else {backend.PAGE.as_posix(): page})}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x", encoding="utf-8")
        os.utime(folder / name, (time, time))
    return folder


@pytest.mark.parametrize(("page", "source", "current"), [(NEW, OLD, True), (OLD, NEW, False), (None, OLD, False)])
def test_a_page_older_than_its_sources_is_built_again(
    page: int | None, source: int, current: bool, tmp_path: Path
) -> None:
    assert backend.page_is_current(checkout(tmp_path, page=page, source=source)) is current


def test_an_sdist_uses_its_page(tmp_path: Path) -> None:
    folder = checkout(tmp_path, page=OLD, source=NEW)
    (folder / "PKG-INFO").touch()
    assert backend.page_is_current(folder)


def test_a_build_without_npm_is_refused_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend.shutil, "which", lambda *_, **__: None)
    folder = checkout(tmp_path, page=None, source=OLD)
    with pytest.raises(
        SystemExit, match=r"page \(src/regard/assets/page/index.html\) must .* got no npm\. Install Node"
    ):
        backend.build_page(folder)


@pytest.mark.parametrize("hook", ["build_wheel", "build_sdist"])
def test_a_distribution_is_built_after_its_page(hook: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(backend, "build_page", lambda: calls.append("page"))
    monkeypatch.setattr(backend.core, hook, lambda *_: calls.append(hook))
    getattr(backend, hook)("dist")
    assert calls == ["page", hook]


@pytest.mark.parametrize("current", [True, False])
def test_node_is_installed_only_to_build_the_page(current: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "page_is_current", lambda: current)
    for requires in (backend.get_requires_for_build_wheel, backend.get_requires_for_build_sdist):
        assert (backend.NODE in requires()) is not current
    assert backend.NODE not in backend.get_requires_for_build_editable()
