"""The tests marked `host` pass as other machines would run them. `make test-hosts` runs the whole suite that way."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.hosts import HOSTS, ROOT, environment, main

MARKED = [
    "tests/attention/test_streamed_views.py",
    "tests/models/test_bert.py",
    "tests/models/test_fast_gpt.py",
    "tests/models/test_fast_linear.py",
    "tests/server/test_numbers.py",
]
"""Files with tests marked `host`: collecting these alone takes seconds."""

FAST = ["baseline", "avx2", "four threads", "no kernels, baseline"]
"""Together they set every variable that any host sets."""


@pytest.mark.slow
@pytest.mark.parametrize("host", FAST)
def test_marked_tests_pass_on(host: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "host", "-p", "no:cacheprovider", *MARKED],
        capture_output=True,
        text=True,
        env=environment(host),
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout[-4000:]


def test_every_marked_file_is_listed() -> None:
    marked = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("test_*.py")
        if "pytest.mark.host\n" in path.read_text() or "pytestmark = pytest.mark.host" in path.read_text()
    }
    assert marked - {"tests/test_hosts.py"} == set(MARKED)


def test_the_fast_hosts_set_every_variable() -> None:
    assert {key for host in FAST for key in HOSTS[host]} == {key for variables in HOSTS.values() for key in variables}


def test_an_unknown_host_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["riscv"]) == 2
    assert "host (riscv) must be one of as it is, baseline, avx2" in capsys.readouterr().err
