"""Sizes of arrays, as far as they are known, and the owners of their memory."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from gradguard_lint.domain.questions import Key
from gradguard_lint.domain.values import (
    UNKNOWN,
    Atom,
    Const,
    External,
    Items,
    Tensor,
    Unknown,
    Value,
)
from gradguard_lint.engine.ports import Args
from gradguard_lint.models import torch_words
from gradguard_lint.models.numpy import (
    DRAWN_BY_SHAPE,
    ELEMENTS,
    FLOATS,
    ITEM_SIZES,
    SHAPED,
    SIZE_ARGUMENTS,
)

Extent = tuple[int, ...]
"""A shape and the size of an element in bytes; empty if unknown."""


def array_extent(short: str, args: Args) -> Extent:
    """The extent of the array that the NumPy function `short` creates."""
    first = args.get(0)
    if first is None:
        return ()
    size = item_size(args.get(SHAPED.get(short), "dtype"))
    if short in SHAPED:
        shape = shape_of(first)
        return (*shape, size) if shape is not None and size else ()
    if short in ("zeros_like", "ones_like"):
        return memory_of(first)[1]
    if short in ("arange", "eye") and len(args.positional) == 1:
        count = first.constant
        return (count,) * (1 + (short == "eye")) + (size,) if isinstance(count, int) else ()
    if short == "linspace":
        number = (args.get(2, "num") or UNKNOWN).constant
        return (number, size) if isinstance(number, int) else ()
    if short == "array":
        literal = literal_shape(first)
        return (*literal, size) if size and literal is not None else ()
    if short in ("split", "array_split"):
        whole, parts = memory_of(first)[1], args.constant(1, "indices_or_sections")
        if len(whole) > 1 and isinstance(parts, int) and parts > 0:
            return (-(-whole[0] // parts), *whole[1:])
    return ()


def drawn_extent(short: str, args: Args) -> Extent:
    """The extent of what the random function `short` returns."""
    if short in DRAWN_BY_SHAPE:
        sizes = [_number(value) for value in args.positional]
        return (*_numbers(sizes), 8) if sizes and len(_numbers(sizes)) == len(sizes) else ()
    size = args.get(SIZE_ARGUMENTS.get(short, 2), "size")
    shape = shape_of(size) if size is not None and not size.is_none else None
    return (*shape, item_size(args.get(None, "dtype")) or 8) if shape is not None else ()


def shape_of(value: Value) -> Extent | None:
    """The shape in a number, or a sequence of numbers."""
    only = value.only
    number = _number(value)
    if isinstance(number, int):
        return (number,)
    if isinstance(only, Items) and only.items is not None:
        sizes = _numbers([_number(item) for item in only.items])
        return sizes if len(sizes) == len(only.items) else None
    return None


def _number(value: Value) -> object:
    """The number in `value`; an option's default counts."""
    given = [atom for atom in value.atoms if not isinstance(atom, Const)]
    known = value.constants()
    if len(known) != 1 or not all(isinstance(it, Unknown) and _is_option(it.key) for it in given):
        return None
    return known[0]


def _is_option(key: Key) -> bool:
    return isinstance(key, tuple) and key[:1] == ("option",)


def literal_shape(value: Value) -> Extent | None:
    """The shape of a literal list of numbers, or of nested ones."""
    only = value.only
    if isinstance(only, Const):
        return ()
    if not isinstance(only, Items) or not only.items:
        return None
    inner = literal_shape(only.items[0])
    return None if inner is None else (len(only.items), *inner)


def _numbers(values: list[object]) -> Extent:
    return tuple(value for value in values if isinstance(value, int))


def item_size(dtype: Value | None) -> int:
    """The size of an element in bytes; 0 if it is unknown."""
    if dtype is None or dtype.is_none:
        return 8
    only = dtype.only
    name = only.name.rpartition(".")[2] if isinstance(only, External) else None
    if isinstance(only, Const):
        name = str(only.value)
    return ITEM_SIZES.get(name, 8) if name is not None else 0


def element_of(dtype: Value | None, names: Mapping[str, str]) -> str:
    """The type of elements that an argument names; "" where it isn't known."""
    only = dtype.only if dtype is not None else None
    name = only.name.rpartition(".")[2] if isinstance(only, External) else None
    if isinstance(only, Const) and isinstance(only.value, str):
        name = only.value
    return names.get(name, name) if name is not None else ""


def element_made(short: str, args: Args) -> str:
    """The element type of the array that the NumPy function `short` creates."""
    dtype = args.get(SHAPED.get(short), "dtype")
    if short.endswith("_like") and dtype is None:
        return element_in(memory_of(args.get(0))[0])
    if dtype is None or dtype.is_none:
        return "float64" if short in FLOATS and not args.open else ""
    return element_of(dtype, ELEMENTS)


def element_in(memory: Key) -> str:
    """The element type of the array with this memory."""
    if isinstance(memory, tuple) and memory[0] == "array" and len(memory) > 2:
        return str(memory[2])
    return ""


def same_element(memory: Key, dtype: Value) -> bool:
    """Whether the array with this memory certainly has elements of torch's `dtype`."""
    element = element_of(dtype, torch_words.ELEMENTS)
    return element != "" and element == element_in(memory)


def retyped(extent: Extent, args: Args) -> Extent:
    """`extent` after ``astype``."""
    size = item_size(args.get(0, "dtype"))
    return (*extent[:-1], size) if extent and size else ()


def flat(extent: Extent) -> Extent:
    """`extent` in an unknown shape."""
    return (prod(extent),) if extent else ()


def lies_apart(value: Value | None) -> bool:
    """Whether an array may be non-contiguous."""
    return value is not None and any(tensor.strided for tensor in value.tensors())


def memory_of(value: Value | None) -> tuple[Key, Extent]:
    """The owner of an array's memory, and its extent; None if it may be one of several."""
    only: Atom | None = value.only if value is not None else None
    if isinstance(only, Tensor) and only.framework == "numpy":
        return only.memory, only.extent
    return (only.key or only.sent, ()) if isinstance(only, Unknown) else (None, ())
