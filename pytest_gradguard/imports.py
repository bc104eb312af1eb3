"""Calls back once the program has imported a module; nothing else of the guard is imported here."""

from __future__ import annotations

import sys

from pytest_gradguard.aside import safely

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def call_after(name: str, callback: Callable[[], object]) -> None:
    """Call `callback` whenever the module `name` has been executed from now on."""
    _finder.callbacks.setdefault(name, []).append(callback)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def forget(callback: Callable[[], object]) -> None:
    """Do not call `callback` any more."""
    for name, callbacks in list(_finder.callbacks.items()):
        if callback in callbacks:
            callbacks.remove(callback)
        if not callbacks:
            del _finder.callbacks[name]
    if not _finder.callbacks and _finder in sys.meta_path:
        sys.meta_path.remove(_finder)


class _Finder:
    """Lets the other finders find a module, and calls back once it has been executed."""

    def __init__(self) -> None:
        self.callbacks: dict[str, list[Callable[[], object]]] = {}
        self._asking: set[str] = set()  # others that wait for the same module ask this one, too

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name not in self.callbacks or name in self._asking:
            return None
        self._asking.add(name)
        try:
            for finder in sys.meta_path:
                if finder is self or not hasattr(finder, "find_spec"):
                    continue
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    if hasattr(spec.loader, "exec_module"):
                        safely(self._hear, spec.loader, name)
                    return spec
            return None
        finally:
            self._asking.discard(name)

    def _hear(self, loader: Any, name: str) -> None:
        execute = loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            for callback in list(self.callbacks.get(name, ())):
                safely(callback)

        loader.exec_module = exec_module


_finder: Any = _Finder()
