"""Expected results of fuzzed calls: dense attention in float64, and bounds on rounding errors.

This module shares no code with regard.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tests.attention.fuzz_cases import Case, Draw, reachable
from tests.attention.oracle import dense_scores

FACTOR = 8
"""Number of roundings of one quantity that may add up; see `Truth`."""


@dataclass
class Truth:
    """The context, the gradients, and the largest allowed error of each.

    One rounding of relative size eps in a score s = Σ aₙ moves it by up to eps · A with A = Σ |aₙ|. A weight p then
    moves by p · eps · (1 + A), and so

        context = Σⱼ pᵢⱼ vⱼ               by eps · Σⱼ pᵢⱼ (1 + Aᵢⱼ) |vⱼ|
        dv      = Σᵢ pᵢⱼ gᵢ               by eps · Σᵢ pᵢⱼ (1 + Aᵢⱼ) |gᵢ|
        ds      = p (g·v − Σ p g·v)       by eps · p (1 + A) |g|·|v| =: e, despite cancellation

    The gradients of queries, keys, mask and parameters are linear in ds: their bounds are computed from e, through
    scores of absolute values, in which nothing cancels (`_terms`). Every bound is the largest over the tensor times
    FACTOR, because several roundings of eps add up: those of reduced inputs, scores, weights, sums and the result. eps
    is that of the call's dtype; in half precision, backends that compute in float32 stay far below it. A context is a
    mean of values, so for scores of any size its error is at most twice the largest value.
    """

    context: Tensor
    reading: Tensor
    """The gradient of the context, 0 in rows that attend to NaN."""
    gradients: dict[str, Tensor]
    bounds: dict[str, float]


def solve(case: Case) -> Truth:
    draw = Draw(~case.number)
    x = {name: tensor.detach().clone().requires_grad_() for name, tensor in case.x.items()}
    dense = _heads_first(case, x)
    pairs = reachable(case)  # (*lead, Tq, Tk)
    scores, amount = _scores(case, dense, pairs)
    soft, weights = _weights(case, scores, pairs)
    context = weights @ dense["v"]  # (*lead, Tq, Dv)
    ones = case.layouts["grad"] == "expanded"
    reading = torch.ones_like(context) if ones else draw.normal(*context.shape).to(case.dtype).double()
    reading = torch.where(case.affected, 0, reading)
    gradients = _gradients(context, x, reading)
    sizes = {name: tensor.detach().abs().requires_grad_() for name, tensor in case.x.items()}
    terms = _heads_first(case, sizes)
    used = (soft + weights).detach().abs() * (1 + amount)  # (*lead, Tq, Tk)
    error = soft.detach() * (1 + amount) * (reading.abs() @ terms["v"].detach().mT)
    bounds = {name: _largest(grad) for name, grad in _gradients(_terms(case, terms, pairs), sizes, error).items()}
    bounds["v"] = _largest(_gradients(used @ terms["v"], sizes, reading.abs())["v"])
    bounds["context"] = _largest((used @ terms["v"]).detach())
    eps = FACTOR * torch.finfo(case.dtype).eps
    bounds["context"] = min(bounds["context"], 2 * _largest(terms["v"].detach()) / eps)
    if case.lengths is not None:
        context, reading = context.transpose(0, 1), reading.transpose(0, 1)  # (Nq, H, Dv)
    return Truth(context.detach(), reading, gradients, {name: eps * bound for name, bound in bounds.items()})


def _heads_first(case: Case, x: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return keys and values with as many heads as queries, packed tokens as (H, N, ·), and w as (..., 1, 1, D)."""
    dense = {name: tensor[..., None, None, :] if name == "w" else tensor for name, tensor in x.items()}
    if case.lengths is not None:
        dense |= {name: x[name].transpose(0, 1) for name in ("q", "k", "v")}
    if case.options.get("enable_gqa"):
        groups = dense["q"].shape[-3] // dense["k"].shape[-3]
        dense |= {name: dense[name].repeat_interleave(groups, -3) for name in ("k", "v")}
    return dense


def _scores(case: Case, x: dict[str, Tensor], pairs: Tensor) -> tuple[Tensor, Tensor]:
    """Return scores with softcap and mask, and the sums of the absolute values of their terms, (*lead, Tq, Tk) each."""
    scores = dense_scores(x, case.similarity, case.options.get("scale"))
    sizes = {name: tensor.detach().abs() for name, tensor in x.items()}
    amount = dense_scores(sizes, case.similarity, case.options.get("scale")).abs()
    softcap = case.options.get("softcap")
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if "mask" in x:
        scores = scores + x["mask"]
        amount = amount + torch.where(x["mask"].detach() == -torch.inf, 0, sizes["mask"])
    return scores.expand(pairs.shape), amount.expand(pairs.shape)


def _terms(case: Case, x: dict[str, Tensor], pairs: Tensor) -> Tensor:
    """Return scores of absolute values x. Their derivatives bound the terms of the true derivatives.

    The slope of tanh, 1 − t², is taken as 1, and that of q / ‖q‖, (1 − q̂ q̂ᵀ) / ‖q‖, as 1 / ‖q‖.
    """
    scale = None if case.options.get("scale") is None else abs(case.options["scale"])
    if case.similarity == "additive":
        inner = x["q"].unsqueeze(-2) + x["k"].unsqueeze(-3) + 1  # (..., Tq, Tk, D)
        terms = (inner * x["w"]).sum(-1)
    elif case.similarity == "cosine":
        unit = {name: x[name] / x[name].detach().norm(dim=-1, keepdim=True) for name in ("q", "k")}
        terms = dense_scores(unit, "dot", scale)
    else:
        terms = dense_scores(x, case.similarity, scale)
    return (terms + x["mask"] if "mask" in x else terms).expand(pairs.shape)


def _weights(case: Case, scores: Tensor, pairs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the soft weights, and the weights of the context."""
    if case.options["weighting"] == "uniform":
        even = pairs.double() / pairs.sum(-1, keepdim=True).clamp(min=1)
        return torch.zeros_like(even), even
    empty = ~pairs.any(-1, keepdim=True)
    scores = scores.masked_fill(~pairs, -torch.inf)
    soft = torch.softmax(torch.where(empty, 0, scores), -1)
    soft = torch.where(empty, 0, soft)
    if case.options["weighting"] == "softmax" or not soft.numel():
        return soft, soft
    chosen = torch.zeros_like(soft).scatter(-1, scores.argmax(-1, keepdim=True), 1.0)
    return soft.detach(), torch.where(empty, 0, chosen) + soft - soft.detach()


def _gradients(y: Tensor, x: dict[str, Tensor], reading: Tensor) -> dict[str, Tensor]:
    """Return the gradients of y · reading; zero for tensors on which y does not depend."""
    if not y.requires_grad:
        return {name: torch.zeros_like(leaf) for name, leaf in x.items()}
    gradients = torch.autograd.grad(y, list(x.values()), reading, retain_graph=True, allow_unused=True)
    return {
        name: torch.zeros_like(leaf) if grad is None else grad
        for (name, leaf), grad in zip(x.items(), gradients, strict=True)
    }


def _largest(x: Tensor) -> float:
    return float(x.abs().max()) if x.numel() else 0.0
