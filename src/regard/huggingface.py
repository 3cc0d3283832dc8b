"""Registers regard as an attention implementation of Hugging Face transformers.

    import regard                                              # before or after transformers
    model.set_attn_implementation("regard")                    # or from_pretrained(…, attn_implementation="regard")
    model(**inputs, output_attentions=True).attentions         # a tuple of AttentionMaps (B, H, Tq, Tk), nothing dense

`regard.attend` supports encoders, decoders, cross-attention, grouped heads, sliding windows, soft caps, position biases
and attention sinks. Other features raise an error that names them. So does a model class that does not call the
attention interface of transformers.

Classes that declare support for "sdpa" get boolean masks. All others get additive masks like those of "eager", because
they add the mask to scores of their own. As with "eager", a causal mask is never replaced by `is_causal`, and no mask
means that every key is visible.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import eager_mask, sdpa_mask

from .attention import AttentionMap, attend, masks
from .attention.sink import attend_with_sink

__all__ = ["attention", "mask"]

NAME = "regard"

REFUSED = {
    "indices": "sparse attention to chosen keys",
    "block_indices": "sparse attention to chosen blocks",
    "cache": "a paged cache of continuous batching",
    "head_mask": "weights that are multiplied after the softmax",
}
"""Arguments that change the weights in ways that `regard.attend` does not support."""


class Meaning(NamedTuple):
    """A simpler equivalent of a mask returned by `mask`, so that the kernels do not have to read the mask itself."""

    version: int
    """Version counter of the mask. A later version means that the model changed the mask in place."""
    allowed: Tensor | None
    """Equivalent boolean mask, or None if the mask is purely causal."""


def mask(config: object = None, allow_is_causal_skip: bool = True, **arguments: object) -> Tensor | None:
    """Return a mask (B, 1, Tq, Tk) of the type that models of `config` expect, with its `Meaning` attached.

    If the mask reaches `attention` unchanged, its meaning is used instead.

    >>> (mask(batch_size=1, q_length=2, kv_length=2) == 0).int().tolist()      # causal; other values are −∞
    [[[[1, 0], [1, 1]]]]
    """
    options: dict[str, Any] = arguments
    make = sdpa_mask if takes_boolean(type(config)) else eager_mask
    if torch.compiler.is_compiling():
        return make(**options, allow_is_causal_skip=False)
    _seen.mask = True
    with torch.inference_mode(False):  # tensors of inference mode have no version counter
        allowed = sdpa_mask(**options, allow_is_causal_skip=allow_is_causal_skip)
        if allowed is None and not allow_is_causal_skip:
            return None  # every key is visible
        if allowed is None or make is eager_mask:
            result = make(**options, allow_is_causal_skip=False)
            assert result is not None
            result._regard_meaning = Meaning(result._version, allowed)  # type: ignore[attr-defined]  # an attribute of our own on a tensor
            return result
        return allowed


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # torch's decorator has no types
def takes_boolean(config: type) -> bool:
    """Return whether all model classes of a config support boolean masks and call the attention interface."""
    if config not in _boolean:
        classes, models = [PreTrainedModel], []
        for cls in classes:  # the list grows during the loop
            classes += cls.__subclasses__()
            models += [cls] if cls.config_class is config else []
        supported = (cls._supports_sdpa and cls._can_set_attn_implementation() for cls in models)
        _boolean[config] = bool(models) and all(supported)
    return _boolean[config]


_boolean: dict[type, bool] = {}


def _meaning(attention_mask: Tensor | None, queries: int, keys: int) -> Meaning | None:
    """Return the meaning of a mask that comes from `mask`, unless the model changed it."""
    if torch.compiler.is_compiling() or attention_mask is None or attention_mask.shape[-2:] != (queries, keys):
        return None
    meaning: Meaning | None = getattr(attention_mask, "_regard_meaning", None)
    return meaning if meaning is not None and meaning.version == attention_mask._version else None


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    dropout: float = 0.0,
    scaling: float | None = None,
    softcap: float | None = None,
    position_bias: Tensor | None = None,
    s_aux: Tensor | None = None,
    **kwargs: object,
) -> tuple[Tensor, AttentionMap | None]:
    """Compute attention for transformers: query (B, H, Tq, D) → context (B, Tq, H, Dv) and its map (B, H, Tq, Tk).

    Only the mask determines which keys are visible. As with "eager", `is_causal` and `sliding_window` are ignored.

    >>> x = torch.randn(1, 2, 5, 4)
    >>> context, m = attention(nn.Identity(), x, x, x)
    >>> tuple(context.shape), m.shape
    ((1, 5, 2, 4), (1, 2, 5, 5))
    """
    _check(module, kwargs)
    _note_call()
    queries, keys = query.shape[-2], key.shape[-2]
    meaning, causal = _meaning(attention_mask, queries, keys), False
    if meaning is not None:
        attention_mask = meaning.allowed
        causal = attention_mask is None and queries > 1
    if causal and keys > queries:  # the first step with a static cache, which is still empty beyond the queries
        key, value, keys = key[..., :queries, :], value[..., :queries, :], queries
        position_bias = None if position_bias is None else position_bias[..., :queries]
    if attention_mask is not None and attention_mask.shape[-1] > keys:
        attention_mask = attention_mask[..., :keys]
    options: dict[str, Any] = {
        "attn_mask": masks.merge(attention_mask, position_bias),
        "dropout_p": dropout,
        "is_causal": causal,
        "scale": scaling,
        "enable_gqa": query.shape[-3] != key.shape[-3],
        "softcap": softcap,
        "window": None,
    }
    with_map = not torch.compiler.is_compiling()  # a map is not a tensor, so compiled code cannot return it
    if s_aux is not None:
        context, attention_map = attend_with_sink(query, key, value, s_aux, **options)
    elif with_map:
        context, attention_map = attend(query, key, value, **options, return_map=True)
    else:
        context, attention_map = attend(query, key, value, **options), None
    return context.transpose(1, 2).contiguous(), attention_map if with_map else None


def _check(module: nn.Module, kwargs: dict[str, Any]) -> None:
    for name, description in REFUSED.items():
        if kwargs.get(name) is not None:
            raise ValueError(
                f"huggingface: {name} of {type(module).__name__} must be None under attn_implementation='regard': it "
                f"means {description}. Use model.set_attn_implementation('eager')."
            )


class _Seen(threading.local):
    """Events in this thread since the innermost verified model started its forward pass."""

    def __init__(self) -> None:
        self.mask = self.call = False
        self.outer: list[tuple[bool, bool]] = []
        """Events of the enclosing models, outermost first."""


class _Process:
    compiled = False
    """Whether torch.compile compiled a call. Compiled calls are not recorded any more."""


_seen, _process = _Seen(), _Process()
_handles: weakref.WeakKeyDictionary[nn.Module, tuple[RemovableHandle, ...]] = weakref.WeakKeyDictionary()


def verify(model: nn.Module) -> None:
    """Check during the next forward passes of `model` that its attention layers call `attention`.

    A forward pass that creates masks but never calls `attention` raises ValueError. A submodule may do so if another
    submodule calls it. The first pass with a call ends the check for the model and its submodules.
    """
    if model not in _handles:
        end = model.register_forward_hook(_end, always_call=True)
        _handles[model] = (model.register_forward_pre_hook(_begin), end)


def _begin(model: nn.Module, args: Any) -> None:
    if not torch.compiler.is_compiling():
        _seen.outer.append((_seen.mask, _seen.call))
        _seen.mask = _seen.call = False


def _end(model: nn.Module, args: Any, output: Any) -> None:
    if torch.compiler.is_compiling() or not _seen.outer:
        return
    mask, call = _seen.mask, _seen.call or _process.compiled
    outer_mask, outer_call = _seen.outer.pop()
    _seen.mask, _seen.call = outer_mask or mask, outer_call or call
    if call:
        for module in model.modules():
            for handle in _handles.pop(module, ()):
                handle.remove()
    elif mask and not _seen.outer and output is not None:  # None: the forward pass already failed
        raise ValueError(
            f"huggingface: {type(model).__name__} must call the attention interface of transformers under "
            f"attn_implementation={NAME!r}; it created masks but computed attention itself. Use "
            "model.set_attn_implementation('eager')."
        )


def _note_call() -> None:
    if not torch.compiler.is_compiling():
        _seen.call = True
    elif not torch.compiler.is_exporting():
        _process.compiled = True


def _check_class(cls: type[PreTrainedModel]) -> None:
    """Raise ValueError if a model class of transformers is built with "regard" but would not use it."""
    if not cls.__module__.startswith("transformers."):
        return  # the source of other classes is not inspected: `verify` checks them at run time
    reason = "" if cls._can_set_attn_implementation() else "it computes its attention itself"
    for table, classes in vars(sys.modules[cls.__module__]).items():
        if table.endswith("_ATTENTION_CLASSES") and NAME not in classes:
            reason = f"it has attention layers only for {sorted(classes)}"
    if reason:
        raise ValueError(
            f"huggingface: {cls.__name__} must call the attention interface of transformers to be built with "
            f"attn_implementation={NAME!r}; got a class that does not: {reason}. Build it with "
            "attn_implementation='eager'."
        )


def _checked(method: Any) -> Any:
    """Wrap `PreTrainedModel.get_correct_attn_implementation`, which every model calls, to check the use of "regard"."""

    @functools.wraps(method)
    def get_correct_attn_implementation(
        self: PreTrainedModel, requested_attention: str | None, is_init_check: bool = False, **kwargs: Any
    ) -> str:
        chosen: str = method(self, requested_attention, is_init_check, **kwargs)
        if chosen == NAME:
            if is_init_check:
                _check_class(type(self))
            verify(self)
        return chosen

    return get_correct_attn_implementation


def register() -> None:
    """Register "regard" as an attention implementation of transformers. Repeated calls have no effect."""
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, mask)
    method = getattr(PreTrainedModel, "get_correct_attn_implementation", None)
    if method is not None and not hasattr(method, "__wrapped__"):
        PreTrainedModel.get_correct_attn_implementation = _checked(method)  # type: ignore[method-assign]  # wraps a method of transformers


register()
