"""Sees each attempt to initialise CUDA, in whichever process; here those of torch.

torch initialises CUDA when it is first needed, through one function of its own, which its C++ code
looks up by name as well: an attempt is seen where there is no GPU, too. For CuPy and TensorFlow see
`cuda_cupy`, `cuda_tensorflow` and `cuda_errors`.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from pytest_gradguard.runtime import callsite, looks
from pytest_gradguard.runtime.faults import fault, without_this_frame
from pytest_gradguard.runtime.patching import Patch, Patches

VARIABLE = "CUDA_VISIBLE_DEVICES"


class Attempt(NamedTuple):
    """One attempt to initialise CUDA in this process, in plain values so that it can be pickled.

    Attributes:
        path, line, function: the user's line that needed CUDA, where it is known.
        failed: what was raised, as one line; None where CUDA was initialised.
        visible: what ``CUDA_VISIBLE_DEVICES`` was.
        framework: what needed CUDA.
    """

    path: str | None
    line: int | None
    function: str | None
    failed: str | None
    visible: str | None
    framework: str


attempts: list[Attempt] = []
"""Those of this process since its tasks last began, in order."""
up: set[str] = set()
"""Which of the others than torch, which says so itself, were seen to have CUDA up here."""
inherited: set[str] = set()
"""The same of the process that this one was forked from: here their CUDA is of no use."""


def _in_child() -> None:
    attempts.clear()  # those of the parent are not its own
    inherited.update(up)
    up.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
_MOST = 1_000
earlier: set[int] = set()
"""The children of this process that were there when it initialised CUDA."""
_patches: Patches | None = None


def apply() -> None:
    """Begin to note attempts, where torch is loaded."""
    global _patches
    torch: Any = sys.modules.get("torch.cuda")
    if torch is None or not hasattr(torch, "_lazy_init"):
        return
    if _patches is None:
        holders = [
            sys.modules[name]
            for name in ("torch.cuda", "torch.cuda.memory", "torch.cuda.random")
            if getattr(sys.modules.get(name), "_lazy_init", None) is torch._lazy_init
        ]
        wrapper = _watched(torch._lazy_init)
        _patches = Patches([Patch(holder, "_lazy_init", lambda _: wrapper) for holder in holders])
    _patches.apply()


def undo() -> None:
    """Leave torch as it was, and forget."""
    if _patches is not None:
        _patches.undo()
    attempts.clear()
    earlier.clear()


def _watched(original: Callable[[], None]) -> Callable[[], None]:
    torch: Any = sys.modules["torch.cuda"]

    @functools.wraps(original)
    def _lazy_init() -> None:
        # In a child of a process that has initialised CUDA, the fork is what is reported (GG203).
        if torch.is_initialized() or (torch._is_in_bad_fork() and torch._initialized):
            return original()
        try:
            original()
        except BaseException as error:
            without_this_frame(error)
            note("torch", error)
            raise
        if torch.is_initialized():
            note("torch", None)
            if not up:
                _remember_children()
        return None

    return _lazy_init


def is_up() -> bool:
    """Whether CUDA is known to be initialised in this process."""
    torch: Any = sys.modules.get("torch.cuda")
    return bool(up) or (torch is not None and bool(torch.is_initialized()))


def initialised(framework: str) -> None:
    """Note that another framework than torch has just initialised CUDA in this process."""
    if framework in up:
        return
    if not is_up():
        _remember_children()
    up.add(framework)
    note(framework, None)


def up_already(framework: str) -> None:
    """Note that `framework` has initialised CUDA here before the guard was there.

    Which children were there before, nobody knows: none of them is reported.
    """
    if framework not in up:
        _remember_children()
        up.add(framework)


def _remember_children() -> None:
    processes: Any = sys.modules.get("multiprocessing.process")
    earlier.update(child.pid for child in list(getattr(processes, "_children", ())))


def told(error: BaseException) -> str:
    """What was raised, as one line."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def note(framework: str, error: BaseException | None) -> None:
    """Note an attempt of `framework` at the user's line, and what it raised, if it did."""
    try:
        looks.rouse("cuda")
        site = callsite.user_site()
        attempt = Attempt(
            None if site is None else site.path,
            None if site is None else site.line,
            None if site is None else site.function,
            None if error is None else told(error),
            os.environ.get(VARIABLE),
            framework,
        )
        if len(attempts) < _MOST:
            attempts.append(attempt)
    except Exception as error:
        fault(error)
