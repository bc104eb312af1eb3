"""PyTorch: modes of a thread, and what another thread does without them.

Graphs are counted by autograd's own counter of nodes (one for each thread), so nothing is observed
while the tasks run. Autocast and default devices require a function mode that observes every call
of torch; it is used only if such a mode of the caller is missing.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext, _device_constructors

from pytest_gradguard.runtime.kernel.faults import attempt, fault, without_this_frame
from pytest_gradguard.runtime.kernel.observing import observe
from pytest_gradguard.runtime.kernel.patching import Patch, Patches, on_class

_DEVICES = ("cpu", "cuda")
_nodes: Callable[[], int] = torch._C._autograd._get_sequence_nr
_compiling = torch.compiler.is_compiling
_Autocast = torch.amp.autocast_mode.autocast
_GRAD_MODE = torch.autograd.grad_mode.__file__
_Function = torch.autograd.Function
_AUTOGRAD = frozenset(
    (
        (sys.modules["torch.autograd.function"].__file__, "apply"),
        (sys.modules["torch.autograd.graph"].__file__, "_engine_run_backward"),
    )
)
"""Code that runs the program's own functions and hooks with gradients off, as bookkeeping."""
_RUN_BY_APPLY = ("forward", "setup_context")

_LOWERED = frozenset(
    (
        *("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "addbmm", "__matmul__"),
        *("__rmatmul__", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d"),
        *("conv_transpose3d", "scaled_dot_product_attention"),
    )
)
"""Functions of torch that autocast lowers on every device."""


class Modes(NamedTuple):
    """The modes of a calling thread, in plain values.

    Attributes:
        gradients_off: the mode that switched gradients off, or None.
        autocast: the device types that compute in lower precision.
        device: the default device, if set.
    """

    gradients_off: str | None
    autocast: tuple[str, ...]
    device: str | None


def in_force() -> Modes | None:
    """The modes of this thread that are not the default, or None."""
    off = None
    if not torch.is_grad_enabled() and not within_autograd():
        off = "`inference_mode`" if torch.is_inference_mode_enabled() else "`no_grad`"
    autocast = tuple(device for device in _DEVICES if torch.is_autocast_enabled(device))
    device = _default_device()
    if off is None and not autocast and device is None:
        return None
    return Modes(off, autocast, device)


def within_autograd() -> bool:
    """Whether autograd runs the program's code; gradients are then off by its own doing.

    From torch 2.15 on `Function.apply` is written in C and has no frame: the program's own
    `forward` is the first frame.
    """
    forwards = _forwards()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if (code.co_filename, code.co_name) in _AUTOGRAD or code in forwards:
            return True
        frame = frame.f_back
    return False


def _forwards() -> set[Any]:
    """The code of the program's own functions that `Function.apply` runs."""
    codes = set()
    kinds = _Function.__subclasses__()
    for kind in kinds:  # the list grows during the loop
        kinds += kind.__subclasses__()
        for name in _RUN_BY_APPLY:
            codes.add(getattr(getattr(kind, name), "__code__", None))
    return codes


def _default_device() -> str | None:
    for index in reversed(range(torch._C._len_torch_function_stack())):
        mode = torch._C._get_function_stack_at(index)
        if isinstance(mode, DeviceContext):
            return str(mode.device)
    return None


def watch(asked: Modes) -> Watch | None:
    """Watch what this thread does without the modes `asked`; None if it has them all."""
    own = in_force() or Modes(None, (), None)
    missing = Modes(
        None if own.gradients_off else asked.gradients_off,
        tuple(device for device in asked.autocast if device not in own.autocast),
        None if own.device == asked.device else asked.device,
    )
    return Watch(missing) if any(missing) else None


class _Thread(threading.local):
    watch: Watch | None = None


_thread = _Thread()


class Watch:
    """Watches what a thread does, from now to `end`."""

    def __init__(self, missing: Modes) -> None:
        self._missing = missing
        self.full_precision = ""
        self.other_device = ""
        self.own_autocasts = 0
        self._own: list[object] = []
        self._made = 0
        self._mode: _Look | None = None
        switches.apply()
        self._outer, _thread.watch = _thread.watch, self
        if missing.autocast or missing.device:
            self._mode = _Look(self, missing.autocast, missing.device)
            self._mode.__enter__()
        self._since = _nodes()

    def end(self) -> list[tuple[str, str]]:
        """Return what was done without a mode: pairs of the mode and the action."""
        self._count()
        if self._mode is not None:
            self._mode.__exit__(None, None, None)
        _thread.watch = self._outer
        done = []
        if self._missing.gradients_off and self._made:
            done.append((self._missing.gradients_off, "built graphs anyway"))
        if self.full_precision:
            done.append(("`autocast`", f"computed `{self.full_precision}` in full precision"))
        if self.other_device:
            made = f"made a tensor on {self.other_device}"
            done.append((f"the default device `{self._missing.device}`", made))
        return done

    def entered(self, switch: object) -> None:
        """Stop counting: the tasks have chosen the gradient mode themselves."""
        self._count()
        self._own.append(switch)

    def left(self) -> None:
        """A mode that the tasks had set has ended."""
        self._count()
        if self._own:
            self._own.pop()

    def forget(self, nodes: int) -> None:
        """Exclude `nodes` that were just created from the count."""
        self._since += nodes

    def _count(self) -> None:
        nodes = _nodes()
        if not self._own:
            self._made += max(0, nodes - self._since)
        self._since = nodes


class _Look(TorchFunctionMode):  # type: ignore[misc]
    def __init__(self, watch: Watch, autocast: tuple[str, ...], device: str | None) -> None:
        super().__init__()
        self._watch = watch
        self._autocast = autocast
        self._device = None if device is None else torch.device(device)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not _compiling():
            try:
                self._note(func, args, kwargs or {}, result)
            except Exception as error:
                fault(error)
        return result

    def _note(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        watch = self._watch
        if type(result) is not torch.Tensor and not isinstance(result, torch.nn.Parameter):
            return
        if self._autocast and not watch.full_precision and not watch.own_autocasts:
            name = getattr(func, "__name__", "")
            if name in _LOWERED and result.dtype is torch.float32:
                kind = result.device.type
                given = [*args, *kwargs.values()]
                full = [one for one in given if isinstance(one, torch.Tensor)]
                if kind in self._autocast and all(one.dtype is torch.float32 for one in full):
                    watch.full_precision = name.strip("_")
        device = self._device
        if device is not None and not watch.other_device and func in _device_constructors():
            same = result.device.type == device.type and device.index in (None, result.device.index)
            if kwargs.get("device") is None and not same and _default_device() is None:
                watch.other_device = str(result.device)


# -- the tasks' own modes --------------------------------------------------------------------------


def _switching(original: Callable[[bool], None]) -> Callable[[bool], None]:
    """Report to this thread's watch when tasks set the gradient mode, and when that ends."""

    @functools.wraps(original)
    def _set_grad_enabled(*args: Any, **kwargs: Any) -> None:
        watch = _thread.watch
        if watch is not None and not _compiling():
            try:
                frame = sys._getframe(1)
                by, outer = frame.f_code, frame.f_back
                if by.co_name == "__init__" and outer and outer.f_code.co_filename == _GRAD_MODE:
                    by = outer.f_code  # no_grad switches through set_grad_enabled
                again = isinstance(frame.f_locals.get("self"), torch.set_grad_enabled)
                if by.co_filename == _GRAD_MODE and by.co_name in ("__exit__", "__call__"):
                    watch.left()
                elif not (again and by.co_name == "__enter__" and frame.f_code is by):
                    watch.entered(by)
            except Exception as error:
                fault(error)
        original(*args, **kwargs)

    return _set_grad_enabled


def _enters(mode: Any) -> None:
    watch = _thread.watch
    if watch is not None and not _compiling():
        watch.entered(mode)


def _has_left(*_: Any) -> None:
    watch = _thread.watch
    if watch is not None and not _compiling():
        watch.left()


def _entering_autocast(original: Any) -> Any:  # written out: each forward pass may come by here
    @functools.wraps(original)
    def __enter__(self: Any) -> Any:
        if _thread.watch is not None:
            _thread.watch.own_autocasts += 1
        return original(self)

    return __enter__


def _leaving_autocast(original: Any) -> Any:
    @functools.wraps(original)
    def __exit__(self: Any, *error: Any) -> Any:
        result = original(self, *error)
        if _thread.watch is not None:
            _thread.watch.own_autocasts -= 1
        return result

    return __exit__


def _applying(original: Any) -> Any:
    """Exclude the node that a custom function always creates, if no output requires grad."""

    @functools.wraps(on_class(original, _Function))
    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        watch = _thread.watch
        if watch is None or _compiling():
            return on_class(original, cls)(*args, **kwargs)
        before = attempt(_nodes)
        try:
            results = on_class(original, cls)(*args, **kwargs)
        except BaseException as error:
            without_this_frame(error)
            raise
        outputs = results if isinstance(results, tuple) else (results,)
        if not any(isinstance(one, torch.Tensor) and one.requires_grad for one in outputs):
            attempt(lambda: watch.forget(_nodes() - before))
        return results

    return classmethod(apply)


switches = Patches(
    [
        Patch(torch._C, "_set_grad_enabled", _switching),
        observe(torch.autograd.grad_mode.inference_mode, "__enter__", before=_enters),
        observe(torch.autograd.grad_mode.inference_mode, "__exit__", after=_has_left),
        Patch(_Autocast, "__enter__", _entering_autocast),
        Patch(_Autocast, "__exit__", _leaving_autocast),
        Patch(_Function, "apply", _applying),
    ]
)
