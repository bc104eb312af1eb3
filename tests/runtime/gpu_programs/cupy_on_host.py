"""A stand-in for a GPU's memory: CuPy's real arrays over memory of the host.

CuPy asks its allocator for memory, as ever. Nothing can be computed there, and arrays cannot copy
their data to the host, so they are pickled without it.
"""

from __future__ import annotations

import ctypes
from typing import Any

import cupy


def allocate(size: int) -> Any:
    buffer = ctypes.create_string_buffer(max(size, 1))
    memory = cupy.cuda.UnownedMemory(ctypes.addressof(buffer), size, buffer, device_id=0)
    return cupy.cuda.MemoryPointer(memory, 0)


def reduce(array: Any) -> Any:
    return make, (array.shape, array.dtype.str)


def make(shape: tuple[int, ...], dtype: str) -> Any:
    return cupy.empty(shape, dtype)


def fail(error: Exception) -> None:
    raise error


cupy.cuda.set_allocator(allocate)
cupy.ndarray.__reduce__ = reduce


# -- what tasks do ---------------------------------------------------------------------------------


def take(size: int) -> tuple[int, ...]:
    return cupy.empty(size).shape


def take_nothing(size: int) -> bool:
    return cupy.empty(0).shape == (0,) and not cupy.is_available()


def give(size: int) -> Any:
    return {"made": [cupy.empty(size)]}


def shape_of(array: Any) -> Any:
    return array.shape


def work_on(array: Any) -> Any:
    return cupy.empty_like(array).shape


def doubled(number: int) -> int:
    return number * 2


def choose(index: int) -> Any:
    import os

    os.environ["CUDA_VISIBLE_DEVICES"] = str(index)
    return cupy.empty(index + 1).shape
