"""Lightning's `all_gather`, which turns gradients off by itself unless `sync_grads` is set."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from pytest_gradguard.runtime.kernel.faults import fault
from pytest_gradguard.runtime.kernel.patching import LatePatches, Patch
from pytest_gradguard.runtime.pitfalls.ddp import LIGHTNING, gg501

_NAME = "_all_gather_ddp_if_available"


def _watched(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _all_gather_ddp_if_available(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        gathered = original(tensor, *args, **kwargs)
        try:
            if gathered is not tensor:
                from pytest_gradguard.runtime.pitfalls.ddp import collectives

                collectives.gathered_by_library(gg501.LIGHTNING, tensor, gathered)
        except Exception as error:
            fault(error)
        return gathered

    return _all_gather_ddp_if_available


def _make() -> list[Patch]:
    loaded = [sys.modules[name] for name in LIGHTNING if hasattr(sys.modules.get(name), _NAME)]
    return [Patch(module, _NAME, _watched) for module in loaded]


_patches = LatePatches(_make)
apply, undo = _patches.apply, _patches.undo
