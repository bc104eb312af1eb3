"""Whether the program seeds global random generators, by observed calls and by its code."""

from __future__ import annotations

from typing import Any

from pytest_gradguard.runtime.kernel import generators, used_globals
from pytest_gradguard.runtime.kernel.attributes import plain_attribute
from pytest_gradguard.runtime.kernel.tasks import code_of, function_of, names_in
from pytest_gradguard.runtime.pitfalls.random import seed_calls

_CHOSEN = 1 << 32
"""Torch's own seeds exceed this, except one in two million; programs' seeds do not."""
_KNOWN = 1_000
_may_seed: dict[tuple[Any, type], bool] = {}


def is_seeded(library: str) -> bool:
    """Whether the program has seeded the global generator of a loaded library."""
    generator = generators.of_library(library)
    if library == "torch" and generator is not None:
        return bool(generator.initial_seed() < _CHOSEN)
    if library == "numpy" and generator is not None:
        return getattr(generator._bit_generator, "_seed_seq", generator) is None
    return library in seed_calls.seeded


def may_seed(function: Any) -> bool:
    """Whether the code of a task, or of the program's functions that it calls, names a seed."""
    inner = function_of(function)
    key = code_of(inner) or type(inner), type(plain_attribute(function, "__self__"))
    if key not in _may_seed:
        if len(_may_seed) >= _KNOWN:
            _may_seed.clear()
        functions = used_globals.uses_of(function).functions
        _may_seed[key] = any("seed" in name for one in functions for name in names_in(one.__code__))
    return _may_seed[key]
