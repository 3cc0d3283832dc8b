"""regard as an attention implementation of Hugging Face transformers.

    import regard                                              # before or after transformers
    model.set_attn_implementation("regard")                    # or from_pretrained(…, attn_implementation="regard")
    model(**inputs, output_attentions=True).attentions         # a tuple of AttentionMaps (B, H, Tq, Tk), nothing dense

Encoders, decoders, cross-attention, grouped heads, sliding windows, soft caps, position biases and attention sinks are
computed by `regard.attend`. What a model asks beyond that is refused by name, and so is a model class that does not
call the attention interface of transformers.

Masks are boolean, as those of "sdpa", for classes that declare to support it, and additive, as those of "eager", for
all others: these add the mask to scores of their own. As under "eager", a causal mask is never left out in favour of
`is_causal`, and no mask means that every key is visible.
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

NAME = "regard"

REFUSED = {
    "indices": "sparse attention to chosen keys",
    "block_indices": "sparse attention to chosen blocks",
    "cache": "a paged cache of continuous batching",
    "head_mask": "weights that are multiplied after the softmax",
}
"""Arguments that change the weights in ways that `regard.attend` does not serve."""


class Meaning(NamedTuple):
    """What a mask of `mask` expresses, so that the kernels need not read it."""

    version: int
    """The version counter of the mask: a later one means that a model has changed it in place."""
    allowed: Tensor | None
    """The same as a boolean mask; None for a mask that is causal from the first query and key on."""


def mask(config: Any = None, allow_is_causal_skip: bool = True, **options: Any) -> Tensor | None:
    """A mask (B, 1, Tq, Tk) of the kind that models of `config` expect, with its `Meaning` attached.

    A model may do anything with it. Where it arrives in `attention` unchanged, its meaning is used in its place.
    """
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
            result._regard_meaning = Meaning(result._version, allowed)  # type: ignore[attr-defined]
            return result
        return allowed


@torch.compiler.assume_constant_result
def takes_boolean(config: type) -> bool:
    """Whether all model classes of a config support the boolean masks of "sdpa" and call the attention interface."""
    if config not in _boolean:
        classes, models = [PreTrainedModel], []
        for cls in classes:  # grows
            classes += cls.__subclasses__()
            models += [cls] if cls.config_class is config else []
        supported = (cls._supports_sdpa and cls._can_set_attn_implementation() for cls in models)
        _boolean[config] = bool(models) and all(supported)
    return _boolean[config]


_boolean: dict[type, bool] = {}


def _meaning(attention_mask: Tensor | None, queries: int, keys: int) -> Meaning | None:
    """The meaning of a mask of `mask` that the model has not changed."""
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
    **kwargs: Any,
) -> tuple[Tensor, AttentionMap | None]:
    """Attention as transformers calls it: query (B, H, Tq, D) → context (B, Tq, H, Dv) and its map (B, H, Tq, Tk).

    The mask alone says which keys are visible: `is_causal` and `sliding_window` are not used, as under "eager".
    """
    _check(module, kwargs)
    _note_call()
    queries, keys = query.shape[-2], key.shape[-2]
    meaning, causal = _meaning(attention_mask, queries, keys), False
    if meaning is not None:
        attention_mask = meaning.allowed
        causal = attention_mask is None and queries > 1
    if causal and keys > queries:  # the first step into a buffer that is still empty beyond the queries
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
    watched = not torch.compiler.is_compiling()  # a map is no tensor: compiled code has no use for it
    if s_aux is not None:
        context, found = attend_with_sink(query, key, value, s_aux, **options)
    elif watched:
        context, found = attend(query, key, value, **options, return_map=True)
    else:
        context, found = attend(query, key, value, **options), None
    return context.transpose(1, 2).contiguous(), found if watched else None


def _check(module: nn.Module, kwargs: dict[str, Any]) -> None:
    for name, words in REFUSED.items():
        if kwargs.get(name) is not None:
            raise ValueError(
                f"huggingface: {name} of {type(module).__name__} must be None under attn_implementation='regard': it "
                f"means {words}. Use model.set_attn_implementation('eager')."
            )


class _Seen(threading.local):
    """What happened in this thread since the innermost model that is being verified began its forward pass."""

    def __init__(self) -> None:
        self.mask = self.call = False
        self.outer: list[tuple[bool, bool]] = []
        """The same of the models around it, the outermost first."""


class _Process:
    compiled = False
    """Whether a call was compiled by torch.compile: such calls are no longer seen here."""


_seen, _process = _Seen(), _Process()
_handles: weakref.WeakKeyDictionary[nn.Module, tuple[RemovableHandle, ...]] = weakref.WeakKeyDictionary()


def verify(model: nn.Module) -> None:
    """Check in the next forward passes of `model` that its attention layers call `attention`.

    A pass that makes masks and ends without a call raises ValueError; a part of a larger model may do so, as long as
    another part calls. The first pass with a call ends the check of the model and its parts.
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
    elif mask and not _seen.outer and output is not None:  # None: the pass has failed already
        raise ValueError(
            f"huggingface: {type(model).__name__} must call the attention interface of transformers under "
            f"attn_implementation={NAME!r}; got masks, but no call: it computes its attention itself. Use "
            "model.set_attn_implementation('eager')."
        )


def _note_call() -> None:
    if not torch.compiler.is_compiling():
        _seen.call = True
    elif not torch.compiler.is_exporting():
        _process.compiled = True


def _check_class(cls: type[PreTrainedModel]) -> None:
    """Refuse to build a model of transformers with "regard" whose attention layers would not use it."""
    if not cls.__module__.startswith("transformers."):
        return  # the source of other classes is not judged: `verify` checks what they do
    reason = "" if cls._can_set_attn_implementation() else "it computes its attention itself"
    for table, classes in vars(sys.modules[cls.__module__]).items():
        if table.endswith("_ATTENTION_CLASSES") and NAME not in classes:
            reason = f"it has attention layers for {sorted(classes)} alone"
    if reason:
        raise ValueError(
            f"huggingface: {cls.__name__} must call the attention interface of transformers to be built with "
            f"attn_implementation={NAME!r}; got a class that does not: {reason}. Build it with "
            "attn_implementation='eager'."
        )


def _checked(method: Any) -> Any:
    """`PreTrainedModel.get_correct_attn_implementation`, which every model calls when "regard" is chosen for it."""

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
    """Make "regard" an attention implementation of transformers; once is enough, twice does no harm."""
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, mask)
    method = getattr(PreTrainedModel, "get_correct_attn_implementation", None)
    if method is not None and not hasattr(method, "__wrapped__"):
        PreTrainedModel.get_correct_attn_implementation = _checked(method)  # type: ignore[method-assign]


register()
