"""The byte search: which files may have a pitfall at all.

A pitfall needs a way to start workers *and* a framework, or one of a few marks that stand
alone. Nearly every file has neither, and costs no more than this search. What a file imports is
looked for in the lines that import, so that the whole of it is read only where they allow it;
and what survives is asked again without its comments and docstrings.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property, partial
from operator import attrgetter

from gradguard_lint.project.blocks import leading_to
from gradguard_lint.project.file_bytes import File, calls_together, makes_loader
from gradguard_lint.project.links import PACKAGES, Links, Project, module_name
from gradguard_lint.project.marks import fits_models
from gradguard_lint.project.reaching import FAR, MANY, Reach

BETWEEN = 1
"""Over how many more modules a program is followed to what starts workers for others, where there
are few files."""
_ITERATES = (b"for ", b"next(", b"iter(")
"""What is there where something is iterated."""

_trains, _estimates = attrgetter("trains"), attrgetter("estimates")
_together = attrgetter("together")
_framework, _stands_on_framework = attrgetter("framework"), attrgetter("stands_on_framework")
_passes_generators_on, _remembers = attrgetter("passes_generators_on"), attrgetter("remembers")
_may_harm, _samples = attrgetter("may_harm"), attrgetter("samples")
_forks = attrgetter("forks")
_has_dask_arrays = attrgetter("has_dask_arrays")
_MEETING = (_has_dask_arrays, attrgetter("has_keras"))


class Prefilter:
    """Decides, from bytes alone, which files are worth reading as programs."""

    def __init__(
        self, contents: Mapping[str, bytes], project: Project, wrappers: Collection[str] = ()
    ) -> None:
        """Look at `contents`; `wrappers` are names of the user's own that start workers."""
        names = [re.escape(name.rpartition(".")[2].encode()) for name in wrappers]
        self._wrappers = rb"\b(?:" + b"|".join(names) + rb")\b" if names else None
        self._passing: dict[tuple[File, int], set[bytes] | None] = {}
        self._extending: dict[File, bool] = {}
        self._handing_on: dict[tuple[File, int], bool] = {}
        self._leading: dict[tuple[File, Callable[[File, bytes], bool]], set[bytes] | None] = {}
        self._helping: dict[File, bool] = {}
        self._links = Links(contents, project)
        self.files = self._links.files
        self._reach = Reach(self._links, small=self._is_small)
        self.helpers: set[bytes] | None = None
        """The names of modules that start workers for others, where there are many files."""
        if len(contents) > MANY:
            self.helpers = self._named(self._helps)

    def keeps(self, path: str) -> bool:
        """Whether the file at `path` may have a pitfall."""
        file = self.files[path]
        return self._may(path, file) and self._may(path, file.code)

    def loops(self, path: str) -> bool:
        """Whether the file at `path` may take gradients in a loop."""
        return self.files[path].takes_gradients

    def importers(self, paths: Collection[str]) -> list[str]:
        """The files that import one of those at `paths`, the nearest first."""
        return self._links.importers(paths)

    def _may(self, path: str, file: File) -> bool:
        if file.alone:
            return True
        if b"sklearn" in file.imported and self._has_estimator(path, file):
            return True
        if self._gives_arrays_to_models(path, file):
            return True
        if self._starts(file):
            return (
                file.framework
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
                or self._caches_what_matters(path, file)
            )
        if (file.starts_program or file.trains) and self._comes_to(
            path, self._starts, self._calls_workers
        ):
            return True  # it may make the objects whose methods start them, and wants gradients
        if (
            self._may_import_starter(file)
            and self._comes_to(path, self._starts, self._calls_workers)
            and file.does_something
        ):
            return True
        if (
            file.uses_gradients or file.starts_program or (self._is_small and file.does_something)
        ) and self._passes_on(path):
            return True
        if self._is_given(path, file):
            return True
        if self._has_cached(path, file) or self._trains_through_cached(path, file):
            return True
        if self.helpers == set():
            return False
        if self.helpers is not None and self._giving_helpers.isdisjoint(file.words):
            return False
        return self._comes_to(path, self._helps, self._calls_workers)

    def _gives_arrays_to_models(self, path: str, file: File) -> bool:
        """Whether arrays of dask and models of Keras meet here, from other modules too."""
        if not self._fits_keras:
            return False
        if not file.has_dask_arrays and file.words.isdisjoint(self._arrays):
            return False
        return all(wanted(file) or self._imports_one(path, wanted) for wanted in _MEETING)

    @cached_property
    def _fits_keras(self) -> bool:
        """Whether there are models of Keras at all, and what trains or asks models."""
        files = self.files.values()
        return any(file.has_keras for file in files) and any(fits_models(it.data) for it in files)

    @cached_property
    def _arrays(self) -> set[bytes]:
        """The names of the modules that make arrays of dask, and of those that import them."""
        return self._leading_by_import(_has_dask_arrays)

    def _has_cached(self, path: str, file: File) -> bool:
        """Whether it keeps the results of functions, its own or those of modules that import no
        framework, in what a module of the project gives."""
        if not self._may_import_memory(file):
            return False
        return self._caches(path, file) or self._imports_one(path, self._is_cached)

    def _caches_what_matters(self, path: str, file: File) -> bool:
        """Whether it makes or has what keeps the results of functions, and comes over a few modules
        to a framework."""
        return (file.remembers or self._caches(path, file)) and self._reach.reaches(path, file)

    @cached_property
    def _remembering(self) -> set[bytes]:
        """The names of the modules that make what remembers results, and of those that import
        them."""
        return self._leading_by_import(_remembers)

    def _is_cached(self, file: File) -> bool:
        """Whether a module without a framework keeps the results of its functions."""
        return not file.framework and (
            (file.remembers and b".cache" in file.data)
            or self._caches(self._links.path_of(file), file)
        )

    def _trains_through_cached(self, path: str, file: File) -> bool:
        """Whether it trains what a module with a framework keeps the results of."""
        if not file.trains or not self._may_import_memory(file):
            return False
        return self._imports_one(path, lambda it: it.remembers and b".cache" in it.data)

    def _caches(self, path: str, file: File) -> bool:
        """Whether it keeps results in what it has from a module of the project."""
        if b".cache" not in file.data:
            return False
        return self._may_import_memory(file) and self._imports_one(path, _remembers)

    def _may_import_memory(self, file: File) -> bool:
        """Whether it names a module that makes what remembers results, or one that imports such a
        module, where there are many files."""
        return self._is_small or not file.words.isdisjoint(self._remembering)

    def _is_given(self, path: str, file: File) -> bool:
        """Whether it calls what starts workers, and has the name from a module of the project."""
        names = None
        if not self._is_small:
            giving = self._giving & file.words
            if not giving:
                return False
            names = [it for it in file.imports if giving.intersection(os.fsencode(it).split(b"."))]
        return self._imports_one(
            path, lambda it: any(call.found(file.data) for call in it.gives), names
        )

    def _has_estimator(self, path: str, file: File) -> bool:
        """Whether it runs several jobs, and has or imports an estimator of the project's own, which
        may train on a GPU."""
        if file.estimates:
            return file.asks_for_jobs
        if not self._is_small and file.words.isdisjoint(self._estimating):
            return False
        return file.asks_for_jobs and self._imports_one(path, _estimates)

    def _is_given_a_loader(self, path: str, file: File) -> bool:
        """Whether it has a loader from a module of the project, whose dataset, there or here, may
        do harm, or whose sampler is not told of the epochs of what trains here."""
        if not self._is_small and (not self._loading or file.words.isdisjoint(self._loading)):
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

        return self._comes_to(path, wanted, makes_loader)

    @cached_property
    def _loading(self) -> set[bytes]:
        """The names of the modules that make loaders with workers, or of processes that train
        together, and of the packages that import them."""
        return self._given_by(lambda file: file.loads or file.samples_together)

    @cached_property
    def _estimating(self) -> set[bytes]:
        """The names of the modules with such estimators, and of the packages that import them."""
        return self._given_by(_estimates)

    @cached_property
    def _giving(self) -> set[bytes]:
        """The names of modules that import a library for others."""
        return self._named(attrgetter("gives"))

    def _passes_on(self, path: str) -> bool:
        """Whether it imports what may give what it is given to a helper that hands it to workers,
        or a class that inherits what starts them."""
        through = BETWEEN if self._is_small else 0

        def wanted(file: File) -> bool:
            return self._hands_to_helper(file, through)

        return self._imports_one(path, wanted) and any(
            wanted(file) and _leads(self._leading_to_helper(file, through), asked)
            for file, asked in self._links.asked(path).items()
        )

    @property
    def _is_small(self) -> bool:
        """Whether there are so few files that each may be followed far."""
        return len(self.files) <= MANY

    def _hands_to_helper(self, file: File, through: int) -> bool:
        """Whether a module imports such a helper, or a class that starts workers, or one that does,
        over at most `through` others."""
        if (file, through) not in self._handing_on:
            self._handing_on[file, through] = self._imports_one(
                self._links.path_of(file),
                lambda other: (
                    self._is_wanted_of(file, other)
                    or (through > 0 and self._hands_to_helper(other, through - 1))
                ),
            )
        return self._handing_on[file, through]

    def _is_wanted_of(self, file: File, other: File) -> bool:
        return self._helps(other) or (
            b"class " in file.data
            and b"class " in other.data
            and (self._starts(other) or self._extends_starter(other))
        )

    def _leading_to_helper(self, file: File, through: int) -> set[bytes] | None:
        """The names that lead to what a module imports so; None for any."""
        if (file, through) not in self._passing:
            path = self._links.path_of(file)
            wanted = {
                here
                for imported in file.imported_names
                for here in imported[2:]
                if any(
                    self._is_asked(file, other, asked, through)
                    for other, asked in self._links.asked_by(path, (imported,)).items()
                )
            }
            self._passing[file, through] = (
                None
                if "*" in wanted
                else leading_to(file.code.data, lambda _: False, map(os.fsencode, wanted))
            )
        return self._passing[file, through]

    def _is_asked(self, file: File, other: File, asked: set[str] | None, through: int) -> bool:
        """Whether what `file` takes of `other` leads to such a helper or class."""
        if self._is_wanted_of(file, other) and (
            self._extends_starter(other)
            or _leads(self._leading_to(other, self._calls_workers), asked)
        ):
            return True
        return (
            through > 0
            and self._hands_to_helper(other, through - 1)
            and _leads(self._leading_to_helper(other, through - 1), asked)
        )

    def _extends_starter(self, file: File) -> bool:
        """Whether a class of a module may inherit from another module what starts workers."""
        if file not in self._extending:
            heads = [b"class " + name for name in file.bases]

            def wanted(other: File) -> bool:
                return any(head in other.data for head in heads) and self._starts(other)

            self._extending[file] = (
                bool(heads)
                and self._may_import_starter(file)
                and self._imports_one(self._links.path_of(file), wanted)
            )
        return self._extending[file]

    def _brings_together(self, path: str, file: File) -> bool:
        """Whether it imports what gives others' functions to workers, and beside it a module
        with a framework."""
        if file.words.isdisjoint(self._frameworks) or file.words.isdisjoint(self._handing):
            return False
        return self._comes_to(path, self._hands_on, self._calls_workers) and self._imports_one(
            path, _stands_on_framework
        )

    def _runs_both(self, path: str, file: File) -> bool:
        """Whether it is a program that imports what starts workers, or a class that inherits it,
        and over a few modules a framework: it may give what these work on."""
        if not file.starts_program:
            return False
        starts = self._may_import_starter(file) and self._comes_to(
            path, self._starts, self._calls_workers
        )
        if not starts and not (
            b".start()" in file.data and self._imports_one(path, self._extends_starter)
        ):
            return False
        forks = file.forks or self._imports_one(path, _forks)
        return self._reach.reaches(path, file, "fork" if forks else "")

    def _gives_generator(self, path: str, file: File) -> bool:
        """Whether it is a program that makes a generator, or its own code gives one on (among many
        files, only a program is asked), and it comes to what may give that to workers."""
        return (
            (file.starts_program or self._is_small)
            and self._may_import_starter(file)
            and file.gives_generators
            and self._comes_to(path, self._starts, self._calls_workers)
        )

    def _may_import_starter(self, file: File) -> bool:
        """Whether it names a module that starts workers, where there are many files."""
        return self._is_small or not file.words.isdisjoint(self._starting)

    @cached_property
    def _starting(self) -> set[bytes]:
        """The names of the modules that start workers, and of the packages that import them."""
        return self._given_by(self._starts)

    @cached_property
    def _frameworks(self) -> set[bytes]:
        """The names of the modules that import a framework."""
        return self._named(_stands_on_framework)

    @cached_property
    def _handing(self) -> set[bytes]:
        """The names of the modules that hand on what they are given, and of the packages that
        import them."""
        return self._given_by(self._hands_on)

    def _named(self, wanted: Callable[[File], bool]) -> set[bytes]:
        """The names of the modules that are `wanted`."""
        return {module_name(path) for path, file in self.files.items() if wanted(file)}

    def _given_by(self, wanted: Callable[[File], bool]) -> set[bytes]:
        """The names of the modules that are `wanted`, and of the packages that import them."""
        names = self._named(wanted)
        return names | self._packages_giving(names)

    def _packages_giving(self, modules: set[bytes]) -> set[bytes]:
        """The names of the packages that import one of `modules`, for others perhaps, and of those
        that import these packages."""
        found: set[bytes] = set()
        for _ in range(PACKAGES + 1):
            modules = {
                module_name(path)
                for path, file in self.files.items()
                if modules and path.endswith("__init__.py") and not modules.isdisjoint(file.words)
            }
            found |= modules
        return found

    def _hands_on(self, file: File) -> bool:
        return self._helps(file) and file.hands_on

    def _loads_with_harm(self, path: str, file: File) -> bool:
        """Whether a dataset, or what it calls, may use a GPU or a generator of its own."""
        return all(
            wanted(file) or self._imports_one(path, wanted) for wanted in (_may_harm, _samples)
        ) or any(_may_harm(it) and _samples(it) for it in self._passing_names(path))

    def _passing_names(self, path: str) -> Iterator[File]:
        """The modules from which those that `path` imports have what it takes of them, or classes
        that theirs extend; and those from which these have it."""
        near = self._links.asked(path)
        for _ in range(FAR):
            further: dict[File, set[str] | None] = {}
            for file, asked in near.items():
                passed = [
                    it
                    for it in file.imported_names
                    if asked is None or it[2] in ("*", *asked) or os.fsencode(it[2]) in file.bases
                ]
                further.update(self._links.asked_by(self._links.path_of(file), passed))
            near = further
            yield from near

    @cached_property
    def _giving_helpers(self) -> set[bytes]:
        """The names of the modules that start workers for others, and of the packages that import
        them."""
        helpers = self.helpers or set()
        return helpers | self._packages_giving(helpers)

    def _trains_together(self, path: str, file: File) -> bool:
        """Whether the program that the file starts may train in several processes."""
        if not file.framework:
            return False
        if file.together:
            return (
                file.trains
                or file.samples_together
                or (file.wraps and self._imports_one(path, _trains))
            )
        if not file.trains and not (
            self._may_import_together(file)
            and self._imports_one(path, _trains)
            and file.does_something
        ):
            return False
        return self._comes_to_together(path) or (
            not file.trains and self._imports_one(path, self._trains_with_others)
        )

    def _may_import_together(self, file: File) -> bool:
        """Whether it names a module that leads to what processes do that train together, where
        there are many files."""
        return self._is_small or not file.words.isdisjoint(self._leading_together)

    @cached_property
    def _leading_together(self) -> set[bytes]:
        """The names of the modules that do what processes do that train together, and of those that
        import them."""
        return self._leading_by_import(_together)

    def _leading_by_import(self, wanted: Callable[[File], bool]) -> set[bytes]:
        """The names of the modules that are `wanted`, and of those that import them."""
        names = self._named(wanted)
        importing = (it for it, file in self.files.items() if not file.words.isdisjoint(names))
        return names.union(map(module_name, importing)) if names else names

    def _comes_to_together(self, path: str) -> bool:
        return self._comes_to(path, _together, calls_together)

    def _trains_with_others(self, file: File) -> bool:
        """Whether a module trains, and comes to what processes do that train together."""
        return file.trains and self._comes_to_together(self._links.path_of(file))

    def _starts(self, file: File) -> bool:
        return file.starts_workers or self._wraps(file.data)

    def _wraps(self, data: bytes) -> bool:
        """Whether it has a name of the user's own that starts workers."""
        return self._wrappers is not None and re.search(self._wrappers, data) is not None

    def _helps(self, file: File) -> bool:
        """Whether a module starts workers for others: with a framework it is checked itself, and
        others only where it is given their functions."""
        if file not in self._helping:
            starts = self._starts(file) and self._starts(file.code)
            self._helping[file] = starts and (not file.framework or file.hands_on)
        return self._helping[file]

    # -- the modules of the project ------------------------------------------------------------

    def _imports_one(
        self, path: str, wanted: Callable[[File], bool], names: list[str] | None = None
    ) -> bool:
        """Whether a module of the project that `path` imports (as one of `names`) is `wanted`."""
        return any(map(wanted, self._links.imported(path, names)))

    def _comes_to(
        self, path: str, wanted: Callable[[File], bool], found: Callable[[File, bytes], bool]
    ) -> bool:
        """Whether `path` imports what leads to something that is `found` in a `wanted` module."""
        return self._imports_one(path, wanted) and any(
            wanted(file) and _leads(self._leading_to(file, found), asked)
            for file, asked in self._links.asked(path).items()
        )

    def _leading_to(self, file: File, found: Callable[[File, bytes], bool]) -> set[bytes] | None:
        """The names of a module that lead to what is `found` in it; None where its import does."""
        if (file, found) not in self._leading:
            self._leading[file, found] = leading_to(file.code.data, partial(found, file.code))
        return self._leading[file, found]

    def _calls_workers(self, file: File, part: bytes) -> bool:
        """Whether a part of a file calls what hands work to workers."""
        return file.calls_workers(part) or self._wraps(part)

    def _imports_framework(self, path: str, file: File) -> bool:
        """Whether what the workers run, or are given, may come from a framework through the
        project's imports, or to a global generator: to draw from it in a forked process, or to
        seed it."""
        kind = "fork" if file.forks else ""
        if not self._reach.reaches(path, file, kind):
            return False
        if kind or not file.code.starts_threads_alone:
            return True
        return self._reach.reaches(path, file, "thread")


def _leads(leading: set[bytes] | None, asked: set[str] | None) -> bool:
    """Whether one of the names that are `asked` for is `leading`; None stands for any."""
    if leading is None or asked is None:
        return leading is None or bool(leading)
    return any(os.fsencode(name) in leading for name in asked)
