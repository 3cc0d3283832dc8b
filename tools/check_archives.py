"""Check the wheel and the sdist in a folder: `python tools/check_archives.py dist`; `make wheel` runs it.

The wheel must contain every file of the package, the built page and the kernels; the sdist every file of the repository
and the built page. Nothing else may be in them. The exit status is 1 if anything is reported.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = "src/regard/"
PAGE = PACKAGE + "assets/page/"
GENERATED = {"PKG-INFO"}
"""Files that the build adds to an sdist."""


def tracked_files(root: Path = ROOT) -> set[str]:
    """Return the paths of the files in the git repository, relative to its root."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True)
    return set(filter(None, done.stdout.split("\0")))


def page_files(root: Path = ROOT) -> set[str]:
    """Return the paths of the files of the built page."""
    return {path.relative_to(root).as_posix() for path in (root / PAGE).rglob("*") if path.is_file()}


def wheel_problems(names: Iterable[str], sources: set[str]) -> Iterator[str]:
    """Yield the differences between the names in a wheel and the files it must contain."""
    packaged = {name for name in names if ".dist-info/" not in name}
    kernels = {name for name in packaged if name.startswith("regard/_native.")}
    expected = {name.removeprefix("src/") for name in sources if name.startswith(PACKAGE)}
    if len(kernels) != 1:
        yield f"kernels (regard/_native.*) must be one file; got {len(kernels)}. Install a C++20 compiler, build again."
    yield from _differences(packaged - kernels, expected, PAGE.removeprefix("src/"))


def sdist_problems(names: Iterable[str], sources: set[str]) -> Iterator[str]:
    """Yield the differences between the names in an sdist, without its top folder, and the files it must contain."""
    yield from _differences(set(names) - GENERATED, sources, PAGE)


def _differences(names: set[str], expected: set[str], page: str) -> Iterator[str]:
    if f"{page}index.html" not in names:
        yield f"page ({page}index.html) must be in the archive; got none. Run `make page`, then build again."
    for name in sorted(expected - names):
        yield f"{name} is missing. Include it in [tool.scikit-build] of pyproject.toml."
    for name in sorted(names - expected):
        yield f"{name} is not in the repository. Commit it, or exclude it in [tool.scikit-build] of pyproject.toml."


def main(folder: Path) -> int:
    """Check every wheel and sdist in `folder`, print a line for each problem, and return the exit status."""
    wheels, sdists = sorted(folder.glob("*.whl")), sorted(folder.glob("*.tar.gz"))
    sources = tracked_files() | page_files()
    problems = [] if wheels and sdists else [f"{folder} must contain a wheel and an sdist; run `make wheel`."]
    for path in wheels:
        with zipfile.ZipFile(path) as wheel:
            problems += [f"{path.name}: {problem}" for problem in wheel_problems(wheel.namelist(), sources)]
    for path in sdists:
        with tarfile.open(path) as sdist:
            names = [member.name.partition("/")[2] for member in sdist if member.isfile()]
        problems += [f"{path.name}: {problem}" for problem in sdist_problems(names, sources)]
    for path in (*wheels, *sdists):
        print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB")
    print(*problems, sep="\n", end="\n" if problems else "")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
