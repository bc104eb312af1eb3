"""A check's declarations to the kernel: the probes that inspect calls and tasks for it.

The docstring of `pitfalls` documents the module of a check.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pytest_gradguard.records import fields
from pytest_gradguard.runtime.kernel import parts

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pytest_gradguard.runtime.kernel.registry import Workers


@fields
class Probe:
    """A check's inspection of calls and their tasks.

    Attributes:
        name: the check's module; with several probes, followed by ``_`` and a word.
        module: the module with the functions of the probe (see `probes`); loaded when needed.
        asks: it asks in the parent, once one of these modules is loaded there.
        needs: without this module in the worker, there is nothing to inspect.
        ships: for which kinds of workers it asks for each batch; None: for all.
        only_asked: it asks for each batch only if it asked as the call began.
        by_function: its question for a batch depends only on the functions of the tasks.
        by_error: the error of a task in a worker process may activate it.
        starts: it asks for processes that the program starts itself, too.
    """

    name: str
    module: str
    asks: Collection[str] = ()
    needs: str | None = None
    ships: Callable[[Workers], bool] | None = None
    only_asked: bool = False
    by_function: bool = False
    by_error: bool = False
    starts: bool = False

    @property
    def code(self) -> str:
        """The code of its check."""
        return self.name.partition("_")[0].upper()


TORCH = "torch.nn.parameter"
TENSORFLOW = "tensorflow"
CUPY = "cupy"
"""The modules whose loading shows that a framework is used."""


def forked(workers: Workers) -> bool:
    """Whether they may be forked."""
    return workers.forks


def forked_for_tasks(workers: Workers) -> bool:
    """Whether they may be forked, and the library does not prepare them for that."""
    return workers.forks and not workers.loads_data


def threads(workers: Workers) -> bool:
    """Whether they are threads of this process."""
    return workers.carries == "thread"


def isolated(workers: Workers) -> bool:
    """Whether they have objects of their own."""
    return workers.carries != "thread"


def isolated_for_tasks(workers: Workers) -> bool:
    """Whether they have objects of their own, and the library does not prepare them for that."""
    return isolated(workers) and not workers.loads_data


def in_pools(workers: Workers) -> bool:
    """Whether they may be those of a pool or an executor that the program created."""
    return workers.carries == "pickle" and not workers.loads_data and workers.library != "joblib"


def copied(workers: Workers) -> bool:
    """Whether a service of their own copies the tasks."""
    return workers.carries == "copy"


@cache
def codes() -> tuple[str, ...]:
    """The code of every check, sorted; imports none of them."""
    return tuple(sorted(parts.load("pitfalls").HOMES))


def load(code: str) -> Any:
    """The module of the check of `code`."""
    return import_module(f"{parts.load('pitfalls').HOMES[code]}.{code.lower()}")


@cache
def crossing(kind: str) -> str:
    """The code of the check that counts objects of this kind in a pickling."""
    code: str = parts.load("pitfalls").CROSSINGS[kind]
    return code


@cache
def handlers(event: str) -> tuple[tuple[str, Callable[..., Any]], ...]:
    """The checks that have a function of that name, by code."""
    modules = ((code, load(code)) for code in codes())
    return tuple((code, getattr(one, event)) for code, one in modules if hasattr(one, event))
