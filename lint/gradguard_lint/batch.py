"""Analysis of many files, with the cache and possibly in parallel."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial

from gradguard_lint.analysis import Analysed, Result, analyse
from gradguard_lint.domain.options import Options
from gradguard_lint.garbage import collect
from gradguard_lint.models.own_stubs import short_form
from gradguard_lint.models.rows import Row
from gradguard_lint.project.files import UNCHANGED, Trouble, absolute
from gradguard_lint.project.reader import Reader
from gradguard_lint.project.summaries import summary
from gradguard_lint.reading.source import SourceError
from gradguard_lint.rules import program_codes
from pytest_gradguard.records import fields

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from typing import Any, Literal

    from gradguard_lint.project.cache import Cache
    from gradguard_lint.raw import Raw

    Sought = Literal["workers", "loops", "all"]
    """What to search for in a file: work in workers, gradients in loops, or both."""

__all__ = ["Batch", "Raw", "Result", "Sought", "Task", "own_rows"]

LOOPS = frozenset({"GG404"})
"""Codes about loops in one thread. They are searched for in files and functions of their own, so
that other findings don't depend on them."""

WORTH_PROCESSES = 1536 * 1024
"""The total size from which several processes are used."""


@fields
class Task:
    """One file to analyse, with its configuration.

    Attributes:
        path: the file.
        data: its bytes.
        root: the folder of its configuration, for the cache.
        rows: the rows in the configuration.
        start: the default start method of processes.
        set_elsewhere: the start method that another program of the project sets, or "".
        sought: what to search for.
        called: the lines of its functions that other files call: these are analysed there.
        whole: whether it runs even if nothing in it matters, for the functions that it calls.
    """

    path: str
    data: bytes
    root: str
    rows: tuple[Row, ...]
    start: str
    sought: Sought
    set_elsewhere: str = ""
    called: frozenset[int] = frozenset()
    whole: bool = False


class Batch:
    """The analysis of files."""

    def __init__(
        self,
        *,
        jobs: int,
        cache: bool,
        over: Mapping[str, bytes] = UNCHANGED,
        read: Reader,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Prepare it.

        Args:
            jobs: the number of processes; 0: depends on the amount of work.
            cache: whether to use the cache.
            over: overrides of file contents.
            read: the reader of files.
            progress: called with the number of analysed programs, and of all, if one process is
                used.
        """
        self._progress = progress
        self.over = dict(over)
        self.jobs = jobs
        self._cache = cache
        self._caches: dict[str, Cache] = {}
        self._read = read.over(self.over)

    @property
    def warnings(self) -> list[Trouble]:
        """Problems of the caches, to report to the user."""
        caches = self._caches.values()
        return [Trouble(it.folder, 0, it.problem) for it in caches if it.problem is not None]

    def run(self, tasks: Sequence[Task]) -> dict[str, Result]:
        """The results by path, in the order of the tasks."""
        results: dict[str, Result] = {}
        pending = []
        read = self._read
        if self._cache:
            from gradguard_lint.project.cache import Cache

            for task in tasks:
                if task.root not in self._caches:
                    self._caches[task.root] = Cache(task.root)
        for task in tasks:
            known = self._known(task, read)
            if known is None:
                pending.append(task)
            else:
                results[task.path] = known
        for task, fresh in zip(pending, self._analyse(pending, read), strict=True):
            result = results[task.path] = fresh.result
            if result.error is None and task.root in self._caches:
                kept = {"findings": result.findings, "calls": result.calls, "cut": result.cut}
                kept["silenced"] = result.silenced
                asked = {it: (fresh.asked[it], digest) for it, digest in fresh.summaries.items()}
                needed = (task.data, fresh.used, asked, fresh.absent)
                self._caches[task.root].put(task.path, _salt(task, read), *needed, kept)
        return {task.path: results[task.path] for task in tasks}

    def _known(self, task: Task, read: Reader) -> Result | None:
        if task.root not in self._caches:
            return None
        known = self._caches[task.root].get(
            task.path, _salt(task, read), task.data, read, partial(summary, read)
        )
        if known is None:
            return None
        calls = [(path, line, own) for path, line, own in known["calls"]]
        cut = [(path, line, name, why) for path, line, name, why in known["cut"]]
        silenced = [(path, line, code) for path, line, code in known["silenced"]]
        return Result([*map(_restored, known["findings"])], calls, cut, silenced)

    def _analyse(self, tasks: Sequence[Task], read: Reader) -> list[Analysed]:
        size = sum(len(task.data) for task in tasks)
        jobs = self.jobs or ((os.cpu_count() or 1) if size > WORTH_PROCESSES else 1)
        if jobs > 1 and len(tasks) > 1:
            from gradguard_lint.processes import map_in_processes

            work = _InWorker(self.over, read.tops, cached=self._cache)
            return map_in_processes(work, tasks, min(jobs, len(tasks)))
        analysed: list[Analysed] = []
        for task in tasks:
            if self._progress is not None:
                self._progress(len(analysed), len(tasks))
            analysed.append(_analyse_one(task, read, cached=self._cache))
        return analysed


def _restored(raw: Raw) -> Raw:
    """A finding from the cache."""
    steps = {name: [tuple(step) for step in raw[name]] for name in ("trace", "ways")}
    return {**raw, **steps, "otherwise": [*map(_restored, raw["otherwise"])]}


def _salt(task: Task, read: Reader) -> str:
    """All that the findings of a file depend on beside files."""
    rows = ";".join(map(repr, task.rows))
    called = ",".join(map(str, sorted(task.called)))
    said = (task.start, task.sought, task.set_elsewhere, called, str(task.whole))
    roots = read.roots_around(os.path.dirname(absolute(task.path)))
    return "\0".join((_version(), rows, *said, *roots))


class _InWorker:
    """Analyses files in a worker process, with a reader of its own."""

    def __init__(self, over: Mapping[str, bytes], tops: Sequence[str], *, cached: bool) -> None:
        self._over = over
        self._cached = cached
        self._tops = tops
        self._read: Reader | None = None

    def __call__(self, task: Task) -> Analysed:
        if self._read is None:
            self._read = Reader(self._tops).over(self._over)
        return _analyse_one(task, self._read, cached=self._cached)


def _analyse_one(task: Task, read: Reader, *, cached: bool) -> Analysed:
    """Analyse one file; a fault of the linter is an error of that file. With summaries, if the
    result is to be `cached`."""
    loops = task.sought != "workers"
    options = Options(task.start, task.set_elsewhere, task.called, loops=loops)
    wanted = LOOPS if task.sought == "loops" else program_codes()
    read.known.setdefault(os.path.abspath(task.path), task.data)
    try:
        path, data = task.path, task.data
        seen = analyse(path, data, wanted, options, read, task.rows, whole=task.whole)
        if seen.stated:
            from gradguard_lint.fixes.proof import settle

            def again(contents: dict[str, bytes]) -> list[Raw]:
                changed, over = contents.get(absolute(path), data), read.over(contents)
                return analyse(path, changed, wanted, options, over, task.rows).result.findings

            settle(seen.stated, seen.result.findings, again)
            seen.stated.clear()
        if cached:
            only_asked = [it for it in seen.asked if it not in seen.used]
            seen.summaries = {it: summary(read, it) for it in only_asked}
        return seen
    except SourceError as error:
        return Analysed(Result(error=(error.line, str(error))))
    except Exception as error:
        return Analysed(Result(error=(1, f"gradguard could not check this file: {error!r}")))
    finally:
        collect()


# CPython, from 3.11 on, keeps frames in chunks of 16 KiB, and unmaps one as soon as it is empty: a
# loop whose calls begin a chunk maps and unmaps it each time. This frame requests a chunk large
# enough for a whole run.
_analyse_one.__code__ = _analyse_one.__code__.replace(co_stacksize=66_000)


@cache
def own_rows(
    delayed: tuple[str, ...],
    parallel: tuple[str, ...],
    models: tuple[tuple[tuple[str, Any], ...], ...],
) -> tuple[Row, ...]:
    """The rows in tables of the configuration."""
    short = (
        Row(" ".join(names), does)
        for names, does in ((delayed, "task"), (parallel, "parallel"))
        if names
    )
    tables = [row for model in models for row in short_form(dict(model))]
    return (*short, *tables)


@cache
def _version() -> str:
    """The version of the linter itself, by its files' names, sizes and times; and of Python."""
    from pytest_gradguard import __version__

    home = os.path.dirname(os.path.abspath(__file__))
    marks = [__version__, *map(str, sys.version_info[:3])]
    for folder, folders, names in os.walk(home):
        folders.sort()
        for name in sorted(names):
            if name.endswith(".py"):
                status = os.stat(os.path.join(folder, name))
                marks.append(f"{name}:{status.st_size}:{status.st_mtime_ns}")
    return "\n".join(marks)
