"""The Python side of the native kernels. Only this package may call the extension (see `pyproject.toml`)."""

from . import engine


def description() -> str:
    """Return the instruction set and the origin of the kernels, or why they are not available."""
    if engine.module is None:
        return f"not here ({engine.reason})"
    return f"{engine.module.isa()} of {', '.join(engine.module.isas())} ({engine.reason})"
