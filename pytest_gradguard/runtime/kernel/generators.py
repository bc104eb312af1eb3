"""The global random generators of the loaded libraries: captured, restored, seeded.

Nothing is imported, and no function that the guard watches is called, so the guard's record of what
the program has seeded is unchanged.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

from pytest_gradguard.runtime.kernel.lineage import is_forked

Restore = Callable[[], object]

_WORDS = 1 << 32
_SMALL = 1 << 31
_ACCELERATORS = ("cuda", "xpu")


def capture() -> Restore:
    """A function that restores the current state of every global generator."""
    undo = [_set_later(random.setstate, random.getstate())]
    undo += [_set_later(one.set_state, one.get_state()) for one in _torch()]
    numpy = of_library("numpy")
    if numpy is not None:
        undo.append(_set_later(numpy.set_state, numpy.get_state(legacy=False)))
    undo += _tensorflow()

    def restore() -> None:
        for one in undo:
            one()

    return restore


def seed(number: int) -> None:
    """Seed every global generator from `number`, of 64 bits."""
    random._inst.seed(number)
    for name in ("torch", "numpy", "tensorflow"):
        seed_library(name, number)


def seed_library(name: str, number: int) -> None:
    """Seed only the global generator of numpy, torch or tensorflow, which is imported."""
    if name == "numpy":
        _seed_numpy(number)
    elif name == "torch":
        for generator in _torch():
            generator.manual_seed(number >> 1)
    else:
        context = _eager_context()
        if context is not None:
            _seed_tensorflow(context, number >> 1)


def seed_process(number: int, *, forked: bool) -> None:
    """Seed the global generators whose initial state in a process is arbitrary.

    A forked process has its parent's states, except Python's own, which Python reseeds there.

    Args:
        number: the seed, of 64 bits.
        forked: the process was forked; otherwise it is a new one.
    """
    if forked:
        random._inst.seed(number)
    else:
        seed(number)


def _set_later(set_state: Callable[[Any], object], state: Any) -> Restore:
    return lambda: set_state(state)


def _torch() -> Iterator[Any]:
    """PyTorch's default generators: of the CPU, and of the devices that are in use."""
    torch: Any = sys.modules.get("torch")
    if torch is None or "torch.nn.parameter" not in sys.modules:
        return
    yield torch.default_generator
    for name in _ACCELERATORS:
        module = getattr(torch, name, None)
        if module is not None and module.is_initialized():
            yield from module.default_generators


def of_library(library: str) -> Any:
    """The process-wide generator of a loaded library; otherwise None."""
    if library == "random":
        return random._inst
    if library == "torch":
        return next(_torch(), None)
    if library == "numpy":
        return getattr(sys.modules.get("numpy.random.mtrand"), "_rand", None)
    context: Any = sys.modules.get("tensorflow.python.eager.context")
    if library == "tensorflow" and context is not None:
        return getattr(context.context(), "_rng", None)
    return None


def _seed_numpy(number: int) -> None:
    numpy = of_library("numpy")
    if numpy is not None:
        numpy.seed([number % _WORDS, number // _WORDS])


# -- TensorFlow and Keras --------------------------------------------------------------------------


def _eager_context() -> Any:
    module: Any = sys.modules.get("tensorflow.python.eager.context")
    if module is None or is_forked():  # its threads do not exist: it may hang (GG303)
        return None
    return module.context()


def _seed_tensorflow(context: Any, number: int) -> None:
    # The watched `set_global_seed` calls this; it also drops kernels, which hold their own
    # states.
    # own.
    context._set_global_seed(number)
    for variable in _counting_variables():
        variable.assign(variable.numpy() * 0 + number % _SMALL)


def _tensorflow() -> Iterator[Restore]:
    context = _eager_context()
    if context is None:
        return
    seeded, rng = getattr(context, "_seed", None), getattr(context, "_rng", None)
    state = None if rng is None else rng.getstate()

    def restore() -> None:
        context._seed, context._rng = seeded, rng
        if rng is not None:
            rng.setstate(state)

    yield restore
    for variable in _counting_variables():
        yield _set_later(variable.assign, variable.numpy())


def _counting_variables() -> list[Any]:
    """The states of `tf.random`'s global generator and of Keras's own."""
    found = []
    made: Any = sys.modules.get("tensorflow.python.ops.stateful_random_ops")
    generator = getattr(made, "global_generator", None)
    if generator is not None:
        found.append(generator.state)
    state: Any = sys.modules.get("keras.src.backend.common.global_state")
    if state is not None:
        known = state.get_global_attribute("global_seed_generator")
        if known is not None:
            found.append(known.state)
    return found


def seed_worker(number: int, words: list[int]) -> None:
    """Seed the global generators as torch does in the worker of a `DataLoader`.

    Args:
        number: the seed of Python's and torch's.
        words: the seed of NumPy's.
    """
    random._inst.seed(number)
    for generator in _torch():
        generator.manual_seed(number)
    numpy = of_library("numpy")
    if numpy is not None:
        numpy.seed(words)
