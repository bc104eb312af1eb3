"""Lightning's `all_gather`, which disables gradients unless `sync_grads` is set."""

from __future__ import annotations

import sys
from typing import Any

from pytest_gradguard.runtime.kernel.observing import observe
from pytest_gradguard.runtime.kernel.patching import LatePatches, Patch
from pytest_gradguard.runtime.pitfalls.ddp import LIGHTNING, gg501

_NAME = "_all_gather_ddp_if_available"


def _gathered(result: Any, tensor: Any, *args: Any, **kwargs: Any) -> None:
    if result is not tensor:
        from pytest_gradguard.runtime.pitfalls.ddp import collectives

        collectives.gathered_by_library(gg501.LIGHTNING, tensor, result)


def _make() -> list[Patch]:
    loaded = [sys.modules[name] for name in LIGHTNING if hasattr(sys.modules.get(name), _NAME)]
    return [observe(module, _NAME, after=_gathered) for module in loaded]


apply = LatePatches(_make).apply
