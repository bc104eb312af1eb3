"""The states of random generators of all loaded libraries, and which state follows from which."""

from __future__ import annotations

import hashlib
import itertools
import random
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from pytest_gradguard.runtime.kernel import simulated_devices

numbers = itertools.count(1)
"""Numbers for generators, unique in this process."""

_BLOCKS = 2_000
"""Through how many blocks of 624 words a Mersenne Twister of Python is followed."""
_MANY_BLOCKS = 20_000
"""Through how many blocks one of NumPy is followed, which draws many at once."""
_WORDS = 624
_FAR = 1 << 34
"""A generator this far ahead has jumped: no program draws so many numbers."""
_STREAMS = {"PCG64": "inc", "PCG64DXSM": "inc", "Philox": "key"}
"""The part of the state of NumPy's generators that drawing does not change, by kind."""
_COUNTING = {
    "tensorflow": ("tensorflow.python.ops.stateful_random_ops", "Generator"),
    "keras": ("keras.src.random.seed_generator", "SeedGenerator"),
}
"""Generators that count their draws in a variable: module and name of their class."""

_SETTERS = frozenset(("assign", "make_seeds", "reset", "reset_from_seed", "skip", "split"))
"""Methods that move them other than by drawing; words too common to search for otherwise."""


class State(NamedTuple):
    """The state of a generator.

    Attributes:
        digest: equal for equal states.
        value: the state as the library gives it.
        generator: the generator.
    """

    digest: bytes
    value: Any
    generator: Any


def kinds() -> list[type]:
    """The classes of generators that this program has loaded, except Python's own."""
    found: list[type] = []
    numpy: Any = sys.modules.get("numpy.random")
    for name in ("Generator", "RandomState"):
        kind = getattr(numpy, name, None)
        if isinstance(kind, type):
            found.append(kind)
    if "torch.nn.parameter" in sys.modules:
        found.append(sys.modules["torch"]._C.Generator)
    for module, name_ in _COUNTING.values():
        kind = getattr(sys.modules.get(module), name_, None)
        if isinstance(kind, type):
            found.append(kind)
    return found + simulated_devices.generators


def titled(libraries: Sequence[str]) -> str:
    """The names of libraries as a sentence lists them."""
    *others, last = [_TITLES.get(library, library) for library in libraries]
    return f"{', '.join(others)} and {last}" if others else last


_TITLES = {"numpy": "NumPy", "random": "Python", "tensorflow": "TensorFlow"}


def _library(generator: Any) -> str:
    """The library of a generator, judged by its base class."""
    if isinstance(generator, random.Random):
        return "random"
    return type(generator).__module__.partition(".")[0]


def name(generator: Any) -> str:
    """The class of `generator`, as its users call it."""
    kind = type(generator)
    library = kind.__module__.partition(".")[0]
    package = f"{library}.random" if library == "numpy" or library in _COUNTING else library
    return f"{package}.{kind.__name__}"


def state(generator: Any) -> State | None:
    """The current state of `generator`, or None if it cannot be read."""
    kind = _library(generator)
    if kind == "random":
        value: Any = generator.getstate()
        return State(_digest(repr(value).encode()), value, generator)
    if kind == "torch":
        value = (generator.initial_seed(), generator.get_state())
        return State(_digest(bytes(value[1].tolist())), value, generator)
    if kind == "numpy":
        value = _bits(generator).state
        return State(_digest(b"".join(_bytes(value))), value, generator)
    if kind in _COUNTING:
        value = _words(generator)
        return State(_digest(repr(value).encode()), value, generator)
    return None


def spawned(generator: Any) -> int:
    """How many generators `generator` has spawned; only NumPy's count them."""
    if _library(generator) != "numpy":
        return 0
    bits = _bits(generator)
    seeds = getattr(bits, "seed_seq", None) or getattr(bits, "_seed_seq", None)
    return int(getattr(seeds, "n_children_spawned", 0))


def setters(generators: Iterable[Any]) -> frozenset[str]:
    """The methods that move one of `generators`, in addition to those of every library."""
    counting = any(_library(one) in _COUNTING for one in generators)
    return _SETTERS if counting else frozenset()


def follows(start: State, end: State) -> bool:
    """Whether drawing leads from `start` to `end`, both of one generator.

    False after a new seed, or if unknown. Jumps ahead in a stream are detected by the methods that
    tasks call (`tasks.reseeds`).
    """
    kind = _library(end.generator)
    if kind in _COUNTING:
        return _counted(start.value, end.value, kind)
    if kind == "torch":
        return bool(start.value[0] == end.value[0])
    if kind == "random":
        (_, before, _), (_, now, _) = start.value, end.value
        if before[:-1] == now[:-1]:
            return bool(now[-1] >= before[-1])
        clone = random.Random()
        clone.setstate(start.value)
        for _ in range(_BLOCKS):
            clone.getrandbits(32 * _WORDS)
            if clone.getstate()[1][:-1] == now[:-1]:
                return True
        return False
    return kind == "numpy" and _numpy_follows(start.value, end.value, end.generator)


def _words(generator: Any) -> list[int]:
    """The state of a TensorFlow or Keras generator, as unsigned words."""
    variable = generator.state
    value: Any = sys.modules["numpy"].asarray(variable.numpy())
    return [int(word) % (1 << 8 * value.itemsize) for word in value]


def _counted(start: list[int], end: list[int], kind: str) -> bool:
    """Whether only the counter advanced; Keras keeps it after the seed, TensorFlow before."""
    if len(start) != len(end):
        return False
    if kind == "keras":
        (before, *counts), (now, *counted) = start, end
    else:
        (*counts, before), (*counted, now) = start, end
    steps = _number(counted) - _number(counts)
    return before == now and 0 <= steps < _FAR


def _numpy_follows(start: Any, end: Any, generator: Any) -> bool:
    kind = start["bit_generator"]
    if kind != end["bit_generator"]:
        return False
    if kind == "MT19937":
        return _twister(start, end, type(_bits(generator)))
    before, now = start["state"], end["state"]
    if kind == "SFC64":
        return bool(now["state"][3] > before["state"][3])
    stream = _STREAMS.get(kind)
    return stream is not None and _equal(before[stream], now[stream])


def _equal(one: Any, other: Any) -> bool:
    return bool((one == other).all()) if hasattr(one, "all") else bool(one == other)


def _number(words: Any) -> int:
    """The number with these 64-bit words, the lowest first."""
    return sum(int(word) << 64 * place for place, word in enumerate(words))


def _twister(start: Any, end: Any, kind: Any) -> bool:
    """Whether a Mersenne Twister of NumPy gets from `start` to `end` block by block."""
    before, now = start["state"], end["state"]
    if (before["key"] == now["key"]).all():
        return bool(now["pos"] >= before["pos"])

    def draw(key: Any, position: int, blocks: int) -> Any:
        clone = kind()
        clone.state = {**start, "state": {"key": key, "pos": position}}
        while True:
            yield clone.random_raw(_WORDS * blocks).reshape(blocks, _WORDS)

    (wanted,) = next(draw(now["key"], 0, 1))
    together = 100
    for _, drawn in zip(
        range(_MANY_BLOCKS // together), draw(before["key"], _WORDS, together), strict=False
    ):
        alike = drawn[drawn[:, 0] == wanted[0]]
        if any((block == wanted).all() for block in alike):
            return True
    return False


def _bits(generator: Any) -> Any:
    """The bit generator behind a generator of NumPy."""
    bits = getattr(generator, "bit_generator", None)
    return generator._bit_generator if bits is None else bits


def _bytes(value: Any) -> Any:
    if isinstance(value, dict):
        for key in sorted(value):
            yield str(key).encode()
            yield from _bytes(value[key])
    else:
        yield value.tobytes() if hasattr(value, "tobytes") else repr(value).encode()


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()
