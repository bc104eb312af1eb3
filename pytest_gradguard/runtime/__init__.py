"""The runtime guard: records what workers get and return, and reports lost gradients.

It observes pickling that happens anyway, and imports no framework that the program has not
imported.
"""

from __future__ import annotations

import sys as _sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Literal

from pytest_gradguard.disabled import is_disabled
from pytest_gradguard.runtime.kernel import collector as _collector
from pytest_gradguard.runtime.kernel import parts as _parts
from pytest_gradguard.runtime.kernel import watching as _watching
from pytest_gradguard.runtime.kernel.collector import Collector as _Collector
from pytest_gradguard.runtime.kernel.faults import attempt as _attempt
from pytest_gradguard.runtime.kernel.faults import checked as _checked
from pytest_gradguard.runtime.kernel.faults import theirs_only as _theirs_only
from pytest_gradguard.runtime.kernel.locks import Lock as _Lock

if TYPE_CHECKING:
    from pytest_gradguard.findings import Finding
    from pytest_gradguard.tallies import Tally

__all__ = ["CHECKS", "Report", "allow", "guard", "install", "simulated", "uninstall"]

CHECKS: tuple[str, ...]
"""The pitfalls that the guard checks at run time in this version."""
_REFUSED = (ValueError, TypeError, AttributeError)
"""The errors of invalid codes."""

Mode = Literal["warn", "error", "record"]

_installed: _collector.Collector | None = None
_lock = _Lock()


def _part(name: str) -> Any:
    """A package above the kernel, imported once it is needed."""
    if name == "frameworks":
        from pytest_gradguard.runtime import frameworks

        return frameworks
    if name == "pitfalls":
        from pytest_gradguard.runtime import pitfalls

        return pitfalls
    from pytest_gradguard.runtime import starting

    return starting


_parts.load = _part


def __getattr__(name: str) -> Any:
    if name == "CHECKS":
        from pytest_gradguard.runtime.kernel import checks

        return checks.codes()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _expanded(selectors: Iterable[str]) -> frozenset[str]:
    """The codes that `selectors` stand for.

    Raises:
        ValueError, TypeError, AttributeError: a selector is invalid.
    """
    __tracebackhide__ = True
    known = tuple(selectors)
    if not known:
        return frozenset()
    from pytest_gradguard import pitfalls

    return pitfalls.expand(known)


def _announcer(mode: Mode) -> _collector.Announce | None:
    if mode == "record":
        return None
    from pytest_gradguard.runtime.kernel.announcing import announcer

    return announcer(mode)


class Report:
    """What a guard has found so far. Printed, it is the findings in full."""

    _collector: _Collector | None = None
    """None if the guard itself failed before it was created."""

    def __str__(self) -> str:
        from pytest_gradguard.reports.overview import count_line, gravest_first
        from pytest_gradguard.reports.text import blocks

        findings = gravest_first(self.findings)
        return "\n".join([*blocks(findings), *[""] * bool(findings), count_line(findings)])

    def __repr__(self) -> str:
        from pytest_gradguard.reports.overview import count_line

        return f"<gradguard report: {count_line(self.findings)}>"

    def _repr_html_(self) -> str:
        from pytest_gradguard.reports.page import fragment

        return fragment(self.findings)

    def hear(self, then: Callable[[list[Finding]], None]) -> None:
        """Only call `then`, with all findings, whenever there is a new one."""
        if self._collector is not None:
            self._collector.hear = lambda new: then(self.findings) if new else None

    @property
    def findings(self) -> list[Finding]:
        """The findings so far; equal ones (same code and place) are one with a count."""
        return _attempt(_collected, self._collector, "findings") or []

    @property
    def calls(self) -> list[Tally]:
        """The parallel calls so far, by line, with their tasks, sizes and times."""
        return _attempt(_collected, self._collector, "tallies") or []


def _collected(collector: _Collector | None, what: str) -> Any:
    return [] if collector is None else getattr(collector, what)


def install(mode: Mode = "warn", *, ignore: Iterable[str] = ()) -> Report:
    """Guard this program until `uninstall`. Installing it again only changes the mode.

    Args:
        mode: ``"warn"`` warns at the user's line when a parallel call or a backward ends;
            ``"error"`` raises `GradGuardError` there; ``"record"`` does neither.
        ignore: codes, prefixes or names of pitfalls to leave out.

    Returns:
        The report. Its ``findings`` are always those up to now.

    Raises:
        ValueError: there is no such mode, or no such code.
    """
    global _installed
    __tracebackhide__ = True
    with _theirs_only:
        announce = _checked((ValueError,), _announcer, mode)
        ignored = _checked(_REFUSED, _expanded, ignore, instead=frozenset())
    with _lock:
        if _installed is None:
            _installed = _attempt(_collector.Collector, ignore=ignored, announce=announce)
            if _installed is not None:
                _attempt(_collector.enter_first, _installed)
                _attempt(_watching.start, _installed)
        else:
            _installed.announce = announce
            _installed.ignore |= ignored
        report = Report()
        report._collector = _installed
        return report


def uninstall() -> None:
    """End what `install` started, and restore every patched name."""
    global _installed
    with _lock:
        if _installed is not None:
            _attempt(_collector.leave, _installed)
            _attempt(_watching.stop, _installed)
            _installed = None


@contextmanager
def guard(mode: Mode = "warn", *, simulate_gpu: int | None = None) -> Iterator[Report]:
    """Guard the block; yields the report.

    The guard watches what its own thread or asyncio task does in the block, and the threads and
    tasks that are started there. A guard in the main thread also watches every thread that has no
    guard of its own; a guard in another thread does not watch other threads.

    Args:
        mode: what to do with findings, as for `install`.
        simulate_gpu: the number of GPUs to simulate in the block (see `docs/simulated_gpus.md`).

    Raises:
        ValueError: there is no such mode, or `simulate_gpu` is not 1 or more.
        RuntimeError: this process uses a real GPU already, so that none can be simulated.
    """
    with _theirs_only:
        announce = _checked((ValueError,), _announcer, mode)
    collector = _attempt(_collector.Collector, announce=announce)
    report = Report()
    report._collector = collector
    ending = _sys.is_finalizing  # a local: as the interpreter ends, modules lose their globals
    with simulated(simulate_gpu):
        if collector is not None:
            _attempt(_watching.start, collector)
            _attempt(_collector.enter_here, collector)
        try:
            yield report
        finally:
            if collector is not None and not ending():
                _attempt(_collector.leave, collector)
                _attempt(_watching.stop, collector)


@contextmanager
def simulated(devices: int | None) -> Iterator[None]:
    """Simulate `devices` GPUs in the block; does nothing for None, or if gradguard is disabled.

    Raises:
        ValueError: `devices` is not 1 or more.
        RuntimeError: this process uses a real GPU already.
    """
    if devices is None or is_disabled():
        yield
        return
    from pytest_gradguard.runtime.kernel import simulated_devices

    simulation = simulated_devices.load()
    simulation.start(devices)
    try:
        yield
    finally:
        simulation.stop()


def allow(*codes: str, reason: str | None = None) -> AbstractContextManager[None]:
    """Do not report `codes`, prefixes or names of pitfalls, in the block.

    This covers its own thread or asyncio task, and the threads and tasks that are started in it.

    Args:
        codes: such as ``"GG101"``.
        reason: why they are allowed, for readers of the code.

    Raises:
        ValueError: no such code; the message names it and what is allowed.
    """
    __tracebackhide__ = True
    with _theirs_only:
        allowed = _checked(_REFUSED, _expanded, codes, instead=frozenset())
    return _collector.allowing(allowed)
