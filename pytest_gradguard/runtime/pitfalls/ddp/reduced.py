"""Parameters whose gradients the program averages itself (GG505)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from pytest_gradguard.runtime.kernel import callsite
from pytest_gradguard.runtime.pitfalls.ddp import sketches

_MOST = 10_000
"""How many tensors are remembered at a time."""

_POINT_TO_POINT = ("send", "recv")


class _Tensor(NamedTuple):
    storage: int
    numbers: int


class Reduced:
    """The tensors passed to collectives since the last step of an optimizer."""

    def __init__(self) -> None:
        self._by_group: dict[tuple[int, ...], list[_Tensor]] = {}
        self._done = False

    def record(self, name: str, group: Any, given: list[Any]) -> None:
        """Record the inputs of a collective."""
        if self._done:
            self._by_group.clear()
            self._done = False
        if not given or group.size() < 2 or name in _POINT_TO_POINT:
            return
        ranks = tuple(torch.distributed.get_process_group_ranks(group))
        known = self._by_group.setdefault(ranks, [])
        if len(known) < _MOST:
            comparable = filter(sketches.is_comparable, given)
            known += (_Tensor(_storage(one), one.numel()) for one in comparable)

    def stepped(self) -> None:
        """Record a step; parameters stepped after it may use the averaged gradients, too."""
        self._done = True

    def find(
        self, parameters: Sequence[Any]
    ) -> Iterator[tuple[tuple[int, ...], Mapping[str, Any]]]:
        """Yield groups of ranks that averaged gradients of `parameters`, with these, named.

        Either the gradients themselves were passed to collectives, or as many numbers as they have.
        """
        trained = [one for one in parameters if one.grad is not None]
        trained = [one for one in trained if all(map(sketches.is_comparable, (one, one.grad)))]
        for ranks, given in self._by_group.items():
            storages = {one.storage for one in given}
            averaged = [one for one in trained if _storage(one.grad) in storages]
            mine = {_storage(one.grad) for one in averaged}
            left = [one.numbers for one in given if one.numbers > 1 and one.storage not in mine]
            sizes = [one.numel() for one in trained]
            if not averaged and sum(left) in (sum(sizes), sum(one for one in sizes if one > 1)):
                averaged, left = trained, []
            named = _named(averaged)
            if named is None and not left:  # a bucket may hold a part of them, differing by rank
                named = {f"parameter {index}": one for index, one in enumerate(averaged)}
            if averaged and named is not None:
                yield ranks, named


def _storage(tensor: Any) -> int:
    place: int = tensor.untyped_storage().data_ptr()
    return place


def _named(parameters: Sequence[Any]) -> Mapping[str, Any] | None:
    """`parameters` by their names in a module that the program has at hand."""
    wanted = {id(one) for one in parameters}
    for module in _modules():
        named = {name: one for name, one in module.named_parameters() if id(one) in wanted}
        if len(named) == len(wanted):
            return named
    return None


def _modules() -> Iterator[Any]:
    """The modules that active user functions name, or that a user's object holds."""
    for frame in callsite.user_frames(callsite.user_frame()):
        values = [value for _, value in callsite.local_names(frame)]
        for value in (*values, *frame.f_globals.values()):
            if isinstance(value, torch.nn.Module):
                yield value
            elif callsite.is_users_class(type(value)):
                held = vars(value).values() if hasattr(value, "__dict__") else ()
                yield from (one for one in held if isinstance(one, torch.nn.Module))
