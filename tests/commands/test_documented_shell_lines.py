"""Commands in the documentation that do not begin with `regard`: make, python, pip, npm and git.

Targets of make must exist, and arguments of benchmarks and studies must be valid. Running them takes hours; their own
tests run them on small inputs. Every other line needs a reason in `NOT_RUN`.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from bench.__main__ import _parser
from studies.__main__ import study_names

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), ROOT / "web/README.md"]
FENCED = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
PROGRAM = re.compile(r"(make|python|pip|npm|git|export|torchrun|curl|docker) ")

NOT_RUN = {
    "pip install": "needs the network",
    "git clone": "needs the network",
    "npm pack": "needs the network",
    "npm run": "scripts of web/package.json; make check runs lint, and make page runs build",
    "npm test": "the unit tests of web/, which need its packages",
    "python -m doctest docs/attention.md": "tests/test_house.py runs the examples of every page",
    "python -m tests.goldens.record": "writes goldens; tests/goldens compares with them",
    "export PATH": "sets a variable of the shell of the reader",
}
"""Beginnings of lines that no test runs as they stand, with the reason."""


def shell_lines() -> list[str]:
    """Return the complete commands in code blocks and in backticks."""
    lines = []
    for document in DOCUMENTS:
        if document.name == "CHANGELOG.md":  # names what no longer exists
            continue
        text = document.read_text(encoding="utf-8")
        for block in FENCED.findall(text):
            lines += [line.removeprefix("$ ") for line in block.replace("\\\n", " ").splitlines()]
        lines += re.findall(r"`([^`\n]+)`", FENCED.sub("", text))
    complete = (re.split(r" {2,}", line)[0].strip() for line in lines if PROGRAM.match(line))
    return sorted({line for line in complete if "…" not in line})


def test_lines_of_every_program_are_detected() -> None:
    assert {"make", "python", "pip", "npm", "git"} <= {line.split()[0] for line in shell_lines()}


@pytest.mark.parametrize("line", shell_lines())
def test_a_documented_line_is_valid(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = shlex.split(line)
    if words[0] == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        assert [word for word in words[1:] if "=" not in word and word not in targets] == []
    elif words[:3] == ["python", "-m", "bench"]:
        _parser().parse_args(words[3:])
    elif words[:3] == ["python", "-m", "studies"]:
        assert words[3] in {*study_names(), "all", "NAME"}
    elif words[:2] == ["python", "-c"]:
        monkeypatch.chdir(tmp_path)
        exec(words[2], {})
    else:
        assert line.startswith(tuple(NOT_RUN)), f"{line}: run it in a test, or add it to NOT_RUN with a reason"


def test_every_exception_is_needed() -> None:
    assert [start for start in NOT_RUN if not any(line.startswith(start) for line in shell_lines())] == []
