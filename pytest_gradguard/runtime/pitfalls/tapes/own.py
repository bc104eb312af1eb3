"""Tapes of the guard, which record alongside the user's and do not affect the program.

TensorFlow asks at a few places whether any tape records, and then does more than without one: it
builds the backward pass of a traced function, it keeps the arguments of `tf.py_function`. Our tapes
are hidden from these places. Traced functions and custom gradients of the program are recorded on
ours by their data dependencies only: their own backward code never runs because of us.
"""

from __future__ import annotations

import _thread
import functools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import record
from tensorflow.python.eager.polymorphic_function import concrete_function
from tensorflow.python.framework import ops
from tensorflow.python.ops import custom_gradient, gradients_util, resource_variable_ops

from pytest_gradguard.runtime.frameworks.tensorflow import tensors
from pytest_gradguard.runtime.kernel import callsite
from pytest_gradguard.runtime.kernel.faults import Beside, fault
from pytest_gradguard.runtime.kernel.observing import observe
from pytest_gradguard.runtime.kernel.patching import Patch, Patches
from pytest_gradguard.runtime.kernel.subscribers import Subscribers
from pytest_gradguard.runtime.pitfalls.tapes import traced_functions
from pytest_gradguard.runtime.pitfalls.tapes.notes import Flow


class _Mine(threading.local):
    handles: tuple[Any, ...] = ()
    asking: bool = False


_mine = _Mine()


class NoGradient(Exception):
    """A gradient that TensorFlow cannot compute, for example of an operation without one."""


class Identity:
    """Stands for a tensor that may be freed, in requests to a tape."""

    __slots__ = ("_id", "dtype", "shape")

    def __init__(self, tensor: Any) -> None:
        self._id = tensor._id
        self.dtype = tensor.dtype
        self.shape = tensor.shape


class OwnTape:
    """A persistent tape of ours.

    Args:
        automatic: whether it watches the trainable variables that are read while it records.
    """

    def __init__(self, *, automatic: bool) -> None:
        self._handle = pywrap_tfe.TFE_Py_TapeSetNew(True, automatic)
        pywrap_tfe.TFE_Py_TapeSetRemove(self._handle)
        self._recording = False

    def push(self) -> None:
        """Record in this thread, unless it records already."""
        if not self._recording:
            self._recording = True
            pywrap_tfe.TFE_Py_TapeSetAdd(self._handle)
            _mine.handles = (*_mine.handles, self._handle)

    def pop(self) -> None:
        """Stop recording, if this is the thread in which it records."""
        others = tuple(one for one in _mine.handles if one is not self._handle)
        if len(others) < len(_mine.handles):
            _mine.handles = others
            self._recording = False
            # Removed where it does not record, it would be freed while it is in use.
            pywrap_tfe.TFE_Py_TapeSetRemove(self._handle)

    def watch(self, watched: Sequence[Any]) -> None:
        """Follow what is computed from these tensors; from any thread."""

        def watching() -> None:
            for tensor in watched:
                pywrap_tfe.TFE_Py_TapeWatch(self._handle, tensor)

        alone(self._handle, watching)

    def variables(self) -> Sequence[Any]:
        """The variables that it has watched."""
        found: Sequence[Any] = pywrap_tfe.TFE_Py_TapeWatchedVariables(self._handle)
        return found

    def sees(self, candidates: Sequence[Any]) -> bool:
        """Whether any of these tensors depends on what it watches."""
        return seen_by(self._handle, candidates)

    def flows(
        self, targets: Sequence[Any], sources: Sequence[Any], upstream: Sequence[Any] | None = None
    ) -> list[Flow]:
        """The gradient of the targets that reaches each source.

        Args:
            targets: eager tensors, or `Identity`s of them.
            sources: as `targets`, and handles of variables.
            upstream: the gradients of the targets, None for ones; without it, uneven ones.

        Raises:
            NoGradient: TensorFlow cannot compute it.
        """
        found: list[Flow] = []

        def asking() -> None:
            _mine.asking = True
            try:
                ask()
            finally:
                _mine.asking = False

        def ask() -> None:
            given = [_uneven(one) for one in targets]
            if upstream is not None and len(upstream) == len(targets):
                given = [
                    tf.ones_like(target) if one is None else tf.cast(one, target.dtype)
                    for target, one in zip(targets, upstream, strict=True)
                ]
            try:
                gradients = pywrap_tfe.TFE_Py_TapeGradient(
                    self._handle, list(targets), list(sources), given, None, "none"
                )
            except Exception as error:
                raise NoGradient from error
            found.extend(map(_flow_of, gradients))

        in_empty_thread(asking)
        return found


def seen_by(handle: Any, candidates: Sequence[Any]) -> bool:
    """Whether the tape behind `handle` watches any of these tensors, or their inputs."""
    if not candidates:
        return False
    possible = pywrap_tfe.TFE_Py_TapeSetPossibleGradientTypes
    return bool(alone(handle, lambda: possible(list(candidates))))


def _uneven(target: Any) -> Any:
    """A gradient for `target` in which nothing cancels: a softmax always sums to one."""
    count = target.shape.num_elements()
    values = tf.sin(tf.cast(tf.range(count), tf.float64) + 1.0) + 2.0
    return tf.reshape(tf.cast(values, target.dtype), target.shape)


def _flow_of(gradient: Any) -> Flow:
    if gradient is None:
        return Flow.NONE
    values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    return Flow(1 + bool(tf.reduce_any(tf.not_equal(values, tf.zeros([], values.dtype)))))


# -- threads ---------------------------------------------------------------------------------------


def alone(handle: Any, ask: Callable[[], Any]) -> Any:
    """The result of `ask` in a thread where only the tape behind `handle` records."""
    answers: list[Any] = []

    def asking() -> None:
        pywrap_tfe.TFE_Py_TapeSetAdd(handle)
        try:
            answers.append(ask())
        finally:
            pywrap_tfe.TFE_Py_TapeSetRemove(handle)

    in_empty_thread(asking)
    return answers[0]


def others_record() -> bool:
    """Whether a tape that is not ours records in this thread."""
    with _hidden():
        return not pywrap_tfe.TFE_Py_TapeSetIsEmpty()


def in_empty_thread(function: Callable[[], None]) -> None:
    """Run `function` where no tape records: here, or in another thread."""
    if pywrap_tfe.TFE_Py_TapeSetIsEmpty() and tf.executing_eagerly():
        function()
        return
    done = _thread.allocate_lock()
    errors: list[Exception] = []
    done.acquire()

    def run() -> None:
        try:
            function()
        except Exception as error:
            errors.append(error)
        finally:
            done.release()

    _thread.start_new_thread(run, ())
    done.acquire()
    if errors:
        raise errors[0]


@contextmanager
def _hidden() -> Iterator[None]:
    """A block in which our tapes do not record in this thread."""
    handles = _mine.handles
    for handle in handles:
        pywrap_tfe.TFE_Py_TapeSetRemove(handle)
    try:
        yield
    finally:
        for handle in handles:
            pywrap_tfe.TFE_Py_TapeSetAdd(handle)


def _record(name: str, outputs: Any, inputs: Any, backward: Callable[..., Any]) -> None:
    """Record an operation only on our tapes of this thread."""
    handles = _mine.handles

    def recording() -> None:
        for handle in handles:
            pywrap_tfe.TFE_Py_TapeSetAdd(handle)
        try:
            pywrap_tfe.TFE_Py_TapeSetRecordOperation(name, outputs, inputs, backward, None)
        finally:
            for handle in handles:
                pywrap_tfe.TFE_Py_TapeSetRemove(handle)

    with _hidden():
        in_empty_thread(recording)


# -- where TensorFlow asks -------------------------------------------------------------------------


def _not_for_ours(original: Callable[..., Any]) -> Callable[..., Any]:
    """Answer as without our tapes."""

    @functools.wraps(original)
    def ask(*args: Any) -> Any:
        if not _mine.handles:
            return original(*args)
        with Beside(_hidden):
            return original(*args)

    return ask


def _recording(original: Callable[[], bool]) -> Callable[[], bool]:
    """Have traced functions report the variables they read for our tapes, too."""

    @functools.wraps(original)
    def could_possibly_record() -> bool:
        if (reading.depth or _mine.handles) and sys._getframe(1).f_globals is vars(
            concrete_function
        ):
            return True
        if not _mine.handles:
            return original()
        with Beside(_hidden):
            return original()

    return could_possibly_record


def _ran(outputs: Any, function: Any, tensor_inputs: Any, captured_inputs: Any) -> None:
    """Record on ours a traced function that no tape of the user follows, once it has run."""
    if _mine.handles and tf.executing_eagerly():
        _function_ran(function, [*tensor_inputs, *captured_inputs], outputs)


def _function_ran(function: Any, inputs: list[Any], outputs: Any) -> None:
    with _hidden():
        if pywrap_tfe.TFE_Py_TapeSetPossibleGradientTypes(inputs):
            return  # TensorFlow has recorded it, on every tape
    for output, needed in zip(
        traced_functions.tensors_in(outputs), traced_functions.needed_by(function), strict=True
    ):
        if needed:
            used = [inputs[index] for index in needed]
            _record("TracedFunction", [output], used, functools.partial(_ones_for, used))


def _ones_for(inputs: list[Any], *upstream: Any) -> list[Any]:
    """A nonzero gradient for each input."""
    return [_ones_like(one) for one in inputs]


def _ones_like(tensor: Any) -> Any:
    if tensor.dtype != tf.resource:
        return tf.ones_like(tensor) if tensors.differentiable(tensor) else None
    (held,) = resource_variable_ops.get_eager_safe_handle_data(tensor).shape_and_type
    dtype = tf.as_dtype(held.dtype)
    if not (dtype.is_floating or dtype.is_complex):
        return None
    return tf.ones(tf.TensorShape(held.shape), dtype)


def _noting(original: Callable[..., Any]) -> Callable[..., Any]:
    """Do not call custom gradients of the program for our tapes."""

    @functools.wraps(original)
    def record_operation(*args: Any, **kwargs: Any) -> Any:
        if not _mine.handles or sys._getframe(1).f_globals is not vars(custom_gradient):
            return original(*args, **kwargs)
        with Beside(_hidden):
            result = original(*args, **kwargs)
        try:
            kind, outputs, inputs, backward, *_ = _arguments(args, kwargs)
            ours = backward
            if _of_user(backward):
                ours = functools.partial(_ones_for, list(inputs))
                for listener in _listeners.now:
                    if callable(listener):
                        listener(str(kind))
            _record(kind, outputs, inputs, ours)
        except Exception as error:
            fault(error)
        return result

    return record_operation


class _Gradients:
    """TensorFlow's registry of gradients; that of `tf.py_function` is not called for our tapes.

    It can be called only once, and runs the program's own code.
    """

    def __init__(self, original: Any) -> None:
        self._original = original

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def lookup(self, name: str) -> Any:
        """The gradient of the operations of that kind."""
        if _mine.asking and name == "EagerPyFunc":
            return _ones_for_operation
        return self._original.lookup(name)


def _ones_for_operation(operation: Any, *upstream: Any) -> list[Any]:
    return _ones_for(list(operation.inputs))


def _arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    names = ("op_type", "output_tensors", "input_tensors", "backward_function")
    return (*args, *(kwargs[name] for name in names[len(args) :]))


def _of_user(backward: Any) -> bool:
    """Whether a custom gradient was written outside of libraries."""
    try:
        cells = dict(zip(backward.__code__.co_freevars, backward.__closure__ or (), strict=True))
        written = cells["grad_fn"].cell_contents.__code__.co_filename
    except (AttributeError, KeyError, ValueError):
        return True
    return callsite.is_user_file(written)


class _Reading(threading.local):
    depth: int = 0


reading = _Reading()
"""How many observers record the variables read in this thread."""


_listeners: Subscribers[Any] = Subscribers(
    Patches(
        [
            Patch(record, "could_possibly_record", _recording),
            Patch(record, "record_operation", _noting),
            Patch(gradients_util, "PossibleTapeGradientTypes", _not_for_ours),
            Patch(ops, "_gradient_registry", _Gradients),
            observe(concrete_function.ConcreteFunction, "_call_flat", after=_ran),
        ],
        lasting=True,
    )
)
"""The listeners for whom our tapes are hidden and recorded on; functions among them are called with
the name of each custom gradient of the program."""
TASKS = "what looks at tasks"
"""A listener that is ended only with the guard."""
listen, undo = _listeners.subscribe, _listeners.unsubscribe
