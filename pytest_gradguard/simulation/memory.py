"""What lies on each simulated GPU, counted as the caching allocator counts it."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from pytest_gradguard.runtime.kernel.locks import Lock

BLOCK = 512
"""The allocator rounds every request up to blocks of so many bytes."""

TOTAL = 16 * 2**30
"""How many bytes each simulated GPU has."""


class _Count:
    __slots__ = ("allocated", "current", "freed", "peak")

    def __init__(self) -> None:
        self.current = self.peak = self.allocated = self.freed = 0

    def add(self, amount: int) -> None:
        self.current += amount
        if amount > 0:
            self.allocated += amount
            self.peak = max(self.peak, self.current)
        else:
            self.freed -= amount

    def told(self) -> dict[str, int]:
        return {
            "current": self.current,
            "peak": self.peak,
            "allocated": self.allocated,
            "freed": self.freed,
        }


class Memory:
    """Bytes and allocations by device."""

    def __init__(self) -> None:
        self._bytes: defaultdict[int, _Count] = defaultdict(_Count)
        self._blocks: defaultdict[int, _Count] = defaultdict(_Count)
        self._reserved: defaultdict[int, _Count] = defaultdict(_Count)
        # Re-entrant: a collection may run, and free tensors, wherever Python allocates.
        self._lock = Lock()

    def take(self, device: int, size: int) -> int:
        """Take `size` bytes of `device`; returns how many it really takes."""
        size = -(-size // BLOCK) * BLOCK
        with self._lock:
            self._bytes[device].add(size)
            self._blocks[device].add(1)
            held = self._reserved[device]
            short = self._bytes[device].current - held.current
            if short > 0:
                held.add(-(-short // 2**21) * 2**21)
        return size

    def free(self, device: int, size: int) -> None:
        """Give back what `take` took."""
        with self._lock:
            self._bytes[device].add(-size)
            self._blocks[device].add(-1)

    def empty_cache(self) -> None:
        """Keep no more than what is in use."""
        with self._lock:
            for device, held in self._reserved.items():
                needed = -(-self._bytes[device].current // 2**21) * 2**21
                if needed < held.current:
                    held.add(needed - held.current)

    def reset_peak(self, device: int) -> None:
        """Let the peaks of `device` begin anew."""
        for counts in (self._bytes, self._blocks, self._reserved):
            counts[device].peak = counts[device].current

    def reset_accumulated(self, device: int) -> None:
        """Let the totals of `device` begin anew."""
        for counts in (self._bytes, self._blocks, self._reserved):
            counts[device].allocated = counts[device].freed = 0

    def free_bytes(self, device: int) -> int:
        """How many bytes the driver would call free."""
        return TOTAL - self._reserved[device].current

    def stats(self, device: int) -> dict[str, Any]:
        """As ``torch._C._cuda_memoryStats`` gives them: nested, by pool."""
        with self._lock:
            of_bytes = self._bytes[device].told()
            of_blocks = self._blocks[device].told()
            of_reserved = self._reserved[device].told()
        nothing = _Count().told()
        values: dict[str, Any] = {
            "allocation": of_blocks,
            "segment": nothing,
            "active": of_blocks,
            "inactive_split": nothing,
            "allocated_bytes": of_bytes,
            "reserved_bytes": of_reserved,
            "active_bytes": of_bytes,
            "inactive_split_bytes": nothing,
            "requested_bytes": of_bytes,
        }
        stats: dict[str, Any] = {
            name: {"all": value, "small_pool": value, "large_pool": nothing}
            for name, value in values.items()
        }
        stats["oversize_allocations"] = stats["oversize_segments"] = nothing
        stats |= {
            "num_alloc_retries": 0,
            "num_ooms": 0,
            "num_sync_all_streams": 0,
            "num_device_alloc": of_blocks["allocated"],
            "num_device_free": 0,
            "max_split_size": -1,
        }
        return stats

    def snapshot(self) -> dict[str, Any]:
        """As ``torch._C._cuda_memorySnapshot`` gives it: one segment for each device in use."""
        with self._lock:
            held = {index: count.current for index, count in self._reserved.items()}
            used = {index: count.current for index, count in self._bytes.items()}
        segments = []
        for device, size in held.items():
            if not size:
                continue
            active = used[device]
            parts = (("active_allocated", active), ("inactive", size - active))
            about = {
                "device": device,
                "address": 0,
                "total_size": size,
                "allocated_size": active,
                "active_size": active,
                "requested_size": active,
                "stream": 0,
                "segment_type": "large",
                "segment_pool_id": (0, 0),
                "is_expandable": False,
                "frames": [],
            }
            about["blocks"] = [
                {"address": 0, "size": part, "requested_size": part, "state": state, "frames": []}
                for state, part in parts
                if part
            ]
            segments.append(about)
        return {"segments": segments, "device_traces": [], "allocator_settings": {}}

    def forget(self) -> None:
        """A fresh lock, for one that another thread held at a fork stays locked."""
        self._lock = Lock()
