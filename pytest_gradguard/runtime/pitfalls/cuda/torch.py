"""Detects when torch initialises CUDA in this process, or tries to.

torch initialises CUDA on first use through one function, which its C++ code also looks up by name,
so an attempt is detected even without a GPU. `loading` and `errors` detect what fails earlier.
"""

from __future__ import annotations

import sys
from typing import Any

from pytest_gradguard.runtime.kernel.faults import attempt
from pytest_gradguard.runtime.kernel.observing import observed
from pytest_gradguard.runtime.kernel.patching import LatePatches, Patch
from pytest_gradguard.runtime.pitfalls.cuda import attempts


def _make() -> list[Patch]:
    torch: Any = sys.modules.get("torch.cuda")
    if torch is None or not hasattr(torch, "_lazy_init"):
        return []
    holders = [
        sys.modules[name]
        for name in ("torch.cuda", "torch.cuda.memory", "torch.cuda.random")
        if getattr(sys.modules.get(name), "_lazy_init", None) is torch._lazy_init
    ]
    wrapper = observed(before=_begins, after=_initialised, failed=_failed)(torch._lazy_init)
    return [Patch(holder, "_lazy_init", lambda _: wrapper) for holder in holders]


_patches = LatePatches(_make)
apply = _patches.apply
"""Record attempts from now on, if torch is loaded."""


def _begins() -> Any:
    """The module that is about to be initialised, where that is to be noted."""
    torch: Any = sys.modules["torch.cuda"]
    if not torch.is_initialized():
        return None if attempts.lost_by_fork(torch) else torch
    if attempts.is_renewed():
        attempts.note("torch", None)
    return None


def _initialised(torch: Any, _: None) -> None:
    if torch.is_initialized():
        attempt(attempts.note, "torch", None)
        if not attempts.up:
            attempts.remember_children()


def _failed(torch: Any, error: BaseException) -> None:
    attempts.note("torch", error)
