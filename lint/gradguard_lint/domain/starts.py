"""Start methods of workers, and the names of functions that may start them."""

from __future__ import annotations

from pytest_gradguard.records import Record, fields, record

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Literal

    WorkerKind = Literal["process", "thread"]

PROCESS: WorkerKind = "process"
THREAD: WorkerKind = "thread"

UNSPECIFIED = "unknown"
"""The start method if the program doesn't specify it: possibly fork."""

INHERITING = frozenset({"fork", UNSPECIFIED})
"""Start methods whose workers may inherit the parent's memory."""

IMPORTING = ("spawn", "forkserver")
"""Start methods whose workers import the main module."""


@record
class Start(Record):
    """A start method of workers.

    Attributes:
        name: ``loky``, ``fork``, ``spawn``, ``thread``, ``dask`` ..., or `UNSPECIFIED`.
        kind: processes, or threads of this process.
        workers: what reports call the workers.
        copies: whether arguments and results are copied; always for processes.
    """

    name: str
    kind: WorkerKind
    workers: str
    copies: bool = True


@fields
class Vocabulary:
    """Names that the library models declare.

    Attributes:
        starters: names that start work in workers, or are a pitfall alone.
        keywords: starters that are keyword arguments, too.
        homes: the packages of starters that are called by their original name only.
        threads: starters that start threads only.
        either: methods and packages that start threads or processes.
        packages: packages of which every name may start workers.
        by_import: words that matter in modules that import a package.
        loops: names that compute gradients.
        frameworks: packages with gradients or GPU support.
        matters: names that may be a pitfall in programs without `frameworks`.
        variables: the part of `matters` that are common variable names.
        matters_beside: further such names, by a string that must occur as well.
        shared: names that may be a pitfall in threads.
        mode_suffixes: suffixes of such names.
        marks: names that are a pitfall by being imported.
        hooks: methods that a library calls.
        called: methods that a call of an object runs.
        ranks: names that may be a pitfall of distributed training, together with one of `trains`.
        trains: names that compute or use gradients.
        samplers: names that may be a pitfall of distributed training by themselves.
        groups: words in modules that use `ranks` or `samplers` of a library.
    """

    starters: frozenset[str]
    keywords: frozenset[str]
    homes: Mapping[str, frozenset[str]]
    threads: frozenset[str]
    either: frozenset[str]
    packages: frozenset[str]
    by_import: Mapping[str, frozenset[str]]
    loops: frozenset[str]
    frameworks: frozenset[str]
    matters: frozenset[str]
    variables: frozenset[str]
    matters_by_string: Mapping[str, frozenset[str]]
    shared: frozenset[str]
    mode_suffixes: tuple[str, ...]
    marks: frozenset[str]
    hooks: frozenset[str] = frozenset()
    called: frozenset[str] = frozenset()
    ranks: frozenset[str] = frozenset()
    trains: frozenset[str] = frozenset()
    samplers: frozenset[str] = frozenset()
    groups: tuple[str, ...] = ()
