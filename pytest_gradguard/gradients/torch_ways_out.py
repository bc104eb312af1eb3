"""Wrappers that record operations leaving the graph."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch

from pytest_gradguard.gradients import torch_grad_mode, torch_log, torch_records
from pytest_gradguard.gradients.torch_exits import (
    COPY,
    PICKLE,
    Exit,
    Operation,
    entered_by,
    new,
    whole,
)
from pytest_gradguard.gradients.torch_log import Log, noted, recorder
from pytest_gradguard.runtime.kernel.faults import Beside, attempt, fault, without_this_frame
from pytest_gradguard.runtime.kernel.patching import on_class

_compiling = torch.compiler.is_compiling
_grad_enabled = torch.is_grad_enabled
_needs_grad = torch_log.needs_grad
_PLAIN = (torch.Tensor, torch.nn.Parameter)

_Wrap = Callable[[Any], Any]


def reading(way: Exit) -> _Wrap:
    """Wrap a tensor method that takes the value out of the graph."""

    @noted
    def read(log: Log, frame: Any, result: Any, self: Any, *_: Any, **__: Any) -> None:
        if _needs_grad(self):
            log.cut(way, (self,), result, frame)
        elif id(self) in log.made:
            log.went_on(self, way.how, frame)

    return read


@noted
def pickling(log: Log, frame: Any, result: Any, self: Any, protocol: Any) -> None:
    """`__reduce_ex__`, called by `pickle` and `copy.copy`."""
    if _needs_grad(self):
        copied = frame.f_code.co_filename == copy.__file__
        log.cut(COPY if copied else PICKLE, (self,), result, frame)


def operating(operation: Operation) -> _Wrap:
    """Wrap an operation without a derivative, or with one that is zero everywhere."""
    way, flat = operation.exit, operation.flat

    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def function(*args: Any, **kwargs: Any) -> Any:
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                without_this_frame(error)
                raise
            if recorder.log is None or _compiling() or not _grad_enabled():
                return result
            for one in args:  # fast: it runs at each comparison of the program
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
                        recorder.log.cut(way, sources, result, torch_log.caller(), flat=flat)
            except Exception as error:
                fault(error)
            return result

        # Pickled by name, it has to be found under that name in a worker.
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
    """Wrap `Function.apply`, whose outputs may be marked as non-differentiable."""

    @functools.wraps(original)
    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        log = torch_log.current()
        own = log is not None and not cls.__module__.startswith("torch.")
        try:
            if log is None or not own or cls in log.functions:
                result = original.__get__(None, cls)(*args, **kwargs)
            else:
                log.functions.add(cls)
                with Beside(torch_grad_mode.followed, cls):
                    result = original.__get__(None, cls)(*args, **kwargs)
        except BaseException as error:
            without_this_frame(error)
            raise
        if log is not None and recorder.log is log:
            try:
                _called(log, f"{cls.__name__}.apply()", args, result, torch_log.caller())
            except Exception as error:
                fault(error)
        return result

    return classmethod(apply)


@noted
def scripted(log: Log, frame: Any, result: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    """Record a call of TorchScript, of which only arguments and result are visible."""
    log.changed(torch_records.SCRIPTED, (), frame)
    _called(log, f"{self.name}() (TorchScript)", [*args, *kwargs.values()], result, frame)


def _called(log: Log, how: str, given: Any, result: Any, frame: Any) -> None:
    """Record a call of a custom function whose result leaves the graph."""
    if torch.is_grad_enabled() and _leaves_the_graph(result):
        sources = torch_log.sources(list(given))
        if sources:
            log.cut(Exit(how), sources, result, entered_by(frame)[0])


def writing(original: Any) -> Any:
    """Wrap an in-place operation, which writes to `.data` without a graph."""
    name = original.__name__
    how = ".data[…] = …" if name == "__setitem__" else f".data.{name}()"

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        log = recorder.log  # fast: optimizers write into each parameter
        identity = id(self)
        if (
            log is not None
            and (identity in log.made or identity in log.data_of)
            and not _compiling()
        ):
            attempt(_into_data, log, how, self, args, torch_log.caller())
        try:
            return original(self, *args, **kwargs)
        except BaseException as error:
            without_this_frame(error)
            raise

    return method


def _into_data(log: Log, how: str, data: Any, values: Any, frame: Any) -> None:
    """Record that `values` are written to `data`, if it is the `.data` of a tensor."""
    made, target = log.made.get(id(data)), log.original_of(data)
    if made is not None and made.produced(data) and made.how == ".data":
        target = made.original_of(data)
    if target is not None:
        _written(log, how, target, values, frame)


def _written(log: Log, how: str, target: Any, values: Any, frame: Any) -> None:
    """Record that `values` were written to `target` without a graph."""
    sources = torch_log.sources(list(values))
    if sources:
        log.cut(Exit(how), sources, target, frame)
    log.written(target, values, frame)


@functools.partial(noted, before=True)
def detaching_in_place(log: Log, frame: Any, _: Any, self: Any) -> None:
    """`detach_`."""
    if _needs_grad(self):
        log.cut(Exit(".detach_()"), (self,), self, frame)


def converting(how: str) -> _Wrap:
    """Wrap a conversion, which leaves the graph if the new dtype is an integer."""

    @noted
    def convert(log: Log, frame: Any, result: Any, self: Any, *_: Any, **__: Any) -> None:
        if (
            isinstance(result, torch.Tensor)
            and not _needs_grad(result)
            and _needs_grad(self)
            and torch.is_grad_enabled()
        ):
            dtype = str(result.dtype).removeprefix("torch.")
            shown = how if how != ".to()" else f".to(torch.{dtype})"
            log.cut(whole(shown), (self,), result, frame)

    return convert


def constructing(how: str) -> _Wrap:
    """Wrap a function that makes a new tensor from the values of others."""

    @noted
    def construct(log: Log, frame: Any, result: Any, *args: Any, **kwargs: Any) -> None:
        data = args[0] if args else kwargs.get("data", kwargs.get("obj"))
        sources = torch_log.sources(data)
        if sources and not (isinstance(result, torch.Tensor) and result.grad_fn is not None):
            log.cut(new(how), sources, result, frame)

    return construct


@noted
def renewing(log: Log, frame: Any, result: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    """`Tensor.new_tensor`."""
    sources = torch_log.sources(args[0] if args else kwargs.get("data"))
    if sources:
        log.cut(new(".new_tensor()"), sources, result, frame)


def wrapping(original: Any) -> Any:
    """`Parameter.__new__`."""

    def made(
        log: Log, frame: Any, result: Any, cls: Any, data: Any = None, *_: Any, **__: Any
    ) -> None:
        if isinstance(data, torch.Tensor) and _needs_grad(data):
            log.cut(Exit("nn.Parameter()"), (data,), result, frame)

    return staticmethod(noted(made)(on_class(original, torch.nn.Parameter)))


def data_property(original: Any) -> property:
    """`.data`, read and written."""

    def read(log: Log, frame: Any, result: Any, self: Any) -> None:
        if _needs_grad(self):
            log.cut(Exit(".data"), (self,), result, frame)
        else:
            log.gave_data(self, result)

    def write(log: Log, frame: Any, _: Any, self: Any, value: Any) -> None:
        _written(log, ".data = …", self, (value,), frame)

    return property(
        noted(read)(original.__get__),
        noted(write)(original.__set__),
        getattr(original, "__delete__", None),
    )
