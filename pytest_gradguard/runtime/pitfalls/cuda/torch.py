"""Detects when torch initialises CUDA in this process, or tries to.

torch initialises CUDA on first use through one function, which its C++ code also looks up by name,
so an attempt is detected even without a GPU. `loading` and `errors` detect what fails earlier.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from pytest_gradguard.runtime.kernel.faults import attempt, without_this_frame
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
    wrapper = _watched(torch._lazy_init)
    return [Patch(holder, "_lazy_init", lambda _: wrapper) for holder in holders]


_patches = LatePatches(_make)
apply = _patches.apply
"""Record attempts from now on, if torch is loaded."""


def _watched(original: Callable[[], None]) -> Callable[[], None]:
    torch: Any = sys.modules["torch.cuda"]

    @functools.wraps(original)
    def _lazy_init() -> None:
        if torch.is_initialized():
            attempt(_used_again)
            return original()
        is_noted = attempt(attempts.lost_by_fork, torch, instead=True)
        try:
            original()
        except BaseException as error:
            without_this_frame(error)
            if not is_noted:
                attempt(attempts.note, "torch", error)
            raise
        if is_noted:
            return None
        if torch.is_initialized():
            attempt(attempts.note, "torch", None)
            if not attempts.up:
                attempt(attempts.remember_children)
        return None

    return _lazy_init


def _used_again() -> None:
    if attempts.is_renewed():
        attempts.note("torch", None)
