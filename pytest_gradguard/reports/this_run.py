"""What a report says of the run that it is about: its command, its date, and versions."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from platform import python_version

_LIBRARIES = ("torch", "tensorflow", "jax", "joblib", "dask", "ray", "pytest")


def described() -> list[str]:
    """The command, the date, and the versions of the libraries that were used."""
    date = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    return [shlex.join(_command()), date, ", ".join(_versions())]


def _command() -> list[str]:
    """The command line, without the folders of the interpreter and of a script's own."""
    words = sys.orig_argv[1:]
    if not words or words[0].startswith("-"):  # such as `python -m pytest`
        return ["python", *words]
    return [os.path.basename(words[0]), *words[1:]]


def _versions() -> Iterator[str]:
    yield f"Python {python_version()}"
    loaded = [name for name in _LIBRARIES if name in sys.modules]
    # What only reads the findings of other processes, as under xdist, has imported none of them.
    for name in loaded if loaded != ["pytest"] else _LIBRARIES:
        with suppress(PackageNotFoundError):
            yield f"{name} {version(name)}"
