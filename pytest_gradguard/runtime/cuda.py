"""Sees each attempt to initialise CUDA through torch, in whichever process.

torch initialises CUDA when it is first needed, through one function of its own, which its C++ code
looks up by name as well: an attempt is seen where there is no GPU, too.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

from pytest_gradguard.runtime import callsite, looks
from pytest_gradguard.runtime.faults import fault, without_this_frame
from pytest_gradguard.runtime.patching import Patch, Patches

VARIABLE = "CUDA_VISIBLE_DEVICES"


class Attempt(NamedTuple):
    """One attempt to initialise CUDA in this process, in plain values so that it can be pickled.

    Attributes:
        path, line, function: the user's line that needed CUDA, where it is known.
        failed: what torch raised, as one line; None where CUDA was initialised.
        in_task: a task did it; else an initializer of the worker did.
    """

    path: str | None
    line: int | None
    function: str | None
    failed: str | None
    in_task: bool


_attempts: list[Attempt] = []
"""Those of this process that nobody has taken yet, in order."""
read_visible: list[str | None] = []
"""What ``CUDA_VISIBLE_DEVICES`` was when this process first needed CUDA, once it has."""
_told: Callable[[Attempt], None] | None = None
"""What hears of the first attempt in this process, instead."""
_home: Any = None
_renewed = False
_MOST = 1_000
earlier: set[int] = set()
"""The children of this process that were there when it initialised CUDA."""
_patches: Patches | None = None


def _clear() -> None:
    global _told, _home, _renewed
    _attempts.clear()
    read_visible.clear()
    _told = _home = None
    _renewed = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_clear)  # those of the parent are not its own


def take() -> tuple[Attempt, ...]:
    """The attempts of this process since this was asked last."""
    taken = tuple(_attempts)
    del _attempts[: len(taken)]
    return taken


def tell(listener: Callable[[Attempt], None]) -> None:
    """Let `listener` hear of the first attempt in this process, which has no tasks."""
    global _told
    _told = listener
    if "torch" in sys.modules:
        apply()
    else:
        from pytest_gradguard.simulation import waiting

        waiting.call_after("torch", apply)


def renew(home: Any) -> None:
    """Count the next use of a pretended GPU as an attempt, where it serves another test.

    A pool that several tests share initialises CUDA once: each of them uses it, in whichever order
    they run. Real GPUs cannot be asked.
    """
    global _home, _renewed
    _renewed = _renewed or _home not in (None, home)
    _home = home


def note_earlier() -> None:
    """Note that CUDA was initialised in this worker process before the guard came to it."""
    if read_visible:
        return  # it was seen, or a tensor arrived on a GPU
    looks.rouse("cuda")
    read_visible.append(os.environ.get(VARIABLE))
    _attempts.append(Attempt(None, None, None, None, False))


def is_up() -> bool:
    """Whether CUDA is initialised in this process."""
    torch: Any = sys.modules.get("torch.cuda")
    return torch is not None and bool(torch.is_initialized())


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
    _clear()
    earlier.clear()


def _watched(original: Callable[[], None]) -> Callable[[], None]:
    torch: Any = sys.modules["torch.cuda"]

    @functools.wraps(original)
    def _lazy_init() -> None:
        if torch.is_initialized():
            if _renewed:
                _note(None)
            return original()
        if torch._is_in_bad_fork() and torch._initialized and _told is None:
            return original()  # the fork is what is reported (GG203)
        try:
            original()
        except BaseException as error:
            without_this_frame(error)
            _note(f"{type(error).__name__}: {error}".splitlines()[0])
            raise
        if torch.is_initialized():
            _note(None)
            processes: Any = sys.modules.get("multiprocessing.process")
            earlier.update(child.pid for child in list(getattr(processes, "_children", ())))
        return None

    return _lazy_init


def _note(failed: str | None) -> None:
    global _renewed, _told
    _renewed = False
    try:
        looks.rouse("cuda")
        if not read_visible:
            read_visible.append(os.environ.get(VARIABLE))
        by = _by_whom()
        if by is None:
            return
        site = callsite.user_site()
        attempt = Attempt(
            None if site is None else site.path,
            None if site is None else site.line,
            None if site is None else site.function,
            failed,
            by,
        )
        if _told is not None:
            listener, _told = _told, None
            listener(attempt)
        elif len(_attempts) < _MOST:
            _attempts.append(attempt)
    except Exception as error:
        fault(error)


_REBUILDING = frozenset({"_load_from_bytes", "rebuild_cuda_tensor"}) | {
    f"_rebuild_{name}"
    for name in ("device_tensor_from_numpy", "device_tensor_from_cpu_tensor", "tensor_v2")
}
"""The functions of torch's by which pickles of tensors are read."""
_RUNNING = tuple(
    f"pytest_gradguard.runtime.{name}" for name in ("worker", "doors.remote", "doors.dask_worker")
)
"""The modules of ours that call the tasks."""


def _by_whom() -> bool | None:
    """Whether a task needs CUDA; None: what needs it is a tensor that arrives on a GPU."""
    frame: FrameType | None = sys._getframe(2)
    rebuilding = False
    while frame is not None:
        name = frame.f_code.co_name
        rebuilding = rebuilding or name in _REBUILDING
        if name in ("__call__", "_run") and frame.f_globals.get("__name__") in _RUNNING:
            return True
        frame = frame.f_back
    return None if rebuilding else False
