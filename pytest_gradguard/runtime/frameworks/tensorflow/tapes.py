"""Events of TensorFlow's tapes and forward accumulators: recording and gradient requests.

One set of patches for all listeners, applied only while there is one.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, Protocol

import tensorflow as tf

from pytest_gradguard.runtime.kernel.faults import attempt, fault, without_this_frame
from pytest_gradguard.runtime.kernel.observing import observe
from pytest_gradguard.runtime.kernel.patching import Patch, Patches
from pytest_gradguard.runtime.kernel.subscribers import Subscribers


class Listener(Protocol):
    """Gets the events of every tape, in the thread that uses it."""

    def opened(self, tape: Any) -> None:
        """A `GradientTape` or `ForwardAccumulator` starts to record."""

    def closing(self, tape: Any) -> None:
        """It is about to stop recording."""

    def watches(self, tape: Any, watched: Any) -> None:
        """The program has a `GradientTape` watch tensors or variables."""

    def asking(self, tape: Any, verb: str, target: Any, sources: Any, upstream: Any) -> Any:
        """Its gradients are requested, or its products (then `sources` is None).

        `upstream` is the user's gradients of the target, or None.

        Returns:
            The argument for `answered`; None: it is not called.
        """

    def answered(self, asked: Any, gradients: Any) -> None:
        """Its result, in the structure of the sources (of the target, without sources)."""


def _notify(event: str, *arguments: Any) -> None:
    for listener in _listeners.now:
        try:
            getattr(listener, event)(*arguments)
        except Exception as error:
            fault(error)


def _asking(original: Callable[..., Any]) -> Callable[..., Any]:
    verb = original.__name__

    @functools.wraps(original)
    def ask(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _asking_now.tape is self:  # a jacobian requests gradients itself
            return original(self, *args, **kwargs)
        asked = []
        target, sources, upstream = attempt(_operands, args, kwargs, instead=(None, None, None))
        if verb != "gradient":
            upstream = None
        for listener in _listeners.now:
            try:
                asked.append((listener, listener.asking(self, verb, target, sources, upstream)))
            except Exception as error:
                fault(error)
        _asking_now.tape = self
        try:
            gradients = original(self, *args, **kwargs)
        except BaseException as error:
            without_this_frame(error)
            raise
        finally:
            _asking_now.tape = None
        for listener, question in asked:
            try:
                if question is not None:
                    listener.answered(question, gradients)
            except Exception as error:
                fault(error)
        return gradients

    return ask


class _AskingNow(threading.local):
    tape: Any = None


_asking_now = _AskingNow()
"""The tape whose gradients are being computed in this thread."""


def _operands(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Target, sources (other names in `batch_jacobian` and `jvp`), and the target's gradients."""
    target = args[0] if args else kwargs.get("target", kwargs.get("primals"))
    sources = args[1] if len(args) > 1 else kwargs.get("sources", kwargs.get("source"))
    upstream = args[2] if len(args) > 2 else kwargs.get("output_gradients")
    return target, sources, upstream


def _opened(result: Any, tape: Any) -> None:
    _notify("opened", tape)


def _closes(tape: Any) -> None:
    _notify("closing", tape)


def _watched(result: Any, tape: Any, tensor: Any) -> None:
    _notify("watches", tape, tensor)


_listeners: Subscribers[Listener] = Subscribers(
    Patches(
        [
            Patch(tf.GradientTape, "gradient", _asking),
            Patch(tf.GradientTape, "jacobian", _asking),
            Patch(tf.GradientTape, "batch_jacobian", _asking),
            observe(tf.GradientTape, "watch", after=_watched),
            observe(tf.GradientTape, "_push_tape", after=_opened),
            observe(tf.GradientTape, "_pop_tape", before=_closes),
            Patch(tf.autodiff.ForwardAccumulator, "jvp", _asking),
            observe(tf.autodiff.ForwardAccumulator, "_push_accumulator", after=_opened),
            observe(tf.autodiff.ForwardAccumulator, "_pop_accumulator", before=_closes),
        ],
        lasting=True,
    )
)
start, stop = _listeners.subscribe, _listeners.unsubscribe
