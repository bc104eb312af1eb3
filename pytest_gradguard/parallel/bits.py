"""Compare tensors and arrays by their bytes."""

from __future__ import annotations

import ctypes
import hashlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any


def digest(items: Iterable[Any]) -> bytes:
    """A digest of types, shapes and bytes of tensors and arrays."""
    torch = sys.modules["torch"]
    hashed = hashlib.blake2b(digest_size=16)
    for item in items:
        if not isinstance(item, torch.Tensor):
            hashed.update(repr((item.shape, item.dtype)).encode())
            hashed.update(item.tobytes())
            continue
        hashed.update(repr((tuple(item.shape), item.dtype, item.layout)).encode())
        for part in map(_bytes, _strided_parts(item.detach())):
            if part.numel():
                hashed.update((ctypes.c_char * part.numel()).from_address(part.data_ptr()))
    return hashed.digest()


def same_tensor(one: Any, other: Any) -> bool:
    """Whether two tensors hold the same bytes."""
    if (one.shape, one.dtype, one.layout) != (other.shape, other.dtype, other.layout):
        return False
    parts = zip(_strided_parts(one.detach()), _strided_parts(other.detach()), strict=True)
    return all(_same_bytes(some, others) for some, others in parts)


def same_array(one: Any, other: Any) -> bool:
    """Whether two arrays hold the same bytes."""
    numpy = sys.modules["numpy"]
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.nbytes:
        return True
    flat = (numpy.ascontiguousarray(item).reshape(-1).view(numpy.uint8) for item in (one, other))
    return bool((next(flat) == next(flat)).all())


def _strided_parts(tensor: Any) -> Iterator[Any]:
    """The strided tensors that a tensor consists of."""
    torch = sys.modules["torch"]
    if tensor.device.type == "meta":
        return
    if tensor.is_nested:
        for one in tensor.unbind():
            yield from _strided_parts(one)
    elif tensor.is_quantized:
        yield tensor.dequantize()
    elif tensor.layout is torch.strided:
        yield tensor
    elif tensor.layout is torch.sparse_coo:
        yield from (tensor._indices(), tensor._values())
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        yield from (tensor.crow_indices(), tensor.col_indices(), tensor.values())
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        yield from (tensor.ccol_indices(), tensor.row_indices(), tensor.values())
    else:
        yield tensor.to_dense()


def _bytes(tensor: Any) -> Any:
    """The bytes of a strided tensor, element by element."""
    torch = sys.modules["torch"]
    value = tensor.cpu().resolve_conj().resolve_neg().contiguous()
    flat = value.as_strided((value.numel(),), (1,))  # the stride of one element may be 0
    return flat.view(torch.uint8)


def _same_bytes(one: Any, other: Any) -> bool:
    torch = sys.modules["torch"]
    some, others = _bytes(one), _bytes(other)
    if not any((part.numel() | part.storage_offset()) % 8 for part in (some, others)):
        some, others = some.view(torch.int64), others.view(torch.int64)  # much faster
    return some.shape == others.shape and bool((some == others).all())  # faster than `torch.equal`
