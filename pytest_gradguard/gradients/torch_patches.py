"""What stands in for torch's own names while something is watched, and reports to the log."""

from __future__ import annotations

import functools
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.utils._contextlib as _contextlib
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.overrides import TorchFunctionMode

from pytest_gradguard.gradients import torch_log
from pytest_gradguard.runtime import callsite
from pytest_gradguard.runtime.callsite import Site
from pytest_gradguard.runtime.faults import fault, without_this_frame
from pytest_gradguard.runtime.patching import Patch, Patches

_compiling = torch.compiler.is_compiling
_needs_grad = torch_log.needs_grad


def _watched_backward(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _engine_run_backward(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
        log = torch_log.log
        if log is None or _compiling():
            return original(t_outputs, *args, **kwargs)
        try:
            for listener in list(log.listeners):
                listener.before_backward()
        except Exception as error:
            fault(error)
        try:
            outcome = original(t_outputs, *args, **kwargs)
        except BaseException as error:
            log.backward_failed(error)
            without_this_frame(error)
            raise
        try:
            inputs = args[3] if len(args) > 3 else kwargs.get("inputs", ())
            accumulates = bool(kwargs.get("accumulate_grad", True))
            log.backward_ended(t_outputs, tuple(inputs or ()), accumulates, outcome)
        except Exception as error:
            fault(error)
        return outcome

    return _engine_run_backward


# -- ways out of the graph ---------------------------------------------------------------------


def _reading(how: str) -> Callable[[Any], Any]:
    """A tensor's method that takes its value out of the graph."""

    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            log = torch_log.log
            if log is not None and not _compiling():
                try:
                    if _needs_grad(self):
                        log.cut(how, (self,), result, torch_log.caller())
                    elif id(self) in log.made:
                        log.went_on(self, how, torch_log.caller())
                except Exception as error:
                    fault(error)
            return result

        return method

    return wrap


def _detaching_in_place(original: Any) -> Any:
    @functools.wraps(original)
    def detach_(self: Any) -> Any:
        log = torch_log.log
        if log is not None and not _compiling():
            try:
                if _needs_grad(self):
                    log.cut(".detach_()", (self,), self, torch_log.caller())
            except Exception as error:
                fault(error)
        return original(self)

    return detach_


def _converting(how: str) -> Callable[[Any], Any]:
    """A conversion; it cuts the graph where the new dtype is an integer one."""

    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            log = torch_log.log
            if log is not None and not _compiling():
                try:
                    if (
                        isinstance(result, torch.Tensor)
                        and not _needs_grad(result)
                        and _needs_grad(self)
                        and torch.is_grad_enabled()
                    ):
                        dtype = str(result.dtype).removeprefix("torch.")
                        shown = how if how != ".to()" else f".to(torch.{dtype})"
                        log.cut(shown, (self,), result, torch_log.caller())
                except Exception as error:
                    fault(error)
            return result

        return method

    return wrap


def _constructing(how: str) -> Callable[[Any], Any]:
    """A function that makes a new tensor of the values of others."""

    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def function(*args: Any, **kwargs: Any) -> Any:
            if torch_log.log is None or _compiling():
                return original(*args, **kwargs)
            result = original(*args, **kwargs)
            try:
                data = args[0] if args else kwargs.get("data", kwargs.get("obj"))
                if type(data) in _CONTAINERS or isinstance(data, torch.Tensor):
                    sources = _sources(data)
                    if sources and not _continues(result):
                        torch_log.log.cut(how, sources, result, torch_log.caller())
            except Exception as error:
                fault(error)
            return result

        return function

    return wrap


def _continues(result: Any) -> bool:
    return isinstance(result, torch.Tensor) and result.grad_fn is not None


def _renewing(original: Any) -> Any:
    @functools.wraps(original)
    def new_tensor(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        log = torch_log.log
        if log is not None and not _compiling():
            try:
                data = args[0] if args else kwargs.get("data")
                sources = _sources(data)
                if sources:
                    log.cut(".new_tensor()", sources, result, torch_log.caller())
            except Exception as error:
                fault(error)
        return result

    return new_tensor


_CONTAINERS = (list, tuple)
_LOOKED_AT = 10_000


def _sources(data: Any, depth: int = 3) -> list[Any]:
    """The tensors in `data` that require grad."""
    if isinstance(data, torch.Tensor):
        return [data] if _needs_grad(data) else []
    if type(data) in _CONTAINERS and depth:
        return [found for item in data[:_LOOKED_AT] for found in _sources(item, depth - 1)]
    return []


def _data_property(original: Any) -> property:
    def get(self: Any) -> Any:
        result = original.__get__(self)
        log = torch_log.log
        if log is not None and not _compiling():
            try:
                if _needs_grad(self):
                    log.cut(".data", (self,), result, torch_log.caller())
            except Exception as error:
                fault(error)
        return result

    return property(get, original.__set__, getattr(original, "__delete__", None))


# -- gradients switched off --------------------------------------------------------------------


class _Blind(TorchFunctionMode):  # type: ignore[misc]
    """Notes what is computed from tensors that require grad while gradients are switched off."""

    def __init__(self, mode: str, entered: Site | None) -> None:
        super().__init__()
        self.mode = mode
        self.entered = entered

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _compiling():  # what follows is nothing for a compiler to trace
            return func(*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        self._note(func, args, kwargs or {}, result, sys._getframe(1))
        return result

    def _note(self, func: Any, args: Any, kwargs: Any, result: Any, frame: Any) -> None:
        log = torch_log.log
        if log is None or torch.is_grad_enabled():
            return
        try:
            name = getattr(func, "__name__", "")
            if name != "__get__" and _made_without_graph(result):
                writes = name.endswith("_") and (not name.endswith("__") or name.startswith("__i"))
                read = args[1:] if writes else args
                sources = [*_sources(read), *_sources(list(kwargs.values()))]
                if sources:
                    made = result if isinstance(result, torch.Tensor) else result[0]
                    log.blind_use(sources, made, self.mode, self.entered, frame)
        except Exception as error:
            fault(error)


def _made_without_graph(result: Any) -> bool:
    if isinstance(result, (tuple, list)) and result:
        result = result[0]
    return (
        isinstance(result, torch.Tensor)
        and (result.is_floating_point() or result.is_complex())
        and not _needs_grad(result)
    )


class _Blinds(threading.local):
    def __init__(self) -> None:
        self.open: list[_Blind] = []


_blinds = _Blinds()


def _follow_grad_mode(mode: str) -> None:
    """Begin or end looking at what is computed without gradients, as the mode now says."""
    log = torch_log.log
    on = torch.is_grad_enabled()
    if on or log is None:
        _close_blind()
        return
    if _blinds.open or _compiling():
        return
    entered = _entered_at(sys._getframe(2))
    if entered is not None:
        blind = _Blind(mode, entered)
        blind.__enter__()
        _blinds.open.append(blind)


def _close_blind() -> None:
    if not _blinds.open:
        return
    blind = _blinds.open[-1]
    if torch._C._get_function_stack_at(torch._C._len_torch_function_stack() - 1) is blind:
        _blinds.open.pop()
        blind.__exit__(None, None, None)


def _entered_at(frame: Any) -> Site | None:
    """The user's place that switched gradients off; None where torch itself did."""
    if frame.f_code.co_filename == _contextlib.__file__:
        function = getattr(frame.f_locals.get("func"), "__code__", None)
        if function is None or function.co_filename.startswith(torch_log._TORCH):
            return None
        return Site(
            path=function.co_filename,
            line=function.co_firstlineno,
            function=getattr(function, "co_qualname", function.co_name),
            code=function,
            instruction=-2,
        )
    if torch_log._inside_torch(frame):
        return None
    return callsite.user_site()


_GRAD_MODE = torch.autograd.grad_mode.__file__


def _switching(mode: str) -> Callable[[Any], Any]:
    """An enter, exit or constructor that changes the grad mode."""

    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            # torch's own contexts call each other: the outermost of them knows its name.
            if not _compiling() and sys._getframe(1).f_code.co_filename != _GRAD_MODE:
                try:
                    _follow_grad_mode(mode)
                except Exception as error:
                    fault(error)
            return result

        return method

    return wrap


# -- changes -----------------------------------------------------------------------------------


def _freezing(how: str) -> Callable[[Any], Any]:
    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def requires_grad_(self: Any, requires_grad: bool = True) -> Any:
            result = original(self, requires_grad)
            if torch_log.log is not None and not requires_grad and not _compiling():
                try:
                    frozen = [self] if isinstance(self, torch.Tensor) else list(self.parameters())
                    torch_log.log.changed(how, frozen, torch_log.caller())
                except Exception as error:
                    fault(error)
            return result

        return requires_grad_

    return wrap


def _clearing(how: str) -> Callable[[Any], Any]:
    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def zero_grad(self: Any, *args: Any, **kwargs: Any) -> Any:
            log = torch_log.log
            if log is not None and not _compiling():
                try:
                    log.changed(how, _parameters(self), torch_log.caller())
                except Exception as error:
                    fault(error)
            return original(self, *args, **kwargs)

        return zero_grad

    return wrap


def _parameters(owner: Any) -> list[Any]:
    if isinstance(owner, torch.nn.Module):
        return list(owner.parameters())
    return [parameter for group in owner.param_groups for parameter in group["params"]]


def _loading(original: Any) -> Any:
    @functools.wraps(original)
    def load_state_dict(self: Any, *args: Any, **kwargs: Any) -> Any:
        log = torch_log.log
        before = list(self.parameters()) if log is not None else []
        result = original(self, *args, **kwargs)
        if log is not None:
            try:
                kept = {id(parameter) for parameter in self.parameters()}
                replaced = [parameter for parameter in before if id(parameter) not in kept]
                if replaced:
                    how = "load_state_dict(assign=True)"
                    log.changed(how, replaced, torch_log.caller())
            except Exception as error:
                fault(error)
        return result

    return load_state_dict


def _stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
    log = torch_log.log
    if log is not None:
        try:
            log.stepped(optimizer, sys._getframe(1))
        except Exception as error:
            fault(error)


_TENSOR = torch.Tensor
_patches = Patches(
    [
        Patch(torch.autograd, "_engine_run_backward", _watched_backward),
        Patch(_TENSOR, "detach", _reading(".detach()")),
        Patch(_TENSOR, "detach_", _detaching_in_place),
        Patch(_TENSOR, "data", _data_property, inherited=True),
        *(
            Patch(_TENSOR, name, _reading(how), inherited=True)
            for name, how in (
                ("item", ".item()"),
                ("numpy", ".numpy()"),
                ("tolist", ".tolist()"),
                ("__float__", "float()"),
                ("__int__", "int()"),
                ("__array__", "numpy.asarray()"),
            )
        ),
        *(
            Patch(_TENSOR, name, _converting(f".{name}()"), inherited=True)
            for name in ("to", "type", "long", "int", "short", "char", "byte", "bool")
        ),
        Patch(_TENSOR, "new_tensor", _renewing, inherited=True),
        Patch(torch, "tensor", _constructing("torch.tensor()")),
        Patch(torch, "as_tensor", _constructing("torch.as_tensor()")),
        *(
            Patch(kind, name, _switching(f"torch.{kind.__name__}"))
            for kind, names in (
                (torch.no_grad, ("__enter__", "__exit__")),
                (torch.inference_mode, ("__enter__", "__exit__")),
                (torch.enable_grad, ("__enter__", "__exit__")),
                (torch.set_grad_enabled, ("__init__", "__enter__", "__exit__")),
            )
            for name in names
        ),
        Patch(_TENSOR, "requires_grad_", _freezing("requires_grad_(False)"), inherited=True),
        Patch(torch.nn.Module, "requires_grad_", _freezing("requires_grad_(False)")),
        Patch(torch.nn.Module, "zero_grad", _clearing("zero_grad()")),
        Patch(torch.optim.Optimizer, "zero_grad", _clearing("zero_grad()")),
        Patch(torch.nn.Module, "load_state_dict", _loading),
    ]
)
_SCRIPTED = (("tensor", "aten::tensor"), ("as_tensor", "aten::as_tensor"))


def _teach_script() -> None:
    """Tell TorchScript, which knows torch's functions by identity, what the wrappers stand for."""
    table = torch.jit._builtins._get_builtin_table()
    for name, operator in _SCRIPTED:
        table[id(getattr(torch, name))] = operator


def _forget_script() -> None:
    table = torch.jit._builtins._get_builtin_table()
    for name, _ in _SCRIPTED:
        if isinstance(getattr(torch, name), types.FunctionType):
            table.pop(id(getattr(torch, name)), None)


_step_hook: Any = None
_users = 0
_lock = threading.RLock()


def start(listener: torch_log.Listener) -> torch_log.Log:
    """Begin to note what happens, for `listener`; the log is shared by all that listen."""
    global _step_hook, _users
    with _lock:
        _users += 1
        log = torch_log.log
        if log is None:
            log = torch_log.log = torch_log.Log()
            torch.jit._builtins._get_builtin_table()  # made once, of what stands there: the originals
            _patches.apply()
            _teach_script()
            _step_hook = register_optimizer_step_post_hook(_stepped)
        log.listeners.append(listener)
        return log


def stop(listener: torch_log.Listener) -> None:
    """Undo one `start`; the last one leaves every name as it was."""
    global _step_hook, _users
    with _lock:
        log = torch_log.log
        if log is None or listener not in log.listeners:
            return
        log.listeners.remove(listener)
        if not log.listeners:
            torch_log.log = None
            _step_hook.remove()
            _forget_script()
            _patches.undo()
            _close_blind()
