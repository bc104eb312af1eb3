"""Explains why an object could not be pickled for a worker: its path, and the fix.

Picklers name only the class of an object that they cannot pickle, or its function. If that happens
on the way to a worker or a queue, and only then, the object is searched for, and its path is added
to the error as a note.
"""

from __future__ import annotations

import functools
import pickle
import re
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from types import ModuleType
from typing import Any

from pytest_gradguard import pitfalls
from pytest_gradguard.findings import display_place
from pytest_gradguard.runtime.kernel import callsite, error_notes, locate, transfer
from pytest_gradguard.runtime.kernel.calls import UNPICKLED
from pytest_gradguard.runtime.kernel.faults import attempt, fault, without_this_frame
from pytest_gradguard.runtime.kernel.patching import Patch, Patches
from pytest_gradguard.runtime.kernel.quoting import quoted
from pytest_gradguard.runtime.kernel.tasks import parameter_of, roots_of, task_of
from pytest_gradguard.runtime.pitfalls.lost import queue_puts

_REFUSED = "Cowardly refusing to serialize non-leaf tensor"
_TYPE = re.compile(r"(?:cannot|can't) pickle '?([\w.]+)'? objects?\b")
_LOCAL = re.compile(r"Can't (?:pickle|get) local object '?([^']+?)'?$")
_ADDRESS = re.compile(r"at 0x([0-9a-fA-F]+)")
_ANSWERS = {
    "generator": "Send a list of its items.",
    "_io.TextIOWrapper": "Open the file in the task.",
    "_io.BufferedReader": "Open the file in the task.",
    "_io.BufferedWriter": "Open the file in the task.",
    "tfe.Tape": pitfalls.get("GG105").advice,
}
_ANSWER = (
    "Create it in the task, or leave it out of what is sent (in `__getstate__` of the object that "
    "holds it)."
)
_FUNCTION = (
    "Define the function at the top level of a module, or use joblib's loky backend, which sends "
    "functions by value."
)
_RETURNED = "Leave it out of what the task returns (in `__getstate__` of the object that holds it)."
_ROOT = "object"
_HISTORY = (
    "Send `tensor.detach()`, or, where the gradient has to come back, use threads or "
    "`pytest_gradguard.parallel.Parallel`."
)
_HISTORY_RETURNED = (
    "Return `tensor.detach()`, or, where the gradient has to come back, use threads or "
    "`pytest_gradguard.parallel.Parallel`."
)


def watched_dump(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a pickler's method `dump`, or a function of that name."""

    @functools.wraps(original)
    def dump(*args: Any, **kwargs: Any) -> Any:  # by hand: each pickling calls it
        if _unsent:
            attempt(_send_why, args)
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            without_this_frame(error)
            current, transfer.active.transfer = transfer.active.transfer, None
            attempt(explain, error, current, args)
            raise

    return dump


def patches(module: ModuleType) -> list[Patch]:
    """Watch the pickling of pools, executors, queues and spawned processes."""
    return [Patch(module.ForkingPickler, "dump", watched_dump, inherited=True)]


def watch_fresh_process() -> None:
    """Watch what this process, which has no guard, puts on queues."""
    queues, reduction = map(import_module, ("multiprocessing.queues", "multiprocessing.reduction"))
    Patches([*queue_puts.patches(queues), *patches(reduction)]).apply()


def explain(error: BaseException, current: Any, objects: Iterable[Any] = ()) -> None:
    """Add to an `error` of pickling which object caused it, if it can be found.

    Args:
        error: the pickler's error.
        current: the transfer that was active.
        objects: the pickled objects, if there was no transfer.
    """
    try:
        matches = None if error_notes.explained(error) else _culprit(error)
        if matches is None:
            return
        wanted, answer = matches
        returned = hasattr(current, "results")
        put = None
        if returned:
            roots = [(f"{index}|result", one) for index, one in enumerate(current.results)]
        elif hasattr(current, "items"):
            roots = roots_of(current.items)
        else:
            sent = [one for one in objects if not _is_machinery(one)]
            roots = [(_ROOT, one) for one in sent]
            put = queue_puts.put_of(sent)
        found: list[Any] = []

        def look(item: Any) -> bool:
            if not wanted(item):
                return False
            found.append(item)
            return True

        paths = locate.find(roots, look)
        if found:
            path = paths[id(found[0])]
            if _is_transformed(found[0]):
                answer = pitfalls.get("GG301").advice_for("transform")
            elif put is not None and answer is _HISTORY:
                attempt(queue_puts.refused, put, found[0], path.removeprefix(_ROOT))
            text = _text(found[0], path, current, answer, put)
            error_notes.add(error, text)
            call = getattr(current, "call", None)
            if call is not None:
                call.remembered[UNPICKLED] = text
            if returned:
                _unsent[:] = [text]
    except Exception as mistake:
        fault(mistake)


transfer.refusals.append(explain)
_unsent: list[str] = []
"""Why the last result could not be sent."""


def _send_why(objects: Iterable[Any]) -> None:
    """Add the reason to the error of another class that a pool's worker sends instead."""
    (text,), _unsent[:] = _unsent, []
    for one in objects:
        outcome = one[-1] if isinstance(one, tuple) and one else None
        error = outcome[-1] if isinstance(outcome, tuple) and outcome else None
        if isinstance(error, BaseException) and type(error).__name__ == "MaybeEncodingError":
            error_notes.add(error, text)


def _is_machinery(item: Any) -> bool:
    return isinstance(item, pickle.Pickler) or hasattr(item, "getbuffer") or item is None


def _culprit(error: BaseException) -> tuple[Callable[[Any], bool], str] | None:
    """A test for the object that caused `error`, and the fix; None if it is unknown."""
    text = str(error)
    if isinstance(error, RuntimeError) and text.startswith(_REFUSED):
        return _has_history, _HISTORY
    if isinstance(error, (TypeError, AttributeError, pickle.PicklingError)):
        if found := _TYPE.search(text):
            name = found[1]
            return (lambda item: name in _names(type(item))), _ANSWERS.get(name, _ANSWER)
        if found := _LOCAL.search(text):
            name = found[1]
            return (lambda item: getattr(item, "__qualname__", None) == name), _FUNCTION
        if found := _ADDRESS.search(text):
            address = int(found[1], 16)
            return (lambda item: id(item) == address), _FUNCTION if "function" in text else _ANSWER
    refusing = _refusing(error)
    return None if refusing is None else ((lambda item: item is refusing), _ANSWER)


_REDUCING = ("__reduce__", "__reduce_ex__", "__getstate__")


def _refusing(error: BaseException) -> Any:
    """The library's object whose pickling raised `error`, if any."""
    frame = None
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_name in _REDUCING:
            frame = traceback.tb_frame
        traceback = traceback.tb_next
    if frame is None or callsite.is_users(frame):
        return None  # the program's own class raised it for its own reasons
    return dict(callsite.local_names(frame)).get("self")


def _names(kind: type) -> tuple[str, str]:
    """How picklers name a class: short, or in full for those of C modules."""
    return kind.__name__, f"{kind.__module__}.{kind.__qualname__}"


def _is_transformed(item: Any) -> bool:
    """Whether `item` stands for a value in a transform of JAX or `torch.func`."""
    if "torch" in sys.modules:
        from pytest_gradguard.runtime.frameworks.torch import transforms

        if transforms.is_wrapped(item):
            return True
    kinds = type(item).__mro__
    return any(kind.__name__ == "Tracer" and kind.__module__[:3] == "jax" for kind in kinds)


def _has_history(item: Any) -> bool:
    from pytest_gradguard.runtime.frameworks.torch import tensors

    return tensors.is_tensor(item) and tensors.grad_fn(item) is not None


def _text(
    item: Any, path: str, current: Any, answer: str, put: queue_puts.Put | None = None
) -> str:
    history = getattr(item, "grad_fn", None) if answer is _HISTORY else None
    if hasattr(current, "results"):
        answer = {_HISTORY: _HISTORY_RETURNED, _FUNCTION: _FUNCTION}.get(answer, _RETURNED)
    fault = "cannot be pickled"
    about = "" if answer is _FUNCTION else f"a `{_kind(item)}`"
    if history is not None:
        fault = "has a graph, which cannot be sent"
        about = f"made by {type(history).__name__}"
    index, separator, inner = path.partition("|")
    inner = inner.lstrip(".")
    if put is not None:
        place = put.site.location()
        name = put.called(path.removeprefix(_ROOT)).name
        role = f"put on a queue at {display_place(place.path, place.line)}"
    elif not separator:  # put on a queue, by the program itself
        name, role = f"`{path}`", "" if path == _ROOT else f"`{_ROOT}` is the object being sent"
    elif not inner:
        name, role = "the function of the task", ""
    else:
        function = current.items[int(index)][0]
        call = getattr(current, "call", None)
        site = None if call is None else call.site
        name, role = quoted(site, inner, parameter_of(function, inner), task_of(function).name)
    more = ", ".join(filter(None, (role, about)))
    return f"{name}{f' ({more})' if more else ''} {fault}. {answer}"


def _kind(item: Any) -> str:
    name, full = _names(type(item))
    return name if type(item).__module__ == "builtins" else full
