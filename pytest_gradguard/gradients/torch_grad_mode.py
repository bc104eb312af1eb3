"""Records computations while gradients are disabled, and where they were disabled.

Inside the `no_grad` or `inference_mode` of the program, a function mode observes every call of
torch; outside of them there is none.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils._contextlib as _contextlib
import torch.utils.checkpoint
from torch.overrides import TorchFunctionMode

from pytest_gradguard.gradients import torch_log
from pytest_gradguard.gradients.torch_exits import (
    CHECKPOINT,
    TORCH,
    Exit,
    entered_by,
    inside_torch,
)
from pytest_gradguard.gradients.torch_log import recorder
from pytest_gradguard.runtime.kernel import callsite
from pytest_gradguard.runtime.kernel.callsite import Site
from pytest_gradguard.runtime.kernel.faults import fault, without_this_frame

_compiling = torch.compiler.is_compiling


class _Blind(TorchFunctionMode):  # type: ignore[misc]
    """Records results computed from tensors that require grad."""

    def __init__(self, mode: str | Exit, entered: Site | None) -> None:
        super().__init__()
        self.mode = mode
        self.entered = entered

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            result = func(*args, **(kwargs or {}))
        except BaseException as error:
            without_this_frame(error)
            raise
        if _compiling():  # a compiler must not trace the following code
            return result
        self._note(func, args, kwargs or {}, result, sys._getframe(1))
        return result

    def _note(self, func: Any, args: Any, kwargs: Any, result: Any, frame: Any) -> None:
        log = recorder.log
        if log is None or torch.is_grad_enabled():
            return
        try:
            name = getattr(func, "__name__", "")
            writes = name == "__setitem__" or (
                name.endswith("_") and (not name.endswith("__") or name.startswith("__i"))
            )
            if name != "__get__" and (writes or _made_without_graph(result)):
                read = [*args, *kwargs.values()]
                target = read.pop(0) if writes and read else None
                sources = torch_log.sources(read)
                if sources:
                    made = target if writes else result
                    log.blind_use(sources, made, self.mode, self.entered, frame)
                if isinstance(target, torch.Tensor):
                    log.written(target, read, frame)
        except Exception as error:
            fault(error)


def _made_without_graph(result: Any) -> bool:
    if isinstance(result, (tuple, list)) and result:
        result = result[0]
    return (
        isinstance(result, torch.Tensor)
        and (result.is_floating_point() or result.is_complex())
        and (not torch_log.needs_grad(result) or result._is_view())
    )


class _Blinds(threading.local):
    def __init__(self) -> None:
        self.open: list[_Blind] = []


_blinds = _Blinds()


def _follow_grad_mode(mode: str) -> None:
    """Start or stop the function mode, as the current grad mode requires."""
    log = recorder.log
    on = torch.is_grad_enabled()
    if on or log is None:
        close()
        return
    if _blinds.open or _compiling():
        return
    entered, called = _entered_at(sys._getframe(2))
    if entered is not None:
        blind = _Blind(called or mode, entered)
        blind.__enter__()
        _blinds.open.append(blind)


def close() -> None:
    """Stop this thread's function mode, unless another one is on top of it."""
    depth = torch._C._len_torch_function_stack()
    if not _blinds.open or not depth:
        return
    blind = _blinds.open[-1]
    if torch._C._get_function_stack_at(depth - 1) is blind:
        _blinds.open.pop()
        blind.__exit__(None, None, None)


@contextlib.contextmanager
def followed(function: type) -> Iterator[None]:
    """Record the tensors that a custom `Function`'s forward pass reads besides its arguments."""
    way = Exit(f"{function.__name__}.forward()", "Pass [it|them] to `apply`.")
    blind = _Blind(way, None)
    blind.__enter__()
    _blinds.open.append(blind)
    try:
        yield
    finally:
        if blind in _blinds.open:
            close()


def _entered_at(frame: Any) -> tuple[Site | None, Exit | None]:
    """The call site that disabled gradients, and the function of torch that it called.

    The site is None if torch did it internally.
    """
    if frame.f_code.co_filename == _contextlib.__file__:
        function = getattr(frame.f_locals.get("func"), "__code__", None)
        if function is None or function.co_filename.startswith(TORCH):
            return None, None
        decorated = Site(
            path=function.co_filename,
            line=function.co_firstlineno,
            function=getattr(function, "co_qualname", function.co_name),
            code=function,
            instruction=-2,
        )
        return decorated, None
    if not inside_torch(frame):
        return callsite.user_site(), None
    if frame.f_code is _CHECKPOINT.__code__:
        arguments = dict(callsite.local_names(frame)).get("args", ())
        called = None if torch_log.sources(list(arguments)) else CHECKPOINT
    else:
        called = entered_by(frame)[1]
    return (None if called is None else callsite.user_site()), called


_CHECKPOINT = torch.utils.checkpoint.CheckpointFunction.forward
_GRAD_MODE = torch.autograd.grad_mode.__file__


def switching(mode: str) -> Callable[[Any], Any]:
    """Wrap an enter, exit or constructor that changes the grad mode."""

    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                result = original(self, *args, **kwargs)
            except BaseException as error:
                without_this_frame(error)
                raise
            # torch's own contexts call each other: the outermost one has the name.
            if not _compiling() and sys._getframe(1).f_code.co_filename != _GRAD_MODE:
                try:
                    _follow_grad_mode(mode)
                except Exception as error:
                    fault(error)
            return result

        return method

    return wrap
