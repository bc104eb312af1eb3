"""Switches the guard's patches on and off, and waits for a joblib that is imported later."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from pytest_gradguard.runtime.faults import fault

_PARALLEL = "joblib.parallel"
_users = 0
_lock = threading.RLock()


def start() -> None:
    """Watch joblib, now or as soon as the program imports it. Calls nest."""
    global _users
    with _lock:
        _users += 1
        if _users == 1:
            if _PARALLEL in sys.modules:
                _watch()
            else:
                sys.meta_path.insert(0, _finder)


def stop() -> None:
    """Undo one `start`; the last one leaves every patched name as it was."""
    global _users
    with _lock:
        _users -= 1
        if _users == 0:
            if _finder in sys.meta_path:
                sys.meta_path.remove(_finder)
            for name in _UNDONE:
                module: Any = sys.modules.get(name)
                if module is not None:
                    module.undo()


_UNDONE = (
    "pytest_gradguard.runtime.dispatch",
    "pytest_gradguard.runtime.provenance",
    "pytest_gradguard.runtime.frameworks",
    "pytest_gradguard.runtime.left",
    "pytest_gradguard.runtime.looks",
)


def _watch() -> None:
    try:
        from pytest_gradguard.runtime import dispatch

        dispatch.apply()
    except Exception as error:
        fault(error)


class _Finder(MetaPathFinder):
    """Lets the other finders find joblib, and watches it once it has been loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _PARALLEL:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    _watch_after(spec.loader)
                return spec
        return None


def _watch_after(loader: Loader) -> None:
    original = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        original(module)
        if _users:
            _watch()

    loader.exec_module = exec_module  # type: ignore[method-assign]


_finder = _Finder()
