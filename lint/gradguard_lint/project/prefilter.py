"""The byte search: which files may have a pitfall at all.

A pitfall needs a way to start workers *and* a framework, or one of a few marks that suffice alone.
Nearly every file has neither, and costs no more than this search. Imports are searched first, and
all of a file only if they allow it; files that pass are searched again without comments and
docstrings.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from operator import attrgetter

from gradguard_lint.project.file_bytes import File
from gradguard_lint.project.links import PACKAGES, Links, module_name
from gradguard_lint.project.marks import fits_models
from gradguard_lint.project.reaching import FAR, MANY, Reach

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from gradguard_lint.project.reader import Reader

BETWEEN = 1
"""The number of modules between a program and what starts its workers, in small projects."""
_ITERATES = (b"for ", b"next(", b"iter(")
"""Text that iterates."""

_trains, _estimates = attrgetter("trains"), attrgetter("estimates")
_together = attrgetter("together")
_framework, _stands_on_framework = attrgetter("framework"), attrgetter("stands_on_framework")
_passes_generators_on, _remembers = attrgetter("passes_generators_on"), attrgetter("remembers")
_may_harm, _samples = attrgetter("may_harm"), attrgetter("samples")
_forks = attrgetter("forks")
_has_dask_arrays = attrgetter("has_dask_arrays")
_gives = attrgetter("gives")


def _may_cache(file: File) -> bool:
    """Whether a module creates a cache of results, or may use one."""
    return file.remembers or b".cache" in file.data


def _loads(file: File) -> bool:
    """Whether a module creates loaders with workers, or for distributed training."""
    return file.loads or file.samples_together


_MEETING = (_has_dask_arrays, attrgetter("has_keras"))


def _any_of(names: Iterable[str]) -> bytes | None:
    """A pattern for any of `names`; None if there are none."""
    words = b"|".join(sorted(re.escape(os.fsencode(name)) for name in names))
    return rb"\b(?:" + words + rb")\b" if words else None


class Prefilter:
    """Decides, from bytes alone, which files are read as programs."""

    def __init__(
        self,
        contents: Mapping[str, bytes],
        tops: Sequence[str] = (),
        wrappers: Collection[str] = (),
        ranked: Collection[str] = (),
    ) -> None:
        """Search `contents`; `tops` as for `Reader`. The configured `wrappers` start workers;
        `ranked` train, wrap or gather for ranks."""
        own = frozenset(name.rpartition(".")[2] for name in wrappers)
        self._wrappers = _any_of(own)
        self._ranked = _any_of(name.rpartition(".")[2] for name in ranked)
        self._handing_on: dict[tuple[File, int], bool] = {}
        self._naming: dict[Callable[[File], bool], set[bytes]] = {}
        self._helping: dict[File, bool] = {}
        self._links = Links(contents, tops, own)
        self.files = self._links.files
        self._reach = Reach(self._links, small=self._is_small)

    @property
    def read(self) -> Reader:
        """The reader of all files so far."""
        return self._links.read

    def keeps(self, path: str) -> bool:
        """Whether the file at `path` may have a pitfall."""
        file = self.files[path]
        return self._may(path, file) and self._may(path, file.code)

    def loops(self, path: str) -> bool:
        """Whether the file at `path` may compute gradients in a loop."""
        return self.files[path].takes_gradients

    def importers(self, paths: Collection[str]) -> list[str]:
        """Files that import one of `paths`, nearest first."""
        return self._links.importers(paths)

    def _may(self, path: str, file: File) -> bool:
        if file.alone or (self._ranked is not None and re.search(self._ranked, file.data)):
            return True
        if b"sklearn" in file.imported and self._has_estimator(path, file):
            return True
        if self._gives_arrays_to_models(path, file):
            return True
        if self._starts(file):
            return (
                file.framework
                or file.shows_modules
                or b"CUDA_VISIBLE_DEVICES" in file.data
                or file.code.random_tasks
                or self._imports_framework(path, file)
                or self._imports_one(path, _passes_generators_on)
            )
        if self._trains_together(path, file):
            return True
        if (
            file.loads
            and (file.framework or self._imports_one(path, _framework))
            and self._loads_with_harm(path, file)
        ):
            return True
        if self._is_given_a_loader(path, file):
            return True
        if not file.framework:
            return (
                self._brings_together(path, file)
                or self._runs_both(path, file)
                or self._gives_generator(path, file)
                or self._caches(path, file)
            )
        if (file.trains or file.does_something) and self._comes_to(path, self._starts):
            return True  # it may create the objects that start them, and needs gradients
        if (
            file.uses_gradients or file.starts_program or (self._is_small and file.does_something)
        ) and self._passes_on(path):
            return True
        return (
            self._is_given(path, file)
            or self._caches(path, file)
            or (self._may_import(file, self._helps) and self._comes_to(path, self._helps))
        )

    def _gives_arrays_to_models(self, path: str, file: File) -> bool:
        """Whether dask arrays and Keras models occur here or in imported modules."""
        if not self._fits_keras:
            return False
        if not file.has_dask_arrays and not self._may_import(file, _has_dask_arrays):
            return False
        return all(wanted(file) or self._imports_one(path, wanted) for wanted in _MEETING)

    @cached_property
    def _fits_keras(self) -> bool:
        """Whether there are Keras models, and calls that train or use models."""
        files = self.files.values()
        return any(file.has_keras for file in files) and any(fits_models(it.data) for it in files)

    def _caches(self, path: str, file: File) -> bool:
        """Whether it, or a name it imports, caches results in files, and a framework is within a
        few imports."""
        return (
            file.remembers
            or (
                (file.framework or _may_cache(file))
                and self._may_import(file, _remembers)
                and self._links.reaches(path, "remembers", _may_cache, through=1)
            )
        ) and (file.framework or self._reach.reaches(path))

    def _may_import(self, file: File, wanted: Callable[[File], bool]) -> bool:
        """In large projects, whether it names a `wanted` module, or one that may re-export its
        names."""
        return self._is_small or not file.words.isdisjoint(self._leading_to(wanted))

    def _leading_to(self, wanted: Callable[[File], bool]) -> set[bytes]:
        """Names of `wanted` modules, and of those that may re-export their names."""
        if wanted not in self._naming:
            names = {module_name(path) for path, it in self.files.items() if wanted(it)}
            found = {*names, *self._importing(names, packages=False)}
            for _ in range(PACKAGES + 1):
                names = self._importing(names, packages=True)
                found |= names
            self._naming[wanted] = found
        return self._naming[wanted]

    def _importing(self, names: set[bytes], *, packages: bool) -> set[bytes]:
        """Names of modules (or only `packages`) that import one of `names`."""
        return {
            module_name(path)
            for path, file in self.files.items()
            if (not packages or path.endswith("__init__.py")) and not names.isdisjoint(file.words)
        }

    def _is_given(self, path: str, file: File) -> bool:
        """Whether it calls a starter that a project module re-exports."""
        return self._may_import(file, _gives) and self._imports_one(
            path, lambda it: any(call.found(file.data) for call in it.gives)
        )

    def _has_estimator(self, path: str, file: File) -> bool:
        """Whether it runs several jobs, and defines or imports an estimator that may train on a
        GPU."""
        if file.estimates:
            return file.asks_for_jobs
        return (
            file.asks_for_jobs
            and self._may_import(file, _estimates)
            and self._imports_one(path, _estimates)
        )

    def _is_given_a_loader(self, path: str, file: File) -> bool:
        """Whether it imports a loader whose dataset, there or here, may do harm, or whose sampler
        isn't told the epoch."""
        if not self._may_import(file, _loads):
            return False
        if not any(word in file.data for word in _ITERATES):
            return False

        def wanted(other: File) -> bool:
            if other.samples_together and (file.trains or self._imports_one(path, _trains)):
                return True
            return (
                other.loads
                and other.framework
                and (
                    self._loads_with_harm(self._links.path_of(other), other)
                    or self._loads_with_harm(path, file)
                )
            )

        return self._links.reaches(path, "loads", wanted)

    def _passes_on(self, path: str) -> bool:
        """Whether it imports something that may pass arguments to a helper with workers, or a class
        that inherits from a starter."""
        through = BETWEEN if self._is_small else 0
        return self._links.reaches(
            path, "starts", lambda it: self._hands_to_helper(it, through), through + 1
        )

    @property
    def _is_small(self) -> bool:
        """Whether there are few enough files to follow each far."""
        return len(self.files) <= MANY

    def _hands_to_helper(self, file: File, through: int) -> bool:
        """Whether a module imports such a helper, a class that starts workers, or a module that
        does, through at most `through` others."""
        if (file, through) not in self._handing_on:
            self._handing_on[file, through] = self._imports_one(
                self._links.path_of(file),
                lambda other: (
                    self._helps(other)
                    or (
                        b"class " in file.data
                        and b"class " in other.data
                        and (self._starts(other) or self._extends_starter(other))
                    )
                    or (through > 0 and self._hands_to_helper(other, through - 1))
                ),
            )
        return self._handing_on[file, through]

    def _extends_starter(self, file: File) -> bool:
        """Whether a class of a module may inherit from a starter in another module."""
        heads = [b"class " + name for name in file.bases]
        return (
            bool(heads)
            and self._may_import(file, self._starts)
            and self._imports_one(
                self._links.path_of(file),
                lambda it: any(head in it.data for head in heads) and self._starts(it),
            )
        )

    def _brings_together(self, path: str, file: File) -> bool:
        """Whether it imports a helper that runs others' functions in workers, and a module with a
        framework."""
        if file.words.isdisjoint(self._leading_to(self._hands_on)):
            return False
        return self._imports_one(path, _stands_on_framework) and self._comes_to(
            path, self._hands_on
        )

    def _runs_both(self, path: str, file: File) -> bool:
        """Whether it is a program that imports a starter, or a subclass of one, and within a few
        imports a framework, which may provide the data."""
        if not file.starts_program:
            return False
        starts = self._may_import(file, self._starts) and self._comes_to(path, self._starts)
        if not starts and not (
            b".start()" in file.data and self._imports_one(path, self._extends_starter)
        ):
            return False
        forks = file.forks or self._imports_one(path, _forks)
        return self._reach.reaches(path, "fork" if forks else "")

    def _gives_generator(self, path: str, file: File) -> bool:
        """Whether it creates a generator as a program (or in small projects passes one on at module
        level), and imports what may send it to workers."""
        return (
            (file.starts_program or self._is_small)
            and self._may_import(file, self._starts)
            and file.gives_generators
            and self._comes_to(path, self._starts)
        )

    def _hands_on(self, file: File) -> bool:
        return self._helps(file) and file.hands_on

    def _loads_with_harm(self, path: str, file: File) -> bool:
        """Whether a dataset, or what it calls, may use a GPU or a generator of its own."""
        return all(
            wanted(file) or self._imports_one(path, wanted) for wanted in (_may_harm, _samples)
        ) or any(_may_harm(it) and _samples(it) for it in self._links.behind(path, FAR))

    def _trains_together(self, path: str, file: File) -> bool:
        """Whether the file's program may run distributed training."""
        if not file.framework:
            return False
        if file.together:
            return (
                file.trains
                or file.samples_together
                or (file.wraps and self._imports_one(path, _trains))
            )
        if not file.trains and not (
            self._may_import(file, _together)
            and self._imports_one(path, _trains)
            and file.does_something
        ):
            return False
        return self._comes_to_together(path) or (
            not file.trains and self._imports_one(path, self._trains_with_others)
        )

    def _comes_to_together(self, path: str) -> bool:
        return self._links.reaches(path, "trains-together", _together)

    def _trains_with_others(self, file: File) -> bool:
        """Whether a module trains, and uses distributed training."""
        return file.trains and self._comes_to_together(self._links.path_of(file))

    def _starts(self, file: File) -> bool:
        """Whether it calls a starter, or a configured one."""
        return file.starts_workers or (
            self._wrappers is not None and re.search(self._wrappers, file.data) is not None
        )

    def _helps(self, file: File) -> bool:
        """Whether a module starts workers for others; if it has a framework, only those that get
        others' functions count, as it is checked itself."""
        if file not in self._helping:
            starts = self._starts(file) and self._starts(file.code)
            self._helping[file] = starts and (not file.framework or file.hands_on)
        return self._helping[file]

    # -- the modules of the project ------------------------------------------------------------

    def _imports_one(self, path: str, wanted: Callable[[File], bool]) -> bool:
        """Whether `path` imports a project module that is `wanted`."""
        return any(map(wanted, self._links.imported(path)))

    def _comes_to(self, path: str, wanted: Callable[[File], bool]) -> bool:
        """Whether `path` imports a `wanted` module, and names that it uses start workers."""
        return self._links.reaches(path, "starts", wanted)

    def _imports_framework(self, path: str, file: File) -> bool:
        """Whether what workers run or receive may come from a framework through project imports, or
        from a global generator: drawn from in forks, or seeded."""
        kind = "fork" if file.forks else ""
        if not self._reach.reaches(path, kind):
            return False
        if kind or not file.code.starts_threads_alone:
            return True
        return self._reach.reaches(path, "thread")
