"""Tasks draw by their numbers: the same wherever they run, and in batches of any size."""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from typing import Any

import pytest

from pytest_gradguard import guard
from pytest_gradguard.runtime.kernel import generators, task_seeds

joblib = pytest.importorskip("joblib")
numpy = pytest.importorskip("numpy")
pytest.importorskip("numpy.random")
torch = pytest.importorskip("torch")

TASKS = range(5)


def draw(task: int) -> tuple[float, ...]:
    return (task, random.random(), float(numpy.random.rand()), float(torch.rand(1)))


def by_joblib(**options: Any) -> list[Any]:
    return joblib.Parallel(2, **options)(joblib.delayed(draw)(task) for task in TASKS)


def by_forked_pool(chunk: int) -> list[Any]:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(draw, TASKS, chunk)


def by_forked_executor(chunk: int) -> list[Any]:
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(2, mp_context=context) as executor:
        return list(executor.map(draw, TASKS, chunksize=chunk))


def by_spawned_pool() -> list[Any]:
    """Its workers are processes that are started, which are no calls of the program's."""
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        return pool.map(draw, TASKS, 2)


def by_spawned_executor() -> list[Any]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as executor:
        return list(executor.map(draw, TASKS, chunksize=2))


def by_threads() -> list[Any]:
    with ThreadPoolExecutor(2) as executor:
        return list(executor.map(draw, TASKS))


def by_thread_pool() -> list[Any]:
    with ThreadPool(2) as pool:
        return list(pool.imap(draw, TASKS, 2))


def inline() -> list[Any]:
    numbers = task_seeds.Numbers((7, 1))
    return [task_seeds.Seeded(draw, numbers, index)(task) for index, task in enumerate(TASKS)]


@pytest.fixture(autouse=True)
def listening() -> Iterator[None]:
    with guard("record"):
        yield


WAYS: dict[str, Callable[[], list[Any]]] = {
    "loky": by_joblib,
    "loky in batches": lambda: by_joblib(batch_size=3),
    "joblib's threads": lambda: by_joblib(backend="threading", batch_size=2),
    "joblib's multiprocessing": lambda: by_joblib(backend="multiprocessing", batch_size=2),
    "pool": lambda: by_forked_pool(1),
    "pool in chunks": lambda: by_forked_pool(2),
    "executor in chunks": lambda: by_forked_executor(2),
    "spawned pool": by_spawned_pool,
    "spawned executor": by_spawned_executor,
    "threads": by_threads,
    "pool of threads": by_thread_pool,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_task_draws_the_same_wherever_it_runs(way: str) -> None:
    states = draw_all_states()
    with task_seeds.seeding(7):
        drawn = WAYS[way]()
        assert drawn == inline()
        assert WAYS[way]() != drawn  # another call
    assert len({one[1:] for one in drawn}) == len(TASKS)
    assert draw_all_states() == states


def test_workers_that_are_spawned_take_no_number() -> None:
    with task_seeds.seeding(7):
        by_spawned_executor()
        drawn = by_spawned_pool()
    numbers = task_seeds.Numbers((7, 2))
    assert drawn == [
        task_seeds.Seeded(draw, numbers, index)(task) for index, task in enumerate(TASKS)
    ]


def draw_all_states() -> list[Any]:
    return [random.getstate(), torch.get_rng_state().tolist(), repr(numpy.random.get_state())]


def test_each_submitted_task_is_a_call() -> None:
    with task_seeds.seeding(7), ThreadPoolExecutor(2) as executor:
        futures = [executor.submit(draw, 0) for _ in TASKS]
        drawn = [future.result() for future in futures]
    numbers = [task_seeds.Numbers((7, call)) for call in range(1, 1 + len(TASKS))]
    assert drawn == [task_seeds.Seeded(draw, one)(0) for one in numbers]


def test_calls_of_a_task_are_numbered_in_it() -> None:
    def run() -> Any:
        with task_seeds.seeding(7):
            return joblib.Parallel(2)(joblib.delayed(nested)(task) for task in range(2))

    first = run()
    assert first == run()
    assert len({str(one) for task in first for one in task}) == 4


def nested(task: int) -> list[Any]:
    return [
        joblib.Parallel(2, backend="threading")([joblib.delayed(draw)(task)] * 2) for _ in range(2)
    ]


def test_nothing_is_seeded_outside() -> None:
    with task_seeds.seeding(7):
        pass
    assert by_joblib(backend="threading")[0][1:] != inline()[0][1:]


def test_tasks_that_wait_for_each_other_come_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_seeds, "_LONGEST_WAIT", 0.1)
    import threading

    barrier = threading.Barrier(2, timeout=60)
    with task_seeds.seeding(7), ThreadPoolExecutor(2) as executor:
        assert sorted(executor.map(lambda _: barrier.wait(), range(2))) == [0, 1]


def test_what_is_captured_comes_back() -> None:
    restore = generators.capture()
    states, drawn = draw_all_states(), draw(0)
    generators.seed(3)
    other = draw(0)
    generators.seed(3)
    assert draw(0) == other != drawn
    restore()
    assert draw_all_states() == states
    assert draw(0) == drawn


def from_chance(queue: Any) -> None:
    queue.put((random.random(), float(numpy.random.rand()), float(torch.rand(1))))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_process_of_the_program_leaves_nothing_to_chance(method: str) -> None:
    context = multiprocessing.get_context(method)

    def run() -> tuple[float, ...]:
        queue = context.SimpleQueue()
        with task_seeds.seeding(7):
            process = context.Process(target=from_chance, args=(queue,))
            process.start()
            drawn: tuple[float, ...] = queue.get()
            process.join()
        return drawn

    first = run()
    assert first == run()
    if method == "fork":
        assert first[1:] == draw(0)[2:]
