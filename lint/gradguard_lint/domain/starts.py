"""How workers come into being, and the words that tell which functions may start them."""

from __future__ import annotations

from pytest_gradguard.records import Record, fields, record

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Literal

    WorkerKind = Literal["process", "thread"]

PROCESS: WorkerKind = "process"
THREAD: WorkerKind = "thread"

UNTOLD = "unknown"
"""The start method of processes that the program does not tell: forked, or not."""

INHERITING = frozenset({"fork", UNTOLD})
"""The start methods by which workers may have what is in the parent's memory."""

IMPORTING = ("spawn", "forkserver")
"""The start methods by which workers import the program itself."""


@record
class Start(Record):
    """How workers come into being.

    Attributes:
        name: ``loky``, ``fork``, ``spawn``, ``thread``, ``dask`` ..., or `UNTOLD`.
        kind: processes, or threads of this process.
        workers: what reports call the workers.
        copies: whether arguments and results are copied, as they always are for processes.
    """

    name: str
    kind: WorkerKind
    workers: str
    copies: bool = True


@fields
class Vocabulary:
    """The words that the models of libraries give.

    Attributes:
        starters: names by which work leaves the calling thread, or that are a pitfall alone.
        keywords: those that are keywords, too.
        homes: the packages that have them, for those that are only called by the names they have
            there.
        threads: those that start threads, and nothing else.
        either: methods and packages by which work goes to threads as well as to processes.
        packages: packages whose every name may do so.
        beside: words that matter where a package is imported.
        loops: names by which gradients are taken.
        frameworks: packages whose programs may have gradients, or use a GPU.
        matters: names by which a program that imports none of them may have a pitfall.
        variables: those of them that are the names of variables, too.
        matters_beside: further such names, by a string that the program has beside them.
        shared: names by which threads may have a pitfall.
        telling: ends of names that say the same.
        marks: names that are a pitfall alone where they are imported.
        hooks: methods that a library calls.
        called: methods that calling an object calls.
        ranks: names that are a pitfall of processes which train together, beside one of `trains`.
        trains: names by which gradients are taken, or used.
        samplers: names that are a pitfall of such processes whatever they do.
        groups: what a module mentions that has one of `ranks` or `samplers` from a library.
    """

    starters: frozenset[str]
    keywords: frozenset[str]
    homes: Mapping[str, frozenset[str]]
    threads: frozenset[str]
    either: frozenset[str]
    packages: frozenset[str]
    beside: Mapping[str, frozenset[str]]
    loops: frozenset[str]
    frameworks: frozenset[str]
    matters: frozenset[str]
    variables: frozenset[str]
    matters_beside: Mapping[str, frozenset[str]]
    shared: frozenset[str]
    telling: tuple[str, ...]
    marks: frozenset[str]
    hooks: frozenset[str] = frozenset()
    called: frozenset[str] = frozenset()
    ranks: frozenset[str] = frozenset()
    trains: frozenset[str] = frozenset()
    samplers: frozenset[str] = frozenset()
    groups: tuple[str, ...] = ()
