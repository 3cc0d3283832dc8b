"""Run every model class of transformers with its own attention and with regard's: `examine(name)`.

`python -m bench._sweep` reads class names line by line and answers each with one line of JSON.
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

TOLERANCE = 1e-5
MEMORY = 10 << 30
WAYS = ("set", "built")


def classes() -> list[str]:
    """Return the names of all model classes in the auto mappings of transformers."""
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
    """Return the verdicts for a model whose implementation is set after construction and for one constructed with it.

    equal     same output within 1e-5, computed by our attention
    sdpa      same output as "sdpa"; the "eager" attention of this class gives a different one
    own       same output, but the class computes its attention itself or has none
    refused   rejected with a message that names the class
    wrong     different output
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
    """Return whether the output equals that of "sdpa". Some classes use boolean masks that "eager" adds or inverts."""
    try:
        model.set_attn_implementation("sdpa")
    except (ValueError, ImportError):  # not supported by the class or one of its submodules
        return False
    return _verdict(make, inputs, _expected(model, inputs))[0] == "equal"


class Unbuildable(Exception):
    """No tiny model of a class could be built and run with its own attention."""


def _running(cls: Any) -> tuple[nn.Module, Any, dict[str, Tensor]]:
    """Return a tiny model of the class with eager attention, its config, and inputs that it accepts."""
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
        for dtype in (torch.float32, torch.float64):  # differences due to rounding vanish in float64
            if isinstance(expected[dtype], Exception):
                return "wrong", f"{detail}, and the class does not run in {dtype}"
            outputs = _run(model.to(dtype), inputs, dtype)
            detail = _difference(outputs, expected[dtype])
            if not detail:
                return ("equal" if calls else "own"), ""
        return "wrong", detail
    except Exception as error:
        refused = isinstance(error, ValueError) and str(error).startswith("huggingface: ")
        return "refused" if refused else "error", _short(error)
    finally:
        transformers.AttentionInterface.register("regard", attention)


def _expected(model: nn.Module, inputs: dict[str, Tensor]) -> dict[torch.dtype, Any]:
    """Return the output in float64 and float32. The value is the exception if the class runs only in float32."""
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
    arguments = {n: x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x for n, x in inputs.items()}
    return list(_tensors(model(**arguments)))


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


def _difference(outputs: list[Tensor], expected: list[Tensor]) -> str:
    """Return a description of the largest difference, or an empty string if all tensors agree."""
    if [x.shape for x in outputs] != [x.shape for x in expected]:
        return f"shapes {[tuple(x.shape) for x in outputs]}, expected {[tuple(x.shape) for x in expected]}"
    worst = 0.0
    for one, other in zip(outputs, expected, strict=True):
        if not torch.equal(one.isfinite(), other.isfinite()):
            return "different elements are finite"
        finite = other.isfinite()
        scale = max(1.0, float(other[finite].abs().max())) if finite.any() else 1.0
        worst = max(worst, float((one[finite] - other[finite]).abs().max()) / scale if finite.any() else 0.0)
    return f"off by {worst:.1e}" if worst > TOLERANCE else ""


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
