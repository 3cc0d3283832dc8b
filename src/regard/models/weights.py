"""The weights of a model by name, each stored once however many names it has."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..core.messages import few


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers. Of tied ones the first name counts, as safetensors stores no tensor twice.

    >>> model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    >>> model[1].weight = model[0].weight
    >>> list(weights_of(model))
    ['0.weight']
    """
    found: dict[str, Tensor] = {}
    seen = set()
    for name, value in model.state_dict(keep_vars=True).items():
        if id(value) not in seen:
            seen.add(id(value))
            found[name] = value.detach()
    return found


@torch.no_grad()
def load_weights(model: nn.Module, weights: Mapping[str, Tensor], where: str = "weights") -> None:
    """Copy `weights` into the model, and refuse those of another, naming what differs."""
    own = weights_of(model)
    missing, unknown = sorted(own.keys() - weights.keys()), sorted(weights.keys() - own.keys())
    shapes = [
        f"{name} {tuple(weights[name].shape)} for {tuple(own[name].shape)}"
        for name in own.keys() & weights.keys()
        if weights[name].shape != own[name].shape
    ]
    if missing or unknown or shapes:
        parts = {"missing": missing, "unknown": unknown, "of another shape": sorted(shapes)}
        told = "; ".join(f"{kind}: {few(names)}" for kind, names in parts.items() if names)
        raise ValueError(
            f"{where}: weights ({len(weights)}) must be those of this model ({len(own)}); got {told}. "
            "Build the model from the configuration that lies beside them."
        )
    for name, value in own.items():
        value.copy_(weights[name])
