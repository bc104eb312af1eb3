"""Programs in bad circumstances, or with objects that misbehave: `circumstances.py CASE guarded`.

Each prints what came out of it. Under the guard that has to be the same.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import threading
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from typing import Any
from unittest import mock

import torch
from joblib import Parallel, delayed
from programs import double, error_of, fail, net, nothing, plain_double, train, values

CASES: dict[str, Callable[[], Any]] = {}
NOT_ALLOWED = "may not mount"
FORK = multiprocessing.get_context("fork")


def case(function: Callable[[], Any]) -> Callable[[], Any]:
    """One of the cases."""
    CASES[function.__name__] = function
    return function


def leaf() -> torch.Tensor:
    return torch.ones(2, requires_grad=True)


# -- objects that misbehave ---------------------------------------------------------------------


class RefusesToBePickled:
    def __reduce__(self) -> Any:
        raise ValueError("not me")


class DiesWhenPickled:
    """Kills the worker that sends it."""

    def __reduce__(self) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)
        return ()


class RefusesToBeRebuilt:
    def __reduce__(self) -> Any:
        return fail, (1,)


class Hostile:
    """Raises whatever it is asked."""

    def _refuse(self, *args: Any) -> Any:
        raise ArithmeticError("leave me alone")

    __eq__ = __ne__ = __bool__ = __len__ = __iter__ = __repr__ = __str__ = __hash__ = _refuse
    __lt__ = __contains__ = __getitem__ = __format__ = __dir__ = _refuse
    __class__ = property(_refuse)

    def __getattr__(self, name: str) -> Any:
        raise ArithmeticError(f"no {name}")

    def __reduce_ex__(self, protocol: Any) -> Any:
        return object.__new__, (Hostile,)


class HostileCall(Hostile):
    """The same as a task."""

    def __call__(self, *args: Any) -> Any:
        return torch.ones(1, requires_grad=True) * 2

    def __reduce_ex__(self, protocol: Any) -> Any:
        return object.__new__, (HostileCall,)


class FailsAtItsEnd:
    def __init__(self) -> None:
        self.tensor = leaf()

    def __del__(self) -> None:
        raise ArithmeticError("at its end")


GLOBAL = Hostile()


def leave(*args: Any) -> None:
    os._exit(3)


def gives(kind: type, tensor: Any = None) -> Any:
    return kind()


def first(item: Any, *others: Any) -> Any:
    return type(item).__name__


def deep(number: int) -> Any:
    return deep(number + 1)


def nested(depth: int) -> Any:
    item: Any = leaf()
    for _ in range(depth):
        item = [item]
    return item


def hostile_task(x: torch.Tensor) -> Any:
    mine = GLOBAL, Hostile()
    out = x * 2
    out.sum().backward()
    return values([out, len(mine)])


def _everywhere(run: Callable[..., Any]) -> list[str]:
    """What `run(map)` gives where `map(function, items)` is done by several kinds of workers."""
    told = []
    for backend in ("multiprocessing", "threading"):
        told += [error_of(lambda b=backend: run(lambda f, a: _by_joblib(b, f, a)))]
    with ProcessPoolExecutor(1, mp_context=FORK) as executor:
        told += [error_of(lambda: run(lambda f, a: list(executor.map(f, a))))]
    with FORK.Pool(1) as pool:
        told += [error_of(lambda: run(lambda f, a: pool.map(f, a)))]
    return told


def _by_joblib(backend: str, function: Any, items: Any) -> Any:
    return Parallel(2, backend=backend)(delayed(function)(item) for item in items)


@case
def misbehaving() -> Any:
    told = []
    item = [leaf(), RefusesToBePickled()]
    told += [error_of(lambda: _by_joblib("multiprocessing", first, [item]))]
    told += _everywhere(lambda gather: len(gather(gives, [RefusesToBePickled])))
    told += _everywhere(lambda gather: gather(first, [Hostile(), leaf()]))
    told += _everywhere(lambda gather: len(gather(gives, [Hostile])))
    told += _everywhere(lambda gather: values(gather(hostile_task, [leaf()])))
    told += _everywhere(lambda gather: gather(deep, [1]))
    told += _everywhere(lambda gather: len(gather(first, [nested(200)])))
    told += [error_of(lambda: _by_joblib("multiprocessing", first, [nested(100_000)]))]
    for backend in ("multiprocessing", "threading"):
        told += [error_of(lambda b=backend: _by_joblib(b, FailsAtItsEnd, []))]
        run = HostileCall()
        told += [
            error_of(lambda b=backend, r=run: Parallel(2, backend=b)([(r, (leaf(),), {})]) and 1)
        ]
    held = [FailsAtItsEnd()]
    told += _everywhere(lambda gather: gather(first, [held]))
    hostile = Hostile()
    out = Parallel(2, backend="multiprocessing")(delayed(double)(leaf()) for _ in range(2))
    (out[0] + out[1]).sum().backward()
    told += [values(out), type(hostile).__name__]
    return told


@case
def dying() -> Any:
    """Workers that end while they run, and while they send."""
    told = []
    for function, argument in (
        (leave, leaf()),
        (gives, DiesWhenPickled),
        (first, RefusesToBeRebuilt()),
    ):
        executor = ProcessPoolExecutor(1, mp_context=FORK)
        told += [error_of(executor.submit(function, argument).result)]
        told += [error_of(lambda e=executor: e.submit(nothing, 1).result())]
        executor.shutdown()
    for target, args in ((leave, (leaf(),)), (fail, (1,)), (os.kill, (0, 0))):
        process = FORK.Process(target=target, args=args)
        process.start()
        process.join()
        told += [process.exitcode]
    told += [values(Parallel(2, backend="multiprocessing")(delayed(double)(leaf()) for _ in "ab"))]
    return told


# -- objects that count what is asked of them, and tasks that are none ---------------------------

ASKED: Counter[str] = Counter()


class Counts:
    """A task that counts what is asked of it."""

    function: Any = ()

    def __call__(self, *args: Any) -> int:
        return len(args)

    def __getattr__(self, name: str) -> Any:
        ASKED[f"getattr {name}"] += 1
        raise AttributeError(name)

    def __bool__(self) -> bool:
        ASKED["bool"] += 1
        raise ArithmeticError("is it?")

    def __reduce__(self) -> Any:
        ASKED["reduce"] += 1
        return Counts, ()

    __class__ = property(lambda self: ASKED.update(["class"]) or Counts)  # type: ignore[assignment]


class Ambiguous:
    """A task that keeps another object under a name by which decorators keep functions."""

    def __init__(self) -> None:
        self.function = self.__wrapped__ = torch.ones(2)

    def __call__(self, *args: Any) -> int:
        return len(args)


class EqualProcess(FORK.Process):  # type: ignore[name-defined,misc]
    def __eq__(self, other: object) -> bool:
        ASKED["process eq"] += 1
        return True

    def __hash__(self) -> int:
        ASKED["process hash"] += 1
        return 1


class EqualThread(threading.Thread):
    def __eq__(self, other: object) -> bool:
        ASKED["thread eq"] += 1
        return self is other

    def __hash__(self) -> int:
        ASKED["thread hash"] += 1
        return 1


def _asked() -> list[Any]:
    told = sorted(ASKED.items())
    ASKED.clear()
    return told


def _run_until(runs: Any, ended: Any) -> None:
    runs.set()
    ended.wait()


@case
def counted() -> Any:
    told: list[Any] = []
    for function in (Counts(), Ambiguous()):
        for args in ((), (leaf(), 1)):
            for backend in ("multiprocessing", "threading"):
                run = Parallel(2, backend=backend)
                told += [run([(function, args, {})] * 2), _asked()]
            with ProcessPoolExecutor(1, mp_context=FORK) as executor:
                told += [executor.submit(function, *args).result(), _asked()]
            with FORK.Pool(1) as pool:
                told += [pool.apply(function, args), _asked()]
    for kind in (EqualProcess, EqualThread):
        ended = FORK.Event()  # a start asks of the others that have ended by then
        others = []
        for _ in range(2):
            runs = FORK.Event()  # until a thread runs, the start of the next asks of it as well
            others += [kind(target=_run_until, args=(runs, ended))]
            others[-1].start()
            runs.wait()
        ended.set()
        for other in others:
            other.join()
        told += [_asked()]
    return told


class Guarded(torch.Tensor):
    """A tensor whose attributes are its own matter."""

    def _refuse(self) -> Any:
        raise ArithmeticError("leave me alone")

    requires_grad = grad_fn = is_cuda = shape = grad = dtype = device = property(_refuse)


def give_guarded(x: torch.Tensor) -> Any:
    return torch.Tensor._make_subclass(Guarded, x.detach(), True)


@case
def odd_tensors() -> Any:
    """Sparse ones have no memory that could be shared; others hide what they are."""
    sparse = [torch.eye(2).to_sparse(), torch.eye(2).to_sparse_csr()]
    told: list[Any] = []
    with ProcessPoolExecutor(1, mp_context=FORK) as executor:
        told += [error_of(executor.submit(first, one).result) for one in sparse]
    with FORK.Pool(1) as pool:
        told += [error_of(lambda one=one: pool.apply(first, (one,))) for one in sparse]
    for backend in ("multiprocessing", "threading"):
        guarded = [give_guarded(leaf()) for _ in range(2)]
        told += [error_of(lambda b=backend, items=guarded: _by_joblib(b, first, items))]
    return told


def _error_in_full(run: Callable[[], Any]) -> Any:
    """What `run` gives, or its error with the frames of workers."""
    try:
        return run()
    except Exception as error:
        return [type(error).__name__, str(error), str(error.__cause__)]


@case
def no_tasks() -> Any:
    """What cannot be called goes to workers as it is: the errors are theirs."""
    told: list[Any] = []
    tasks: tuple[tuple[Any, ...], ...] = (
        (first, 5),
        (first, None),
        (first, (1,), None),
        (first, (1,), 5),
        (first, iter([leaf().detach(), 2])),
        (first, map(int, ["1"])),
        (5, (1,)),
        (None,),
        (5, (1,), {"a": 1}),
        (first, (1,), {1: 2}),
        (first, "ab"),
        (first, {3}),
    )
    for make in (FORK.Pool, ThreadPool):
        with make(1) as pool:
            told += [_error_in_full(pool.apply_async(*task).get) for task in tasks]
    for executor in (ProcessPoolExecutor(1, mp_context=FORK), ThreadPoolExecutor(1)):
        with executor:
            told += [_error_in_full(executor.submit(5, 1).result)]
            told += [_error_in_full(executor.submit(5, a=1).result)]
    for backend in ("multiprocessing", "threading"):
        for items in ([5], [(first,)], [(first, (1,))], [(first, (1,), {}, 4)], [first], "ab"):
            run = Parallel(2, backend=backend)
            told += [error_of(lambda r=run, i=items: r(i))]
    return told


class Mixin(concurrent.futures.Executor):
    def map(self, *args: Any, **options: Any) -> Any:
        return ["the mixin's", *super().map(*args, **options)]


class Mixed(ThreadPoolExecutor, Mixin):
    pass


class SentByMixin:
    def __reduce_ex__(self, protocol: Any) -> Any:
        return first, (b"",)


class Sent(torch.nn.Module, SentByMixin):
    pass


@case
def inherited() -> Any:
    """What stands behind a class of the library's in the order of bases, or takes its place."""
    told: list[Any] = []
    with Mixed(1) as mixed:
        told += [list(mixed.map(nothing, [1, 2]))]
        with mock.patch.object(concurrent.futures.Executor, "map", return_value=[7]):
            told += [mixed.map(nothing, [1])]
    with ThreadPoolExecutor(1) as executor:
        with mock.patch.object(concurrent.futures.Executor, "map", return_value=7) as mocked:
            told += [executor.map(nothing, [1]), mocked.call_count]
        told += [list(executor.map(nothing, [1]))]
    run = Parallel(2, backend="multiprocessing")
    return [*told, run(delayed(nothing)(one) for one in [Sent(), Sent()])]


# -- bad circumstances --------------------------------------------------------------------------


def _by_executor() -> Any:
    with ProcessPoolExecutor(1, mp_context=FORK) as executor:
        return values(executor.submit(plain_double, torch.ones(2)).result())


def _work() -> list[Any]:
    told = [error_of(lambda: values(_by_joblib("multiprocessing", double, [leaf(), leaf()])))]
    told += [error_of(lambda: values(_by_joblib("threading", double, [leaf(), leaf()])))]
    return [*told, error_of(_by_executor), error_of(_by_process)]


def _by_process() -> Any:
    model = net().share_memory()
    process = FORK.Process(target=train, args=(model, torch.ones(4, 2)))
    process.start()
    process.join()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.step()
    return process.exitcode


@case
def small_files() -> Any:
    """No file may be written: the disk is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))
    try:
        return _work()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@case
def nowhere_to_write() -> Any:
    for name in ("HOME", "TMPDIR", "JOBLIB_TEMP_FOLDER", "XDG_CACHE_HOME"):
        os.environ[name] = "/nonexistent/folder"
    return _work()


def _mount(folder: str, options: str) -> None:
    """Put an empty file system of this process's own there, which others do not see.

    Raises:
        PermissionError: this user may not.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    new_mounts, private, recursive = 0x20000, 1 << 18, 1 << 14
    for done in (
        libc.unshare(new_mounts),
        libc.mount(b"none", b"/", None, recursive | private, None),
        libc.mount(b"none", folder.encode(), b"tmpfs", 0, options.encode()),
    ):
        if done:
            raise PermissionError(ctypes.get_errno(), NOT_ALLOWED)


@case
def no_shared_memory() -> Any:
    """``/dev/shm`` takes nothing: no semaphore, no tensor."""
    _mount("/dev/shm", "size=4k,nr_inodes=1")
    return _work()


@case
def full_disk() -> Any:
    """The folder for temporary files takes nothing; the guard writes nothing on its own."""
    folder = "/mnt"
    _mount(folder, "size=4k,nr_inodes=1")
    for name in ("HOME", "TMPDIR", "JOBLIB_TEMP_FOLDER", "XDG_CACHE_HOME"):
        os.environ[name] = folder
    os.chdir(folder)
    tempfile.tempdir = None
    return [*_work(), os.listdir(folder)]


@case
def few_descriptors() -> Any:
    """As many files open as it takes without the guard, and not one more."""
    told = []
    for spare in (2, 3, 4, 5, 6, 8, 12):
        used = len(os.listdir("/proc/self/fd")) - 1
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + spare, before[1]))
        try:
            told += [_started(spare)]
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
    return told


def _started(spare: int) -> str:
    def start() -> Any:
        process = FORK.Process(target=train, args=(net(), torch.ones(4, 2)))
        process.start()
        process.join()
        return process.exitcode

    return f"{spare}: {error_of(start)}"


@case
def little_memory() -> Any:
    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (300 << 20), before[1]))
    try:
        told = [error_of(lambda: values(_by_joblib("threading", double, [leaf(), leaf()])))]
        told += [error_of(lambda: len(_by_joblib("threading", torch.ones, [1 << 30])))[:12]]
        return told
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


# -- threads ------------------------------------------------------------------------------------


@case
def fork_under_locks() -> Any:
    """A thread forks while another one holds every lock of the guard's."""
    global _before_fork
    _before_fork = _hold_locks
    process = FORK.Process(target=_works_itself)
    process.start()
    process.join(60)
    status = process.exitcode
    process.kill()
    return status


_before_fork: Callable[[], None] | None = None
"""Called once, as the last thing before the next fork."""
_forked = threading.Event()


def _at_fork() -> None:
    global _before_fork
    call, _before_fork = _before_fork, None
    if call is not None:
        call()


# Functions run in reverse order: the guard, which is not imported yet, has its own before this one.
os.register_at_fork(before=_at_fork, after_in_parent=_forked.set)


def _hold_locks() -> None:
    """Have another thread hold the locks until the parent has forked."""
    locks = sys.modules.get("pytest_gradguard.runtime.kernel.locks")
    taken = threading.Event()
    _forked.clear()

    def hold() -> None:
        with contextlib.ExitStack() as stack:
            for lock in list(locks._all) if locks else ():
                stack.enter_context(lock)
            taken.set()
            _forked.wait()

    threading.Thread(target=hold, daemon=True).start()
    taken.wait()


def _works_itself() -> None:
    out = _by_joblib("threading", double, [leaf(), leaf()])
    (out[0] + out[1]).sum().backward()
    with FORK.Pool(1) as pool:
        pool.map(plain_double, [leaf()])
    model = net()
    loss = model(torch.ones(4, 2)).sum()
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    os._exit(7)


@case
def many_threads() -> Any:
    """Fifty threads that dispatch at once."""
    told: list[Any] = [None] * 50

    def work(index: int) -> None:
        x = torch.full((2,), float(index), requires_grad=True)
        for _ in range(3):
            out = _by_joblib("threading", double, [x, x])
            (out[0] + out[1]).sum().backward()
        told[index] = values([out, x.grad])

    threads = [threading.Thread(target=work, args=(index,)) for index in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with ProcessPoolExecutor(2, mp_context=FORK) as executor:
        jobs = [threading.Thread(target=executor.submit, args=(nothing, k)) for k in range(50)]
        for job in jobs:
            job.start()
        for job in jobs:
            job.join()
        told += list(executor.map(nothing, range(10)))
    return told


def main() -> None:
    name, how = sys.argv[1:]
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    warnings.filterwarnings("always", message="gradguard itself failed")
    if how == "guarded":
        from pytest_gradguard import install

        install("record")
    print(CASES[name]())


if __name__ == "__main__":
    main()
