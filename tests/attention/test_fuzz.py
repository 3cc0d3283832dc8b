"""Random calls against a dense float64 reference, on every backend and instruction set, forward and backward.

    REGARD_FUZZ_CASES=5000 pytest tests/attention/test_fuzz.py        more cases than the few hundred by default
    REGARD_FUZZ_FIRST=100000                                          other cases: the number of the first one
    REGARD_FUZZ_EXTREMES=1                                            also rows masked by large finite numbers

A failure names its case. `fuzz_cases.make(number)` recreates it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard.attention import blocked
from regard.attention.native import engine
from tests.attention import fuzz_cases
from tests.attention.fuzz_cases import Case, arrange
from tests.attention.fuzz_reference import Truth, solve
from tests.attention.oracle import mlp

FIRST = int(os.environ.get("REGARD_FUZZ_FIRST", "0"))
CASES = range(FIRST, FIRST + int(os.environ.get("REGARD_FUZZ_CASES", "300")))
STEP = 25
ISAS = engine.module.isas() if engine.module else []
BACKENDS = [*(f"native {isa}" for isa in ISAS), "torch", "blocked", "reference", "auto"]


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use several blocks even for small sizes, and restore the instruction set afterwards."""
    monkeypatch.setitem(blocked.BLOCK, "cpu", 400)
    used = engine.module.isa() if engine.module else ""
    yield
    if engine.module:
        engine.module.use_isa(used)


@pytest.mark.parametrize("first", CASES[::STEP])
def test_random_calls_agree_with_the_reference(first: int) -> None:
    wrong = []
    for number in range(first, min(first + STEP, CASES.stop)):
        case = fuzz_cases.make(number)
        truth = solve(case)
        for backend in BACKENDS:
            error = failure(case, truth, backend)
            if error is not None:
                wrong.append(f"{backend}: {error}\n    {case.describe()}")
    assert not wrong, f"{len(wrong)} failures\n" + "\n".join(wrong)


@pytest.mark.parametrize("first", CASES[::STEP])
def test_maps_of_random_calls_have_rows_of_weights(first: int) -> None:
    wrong = []
    for number in range(first, min(first + STEP, CASES.stop)):
        case = fuzz_cases.make(number)
        if case.lengths is None:
            errors = ((backend, map_failure(case, backend)) for backend in BACKENDS)
            wrong += [f"{backend}: {error}\n    {case.describe()}" for backend, error in errors if error]
    assert not wrong, f"{len(wrong)} failures\n" + "\n".join(wrong)


def map_failure(case: Case, backend: str) -> str | None:
    """Return what is wrong with the map of a call: rows add up to 1 or 0, and every view shows the same weights."""
    name, *isa = backend.split()
    if engine.module and isa:
        engine.module.use_isa(isa[0])
    try:
        m = _call(case, _leaves(case), name, return_map=True)[1]
    except ValueError as error:
        return None if "cannot serve this request" in str(error) else f"raised {error!r}"
    picked = list(range(0, m.shape[-2], 2))
    try:
        weights, some, part = m.dense(), m[..., picked, :], m[..., 1:3, :]
        received, first = m.received(), m.top(1).values if m.shape[-1] else None
    except Exception as error:  # every crash is a failure
        return f"a view raised {error!r}"
    reachable = fuzz_cases.reachable(case).any(-1)  # (*lead, Tq)
    sound = ~case.affected.squeeze(-1)
    total = torch.where(sound, weights.double().sum(-1), reachable)
    error = float((total - reachable.double()).abs().max()) if total.numel() else 0.0
    if not error <= 1e-5:  # also if it is NaN
        return f"a row adds up to 1 ± {error:.3g}"
    views = [(some, weights[..., picked, :]), (part, weights[..., 1:3, :])]
    views += [(received, weights.sum(-2))] if bool(sound.all()) else []  # NaN reaches different keys
    for view, same in views:
        if not torch.allclose(view, same, rtol=1e-4, atol=1e-5, equal_nan=True):
            return f"a view {tuple(view.shape)} differs from the dense weights"
    if first is not None and not torch.allclose(first[sound], weights[sound].amax(-1, keepdim=True), atol=1e-5):
        return "the largest weights differ from the dense weights"
    return None


def failure(case: Case, truth: Truth, backend: str) -> str | None:
    """Return what is wrong with the result of a backend; None if it is correct or the request is not supported."""
    name, *isa = backend.split()
    if engine.module and isa:
        engine.module.use_isa(isa[0])
    leaves = _leaves(case)
    try:
        context = _call(case, leaves, name)
    except ValueError as error:
        if name in ("native", "torch") and "cannot serve this request" in str(error):
            return None
        return f"raised {error!r}"
    except Exception as error:  # every crash is a failure
        return f"raised {error!r}"
    wrong = _compare("context", context, truth.context, truth.bounds["context"], case, affected=case.affected)
    wanted = {n: leaves[n] for n in case.wanted}
    if wrong or not wanted:
        return wrong
    layout = "plain" if case.affected.any() and case.layouts["grad"] == "expanded" else case.layouts["grad"]
    reading = truth.reading.to(case.dtype)
    reading = torch.ones((), dtype=case.dtype).expand_as(reading) if layout == "expanded" else arrange(reading, layout)
    try:
        gradients = torch.autograd.grad(context, list(wanted.values()), reading)
    except Exception as error:
        return f"backward raised {error!r}"
    for n, gradient in zip(wanted, gradients, strict=True):
        wrong = wrong or _compare(f"gradient of {n}", gradient, truth.gradients[n], truth.bounds[n], case)
    return wrong


def _leaves(case: Case) -> dict[str, Tensor]:
    leaves = {}
    for name, x in case.x.items():
        if name in case.junk:
            x = torch.where(case.junk[name] != 0, case.junk[name], x)
        x = arrange(x.to(case.dtype), case.layouts.get(name, "plain")).detach()
        leaves[name] = x.requires_grad_() if name in case.wanted else x
    return leaves


def _call(case: Case, x: dict[str, Tensor], backend: str, **options: Any) -> Any:
    kinds = {
        "additive": lambda: regard.Additive(x["w"]),
        "bilinear": lambda: regard.Bilinear(x["W"]),
        "mlp": lambda: lambda q, k: mlp(q, k, x["w1"], x["w2"]),
    }
    similarity = kinds[case.similarity]() if case.similarity in kinds else case.similarity
    options = {**case.options, **options, "similarity": similarity, "backend": backend}
    if "mask" in x:
        options["attn_mask"] = x["mask"]
    if case.lengths is None:
        return regard.attend(x["q"], x["k"], x["v"], **options)
    return regard.attend_packed(x["q"], x["k"], x["v"], *case.lengths, **options)


def _compare(
    what: str, got: Tensor | None, wanted: Tensor, bound: float, case: Case, affected: Tensor | None = None
) -> str | None:
    if got is None:
        return f"{what} is None"
    if got.shape != wanted.shape or got.dtype != case.dtype:
        return f"{what} is {tuple(got.shape)} {got.dtype}, not {tuple(wanted.shape)} {case.dtype}"
    error = (got.detach().double() - wanted).abs()
    if affected is not None:
        affected = affected.transpose(0, 1) if case.lengths is not None else affected
        if not got.detach().isnan().any(-1, keepdim=True)[affected].all():
            return f"{what} is finite in a row that attends to NaN"
        error = torch.where(affected, 0, error)
    worst = float(error.max()) if error.numel() else 0.0
    return None if worst <= bound else f"{what} is off by {worst:.3g}, more than {bound:.3g}"
