"""Our own modules as they are installed, without pytest's assertion rewriting.

pytest rewrites the asserts of every package that brings a plugin, so that each module of ours is
read, hashed and loaded in a way of its own: half of what the guard adds to pytest's start.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

import pytest

from pytest_gradguard.disabled import is_disabled

_OURS = f"{__name__.partition('.')[0]}."

_DONE: pytest.StashKey[bool] = pytest.StashKey()


class _AsInstalled(MetaPathFinder):
    """Finds our modules as Python's own finder does."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(fullname, path, target) if fullname.startswith(_OURS) else None


def import_as_installed(config: pytest.Config) -> None:
    """Import our modules past pytest's finder, until the run that `config` belongs to ends.

    Where the guard is disabled, nothing is put in the way of imports.
    """
    rewriting: Any = config.pluginmanager.rewrite_hook
    if is_disabled() or rewriting not in sys.meta_path or config.stash.get(_DONE, False):
        return
    config.stash[_DONE] = True
    finder = _AsInstalled()
    sys.meta_path.insert(sys.meta_path.index(rewriting), finder)

    def leave() -> None:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)

    config.add_cleanup(leave)
