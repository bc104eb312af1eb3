"""Whether the program seeds global random generators: what is heard, seen, and read in its code.

The functions that seed are wrapped, and none that draws. A name that the program has imported
before, such as `from random import seed`, stays what it was.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

from pytest_gradguard.runtime import random_states, used_globals, watching
from pytest_gradguard.runtime.faults import fault
from pytest_gradguard.runtime.patching import LatePatches, Patch
from pytest_gradguard.runtime.tasks import function_of, names_in

_CHOSEN = 1 << 32
"""Torch's own seeds are beyond it, but for one of two million; those of programs are not."""
_KNOWN = 1_000
_FUNCTIONS = {
    "torch": (("torch.random", "_manual_seed_impl"),),  # what `manual_seed` calls
    "numpy": (("numpy.random", "seed"), ("numpy.random.mtrand", "seed")),
    "random": (("random", "seed"),),
    "tensorflow": (("tensorflow.python.eager.context", "set_global_seed"),),
}
"""By libraries: the functions that seed their global generators, as modules and names."""
_IN_OLD_TORCH = (("torch.random", "manual_seed"), ("torch", "manual_seed"))
LIBRARIES = tuple(_FUNCTIONS)


class _Thread(threading.local):
    """Who hears of it when this thread seeds: given the library."""

    hear: Callable[[str], None] | None = None


this_thread = _Thread()


_seeded: set[str] = set()
"""The libraries whose generators have got a seed of the program's, as far as that was heard."""
_may_seed: dict[tuple[Any, type], bool] = {}


def is_seeded(library: str) -> bool:
    """Whether the program has seeded the global generator of a library that is loaded."""
    generator = random_states.global_generator(library)
    if library == "torch" and generator is not None:
        return bool(generator.initial_seed() < _CHOSEN)
    if library == "numpy" and generator is not None:
        return getattr(generator._bit_generator, "_seed_seq", generator) is None
    return library in _seeded


def may_seed(function: Any) -> bool:
    """Whether a task's code, or that of the program's own functions it calls, names a seed."""
    inner = function_of(function)
    key = getattr(inner, "__code__", type(inner)), type(getattr(function, "__self__", None))
    if key not in _may_seed:
        if len(_may_seed) >= _KNOWN:
            _may_seed.clear()
        functions = used_globals.uses_of(function).functions
        _may_seed[key] = any("seed" in name for one in functions for name in names_in(one.__code__))
    return _may_seed[key]


def watch() -> None:
    """Hear of the libraries that are loaded, from now on."""
    for patches in _patches.values():
        patches.apply()


def undo() -> None:
    """Leave the functions as they were."""
    for patches in _patches.values():
        patches.undo()


watching.at_end(undo)


def _make(library: str) -> list[Patch]:
    functions = _FUNCTIONS[library]
    if any(module not in sys.modules for module, _ in functions):
        return []
    if library == "torch" and not hasattr(sys.modules["torch.random"], "_manual_seed_impl"):
        functions = _IN_OLD_TORCH
    wrap = functools.cache(functools.partial(_hearing, library))  # one for both of its names
    return [Patch(sys.modules[module], name, wrap) for module, name in functions]


_patches = {library: LatePatches(functools.partial(_make, library)) for library in LIBRARIES}


def _hearing(library: str, original: Any) -> Any:
    @functools.wraps(original)
    def seed(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        chosen = [one for one in (*args, *kwargs.values()) if one is not None]
        (_seeded.add if chosen else _seeded.discard)(library)
        hear = this_thread.hear
        if hear is not None:
            try:
                hear(library)
            except Exception as error:
                fault(error)
        return result

    # Picklers look a function up by its name. That of a method's would lead to its class.
    seed.__qualname__ = seed.__name__
    module, _ = _FUNCTIONS[library][0]
    seed.__module__ = module
    return seed


# Nothing else tells that Python's generator has got a seed.
watching.when_imported("random", _patches["random"].apply, _patches["random"].undo)
