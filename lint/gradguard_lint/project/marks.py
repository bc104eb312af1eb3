"""The literals of the byte search, derived from the library models."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from functools import cache

from gradguard_lint.models.distributed import JOINING, JOINING_NONE
from gradguard_lint.models.rows import (
    CALLED_BY_HOSTS,
    GROUPS,
    MODE_SUFFIXES,
    RANKS,
    REEXPORTED,
    SHARED,
    STARTERS,
    Library,
    Row,
    libraries,
)
from gradguard_lint.project.literals import before, has, matches

_CALLED = rb"(?:[ \t]*\(|[ \t]+as\b)"
_WRAPPING = rb"(?:[ \t]*\(|[ \t]+as\b|[ \t]*\r?\n)"
_EXTENDED = rb"[ \t]*(?:,[^()\n]*)?\)[ \t]*:"
"""What follows the name of a base class."""

_EXTENDING = rb"\A[ \t]*(?:class\b.*)?\Z"
"""What precedes a base class on its line."""

_CLASS = rb"\b(?!\w|[ \t]*[.(])"
"""What follows the name of a class that isn't called."""

_TAKEN = rb"(?:\breturn[ \t]|\belse[ \t]|=|[\"'][ \t]*:|\w\()[ \t]*(?:[\w.]+\.)?\Z"
"""What precedes the name of a class that gets an alias."""

_DEFINED = rb"\bdef[ \t]+\w*\Z"
"""What precedes the name of a function in its definition."""

_BY_ITSELF = frozenset({"task", "remote"})
"""Starters that are also decorators."""

_EXTENSIBLE = frozenset({"executor", "parallel", "pool", "process"})
"""Starters that are classes which projects extend."""

_QUIET = frozenset({"dask-compute", "loader"})
"""Starters that are no evidence alone: other marks accompany them."""

_COMMON = frozenset({"spawn", "Process", "Client"})
"""Names that many other names end with."""


class Mark:
    """A call that dispatches work to workers, and the origin of its name.

    Attributes:
        literal: the literal to search for.
        call: the pattern of the call, from the literal on.
        aliased: whether the class isn't called, but gets an alias.
        extended: whether it is a base class.
        homes: imports of modules with the name; empty if there may be others.
        parts: framework modules with the name, with a leading dot.
        threads: whether it starts threads.
    """

    def __init__(
        self, literal: bytes, call: bytes, homes: tuple[bytes, ...], parts: tuple[bytes, ...]
    ) -> None:
        self.literal = literal
        self.call = call
        self.aliased = call.endswith(_CLASS)
        self.extended = call.endswith(_EXTENDED)
        self.homes = homes
        self.parts = parts
        self.threads: bool = literal in _THREADS

    def found(self, data: bytes) -> bool:
        """Whether `data` has the call, not a definition of that name."""
        lines = (before(data, call.start()) for call in matches(data, (self.literal,), self.call))
        if self.aliased:
            return any(re.search(_TAKEN, line) and b"import" not in line for line in lines)
        if self.extended:
            return any(re.search(_EXTENDING, line) for line in lines)
        return any(not re.search(_DEFINED, line) for line in lines)


_ROWS: list[tuple[Library, Row, str, str]] = [
    (library, row, name, name.rpartition(".")[2])
    for library in libraries()
    for row in library.rows
    if row.does in STARTERS and row.does not in _QUIET
    for name in row.names.split()
]


_THREADS = {last.encode() for _, row, _, last in _ROWS if row.start == "thread"} - {
    last.encode() for _, row, _, last in _ROWS if row.start != "thread"
}
"""Starters of threads only."""

_CHANGES = (
    ((b"_(",), rb"(?<=[a-z0-9])_\("),
    (
        tuple(f".{word}".encode() for word in SHARED),
        rb"\.(?:" + "|".join(SHARED).encode() + rb")\b",
    ),
    (
        tuple(map(str.encode, MODE_SUFFIXES)),
        rb"(?:" + "|".join(MODE_SUFFIXES).encode() + rb")(?:[ \t]*\(|[ \t]+as\b|[ \t]*\r?\n)",
    ),
)
"""Calls that change what threads share, or a mode that they don't inherit: literals and pattern."""


def _shortest(names: set[str]) -> list[str]:
    """The names without those that end with another of them."""
    return sorted(
        name
        for name in names
        if not any(name != other and name.endswith(other) for other in names - _COMMON)
    )


@cache
def _forms(top: str) -> tuple[bytes, ...]:
    """The text of a package's import; short or ambiguous names need the import keyword."""
    if len(top) > 4 and top not in _PARTS:
        return (top.encode(),)
    return tuple(before + top.encode() for before in (b"import ", b"from ", b", ", b","))


def _word(form: bytes) -> bytes:
    """The name in such a text."""
    return form.split()[-1].strip(b",").rpartition(b".")[2]


def _marks() -> tuple[Mark, ...]:
    wrapping = {last for _, row, _, last in _ROWS if row.does in _BY_ITSELF}
    extended = {last for _, row, _, last in _ROWS if row.does in _EXTENSIBLE}
    called = {last for _, row, _, last in _ROWS if row.does not in _BY_ITSELF | {"parallel"}}
    marks = [(name, rb"\b" + name.encode() + _WRAPPING, name) for name in sorted(wrapping)]
    for name in _shortest(called):
        bound = rb"\b" if name in _COMMON else b""
        marks.append((name, bound + name.encode() + _CALLED, name))
    for after in (_EXTENDED, _CLASS):
        marks += [(name, rb"\b" + name.encode() + after, name) for name in sorted(extended)]
    for library in libraries():
        marks += [(word, word.encode() + rb"[ \t]*[(=]", "") for word in library.starts_by]
    marks.sort(key=lambda mark: len(mark[0]))
    return tuple(Mark(text.encode(), call, *_homes(name)) for text, call, name in marks)


def _homes(name: str) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    """The imports of libraries with a starter of this name or suffix."""
    homes: set[bytes] = set()
    parts: set[bytes] = set()
    for library, row, full, last in _ROWS:
        if not name or not last.endswith(name):
            continue
        if row.does in REEXPORTED:
            return (), ()
        packages = _packages(library, full)
        homes.update(form for top in packages for form in _forms(top))
        _, _, rest = full.rpartition(".")[0].partition(".")
        if rest and not packages:  # a framework's part
            homes.add(rest.partition(".")[0].encode())
            parts.add(f".{rest}".encode())
    return tuple(sorted(homes)), tuple(sorted(parts))


@cache
def _packages(library: Library, name: str) -> set[str]:
    """The packages of `library` with `name`, in any spelling."""
    spellings = [name, *(it for it, ours in library.spelled.items() if name.startswith(ours))]
    tops = {other.partition(".")[0] for other in library.spelled}
    tops = tops.difference(*(it.tops for it in _FRAMEWORKS)).union(library.tops)
    return {top for top in tops for it in spellings if f"{it}.".startswith(f"{top}.")}


_FRAMEWORKS = [library for library in libraries() if library.framework]
_PARTS = {
    part
    for library in _FRAMEWORKS
    for row in library.rows
    for name in row.names.split()
    for part in name.split(".")[1:-1]
}
"""Names of modules in frameworks."""

FRAMEWORKS = frozenset(top.encode() for library in _FRAMEWORKS for top in library.tops)
"""Packages with gradients or GPU support."""

ESTIMATING = frozenset(
    name.partition(".")[0].encode()
    for library in libraries()
    for row in library.rows
    if row.does == "estimator"
    for name in row.names.split()
)
"""Packages whose estimators may train on a GPU."""

IN_FORKS = frozenset(top.encode() for it in _FRAMEWORKS if it.in_forks for top in it.tops)
"""Frameworks that matter only in forked processes."""

_WORKERS = tuple(
    sorted(
        {
            form
            for library, _, _, _ in _ROWS
            for top in library.tops
            if not library.framework
            for form in _forms(top)
        }
        | {last.encode() for _, row, _, last in _ROWS if row.does in REEXPORTED}
    )
)
"""Imports of what dispatches work to workers."""

WORKERS = frozenset(map(_word, _WORKERS))
"""A word of each."""

MARKS = _marks()
"""The calls that dispatch work to workers."""

REEXPORTABLE = {
    home: tuple(mark for mark in MARKS if home in mark.homes)
    for home in sorted({home for mark in MARKS for home in mark.homes})
}
"""The calls that a module can re-export, by its imports."""

OF_HOMES = frozenset(map(_word, REEXPORTABLE))
"""A word of each import."""

PARTS = tuple(sorted({part for mark in MARKS for part in mark.parts}))
"""The framework modules with starters."""

RANKED = sorted(
    {
        name.rpartition(".")[2]
        for library in libraries()
        for row in library.rows
        if row.does in RANKS
        for name in row.names.split()
    }
)

TOGETHER = (
    tuple(name.encode() for name in _shortest(set(RANKED))),
    rb"(?:" + "|".join(map(re.escape, RANKED)).encode() + rb")"
    rb"(?:\w*(?:[ \t]*\(|[ \t]+as\b)|([,)\r\n]))",
)
"""Calls of distributed training: literals and pattern, with a group for names that aren't called.
"""

_TRAINERS = {
    name.rpartition(".")[2]
    for library in libraries()
    for row in library.rows
    if row.does == "trainer"
    for name in row.names.split()
}
"""Functions and classes that train a model."""

TRAINS = (
    b".backward(",
    b".backward)",
    b".manual_backward(",
    b"autograd.grad(",
    *(
        form
        for name in _shortest(_TRAINERS)
        for form in (name.encode() + b"(", b"(" + name.encode())
    ),
    *(b"def " + h.encode() for h in CALLED_BY_HOSTS),
)
"""Text that computes gradients, or passes a loss to a library."""

SHOWS_MODULES = (b".named_parameters(", b".parameters(", b".requires_grad", b".zero_grad(")
"""Further text that shows a module, or a tensor with a gradient."""

_METHODS = sorted(
    {f".{method}".encode() for _, row, _, _ in _ROWS for method in row.methods}
    | {last.encode() for _, row, _, last in _ROWS if row.does in ("task", "spawn")}
)

HANDED_OUT = (
    tuple(it for it in _METHODS if not it.startswith(tuple({*_METHODS} - {it}))),
    rb"(?:" + b"|".join(_METHODS).replace(b".", rb"\.") + rb")[ \t]*(?=\()",
)
"""Calls of methods and function wrappers that dispatch work: literals and pattern."""

REMOTE = (
    tuple(sorted({f".{last}".encode() for _, row, _, last in _ROWS if row.does == "remote"})),
    rb"(?:"
    + b"|".join(re.escape(f".{last}".encode()) for _, row, _, last in _ROWS if row.does == "remote")
    + rb")[ \t]*(?=\()",
)
"""Dispatching methods of decorated functions: literals and pattern."""

ASKED = tuple(
    word.encode() for library in libraries() if not library.rows for word in library.starts_by
)
"""Keywords that make methods with common names start processes."""

STARTING = frozenset(last for _, _, _, last in _ROWS)
"""Names that start workers."""

STARTING_PROCESSES = STARTING - {name.decode() for name in _THREADS}
"""Names that start processes."""


_LITERALS = {mark.literal for mark in MARKS}

_IN = {literal: frozenset(it for it in _LITERALS if it in literal) for literal in _LITERALS}
"""The literals contained in each literal, including itself."""


def any_found(data: bytes, marks: Iterable[Mark]) -> bool:
    """Whether `data` has one of these calls."""
    absent: set[bytes] = set()
    for mark in marks:
        literal = mark.literal
        if absent.isdisjoint(_IN[literal]):
            if literal not in data:
                absent.add(literal)
            elif mark.found(data):
                return True
    return False


LOADERS = {
    name.encode(): tuple(
        form.replace(b"*", name.encode()) for form in (b"*(", b"*)", b"(*", b"* as")
    )
    for name in _shortest(
        {
            name.rpartition(".")[2]
            for library in libraries()
            for row in library.rows
            if row.does == "loader"
            for name in row.names.split()
        }
    )
}
"""Names of loaders, with the text of their creation or aliasing."""


def makes_a_loader(data: bytes) -> bool:
    """Whether a module, or a part of it, creates a loader."""
    return any(
        name in data and any(form in data for form in forms) for name, forms in LOADERS.items()
    )


def makes_loaders(data: bytes) -> bool:
    """Whether a module creates a loader with workers, which start when it is iterated."""
    return b"num_workers" in data and makes_a_loader(data)


def remembers(data: bytes) -> bool:
    """Whether a module creates a cache of results in files."""
    return has(data, (b"Memory",), rb"\bMemory\b")


_FITTING = {f".{word}".encode() for it in libraries() for word in it.import_words}
_FITTING = {it for it in _FITTING if not it.startswith(tuple(_FITTING - {it}))}


def fits_models(data: bytes) -> bool:
    """Whether a module trains or calls models, which matters with certain packages."""
    return any(call in data for call in _FITTING)


def is_for_ranks(module: str, name: str) -> bool:
    """Whether this name of a package is for distributed training."""
    return name in RANKED and any(group in f"{module}.{name}" for group in GROUPS)


_JOINS = (
    rb"\b(?:" + "|".join(sorted(JOINING)).encode() + rb")"
    rb"|(?<![.\w])(?<!def )(?:__import__|exec|eval)[ \t]*\("
    rb"|\b(?:import_module|exec_module|load_module|runpy)\b"
)


def joins_a_group(data: bytes) -> bool:
    """Whether a module mentions what joins a process group, or runs unknown code."""
    return re.search(_JOINS, data) is not None


def never_joins_group(package: str) -> bool:
    """Whether an external package is known not to join process groups."""
    return package in JOINING_NONE or package in sys.stdlib_module_names


def changes_what_threads_share(data: bytes) -> bool:
    """Whether a module calls what changes shared state of threads, or a mode that they don't
    inherit."""
    return any(has(data, *it) for it in _CHANGES)


LIBRARY_TOPS = frozenset(top for library in libraries() for top in library.tops)
"""Names that mean the library, even if a folder of that name is checked."""


_FOLLOWED = (
    *FRAMEWORKS,
    *_WORKERS,
    *(b"cuda", b"gpu", b"GPU", b"device", b"default_rng", b"RandomState", b"np.random"),
    *(b"n_jobs", b"functools", b"import *"),
)


DECORATING = rb"(?m)^@(\w+)(\.\w+[ \t]*\(?)?"
"""A decorator of a module-level definition: its name, and its method."""


def worth_following(data: bytes) -> bool:
    """Whether a large module mentions something that is followed."""
    return any(word in data for word in _FOLLOWED)
