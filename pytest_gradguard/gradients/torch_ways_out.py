"""Ways out of the graph: what stands in for them while something is watched."""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from pytest_gradguard.gradients import torch_grad_mode, torch_log
from pytest_gradguard.gradients.torch_exits import COPY, PICKLE, Exit, Operation, entered_by
from pytest_gradguard.runtime.faults import Beside, fault
from pytest_gradguard.runtime.patching import on_class

_compiling = torch.compiler.is_compiling
_grad_enabled = torch.is_grad_enabled
_needs_grad = torch_log.needs_grad
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def reading(way: Exit) -> Callable[[Any], Any]:
    """A tensor's method that takes its value out of the graph."""

    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            log = torch_log.log
            if log is not None and not _compiling():
                try:
                    if _needs_grad(self):
                        log.cut(way, (self,), result, torch_log.caller())
                    elif id(self) in log.made:
                        log.went_on(self, way.how, torch_log.caller())
                except Exception as error:
                    fault(error)
            return result

        return method

    return wrap


def pickling(original: Any) -> Any:
    """What pickle asks of a tensor, and `copy.copy`."""

    @functools.wraps(original)
    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        result = original(self, protocol)
        log = torch_log.log
        if log is not None and not _compiling():
            try:
                if _needs_grad(self):
                    frame = torch_log.caller()
                    copied = frame.f_code.co_filename == copy.__file__
                    log.cut(COPY if copied else PICKLE, (self,), result, frame)
            except Exception as error:
                fault(error)
        return result

    return __reduce_ex__


def operating(operation: Operation) -> Callable[[Any], Any]:
    """An operation that has no derivative, or one that is zero everywhere."""
    way, flat = operation.exit, operation.flat

    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def function(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if torch_log.log is None or _compiling() or not _grad_enabled():
                return result
            for one in args:  # quick, as it runs at each comparison of the program
                if type(one) in _PLAIN and not one.requires_grad:
                    continue
                if not isinstance(one, (int, float, str)):
                    break
            else:
                if not kwargs:
                    return result
            try:
                if flat or _leaves_the_graph(result):
                    sources = torch_log.sources([*args, *kwargs.values()])
                    if sources:
                        torch_log.log.cut(way, sources, result, torch_log.caller(), flat=flat)
            except Exception as error:
                fault(error)
            return result

        # What is pickled by its name is found by it in a worker too.
        owner, name = operation.owner, operation.name
        of_class = isinstance(owner, type)
        function.__module__ = owner.__module__ if of_class else owner.__name__
        function.__qualname__ = f"{owner.__qualname__}.{name}" if of_class else name
        return function

    return wrap


def _leaves_the_graph(result: Any) -> bool:
    if isinstance(result, tuple):
        return any(isinstance(one, torch.Tensor) and not _needs_grad(one) for one in result)
    return not (isinstance(result, torch.Tensor) and _needs_grad(result))


def applying(original: Any) -> Any:
    """`Function.apply`, whose outputs may be marked as not differentiable."""

    @functools.wraps(original)
    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        log = torch_log.log
        if log is None or _compiling():
            return original.__get__(None, cls)(*args, **kwargs)
        if cls in log.functions or cls.__module__.startswith("torch."):
            result = original.__get__(None, cls)(*args, **kwargs)
        else:
            log.functions.add(cls)
            with Beside(torch_grad_mode.followed, cls):
                result = original.__get__(None, cls)(*args, **kwargs)
        if torch_log.log is log:
            try:
                if torch.is_grad_enabled() and _leaves_the_graph(result):
                    sources = torch_log.sources(list(args))
                    if sources:
                        frame, _ = entered_by(torch_log.caller())
                        log.cut(Exit(f"{cls.__name__}.apply()"), sources, result, frame)
            except Exception as error:
                fault(error)
        return result

    return classmethod(apply)


def writing(original: Any) -> Any:
    """An operation in place: into what `.data` gave, it writes without a graph."""
    how = f".data.{original.__name__}()"

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        log = torch_log.log
        if log is not None and id(self) in log.made and not _compiling():
            try:
                made = log.made[id(self)]
                if made.produced(self) and made.how == ".data":
                    target = made.original_of(self)
                    if target is not None:
                        _written(how, target, args)
            except Exception as error:
                fault(error)
        return original(self, *args, **kwargs)

    return method


def _written(how: str, target: Any, values: Any) -> None:
    """Note that `values` were written into `target` without a graph."""
    log = torch_log.log
    if log is not None:
        frame = sys._getframe(2)
        sources = torch_log.sources(list(values))
        if sources:
            log.cut(Exit(how), sources, target, frame)
        log.written(target, values, frame)


def detaching_in_place(original: Any) -> Any:
    @functools.wraps(original)
    def detach_(self: Any) -> Any:
        log = torch_log.log
        if log is not None and not _compiling():
            try:
                if _needs_grad(self):
                    log.cut(Exit(".detach_()"), (self,), self, torch_log.caller())
            except Exception as error:
                fault(error)
        return original(self)

    return detach_


def converting(how: str) -> Callable[[Any], Any]:
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
                        log.cut(Exit(shown), (self,), result, torch_log.caller())
                except Exception as error:
                    fault(error)
            return result

        return method

    return wrap


def constructing(how: str) -> Callable[[Any], Any]:
    """A function that makes a new tensor of the values of others."""

    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def function(*args: Any, **kwargs: Any) -> Any:
            if torch_log.log is None or _compiling():
                return original(*args, **kwargs)
            result = original(*args, **kwargs)
            try:
                data = args[0] if args else kwargs.get("data", kwargs.get("obj"))
                if type(data) in torch_log.CONTAINERS or isinstance(data, torch.Tensor):
                    sources = torch_log.sources(data)
                    if sources and not _continues(result):
                        torch_log.log.cut(Exit(how), sources, result, torch_log.caller())
            except Exception as error:
                fault(error)
            return result

        return function

    return wrap


def _continues(result: Any) -> bool:
    return isinstance(result, torch.Tensor) and result.grad_fn is not None


def renewing(original: Any) -> Any:
    @functools.wraps(original)
    def new_tensor(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        log = torch_log.log
        if log is not None and not _compiling():
            try:
                data = args[0] if args else kwargs.get("data")
                sources = torch_log.sources(data)
                if sources:
                    log.cut(Exit(".new_tensor()"), sources, result, torch_log.caller())
            except Exception as error:
                fault(error)
        return result

    return new_tensor


def wrapping(original: Any) -> Any:
    inner = on_class(original, torch.nn.Parameter)

    @functools.wraps(inner)
    def __new__(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        result = inner(cls, data, requires_grad)
        log = torch_log.log
        if log is not None and not _compiling():
            try:
                if isinstance(data, torch.Tensor) and _needs_grad(data):
                    log.cut(Exit("nn.Parameter()"), (data,), result, torch_log.caller())
            except Exception as error:
                fault(error)
        return result

    return staticmethod(__new__)


def data_property(original: Any) -> property:
    def get(self: Any) -> Any:
        result = original.__get__(self)
        log = torch_log.log
        if log is not None and not _compiling():
            try:
                if _needs_grad(self):
                    log.cut(Exit(".data"), (self,), result, torch_log.caller())
            except Exception as error:
                fault(error)
        return result

    def put(self: Any, value: Any) -> None:
        original.__set__(self, value)
        log = torch_log.log
        if log is not None and not _compiling():
            try:
                _written(".data = …", self, (value,))
            except Exception as error:
                fault(error)

    return property(get, put, getattr(original, "__delete__", None))


def scripted(original: Any) -> Any:
    """A call of TorchScript: of what happens inside, only arguments and result are seen."""

    @functools.wraps(original)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        log = torch_log.log
        if log is not None and not _compiling():
            try:
                log.changed(torch_log.SCRIPTED, (), torch_log.caller())
                if torch.is_grad_enabled() and _leaves_the_graph(result):
                    sources = torch_log.sources([*args, *kwargs.values()])
                    if sources:
                        frame, _ = entered_by(torch_log.caller())
                        log.cut(Exit(f"{self.name}() (TorchScript)"), sources, result, frame)
            except Exception as error:
                fault(error)
        return result

    return __call__
