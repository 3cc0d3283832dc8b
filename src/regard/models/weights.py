"""The weights of a model by name. Tied weights are stored once."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..core.messages import few


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and persistent buffers. Tied ones have their first name, since safetensors stores each once.

    >>> model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    >>> model[1].weight = model[0].weight
    >>> list(weights_of(model))
    ['0.weight']
    """
    weights: dict[str, Tensor] = {}
    seen = set()
    for name, value in model.state_dict(keep_vars=True).items():
        if id(value) not in seen:
            seen.add(id(value))
            weights[name] = value.detach()
    return weights


@torch.no_grad()
def load_weights(model: nn.Module, weights: Mapping[str, Tensor], where: str = "weights") -> None:
    """Copy `weights` into the model. Raise ValueError with the differences if they belong to another model.

    >>> model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    >>> load_weights(other, weights_of(model))
    >>> torch.equal(other.weight, model.weight)
    True
    """
    own = weights_of(model)
    missing, unknown = sorted(own.keys() - weights.keys()), sorted(weights.keys() - own.keys())
    shapes = [
        f"{name} {tuple(weights[name].shape)} for {tuple(own[name].shape)}"
        for name in own.keys() & weights.keys()
        if weights[name].shape != own[name].shape
    ]
    if missing or unknown or shapes:
        parts = {"missing": missing, "unknown": unknown, "of another shape": sorted(shapes)}
        details = "; ".join(f"{kind}: {few(names)}" for kind, names in parts.items() if names)
        raise ValueError(
            f"{where}: weights ({len(weights)}) must be those of this model ({len(own)}); got {details}. "
            "Build the model from the configuration in the same folder."
        )
    for name, value in own.items():
        value.copy_(weights[name])
