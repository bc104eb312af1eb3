"""The jobs of local executors: a submission is pickled into a file, and so is its result.

What the program may ask a submission for, in the job as well, stays as it is: only the running of
its function is watched there.
"""

from __future__ import annotations

import functools
import os
import pickle
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from pytest_gradguard.runtime.integrations.submitit import WORKERS
from pytest_gradguard.runtime.kernel import probes, watching
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.dispatch import calling, futures, remote
from pytest_gradguard.runtime.kernel.dispatch.shipped import TaskShipment
from pytest_gradguard.runtime.kernel.faults import fault
from pytest_gradguard.runtime.kernel.observing import Arguments, observe
from pytest_gradguard.runtime.kernel.patching import Patch
from pytest_gradguard.runtime.kernel.transfer import bracketed

# -- in the parent ---------------------------------------------------------------------------------


def patches(module: ModuleType) -> list[Patch]:
    """Watch what executors pickle for their jobs."""
    name = "_internal_process_submissions"
    kind = module.PicklingExecutor
    return [observe(kind, name, before=_begin, arguments=_submissions, after=_submitted)]


def _begin(executor: Any, delayed_submissions: list[Any]) -> Call | None:
    if not _is_here(executor):
        return None
    single = executor if len(delayed_submissions) == 1 else None
    return calling.begin(WORKERS, frozenset({"submitit"}), single=single)


def _submissions(call: Call, executor: Any, delayed_submissions: list[Any]) -> Arguments:
    return (executor, [_Submission(call, one) for one in delayed_submissions]), {}


def _submitted(call: Call, jobs: list[Any], *_: Any) -> None:
    for job in jobs:
        futures.belongs_to(job, call)


def _is_here(executor: Any) -> bool:
    """Whether its jobs run on this machine, by this interpreter."""
    local: Any = sys.modules.get("submitit.local.local")
    return (
        local is not None
        and isinstance(executor, local.LocalExecutor)
        and bool(executor.python == local.shlex.quote(sys.executable))
    )


class _Submission:
    """A submission that is about to be pickled; unpickled in a job, it runs under watch."""

    def __init__(self, call: Call, delayed: Any) -> None:
        self._call = call
        self._delayed = delayed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._delayed, name)

    def dump(self, *args: Any, **kwargs: Any) -> Any:
        """Pickle it as the submission pickles itself."""
        return type(self._delayed).dump(self, *args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        delayed, call = self._delayed, self._call
        try:
            if watching.is_on():
                items = [(delayed.function, delayed.args, delayed.kwargs)]
                call.count(tasks=1)
                asked = probes.ship(call, items)
                arguments = (os.getpid(), call.token, asked, delayed)
                return bracketed(TaskShipment(call, items), arrive, arguments)
        except Exception as error:
            fault(error)
        reduction: tuple[Any, ...] = delayed.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return reduction


# -- in the job ------------------------------------------------------------------------------------


def arrive(origin: int, token: int, asked: Mapping[str, Any], delayed: Any) -> Any:
    """Take a submission in its job; called by unpickling."""
    if origin != os.getpid():  # else the program asks its job for it
        delayed.result = functools.partial(_result, delayed, token, asked)
    return delayed


def _result(delayed: Any, token: int, asked: Mapping[str, Any]) -> Any:
    items = [(delayed.function, delayed.args, delayed.kwargs)]
    del delayed.result
    return remote.run(delayed.result, items, False, token, asked)
