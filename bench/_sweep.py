"""One class of transformers after the other, each run with its own attention and with regard's: `examine(name)`.

Started as `python -m bench._sweep`, it reads names of classes line by line and answers each with a line of JSON.
"""

from __future__ import annotations

import json
import resource
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import transformers
from torch import Tensor, nn

import regard
import regard.huggingface
from bench import _tiny

WITHIN = 1e-5
MEMORY = 10 << 30
WAYS = ("set", "built")


def classes() -> list[str]:
    """The names of every model class in the automatic mappings of transformers."""
    mappings = vars(transformers.models.auto.modeling_auto)
    names: set[str] = set()
    for mapping in (value for key, value in mappings.items() if key.endswith("MAPPING_NAMES")):
        for entry in mapping.values():
            names.update([entry] if isinstance(entry, str) else entry)
    return sorted(name for name in names if _is_model(name))


def _is_model(name: str) -> bool:
    try:
        value = getattr(transformers, name)
    except (AttributeError, ImportError):
        return False
    return isinstance(value, type) and issubclass(value, transformers.PreTrainedModel)


def examine(name: str) -> dict[str, str]:
    """Verdicts for a class whose implementation is set afterwards and for one that is built with it.

    equal     the same output within 1e-5, through our attention
    sdpa      the same as with "sdpa", from which "eager" of that class differs
    own       the same output; the class computes its attention itself, or has none
    refused   refused with a message that names the class
    wrong     another output
    error     any other exception
    skipped   no tiny model of the class runs with its own attention
    """
    cls = getattr(transformers, name)
    model: Any
    try:
        model, config, inputs = _running(cls)
    except Unbuildable as error:
        return {"name": name, **dict.fromkeys(WAYS, "skipped"), "detail": str(error)}
    result = {"name": name, "detail": ""}
    ways = {"set": lambda: _set(model), "built": lambda: _built(cls, config, model)}
    eager = _expected(model, inputs)
    for way in WAYS:
        result[way], detail = _verdict(ways[way], inputs, eager)
        if result[way] == "wrong" and _is_sdpa(model, ways[way], inputs):
            result[way] = "sdpa"
        result["detail"] += f"{way}: {detail} " if detail else ""
    return result


def _is_sdpa(model: Any, make: Callable[[], nn.Module], inputs: dict[str, Tensor]) -> bool:
    """Whether the output is that of "sdpa": a few classes use boolean masks that their "eager" adds or inverts."""
    try:
        model.set_attn_implementation("sdpa")
    except (ValueError, ImportError):  # the class or a part of it does not support it
        return False
    return _verdict(make, inputs, _expected(model, inputs))[0] == "equal"


class Unbuildable(Exception):
    """No tiny model of a class could be built and run with its own attention."""


def _running(cls: Any) -> tuple[nn.Module, Any, dict[str, Tensor]]:
    """A tiny model of the class with eager attention, its config, and inputs that it accepts."""
    reasons = []
    for config in _tiny.configs(cls):
        try:
            model = _tiny.build(cls, config, "eager")
        except Exception as error:
            reasons.append(_short(error))
            continue
        _tiny.randomize(model)
        for inputs in _tiny.candidates(model):
            try:
                output = _run(model, inputs, torch.float32)
            except Exception as error:
                reasons.append(_short(error))
                continue
            if output and all(x.isfinite().any() for x in output):
                return model, config, inputs
            reasons.append("output without finite numbers")
    raise Unbuildable(next(iter(reasons), "no config"))


def _set(model: Any) -> nn.Module:
    model.set_attn_implementation("regard")
    return model


def _built(cls: Any, config: Any, model: nn.Module) -> nn.Module:
    built = _tiny.build(cls, config, "regard")
    built.load_state_dict(model.state_dict())
    return built


def _verdict(
    make: Callable[[], nn.Module], inputs: dict[str, Tensor], expected: dict[torch.dtype, Any]
) -> tuple[str, str]:
    calls, detail = 0, ""
    attention = regard.huggingface.attention

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        return attention(*args, **kwargs)

    transformers.AttentionInterface.register("regard", counted)
    try:
        model = make()
        for dtype in (torch.float32, torch.float64):  # what differs by rounding alone agrees in float64
            if isinstance(expected[dtype], Exception):
                return "wrong", f"{detail}, and the class does not run in {dtype}"
            found = _run(model.to(dtype), inputs, dtype)
            detail = _difference(found, expected[dtype])
            if not detail:
                return ("equal" if calls else "own"), ""
        return "wrong", detail
    except Exception as error:
        refused = isinstance(error, ValueError) and str(error).startswith("huggingface: ")
        return "refused" if refused else "error", _short(error)
    finally:
        transformers.AttentionInterface.register("regard", attention)


def _expected(model: nn.Module, inputs: dict[str, Tensor]) -> dict[torch.dtype, Any]:
    """The output in float64 and float32, or the exception of code that is written for float32 alone."""
    outputs: dict[torch.dtype, Any] = {}
    for dtype in (torch.float64, torch.float32):
        try:
            outputs[dtype] = _run(model.to(dtype), inputs, dtype)
        except Exception as error:
            outputs[dtype] = error
    return outputs


@torch.no_grad()
def _run(model: nn.Module, inputs: dict[str, Tensor], dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    given = {n: x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x for n, x in inputs.items()}
    return list(_tensors(model(**given)))


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        if output.is_floating_point() and output.numel():
            yield output.clone()
    elif isinstance(output, regard.AttentionMap):
        yield output.dense()
    elif isinstance(output, dict):
        for key, value in output.items():
            if not key.startswith("past_key_values"):
                yield from _tensors(value)
    elif isinstance(output, list | tuple):
        for value in output:
            yield from _tensors(value)


def _difference(found: list[Tensor], expected: list[Tensor]) -> str:
    """Words on the largest difference; none if all agree."""
    if [x.shape for x in found] != [x.shape for x in expected]:
        return f"shapes {[tuple(x.shape) for x in found]} for {[tuple(x.shape) for x in expected]}"
    worst = 0.0
    for one, other in zip(found, expected, strict=True):
        if not torch.equal(one.isfinite(), other.isfinite()):
            return "other numbers are finite"
        finite = other.isfinite()
        scale = max(1.0, float(other[finite].abs().max())) if finite.any() else 1.0
        worst = max(worst, float((one[finite] - other[finite]).abs().max()) / scale if finite.any() else 0.0)
    return f"off by {worst:.1e}" if worst > WITHIN else ""


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".replace("\n", " ")[:300]


def main() -> None:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for line in sys.stdin:
        name = line.strip()
        try:
            result = examine(name)
        except Exception as error:
            result = {"name": name, **dict.fromkeys(WAYS, "error"), "detail": _short(error)}
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
