"""The patches of TensorFlow and Keras that write the log while a watch is open."""

from __future__ import annotations

import functools
import importlib
import sys
import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from pytest_gradguard import keras_variables
from pytest_gradguard.gradients.tensorflow_log import Listener, Log, noted, recorder
from pytest_gradguard.runtime.frameworks.tensorflow import tapes as tensorflow_tapes
from pytest_gradguard.runtime.kernel.faults import attempt, fault, without_this_frame
from pytest_gradguard.runtime.kernel.patching import LatePatches, Patch
from pytest_gradguard.runtime.pitfalls.tapes import own

_MACHINERY = tuple(f"{sep}{name}{sep}" for sep in "/\\" for name in ("tensorflow", "keras"))


class _Tapes:
    """Passes events of gradient tapes to the log."""

    def opened(self, tape: Any) -> None:
        if recorder.log is not None and isinstance(tape, tf.GradientTape):
            recorder.log.tape_opened(tape)

    def closing(self, tape: Any) -> None:
        if recorder.log is not None:
            recorder.log.tape_closed(tape)

    def watches(self, tape: Any, watched: Any) -> None:
        if recorder.log is not None:
            recorder.log.tape_watches(tape, watched)

    def asking(self, tape: Any, verb: str, target: Any, sources: Any, upstream: Any) -> Any:
        if recorder.log is None or not isinstance(tape, tf.GradientTape):
            return None
        if sys._getframe(2).f_code.co_filename.endswith("forwardprop.py"):
            return None  # a tape of a forward accumulator's
        flat = tf.nest.flatten(target, expand_composites=True)
        targets = [one for one in flat if isinstance(one, tf.Tensor) and one.dtype.is_floating]
        return tape, recorder.log.asked(tape, targets), sources

    def answered(self, asked: Any, gradients: Any) -> None:
        if recorder.log is not None:
            tape, notes, sources = asked
            recorder.log.answered(tape, notes, sources, gradients)


_tapes = _Tapes()


@noted
def _reading(log: Log, frame: Any, _: Any, variable: Any, *args: Any, **kwargs: Any) -> None:
    """Record a read of a variable."""
    log.read(variable)


@noted
def _beginning(log: Log, *_: Any) -> None:
    """Record that a thread starts."""
    log.thread_started()


def _leaving(
    how: str, by: Callable[[Any], bool] = lambda frame: True, operand: int = 0
) -> Callable[[Any], Any]:
    """Wrap a function or method whose result has no gradient.

    Args:
        how: its name in messages.
        by: whether a call counts, given the caller's frame.
        operand: index of the argument whose value it takes.
    """

    @noted
    def leave(log: Log, frame: Any, _: Any, *args: Any, **kwargs: Any) -> None:
        if by(frame):
            given = [*args, *kwargs.values()][operand : operand + 1]
            log.left(how, given[0] if given else None)

    return leave


def _comparing(name: str, how: str) -> Callable[[Any], Any]:
    """Wrap a function of two values that has a gradient for neither."""

    @noted
    def compare(log: Log, frame: Any, _: Any, *args: Any, **kwargs: Any) -> None:
        if _written(frame, name):
            for value in [*args, *kwargs.values()][:2]:
                log.left(how, value)

    return compare


def _from_outside(frame: Any) -> bool:
    """Whether the caller is neither TensorFlow nor Keras."""
    return not any(part in frame.f_code.co_filename for part in _MACHINERY)


_COMPOSED = ("nn_impl", "clip_ops", "image_ops", "linalg", "losses", "metrics", "optimizer")
_THIN_OF_KERAS = ("ops", "backend", "utils")


def _written(frame: Any, name: str = "") -> bool:
    """Whether the program itself calls this operation, by Keras's function `name` if given.

    Calls by losses, layers and optimizers of TensorFlow and Keras don't count.
    """
    while frame is not None and not _from_outside(frame):
        parts = frame.f_code.co_filename.replace("\\", "/").split("/")
        if parts[-1].startswith(_COMPOSED):
            return False
        if "src" in parts and parts[parts.index("src") - 1] == "keras":
            folder = parts[parts.index("src") + 1]
            if folder not in _THIN_OF_KERAS or "trainer" in parts[-1]:
                return False
            if folder != "utils" and name not in frame.f_code.co_name:
                return False
        frame = frame.f_back
    return True


@noted
def _casting(log: Log, frame: Any, _: Any, x: Any, dtype: Any, *args: Any, **__: Any) -> None:
    """Record a `tf.cast` from floating point to integers or booleans."""
    kind = tf.as_dtype(dtype)
    known = getattr(x, "dtype", None)
    stepped = kind.is_integer or kind.is_bool
    stepped = stepped and known is not None and tf.as_dtype(known).is_floating
    if stepped and _written(frame):
        log.left(f"tf.cast(…, {kind.name})", x)


def _running(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        log = recorder.log
        if log is None:
            return original(self, *args, **kwargs)
        before = attempt(_traces, self)
        known = attempt(_graphs, self, instead=frozenset()) if before else frozenset()
        try:
            result = original(self, *args, **kwargs)
        except BaseException as error:
            without_this_frame(error)
            raise
        try:
            traced = _traces(self) != before
            for concrete in self._list_all_concrete_functions():
                for listener in list(log.listeners):
                    if not traced:
                        listener.ran_traced(concrete.graph)
                    elif id(concrete.graph) not in known:
                        listener.was_traced(concrete.graph)
        except Exception as error:
            fault(error)
        return result

    return __call__


def _graphs(function: Any) -> frozenset[int]:
    return frozenset(id(one.graph) for one in function._list_all_concrete_functions())


def _traces(function: Any) -> int:
    return int(function.experimental_get_tracing_count())


_TO_PYTHON = {
    "numpy": ".numpy()",
    "__array__": "numpy.asarray()",
    "__float__": "float()",
    "__int__": "int()",
    "__complex__": "complex()",
    "__format__": "format()",
    "__reduce__": "pickle.dumps()",
    "__str__": "str()",
}
"""Methods that return the value of a tensor or variable to Python, and their usual names."""

_WITHOUT_GRADIENT = {
    "gen_math_ops": {
        "arg_max": "tf.argmax()",
        "arg_min": "tf.argmin()",
        "bucketize": "tf.raw_ops.Bucketize()",
        "ceil": "tf.math.ceil()",
        "floor": "tf.floor()",
        "rint": "tf.math.rint()",
        "round": "tf.round()",
    },
    "gen_array_ops": {"where": "tf.where(condition)"},
    "gen_nn_ops": {"in_top_kv2": "tf.math.in_top_k()", "top_kv2": "tf.math.top_k()"},
    "gen_parsing_ops": {"serialize_tensor": "tf.io.serialize_tensor()"},
    "gen_random_ops": {
        "multinomial": "tf.random.categorical()",
        "random_poisson_v2": "tf.random.poisson()",
    },
    "gen_stateless_random_ops": {"stateless_multinomial": "tf.random.stateless_categorical()"},
    "gen_string_ops": {"as_string": "tf.strings.as_string()"},
}
"""TensorFlow's operations of one value that have no gradient."""

_SOFT = "Use a function with a gradient (a softmax, a sigmoid), or a straight-through estimator."
_DRAW = "Use `log_prob` of the sample, or a draw with a gradient (Gumbel-softmax)."
_TENSOR = "Compute with the tensor itself: a variable takes its value alone."
_NUMPY = "Use TensorFlow's own functions on the tensor itself."
_INSTEAD = {
    "tf.random": _DRAW,
    "assign": _TENSOR,
    "tf.Variable": _TENSOR,
    "numpy.asarray": "Use TensorFlow's own functions instead of NumPy's (`tf.exp`, not `np.exp`).",
    "tf.numpy_function": "Use TensorFlow's own functions, or `tf.py_function`.",
    "keras.ops.convert_to_numpy": _NUMPY,
    "predict": "Call the model itself: `predict` returns NumPy arrays.",
    **dict.fromkeys((".numpy", "tf.stop_gradient"), ""),
    **dict.fromkeys(("float", "int", "complex", "format", "str", "pickle"), _NUMPY),
    "tf.io.serialize": _NUMPY,
    "tf.strings": _NUMPY,
}
"""Advice by the beginning of a name; empty if leaving the call out is enough."""


def instead_of(how: str) -> str:
    """Advice for a value taken out of the tape by `how`."""
    return next((fix for start, fix in _INSTEAD.items() if how.startswith(start)), _SOFT)


_COMPARISONS = {
    "greater": (">", "__gt__"),
    "greater_equal": (">=", "__ge__"),
    "less": ("<", "__lt__"),
    "less_equal": ("<=", "__le__"),
    "equal": ("==", None),
    "not_equal": ("!=", None),
    "floor_div": ("//", None),
}
"""Comparisons of two values, with the operator methods that also hold them."""


def _make() -> list[Patch]:
    from tensorflow.python.eager.polymorphic_function import polymorphic_function
    from tensorflow.python.framework import ops, tensor
    from tensorflow.python.ops import gen_math_ops, resource_variable_ops

    eager = ops._EagerTensorBase
    variable = resource_variable_ops.BaseResourceVariable
    return [
        Patch(threading.Thread, "start", _beginning),
        Patch(variable, "_read_variable_op", _reading),
        Patch(polymorphic_function.Function, "__call__", _running),
        *_to_python(eager),
        *_to_python(variable),
        *(
            Patch(owner, name, _leaving(f"{name}()", _written, operand=1))
            for name in ("assign", "assign_add", "assign_sub")
            for owner in (variable, resource_variable_ops.ResourceVariable)
            if name in vars(owner)
        ),
        Patch(resource_variable_ops.ResourceVariable, "__init__", _making),
        Patch(tf, "stop_gradient", _leaving("tf.stop_gradient()")),
        Patch(tf, "numpy_function", _leaving("tf.numpy_function()", operand=1)),
        Patch(gen_math_ops, "cast", _casting),
        *(
            Patch(module, name, _leaving(how, _written))
            for group, names in _WITHOUT_GRADIENT.items()
            if (module := _generated(group)) is not None
            for name, how in names.items()
            if hasattr(module, name)
        ),
        *(
            Patch(owner, method, _comparing(name, sign))
            for name, (sign, operator) in _COMPARISONS.items()
            for owner, method in (
                (gen_math_ops, name),
                (tensor.Tensor, operator),
                (tf.Variable, operator),
            )
            if method is not None
        ),
    ]


def _generated(name: str) -> Any:
    try:
        return importlib.import_module(f"tensorflow.python.ops.{name}")
    except ImportError:  # of another version
        return None


def _make_keras() -> list[Patch]:
    """Patches of Keras; none until it is imported."""
    kind = keras_variables.variable_class()
    if kind is None:
        return []
    import keras

    convert = _leaving("keras.ops.convert_to_numpy()", _from_outside)
    return [
        *_to_python(kind),
        Patch(keras.ops, "convert_to_numpy", convert),
        *(
            Patch(keras.Model, name, _predicting, inherited=True)
            for name in ("predict", "predict_on_batch")
        ),
    ]


@noted
def _predicting(log: Log, frame: Any, _: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    """Record a model's prediction, which is a NumPy array."""
    if _from_outside(frame):
        given = tf.nest.flatten(args[0] if args else kwargs.get("x"))
        log.left("predict()", [*given, *self.trainable_variables])


def _to_python(kind: Any) -> list[Patch]:
    return [
        Patch(kind, name, _leaving(how, _from_outside), inherited=True)
        for name, how in _TO_PYTHON.items()
        if hasattr(kind, name)
    ]


@noted
def _making(log: Log, frame: Any, _: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    """Record that a variable is made from a value."""
    if _written(frame):
        log.left("tf.Variable()", args[0] if args else kwargs.get("initial_value"))


def _custom(name: str) -> None:
    if recorder.log is not None:
        recorder.log.custom(name)


_patches = LatePatches(_make, owned=True)
_keras_patches = LatePatches(_make_keras, owned=True)


def _patch(log: Log) -> None:
    _patches.apply()
    _keras_patches.apply()
    own.listen(_custom, lasting=True)
    tensorflow_tapes.start(_tapes, lasting=True)
    log.begin()


def _undo(log: Log) -> None:
    attempt(tensorflow_tapes.stop, _tapes)
    for patches in (_patches, _keras_patches):
        attempt(patches.undo)
    attempt(log.end)
    attempt(own.undo, _custom)


def start(listener: Listener) -> Log:
    """Begin to record for `listener` (see `Recorder`)."""
    return recorder.start(listener, _patch, _undo)


def stop(listener: Listener) -> None:
    """Undo one `start`."""
    recorder.stop(listener, _undo)
