"""Facts about one file, from its bytes."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cached_property

from gradguard_lint.models.rows import GROUPS
from gradguard_lint.project import drawing
from gradguard_lint.project.imports import Imported, dotted_names, import_lines, imported_names
from gradguard_lint.project.literals import (
    before,
    has,
    matches,
    with_line_feeds,
    without_comments,
    without_strings,
    words_of,
)
from gradguard_lint.project.marks import (
    ASKED,
    ESTIMATING,
    FRAMEWORKS,
    IN_FORKS,
    MARKS,
    OF_HOMES,
    PARTS,
    REEXPORTABLE,
    SHOWS_MODULES,
    TOGETHER,
    TRAINS,
    WORKERS,
    Mark,
    any_found,
    changes_what_threads_share,
    makes_loaders,
    remembers,
)
from gradguard_lint.project.places import (
    assigned_name,
    caller,
    calls,
    dispatched_names,
    is_given,
    used_names,
)

_GROUPS = tuple(map(str.encode, GROUPS))
_GPU = (b"cuda", b"gpu", b"GPU", b"device")
_GPU_BY_NAME = rb"[\"'](?:gpu|cuda)[\"']"
_SAMPLES = (
    b"def __getitem__",
    b"def __iter__",
    b"collate_fn",
    b"worker_init_fn",
    b"TensorDataset",
)
_FRAMEWORK = (
    rb"(?:^|.*[;:\r\xbf])[ \t\f]*(?:(?:import|from)[ \t\f\\\r]+"
    rb"|(?:from[ \t]+[\w.]+[ \t]+)?import[ \t\f(][^\n#]*,[ \t\f]*"
    rb"|from[ \t]+\.*\w*[ \t]+import[ \t\f(]+)\Z"
)
"""A line with an import, up to the name of a package."""
_REMOVED = rb"wrappers\.scikit_learn|wrappers[ \t]+import[ \t(]+scikit_learn"
_RIGHT_BACKEND = (b"parallel_config", b"parallel_backend")
_GPU_ESTIMATORS = frozenset({b"skorch", b"xgboost", b"lightgbm", b"catboost", b"cuml"})
_ON_GPU = (*_GPU, b"cuml")
_SEVERAL_JOBS = rb"n_jobs(?![ \t]*=[ \t]*(?:1|None)\b)"
_MAPPED = ((b"map_fn",), rb"\bmap_fn[ \t]*(?=\()")
_SPEC = ((b"TensorSpec",), rb"TensorSpec[ \t]*(?=\()")
_ANYWHERE = FRAMEWORKS - IN_FORKS
"""Frameworks that matter for all start methods."""
_FORKS = (b"Pool", b"ProcessPoolExecutor", b'"multiprocessing', b"'multiprocessing", *ASKED)
_FORK = rb"\bPool\b|ProcessPoolExecutor|[\"']multiprocessing[\"']|" + b"|".join(ASKED)
_SEEDING_WORKERS = ((b"worker",), rb"(?<!num_)worker")
_SEEDED_ALIKE = rb"seed(?:_all|_everything)?[ \t]*\([ \t]*(?![\w.]*(?:worker|id\b))[\w.]+[ \t]*\)"
"""A seed that may be equal in all workers: only a name or number, not of the worker."""
_DOES = (
    rb"\n(?:(?:with|for|while)[ \t]"
    rb"|(?!if\b|elif\b|assert\b)[a-z_][\w.]*(?:[ \t]*=[ \t]*[A-Za-z_][\w.]*)?\()"
)
"""A module-level statement that iterates, or calls something."""
_FOR_BACKEND = rb"[\"']backend[\"'][ \t]*:[ \t]*\Z"
_PARALLEL = rb"\bParallel(?:[ \t]*\(\s*\*)?\Z"
"""The start of a call with a positional backend, also in an unpacked tuple."""
_BACKEND_BY_NAME = rb"\bbackend[ \t]*=[ \t]*[^\W\d]"
_RETURNED = rb"\breturn\b"
_LOOP_GRADIENT = (b"GradientTape", b".backward(", b"autograd.grad")
_DASK_ARRAY = rb"dask\.(?:array|dataframe)|from[ \t]+dask[ \t]+import"


class File:
    """Facts about one file, from its bytes; each is computed once."""

    def __init__(self, data: bytes) -> None:
        data = self.data = with_line_feeds(data)
        self.imported = import_lines(data)
        self.words = words_of(self.imported)
        """The words in its imports."""
        self._starts: bool | None = None
        self.framework = self._uses_framework(_ANYWHERE)
        """Whether it imports a framework that matters for its kind of workers."""
        self.fails_in_forks = self._uses_framework(IN_FORKS)
        """Whether it imports a framework that breaks in forked processes."""
        if not self.framework and self.fails_in_forks:
            self.framework = self._may_fork() or self._asks_for_gpus() or not self.starts_workers

    def _uses_framework(self, frameworks: Collection[bytes]) -> bool:
        """Whether one of these frameworks is imported."""
        lines = self.imported
        if any(_imports_it(lines, name) for name in self.words.intersection(frameworks)):
            return True
        return b"import *" in lines and any(name + b"." in self.data for name in frameworks)

    def _asks_for_gpus(self) -> bool:
        """Whether it requests GPUs by name."""
        return re.search(_GPU_BY_NAME, self.data) is not None

    def _may_fork(self) -> bool:
        """Whether it mentions something that may fork."""
        return any(mark in self.data for mark in (*_FORKS, b"Process", b"DataLoader"))

    @cached_property
    def imports(self) -> list[str]:
        """The dotted names that it imports."""
        return dotted_names(self.imported_names)

    @cached_property
    def imported_names(self) -> list[Imported]:
        """The names that its imports bind."""
        return imported_names(self.imported)

    def names_used_of(self, name: str) -> set[str] | None:
        """The dotted names used of the module `name`; None if the module itself is used."""
        taken = used_names(self.data, name)
        return used_names(without_strings(self.data), name) if taken is None else taken

    @cached_property
    def bases(self) -> set[bytes]:
        """Imported names that its classes extend."""
        found: set[bytes] = set()
        for head in re.findall(rb"\bclass[ \t]+\w+[ \t]*\(([^()]*)\)", self.data):
            found |= words_of(head)
        return found & self.words

    @cached_property
    def stands_on_framework(self) -> bool:
        """Whether importing this module imports a framework."""
        lines = self.imported
        return self.framework and any(
            re.search(rb"^(?:import|from)[ \t]+" + name + rb"\b", lines, re.MULTILINE) is not None
            for name in self.words & FRAMEWORKS
        )

    @property
    def starts_workers(self) -> bool:
        """Whether it calls something that dispatches work to workers."""
        if self._starts is None:
            self._starts = bool(self.imported) and self.calls_workers(self.data)
        return self._starts

    def calls_workers(self, data: bytes) -> bool:
        """Whether its part `data` calls something that dispatches work to workers."""
        known = self.framework or not self.words.isdisjoint(WORKERS)
        return any_found(
            data, (it for it in MARKS if (known or not it.homes) and self._can_name(it))
        )

    @property
    def starts_threads_alone(self) -> bool:
        """Whether it starts only threads."""
        return all(mark.threads for mark in MARKS if self._can_name(mark) and mark.found(self.data))

    def _can_name(self, mark: Mark) -> bool:
        """Whether its imports allow it to have the name of `mark`."""
        return (
            not mark.homes
            or not self._homes.isdisjoint(mark.homes)
            or not self._parts.isdisjoint(mark.parts)
        )

    @cached_property
    def _homes(self) -> set[bytes]:
        """Imported packages with starters; all of them, for star imports."""
        return set(REEXPORTABLE) if b"import *" in self.imported else set(self._named_homes)

    @cached_property
    def _named_homes(self) -> list[bytes]:
        """Packages with starters that its imports name."""
        if self.words.isdisjoint(OF_HOMES):
            return []
        return [home for home in REEXPORTABLE if home in self.imported]

    @cached_property
    def _parts(self) -> set[bytes]:
        """Mentioned framework modules with starters."""
        return {part for part in PARTS if part in self.data}

    @cached_property
    def gives(self) -> set[Mark]:
        """Starters that it only re-exports."""
        homes = [home for home in self._named_homes if not self._asks(home)]
        if not homes or self.starts_workers:
            return set()
        return {mark for home in homes for mark in REEXPORTABLE[home]}

    def _asks(self, home: bytes) -> bool:
        """Whether it uses a package."""
        asked = home.rpartition(b" ")[2].strip(b",") + b"."
        data = self.data
        place = data.find(asked)
        while place >= 0 and data[max(place - 7, 0) : place].endswith((b"import ", b"from ")):
            place = data.find(asked, place + 1)
        return place >= 0

    @cached_property
    def loads(self) -> bool:
        """Whether it creates a loader with workers."""
        return makes_loaders(self.data)

    @property
    def alone(self) -> bool:
        """Whether it may have a pitfall that needs no workers."""
        data = self.data
        if self.framework and (
            (b"wrappers" in data and re.search(_REMOVED, data))
            or any(
                b"parallel_iterations" in call
                or b"**" in call
                or any(b"shape" not in spec for spec in calls(call, _SPEC))
                for call in calls(data, _MAPPED)
            )
            or self.remembers
            or (self.has_dask_arrays and (b"keras" in data or b"tensorflow" in data))
        ):
            return True
        if (
            not self.words.isdisjoint(_GPU_ESTIMATORS)
            and self.asks_for_jobs
            and any(mark in data for mark in _ON_GPU)
        ):
            return True
        lines = self.imported
        return (
            (b"Parallel" in lines or b"joblib" in lines or b"import *" in lines)
            and b"dask" in data
            and b"Parallel" in data
            and _wrong_backend(data)
        )

    @cached_property
    def has_dask_arrays(self) -> bool:
        """Whether it creates dask arrays or tables."""
        return b"dask" in self.imported and re.search(_DASK_ARRAY, self.data) is not None

    @property
    def has_keras(self) -> bool:
        """Whether it imports Keras."""
        return b"keras" in self.imported or b"tensorflow" in self.imported

    @cached_property
    def asks_for_jobs(self) -> bool:
        """Whether it requests several jobs."""
        return has(self.data, (b"n_jobs",), _SEVERAL_JOBS)

    @property
    def estimates(self) -> bool:
        """Whether it defines or creates an estimator that may train on a GPU."""
        data = self.data
        own = self.framework and b"sklearn.base" in self.imported and b"def fit" in data
        return (own or any(top in self.imported for top in ESTIMATING)) and any(
            mark in data for mark in _GPU
        )

    @cached_property
    def together(self) -> bool:
        """Whether it calls functions of distributed training."""
        data = self.data
        return self.framework and any(name in data for name in _GROUPS) and _calls_together(data)

    @cached_property
    def trains(self) -> bool:
        """Whether it computes gradients, or passes a loss to a library."""
        data = self.data
        if any(mark in data for mark in TRAINS):
            return True
        return b".gradient(" in data and b"tape" in data.lower()  # NumPy and dask have one, too

    @property
    def shows_modules(self) -> bool:
        """Whether it shows that something is a module, an optimizer or a loss."""
        return self.trains or any(mark in self.data for mark in SHOWS_MODULES)

    @property
    def uses_gradients(self) -> bool:
        """Whether it computes, uses or enables gradients."""
        data = self.data
        return self.framework and (
            self.trains
            or b".step(" in data
            or b"requires_grad=True" in data
            or b".requires_grad_(" in data
        )

    @cached_property
    def changes_what_threads_share(self) -> bool:
        """Whether it may change what threads share, or a mode that they don't inherit."""
        return changes_what_threads_share(self.data)

    @property
    def takes_gradients(self) -> bool:
        """Whether it may compute gradients in a loop."""
        return self.framework and any(mark in self.data for mark in _LOOP_GRADIENT)

    @property
    def forks(self) -> bool:
        """Whether it may fork workers."""
        return has(self.data, _FORKS, _FORK)

    @property
    def seeds(self) -> bool:
        """Whether it seeds a global generator."""
        return drawing.SEED in self.data

    @property
    def may_harm(self) -> bool:
        """Whether it may use a GPU, a generator of its own, or what breaks in forks; or seed all
        workers equally."""
        data = self.data
        if (
            self.fails_in_forks
            or any(mark in data for mark in _GPU)
            or has(data, *drawing.GENERATORS)
        ):
            return True
        return has(data, *_SEEDING_WORKERS) and has(data, (b"seed",), _SEEDED_ALIKE)

    @property
    def samples(self) -> bool:
        """Whether it may define a dataset, or functions that a loader's workers call."""
        return any(mark in self.data for mark in _SAMPLES)

    @property
    def wraps(self) -> bool:
        """Whether it wraps a model for distributed training."""
        return b"DistributedDataParallel" in self.data or b"Accelerator" in self.data

    @cached_property
    def starts_program(self) -> bool:
        """Whether it runs as a program."""
        return b"__main__" in self.data

    @property
    def does_something(self) -> bool:
        """Whether its module-level code calls anything."""
        return self.starts_program or re.search(_DOES, self.data) is not None

    @cached_property
    def samples_together(self) -> bool:
        """Whether it loads data for distributed training."""
        return b"DistributedSampler" in self.data and b"DataLoader" in self.data and self.together

    @property
    def random_tasks(self) -> bool:
        """Whether its tasks may draw equal numbers: see `may_draw_equally`."""
        return drawing.may_draw_equally(self.data, self.words, forks=self.forks)

    @property
    def gives_generators(self) -> bool:
        """Whether it is a program that creates a generator, or passes one on at module level."""
        return drawing.passes_generator_on(self.data, anyhow=self.starts_program)

    @cached_property
    def passes_generators_on(self) -> bool:
        """Whether it stores or returns generators, or objects with them."""
        return drawing.stores_or_returns_generator(self.data)

    @cached_property
    def draws(self) -> bool:
        """Whether it draws from NumPy's global generator."""
        return any(True for _ in drawing.draws(self.data, self.words))

    @cached_property
    def remembers(self) -> bool:
        """Whether it creates a cache of results (``joblib.Memory``)."""
        lines = self.imported
        return (b"joblib" in lines or b"import *" in lines) and remembers(self.data)

    @cached_property
    def hands_on(self) -> bool:
        """Whether it dispatches what others pass to it, or passes workers to others."""
        data = self.code.data
        given = {name.rpartition(b".")[2] for name in dispatched_names(data)}
        known = {b"lambda", b"partial", *re.findall(rb"\b(?:def|class)[ \t]+(\w+)", data)}
        return not given or not given <= known | self.words

    @cached_property
    def code(self) -> File:
        """The file without comments and docstrings."""
        file = File(without_comments(self.data))
        file.__dict__["code"] = file
        return file


def _calls_together(data: bytes) -> bool:
    """Whether a file calls functions of distributed training."""
    return any(
        named.group(1) is None or is_given(data, named.start())
        for named in matches(data, *TOGETHER)
    )


def _wrong_backend(data: bytes) -> bool:
    """Whether a call other than ``parallel_config`` has the backend dask."""
    for quoted in matches(data, (b'"dask"', b"'dask'"), rb"."):
        line = before(data, quoted.start())
        if re.search(_FOR_BACKEND, line):
            return True
        if re.search(_RETURNED, line) and re.search(_BACKEND_BY_NAME, data):
            return True
        name = assigned_name(data, quoted.start())
        if name and name != b"backend":
            if re.search(rb"\bbackend[ \t]*=[ \t]*(?:[\w.]*\.)?" + name + rb"\b", data):
                return True
            if re.search(rb"\bParallel[ \t]*\([^()=]*,\s*(?:[\w.]*\.)?" + name + rb"\s*[,)]", data):
                return True
            continue
        called = caller(data, quoted.start())
        if not called.endswith(_RIGHT_BACKEND) if name else re.search(_PARALLEL, called):
            return True
    return False


def _imports_it(lines: bytes, name: bytes) -> bool:
    """Whether one of `lines` imports `name`."""
    place = lines.find(name)
    while place >= 0:
        end = place + len(name)
        if not lines[end : end + 1].isalnum() and lines[end : end + 1] != b"_":
            start = lines.rfind(b"\n", 0, place) + 1
            if re.match(_FRAMEWORK, lines[start:place]):
                return True
        place = lines.find(name, end)
    return False
