"""Stub files: which modules of libraries have one, and its program.

A stub of the module ``torch.utils.data`` is the file ``torch/utils/data.py`` of a stub folder. The
engine runs it as a module of the program; see `gradguard_lint.engine.stubs`.
"""

from __future__ import annotations

import os
from functools import cache

from gradguard_lint.reading.source import Module, parse

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "stubs")


@cache
def stubs_in(folder: str) -> dict[str, str]:
    """The stub files of a folder, by the full names of the modules that they describe."""
    found: dict[str, str] = {}
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name.isidentifier())
        parts = [] if place == folder else os.path.relpath(place, folder).split(os.sep)
        for name in sorted(names):
            base, extension = os.path.splitext(name)
            if extension == ".py":
                own = parts if base == "__init__" else [*parts, base]
                found[".".join(own)] = os.path.join(place, name)
    return found


def load(path: str, module: str) -> Module:
    """The stub of `module` that the file at `path` holds.

    Raises:
        OSError: it cannot be read.
        SourceError: it is not Python that can be read.
    """
    return _parsed(path, module, os.stat(path).st_mtime_ns)


@cache
def _parsed(path: str, module: str, changed: int) -> Module:
    with open(path, "rb") as stream:
        data = stream.read()
    package = module if os.path.basename(path) == "__init__.py" else module.rpartition(".")[0]
    return parse(data, path, module, package, is_stub=True)
