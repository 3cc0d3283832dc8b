"""Dense attention in plain PyTorch, without code of regard.

In float64 it is the reference. In another dtype it is plain PyTorch at that dtype, to which our errors
are compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import regard


@dataclass
class Problem:
    """Inputs in float64, and the options of the call."""

    q: Tensor
    k: Tensor
    v: Tensor
    similarity: str = "scaled_dot"  # or additive, bilinear, mlp
    parameters: dict[str, Tensor] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    def leaves(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return all tensors that may require a gradient, rounded to a dtype."""
        named = {"q": self.q, "k": self.k, "v": self.v, **self.parameters}
        mask = self.options.get("attn_mask")
        if mask is not None and mask.is_floating_point():
            named["mask"] = mask
        return {name: x.to(dtype).clone().requires_grad_() for name, x in named.items()}

    def ours(self, x: dict[str, Tensor], backend: str, **more: Any) -> Any:
        options = {**self.options, **more}
        if "mask" in x:
            options["attn_mask"] = x["mask"]
        kinds = {
            "additive": lambda: regard.Additive(x["w"]),
            "bilinear": lambda: regard.Bilinear(x["W"]),
            "mlp": lambda: lambda q, k: mlp(q, k, x["w1"], x["w2"]),
        }
        similarity = kinds[self.similarity]() if self.similarity in kinds else self.similarity
        return regard.attend(x["q"], x["k"], x["v"], similarity=similarity, backend=backend, **options)

    def plain(self, x: dict[str, Tensor]) -> Tensor:
        return dense_context(x, self.similarity, **self.options)


def mlp(q: Tensor, k: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
    return torch.nn.functional.gelu((q.unsqueeze(-2) * k.unsqueeze(-3)) @ w1) @ w2


def dense_scores(x: dict[str, Tensor], similarity: str, scale: float | None = None) -> Tensor:
    q, k = x["q"], x["k"]
    if similarity in ("dot", "scaled_dot"):
        default = 1 / math.sqrt(q.shape[-1]) if similarity == "scaled_dot" else 1.0
        return torch.einsum("...id,...jd->...ij", q, k) * (default if scale is None else scale)
    if similarity == "cosine":
        norms = q.norm(dim=-1)[..., :, None] * k.norm(dim=-1)[..., None, :]
        return torch.einsum("...id,...jd->...ij", q, k) / norms * (1.0 if scale is None else scale)
    if similarity == "bilinear":
        return (q @ x["W"]) @ k.transpose(-1, -2) * (1.0 if scale is None else scale)
    if similarity == "additive":
        return (torch.tanh(q[..., :, None, :] + k[..., None, :, :]) * x["w"]).sum(-1)
    assert similarity == "mlp"
    return mlp(q, k, x["w1"], x["w2"])


def allowed_pairs(shape: tuple[int, ...], options: dict[str, Any]) -> Tensor:
    """Return which queries may attend to which keys, computed pair by pair in loops."""
    *lead, queries, keys = shape
    left, right = options.get("window") or (None, None)

    def of_entry(name: str, default: int) -> list[int]:
        value = torch.as_tensor(default if options.get(name) is None else options[name])
        return value.reshape((*value.shape, *(1,) * (len(lead) - value.ndim))).expand(lead).flatten().tolist()

    def may(i: int, j: int, offset: int, length: int) -> bool:
        position = i + offset
        causal = not options.get("is_causal") or j <= position
        inside = (left is None or j >= position - left) and (right is None or j <= position + right)
        return j < length and causal and inside

    entries = zip(of_entry("causal_offset", 0), of_entry("lengths", keys), strict=True)
    pairs = [[[may(i, j, *entry) for j in range(keys)] for i in range(queries)] for entry in entries]
    return torch.tensor(pairs, dtype=torch.bool).reshape(shape)


def dense_weights(x: dict[str, Tensor], similarity: str = "scaled_dot", **options: Any) -> Tensor:
    """Return the weights (*lead, Tq, Tk): soft, hard or uniform."""
    scores = dense_scores(x, similarity, options.get("scale"))
    if options.get("softcap"):
        scores = options["softcap"] * torch.tanh(scores / options["softcap"])
    lead = torch.broadcast_shapes(scores.shape[:-2], x["v"].shape[:-2])
    shape = (*lead, *scores.shape[-2:])
    allowed = allowed_pairs(shape, options)
    mask = x.get("mask", options.get("attn_mask"))
    if mask is not None and mask.dtype == torch.bool:
        allowed = allowed & mask
    if options.get("weighting") == "uniform":
        allowed = allowed if mask is None or mask.dtype == torch.bool else allowed & (mask > -torch.inf)
        count = allowed.sum(-1, keepdim=True).clamp(min=1).to(scores.dtype)
        return torch.where(allowed, 1 / count, 0)
    if mask is not None and mask.dtype != torch.bool:
        scores = scores + mask
    scores = scores.expand(shape).masked_fill(~allowed, -torch.inf)
    empty = (scores == -torch.inf).all(-1, keepdim=True)
    soft = torch.softmax(torch.where(empty, 0, scores), -1)
    soft = torch.where(empty, 0, soft)
    if options.get("weighting") != "hard":
        return soft
    hard = torch.zeros_like(soft).scatter(-1, scores.argmax(-1, keepdim=True), 1.0)
    return torch.where(empty, 0, hard) + soft - soft.detach()


def dense_context(x: dict[str, Tensor], similarity: str = "scaled_dot", **options: Any) -> Tensor:
    if options.get("enable_gqa"):
        groups = x["q"].shape[-3] // x["k"].shape[-3]
        x = {**x, "k": x["k"].repeat_interleave(groups, -3), "v": x["v"].repeat_interleave(groups, -3)}
    return dense_weights(x, similarity, **options) @ x["v"]


def gradients(out: Tensor, x: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the gradients of a fixed, non-uniform linear function of the output."""
    reading = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape)
    gradients_ = torch.autograd.grad((out * reading).sum(), list(x.values()), allow_unused=True)
    return {
        name: torch.zeros_like(leaf) if grad is None else grad
        for (name, leaf), grad in zip(x.items(), gradients_, strict=True)
    }
