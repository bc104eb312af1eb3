"""The integrations beside joblib: the modes, the user's line, and what is left afterwards."""

from __future__ import annotations

import asyncio
import multiprocessing
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures import process as executors
from multiprocessing import pool as pools
from multiprocessing import process as processes
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
from children import run_python

torch = pytest.importorskip("torch")

from joblib.externals import loky  # noqa: E402

import pytest_gradguard  # noqa: E402
from pytest_gradguard import GradGuardError, GradGuardWarning, allow, guard  # noqa: E402
from pytest_gradguard.runtime.integrations.executors import submitting  # noqa: E402
from pytest_gradguard.runtime.integrations.pools import methods as pool_methods  # noqa: E402
from pytest_gradguard.runtime.kernel.dispatch import calling, remote  # noqa: E402
from pytest_gradguard.runtime.kernel.registry import PROCESSES  # noqa: E402

FORK = multiprocessing.get_context("fork")


def number(x: Any) -> float:
    return float(x.detach().sum())


def leaf() -> Any:
    return torch.ones(3, requires_grad=True)


@pytest.fixture(scope="module")
def pool() -> Iterator[Any]:
    with FORK.Pool(1) as pool:
        yield pool


@pytest.fixture(scope="module")
def executor() -> Iterator[Any]:
    with ProcessPoolExecutor(1, mp_context=FORK) as executor:
        yield executor


CALLS = {
    "submit": lambda pool, executor: executor.submit(number, leaf()).result(),
    "executor.map": lambda pool, executor: list(executor.map(number, [leaf()])),
    "apply": lambda pool, executor: pool.apply(number, (leaf(),)),
    "map": lambda pool, executor: pool.map(number, [leaf()]),
    "imap": lambda pool, executor: list(pool.imap(number, [leaf()])),
    "imap in chunks": lambda pool, executor: list(pool.imap(number, [leaf()] * 3, 2)),
    "imap_unordered": lambda pool, executor: list(pool.imap_unordered(number, [leaf()])),
}


@pytest.mark.parametrize("way", CALLS)
def test_mode_warn_warns_at_the_line(pool: Any, executor: Any, way: str) -> None:
    with guard(mode="warn"), pytest.warns(GradGuardWarning, match="GG101") as caught:
        CALLS[way](pool, executor)
    assert {warning.filename for warning in caught} == {__file__}
    assert len(caught) == 1


@pytest.mark.parametrize("way", CALLS)
def test_mode_error_raises_where_the_result_is_asked_for(
    pool: Any, executor: Any, way: str
) -> None:
    with guard(mode="error"), pytest.raises(GradGuardError, match="GG101"):
        CALLS[way](pool, executor)
    with guard(mode="record") as report:
        assert pool.map(abs, [-1]) == list(executor.map(abs, [-1])) == [1]
    assert report.findings == []


class Interpreters(ThreadPoolExecutor):
    """As `InterpreterPoolExecutor` of Python 3.14 is: threads that share no objects."""

    __module__ = "concurrent.futures.interpreter"


@pytest.mark.parametrize(
    ("kind", "found"), [(ThreadPoolExecutor, ["GG301"] * 2), (Interpreters, [])]
)
def test_interpreters_are_no_threads(kind: Any, found: list[str]) -> None:
    weight = leaf()
    with torch.no_grad(), guard(mode="record") as report, kind(1) as executor:
        list(executor.map(lambda x: x * 2, [weight] * 2))
        executor.submit(lambda: weight * 2).result()
    assert [finding.code for finding in report.findings] == found


def test_mode_error_lets_an_event_loop_go_on(executor: Any) -> None:
    async def work() -> Any:
        running = asyncio.get_running_loop().run_in_executor(executor, number, leaf())
        return await asyncio.wait_for(running, timeout=60)

    with guard(mode="error") as report:
        assert asyncio.run(work()) == 3.0
    assert [finding.code for finding in report.findings] == ["GG101"]


def test_the_programs_own_error_comes_first(pool: Any) -> None:
    with guard(mode="error") as report, pytest.raises(TypeError):
        pool.apply(number, (leaf(), "one argument too many"))
    assert [finding.code for finding in report.findings] == ["GG101"]


def test_allowed(pool: Any) -> None:
    with guard(mode="record") as report, allow("GG101", reason="tested here"):
        pool.map(number, [leaf()])
    assert report.findings == []


def test_what_the_shared_memory_means_is_said(pool: Any) -> None:
    with guard(mode="record") as report:
        pool.apply(number, (leaf(),))
        pool.apply(number, (torch.nn.Parameter(torch.ones(3)),))
    argument, parameter = report.findings
    assert (argument.code, parameter.code) == ("GG101", "GG107")
    assert "shares its memory" in argument.message
    assert "shares their memory" in parameter.message


def test_loky_makes_a_copy() -> None:
    with guard(mode="record") as report:
        executor = loky.get_reusable_executor(1)
        executor.submit(number, leaf()).result()
        executor.shutdown()  # joblib needs one of its own kind
    assert "works on a copy" in report.findings[0].message


PATCHED = [
    (executors.ProcessPoolExecutor, "submit"),
    (executors.ProcessPoolExecutor, "map"),
    (ThreadPoolExecutor, "submit"),
    (ThreadPoolExecutor, "map"),
    (pools.Pool, "apply_async"),
    (pools.Pool, "_guarded_task_generation"),
    (processes.BaseProcess, "start"),
]


def test_everything_is_undone(pool: Any) -> None:
    def state() -> list[Any]:
        return [vars(owner).get(name) for owner, name in PATCHED] + [
            ForkingPickler._extra_reducers[kind]  # type: ignore[attr-defined]
            for kind in (torch.Tensor, torch.nn.Parameter)
        ]

    before = state()
    with guard(mode="record"):
        pool.map(number, [leaf()])
        assert all(new is not old for new, old in zip(state(), before, strict=True))
    assert state() == before


def test_a_task_that_waits_until_the_guard_has_ended_leaves_no_patch(executor: Any) -> None:
    import time

    with guard(mode="record"):
        futures = [executor.submit(time.sleep, 0.05) for _ in range(8)]
        futures.append(executor.submit(number, leaf()))
    before = torch.Tensor.__reduce_ex__
    assert futures[-1].result() == 3.0
    assert torch.Tensor.__reduce_ex__ is before


def test_machinery_is_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool that a library of workers uses for itself is none of the user's."""
    source = "def use(pool, function, x):\n    return pool.apply(function, (x,))\n"
    found = {}
    for module in ("joblib._memmapping", "torch.utils.data", "dask.local", "skorch.net", "mine"):
        namespace: dict[str, Any] = {"__name__": module}
        exec(compile(source, __file__, "exec"), namespace)
        with FORK.Pool(1) as pool, guard(mode="record") as report:
            namespace["use"](pool, number, leaf())
        found[module] = [finding.code for finding in report.findings]
    assert found == {
        "joblib._memmapping": [],
        "torch.utils.data": [],
        "dask.local": [],
        "skorch.net": ["GG101"],
        "mine": ["GG101"],
    }


def test_tasks_of_chunks() -> None:
    """The user's own tasks in what pools and executors make of them."""
    import functools

    chunk = functools.partial(executors._process_chunk, number)  # type: ignore[attr-defined]
    of_executors, of_pools = submitting.chunk_of, pool_methods.chunk_of
    for task, split, tasks in [
        ((chunk, ((1,), (2,))), of_executors, [(number, (1,), {}), (number, (2,), {})]),
        ((pools.mapstar, (number, (1, 2))), of_pools, [(number, (1,), {}), (number, (2,), {})]),
        ((pools.starmapstar, (number, ((1, 2),))), of_pools, [(number, (1, 2), {})]),
    ]:
        items, many = remote.items_of(task[0], task[1:], {}, split)
        assert (list(items), many) == (tasks, True)
    for split in (of_executors, of_pools, None):
        one = [(number, (1,), {"k": 2})]
        assert remote.items_of(number, (1,), {"k": 2}, split) == (one, False)
    assert calling.begin(PROCESSES) is None  # nobody listens


def test_nothing_is_imported_for_it() -> None:
    program = (
        "import sys, pytest_gradguard\n"
        "before = set(sys.modules)\n"
        "pytest_gradguard.install()\n"
        "ours = 'pytest_gradguard.runtime.integrations.'\n"
        "assert ours + 'pools' in sys.modules and ours + 'pools.methods' not in sys.modules\n"
        "import concurrent.futures.thread, multiprocessing.pool\n"
        "assert ours + 'pools.methods' in sys.modules and ours + 'ray.tasks' not in sys.modules\n"
        "with multiprocessing.pool.ThreadPool(1) as pool: assert pool.map(abs, [-1]) == [1]\n"
        "wrong = {'torch', 'joblib', 'numpy', 'tensorflow', 'loky', 'dask', 'distributed'}\n"
        "assert not wrong & set(sys.modules), wrong & set(sys.modules)\n"
        "pytest_gradguard.uninstall()\n"
        "assert multiprocessing.pool.Pool.apply_async.__module__ == 'multiprocessing.pool'\n"
    )
    done = run_python("-c", program)
    assert (done.returncode, done.stderr) == (0, "")


def test_install_watches_pools(pool: Any) -> None:
    report = pytest_gradguard.install(mode="record")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            pool.map(number, [leaf()])
    finally:
        pytest_gradguard.uninstall()
    assert [finding.code for finding in report.findings] == ["GG101"]


def test_rays_backend_goes_by_its_own_name() -> None:
    """It inherits joblib's backend for multiprocessing, and pickles batches as that one does."""
    from joblib._parallel_backends import MultiprocessingBackend

    from pytest_gradguard.runtime.integrations.joblib import backends

    ray = type(
        "RayBackend", (MultiprocessingBackend,), {"__module__": "ray.util.joblib.ray_backend"}
    )
    for kind, name in [(ray, "ray"), (MultiprocessingBackend, "multiprocessing")]:
        backend = backends.of(kind())
        assert backend is not None
        assert backend.workers.name == name
