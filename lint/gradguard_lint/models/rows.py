"""Rows: what a library's names do, as data; and the registry of all rows.

A library is one module of this package that holds ``LIBRARY``. A row says for some names which
transfer function (`does`) they have, with its particulars. Everything else that must know what
starts workers, what is a framework or what changes in place is derived from the rows.
"""

from __future__ import annotations

import os
from functools import cache, cached_property
from importlib import import_module

from gradguard_lint.domain.starts import Start, Vocabulary
from gradguard_lint.models.stub_files import FOLDER, stubs_in
from gradguard_lint.words import words
from pytest_gradguard.records import fields

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Literal

    from gradguard_lint.models.stub_files import Stub


def under(module: str, names: str) -> str:
    """The full names of what is called `names` in `module`."""
    return " ".join(f"{module}.{name}" for name in names.split())


@fields
class Row:
    """What some names do.

    Attributes:
        names: dotted names, separated by spaces; ``*`` at an end stands for any further name.
        does: the transfer function.
        only: of a ``*``, only the classes, only the functions, or only what is no class's.
        framework: whose tensors or generators these are.
        kind: the kind of thing that is made.
        start: how workers come into being; "" is the program's start method.
        methods: the methods of what is made that hand out work.
        argument: the position and the name of the argument that matters.
        output: the position and the name of the argument that receives the result.
        gpu: whether the GPU is used, or is meant to be used.
        driver: whether the GPU's driver is started besides, unless an argument asks for the CPU.
        keeps: whether iterables are not iterated by the call, but by what it gives.
        flag: a particular of the transfer function.
        stub: the user's stub that says what it does.
    """

    names: str
    does: str
    only: Literal["", "class", "function", "of-modules"] = ""
    framework: str = ""
    kind: str = ""
    start: str = ""
    methods: frozenset[str] = frozenset()
    argument: tuple[int, str] = (0, "")
    output: tuple[int, str] = (0, "")
    gpu: bool = False
    driver: bool = False
    keeps: bool = False
    flag: str = ""
    stub: Stub | None = None


@fields
class Library:
    """One library.

    Attributes:
        tops: the packages that it is imported as.
        rows: what its names do.
        spelled: other spellings of a beginning of names, and the one that the rows use.
        framework: whether programs that use it may have gradients or use a GPU.
        in_forks: whether all that is known of it concerns processes that are forked, or GPUs that
            a program asks for by name.
        bases: what a project's class is that has one of these bases.
        marks: words that show its use where no name of it does.
        starts_by: words by which work is handed out, where no name of it does so.
        beside: words that matter in a module that imports it.
        starts: ways in which its workers come into being that no other library has.
        constants: what some of its names are, on Linux.
    """

    tops: tuple[str, ...]
    rows: tuple[Row, ...] = ()
    spelled: Mapping[str, str] = {}
    framework: bool = False
    in_forks: bool = False
    bases: Mapping[str, str] = {}
    marks: tuple[str, ...] = ()
    starts_by: tuple[str, ...] = ()
    beside: frozenset[str] = frozenset()
    starts: tuple[Start, ...] = ()
    constants: Mapping[str, str | bool] = {}


STARTERS = frozenset(
    {
        "bag",
        "dask-client",
        "dask-compute",
        "executor",
        "loader",
        "mapping",
        "parallel",
        "pool",
        "process",
        "remote",
        "spawn",
        "task",
    }
)
"""The transfers by which work leaves the calling thread."""


PASSED_ON = frozenset({"task", "parallel"})
"""Starters that projects hand on under their own names: whose they are says nothing."""

RANKS = frozenset({"accelerator", "collective", "data-parallel", "sampler"})
"""The transfers that may be a pitfall of processes which train together."""

GROUPS = ("distributed", "Distributed", "accelerate", "lightning")
"""What a module mentions that has the name of one of them."""

ALONE = RANKS | {"map-fn", "memory", "parallel-config"}
"""The transfers that may be a pitfall, or decide on one, without a starter in sight."""

COMMON = frozenset({"map", "apply", "pipe"})
"""Methods whose names say nothing."""

MATTERS = words(
    "array backward cuda device fit gpu named_parameters parameters predict random requires_grad "
    "requires_grad_ rvs sample step wrappers zero_grad"
)
"""Words of pitfalls that show in a module which imports no framework."""

VARIABLES = words("cuda device gpu requires_grad")
"""Those that are the names of variables, too."""

MATTERS_BESIDE = {
    "dask": words("Parallel backend"),
    "CUDA_VISIBLE_DEVICES": words("environ putenv setenv"),
    "HIP_VISIBLE_DEVICES": words("environ putenv setenv"),
    "PYTORCH_NVML_BASED_CUDA_CHECK": words("environ putenv"),
}
"""The same, beside a certain string."""

TRAINS = words("backward grad manual_backward step")
"""Words by which gradients are taken, or used."""

SHARED = words(
    "apply_gradients assign buffers load_state_dict minimize register_buffer step zero_grad"
)
"""Words of pitfalls that threads may have: they change a model that others use."""

TELLING = (
    *("Tape", "autocast", "grad_enabled", "inference_mode", "no_grad"),
    *("rng_state", "seed", "seeds", "seed_all", "seed_everything", "set_state"),
)
"""Ends of names that tell of a mode, which threads do not have from their caller, or of seeds."""

CALLED_BY_HOSTS = words("training_step")
"""Methods that a library calls, and goes on with what they return."""

CALLED_BY_CALLS = words("forward call run")
"""Methods that run where an object is called, as those of modules and layers, or started."""

OTHERS = frozenset({"__init__", "known", "own_stubs", "primitives", "rows", "stub_files"})
"""The modules of this package that are no library."""


class Registry:
    """All rows, by name."""

    def __init__(self, libraries: Iterable[Library]) -> None:
        self.libraries = tuple(libraries)
        self.described = frozenset(
            name
            for library in self.libraries
            if not library.tops
            for row in library.rows
            for name in row.names.split()
        )
        """What the user's own rows name."""
        self.stubs = stubs_in(FOLDER)
        """The stub files, by the modules that they describe."""
        self.own_stubs = {
            name: row.stub
            for library in self.libraries
            for row in library.rows
            if row.stub is not None
            for name in (row.names, row.stub.module)
        }
        """The user's stubs, by the names and modules that they describe."""
        self.tops = frozenset(top for library in self.libraries for top in library.tops)
        self.exact: dict[str, Row] = {}
        self.prefixes: dict[str, list[Row]] = {}
        self.bases: dict[str, str] = {}
        self.base_prefixes: dict[str, str] = {}
        self.starts: dict[str, Start] = {}
        self.constants: dict[str, str | bool] = {}
        self.spelled: dict[str, list[tuple[str, str]]] = {}
        self._plain: dict[str, str] = {}
        for library in self.libraries:
            for row in library.rows:
                for name in row.names.split():
                    if name.endswith("*"):
                        self.prefixes.setdefault(name[:-1], []).append(row)
                    else:
                        self.exact[name] = row
            for base, what in library.bases.items():
                if base.endswith("*"):
                    self.base_prefixes[base[:-1]] = what
                else:
                    self.bases[base] = what
            for other, plain in library.spelled.items():
                self.spelled.setdefault(other.partition(".")[0], []).append((other, plain))
            self.constants.update(library.constants)
            for start in library.starts:
                self.starts[start.name] = start

    def canonical(self, name: str) -> str:
        """`name` under the spelling that the rows use."""
        known = self._plain.get(name)
        if known is None:
            known = name
            for other, plain in self.spelled.get(name.partition(".")[0], ()):
                if name == other or (other.endswith(".") and name.startswith(other)):
                    known = self.canonical(plain + name[len(other) :])
                    break
            self._plain[name] = known
        return known

    def row(self, name: str) -> Row | None:
        """The row of a canonical name: its own, or that of the longest beginning."""
        found = self.exact.get(name)
        if found is not None:
            return found
        start = name
        while start:
            start = start.rpartition(".")[0]
            for row in self.prefixes.get(start + ".", ()):
                owner, _, last = name.rpartition(".")
                if row.only == "of-modules":
                    fits = not owner.rpartition(".")[2][:1].isupper()
                else:
                    fits = not row.only or (row.only == "class") == last[:1].isupper()
                if fits:
                    return row
        return None

    def base(self, name: str) -> str | None:
        """What a class is that has the base `name`."""
        found = self.bases.get(name)
        start = name
        while found is None and start:
            start = start.rpartition(".")[0]
            found = self.base_prefixes.get(start + ".")
        return found or None

    @cached_property
    def words(self) -> Vocabulary:
        """The words that tell which functions of a module may matter."""
        starters: set[str] = set()
        homes: dict[str, set[str]] = {}
        keywords: set[str] = set()
        threads: set[str] = set()
        processes: set[str] = set()
        either: set[str] = set()
        marks: set[str] = set()
        loops = {"backward"}
        trains = set(TRAINS)
        packages: set[str] = set()
        ranks: set[str] = set()
        samplers: set[str] = set()
        beside: dict[str, frozenset[str]] = {}
        for library in self.libraries:
            starters.update(library.marks, library.starts_by)
            keywords.update(library.marks, library.starts_by)
            marks.update(library.marks)
            if any(row.does in STARTERS and row.start == "thread" for row in library.rows):
                either.update(library.tops, library.starts_by)
            for row in library.rows:
                names = {name.rpartition(".")[2] for name in row.names.split()}
                if row.does in STARTERS:
                    starters |= names | (row.methods - COMMON)
                    anywhere = row.does in PASSED_ON or not library.tops
                    for name in row.names.split():
                        tops = {""} if anywhere else {*library.tops, name.partition(".")[0]}
                        homes.setdefault(name.rpartition(".")[2], set()).update(tops)
                    if row.start == "thread":
                        threads |= names
                        either |= row.methods
                    else:
                        processes |= names
                    if not library.framework:
                        packages.update(library.tops)
                elif row.does == "sampler":
                    samplers |= names
                elif row.does in RANKS:
                    ranks |= names
                elif row.does in ALONE:
                    starters |= names
                elif row.does == "gradients" or row.kind == "tape":
                    loops |= names
                elif row.does == "trainer":
                    trains |= names
            for top in library.tops if library.beside else ():
                beside[top] = library.beside
        frameworks = {
            top for library in self.libraries if library.framework for top in library.tops
        }
        matters = set(MATTERS)
        for row in (row for library in self.libraries for row in library.rows):
            if row.does in ("generator", "search"):
                matters |= {name.rpartition(".")[2] for name in row.names.split()}
        return Vocabulary(
            frozenset(starters),
            frozenset(keywords.difference(homes)),
            {name: frozenset(tops) for name, tops in homes.items() if "" not in tops},
            frozenset(threads - processes),
            frozenset(either - processes),
            frozenset(packages),
            beside,
            frozenset(loops),
            frozenset(frameworks),
            frozenset(matters),
            VARIABLES,
            MATTERS_BESIDE,
            SHARED,
            TELLING,
            frozenset(marks),
            CALLED_BY_HOSTS,
            CALLED_BY_CALLS,
            frozenset(ranks - starters),
            frozenset(trains),
            frozenset(samplers),
            GROUPS,
        )

    def under(self, module: str) -> Iterator[str]:
        """The names with a row that stand right below `module`."""
        for name in self.exact:
            if name.rpartition(".")[0] == module:
                yield name.rpartition(".")[2]


@cache
def libraries() -> tuple[Library, ...]:
    """The libraries that have a module here."""
    package = import_module(__package__ or "")
    names = {
        name[:-3]
        for folder in package.__path__
        for name in os.listdir(folder)
        if name.endswith(".py")
    }
    wanted = sorted(names - OTHERS)
    modules = (import_module(f"{package.__name__}.{name}") for name in wanted)
    return tuple(module.LIBRARY for module in modules)


@cache
def registry(more: tuple[Row, ...] = ()) -> Registry:
    """The registry of all libraries, and of the user's `more` rows."""
    own = (Library((), more),) if more else ()
    return Registry((*libraries(), *own))
