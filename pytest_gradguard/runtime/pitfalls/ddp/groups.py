"""Detects that this process joins a process group: only then is anything else patched."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from pytest_gradguard.runtime.kernel.observing import observe
from pytest_gradguard.runtime.kernel.patching import LatePatches, Patch
from pytest_gradguard.runtime.pitfalls.ddp import C10D

joined: list[Callable[[], object]] = []
"""Called whenever this process has joined a group; for processes that report to another one."""


def apply() -> None:
    """Wait for a group, or begin at once if there is one."""
    _patches.apply()
    if sys.modules[C10D].is_initialized():
        _begin()


def _begin() -> None:
    from pytest_gradguard.runtime.pitfalls.ddp import averaging, collectives, divergence

    collectives.apply()
    averaging.apply()
    divergence.apply()
    for notify in joined:
        notify()


def _changing(group: Any) -> bool | None:
    divergence: Any = sys.modules.get(f"{__package__}.divergence")
    if divergence is not None:
        divergence.leaving()
        divergence.forget()
    return None if group is None else True


def _joined(begun: bool, result: Any, group: Any) -> None:
    _begin()


def _make() -> list[Patch]:
    return [observe(sys.modules[C10D], "_update_default_pg", before=_changing, after=_joined)]


_patches = LatePatches(_make)
