"""Files and names in backticks in the documentation exist."""

from __future__ import annotations

import pkgutil
import re
import subprocess
from fnmatch import fnmatch
from functools import cache
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "native/README.md", ROOT / "web/README.md")
    if path.name != "CHANGELOG.md"  # names what no longer exists
)
FENCED_CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"[\w./*-]*[\w*]\.(py|hpp|cpp|ts|tsx|md|toml|yml|cff)|[\w.*-]+(/[\w.*-]+)+/?|[\w.*-]+/")
NAME = re.compile(r"([A-Za-z_]\w*(?:(?:\.|::)[A-Za-z_]\w*)*)(\(.*\))?")
CODE = (".py", ".cpp", ".hpp", ".ts", ".tsx", ".css", ".html", ".toml", ".txt", "Makefile")

ELSEWHERE = {
    "src/regard/assets/page": "written by make page",
    "test/test_transformers.py": "a test of PyTorch",
    "SDPA/native": "a ratio",
    "data/prepared.json": "in a run",
    "state-00001200/": "in a run",
    "multi30k/": "a folder of the user",
    "sst2/": "a folder of the user",
    "tang-poems/": "a folder of the user",
    "tinyshakespeare/": "a folder of the user",
    "out/docs": "written by make docs",
    "out/docs/index.html": "written by make docs",
    "out/bench/NAME.csv": "written by a benchmark",
    "runs/de-en/ctranslate2": "a folder of the user",
    "test_invalid_inputs_1_dimensional_inputs": "a test of PyTorch",
    "test_invalid_inputs_different_datatypes": "a test of PyTorch",
    "test_is_causal_and_mask_fails": "a test of PyTorch",
    "test_script_encoder_subclass": "a test of PyTorch",
    "test_script_mha_in_proj_weight_none": "a test of PyTorch",
    "test_transformerencoderlayer_subclass": "a test of PyTorch",
    "test_transformerencoderlayer_subclass_model": "a test of PyTorch",
    "anyio": "a package",
}
"""Names in backticks that are not of this repository, with the reason."""


@cache
def repository_files() -> tuple[str, ...]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.splitlines()
    names = listed or [path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*") if path.is_file()]
    return tuple(name for name in names if (ROOT / name).is_file())


@cache
def repository_paths() -> tuple[str, ...]:
    """Return all files and folders, with a slash before each."""
    folders = {str(folder) for name in repository_files() for folder in PurePosixPath(name).parents}
    return tuple(f"/{name}" for name in (*repository_files(), *sorted(folders - {"."})))


@cache
def words_of_code() -> frozenset[str]:
    sources = (ROOT / name for name in repository_files() if name.endswith(CODE) and ROOT / name != Path(__file__))
    return frozenset(word for path in sources for word in re.findall(r"\w+", path.read_text(encoding="utf-8")))


def is_module_or_attribute(name: str) -> bool:
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


def exists(code: str) -> bool:
    """Return whether the code between two backticks is no file and no name, or one that exists."""
    if FILE.fullmatch(code):
        return any(fnmatch(path, f"*/{code.rstrip('/')}") for path in repository_paths())
    name = NAME.fullmatch(code)
    if name is None:
        return True
    if name[1].startswith("regard."):
        return is_module_or_attribute(name[1])
    return set(re.findall(r"\w+", name[1])) <= words_of_code()


def inline_code(document: str) -> set[str]:
    text = FENCED_CODE.sub("", (ROOT / document).read_text(encoding="utf-8"))
    return set(re.findall(r"`([^`\n]+)`", text))


def test_missing_files_and_names_are_detected() -> None:
    present = ("base/simd.hpp", "few_queries*", "native/check", "attend.py", "Plan.of", "regard.attend", "allocate(n)")
    assert [code for code in (*present, "make test", "x · y", "(B, H)") if not exists(code)] == []
    absent = ("base/simd_.hpp", "few_query_*.cpp", "chek/", "attend_.py", "Plan.off_", "regard.attendd", "alocate()")
    assert [code for code in absent if exists(code)] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_files_and_names_in_a_document_exist(document: str) -> None:
    assert [code for code in sorted(inline_code(document)) if code not in ELSEWHERE and not exists(code)] == []


def test_every_exception_is_needed() -> None:
    mentioned = set().union(*map(inline_code, DOCUMENTS))
    assert [code for code in ELSEWHERE if code not in mentioned or exists(code)] == []
