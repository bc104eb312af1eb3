"""Adds a note to DTensor's error about mixed tensors if FSDP has not gathered its parameters.

`fully_shard` gathers the parameters of a module for its forward pass and for registered methods.
Any other method sees shards.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from pytest_gradguard.runtime.kernel import error_notes, watching
from pytest_gradguard.runtime.kernel.faults import attempt, without_this_frame
from pytest_gradguard.runtime.kernel.patching import Patch, Patches
from pytest_gradguard.runtime.kernel.state import dropped_at_end

_MODULE = "torch.distributed.fsdp._fully_shard._fully_shard"
_MIXED = "mixed torch.Tensor and DTensor"
_compiling = torch.compiler.is_compiling


def _methods(kind: type) -> Iterator[str]:
    """The program's own methods of a class that `fully_shard` made."""
    for base in kind.__mro__[2:]:
        if base is torch.nn.Module:
            break
        for name, value in vars(base).items():
            ours = isinstance(value, types.FunctionType) and not name.startswith("__")
            if ours and name not in vars(torch.nn.Module) and name != "forward":
                yield name


def _watched(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if _compiling():
            return original(self, *args, **kwargs)
        try:
            return original(self, *args, **kwargs)
        except BaseException as error:
            if _MIXED in str(error) and not _is_within(sys._getframe(1), self):
                attempt(_explain, error, self, original.__name__)
            without_this_frame(error)
            raise

    return method


def _is_within(frame: types.FrameType | None, module: Any) -> bool:
    """Whether another method of `module` is running."""
    while frame is not None:
        if frame.f_code is _CODE and frame.f_locals.get("self") is module:
            return True
        frame = frame.f_back
    return False


_CODE = _watched(_methods).__code__


def _explain(error: BaseException, module: Any, method: str) -> None:
    if not _is_sharded(module):
        return
    name = type(module).__mro__[2].__name__  # below the class that `fully_shard` inserted
    text = (
        f"`{method}` runs outside of the forward pass of `{name}`, and only that gathers the "
        "parameters that `fully_shard` has split. Once the model is sharded, call "
        f'`torch.distributed.fsdp.register_fsdp_forward_method(model, "{method}")`.'
    )
    error_notes.add(error, text)


def _is_sharded(module: Any) -> bool:
    """Whether parameters that `module` itself would gather are shards now."""
    kind = sys.modules[_MODULE].FSDPModule
    own = any(hasattr(one, "placements") for one in module._parameters.values())
    return own or any(
        _is_sharded(child) for child in module.children() if not isinstance(child, kind)
    )


_patches: dict[type, Patches] = dropped_at_end({})


def _watch(kind: type) -> None:
    if kind not in _patches:
        names = dict.fromkeys(_methods(kind))
        _patches[kind] = Patches([Patch(kind, one, _watched, inherited=True) for one in names])
    _patches[kind].apply()


def _is_made(kind: Any, /, **kwargs: Any) -> None:
    super(sys.modules[_MODULE].FSDPModule, kind).__init_subclass__(**kwargs)
    attempt(_watch, kind)


def apply() -> None:
    """Watch the methods of modules that `fully_shard` has split, or will split."""
    kind = getattr(sys.modules.get(_MODULE), "FSDPModule", None)
    if kind is not None and "__init_subclass__" not in vars(kind):
        kind.__init_subclass__ = classmethod(_is_made)
        for one in kind.__subclasses__():
            _watch(one)


def _undo() -> None:
    kind = getattr(sys.modules.get(_MODULE), "FSDPModule", None)
    hook = getattr(vars(kind or object).get("__init_subclass__"), "__func__", None)
    if hook is _is_made:
        del kind.__init_subclass__


watching.at_end(_undo)
