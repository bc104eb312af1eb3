"""The torch objects of a closure: temporarily in double precision, then restored."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from pytest_gradguard.checking.reach import Reached
from pytest_gradguard.runtime.kernel import generators

_DOUBLE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}
_SIMPLE = (bool, int, float, str, type(None))
_MOST_NUMBERS = 1_000_000
"""The largest tensor outside of modules that is restored if written to."""

Undo = Callable[[], object]


class State:
    """All torch objects that a closure may change.

    Args:
        parameters: the tensors whose gradients are checked.
        reached: the closure's other objects.

    Attributes:
        padding: by the id of an embedding's weight: the rows that get no gradient, by design.
    """

    def __init__(self, parameters: list[Any], reached: Reached) -> None:
        found = (one for root in reached.modules if _is_module(root) for one in root.modules())
        self._modules = list(dict.fromkeys(found))
        owned = {id(one): one for one in parameters}
        for module in self._modules:
            for one in (*module._parameters.values(), *module._buffers.values()):
                if one is not None:
                    owned.setdefault(id(one), one)
        others = {id(one): one for one in reached.tensors if id(one) not in owned}
        self._tensors = [one for one in (*owned.values(), *others.values()) if one.is_leaf]
        self._kept = [
            one for one in self._tensors if id(one) in owned or one.numel() <= _MOST_NUMBERS
        ]
        self._generators = reached.generators
        self.padding: dict[int, set[int]] = {}
        for module in self._modules:
            row = getattr(module, "padding_idx", None)
            if row is not None and isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)):
                self.padding.setdefault(id(module.weight), set()).add(row)

    def may_cast(self) -> bool:
        """Whether tensors can be cast and restored, and nothing else depends on them."""
        return not any(
            _is_wrapper(one)
            or (one.requires_grad and (_has_hooks_of_ranks(one) or _lends_gradient(one)))
            for one in self._tensors
        )

    def is_shared(self) -> bool:
        """Whether other processes may read the parameters in place."""
        return any(
            one.device.type == "cpu" and one.is_shared()
            for one in self._tensors
            if one.requires_grad
        )

    @contextlib.contextmanager
    def double(self) -> Iterator[None]:
        """A block in which all tensors are in double precision, including new ones."""
        before = [(one, one.data) for one in self._tensors if one.dtype in _DOUBLE]
        default = torch.get_default_dtype()
        try:
            for one in self._tensors:
                one.grad = None
            _cast([one for one, _ in before])
            torch.set_default_dtype(torch.float64)
            yield
        finally:
            torch.set_default_dtype(default)
            for one, data in before:
                one.grad = None
                one.data = data

    def cast_new(self, tensors: list[Any]) -> None:
        """Cast those of `tensors` back that were created in a block of double precision."""
        known = {id(one) for one in self._tensors}
        for one in tensors:
            if id(one) not in known and one.dtype == torch.float64 and one.grad_fn is None:
                one.data = one.data.to(torch.get_default_dtype())

    @contextlib.contextmanager
    def kept(self) -> Iterator[Undo]:
        """A block after which everything is restored; yields a function that restores it early."""
        values = [(one, one.detach().clone(), one.requires_grad) for one in self._kept]
        gradients = [
            (one, one.grad, None if one.grad is None else one.grad.detach().clone())
            for one in self._tensors
        ]
        modules = [
            (one, _simple_values(one), dict(one._buffers))
            for one in self._modules
            if isinstance(one._buffers, dict)  # not of a scripted module
        ]
        random = [generators.capture(), *(_capture(one) for one in self._generators)]

        def put_back() -> None:
            for module, simple, buffers in modules:
                module.__dict__.update(simple)
                module._buffers.clear()
                module._buffers.update(buffers)
            with torch.no_grad():
                for one, value, requires_grad in values:
                    if not _same(one, value):
                        one.data.copy_(value)
                    if one.requires_grad != requires_grad:
                        one.requires_grad_(requires_grad)
                for one, gradient, value in gradients:
                    if gradient is not None and not _same(gradient, value):
                        gradient.copy_(value)
                    one.grad = gradient
            for undo in random:
                undo()

        try:
            yield put_back
        finally:
            put_back()

    def clear_gradients(self) -> None:
        """Set every gradient to zero, in the tensors that hold them."""
        for one in self._tensors:
            if one.grad is not None:
                one.grad.detach().zero_()


def _is_module(root: Any) -> bool:
    return isinstance(root, torch.nn.Module)


def _same(one: Any, value: Any) -> bool:
    """Whether both hold the same bits, or NaN in the same places."""
    if one.layout is not torch.strided or value.layout is not torch.strided:
        return False
    if _is_wrapper(one):
        return _same(one.to_local(), value.to_local()) if hasattr(one, "to_local") else False
    return one.shape == value.shape and bool(torch.equal(one, value))


def _simple_values(module: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if isinstance(value, _SIMPLE)}


def _capture(generator: Any) -> Undo:
    """A function that restores the current state of a generator of the program."""
    if isinstance(generator, torch.Generator):
        return _later(generator.set_state, generator.get_state())
    if hasattr(generator, "setstate"):
        return _later(generator.setstate, generator.getstate())
    if hasattr(generator, "set_state"):
        return _later(generator.set_state, generator.get_state(legacy=False))
    bits = generator.bit_generator
    return _later(setattr, bits, "state", bits.state)


def _later(function: Callable[..., object], *args: Any) -> Undo:
    return lambda: function(*args)


# -- casting ---------------------------------------------------------------------------------------


def _is_wrapper(tensor: Any) -> bool:
    """Whether `tensor` is of a class of its own, such as `DTensor`, without its own storage."""
    kind = type(tensor)
    return kind is not torch.Tensor and type(tensor.data) is not torch.Tensor


def _has_hooks_of_ranks(parameter: Any) -> bool:
    """Whether DDP or the like may have hooks on the gradient accumulator.

    These would be lost, because a cast gives a tensor another accumulator.
    """
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return False
    _accumulator(parameter).metadata["gradguard"] = True
    return "gradguard" in _accumulator(parameter).metadata  # another object holds it


def _accumulator(parameter: Any) -> Any:
    with torch.enable_grad():
        return parameter.view_as(parameter).grad_fn.next_functions[0][0]


def _lends_gradient(parameter: Any) -> bool:
    """Whether the memory of its gradient has other users."""
    gradient = parameter.grad
    if gradient is None or gradient.layout is not torch.strided:
        return False
    storage = gradient.untyped_storage()
    shared = gradient.device.type == "cpu" and gradient.is_shared()
    return bool(shared or storage.nbytes() != gradient.numel() * gradient.element_size())


def _cast(tensors: list[Any]) -> None:
    """Cast `tensors` in place; those that share memory still do."""
    groups: dict[Any, list[Any]] = {}
    for one in tensors:
        storage = one.untyped_storage()
        groups.setdefault((one.device, storage.data_ptr(), one.dtype), []).append(one)
    for members in groups.values():
        kind = _DOUBLE[members[0].dtype]
        if len(members) == 1 or not members[0].untyped_storage().data_ptr():
            for one in members:
                one.data = one.data.to(kind)
            continue
        first = members[0].data
        whole = torch.empty(0, dtype=first.dtype, device=first.device)
        whole = whole.set_(first.untyped_storage()).to(kind)
        for one in members:
            one.data = whole.as_strided(one.size(), one.stride(), one.storage_offset())
