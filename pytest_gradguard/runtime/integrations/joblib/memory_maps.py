"""The memory maps that joblib makes of large arrays, and gives its workers in their place."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from pytest_gradguard.runtime.kernel import transfer
from pytest_gradguard.runtime.kernel.faults import fault, without_this_frame
from pytest_gradguard.runtime.kernel.patching import Patch
from pytest_gradguard.runtime.pitfalls.maps import gg306


def patches(module: ModuleType) -> list[Patch]:
    """Makes the patches of joblib's reductions of arrays."""
    made, opened = module.load_temporary_memmap, module._strided_from_memmap

    def watched(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        @functools.wraps(original)
        def __call__(self: Any, array: Any) -> Any:
            try:
                reduction = original(self, array)
            except BaseException as error:
                without_this_frame(error)
                raise
            call = getattr(transfer.active.transfer, "call", None)
            if call is None or type(reduction) is not tuple:
                return reduction
            try:
                rebuild, arguments = reduction
                if rebuild is made:
                    filename, mode, *_ = arguments
                    return gg306.report_writes(call, reduction, mode, filename)
                if rebuild is opened:  # the program's own memory map
                    return gg306.report_writes(call, reduction, arguments[2], None)
            except Exception as error:
                fault(error)
            return reduction

        return __call__

    return [Patch(module.ArrayMemmapForwardReducer, "__call__", watched)]
