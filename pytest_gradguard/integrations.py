"""For packages that start workers of their own: how the guard learns to watch them.

`docs/integrations.md` has a whole integration, line by line.
"""

from __future__ import annotations

from pytest_gradguard.runtime.kernel.dispatch.calling import begin
from pytest_gradguard.runtime.kernel.dispatch.futures import belongs_to
from pytest_gradguard.runtime.kernel.dispatch.methods import maps, submits
from pytest_gradguard.runtime.kernel.dispatch.remote import Chunk
from pytest_gradguard.runtime.kernel.dispatch.shipped import guarded
from pytest_gradguard.runtime.kernel.patching import Patch
from pytest_gradguard.runtime.kernel.registry import (
    PROCESSES,
    THREADS,
    Integration,
    UnknownLayout,
    Workers,
)

__all__ = [
    "PROCESSES",
    "THREADS",
    "Chunk",
    "Integration",
    "Patch",
    "UnknownLayout",
    "Workers",
    "begin",
    "belongs_to",
    "guarded",
    "maps",
    "submits",
]
