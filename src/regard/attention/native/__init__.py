"""The Python side of the native kernels."""
