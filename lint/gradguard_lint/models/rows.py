"""Rows: what the names of libraries do, as data; and their registry.

A library is one module of this package with a ``LIBRARY``. A row gives some names a transfer
function (`does`) and its parameters. Everything else, such as what starts workers or what is a
framework, is derived from the rows.
"""

from __future__ import annotations

import os
from functools import cache, cached_property
from importlib import import_module

from gradguard_lint.domain.starts import Start, Vocabulary
from gradguard_lint.models.stub_files import FOLDER, bound_by, load, stubs_in
from gradguard_lint.words import words
from pytest_gradguard.records import fields

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Literal

    from gradguard_lint.models.stub_files import Stub


def under(module: str, names: str) -> str:
    """The full names of `names` in `module`."""
    return " ".join(f"{module}.{name}" for name in names.split())


@fields
class Row:
    """The behaviour of some names.

    Attributes:
        names: dotted names, separated by spaces; a final ``*`` matches any further name.
        does: the transfer function.
        only: limits a ``*`` to classes, to functions, or to names not in classes.
        framework: the framework of the tensors or generators.
        kind: the kind of `Thing` that is created.
        start: the start method of workers; "": the program's default.
        methods: the methods of the created object that dispatch work.
        argument: the position and name of the relevant argument.
        output: the position and name of the argument that receives the result.
        gpu: whether the GPU is used, or intended to be used.
        driver: whether the GPU's driver is started as well, unless an argument selects the CPU.
        keeps: whether the call is lazy: only its result iterates the arguments.
        flag: a parameter of the transfer function.
        stub: the user's stub for it.
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
        tops: the names of its packages.
        rows: what its names do.
        spelled: alternative prefixes of names, with the prefix used in rows.
        framework: whether it has gradients or GPU support.
        in_forks: whether it only matters in forked processes, or with GPUs requested by name.
        bases: the kinds of project classes with these bases.
        marks: words that show its use without its names.
        starts_by: words that dispatch work without its names.
        import_words: words that matter in modules that import it.
        starts: start methods that only this library has.
        constants: constant values of names, on Linux.
    """

    tops: tuple[str, ...]
    rows: tuple[Row, ...] = ()
    spelled: Mapping[str, str] = {}
    framework: bool = False
    in_forks: bool = False
    bases: Mapping[str, str] = {}
    marks: tuple[str, ...] = ()
    starts_by: tuple[str, ...] = ()
    import_words: frozenset[str] = frozenset()
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
"""The transfers that dispatch work to other threads or processes."""


REEXPORTED = frozenset({"task", "parallel"})
"""Starters that projects re-export under other names."""

RANKS = frozenset({"accelerator", "collective", "data-parallel", "sampler"})
"""Transfers that may be a pitfall of distributed training."""

GROUPS = ("distributed", "Distributed", "accelerate", "lightning")
"""Words of modules that have a name of `RANKS` from a library."""

ALONE = RANKS | {"map-fn", "memory", "parallel-config"}
"""Transfers that may be a pitfall, or affect one, without a starter nearby."""

COMMON = frozenset({"map", "apply", "pipe"})
"""Methods with common names."""

MATTERS = words(
    "array backward cuda device fit gpu named_parameters parameters predict random requires_grad "
    "requires_grad_ rvs sample step wrappers zero_grad"
)
"""Words of pitfalls in modules that import no framework."""

VARIABLES = words("cuda device gpu requires_grad")
"""The words of `MATTERS` that are common variable names."""

MATTERS_BY_STRING = {
    "dask": words("Parallel backend"),
    "CUDA_VISIBLE_DEVICES": words("environ putenv setenv"),
    "HIP_VISIBLE_DEVICES": words("environ putenv setenv"),
    "PYTORCH_NVML_BASED_CUDA_CHECK": words("environ putenv"),
}
"""Further such words, with a string that must occur as well."""

TRAINS = words("backward grad manual_backward step")
"""Words that compute or use gradients."""

SHARED = words(
    "apply_gradients assign buffers load_state_dict minimize register_buffer step zero_grad"
)
"""Words of pitfalls in threads: they change a model that others use."""

MODE_SUFFIXES = (
    *("Tape", "autocast", "grad_enabled", "inference_mode", "no_grad"),
    *("rng_state", "seed", "seeds", "seed_all", "seed_everything", "set_state"),
)
"""Suffixes of names of modes, which threads don't inherit from their caller, and of seeds."""

CALLED_BY_HOSTS = words("training_step")
"""Methods that a library calls, and whose results it uses."""

CALLED_BY_CALLS = words("forward call run")
"""Methods that calling an object (a module or layer), or starting it, runs."""

OTHERS = words("__init__ known own_stubs primitives rows stub_files torch_words")
"""The modules of this package that aren't libraries."""


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
        """Names in the user's own rows."""
        self.stubs = stubs_in(FOLDER)
        """Stub files, by module."""
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
        """`name` in the spelling of the rows."""
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
        """The row of a canonical name: its own, or that of the longest prefix."""
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
        """The kind of a class with the base `name`."""
        found = self.bases.get(name)
        start = name
        while found is None and start:
            start = start.rpartition(".")[0]
            found = self.base_prefixes.get(start + ".")
        return found or None

    @cached_property
    def words(self) -> Vocabulary:
        """The words that show which functions of a module may matter."""
        every = [(library, row) for library in self.libraries for row in library.rows]

        def last(fits: Callable[[Row], bool]) -> set[str]:
            found = (row.names.split() for _, row in every if fits(row))
            return {name.rpartition(".")[2] for names in found for name in names}

        work = [(library, row) for library, row in every if row.does in STARTERS]
        homes: dict[str, set[str]] = {}
        for library, row in work:
            anywhere = row.does in REEXPORTED or not library.tops
            for name in row.names.split():
                tops = {""} if anywhere else {*library.tops, name.partition(".")[0]}
                homes.setdefault(name.rpartition(".")[2], set()).update(tops)
        threads = [(library, row) for library, row in work if row.start == "thread"]
        processes = last(lambda row: row.does in STARTERS and row.start != "thread")
        marks = {mark for library in self.libraries for mark in library.marks}
        keywords = marks.union(*(library.starts_by for library in self.libraries))
        starters = keywords.union(homes, *(row.methods - COMMON for _, row in work))
        starters |= last(lambda row: row.does in ALONE - RANKS)
        ranks = last(lambda row: row.does in RANKS and row.does != "sampler")
        either = ({*library.tops, *library.starts_by, *row.methods} for library, row in threads)
        return Vocabulary(
            frozenset(starters),
            frozenset(keywords.difference(homes)),
            {name: frozenset(tops) for name, tops in homes.items() if "" not in tops},
            frozenset(last(lambda row: row.does in STARTERS and row.start == "thread") - processes),
            frozenset().union(*either) - processes,
            frozenset(top for library, _ in work if not library.framework for top in library.tops),
            {top: it.import_words for it in self.libraries if it.import_words for top in it.tops},
            frozenset(
                {"backward"} | last(lambda row: row.does == "gradients" or row.kind == "tape")
            ),
            frozenset(top for it in self.libraries if it.framework for top in it.tops),
            MATTERS | last(lambda row: row.does in ("generator", "search")),
            VARIABLES,
            MATTERS_BY_STRING,
            SHARED,
            MODE_SUFFIXES,
            frozenset(marks),
            CALLED_BY_HOSTS,
            CALLED_BY_CALLS,
            frozenset(ranks - starters),
            TRAINS | last(lambda row: row.does == "trainer"),
            frozenset(last(lambda row: row.does == "sampler")),
            GROUPS,
        )

    def under(self, module: str) -> Iterator[str]:
        """Names directly in `module` that have a row or stub."""
        for name in self.exact:
            if name.rpartition(".")[0] == module:
                yield name.rpartition(".")[2]
        for node in load(self.stubs[module], module).tree.body if module in self.stubs else ():
            yield from (name for name in bound_by(node) if not name.startswith("_"))


@cache
def libraries() -> tuple[Library, ...]:
    """The libraries of this package."""
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
