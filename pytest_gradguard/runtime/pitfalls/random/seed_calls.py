"""Records the program's calls that seed global random generators.

Functions that seed are wrapped, and none that draws. A name that the program has imported before,
such as `from random import seed`, is not wrapped.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

from pytest_gradguard.runtime.kernel.observing import observed
from pytest_gradguard.runtime.kernel.patching import LatePatches, Patch

_FUNCTIONS = {
    "torch": (("torch.random", "_manual_seed_impl"),),  # what `manual_seed` calls
    "numpy": (("numpy.random", "seed"), ("numpy.random.mtrand", "seed")),
    "random": (("random", "seed"),),
    "tensorflow": (("tensorflow.python.eager.context", "set_global_seed"),),
}
"""The functions that seed each library's global generator, as modules and names."""
_IN_OLD_TORCH = (("torch.random", "manual_seed"), ("torch", "manual_seed"))
LIBRARIES = tuple(_FUNCTIONS)


class _Thread(threading.local):
    """Called with the library when this thread seeds."""

    listener: Callable[[str], None] | None = None


this_thread = _Thread()
seeded: set[str] = set()
"""The libraries whose generators the program was observed to seed."""


def watch() -> None:
    """Watch the libraries that are loaded, from now on."""
    for patches in _patches.values():
        patches.apply()


def _make(library: str) -> list[Patch]:
    functions = _FUNCTIONS[library]
    if any(module not in sys.modules for module, _ in functions):
        return []
    if library == "torch" and not hasattr(sys.modules["torch.random"], "_manual_seed_impl"):
        functions = _IN_OLD_TORCH
    wrap = functools.cache(functools.partial(_hearing, library))  # one wrapper for both names
    return [Patch(sys.modules[module], name, wrap) for module, name in functions]


_patches = {library: LatePatches(functools.partial(_make, library)) for library in LIBRARIES}


def _hearing(library: str, original: Any) -> Any:
    def record(result: Any, *args: Any, **kwargs: Any) -> None:
        chosen = [one for one in (*args, *kwargs.values()) if one is not None]
        (seeded.add if chosen else seeded.discard)(library)
        if this_thread.listener is not None:
            this_thread.listener(library)

    seed = observed(after=record)(original)
    # Picklers look a function up by its name; a method's qualified name would lead to its class.
    seed.__qualname__ = seed.__name__
    module, _ = _FUNCTIONS[library][0]
    seed.__module__ = module
    return seed


def apply() -> None:
    """Watch Python's own generator: its state does not show a seed."""
    _patches["random"].apply()
