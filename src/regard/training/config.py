"""The settings of training. Their docstrings are the `--help` of every command that trains."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch

from ..core.settings import refuse
from ..tasks.run_files import LIMITS


@dataclass(frozen=True)
class Training:
    """How a model is trained: limits, optimiser, schedule, averaging, intervals.

    >>> Training(steps=1000, schedule="inverse_sqrt").check().warmup
    400
    """

    steps: int | None = None
    """Stop after so many optimiser steps. Of several limits the first that is reached counts; one must be given."""
    epochs: int | None = None
    """Stop after so many passes over the data."""
    minutes: float | None = None
    """Stop after so much time, evaluations and what was used before an interruption included."""

    learning_rate: float = 1e-3
    """The highest learning rate, reached at the end of the warm-up."""
    warmup: float = 400
    """Steps over which the learning rate rises from 0; below 1, the share of the run."""
    schedule: Literal["cosine", "linear", "inverse_sqrt", "constant"] = "cosine"
    """After the warm-up: cosine and linear fall until the run's limit (steps, epochs, minutes), inverse_sqrt with
    1/√step."""
    final_rate: float = 0.0
    """Where cosine and linear end, as a share of the learning rate."""
    betas: tuple[float, float] = (0.9, 0.98)
    """AdamW: decay of the running means of gradients and of their squares."""
    epsilon: float = 1e-8
    """AdamW: added to the denominator."""
    weight_decay: float = 0.01
    """AdamW: decay of the weights; vectors (biases, gains of norms) are left alone."""
    clip: float = 1.0
    """The highest norm of the gradient; 0 turns clipping off."""
    accumulate: int = 1
    """Batches whose gradients are summed for one step. The last step of an epoch may have fewer."""

    average: Literal["none", "exponential", "last"] = "none"
    """Weights to evaluate and to save: those of the step, their exponential mean, or the mean of the last states."""
    average_decay: float = 0.999
    """Decay of the exponential mean; at the start min(this, (1 + n) / (10 + n)) after n states."""
    average_states: int = 5
    """How many states the mean of the last ones takes. Each costs memory, and room in the training state."""
    average_every: int = 1
    """Steps from one state that enters the average to the next."""

    evaluate_every: int = 0
    """Steps from one evaluation to the next; 0: at the end of each epoch. The last step is always evaluated."""
    patience: int = 0
    """Stop after so many evaluations in a row without a better one; 0: never."""
    log_every: int = 50
    """Steps from one line in metrics.jsonl to the next. The loss is read, and checked, no more often."""
    save_every: int = 0
    """Steps from one training state to the next; 0: by time alone."""
    save_seconds: float = 60.0
    """Seconds from one training state to the next; 0: by steps alone."""

    seed: int = 0
    """Of everything random."""
    device: str = "auto"
    """Such as cpu or cuda; auto: the accelerator if there is one."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the arithmetic in training; weights stay float32. auto: bfloat16 on a GPU that has it, float32 elsewhere."""
    compile: bool = False
    """Compile the model with torch.compile."""

    def errors(self) -> list[str]:
        """Everything that is wrong with these settings, a sentence each."""
        return [*_limits(self), *_numbers(self), *_names(self), *_together(self)]

    def check(self) -> Training:
        """Itself; raises ValueError that names every error at once."""
        refuse(self.errors())
        return self


def _above_zero(value: float) -> bool:
    return 0 < value < math.inf


def _not_negative(value: float) -> bool:
    return 0 <= value < math.inf


Rule = tuple[Callable[[Any], bool], str, str]
"""A test, its words, and what to try."""

RULES: Mapping[str, Rule] = {
    "learning_rate": (_above_zero, "be above 0 and finite", "Try 1e-3."),
    "warmup": (_not_negative, "be 0 or more", "Try 400, 0.1 for a tenth of the run, or 0 for none."),
    "final_rate": (lambda value: 0 <= value <= 1, "be a share from 0 to 1", "Try 0 or 0.1."),
    "betas": (lambda value: all(0 <= beta < 1 for beta in value), "be from 0 to below 1", "Try 0.9 0.98."),
    "epsilon": (_above_zero, "be above 0 and finite", "Try 1e-8."),
    "weight_decay": (_not_negative, "be 0 or more and finite", "Try 0.01."),
    "clip": (_not_negative, "be 0 or more and finite", "Try 1, or 0 for no clipping."),
    "accumulate": (lambda value: value >= 1, "be 1 or more", "Try 1."),
    "average_decay": (lambda value: 0 <= value < 1, "be from 0 to below 1", "Try 0.999."),
    "average_states": (lambda value: value >= 1, "be 1 or more", "Try 5."),
    "average_every": (lambda value: value >= 1, "be 1 or more", "Try 1."),
    "evaluate_every": (_not_negative, "be 0 or more", "Try 500, or 0 for every epoch."),
    "patience": (_not_negative, "be 0 or more", "Try 5, or 0 for no early stopping."),
    "log_every": (lambda value: value >= 1, "be 1 or more", "Try 50."),
    "save_every": (_not_negative, "be 0 or more", "Try 1000, or 0 for states by time alone."),
    "save_seconds": (_not_negative, "be 0 or more and finite", "Try 60, or 0 for states by steps alone."),
    "seed": (lambda value: 0 <= value < 2**32, "be from 0 to 2³² − 1, as numpy wants", "Try 0."),
}

CHOICES: Mapping[str, tuple[str, ...]] = {
    name: get_args(hint) for name, hint in get_type_hints(Training).items() if get_origin(hint) is Literal
}


def _limits(config: Training) -> Iterator[str]:
    given = {name: value for name in LIMITS if (value := getattr(config, name)) is not None}
    if not given:
        yield "training: steps, epochs and minutes (None) must set a limit; got none. Try --steps 10000."
    for name, value in given.items():
        if not _above_zero(value):
            yield f"training: {name} ({value}) must be above 0 and finite; got {value}. Leave it out for no such limit."


def _numbers(config: Training) -> Iterator[str]:
    for name, (holds, rule, remedy) in RULES.items():
        value = getattr(config, name)
        if not holds(value):
            yield f"training: {name} ({value}) must {rule}; got {value}. {remedy}"


def _names(config: Training) -> Iterator[str]:
    for name, choices in CHOICES.items():
        value = getattr(config, name)
        if value not in choices:
            yield f"training: {name} ({value}) must be one of {', '.join(choices)}; got {value}. Try {choices[0]}."
    try:
        found = device_of(config.device)
    except RuntimeError:
        yield f"training: device ({config.device}) must be one that torch knows; got {config.device}. Try cpu or auto."
        return
    present = torch.accelerator.current_accelerator()  # None where there is none
    if found.type != "cpu" and (present is None or found.type != present.type):
        here = "cpu" if present is None else f"cpu and {present.type}"
        yield f"training: device ({config.device}) must be on this machine; got one beside {here}. Try auto."


def _together(config: Training) -> Iterator[str]:
    """What is right by itself and wrong in company."""
    if not config.save_every and not config.save_seconds:
        yield (
            "training: save_every (0) and save_seconds (0) must not both be 0; got no interval at which to save. "
            "Try save_seconds 60."
        )
    if config.steps is not None and 0 < config.steps < config.warmup:
        yield (
            f"training: warmup ({config.warmup}) must not be longer than steps ({config.steps}); got a learning rate "
            f"that never gets there. Try warmup {config.steps // 10}."
        )


def device_of(name: str) -> torch.device:
    """The device a name stands for.

    >>> device_of("cpu")
    device(type='cpu')
    """
    if name != "auto":
        return torch.device(name)
    return torch.accelerator.current_accelerator() or torch.device("cpu")


def mixed(precision: str, device: torch.device) -> bool:
    """Whether to compute in bfloat16.

    On a CPU only by explicit choice: without bfloat16 instructions it is slower than float32.

    >>> mixed("auto", torch.device("cpu")), mixed("bfloat16", torch.device("cpu"))
    (False, True)
    """
    if precision != "auto":
        return precision == "bfloat16"
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
