"""The Python side of the native kernels. Only modules of this package call the extension (`pyproject.toml`)."""

from . import engine


def description() -> str:
    """Which instruction set the kernels use, and where they come from; or why there are none."""
    if engine.module is None:
        return f"not here ({engine.reason})"
    return f"{engine.module.isa()} of {', '.join(engine.module.isas())} ({engine.reason})"
