"""The modules of a watched model: their names, and which of them is running."""

from __future__ import annotations

import sys
import weakref
from types import FrameType

import torch
from torch import nn

_CALL = nn.Module._call_impl.__code__


class OwnershipError(Exception):
    """It is unclear whether an attention call belongs to the model."""


class WatchedModules:
    """The modules of a model by name. Modules that are registered while the model is watched are found, too."""

    def __init__(self, model: nn.Module) -> None:
        self._names = _names(model)
        self._root = weakref.ref(model)
        self._foreign: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    def caller(self, frame: FrameType | None) -> tuple[str, nn.Module | None]:
        """Return the name and the innermost module of the model on the stack: the first argument of some function.

        The module is None for a call outside the model, such as one in the forward pass of another model, even if a
        method of this model such as `generate` called it. Raises OwnershipError if modules of this model and of others
        are nested in a way that does not show where the call belongs.
        """
        name, module, foreign = "", None, None
        while frame is not None:
            code = frame.f_code
            first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
            if isinstance(first, nn.Module):
                known, runs = self.name(first), code is _CALL or code.co_name == "forward"
                if known is None:
                    foreign = foreign or (first if runs else None)
                elif foreign is None:
                    if module is None:
                        name, module = known, first
                    if not known:
                        break  # the model itself
                elif runs:  # another module, but inside the forward pass of this model
                    if module is None:
                        raise OwnershipError(
                            f"{known or type(first).__name__}: it calls a {type(foreign).__name__}, which attends and "
                            "is not a submodule of the model; register it as an attribute or in an nn.ModuleList"
                        )
                    return name, module
            frame = frame.f_back
        if module is not None and foreign is not None and frame is None:
            raise OwnershipError(
                f"{name}: it was called by a {type(foreign).__name__}, outside the model; watch that module instead"
            )
        return name, module

    def parent(self, name: str) -> tuple[str, nn.Module | None]:
        """Return the name of the module that contains the module `name`, and that module."""
        root, name = self._root(), name.rpartition(".")[0]
        return name, None if root is None else root.get_submodule(name)

    def name(self, module: nn.Module) -> str | None:
        """Return the name of a module in the model, or None for a module outside it."""
        if module not in self._names and module not in self._foreign:
            root = self._root()
            if root is not None:
                self._names.update(_names(root))  # it may have been registered since the block was entered
            if module not in self._names:
                self._foreign.add(module)
        return self._names.get(module)


def _names(model: nn.Module) -> weakref.WeakKeyDictionary[nn.Module, str]:
    """Return the names of a model's modules. Raise ValueError for a module that cannot be recorded."""
    names: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
    for name, module in model.named_modules():
        if why := _unsupported_reason(module):
            raise ValueError(f"watch: {name or 'the model'} ({type(module).__name__}) must run in {why}")
        names[module] = name if "_orig_mod" not in name else _original_name(name)
    return names


def _original_name(name: str) -> str:
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


def _unsupported_reason(module: nn.Module) -> str:
    """Return the reason why a module cannot be recorded, or an empty string."""
    if (type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None) and not _forced_eager():
        return (
            "Python; it is compiled, and calls in compiled code cannot be intercepted. Watch the original "
            "model (model._orig_mod), or run inside torch.compiler.set_stance('force_eager')."
        )
    if isinstance(module, torch.jit.ScriptModule):
        return "Python; it is scripted. Watch the original module."
    if isinstance(module, nn.DataParallel) and len(module.device_ids or ()) > 1:
        return "this thread; it runs copies in others. Watch model.module."
    return ""


def _forced_eager() -> bool:
    frames = sys.modules.get("torch._dynamo.eval_frame")
    return frames is not None and frames._stance.stance == "force_eager"
