"""Waits until the program has imported a package, and then calls back."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from pytest_gradguard.runtime.faults import fault


class _Finder(MetaPathFinder):
    """Lets the other finders find a package, and calls back once it has been executed."""

    def __init__(self, name: str, callback: Callable[[], None]) -> None:
        self.name = name
        self.callback: Callable[[], None] | None = callback
        self._asking = False  # others that wait for the same package ask this one, too

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name or self._asking:
            return None
        self._asking = True
        try:
            for finder in sys.meta_path:
                if finder is self or not hasattr(finder, "find_spec"):
                    continue
                spec = finder.find_spec(fullname, path, target)
                if spec is None:
                    continue
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    self._call_after(spec.loader)
                return spec
            return None
        finally:
            self._asking = False

    def _call_after(self, loader: object) -> None:
        original = loader.exec_module  # type: ignore[attr-defined]

        def exec_module(module: ModuleType) -> None:
            original(module)
            callback = self.callback
            if callback is not None:
                try:
                    callback()
                except Exception as error:
                    fault(error)

        loader.exec_module = exec_module  # type: ignore[attr-defined]


def call_after(name: str, callback: Callable[[], None]) -> None:
    """Call `callback` once the package `name` has been imported."""
    sys.meta_path.insert(0, _Finder(name, callback))


def forget(callback: Callable[[], None]) -> None:
    """Do not call `callback` any more."""
    for finder in list(sys.meta_path):
        if isinstance(finder, _Finder) and finder.callback is callback:
            finder.callback = None
            sys.meta_path.remove(finder)
