"""One-line descriptions of trained models."""

from __future__ import annotations

from torch import nn


def summary(owner: object, model: object, **facts: object) -> str:
    """Return the class of `owner`, the class and size of its model, and further facts, for use as a repr.

    >>> summary([], nn.Linear(3, 4), longest=512)
    'list(Linear, 16 parameters, longest=512)'
    """
    words = [type(model).__name__]
    if isinstance(model, nn.Module):
        words.append(f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters")
    words += [f"{name}={value}" for name, value in facts.items()]
    return f"{type(owner).__name__}({', '.join(words)})"
