"""Parts that a benchmark leaves out because a package, a data set or an environment is missing."""

from __future__ import annotations

import importlib.util
import sys

skipped: list[str] = []
"""Messages of the benchmark that runs in this process. `bench.__main__` empties it before each benchmark."""


class Missing(SystemExit):
    """A data set or an environment without which a benchmark cannot run. Outside a benchmark it ends the program."""


def skip(benchmark: str, what: str, reason: str = "it is not installed") -> None:
    """Print that a peer or a case is left out, and record it for the summary."""
    message = f"{benchmark}: {what} is skipped: {reason}"
    if message not in skipped:
        skipped.append(message)
        print(message, file=sys.stderr)


def installed(benchmark: str, *packages: str) -> bool:
    """Return whether all packages are installed; otherwise name the first missing one as skipped."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            skip(benchmark, package)
            return False
    return True
