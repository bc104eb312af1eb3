"""A task in a worker of dask's: what runs there, and how its results tell of the graph they had.

Results are kept by the worker, handed to other tasks and sent on when they are asked for, so they
stay as they are (`marks`); what the probes note is sent as an event. What a client runs directly,
or a method of an actor, has its result sent at once: the notes go with it, for an event could
arrive later. Workers import this module by name.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from pytest_gradguard.findings import Finding
from pytest_gradguard.runtime.integrations.dask.marks import Returned, here, mark
from pytest_gradguard.runtime.kernel import (
    calls,
    frameworks,
    locate,
    plain_data,
    probes,
    running,
    shipped_modules,
    simulated_devices,
    task_seeds,
    worker,
)
from pytest_gradguard.runtime.kernel.evidence import Object
from pytest_gradguard.runtime.kernel.faults import (
    Beside,
    attempt,
    carried,
    fault,
    without_this_frame,
)
from pytest_gradguard.runtime.kernel.observing import Arguments, observe
from pytest_gradguard.runtime.kernel.patching import LatePatches
from pytest_gradguard.runtime.kernel.tasks import task_of

_LOOKED_AT = 2_000
"""How many objects of a result, and how many attributes of an actor, are looked at."""


Given = Mapping[int | str, tuple[int, int]]
"""By their positions or keywords, arguments of a task that are modules: the call that each was sent
with, and its number there."""
_NOTHING: Given = MappingProxyType({})


class DaskTask:
    """A function that runs in a worker of dask's, under watch, in place of `function`.

    Args:
        origin: the process that the call was made in.
        token: the call, there.
        asked: what the probes asked.
        function: the user's function.
        given: which of its arguments are modules that were sent apart from it.
    """

    def __init__(
        self,
        origin: str,
        token: int,
        asked: Mapping[str, Any],
        function: Any,
        given: Given = _NOTHING,
    ) -> None:
        self._gradguard = (origin, token, asked, function)
        self.given = given
        name = getattr(function, "__name__", None)
        if name is not None:
            self.__name__ = name

    def __reduce__(self) -> tuple[Any, ...]:
        return (DaskTask, (*self._gradguard, self.given))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DaskTask) and self._gradguard[3] == other._gradguard[3]

    def __hash__(self) -> int:
        return hash(self._gradguard[3])

    def __repr__(self) -> str:
        return repr(self._gradguard[3])

    def __dask_tokenize__(self) -> Any:
        from dask.base import normalize_token

        return normalize_token(self._gradguard[3])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        _, _, asked, function = self._gradguard
        function = attempt(task_seeds.seeded, asked, function, instead=function)
        try:
            return carried(functools.partial(function, *args, **kwargs), self._run, args, kwargs)
        except BaseException as error:
            without_this_frame(error)
            raise

    def _run(self, task: Callable[[], Any], args: Any, kwargs: Any) -> Any:
        origin, token, asked, function = self._gradguard
        items = [(function, args, kwargs)]
        is_actor = isinstance(function, type)
        if is_actor:
            _methods.apply()
        with Beside(_simulating, origin, asked):
            _arrive(asked, items[0])
            try:
                if origin != here():
                    attempt(_know, self.given, args, kwargs)
                    result, notes = running.in_process(
                        task,
                        items,
                        asked,
                        lambda error, notes: _send(origin, token, notes),
                        _nothing if is_actor else running.alone,
                    )
                elif (call := calls.by_token(token)) is not None:
                    result, notes = running.in_thread(task, call, items, asked), []
                else:
                    return task()
            except BaseException as error:
                without_this_frame(error)
                raise
            try:
                if frameworks.loaded():
                    _look_at(self._roots(result), items[0], origin, token)
                if origin != here():
                    return self._reply(result, notes)
            except Exception as error:
                fault(error)
            return result

    def _roots(self, result: Any) -> list[tuple[str, Any]]:
        """Where to look for what leaves this process as a result."""
        if isinstance(self._gradguard[3], type):
            return _attributes(result)
        return [("result", result)]

    def _reply(self, result: Any, notes: probes.Notes) -> Any:
        """Send notes to the process of the call; returns what is returned for `result`."""
        origin, token, _, _ = self._gradguard
        _send(origin, token, notes)
        return result


class DirectTask(DaskTask):
    """A task whose result goes straight to the process of its call."""

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self.__wrapped__ = self._gradguard[3]  # its signature says whether it wants the worker

    def _reply(self, result: Any, notes: probes.Notes) -> Any:
        message = _message(self._gradguard[1], notes)
        if message is None:
            return result
        return (_REPLY, message, sys.modules["distributed.protocol"].to_serialize(result))


_REPLY = "gradguard-reply"


def received(result: Any) -> Any:
    """The result of a `DirectTask` in the process of its call, without its notes."""
    if type(result) is not tuple or len(result) != 3 or type(result[0]) is not str:
        return result  # an array is not to be compared
    if result[0] != _REPLY:
        return result
    attempt(hear, result[1])
    return result[2]


def _know(given: Given, args: Any, kwargs: Any) -> None:
    """Know the modules that the task is given and that were sent apart from it."""
    for place, (token, number) in given.items():
        item = args[place] if isinstance(place, int) else kwargs[place]
        if isinstance(item, sys.modules["torch"].nn.Module):
            shipped_modules.know(token, number, item)


def _nothing(output: Any) -> list[Any]:
    """What the class of an actor returns: its object stays where it is."""
    return [None]


# -- methods of actors -----------------------------------------------------------------------------

METHOD = "_gradguard"
"""The keyword that tells a method of an actor which call it runs for."""


def call_named(token: int, given: Given) -> str:
    """What tells, in that keyword, of a call of this process, and what its method is given."""
    return plain_data.dumps((here(), token, given))


def _of_call(method: Any, args: Any, kwargs: Any, *more: Any, **options: Any) -> Arguments | None:
    call = kwargs.pop(METHOD, None)
    if call is None:
        return None
    origin, token, given = plain_data.loads(call, tuple[str, int, dict[int | str, tuple[int, int]]])
    return (_MethodTask(origin, token, {}, method, given), args, kwargs, *more), options


class _MethodTask(DirectTask):
    """A method of an actor, whose attributes can be asked for afterwards."""

    def _roots(self, result: Any) -> list[tuple[str, Any]]:
        return [*super()._roots(result), *_attributes(self._gradguard[3].__self__)]


def _attributes(actor: Any) -> list[tuple[str, Any]]:
    named = getattr(actor, "__dict__", {})
    return [(f"result.{name}", value) for name, value in list(named.items())]


_methods = LatePatches(
    lambda: [observe(sys.modules["distributed.worker"], "_run_actor", arguments=_of_call)]
)


# -- notes -----------------------------------------------------------------------------------------


def _simulating(origin: str, asked: Mapping[str, Any]) -> Any:
    """The simulation of the caller's GPUs, around a task in another process."""
    if origin == here() or simulated_devices.current is None:
        return None
    return simulated_devices.current.during(asked.get("simulated"))


def _arrive(asked: Mapping[str, Any], item: Any) -> None:
    generators = asked.get("gg305")
    if generators is not None:
        try:
            from pytest_gradguard.runtime.pitfalls.random import gg305

            gg305.arrive(generators, item)
        except Exception as error:
            fault(error)


def _message(token: int, notes: probes.Notes) -> str | None:
    """Notes, and what nested calls found, for the process of the call; None: there are none."""
    found = worker.take_findings()
    if not (notes or found):
        return None
    texts = [(name, plain_data.dumps(note)) for name, note in notes]
    return plain_data.dumps((token, found, texts))


def _send(origin: str, token: int, notes: probes.Notes) -> None:
    """Send notes, and what nested calls found, as an event of dask's."""
    message = _message(token, notes)
    if message is not None:
        sys.modules["distributed"].get_worker().log_event(topic(origin), message)


def topic(origin: str) -> str:
    """The topic of dask's events on which workers send notes to `origin`."""
    return f"gradguard-{origin}"


def hear(message: object) -> None:
    """Take what a task of a call of this process has to say; anybody may have sent it."""
    try:
        token, found, notes = plain_data.loads(message, _Message)
        read = probes.read(notes)
    except ValueError:  # it is none of the guard's
        return
    worker.receive(token, None, found, read)


_Message = tuple[int, list[Finding], list[tuple[str, str]]]
"""The token of a call, what nested calls found, and notes as plain data of their own."""


def _look_at(roots: list[tuple[str, Any]], item: Any, origin: str, token: int) -> None:
    """Mark what stands under `roots`, directly or in plain containers, and came of the task `item`:
    tensors with a graph, and copies of modules that were sent."""
    from pytest_gradguard.runtime.frameworks.torch import tensors as torch

    module = sys.modules["torch"].nn.Module
    apart = origin != here()
    tensors: list[Any] = []
    modules: list[Any] = []

    def look(one: Any) -> bool:
        if torch.is_tensor(one):
            if torch.grad_fn(one) is not None:
                tensors.append(one)
            return True
        if isinstance(one, module):
            modules.append(one)
            return True
        return False

    paths = locate.find(roots, look, deep=False, limit=_LOOKED_AT)
    if not paths:
        return
    task = task_of(item[0])
    for tensor in tensors:
        history = torch.grad_fn(tensor)
        note = Object(
            path=paths[id(tensor)],
            task=task,
            description=torch.describe(tensor),
            history=type(history).__name__,
            plain=True,
        )
        if apart:
            mark(tensor, origin, token, note)
        elif _is_over_copies(history, item):
            from pytest_gradguard.runtime.pitfalls.lost import provenance

            note.description["over_copies"] = True
            provenance.remember(token, note, tensor, dropped=False)
    for one in modules if apart else ():
        known = shipped_modules.origin_of(one)
        if known is not None:
            copy, part = known
            mark(one, origin, token, Returned(copy.token, copy.number, part, task))


def _is_over_copies(history: Any, item: Any) -> bool:
    """Whether a graph ends in tensors that came with the task: they are copies of the caller's."""
    from pytest_gradguard.runtime.frameworks.torch import tensors as torch

    ends = {id(leaf) for leaf in torch.leaves(history)}
    function, args, kwargs = item
    roots = [("args", args), ("kwargs", kwargs), ("", function)]
    return not ends.isdisjoint(locate.find(roots, torch.is_tensor))
