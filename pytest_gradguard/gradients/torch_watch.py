"""Watches torch tensors: which of them receive a gradient."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from pytest_gradguard.gradients import targets, torch_exits, torch_patches, watched
from pytest_gradguard.gradients.torch_entries import (
    Entry,
    gradient_of,
    keep_extremes,
    uninitialised,
)
from pytest_gradguard.gradients.torch_log import Log
from pytest_gradguard.runtime.kernel import references
from pytest_gradguard.runtime.kernel.callsite import user_site

_DERIVATIVES = frozenset(torch_exits.DERIVATIVES.values())
_plain = torch._C.DisableTorchFunctionSubclass


class TorchWatch(watched.FrameworkWatch[Entry, Log]):
    """The torch part of one watch, without the verdicts (`torch_diagnosis`)."""

    def __init__(self, items: list[targets.Item], *, check_values: bool) -> None:
        self._replaced: list[Entry] = []
        self._arrived: list[Entry] = []
        self._nothing_missing = False
        self._swapped = False
        self._ran = False
        super().__init__(items, check_values=check_values)

    # -- what is watched -----------------------------------------------------------------------

    def _add(self, name: str, tensor: Any) -> None:
        known = self._entries.get(id(tensor))
        if known is not None:
            if known.ref() is tensor:
                return
            self._replaced.append(known)
        before = self._by_name.get(name)
        entry = Entry(name, tensor)
        if before is not None and before is not known:
            before.current = False
            if not before.received:
                before.look()
        self._entries[id(tensor)] = entry
        self._by_name[name] = entry
        self._nothing_missing = False
        if self.log is not None:
            entry.begin(self._arrived, appeared=True, measure=self._check_values)

    def _look_for_new(self) -> None:
        """Find parameters that were added, replaced or swapped since the last check."""
        if self._swapped:
            self._swapped = False
            for entry in self.entries:
                entry.look_after_swap()
        for prefix, module in self._live_owners():
            known = self._entries
            if all(
                id(parameter) in known and known[id(parameter)].ref() is parameter
                for inner in _modules_of(module)
                for parameter in inner._parameters.values()
                if parameter is not None
            ):
                continue
            for name, parameter in module.named_parameters():
                self._add(targets.join(prefix, name), parameter)
            start = targets.join(prefix, "")
            for name, entry in list(self._by_name.items()):
                if name.startswith(start) and _is_computed(module, name[len(start) :]):
                    entry.current = False
                    del self._by_name[name]

    @property
    def whole_modules(self) -> bool:
        """Whether only modules are watched."""
        return bool(self._owners) and not self._tensors

    def replaced(self, name: str) -> list[Entry]:
        """Earlier entries of `name`."""
        return [
            entry
            for entry in [*self._entries.values(), *self._replaced]
            if entry.name == name and entry is not self._by_name[name]
        ]

    # -- what happens --------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to watch."""
        self.log = torch_patches.start(self)
        references.swapping.append(self._before_swap)
        for entry in list(self._entries.values()):
            entry.begin(self._arrived, appeared=False, measure=self._check_values)

    def stop(self) -> None:
        """Check a last time, and remove all hooks."""
        if self.log is None:
            return
        torch_patches.stop(self)
        if self._before_swap in references.swapping:
            references.swapping.remove(self._before_swap)
        self.look()
        for entry in [*self._entries.values(), *self._replaced]:
            entry.release()

    def look(self) -> None:
        """Update all entries."""
        self._look_for_new()
        for entry in [*self._entries.values(), *self._replaced]:
            entry.look(state=not self._ran)

    def _before_swap(self, tensor: Any) -> None:
        """Remove the hook of `tensor`, which would move with the content."""
        entry = self.entry_of(tensor)
        if entry is not None:
            entry.release()
        self._swapped = True
        self._nothing_missing = False

    def before_backward(self) -> None:
        """Find new tensors before a backward pass, so that their gradients are observed."""
        self._look_for_new()
        if not self._nothing_missing:
            for entry in list(self._by_name.values()):
                if entry.hook is None:
                    entry.watch(self._arrived, measure=self._check_values)

    def look_at_gradients(self) -> None:
        """Check `.grad` where the program itself may have set it."""
        if self._nothing_missing:
            return
        for entry in list(self._by_name.values()):
            if not entry.received:
                entry.look(state=False)
                tensor = entry.ref() if entry.received and self._check_values else None
                gradient = None if tensor is None else gradient_of(tensor)
                if gradient is not None:
                    keep_extremes(entry, gradient)

    def after_backward(self, inputs: Any, outcome: Any) -> None:
        """Record the gradients of a backward pass."""
        self._ran = True
        arrived = self._arrived[:]
        del self._arrived[: len(arrived)]
        returned: list[tuple[Entry, Any]] = []
        if isinstance(outcome, tuple):
            for tensor, gradient in zip(inputs, outcome, strict=False):
                entry = self._asked_for(tensor)
                if entry is not None and gradient is not None:
                    entry.take()
                    if not torch._C._functorch.is_functorch_wrapped_tensor(gradient):
                        returned.append((entry, gradient))
        if not self._nothing_missing:
            for entry in list(self._by_name.values()):
                if not entry.received:
                    entry.look()
                    if entry.received:
                        arrived.append(entry)
                        tensor = entry.ref()
                        gradient = None if tensor is None else gradient_of(tensor)
                        if gradient is not None:
                            returned.append((entry, gradient))
            self._nothing_missing = all(entry.received for entry in self._by_name.values())
        if arrived or returned:
            site = user_site()
            for entry in (*arrived, *(entry for entry, _ in returned)):
                entry.arrived = site
        if self._check_values:
            for entry, gradient in returned:
                keep_extremes(entry, gradient)

    def _asked_for(self, tensor: Any) -> Entry | None:
        """The entry behind `tensor`, an input of `autograd.grad`.

        Functions of torch that differentiate wrap, view or detach their arguments first.
        """
        entry = self.entry_of(tensor)
        if entry is not None or not isinstance(tensor, torch.Tensor):
            return entry
        functorch = torch._C._functorch
        while functorch.is_functorch_wrapped_tensor(tensor):
            tensor = functorch.get_unwrapped(tensor)
        with _plain():
            if tensor._is_view() and tensor.layout is torch.strided:
                base = tensor._base
                if base.layout is torch.strided and base.is_set_to(tensor):
                    tensor = base
        made = None if self.log is None else self.log.made.get(id(tensor))
        if made is not None and made.exit in _DERIVATIVES and made.produced(tensor):
            tensor = made.original_of(tensor)
        return self.entry_of(tensor)

    def missing(self) -> list[Any]:
        """Live watched tensors without a gradient so far."""
        if self._nothing_missing:
            return []
        live = (entry.ref() for entry in self._by_name.values() if not entry.received)
        return [tensor for tensor in live if tensor is not None and not uninitialised(tensor)]


def _modules_of(module: Any) -> Iterator[Any]:
    stack = [module]
    seen = {id(module)}
    while stack:
        current = stack.pop()
        yield current
        for inner in current._modules.values():
            if inner is not None and id(inner) not in seen:
                seen.add(id(inner))
                stack.append(inner)


def _is_computed(module: Any, name: str) -> bool:
    """Whether an attribute of `module` is computed: by a parametrization or a pruning."""
    path, _, last = name.rpartition(".")
    try:
        owner = module.get_submodule(path)
    except (AttributeError, RuntimeError):  # there is none, or it is TorchScript's
        return False
    if last in owner._parameters:
        return False
    parametrized = owner._modules.get("parametrizations")
    return last in getattr(parametrized, "_modules", ()) or isinstance(
        vars(owner).get(last), torch.Tensor
    )
