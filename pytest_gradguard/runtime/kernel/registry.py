"""The ways in which work leaves the calling thread: one `Integration` each.

The kernel's tables on kinds of workers are derived from these objects, once, as they are
registered. Ours are the modules of `integrations`; other packages add theirs with
`pytest_gradguard.register_integration`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import FrameType, MappingProxyType, ModuleType
from typing import Any, Literal, get_args

from pytest_gradguard.runtime.kernel import packages, watching
from pytest_gradguard.runtime.kernel.faults import checked, warn
from pytest_gradguard.runtime.kernel.patching import Patch, Patches

Carries = Literal["pickle", "thread", "copy"]


class Workers:
    """A kind of workers.

    Attributes:
        name: its name in findings.
        carries: how tasks and results are transferred: one pickling takes a task (or a batch)
            there, and another one brings its results (``"pickle"``); they are the same objects
            (``"thread"``); or a service of its own copies and keeps them, and reports separately
            from the results (``"copy"``).
        forks: they may be forked from the program's process.
        shares_memory: tensors are sent in shared memory, as by `multiprocessing`'s own pickler and
            torch's reductions for it.
        loads_data: they prepare data for the program's process, which may use the GPU meanwhile;
            the library seeds their global generators.
        advice: by the codes of pitfalls, the fix with such workers, if the pitfall's own advice
            does not fit.
        library: their library, if pitfalls have advice for it (`Pitfall.cases`).
    """

    # No dataclass: making one takes longer than importing all that waits for a library.
    def __init__(
        self,
        name: str,
        carries: Carries = "pickle",
        forks: bool = False,
        shares_memory: bool = False,
        loads_data: bool = False,
        advice: Mapping[str, str] | None = None,
        library: str = "",
    ) -> None:
        if not isinstance(name, str):
            raise TypeError(f"the name of workers must be a string, not {name!r}")
        if carries not in get_args(Carries):
            allowed = ", ".join(map(repr, get_args(Carries)))
            raise ValueError(f"carries must be one of {allowed}, not {carries!r}")
        self.name = name
        self.carries: Carries = carries
        self.forks = forks
        self.shares_memory = shares_memory
        self.loads_data = loads_data
        self.advice = {} if advice is None else advice
        self.library = library

    def _key(self) -> tuple[object, ...]:
        kind = (self.name, self.carries, self.forks, self.shares_memory, self.loads_data)
        return (*kind, self.library)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Workers) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return f"Workers({self.name!r}, {self.carries!r})"


UNKNOWN = Workers("")
"""The workers of a call before anything was sent."""
THREADS = Workers("threading", "thread")
PROCESSES = Workers("multiprocessing", forks=True, shares_memory=True, library="multiprocessing")
"""The workers of the standard library's `multiprocessing`, and of libraries that pickle alike."""

Answer = Callable[[FrameType, BaseException], None]
"""Answers to the program with an error, as the outcome of the task that runs in the thread of a
runner's frame."""


class UnknownLayout(Exception):
    """A library has a layout unknown to its integration."""


_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Integration:
    """One way in which work leaves the calling thread.

    Attributes:
        name: its name, by which it is registered.
        patches: by module name: makes the patches of that module, once it is imported. None:
            there is nothing in it to watch. It raises `UnknownLayout` or AttributeError if the
            module has an unknown layout; that disables this part of the integration, with one
            warning.
        packages: the packages and modules that hand the work over. Their frames are never shown as
            the user's line.
        transparent: work that these packages give to workers of another kind is the program's;
            otherwise it is their own.
        runners: the modules whose functions run tasks in worker processes, so that their callees
            are tasks; with the functions, by name, that can answer for a task that never ends.
        forks_in: the modules that fork workers whose tasks are watched.
        joblib_backends: the transport of joblib's backends, by the full names of their classes.
        inline: as `patches`, makes those by which tasks run in the calling process instead
            (`kernel/inline`), for `gradguard compare`.
        undo: called when the guard ends, after the patches were undone.
    """

    def __init__(
        self,
        *,
        name: str,
        patches: Mapping[str, Callable[[ModuleType], Sequence[Patch]]] = _NOTHING,
        packages: Sequence[str] = (),
        transparent: bool = False,
        runners: Mapping[str, Mapping[str, Answer]] = _NOTHING,
        forks_in: Sequence[str] = (),
        joblib_backends: Mapping[str, Any] = _NOTHING,
        inline: Mapping[str, Callable[[ModuleType], Sequence[Patch]]] = _NOTHING,
        undo: Callable[[], object] = lambda: None,
    ) -> None:
        self.name = name
        self.patches = patches
        self.packages = packages
        self.transparent = transparent
        self.runners = runners
        self.forks_in = forks_in
        self.joblib_backends = joblib_backends
        self.inline = inline
        self.undo = undo
        self._check()

    def _check(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise ValueError(f"the name of an integration must not be empty: {self.name!r}")
        for what in ("patches", "runners", "joblib_backends", "inline"):
            if not isinstance(getattr(self, what), Mapping):
                raise TypeError(f"{what} of integration {self.name!r} must be a mapping")
        for what in ("packages", "forks_in"):
            value = getattr(self, what)
            if isinstance(value, str) or not all(isinstance(one, str) and one for one in value):
                raise TypeError(
                    f"{what} of integration {self.name!r} must be a list of names, not {value!r}"
                )
        for module, make in (*self.patches.items(), *self.inline.items()):
            if not isinstance(module, str) or not callable(make):
                raise TypeError(
                    f"patches of integration {self.name!r} must map the name of a module to a "
                    f"function that makes its patches, not {module!r} to {make!r}"
                )
        if not callable(self.undo):
            raise TypeError(
                f"undo of integration {self.name!r} must be callable, not {self.undo!r}"
            )


def later(name: str, *first: Any) -> Callable[..., Any]:
    """A function of a module that is imported when the function is first called.

    Integrations' modules are imported when the program imports the module that they watch.

    Args:
        name: ``module:function``.
        first: its first arguments.
    """
    module, _, attribute = name.partition(":")
    known: Callable[..., Any] | None = None

    def function(*args: Any) -> Any:
        nonlocal known
        if known is None:  # not again if the program has removed its modules since
            known = getattr(import_module(module), attribute)
        return known(*first, *args)

    return function


# -- derived tables --------------------------------------------------------------------------------

runners: dict[str, Mapping[str, Answer]] = {}
"""By module that runs tasks in workers: its functions that can answer for a task."""
forks_in: set[str] = set()
"""The modules that fork workers whose tasks are watched."""
joblib_backends: dict[str, Any] = {}
"""By the full names of classes."""


class Watched:
    """One module of an integration: its patches while the guard is on.

    Attributes:
        reason: why it is not watched, if it could not be.
    """

    def __init__(self, integration: Integration, module: str) -> None:
        self.integration = integration
        self.module = module
        self.reason: str | None = None
        self._of: ModuleType | None = None
        self._patches: Patches | None = None

    @property
    def applied(self) -> bool:
        """Whether it is watched now."""
        return self._patches is not None and self._patches.applied

    def apply(self) -> None:
        """Patch the module, which is loaded."""
        module = sys.modules[self.module]
        if self._patches is None or self._of is not module:
            self.undo()
            self._of, self._patches = module, None
            made: Sequence[Patch] = ()
            with self._closing_what_is_unknown():
                checked((UnknownLayout,), self._refuse_what_is_too_old)
                made = list(self.integration.patches[self.module](module))
            self._patches = Patches(made) if made else None
        if self._patches is not None:
            with self._closing_what_is_unknown():
                self._patches.apply()

    @contextmanager
    def _closing_what_is_unknown(self) -> Iterator[None]:
        try:
            yield
        except (AttributeError, UnknownLayout) as error:
            self._patches = None
            self._close(error)

    def _refuse_what_is_too_old(self) -> None:
        name, version = _package(self.module)
        if name in sys.stdlib_module_names:
            return
        from pytest_gradguard.runtime.kernel.oldest import too_old

        reason = too_old(name, version)
        if reason is not None:
            raise UnknownLayout(reason)

    def undo(self) -> None:
        """Restore the module."""
        if self._patches is not None:
            self._patches.undo()

    def _close(self, error: Exception) -> None:
        first = self.reason is None
        self.reason = f"{library(self.module)} is not known to gradguard ({error})"
        if first:
            warn(f"{self.reason}; what it gives to workers is not watched")


def library(module: str) -> str:
    """The library of a module, with its version."""
    name = module.partition(".")[0]
    if name in sys.stdlib_module_names:
        return f"{module} of Python {sys.version.partition(' ')[0]}"
    version = _package(module)[1]
    return f"{module} of {name} {version}" if "." in module else f"{name} {version}"


def _package(module: str) -> tuple[str, object]:
    """The package of a loaded module, and its version."""
    name = module.partition(".")[0]
    return name, getattr(sys.modules.get(name), "__version__", "of unknown version")


class Registered:
    """An integration and its declarations.

    Attributes:
        integration: the integration.
        watched: its modules.
    """

    def __init__(self, integration: Integration) -> None:
        self.integration = integration
        self.watched = [Watched(integration, module) for module in integration.patches]
        packages.declare(integration.packages, transparent=integration.transparent)
        self._watches = [watching.when_imported(one.module, one.apply) for one in self.watched]

    def forget(self) -> None:
        """Undo all declarations and patches."""
        for watch, one in zip(self._watches, self.watched, strict=True):
            watching.forget(watch)
            one.undo()
        self.integration.undo()


registered: dict[str, Registered] = {}
"""All integrations, by name."""
when_registered: list[Callable[[Integration], object]] = []
"""Called with each integration that is registered from now on."""


def register(integration: Integration) -> None:
    """Register an integration, replacing one of the same name."""
    known = registered.get(integration.name)
    if known is not None:
        known.forget()
    registered[integration.name] = Registered(integration)
    for table in (runners, forks_in, joblib_backends):
        table.clear()
    for one in registered.values():
        runners.update(one.integration.runners)
        forks_in.update(one.integration.forks_in)
        joblib_backends.update(one.integration.joblib_backends)
    for listener in when_registered:
        listener(integration)


def _undo() -> None:
    for one in registered.values():
        one.integration.undo()


watching.at_end(_undo)
