"""Whether the results of tasks can hold gradients, or new values, of the tensors passed to them.

A gradient may come back as a tensor, an array or nested lists, scaled, clipped or summed, alone, in
a stack, or as a part of one long vector. So values are compared if available, otherwise sizes; an
object that cannot be searched may hold anything.
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Iterable
from typing import Any

import torch

from pytest_gradguard.runtime.frameworks.torch import tensors
from pytest_gradguard.runtime.frameworks.torch.copies import Copies, Copy
from pytest_gradguard.runtime.kernel import locate

_SAMPLED = 4_096
_FEW = 8
"""With fewer values than these, two vectors easily point the same way by chance."""
_SIMPLE = frozenset(
    {"builtins", "collections", "datetime", "decimal", "enum", "fractions", "numpy", "pathlib"}
    | {"torch", "types", "uuid"}
)
"""Modules whose objects without attributes hold no gradients, except for handled types."""
_CONTAINERS = (list, tuple, set, frozenset, deque)
_MOST = 20_000
"""How many objects are searched."""
_TEXT = 3
"""How many characters, at least, a number takes in a text."""


def find_kept(copies: Copies, results: Iterable[Any]) -> list[Copy]:
    """The `copies` with a gradient that is certainly not among the `results`."""
    got = [copy for copy in copies.with_gradient if not copy.seen_by_the_parent]
    if not got:
        return got
    held = Held(results)
    sizes = [copy.tensor.numel() for copy in got]
    if (
        copies.may_be_in_shared_memory(sum(sizes))
        or held.unknown
        or held.may_hold_text_of(sum(sizes))
        or held.is_long_vector(sizes)
    ):
        return []
    if len(got) > 1 and held.has_value_for_each([copy.tensor for copy in got], copies):
        return []
    left = []
    for copy in got:
        related = [_relation(copy, values, copies) for values in held.fitting(copy.tensor)]
        if all(one is False for one in related):
            left.append(copy)
    return left


def record_sent(copies: Copies, item: Any) -> None:
    """Record that `item`, which may hold some of these gradients, goes to another process."""
    left = find_kept(copies, [item])
    copies.sent.update(id(copy) for copy in copies.with_gradient if copy not in left)


def find_returned(copies: Copies, results: Iterable[Any], kept: list[Copy]) -> list[Copy]:
    """The `copies`, without parameters, whose gradients may be among the `results`."""
    own = [
        copy
        for copy in copies.every
        if not (copy.inherited or isinstance(copy.tensor, torch.nn.Parameter))
    ]
    found = [one for one in copies.with_gradient if one not in kept]
    found += [copy for copy in own if id(copy) in copies.sent]
    if not copies.gradients:
        return [copy for copy in own if copy in found]
    held = Held(results)
    return [
        copy
        for copy in own
        if copy in found
        or any(_is_held(gradient, copy, held, copies) for gradient in _computed(copy, copies))
    ]


def _computed(copy: Copy, copies: Copies) -> list[Any]:
    return copies.gradients.get(id(copy.tensor), [])


def _is_held(gradient: Any, copy: Copy, held: Held, copies: Copies) -> bool:
    """Whether a gradient computed for `copy`, or a value derived from it, may be in `held`."""
    size = copy.tensor.numel()
    if held.unknown or held.may_hold_text_of(size):
        return True
    fitting = [one for one in held.fitting(copy.tensor) if _may_be_gradient(one, copies)]
    if gradient is None:
        return bool(fitting)
    with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
        grad = _flat(gradient)
        for values in fitting:
            stacked = size != _size(values)
            read = _flat(torch.as_tensor(values).sum(0) if stacked else values)
            if _close(read, grad) or (size > 1 and _aligned(read, grad)):
                return True
    return False


class Held:
    """The numbers among the results.

    Attributes:
        arrays: tensors, arrays, nested lists of numbers, and single numbers.
        unknown: some objects cannot be searched.
        integers: how many single integers there are.
    """

    def __init__(self, results: Iterable[Any]) -> None:
        self.arrays: list[Any] = []
        self.unknown = False
        self.integers = 0
        self._bytes = 0
        self._characters = 0
        numpy: Any = sys.modules.get("numpy")
        self._array = () if numpy is None else numpy.ndarray
        self._number = (float,) if numpy is None else (float, numpy.floating)
        seen: dict[int, Any] = {}
        queue = deque(results)
        while queue and not self.unknown:
            item = queue.popleft()
            if id(item) not in seen and not self._record(item):
                seen[id(item)] = item
                queue.extend(inner for _, inner in locate.inside("", item))
                self.unknown = len(seen) + len(queue) > _MOST

    def _record(self, item: Any) -> bool:
        """Record an item that holds no others; return whether it is one."""
        kind = type(item)
        if tensors.is_tensor(item) or isinstance(item, self._array):
            self.arrays.append(item)
        elif kind is list or kind is tuple:
            if _shape_of(item) is None:
                return False
            self.arrays.append(item)
        elif isinstance(item, (bytes, bytearray, memoryview)):
            self._bytes += len(item)
        elif kind is str:
            self._characters += len(item)
        elif isinstance(item, self._number):
            self.arrays.append(float(item))
        elif kind is int:
            self.integers += 1
        elif not isinstance(item, (dict, *_CONTAINERS)) and not _has_attributes(item):
            self.unknown = kind.__module__ not in _SIMPLE
        else:
            return False
        return True

    def may_hold_text_of(self, size: int) -> bool:
        """Whether bytes or text are long enough for so many numbers."""
        return self._bytes >= size or self._characters >= _TEXT * size

    def may_hold(self, wanted: list[Any], parameters: list[Any], tasks: int) -> bool:
        """Whether one of the tensors `wanted`, or a value derived from it, may be here.

        Args:
            wanted: buffers of a module.
            parameters: its parameters: each task may return as many gradients of such shapes.
            tasks: how many tasks the results are of.
        """
        numbers = [one for one in wanted if one.is_floating_point() or one.is_complex()]
        size = sum(one.numel() for one in numbers)
        if self.unknown or (size and self.may_hold_text_of(size)):
            return True
        if not numbers:
            whole = [one for one in self.arrays if not _is_floating(one)]
            return bool(self.integers) or any(_size(one) == 1 for one in whole)
        if self.holds_any(numbers):
            return True
        shapes = Counter(_shape(one) for one in self.arrays if _is_floating(one))
        expected = Counter(tuple(one.shape) for one in parameters)
        return any(
            shapes[shape] > tasks * expected[shape]
            for shape in {tuple(one.shape) for one in numbers}
            if shape
        )

    def holds_any(self, wanted: list[Any], *, single: bool = True) -> bool:
        """Whether the values of one of the tensors `wanted` are here, alone or among others.

        Args:
            wanted: the tensors.
            single: compare a tensor of one number by value; otherwise by identity.
        """
        for one in self.arrays:
            if _is_floating(one):
                values = None
                for tensor in wanted:
                    if one is tensor:
                        return True
                    if _size(one) >= tensor.numel() > (0 if single else 1):
                        values = _whole(one) if values is None else values
                        if _has_run(values, _whole(tensor)):
                            return True
        return False

    def is_long_vector(self, sizes: list[int]) -> bool:
        """Whether one vector is long enough for all of several tensors of these `sizes`."""
        total = sum(sizes)
        return len(sizes) > 1 and any(
            len(shape) == 1 and shape[0] >= total for shape in map(_shape, self.arrays)
        )

    def has_value_for_each(self, wanted: list[Any], copies: Copies) -> bool:
        """Whether there is one value for each of these tensors, of any content."""
        sizes = Counter(_shape(one) for one in self.arrays if _may_be_gradient(one, copies))
        return not Counter(tuple(tensor.shape) for tensor in wanted) - sizes

    def fitting(self, tensor: Any) -> list[Any]:
        """The arrays of the size of `tensor`: in its shape, flat, or stacked."""
        shape, size = tuple(tensor.shape), tensor.numel()
        return [
            one
            for one in self.arrays
            if _shape(one) in (shape, (size,)) or (shape and _shape(one)[1:] == shape)
        ]


def _relation(copy: Copy, values: Any, copies: Copies) -> bool | None:
    """Whether `values` are the gradient of `copy`, or derived from it; None: unknown."""
    tensor = copy.tensor
    if not _may_be_gradient(values, copies):
        return False
    with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
        own = _flat(tensor)
        stacked = tensor.numel() != _size(values)
        read = _flat(torch.as_tensor(values).sum(0) if stacked else values)
        gradient = copy.gradient
        if _close(read, own):
            return True
        if gradient is None:
            return None
        grad = _flat(gradient)
        if _close(read, grad):
            return True
        if len(read) == 1 and not stacked:
            losses = [_flat(loss) for loss in copies.losses]
            return False if any(_close(read, loss) for loss in losses) else None
        if _aligned(read, grad) or _aligned(read - own, grad):
            return True
        return False if copies.passes == 1 else None


def _flat(values: Any) -> torch.Tensor:
    if not tensors.is_tensor(values):
        values = torch.as_tensor(values)
    flat = values.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // _SAMPLED)].to("cpu", torch.float64)


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(torch.allclose(one, other, rtol=1e-3, atol=1e-9))


def _aligned(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two vectors are parallel or opposite; if unknown, they may be."""
    cosine = torch.nn.functional.cosine_similarity(one, other, dim=0).abs().item()
    return not cosine < (0.99 if len(one) < _FEW else 0.8)


def _may_be_gradient(values: Any, copies: Copies) -> bool:
    """Whether these are floating-point numbers that were not passed to the task."""
    if id(values) in copies.others:
        return False
    return _is_floating(values)


_RUNS = 100
"""How many positions of a long vector are compared with the wanted numbers."""


def _whole(values: Any) -> torch.Tensor:
    if not tensors.is_tensor(values):
        values = torch.as_tensor(values)
    with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
        return values.detach().reshape(-1).to("cpu", torch.float64)


def _has_run(values: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Whether the numbers `wanted` occur consecutively in `values`."""
    size = len(wanted)
    if len(values) == size:
        return _close(values, wanted)
    begins = torch.isclose(values[: len(values) - size + 1], wanted[0], rtol=1e-3, atol=1e-9)
    places = begins.nonzero().flatten()[:_RUNS].tolist()
    return any(_close(values[place : place + size], wanted) for place in places)


def _is_floating(values: Any) -> bool:
    """Whether these are floating-point or complex numbers."""
    if tensors.is_tensor(values):
        return bool(values.is_floating_point() or values.is_complex())
    return getattr(getattr(values, "dtype", None), "kind", "f") in "fc"


def _shape(values: Any) -> tuple[int, ...]:
    shape = getattr(values, "shape", None)
    if shape is None:
        return _shape_of(values) or ()
    return tuple(int(size) for size in shape)


def _size(values: Any) -> int:
    size = 1
    for length in _shape(values):
        size *= length
    return size


def _shape_of(values: Any) -> tuple[int, ...] | None:
    """The shape of (nested) lists of floats, as `tolist` makes them; None for other objects."""
    if isinstance(values, float):
        return ()
    if type(values) not in (list, tuple) or not values:
        return None
    shapes = {_shape_of(value) for value in values}
    inner = shapes.pop()
    return None if shapes or inner is None else (len(values), *inner)


def _has_attributes(item: Any) -> bool:
    if any("__slots__" in base.__dict__ for base in type(item).__mro__):
        return True
    try:
        object.__getattribute__(item, "__dict__")
    except AttributeError:
        return False
    return True
