"""Run the tests as other machines would: `python tests/hosts.py [HOST…] [-- PYTEST_ARGUMENTS…]`, or `make test-hosts`.

Each host is a set of environment variables that cap the instruction sets of PyTorch, MKL, oneDNN and our own kernels,
set the number of threads, or switch the native module off. Libraries round matrix products of different shapes
differently on different machines, so a test that is green on one host by luck is red on another one.

Without HOST every host runs the whole suite, one after the other, to the end; a summary follows, and the exit status is
1 if any of them failed. A fast part, the tests marked `host`, runs in the default suite, on the hosts
that tests/test_hosts.py names.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent

HOSTS: dict[str, dict[str, str]] = {
    "as it is": {},
    "baseline": {
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "REGARD_MAX_CPU_ISA": "baseline",
    },
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "REGARD_MAX_CPU_ISA": "avx2",
    },
    "compatible": {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"},
    "four threads": {"REGARD_TEST_THREADS": "4"},
    "no kernels": {"REGARD_NATIVE": "0"},
    "no kernels, baseline": {
        "REGARD_NATIVE": "0",
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_CBWR": "COMPATIBLE",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
    },
}
"""Name → environment variables. `as it is` changes nothing."""


def environment(host: str) -> dict[str, str]:
    """Return the environment of this process with the variables of `host`, and without those of other hosts."""
    varied = {name for variables in HOSTS.values() for name in variables}
    return {**{name: value for name, value in os.environ.items() if name not in varied}, **HOSTS[host]}


def run(host: str, arguments: list[str]) -> int:
    """Run pytest with `arguments` on `host`; return its exit status."""
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], cwd=ROOT, env=environment(host)).returncode


def main(words: list[str]) -> int:
    split = words.index("--") if "--" in words else len(words)
    hosts, arguments = words[:split] or list(HOSTS), words[split + 1 :] or ["-n", "auto", "--dist", "loadgroup", "-q"]
    unknown = [host for host in hosts if host not in HOSTS]
    if unknown:
        print(f"hosts: host ({unknown[0]}) must be one of {', '.join(HOSTS)}.", file=sys.stderr)
        return 2
    lines = []
    for host in hosts:
        print(f"=== {host}: {' '.join(f'{k}={v}' for k, v in HOSTS[host].items()) or 'no change'}", flush=True)
        start = time.monotonic()
        status = run(host, arguments)
        lines.append((host, status, time.monotonic() - start))
    print("\nhost                   result   minutes")
    for host, status, seconds in lines:
        print(f"{host:22} {'green' if status == 0 else 'RED':8} {seconds / 60:.1f}")
    return int(any(status for _, status, _ in lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
