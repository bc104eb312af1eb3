"""GG501: what collectives hand out without a graph, followed to where a backward begins.

Which rank's part a tensor holds is known by its place in memory. Only this rank's own part is
followed: usual programs treat the parts of the others as constants, too, and put their own back.
A function mode follows it, from such a call to the next backward.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from pytest_gradguard.runtime import callsite, collector, locate
from pytest_gradguard.runtime.checks import gg501
from pytest_gradguard.runtime.distributed import C10D
from pytest_gradguard.runtime.faults import fault, without_this_frame
from pytest_gradguard.runtime.frameworks.torch import engine, steps, tensors
from pytest_gradguard.runtime.frameworks.torch.following import (
    Marks,
    has_derivative,
    is_constant,
    push_below,
    take_off,
    tensors_in,
)
from pytest_gradguard.runtime.patching import Patch, Patches, on_class

_compiling = torch.compiler.is_compiling

_WRITES = frozenset(
    (
        *("__setitem__", "copy_", "index_copy_", "index_put_", "masked_scatter_", "scatter_"),
        "put_",
    )
)
"""What puts one tensor into a part of another."""
_COMBINES = frozenset(
    (
        *("where", "scatter", "index_copy", "index_put", "masked_scatter", "put"),
        *("select_scatter", "slice_scatter", "diagonal_scatter"),
    )
)
"""The same, as functions that return what they have put together."""
_COLLECTIVES = "torch.distributed"
"""Whose functions come through a mode, too: what they hand out is known already."""
_FRAMES = 3
"""In how many functions of the program a tensor's name is looked for."""


class Cut:
    """One tensor with history that a collective was given, and its values that came out of it.

    Attributes:
        function: the collective.
        site: the line that called it.
        given: what it was called there, and its description.
        settled: the own part was put back, or it has been reported.
        over: a backward has run since: nothing more is followed.
    """

    def __init__(self, function: str, tensor: Any, home: collector.Collector) -> None:
        frame = callsite.user_frame()
        self.function = function
        self.home = home
        self.site = None if frame is None else callsite.site_of(frame)
        self.given = (_name_of(tensor, frame), tensors.describe(tensor))
        self.settled = False
        self.over = False
        self._tensor = weakref.ref(tensor)
        self._storage = 0
        self._range = (0, 0)

    def own_part(self, output: Any, part: int, parts: int) -> None:
        """Say that this rank's own values are that part of `output`."""
        size = output.numel() * output.element_size() // parts
        start = output.storage_offset() * output.element_size() + part * size
        self._storage = output.untyped_storage().data_ptr()
        self._range = (start, start + size)

    def overlaps(self, tensor: Any) -> bool:
        """Whether `tensor` may hold this rank's own values: not where it lies beside them."""
        if not self._storage or tensor.layout is not torch.strided:
            return True
        if tensor.untyped_storage().data_ptr() != self._storage:
            return True
        first = tensor.storage_offset()
        sizes = zip(tensor.shape, tensor.stride(), strict=True)
        last = first + sum((size - 1) * stride for size, stride in sizes)
        width = tensor.element_size()
        start, end = self._range
        return bool(tensor.numel() and first * width < end and (last + 1) * width > start)

    def wanted(self, inputs: tuple[Any, ...]) -> bool:
        """Whether one of the tensors whose gradients are asked for lacks something."""
        tensor = self._tensor()
        if not inputs:
            return True
        if tensor is None:
            return False
        asked = {id(one) for one in inputs}
        return id(tensor) in asked or any(id(one) in asked for one in tensors.leaves_of([tensor]))


def _name_of(tensor: Any, frame: Any) -> str:
    """What the program calls `tensor` where it hands it to a collective, if it has a name there."""
    for one in callsite.user_frames(frame, _FRAMES):
        for name, value in callsite.local_names(one):
            if value is tensor:
                return name
    return ""


_marks: Marks[Cut] = Marks()
"""The tensors that were computed from values without their graph."""
_within: Marks[Cut] = Marks()
"""The same where gradients were off: what an autograd function returns gets a graph afterwards."""


def _cuts_of(tensor: Any) -> frozenset[Cut]:
    """The values without their graph that `tensor` was computed from, as one that has gradients."""
    cuts = _marks.of(tensor)
    if _within and (not torch.is_grad_enabled() or tensors.requires_grad(tensor)):
        cuts |= _within.of(tensor)
    return cuts


# -- the collectives -----------------------------------------------------------------------------


class _Part(NamedTuple):
    """The values of a tensor that was given, in an output: that part of so many."""

    given: Any
    output: Any
    part: int = 0
    parts: int = 1


_Parts = Callable[..., Iterator[_Part]]
"""Given the rank, the number of ranks and the arguments: which output has what this rank gave."""


def _in_lists(rank: int, ranks: int, outputs: Any, inputs: Any, *_: Any) -> Iterator[_Part]:
    if isinstance(inputs, torch.Tensor):
        outputs, inputs = [outputs], [inputs]
    for given, parts in zip(inputs, outputs, strict=False):
        yield _Part(given, parts[rank])


def _in_lists_of_ranks(
    rank: int, ranks: int, outputs: Any, inputs: Any, *_: Any
) -> Iterator[_Part]:
    yield from (_Part(*one) for one in zip(inputs, outputs[rank], strict=False))


def _in_one(rank: int, ranks: int, output: Any, given: Any, *_: Any) -> Iterator[_Part]:
    yield _Part(given, output, rank, ranks)


def _in_each(rank: int, ranks: int, outputs: Any, inputs: Any, *_: Any) -> Iterator[_Part]:
    yield from (_Part(*one, rank, ranks) for one in zip(inputs, outputs, strict=False))


def _exchanged(rank: int, ranks: int, outputs: Any, inputs: Any, *_: Any) -> Iterator[_Part]:
    yield _Part(inputs[rank], outputs[rank])


_METHODS: dict[str, tuple[str, _Parts]] = {
    "allgather": ("all_gather", _in_lists),
    "allgather_coalesced": ("all_gather_coalesced", _in_lists_of_ranks),
    "_allgather_base": ("all_gather_into_tensor", _in_one),
    "all_gather_single": ("all_gather_single", _in_one),
    "all_gather_single_coalesced": ("all_gather_into_tensor", _in_each),
    "allgather_into_tensor_coalesced": ("all_gather_into_tensor", _in_each),
    "gather": ("gather", _in_lists),
    "alltoall": ("all_to_all", _exchanged),
}
"""The methods of a process group, all of which fill their outputs with values alone."""


def _watched(name: str, parts: _Parts) -> Callable[[Any], Callable[..., Any]]:
    def wrap(original: Any) -> Callable[..., Any]:
        original = on_class(original, torch.distributed.ProcessGroup)

        @functools.wraps(original)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                outcome = original(self, *args, **kwargs)
            except BaseException as error:
                without_this_frame(error)
                raise
            if not _compiling() and not kwargs:
                try:
                    for part in parts(self.rank(), self.size(), *args):
                        _gathered(name, part)
                except Exception as error:
                    fault(error)
            return outcome

        return method

    return wrap


def _gathered(name: str, part: _Part) -> None:
    """Take what a collective was given, and what it handed out for it."""
    for marks in (_marks, _within):
        marks.drop(part.output)  # a buffer that is used again
    cut = _cut(name, part.given)
    if cut is not None:
        cut.own_part(part.output, part.part, part.parts)
        _mark(cut, part.output)
        base = part.output._base
        if base is not None:
            _mark(cut, base)


def _cut(name: str, given: Any) -> Cut | None:
    """What is to be followed of `given`: None where nobody can miss its gradient."""
    if not torch.is_grad_enabled() or not tensors.recorded(given) or tensors.spent(given):
        return None
    home = collector.innermost()
    if home is None or gg501.CODE in home.ignore | collector.allowed_now():
        return None
    return Cut(name, given, home)


def _mark(cut: Cut, tensor: Any) -> None:
    _marks.add(tensor, frozenset((cut,)))
    _follow_here()


def _replacing(original: Any) -> Callable[..., Any]:
    """`broadcast`, which writes the values of one rank over those of the others."""
    original = on_class(original, torch.distributed.ProcessGroup)

    @functools.wraps(original)
    def broadcast(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = []
        try:
            if torch.is_grad_enabled() and not _compiling():
                before = _to_be_replaced(self, *args)
        except Exception as error:
            fault(error)
        try:
            outcome = original(self, *args, **kwargs)
        except BaseException as error:
            without_this_frame(error)
            raise
        if before:
            try:
                _replaced(before, outcome)
            except Exception as error:
                fault(error)
        return outcome

    return broadcast


def _to_be_replaced(group: Any, given: Any, options: Any = None, *_: Any) -> list[tuple[Any, Any]]:
    """The tensors with history that a call writes over at once, and their values."""
    root = getattr(options, "rootRank", None)
    if root is None or root == group.rank() or getattr(options, "asyncOp", False):
        return []
    with torch._C.DisableTorchFunction():
        return [(one, one.detach().clone()) for one in given if tensors.recorded(one)]


def _replaced(before: list[tuple[Any, Any]], work: Any) -> None:
    if work is not None:
        work.wait()  # as the caller is about to
    for tensor, values in before:
        with torch._C.DisableTorchFunction():
            same = torch.equal(tensor.detach(), values)
        cut = None if same else _cut("broadcast", tensor)
        if cut is not None:
            _mark(cut, tensor)


class _Objects(threading.local):
    """The object that this thread sends with `all_gather_object` or `gather_object`."""

    sent: Any = None
    arrived = 0


_objects = _Objects()
_FEW = 1_000
"""Among how many objects in plain containers tensors are looked for."""


def _sending(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _object_to_tensor(obj: Any, *args: Any, **kwargs: Any) -> Any:
        _objects.sent, _objects.arrived = None, 0
        if torch.is_grad_enabled():
            _objects.sent = obj
        return original(obj, *args, **kwargs)

    return _object_to_tensor


def _arriving(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _tensor_to_object(*args: Any, **kwargs: Any) -> Any:
        obj = original(*args, **kwargs)
        sent, place = _objects.sent, _objects.arrived
        _objects.arrived += 1
        if sent is not None and len(args) > 2:
            try:
                if place == torch.distributed.get_rank(args[2]):
                    _objects.sent = None
                    _own_object(sent, obj)
            except Exception as error:
                fault(error)
        return obj

    return _tensor_to_object


def _own_object(sent: Any, arrived: Any) -> None:
    copies = _by_path(arrived)
    for path, tensor in _by_path(sent).items():
        cut = _cut("all_gather_object", tensor)
        if cut is not None and path in copies:
            _mark(cut, copies[path])


def _by_path(item: Any) -> dict[str, Any]:
    """The tensors in plain containers."""
    found: dict[int, Any] = {}

    def wanted(one: Any) -> bool:
        return tensors.is_tensor(one) and found.setdefault(id(one), one) is one

    paths = locate.find([("", item)], wanted, deep=False, limit=_FEW)
    return {path: found[identity] for identity, path in paths.items()}


def gathered_by_library(name: str, given: Any, output: Any) -> None:
    """A library has gathered `given`, the parts of the ranks one after the other in `output`."""
    if not tensors.requires_grad(output):
        group = torch.distributed
        _gathered(name, _Part(given, output, group.get_rank(), group.get_world_size()))


# -- following -----------------------------------------------------------------------------------


class _Following(TorchFunctionMode):  # type: ignore[misc]
    """Follows what is computed from values without their graph."""

    def __init__(self) -> None:
        super().__init__()
        self.done = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if _marks and not self.done and not _compiling():
            try:
                _follow(func, args, kwargs, result)
            except Exception as error:
                fault(error)
        return result


def _follow(func: Any, args: Any, kwargs: Any, result: Any) -> None:
    if is_constant(func) or str(getattr(func, "__module__", "")).startswith(_COLLECTIVES):
        return
    given = tensors_in((args, kwargs))
    cuts = frozenset().union(*map(_cuts_of, given))
    cuts = frozenset(cut for cut in cuts if not (cut.over or cut.settled))
    if not cuts:
        return
    name = getattr(func, "__name__", "")
    own = any(tensors.requires_grad(one) and not _cuts_of(one) for one in given)
    if own and (name in _WRITES or name in _COMBINES):
        for cut in cuts if name in _WRITES else ():
            cut.settled = True
        return
    marks = _marks if torch.is_grad_enabled() else _within
    for tensor in tensors_in(args[:1] if result is None else result):
        if has_derivative(tensor):
            held = frozenset(cut for cut in cuts if cut.overlaps(tensor))
            if held:
                marks.add(tensor, held)


class _Thread(threading.local):
    mode: _Following | None = None


_thread = _Thread()


def _follow_here() -> None:
    """Follow what this thread computes, until its next backward."""
    if _thread.mode is None:
        steps.before.subscribe(_stepping)
        engine.subscribe(_backward, engine.Order.REPORTS)
        _thread.mode = _Following()
        push_below(_thread.mode)
    _thread.mode.done = False


def _stepping(optimizer: Any) -> None:
    """Take the mode off the stack: a backward that it is called through puts it back at its end."""
    mode = _thread.mode
    if mode is not None and mode.done:
        _rest()


def _rest() -> None:
    mode, _thread.mode = _thread.mode, None
    if mode is not None:
        take_off(mode)


# -- the backward --------------------------------------------------------------------------------


def _backward(run: engine.Backward) -> engine.End | None:
    if not _marks:
        return None
    cuts = {cut for output in run.outputs for cut in _cuts_of(output) if not cut.settled}
    cuts = {cut for cut in cuts if cut.wanted(run.inputs)}
    fails = not any(map(tensors.requires_grad, run.outputs))

    def ended(_: Any, raised: BaseException | None) -> None:
        mode = _thread.mode
        if mode is not None and not run.create_graph:
            mode.done = True
            for cut in _followed():
                cut.over = True
        if cuts and (raised is None or fails):
            _report(cuts, "backward" if run.accumulates else "autograd.grad", fails)

    return ended


def _followed() -> set[Cut]:
    return {cut for _, cuts in list(_marks.known.values()) for cut in cuts}


def _report(cuts: set[Cut], verb: str, fails: bool) -> None:
    frame = callsite.user_frame()
    backward = None if frame is None else callsite.site_of(frame)
    for cut in cuts:
        cut.settled = True
        if gg501.CODE in collector.allowed_now():
            continue

        def make(cut: Cut = cut) -> gg501.Evidence:
            return gg501.Evidence(cut.site, cut.function, cut.given, backward, verb, fails)

        evidence = cut.home.evidence((gg501.CODE, cut.site and cut.site.key), make)
        evidence.count += 1
        if evidence.count == 1:
            collector.announce(cut.home, [evidence])


# -- on and off ----------------------------------------------------------------------------------


def _make() -> Patches:
    group = torch.distributed.ProcessGroup
    c10d: Any = sys.modules[C10D]
    patches = [
        Patch(group, method, _watched(*known))
        for method, known in _METHODS.items()
        if method in vars(group)
    ]
    patches += [
        Patch(group, "broadcast", _replacing),
        Patch(c10d, "_object_to_tensor", _sending),
        Patch(c10d, "_tensor_to_object", _arriving),
    ]
    return Patches(patches)


_patches = functools.cache(_make)


def apply() -> None:
    """Watch the collectives; backward passes only once one has handed out what is followed."""
    _patches().apply()


def undo() -> None:
    """Leave torch's own functions as they were, and follow no more."""
    _patches().undo()
    engine.unsubscribe(_backward)
    _marks.clear()
    _within.clear()
    _rest()
    steps.before.unsubscribe(_stepping)
