"""What `nn.DataParallel` and `torch.cuda.comm` do with several GPUs: copies from one to another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pytest_gradguard.simulation.replacing import Replacements


def install(replaced: Replacements) -> None:
    """Put the copies in place of those that torch makes in C++."""
    broadcasts: tuple[Any, ...] = (_broadcast, _broadcast_coalesced, _broadcast_out)
    for function in (*broadcasts, _scatter, _scatter_out, _gather, _gather_out):
        replaced.put(torch._C, function.__name__, function)
    from torch.cuda import nccl

    replaced.put(nccl, "is_available", lambda tensors: False)


def _on(device: int) -> torch.device:
    return torch.device("cpu") if device < 0 else torch.device("cuda", device)


def _broadcast(tensor: Any, devices: Sequence[int]) -> list[Any]:
    return [tensor.to(_on(device)) for device in devices]


def _broadcast_coalesced(
    tensors: Sequence[Any], devices: Sequence[int], buffer_size: int
) -> list[list[Any]]:
    return [[tensor.to(_on(device)) for tensor in tensors] for device in devices]


def _broadcast_out(tensor: Any, out: Sequence[Any]) -> list[Any]:
    return [one.copy_(tensor) for one in out]


def _scatter(
    tensor: Any, devices: Sequence[int], sizes: Sequence[int] | None, dim: int, streams: Any
) -> tuple[Any, ...]:
    chunks = tensor.chunk(len(devices), dim) if sizes is None else tensor.split(sizes, dim)
    return tuple(chunk.to(_on(device)) for chunk, device in zip(chunks, devices, strict=False))


def _scatter_out(tensor: Any, out: Sequence[Any], dim: int, streams: Any) -> tuple[Any, ...]:
    chunks = tensor.split([one.size(dim) for one in out], dim)
    return tuple(one.copy_(chunk) for one, chunk in zip(out, chunks, strict=True))


def _gather(tensors: Sequence[Any], dim: int, destination: int | None) -> Any:
    where = _on(torch.cuda.current_device() if destination is None else destination)
    return torch.cat([tensor.to(where) for tensor in tensors], dim)


def _gather_out(tensors: Sequence[Any], out: Any, dim: int) -> Any:
    return out.copy_(torch.cat([tensor.to(out.device) for tensor in tensors], dim))
