"""Training settings. Their docstrings are the `--help` texts of every command that trains."""

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
    """Settings of training: limits, optimizer, schedule, weight averaging and intervals.

    >>> Training(steps=1000, schedule="inverse_sqrt").check().warmup
    400
    """

    steps: int | None = None
    """Stop after this many optimizer steps. At least one limit is required; the first one reached ends the run."""
    epochs: int | None = None
    """Stop after this many passes over the data."""
    minutes: float | None = None
    """Stop after this many minutes, including evaluations and the time before an interruption."""

    learning_rate: float = 1e-3
    """Peak learning rate, reached at the end of the warm-up."""
    warmup: float = 400
    """Steps over which the learning rate rises from 0. A value below 1 is a fraction of the run."""
    schedule: Literal["cosine", "linear", "inverse_sqrt", "constant"] = "cosine"
    """Schedule after the warm-up. cosine and linear decay until the run's limit (steps, epochs, minutes), inverse_sqrt
    decays as 1/√step."""
    final_rate: float = 0.0
    """Final value of cosine and linear, as a fraction of the learning rate."""
    betas: tuple[float, float] = (0.9, 0.98)
    """AdamW: decay of the running means of gradients and squared gradients."""
    epsilon: float = 1e-8
    """AdamW: term added to the denominator."""
    weight_decay: float = 0.01
    """AdamW: weight decay. Vectors (biases, gains of norms) are not decayed."""
    clip: float = 1.0
    """Maximum gradient norm; 0 disables clipping."""
    accumulate: int = 1
    """Batches whose gradients are accumulated for one step. The last step of an epoch may have fewer."""

    average: Literal["none", "exponential", "last"] = "none"
    """Weights to evaluate and save: the current ones, their exponential moving average, or the mean of the last
    states."""
    average_decay: float = 0.999
    """Decay of the exponential moving average. It is limited to (1 + n) / (10 + n) after n states."""
    average_states: int = 5
    """Number of states in the mean of the last states. Each takes memory, and space in the training state."""
    average_every: int = 1
    """Number of steps between states that enter the average."""

    evaluate_every: int = 0
    """Steps between evaluations; 0 evaluates at the end of each epoch. The last step is always evaluated."""
    patience: int = 0
    """Stop after this many consecutive evaluations without improvement; 0 disables early stopping."""
    log_every: int = 50
    """Steps between lines in metrics.jsonl. The loss is read and checked at this interval."""
    save_every: int = 0
    """Steps between training states; 0 saves by time only."""
    save_seconds: float = 60.0
    """Seconds between training states; 0 saves by steps only."""

    seed: int = 0
    """Seed of all random number generators."""
    device: str = "auto"
    """Device such as cpu or cuda; auto selects the accelerator if there is one."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of computations in training; weights stay float32. auto selects bfloat16 on a GPU that supports it,
    otherwise float32."""
    compile: bool = False
    """Compile the model with torch.compile."""

    def errors(self) -> list[str]:
        """Return one message for each invalid setting.

        >>> Training(steps=100, warmup=10, clip=-1.0).errors()
        ['training: clip (-1.0) must be 0 or more and finite; got -1.0. Try 1, or 0 for no clipping.']
        """
        return [*_limits(self), *_numbers(self), *_names(self), *_together(self)]

    def check(self) -> Training:
        """Return these settings, or raise a ValueError that lists all errors."""
        refuse(self.errors())
        return self


def _above_zero(value: float) -> bool:
    return 0 < value < math.inf


def _not_negative(value: float) -> bool:
    return 0 <= value < math.inf


MAX_EPOCHS = 1_000_000
"""Largest limit in epochs."""

Rule = tuple[Callable[[Any], bool], str, str]
"""A predicate, the rule in words, and a suggestion."""

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
    "save_every": (_not_negative, "be 0 or more", "Try 1000, or 0 to save by time only."),
    "save_seconds": (_not_negative, "be 0 or more and finite", "Try 60, or 0 to save by steps only."),
    "seed": (lambda value: 0 <= value < 2**32, "be from 0 to 2³² − 1, the range of NumPy seeds", "Try 0."),
}

CHOICES: Mapping[str, tuple[str, ...]] = {
    name: get_args(hint) for name, hint in get_type_hints(Training).items() if get_origin(hint) is Literal
}


def _limits(config: Training) -> Iterator[str]:
    limits = {name: value for name in LIMITS if (value := getattr(config, name)) is not None}
    if not limits:
        yield "training: steps, epochs and minutes (None) must set a limit; got none. Try --steps 10000."
    for name, value in limits.items():
        if not _above_zero(value):
            yield f"training: {name} ({value}) must be above 0 and finite; got {value}. Omit it for no limit."
    if limits.get("epochs", 0) > MAX_EPOCHS:  # the number of steps is added up epoch by epoch
        got = limits["epochs"]
        yield f"training: epochs ({got}) must be at most {MAX_EPOCHS:,}; got {got}. Omit it, and set steps or minutes."


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
        device = device_of(config.device)
    except RuntimeError:
        yield f"training: device ({config.device}) must be a torch device; got {config.device}. Try cpu or auto."
        return
    present = torch.accelerator.current_accelerator()  # None on a machine without one
    if device.type != "cpu" and (present is None or device.type != present.type):
        available = "cpu" if present is None else f"cpu and {present.type}"
        yield f"training: device ({config.device}) must be available on this machine, which has {available}. Try auto."


def _together(config: Training) -> Iterator[str]:
    """Check combinations of settings that are valid on their own."""
    if not config.save_every and not config.save_seconds:
        yield (
            "training: save_every (0) and save_seconds (0) must not both be 0; got no saving interval. "
            "Try save_seconds 60."
        )
    if config.steps is not None and 0 < config.steps < config.warmup:
        yield (
            f"training: warmup ({config.warmup}) must not be longer than steps ({config.steps}); the learning rate "
            f"would never reach its peak. Try warmup {config.steps // 10}."
        )


def device_of(name: str) -> torch.device:
    """Return the device of a name; "auto" selects the accelerator, or the CPU if there is none.

    >>> device_of("cpu")
    device(type='cpu')
    """
    if name != "auto":
        return torch.device(name)
    return torch.accelerator.current_accelerator() or torch.device("cpu")


def mixed(precision: str, device: torch.device) -> bool:
    """Return whether to train in mixed precision with bfloat16.

    "auto" never selects bfloat16 on a CPU, because it is slower than float32 without bfloat16 instructions.

    >>> mixed("auto", torch.device("cpu")), mixed("bfloat16", torch.device("cpu"))
    (False, True)
    """
    if precision != "auto":
        return precision == "bfloat16"
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
