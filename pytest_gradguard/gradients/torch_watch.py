"""Watches torch tensors: which of them receive a gradient, and what they were when they did not.

Everything is weak. What a tensor was is kept as plain values, so that a tensor that is gone by the
end of the watch still gets its reason.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from pytest_gradguard.details import Details
from pytest_gradguard.gradients import targets, torch_exits, torch_log, torch_patches
from pytest_gradguard.gradients.clock import now
from pytest_gradguard.runtime.frameworks.torch import tensors
from pytest_gradguard.runtime.kernel import references
from pytest_gradguard.runtime.kernel.callsite import Site, user_site
from pytest_gradguard.runtime.kernel.faults import fault
from pytest_gradguard.runtime.kernel.references import refer

_MEASURED = (torch.Tensor, torch.nn.Parameter)
_DERIVATIVES = frozenset(torch_exits.DERIVATIVES.values())
_compiling = torch.compiler.is_compiling
_plain = torch._C.DisableTorchFunctionSubclass


class State(NamedTuple):
    """What a tensor was when it was last looked at."""

    requires_grad: bool
    is_leaf: bool
    retains_grad: bool
    differentiable: bool
    inference: bool
    made_by: str
    description: Details


def state_of(tensor: Any) -> State:
    """What `tensor` is now."""
    with _plain():
        history = tensor.grad_fn
        return State(
            requires_grad=tensor.requires_grad,
            is_leaf=tensor.is_leaf,
            retains_grad=tensor.retains_grad,
            differentiable=tensor.is_floating_point() or tensor.is_complex(),
            inference=tensor.is_inference(),
            made_by="" if history is None else type(history).__name__,
            description={} if _uninitialised(tensor) else tensors.describe(tensor),
        )


class Entry:
    """One watched tensor.

    Attributes:
        name: its dotted name.
        received: whether a gradient has reached it since it was watched, under its name.
        received_late: whether one reached it after another object had taken its name.
        arrived: where the backward ran that brought the last gradient.
        state: what the tensor was in the last backward; before there is one, what it is.
        thawed: whether it did not require grad when it was first looked at, and did later.
    """

    def __init__(self, name: str, tensor: Any) -> None:
        self.name = name
        self.ref: Callable[[], Any] = lambda: tensor
        self.state: State | None = None
        self.thawed = False
        self.since = now()
        self.current = True
        self.received = False
        self.received_late = False
        self.arrived: Site | None = None
        self.measured = False
        self.bounds: tuple[Any, Any] | None = None
        self.hook: Any = None
        self._old: tuple[Any, int, tuple[float, ...]] | None = None

    def begin(self, arrived: list[Entry], *, appeared: bool, measure: bool) -> None:
        """Begin to watch; from here on, the tensor lives only as long as the program keeps it."""
        tensor = self.ref()
        self.ref = refer(tensor)
        if not appeared:
            self._know_old(tensor)
        self.look()
        self.watch(arrived, measure=measure)

    def _know_old(self, tensor: Any) -> None:
        """Take the gradient that is there now for one that no backward of the watch has brought."""
        gradient = gradient_of(tensor)
        self._old = (
            None
            if gradient is None
            else (refer(gradient), gradient._version, _shared_content(gradient))
        )

    def look(self, *, state: bool = True) -> None:
        """Note whether the tensor's `.grad` is a new one, and what the tensor is (`state`)."""
        tensor = self.ref()
        if tensor is None:
            return
        if self.state is None or (state and not self.received):
            before, self.state = self.state, state_of(tensor)
            if before is not None and self.state.requires_grad and not before.requires_grad:
                self.thawed = True
        if not self.received and self.current:
            gradient = gradient_of(tensor)
            if gradient is None or self._is_old(gradient):
                return
            if self._old and self._old[0]() is gradient and largest_of(gradient) == 0:
                self._know_old(tensor)  # it was cleared in place
            else:
                self.take()

    def _is_old(self, gradient: Any) -> bool:
        """Whether `gradient` is the one that was there when the watch began, unchanged."""
        if self._old is None:
            return False
        reference, version, shared = self._old
        if reference() is not gradient or gradient._version != version:
            return False
        return not shared or _shared_content(gradient) == shared

    def take(self) -> None:
        """A gradient has arrived."""
        if self.current:
            self.received = True
        else:
            self.received_late = True

    def watch(self, arrived: list[Entry], *, measure: bool) -> None:
        """Have torch report the gradients that arrive, as soon as that is possible."""
        tensor = self.ref()
        if tensor is None or self.hook is not None:
            return
        with _plain():
            if not tensor.requires_grad or not tensor.is_leaf or _uninitialised(tensor):
                return

        def hook(parameter: Any) -> None:
            # torch calls it also where an operation gave no gradient (None) for this input.
            try:
                gradient = gradient_of(parameter)
                if gradient is None or (not self.received and self._is_old(gradient)):
                    return
                self.take()
                arrived.append(self)
                if measure and not _compiling():  # now, while the gradient is in the cache
                    _measure(self, gradient)
            except Exception as error:
                fault(error)

        with _plain():
            self.hook = tensor.register_post_accumulate_grad_hook(hook)
            hooks = tensor._post_accumulate_grad_hooks
            if measure:
                _make_bounds(self, tensor)
        for key in [key for key in hooks if key != self.hook.id]:
            hooks[key] = hooks.pop(key)  # after ours: a user's hook may use the gradient up

    def look_after_swap(self) -> None:
        """See that a gradient from before the watch is still one, with the content it has now."""
        tensor = self.ref()
        if tensor is not None and self._old and self._old[0]() is gradient_of(tensor):
            self._know_old(tensor)

    def release(self) -> None:
        """Take the hook off."""
        if self.hook is None:
            return
        self.hook.remove()
        self.hook = None
        tensor = self.ref()
        if tensor is not None:
            with _plain():  # torch runs no hook that is put into an old dict after a swap
                if not tensor._post_accumulate_grad_hooks:
                    tensor._post_accumulate_grad_hooks = None


def gradient_of(tensor: Any) -> Any:
    """`tensor.grad`, without torch's warning that a non-leaf keeps none."""
    with _plain():
        if _uninitialised(tensor) or not (tensor.is_leaf or tensor.retains_grad):
            return None
        return tensor.grad


def _uninitialised(tensor: Any) -> bool:
    return isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin)


class TorchWatch:
    """The torch part of one watch, but for the verdict (`torch_diagnosis`)."""

    def __init__(self, items: list[targets.Item], *, check_values: bool) -> None:
        self._check_values = check_values
        self._modules: list[tuple[str, weakref.ref[Any]]] = []
        self._entries: dict[int, Entry] = {}
        self._tensors = False
        self._replaced: list[Entry] = []
        self._by_name: dict[str, Entry] = {}
        self._arrived: list[Entry] = []
        self._nothing_missing = False
        self._swapped = False
        self._ran = False
        self.began = now()
        self.log: torch_log.Log | None = None
        for item in items:
            if item.kind == "module":
                module = targets.unwrapped(item.value)
                self._modules.append((item.name, weakref.ref(module)))
                self._look_for_new()
            else:
                self._tensors = True
                self._add(item.name, item.value)

    def unread(self) -> list[str]:
        """None: the values of torch's gradients can be looked at."""
        return []

    def description(self, name: str) -> Details:
        """Type, shape, dtype and device of the tensor of that name."""
        entry = self._by_name.get(name)
        return {} if entry is None or entry.state is None else entry.state.description

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
        """Find parameters that were added, replaced or swapped since the last time."""
        if self._swapped:
            self._swapped = False
            for entry in self.entries:
                entry.look_after_swap()
        for prefix, reference in self._modules:
            module = reference()
            if module is None:
                continue
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
        """Whether modules are watched, and nothing else."""
        return bool(self._modules) and not self._tensors

    @property
    def entries(self) -> list[Entry]:
        """One entry a name: what stands under it now."""
        return list(self._by_name.values())

    def replaced(self, name: str) -> list[Entry]:
        """What stood under `name` before."""
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
        """Look a last time, and leave every tensor as it was."""
        if self.log is None:
            return
        torch_patches.stop(self)
        if self._before_swap in references.swapping:
            references.swapping.remove(self._before_swap)
        self.look()
        for entry in [*self._entries.values(), *self._replaced]:
            entry.release()

    def look(self) -> None:
        """See what has arrived."""
        self._look_for_new()
        for entry in [*self._entries.values(), *self._replaced]:
            entry.look(state=not self._ran)

    def watches(self, tensor: Any) -> bool:
        """Whether `tensor` is one of those that are watched."""
        return self.entry_of(tensor) is not None

    def _before_swap(self, tensor: Any) -> None:
        """Take the hook off `tensor`: it would go with the content. The next backward needs one."""
        entry = self.entry_of(tensor)
        if entry is not None:
            entry.release()
        self._swapped = True
        self._nothing_missing = False

    def before_backward(self) -> None:
        """See what is new before a backward begins, so that its gradient is noticed."""
        self._look_for_new()
        if not self._nothing_missing:
            for entry in list(self._by_name.values()):
                if entry.hook is None:
                    entry.watch(self._arrived, measure=self._check_values)

    def look_at_gradients(self) -> None:
        """See what the program itself has put into `.grad`, which is used or cleared now."""
        if self._nothing_missing:
            return
        for entry in list(self._by_name.values()):
            if not entry.received:
                entry.look(state=False)
                tensor = entry.ref() if entry.received and self._check_values else None
                gradient = None if tensor is None else gradient_of(tensor)
                if gradient is not None:
                    _measure(entry, gradient)

    def after_backward(self, inputs: Any, outcome: Any) -> None:
        """See what a backward has brought."""
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
                _measure(entry, gradient)

    def entry_of(self, tensor: Any) -> Entry | None:
        """The entry of `tensor`."""
        entry = self._entries.get(id(tensor))
        return entry if entry is not None and entry.ref() is tensor else None

    def _asked_for(self, tensor: Any) -> Entry | None:
        """The entry of the tensor whose gradient was asked for by `tensor`.

        That is itself, or what functions of torch that differentiate make of their arguments: a
        wrapper, a view of the whole, or a detached one.
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
        """The live watched tensors that have received no gradient so far."""
        if self._nothing_missing:
            return []
        live = (entry.ref() for entry in self._by_name.values() if not entry.received)
        return [tensor for tensor in live if tensor is not None and not _uninitialised(tensor)]


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
    """Whether a name of `module` is computed from parameters of other names.

    So it is once a parametrization, a weight norm or a pruning has been put on a parameter.
    """
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


def _make_bounds(entry: Entry, like: Any) -> None:
    """Room for the least and the largest value of a gradient, made before there is one.

    What is allocated during a backward and kept lies between the activations that are freed then,
    and breaks the room that the next step takes up again: measured, 3 % of a training step.
    """
    dtype = like.dtype.to_real() if like.is_complex() else like.dtype
    low, high = (torch.empty((), dtype=dtype, device=like.device) for _ in range(2))
    entry.bounds = (low, high)


def _measure(entry: Entry, gradient: Any) -> None:
    """Keep the range of a gradient's values, where it lies: no device is waited for."""
    if _extremes(gradient, entry) is not None:
        entry.measured = True


def _extremes(gradient: Any, entry: Entry | None = None) -> Any:
    """The least and the largest value of `gradient`, as tensors, in the room of `entry` if given.

    None where torch has none for it.
    """
    plain = gradient._values() if gradient.layout is torch.sparse_coo else gradient
    if type(plain) not in _MEASURED or plain.is_meta or not plain.numel():
        return None
    enabled = torch.is_grad_enabled()
    torch._C._set_grad_enabled(False)
    try:
        if plain.is_complex():
            plain = torch.view_as_real(plain.resolve_conj())
        if entry is None:
            return torch.aminmax(plain)
        bounds = entry.bounds
        if bounds is None or bounds[0].dtype != plain.dtype or bounds[0].device != plain.device:
            _make_bounds(entry, plain)
        # NaN comes through; ten times as fast as a norm
        return torch.aminmax(plain, out=entry.bounds)
    except (RuntimeError, NotImplementedError, TypeError):
        return None  # a kind of tensor that torch has no order for
    finally:
        torch._C._set_grad_enabled(enabled)


def _shared_content(gradient: Any) -> tuple[float, ...]:
    """What shows that another process has written to `gradient`; empty where none can.

    Its version counts what this process does alone.
    """
    with _plain():
        if gradient.layout is not torch.strided or gradient.device.type != "cpu":
            return ()
        if not gradient.is_shared():
            return ()
        content = [gradient.sum(dtype=torch.float64), *(_extremes(gradient) or ())]
        return tuple(float(one) for one in torch.nan_to_num(torch.stack(content)))


def largest(entry: Entry) -> float | None:
    """The largest absolute value of the last gradient of `entry`; None where it is not known.

    What the program has made of `.grad` counts, but not that it has cleared it in place.
    """
    came, stands = _came_and_stands(entry)
    return came if stands is None or (stands == 0 and came is not None) else stands


def cleared_in_place(entry: Entry) -> bool:
    """Whether a gradient arrived whose `.grad` is all zero now, but was not then."""
    came, stands = _came_and_stands(entry)
    return stands == 0 and bool(came)


def _came_and_stands(entry: Entry) -> tuple[float | None, float | None]:
    """The largest absolute values of what arrived last, and of what `.grad` holds."""
    came = _largest(entry.bounds) if entry.measured else None
    tensor = entry.ref()
    gradient = None if tensor is None else gradient_of(tensor)
    return came, None if gradient is None else largest_of(gradient)


def largest_of(gradient: Any) -> float | None:
    """The largest absolute value of `gradient`; None where it is not known."""
    return _largest(_extremes(gradient))


def _largest(bounds: Any) -> float | None:
    if bounds is None:
        return None
    low, high = (float(bound) for bound in bounds)
    return high if math.isnan(high) else max(abs(low), abs(high))
