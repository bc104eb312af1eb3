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
        path, line, function: the user's line that needed CUDA, where it is known.
        failed: what was raised, as one line; None where CUDA was initialised.
        in_task: a task did it; else an initializer of the worker did.
        framework: what needed CUDA.
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
    """The user's line at which this process began with CUDA.

    Attributes:
        path, line: the line.
        by: "use", which initialises CUDA; "question" and "backward" start the driver only, which
            is enough to make CUDA fail in forked children.
    """

    path: str
    line: int
    by: str


class _State(GuardState):
    """The uses of CUDA that were observed in this process.

    Attributes:
        starts: the first of each kind, in order.
        attempts: those that nobody has taken yet, in order.
        lost: those that the fork of this process has made fail, by nothing but itself.
        first_need: what ``CUDA_VISIBLE_DEVICES`` was, and the framework, at the first need of CUDA.
        earlier: the children of this process that were there when it initialised CUDA.
        after_fork: attempts count here though this process was forked while CUDA was up.
        told: what hears of the first attempt in this process, instead.
        home, renewed: who uses a simulated GPU, and whether the next use counts.
    """

    def __init__(self) -> None:
        self.starts: list[Start] = []
        self.attempts: list[Attempt] = []
        self.lost: list[Attempt] = []
        self.first_need: list[tuple[str | None, str]] = []
        self.earlier: set[int] = set()
        self.after_fork = False
        self.told: Callable[[Attempt], None] | None = None
        self.home: Any = None
        self.renewed = False


state = dropped_at_end(_State(), in_child=True)
up: set[str] = set()
"""Which of the others than torch, which says so itself, were seen to have CUDA up here."""
TENSORFLOW.gpu_users = up
inherited: set[str] = set()
"""The same of the process that this one was forked from: here their CUDA is of no use."""
_MOST = 1_000
_LONG = 160


def _in_child() -> None:
    inherited.update(up)
    up.clear()


in_child(_in_child)


def take() -> tuple[Attempt, ...]:
    """The attempts of this process since this was asked last."""
    return _taken(state.attempts)


def take_lost() -> tuple[Attempt, ...]:
    """The same for the attempts that failed because of the fork alone."""
    return _taken(state.lost)


def _taken(attempts: list[Attempt]) -> tuple[Attempt, ...]:
    taken = tuple(attempts)
    del attempts[: len(taken)]
    return taken


def tell(listener: Callable[[Attempt], None]) -> None:
    """Let `listener` hear of the first attempt in this process, which has no tasks."""
    state.told = listener


def note_after_fork() -> None:
    """Note attempts in this process, which was forked while CUDA was up: they fail."""
    state.after_fork = True


def renew(home: Any) -> None:
    """Count the next use of a simulated GPU as an attempt, where it serves another test.

    A pool that several tests share initialises CUDA once: each of them uses it, in whichever order
    they run. Real GPUs cannot be asked.
    """
    state.renewed = state.renewed or state.home not in (None, home)
    state.home = home


def note_earlier() -> None:
    """Note that CUDA was initialised in this worker process before the guard came to it."""
    if state.first_need:
        return  # it was seen, or a tensor arrived on a GPU
    probes.rouse("gg201")
    needed("torch")
    state.attempts.append(Attempt(None, None, None, None, False, "torch"))


def needed(framework: str) -> None:
    """Remember what the process was allowed to see when it first needed CUDA."""
    if not state.first_need:
        probes.rouse("gg204")
        state.first_need.append((os.environ.get(VARIABLE), framework))


def is_renewed() -> bool:
    """Whether the next use of CUDA counts, though it is up."""
    return state.renewed


def lost_by_fork(torch: Any) -> bool:
    """Whether CUDA fails in this process because torch had it up where this one was forked.

    The fork is what is reported then (GG203), unless somebody waits for the attempt.
    """
    waited_for = state.after_fork or state.told is not None
    return bool(torch._is_in_bad_fork() and torch._initialized and not waited_for)


def is_up() -> bool:
    """Whether CUDA is known to be initialised in this process."""
    torch: Any = sys.modules.get("torch.cuda")
    return bool(up) or (torch is not None and bool(torch.is_initialized()))


def initialised(framework: str) -> None:
    """Note that another framework than torch has just initialised CUDA in this process."""
    if framework in up:
        return
    if not is_up():
        remember_children()
    up.add(framework)
    note(framework, None)


def up_already(framework: str) -> None:
    """Note that `framework` has initialised CUDA here before the guard was there.

    Which children were there before, nobody knows: none of them is reported.
    """
    if framework not in up:
        remember_children()
        up.add(framework)


def remember_children() -> None:
    """Remember the children that there are as CUDA comes up."""
    state.earlier.update(child.pid for child in children.children())


def started(by: str) -> None:
    """Note the user's line at which `by` has started the driver in this process, once."""
    if first_start(by) is None:
        _started(by, callsite.user_site())


def first_start(*kinds: str) -> Start | None:
    """The first start that was seen in this process of one of these kinds."""
    return next((start for start in state.starts if start.by in kinds), None)


def _started(by: str, site: callsite.Site | None) -> None:
    if site is not None and first_start(by) is None:
        state.starts.append(Start(site.path, site.line, by))


_UNUSABLE = re.compile(
    "Cannot re-initialize CUDA in forked subprocess|CUDA driver initialization failed"
    "|CUDA error: initialization error|cudaErrorInitializationError"
)
"""What torch and CuPy say where the driver refuses: in each child of a process that has started it.

A question such as ``torch.cuda.is_available()`` starts it, without a context, and so does the first
backward pass where there is a GPU (seen with torch 2.11 and CuPy 14 on an H100).
"""


def fails_by_fork(framework: str, error: BaseException | None) -> bool:
    """Whether it is the fork that makes CUDA fail, though the parent had not initialised it."""
    if error is None or not is_forked() or state.after_fork or framework in inherited:
        return False
    torch: Any = sys.modules.get("torch.cuda")
    if framework == "torch" and torch is not None and torch._initialized:
        return False
    return is_unusable(error)


def is_unusable(error: BaseException) -> bool:
    """Whether `error` says that CUDA is unusable, as it is in a process that was forked from one
    with CUDA."""
    return _UNUSABLE.search(str(error)) is not None


def told(error: BaseException) -> str:
    """What was raised, as one line that is not too long."""
    line = f"{type(error).__name__}: {error}".splitlines()[0]
    return line if len(line) <= _LONG else line[:_LONG].rsplit(" ", 1)[0] + " …"


def note(framework: str, error: BaseException | None) -> None:
    """Note an attempt of `framework` at the user's line, and what it raised, if it did."""
    state.renewed = False
    try:
        by_fork = fails_by_fork(framework, error)
        probes.rouse("gg203" if by_fork else "gg201")
        needed(framework)
        in_task = _by_a_task()
        if in_task is None:
            return
        site = callsite.user_site()
        if error is None:
            _started("use", site)
        if site is None and not in_task and framework != "torch":
            return  # values that arrive, rebuilt by functions that programs call, too
        attempt = Attempt(
            None if site is None else site.path,
            None if site is None else site.line,
            None if site is None else site.function,
            None if error is None else told(error),
            in_task,
            framework,
            by_fork,
        )
        attempts = state.lost if by_fork else state.attempts
        if state.told is not None:
            listener, state.told = state.told, None
            listener(attempt)
        elif len(attempts) < _MOST:
            attempts.append(attempt)
    except Exception as mistake:
        fault(mistake)


_REBUILDING = frozenset({"_load_from_bytes", "rebuild_cuda_tensor", "rebuild_array"}) | {
    f"_rebuild_{name}"
    for name in ("device_tensor_from_numpy", "device_tensor_from_cpu_tensor", "tensor_v2")
}
"""The functions by which pickles of torch's tensors, and of CuPy's arrays, are read."""


def _by_a_task() -> bool | None:
    """Whether a task needs CUDA; None: what needs it is a tensor that arrives on a GPU."""
    frame: FrameType | None = sys._getframe(2)
    rebuilding = False
    while frame is not None:
        name = frame.f_code.co_name
        rebuilding = rebuilding or name in _REBUILDING
        if frame.f_code in RUNNERS:
            return True
        frame = frame.f_back
    return None if rebuilding else False
