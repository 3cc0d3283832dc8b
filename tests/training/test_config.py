"""Training settings: all errors are reported at once, with values and suggestions."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from regard.training import Training
from regard.training.config import CHOICES, RULES, device_of, mixed

GOOD = Training(steps=1000)


def test_all_errors_are_reported_at_once() -> None:
    wrong = Training(steps=0, learning_rate=-1.0, clip=float("nan"), schedule="square", device="abacus", accumulate=0)  # type: ignore[arg-type]
    with pytest.raises(ValueError) as caught:
        wrong.check()
    assert str(caught.value).splitlines() == [
        "training: steps (0) must be above 0 and finite; got 0. Omit it for no limit.",
        "training: learning_rate (-1.0) must be above 0 and finite; got -1.0. Try 1e-3.",
        "training: clip (nan) must be 0 or more and finite; got nan. Try 1, or 0 for no clipping.",
        "training: accumulate (0) must be 1 or more; got 0. Try 1.",
        "training: schedule (square) must be one of cosine, linear, inverse_sqrt, constant; got square. Try cosine.",
        "training: device (abacus) must be a torch device; got abacus. Try cpu or auto.",
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("learning_rate", 0.0),
        ("learning_rate", float("inf")),
        ("warmup", -1),
        ("final_rate", 1.5),
        ("betas", (0.9, 1.0)),
        ("epsilon", 0.0),
        ("weight_decay", -0.1),
        ("clip", -1.0),
        ("accumulate", 0),
        ("average_decay", 1.0),
        ("average_states", 0),
        ("average_every", 0),
        ("evaluate_every", -1),
        ("patience", -1),
        ("log_every", 0),
        ("save_every", -1),
        ("save_seconds", -1.0),
        ("seed", -1),
    ],
)
def test_a_number_out_of_range_is_named_with_its_rule(name: str, value: Any) -> None:
    (error,) = dataclasses.replace(GOOD, **{name: value}).errors()
    _, rule, remedy = RULES[name]
    assert error == f"training: {name} ({value}) must {rule}; got {value}. {remedy}"


def test_every_rule_and_choice_belongs_to_a_setting() -> None:
    names = {item.name for item in dataclasses.fields(Training)}
    assert RULES.keys() <= names and CHOICES.keys() <= names
    assert GOOD.errors() == []


def test_invalid_combinations_of_settings() -> None:
    (error,) = Training(steps=1000, save_seconds=0.0).errors()
    assert error.startswith("training: save_every (0) and save_seconds (0) must not both be 0")
    (error,) = Training(steps=100).errors()
    assert error == (
        "training: warmup (400) must not be longer than steps (100); the learning rate would never reach its peak. "
        "Try warmup 10."
    )
    (error,) = Training().errors()
    assert error == "training: steps, epochs and minutes (None) must set a limit; got none. Try --steps 10000."


@pytest.mark.skipif(torch.accelerator.is_available(), reason="for a machine without an accelerator")
def test_a_device_must_be_available() -> None:
    (error,) = Training(steps=1000, device="cuda").errors()
    assert error == "training: device (cuda) must be available on this machine, which has cpu. Try auto."
    assert device_of("auto") == torch.device("cpu")


def test_mixed_precision_on_a_cpu_is_an_explicit_choice() -> None:
    cpu = torch.device("cpu")
    assert [mixed(precision, cpu) for precision in ("auto", "float32", "bfloat16")] == [False, False, True]


def test_mixed_precision_follows_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for has in (True, False):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation, has=has: has)
        assert mixed("auto", torch.device("cuda")) is has
