"""GG501: outputs of collectives, which have no graph; `cuts` follows them to a backward pass.

Only this rank's own part is followed: programs usually treat the others' parts as constants.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from pytest_gradguard.runtime.frameworks.torch import tensors
from pytest_gradguard.runtime.kernel import locate
from pytest_gradguard.runtime.kernel.observing import observe
from pytest_gradguard.runtime.kernel.patching import Patches
from pytest_gradguard.runtime.pitfalls.ddp import C10D, cuts, shadows

_compiling = torch.compiler.is_compiling


class _Part(NamedTuple):
    """The part of an output, and of how many, that holds the values of an input."""

    given: Any
    output: Any
    part: int = 0
    parts: int = 1


_Parts = Callable[..., Iterator[_Part]]
"""Yields, for the rank, the number of ranks and the arguments, the parts this rank filled."""


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
"""The methods of a process group that fill their outputs with values only."""


def _ended(name: str, parts: _Parts, result: Any, group: Any, *args: Any, **kwargs: Any) -> None:
    if not _compiling() and not kwargs:
        for part in parts(group.rank(), group.size(), *args):
            _gathered(name, part)


def _gathered(name: str, part: _Part) -> None:
    """Follow an input of a collective into its output."""
    shadows.forget(part.output)  # a reused buffer
    cut = cuts.find_cut(name, part.given)
    if cut is not None:
        cuts.follow(cut, part.output, part.part, part.parts)


def _replaces(group: Any, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]] | None:
    """Save the tensors that `broadcast` overwrites with another rank's values."""
    wanted = torch.is_grad_enabled() and not _compiling()
    return (_to_be_replaced(group, *args) or None) if wanted else None


def _to_be_replaced(group: Any, given: Any, options: Any = None, *_: Any) -> list[tuple[Any, Any]]:
    """The tensors with history that a synchronous call overwrites, and their values."""
    root = getattr(options, "rootRank", None)
    if root is None or root == group.rank() or getattr(options, "asyncOp", False):
        return []
    with torch._C.DisableTorchFunction():
        return [(one, one.detach().clone()) for one in given if tensors.recorded(one)]


def _replaced(before: list[tuple[Any, Any]], work: Any, *args: Any, **kwargs: Any) -> None:
    if work is not None:
        work.wait()  # as the caller is about to
    for tensor, values in before:
        with torch._C.DisableTorchFunction():
            same = torch.equal(tensor.detach(), values)
        cut = None if same else cuts.find_cut("broadcast", tensor)
        if cut is not None:
            cuts.follow(cut, tensor)


class _Objects(threading.local):
    """The object that this thread sends with `all_gather_object` or `gather_object`."""

    sent: Any = None
    arrived = 0


_objects = _Objects()
_FEW = 1_000
"""How many objects in plain containers are searched for tensors."""


def _sends(obj: Any, *args: Any, **kwargs: Any) -> None:
    _objects.sent = obj if torch.is_grad_enabled() else None
    _objects.arrived = 0


def _arrived(obj: Any, *args: Any, **kwargs: Any) -> None:
    sent, place = _objects.sent, _objects.arrived
    _objects.arrived += 1
    if sent is not None and len(args) > 2:
        group = args[2]
        own = torch.distributed.get_rank() if group is None else group.rank()
        if place == own:
            _objects.sent = None
            _own_object(sent, obj)


def _own_object(sent: Any, arrived: Any) -> None:
    copies = _by_path(arrived)
    for path, tensor in _by_path(sent).items():
        cut = cuts.find_cut("all_gather_object", tensor)
        if cut is not None and path in copies:
            cuts.follow(cut, copies[path])


def _by_path(item: Any) -> dict[str, Any]:
    """The tensors in plain containers, by path."""
    found: dict[int, Any] = {}

    def wanted(one: Any) -> bool:
        return tensors.is_tensor(one) and found.setdefault(id(one), one) is one

    paths = locate.find([("", item)], wanted, deep=False, limit=_FEW)
    return {path: found[identity] for identity, path in paths.items()}


def gathered_by_library(name: str, given: Any, output: Any) -> None:
    """Follow `given`, which a library has gathered; `output` holds the parts of all ranks."""
    if not tensors.requires_grad(output):
        group = torch.distributed
        _gathered(name, _Part(given, output, group.get_rank(), group.get_world_size()))


def _make() -> Patches:
    group = torch.distributed.ProcessGroup
    c10d: Any = sys.modules[C10D]
    patches = [
        observe(group, method, after=functools.partial(_ended, *known))
        for method, known in _METHODS.items()
        if method in vars(group)
    ]
    patches += [
        observe(group, "broadcast", before=_replaces, after=_replaced),
        observe(c10d, "_object_to_tensor", before=_sends),
        observe(c10d, "_tensor_to_object", after=_arrived),
    ]
    return Patches(patches)


_patches = functools.cache(_make)


def apply() -> None:
    """Watch the collectives; backward passes only once a followed output exists."""
    _patches().apply()
