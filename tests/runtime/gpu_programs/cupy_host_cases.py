"""What the guard says of CuPy's arrays, over memory of the host; prints it as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import cupy
import cupy_on_host as host
from joblib import Parallel, delayed
from joblib.externals.loky import get_reusable_executor

from pytest_gradguard import guard

FORK = "multiprocessing"


def found(run: Callable[[], Any]) -> list[dict[str, Any]]:
    with guard("record") as report:
        run()
    # Every case has workers of its own: in each, CuPy takes memory for the first time.
    get_reusable_executor().shutdown(wait=True)
    return [finding.to_dict() for finding in report.findings]


def parallel(function: Any, *arguments: Any, backend: str = "loky", jobs: int = 2) -> Any:
    return Parallel(jobs, backend=backend)(delayed(function)(one) for one in arguments)


def fork_then_take() -> None:
    with Parallel(2, backend=FORK) as workers:
        workers(delayed(host.doubled)(one) for one in (1, 2))
        cupy.empty(3)
        workers(delayed(host.doubled)(one) for one in (1, 2))


def own_allocator() -> None:
    names["while watched"] = cupy.cuda.get_allocator() is host.allocate
    other: Any = lambda size: host.allocate(size)  # noqa: E731
    cupy.cuda.set_allocator(other)
    names["once set"] = cupy.cuda.get_allocator() is other
    cupy.cuda.set_allocator(host.allocate)


def captured() -> None:
    array = cupy.empty(4, "float32")
    parallel(lambda index: array.shape[index], 0, 0)


names: dict[str, bool] = {}
before = (cupy.cuda.set_allocator, cupy.cuda.get_allocator, cupy.ndarray.__reduce__)
told: dict[str, Any] = {}
told["own allocator"] = found(own_allocator)
told["fork before"] = found(lambda: parallel(host.doubled, 1, 2, backend=FORK))
told["forked workers take"] = found(lambda: parallel(host.take, 1, 2, backend=FORK))
told["workers take"] = found(lambda: parallel(host.take, 1, 2))
told["workers take nothing"] = found(lambda: parallel(host.take_nothing, 1, 2))
told["fork and take"] = found(fork_then_take)
told["workers give"] = found(lambda: parallel(host.give, 1, 2))
told["visible devices"] = found(lambda: parallel(host.choose, 0, 1, 2, jobs=2))
told["argument"] = found(lambda: parallel(host.shape_of, cupy.empty(2), cupy.empty(3)))
told["arrived before"] = found(lambda: parallel(host.work_on, cupy.empty(2), cupy.empty(3)))
told["captured"] = found(captured)
told["threads"] = found(lambda: parallel(host.shape_of, cupy.empty(2), backend="threading"))
told["numpy instead"] = found(lambda: parallel(host.doubled, 1, 2))
told["fork after"] = found(lambda: parallel(host.doubled, 1, 2, backend=FORK))
after = (cupy.cuda.set_allocator, cupy.cuda.get_allocator, cupy.ndarray.__reduce__)
names["put back"] = before == after and cupy.cuda.get_allocator() is host.allocate
print(json.dumps({"told": told, "names": names}))
