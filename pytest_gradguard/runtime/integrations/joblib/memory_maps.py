"""The memory maps that joblib makes of large arrays, and gives its workers in their place."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from pytest_gradguard.runtime.kernel import transfer
from pytest_gradguard.runtime.kernel.observing import observe
from pytest_gradguard.runtime.kernel.patching import Patch
from pytest_gradguard.runtime.pitfalls.maps import gg306


def patches(module: ModuleType) -> list[Patch]:
    """Makes the patches of joblib's reductions of arrays."""
    made, opened = module.load_temporary_memmap, module._strided_from_memmap

    def reduced(reduction: Any, reducer: Any, array: Any) -> Any:
        call = getattr(transfer.active.transfer, "call", None)
        if call is None or type(reduction) is not tuple:
            return None
        rebuild, arguments = reduction
        if rebuild is made:
            filename, mode, *_ = arguments
            return gg306.report_writes(call, reduction, mode, filename)
        if rebuild is opened:  # the program's own memory map
            return gg306.report_writes(call, reduction, arguments[2], None)
        return None

    return [observe(module.ArrayMemmapForwardReducer, "__call__", result=reduced)]
