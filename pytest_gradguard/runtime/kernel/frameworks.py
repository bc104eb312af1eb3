"""The known frameworks: ours, which register here, and those of other packages.

A framework is used once the program has imported it: its objects then report to the active transfer
as they are pickled.
"""

from __future__ import annotations

import os
import sys

from pytest_gradguard.runtime.kernel import packages, parts, watching
from pytest_gradguard.runtime.kernel.faults import attempt, warn
from pytest_gradguard.runtime.kernel.framework import Framework, Reductions
from pytest_gradguard.runtime.kernel.oldest import too_old

_known: dict[str, Framework] = {}
"""The frameworks by name."""
_ours: set[str] = set()
"""The names of gradguard's own."""
_modules: dict[str, str] = {}
modules = _modules.keys()
"""The modules whose import makes frameworks relevant."""
_reductions: dict[str, list[Reductions]] = {}
_settled = (0, 0)
"""The turn of the guard in which all reductions were last applied, and the number of modules
loaded then."""


def _register(framework: Framework) -> None:
    global _settled
    earlier = _reductions.pop(framework.name, None)
    for one in earlier or ():
        one.undo()
    _known[framework.name] = framework
    _modules[framework.module] = framework.name
    packages.declare(framework.packages)
    _settled = (0, 0)


def register_framework(framework: Framework) -> None:
    """Teach the guard the arrays of another framework, in this process.

    It replaces a framework that was registered under the same name.

    Args:
        framework: an object of a subclass of `Framework` (see `docs/frameworks.md`).

    Raises:
        TypeError: `framework` is not such an object.
        ValueError: it has no name or no module, or its name is that of one of gradguard's own.
    """
    if not isinstance(framework, Framework):
        raise TypeError(f"register_framework takes a Framework, not {framework!r}")
    for what in ("name", "module"):
        value = getattr(framework, what)
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"the {what} of a framework must be a name, not {value!r}")
    for what in ("types", "packages"):
        value = getattr(framework, what)
        if isinstance(value, str) or not all(isinstance(one, str) and one for one in value):
            raise TypeError(
                f"{what} of framework {framework.name!r} must be a list of names, not {value!r}"
            )
    if framework.name in _ours:
        raise ValueError(
            f"gradguard already has a framework named {framework.name!r}: choose another name"
        )
    _register(framework)


def register_ours(framework: Framework) -> None:
    """Register one of gradguard's own."""
    _ours.add(framework.name)
    _register(framework)


def named(name: object) -> Framework:
    """The framework of that name; one that this process does not know has only the name."""
    known = _known.get(str(name))
    if known is None:
        known = Framework()
        known.name = str(name)
    return known


def is_ours(framework: Framework) -> bool:
    """Whether `framework` is one of gradguard's own, for which the pitfalls have advice."""
    return framework.name in _ours


def package_names() -> list[str]:
    """The packages of all known frameworks."""
    return sorted({package for framework in _known.values() for package in framework.packages})


def threads_are_up() -> bool:
    """Whether a framework has threads without which its computations may hang in a fork."""
    return any(framework.threads_are_up() for framework in _known.values())


def waiting_in(path: str) -> Framework | None:
    """The framework for whose threads the code in `path` may wait in a forked process."""
    parts = path.split(os.sep)
    for framework in _known.values():
        if any(package in parts for package in framework.waits_in):
            return framework
    return None


def waiting_by(method: str) -> Framework | None:
    """The framework for whose threads a method of that name may wait in a forked process."""
    for framework in _known.values():
        if method in framework.waits_by and framework.threads_are_up():
            return framework
    return None


def watch_reductions() -> None:
    """Make the objects of every loaded framework report to the active transfer.

    Any thread may call it, also one that still pickles as the guard ends, and a process that
    watches its pickling for another one and never has the guard on.
    """
    global _settled
    turn, _ = now = (watching.turn, len(sys.modules))
    if now == _settled or watching.has_ended():
        return
    for name, framework in list(_known.items()):
        reductions = _reductions.get(name)
        if reductions is None:
            if framework.module not in sys.modules:
                continue
            # A package that another thread is importing at this moment is incomplete.
            if not framework.is_imported:
                now = (0, 0)
                continue
            reductions = _reductions[name] = attempt(_reductions_of, framework, instead=[])
        for one in reductions:
            if not one.applied:
                attempt(one.apply)
    _settled = now
    if turn != watching.turn:  # the guard has ended in the meantime
        undo()


def _reductions_of(framework: Framework) -> list[Reductions]:
    package = framework.module.partition(".")[0]
    version = getattr(sys.modules.get(package), "__version__", None)
    reason = too_old(package, version)
    if reason is None:
        return framework.reductions()
    title = framework.title or framework.name
    warn(f"{title} {version} is not known to gradguard ({reason}); its arrays are not watched")
    return []


def undo() -> None:
    """Undo `watch_reductions`."""
    global _settled
    _settled = (0, 0)
    for reductions in _reductions.values():
        for one in reductions:
            attempt(one.undo)


watching.at_end(undo)


def loaded() -> bool:
    """Whether the program has imported a framework whose results are inspected."""
    return any(framework.tells_results() for framework in _known.values())


parts.load("frameworks")  # ours, which register here
