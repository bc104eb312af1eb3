"""Judges mutations of a package by tests, in processes that are forked once all is imported.

All tests first run with code that tells which mutations each of them reaches. Then each mutation is
put into the functions of one process, which runs the tests that reach it until one
fails.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import gc
import importlib
import json
import os
import pkgutil
import resource
import select
import shutil
import signal
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple, NoReturn

import pytest
from _pytest.runner import runtestprotocol
from mutations import PROBE, Mutation, instrumented, mutated
from planting import Live
from verdicts import Verdict

CPU_LIMIT = 5.0
"""The seconds of CPU time, and ten times what a test takes otherwise, after which it is ended: a
loop comes to no end."""
SLOWEST = 2.0
"""Tests that take more seconds of CPU time judge nothing."""
LIMIT = 120
"""The seconds after which a test is ended that waits for ever."""
MOST = 20.0
"""The seconds of CPU time of the tests that judge one mutation: those that take least."""
TOGETHER = 24
"""How many tests share a process to tell what they reach."""
MEMORY = 4 << 30
"""The bytes that the data of a process may have."""
ANSWER = "answer"
"""The file in which a process leaves what it returns."""


class Reached(NamedTuple):
    """How one test ran.

    Attributes:
        passed: whether it passed.
        seconds: its CPU time.
        numbers: the mutations that it reaches.
    """

    passed: bool
    seconds: float
    numbers: list[int]


def loaded(package: str) -> Live:
    """All functions of a package, which is imported with all that it holds."""
    module = importlib.import_module(package)
    for found in pkgutil.walk_packages(module.__path__, f"{package}."):
        if not found.name.endswith("__main__") and ".stubs" not in found.name:
            importlib.import_module(found.name)
    return Live(f"{os.sep}{package}{os.sep}")


def caches(package: str) -> list[Any]:
    """The functions of a package that keep their results."""
    kind = type(functools.cache(lambda: None))
    return [it for it in gc.get_objects() if type(it) is kind and it.__module__.startswith(package)]


class Judge:
    """A plugin of pytest that runs the tests for each mutation, in place of running them once."""

    def __init__(self, package: str, mutations: Sequence[Mutation], lanes: int) -> None:
        self._package = package
        self._mutations = mutations
        self._lanes = lanes
        self.verdicts: dict[Mutation, Verdict] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Judge all mutations."""
        live = loaded(self._package)
        self._caches = caches(self._package)
        gc.freeze()  # its pages stay shared with the processes that are forked
        items = {item.nodeid: item for item in session.items}
        began = time.monotonic()
        reached = self._recorded(items, live)
        judging = {
            test: ran for test, ran in reached.items() if ran.passed and ran.seconds <= SLOWEST
        }
        print(
            f"{len(judging)} of {len(items)} tests judge; they ran in "
            f"{time.monotonic() - began:.0f} s"
        )
        tests: defaultdict[int, list[str]] = defaultdict(list)
        seconds: defaultdict[int, float] = defaultdict(float)
        for test in sorted(judging, key=lambda test: (judging[test].seconds, test)):
            for number in judging[test].numbers:
                seconds[number] += judging[test].seconds
                if seconds[number] <= MOST:
                    tests[number].append(test)
        killers: defaultdict[str, Counter[str]] = defaultdict(Counter)

        def started(number: int) -> Callable[[], str]:
            mutation = self._mutations[number]
            known = killers[mutation.path]
            order = sorted(tests[number], key=lambda test: -known[test])
            return lambda: _judged(live, mutation, [(items[it], judging[it]) for it in order])

        wanted = [number for number in range(len(self._mutations)) if tests[number]]
        for number, told in in_lanes(((it, started(it)) for it in wanted), self._lanes):
            mutation = self._mutations[number]
            how, _, by = told.partition("\n")
            self.verdicts[mutation] = Verdict(how or "killed", by, tuple(tests[number]))
            killers[mutation.path].update([by] if by else [])
            if len(self.verdicts) % 50 == 0:
                print(f"{len(self.verdicts)} of {len(wanted)} mutations are judged", flush=True)
        for number, mutation in enumerate(self._mutations):
            if not tests[number]:
                self.verdicts[mutation] = Verdict("not reached")
        return True

    def _recorded(self, items: dict[str, pytest.Item], live: Live) -> dict[str, Reached]:
        """How each test runs, and what it reaches."""
        changed = instrumented_functions(live, self._mutations)

        def run(tests: Sequence[str]) -> str:
            numbers: set[int] = set()
            setattr(builtins, PROBE, numbers.add)
            for function, code in changed:
                function.__code__ = code
            found = {}
            for test in tests:
                numbers.clear()
                for cache in self._caches:  # or only the first test would reach what is behind it
                    cache.cache_clear()
                began = time.process_time()
                passed = _passes(items[test])
                found[test] = (passed, time.process_time() - began, sorted(numbers))
            return json.dumps(found)

        names = [*items]
        groups = [names[at : at + TOGETHER] for at in range(0, len(names), TOGETHER)]
        tasks = ((number, functools.partial(run, it)) for number, it in enumerate(groups))
        return {
            test: Reached(*ran)
            for _, told in in_lanes(tasks, self._lanes)
            if told
            for test, ran in json.loads(told).items()
        }


Changed = list[tuple[FunctionType, CodeType]]
"""Functions that are loaded, with other code for them."""


def instrumented_functions(live: Live, mutations: Iterable[Mutation]) -> Changed:
    """What calls `PROBE` with the number of each of `mutations` that is reached."""
    by_path: defaultdict[str, list[tuple[int, Mutation]]] = defaultdict(list)
    for number, mutation in enumerate(mutations):
        by_path[mutation.path].append((number, mutation))
    return [
        change
        for path, numbered in by_path.items()
        for change in _changed(live, path, functools.partial(instrumented, numbered=numbered))
    ]


def put(live: Live, mutation: Mutation) -> bool:
    """Change what is loaded; False where no function holds that mutation."""
    try:
        changed = _changed(live, mutation.path, functools.partial(mutated, mutation=mutation))
        for function, code in changed:
            function.__code__ = code
    except ValueError:  # it has other variables of a function around it
        return False
    return bool(changed)


def _changed(live: Live, path: str, change: Callable[[str], ast.Module]) -> Changed:
    """The functions of a file that a change of its text concerns, with their code after it."""
    text = Path(path).read_text(encoding="utf-8")
    before, after = (compile(it, path, "exec", dont_inherit=True) for it in (text, change(text)))
    return live.changed(before, after)


def _judged(live: Live, mutation: Mutation, tests: Iterable[tuple[pytest.Item, Reached]]) -> str:
    """Run tests with a mutation until one fails: how it came out, and that test."""
    if not put(live, mutation):
        return "not applied"
    for item, ran in tests:
        signal.setitimer(signal.ITIMER_PROF, CPU_LIMIT + 10 * ran.seconds)
        if not _passes(item):
            return f"killed\n{item.nodeid}"
    return "survived"


def _passes(item: pytest.Item) -> bool:
    signal.alarm(LIMIT)
    item.config._tmp_path_factory._basetemp = Path(tempfile.gettempdir())  # type: ignore[attr-defined]
    reports = runtestprotocol(item, log=False, nextitem=None)
    return not any(report.failed for report in reports)


# -- processes -------------------------------------------------------------------------------------


def in_lanes(
    tasks: Iterable[tuple[Any, Callable[[], str]]], lanes: int
) -> Iterator[tuple[Any, str]]:
    """What each task returns in a forked process of its own, so many at a time; "" where that
    process ends without an answer."""
    waiting = iter(tasks)
    running: dict[int, tuple[Any, int, str]] = {}
    while True:
        while len(running) < lanes and (task := next(waiting, None)) is not None:
            folder = tempfile.mkdtemp(prefix="mutant-")
            process = os.fork() or _run(task[1], folder)
            running[os.pidfd_open(process)] = (task[0], process, folder)
        if not running:
            return
        for ended in select.select([*running], [], [])[0]:
            key, process, folder = running.pop(ended)
            os.close(ended)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process, signal.SIGKILL)  # what it has left
            os.waitpid(process, 0)
            answer = Path(folder, ANSWER)
            yield key, answer.read_text(encoding="utf-8") if answer.exists() else ""
            shutil.rmtree(folder, ignore_errors=True)


def _run(task: Callable[[], str], folder: str) -> NoReturn:
    """Do a task in this process, which is a forked one, and end it."""
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        tempfile.tempdir = folder
        told = task()
        Path(folder, f"{ANSWER}.part").write_text(told, encoding="utf-8")
        os.rename(Path(folder, f"{ANSWER}.part"), Path(folder, ANSWER))
    finally:
        os._exit(0)
