"""The unit tests of the page, and its build."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from regard.core import assets
from tests.page import browser

ROOT = Path(__file__).parents[2]


def node() -> Path | None:
    """Return the path of Node in this environment or on the PATH."""
    result = Path(sys.executable).with_name("node")
    return result if result.exists() else Path(path) if (path := shutil.which("node")) else None


def demand(there: object, what: str) -> None:
    if not there:
        (pytest.fail if os.environ.get(browser.REQUIRED) == "1" else pytest.skip)(f"the page is not tested: {what}")


def test_the_arithmetic_of_the_page() -> None:
    demand(node() and (ROOT / "web/node_modules").is_dir(), "no Node, or no packages for it; run make page")
    done = subprocess.run([str(node()), "--test", "test/*.test.ts"], cwd=ROOT / "web", capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.search(r"pass (\d+)", done.stdout)[1]) >= 22


def test_a_missing_translation_does_not_compile(tmp_path: Path) -> None:
    compiler = ROOT / "web/node_modules/.bin/tsc"
    demand(node() and compiler.exists(), "no TypeScript; run make page")
    shutil.copytree(ROOT / "web/src", tmp_path / "src")
    words = tmp_path / "src/shared/words.zh.json"
    words.write_text(words.read_text(encoding="utf-8").replace('  "cancel": "取消",\n', ""), encoding="utf-8")
    command = [
        str(node()),
        str(compiler.resolve()),
        "--noEmit",
        "--strict",
        "--target",
        "es2022",
        "--lib",
        "es2023,dom",
    ]
    options = ["--module", "esnext", "--moduleResolution", "bundler", "--resolveJsonModule", "--ignoreConfig"]
    command += [*options, "src/shared/translations.ts"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0 and "Property '\"cancel\"' is missing" in done.stdout


def test_the_page_loads_nothing_from_other_hosts() -> None:
    demand((assets.FOLDER / "index.html").exists(), "it is not built; run make page")
    text = (assets.FOLDER / "index.html").read_text(encoding="utf-8")
    assert re.findall(r'(?:src|href)="([^"]+)"', text)
    assert all(path.startswith("./") for path in re.findall(r'(?:src|href)="([^"]+)"', text))


def test_the_lockfile_names_no_registry() -> None:
    lock = json.loads((ROOT / "web/package-lock.json").read_text(encoding="utf-8"))
    packages = {name: entry for name, entry in lock["packages"].items() if name}
    assert packages and all("resolved" not in entry and "integrity" in entry for entry in packages.values())
    held = {name.split("node_modules/")[-1] for name in packages}  # every platform's, or npm ci refuses the lockfile
    assert {name for entry in packages.values() for name in entry.get("optionalDependencies", {})} <= held


def test_a_missing_page_is_reported_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"make page"):
        assets.page_folder(tmp_path)
