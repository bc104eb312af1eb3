"""The attempts to initialise CUDA in this process, whichever framework makes them."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

from pytest_gradguard.runtime.frameworks.tensorflow import FRAMEWORK as TENSORFLOW
from pytest_gradguard.runtime.kernel import callsite, probes
from pytest_gradguard.runtime.kernel.dispatch import children
from pytest_gradguard.runtime.kernel.faults import fault
from pytest_gradguard.runtime.kernel.lineage import in_child, is_forked
from pytest_gradguard.runtime.kernel.state import GuardState, dropped_at_end
from pytest_gradguard.runtime.kernel.tasks import RUNNERS

VARIABLE = "CUDA_VISIBLE_DEVICES"


class Attempt(NamedTuple):
    """One attempt to initialise CUDA in this process, in plain values so that it can be pickled.

    Attributes:
        path, line, function: the user's line that needed CUDA, if known.
        failed: the error, as one line; None if CUDA was initialised.
        in_task: a task needed CUDA; otherwise an initializer of the worker.
        framework: the framework that needed CUDA.
        by_fork: it failed because this process was forked from one that had started the driver.
    """

    path: str | None
    line: int | None
    function: str | None
    failed: str | None
    in_task: bool
    framework: str
    by_fork: bool = False


class Start(NamedTuple):
    """The user's line at which this process started the driver or initialised CUDA.

    Attributes:
        path, line: the line.
        by: "use", which initialises CUDA; "question" and "backward" only start the driver, which is
            enough to make CUDA fail in forked children.
    """

    path: str
    line: int
    by: str


class _State(GuardState):
    """The uses of CUDA observed in this process.

    Attributes:
        starts: the first of each kind, in order.
        attempts: attempts not yet taken, in order.
        lost: attempts that failed only because this process was forked.
        first_need: ``CUDA_VISIBLE_DEVICES`` and the framework at the first need of CUDA.
        earlier: the pids of the children that existed when this process initialised CUDA.
        after_fork: attempts count although this process was forked while CUDA was up.
        listener: gets the first attempt of this process, which is then not kept.
        home, renewed: who uses a simulated GPU, and whether the next use counts.
    """

    def __init__(self) -> None:
        self.starts: list[Start] = []
        self.attempts: list[Attempt] = []
        self.lost: list[Attempt] = []
        self.first_need: list[tuple[str | None, str]] = []
        self.earlier: set[int] = set()
        self.after_fork = False
        self.listener: Callable[[Attempt], None] | None = None
        self.home: Any = None
        self.renewed = False


state = dropped_at_end(_State(), in_child=True)
up: set[str] = set()
"""Frameworks other than torch, which reports it itself, with CUDA initialised here."""
TENSORFLOW.gpu_users = up
inherited: set[str] = set()
"""Frameworks with CUDA up in the process that this one was forked from; unusable here."""
_MOST = 1_000
_LONG = 160


def _in_child() -> None:
    inherited.update(up)
    up.clear()


in_child(_in_child)


def take() -> tuple[Attempt, ...]:
    """The attempts of this process since the last call."""
    return _drain(state.attempts)


def take_lost() -> tuple[Attempt, ...]:
    """The attempts that failed only because of the fork, since the last call."""
    return _drain(state.lost)


def _drain(attempts: list[Attempt]) -> tuple[Attempt, ...]:
    drained = tuple(attempts)
    del attempts[: len(drained)]
    return drained


def listen(listener: Callable[[Attempt], None]) -> None:
    """Call `listener` with the first attempt in this process, which has no tasks."""
    state.listener = listener


def note_after_fork() -> None:
    """Note attempts in this process, which was forked while CUDA was up: they fail."""
    state.after_fork = True


def renew(home: Any) -> None:
    """Count the next use of a simulated GPU as an attempt if it serves another test.

    A pool that several tests share initialises CUDA once, but each of the tests uses it, in any
    order. Real GPUs cannot be queried for this.
    """
    state.renewed = state.renewed or state.home not in (None, home)
    state.home = home


def note_earlier() -> None:
    """Record that CUDA was initialised in this worker process before the guard started."""
    if state.first_need:
        return  # it was seen, or a tensor arrived on a GPU
    probes.activate("gg201")
    needed("torch")
    state.attempts.append(Attempt(None, None, None, None, False, "torch"))


def needed(framework: str) -> None:
    """Record the visible devices at the first need of CUDA."""
    if not state.first_need:
        probes.activate("gg204")
        state.first_need.append((os.environ.get(VARIABLE), framework))


def is_renewed() -> bool:
    """Whether the next use of CUDA counts although CUDA is initialised."""
    return state.renewed


def lost_by_fork(torch: Any) -> bool:
    """Whether CUDA fails here because torch had it initialised before the fork.

    The fork is then reported instead (GG203), unless a listener waits for the attempt.
    """
    waited_for = state.after_fork or state.listener is not None
    return bool(torch._is_in_bad_fork() and torch._initialized and not waited_for)


def is_up() -> bool:
    """Whether CUDA is known to be initialised in this process."""
    torch: Any = sys.modules.get("torch.cuda")
    return bool(up) or (torch is not None and bool(torch.is_initialized()))


def initialised(framework: str) -> None:
    """Record that a framework other than torch has just initialised CUDA here."""
    if framework in up:
        return
    if not is_up():
        remember_children()
    up.add(framework)
    note(framework, None)


def up_already(framework: str) -> None:
    """Record that `framework` initialised CUDA here before the guard started.

    It is unknown which children existed then, so none of them is reported.
    """
    if framework not in up:
        remember_children()
        up.add(framework)


def remember_children() -> None:
    """Record the children that exist as CUDA is initialised."""
    state.earlier.update(child.pid for child in children.children())


def started(by: str) -> None:
    """Record, once, the user's line at which `by` started the driver in this process."""
    if first_start(by) is None:
        _started(by, callsite.user_site())


def first_start(*kinds: str) -> Start | None:
    """The first recorded start of one of these kinds."""
    return next((start for start in state.starts if start.by in kinds), None)


def _started(by: str, site: callsite.Site | None) -> None:
    if site is not None and first_start(by) is None:
        state.starts.append(Start(site.path, site.line, by))


_UNUSABLE = re.compile(
    "Cannot re-initialize CUDA in forked subprocess|CUDA driver initialization failed"
    "|CUDA error: initialization error|cudaErrorInitializationError"
)
"""The errors of torch and CuPy in each child of a process that has started the driver.

``torch.cuda.is_available()`` starts it without a context, and so does the first backward pass
where there is a GPU (observed with torch 2.11 and CuPy 14 on an H100).
"""


def fails_by_fork(framework: str, error: BaseException | None) -> bool:
    """Whether only the fork makes CUDA fail: the parent had not initialised it."""
    if error is None or not is_forked() or state.after_fork or framework in inherited:
        return False
    torch: Any = sys.modules.get("torch.cuda")
    if framework == "torch" and torch is not None and torch._initialized:
        return False
    return is_unusable(error)


def is_unusable(error: BaseException) -> bool:
    """Whether `error` is that of CUDA in a process forked from one with CUDA."""
    return _UNUSABLE.search(str(error)) is not None


def error_line(error: BaseException) -> str:
    """The error as one line of limited length."""
    line = f"{type(error).__name__}: {error}".splitlines()[0]
    return line if len(line) <= _LONG else line[:_LONG].rsplit(" ", 1)[0] + " …"


def note(framework: str, error: BaseException | None) -> None:
    """Record an attempt of `framework` at the user's line, and its error, if any."""
    state.renewed = False
    try:
        by_fork = fails_by_fork(framework, error)
        probes.activate("gg203" if by_fork else "gg201")
        needed(framework)
        in_task = _by_a_task()
        if in_task is None:
            return
        site = callsite.user_site()
        if error is None:
            _started("use", site)
        if site is None and not in_task and framework != "torch":
            return  # tensors in transit, unpickled by functions that programs call, too
        attempt = Attempt(
            None if site is None else site.path,
            None if site is None else site.line,
            None if site is None else site.function,
            None if error is None else error_line(error),
            in_task,
            framework,
            by_fork,
        )
        attempts = state.lost if by_fork else state.attempts
        if state.listener is not None:
            listener, state.listener = state.listener, None
            listener(attempt)
        elif len(attempts) < _MOST:
            attempts.append(attempt)
    except Exception as mistake:
        fault(mistake)


_REBUILDING = frozenset({"_load_from_bytes", "rebuild_cuda_tensor", "rebuild_array"}) | {
    f"_rebuild_{name}"
    for name in ("device_tensor_from_numpy", "device_tensor_from_cpu_tensor", "tensor_v2")
}
"""The functions that rebuild pickled torch tensors and CuPy arrays."""


def _by_a_task() -> bool | None:
    """Whether a task needs CUDA; None if CUDA is needed to unpickle a tensor on a GPU."""
    frame: FrameType | None = sys._getframe(2)
    rebuilding = False
    while frame is not None:
        name = frame.f_code.co_name
        rebuilding = rebuilding or name in _REBUILDING
        if frame.f_code in RUNNERS:
            return True
        frame = frame.f_back
    return None if rebuilding else False
