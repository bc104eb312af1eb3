"""Draws with only one possible outcome, which need no random numbers."""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterator
from itertools import product

from gradguard_lint.domain.conditions import consistent
from gradguard_lint.domain.shapes import known_items
from gradguard_lint.domain.unknowns import computed
from gradguard_lint.domain.values import Atom, Const, External, Items, Unknown, Value, constant
from gradguard_lint.engine.ports import Args
from gradguard_lint.engine.truth import as_unknown
from gradguard_lint.models.transfers.extents import shape_of
from gradguard_lint.words import words

_BETWEEN: dict[str, tuple[int, str, str, float | None, int]] = {
    "numpy.random.randint": (0, "low", "high", 0, 1),
    "numpy.random.integers": (0, "low", "high", 0, 1),
    "numpy.random.random_integers": (0, "low", "high", 1, 0),
    "numpy.random.uniform": (0, "low", "high", None, 0),
    "random.randint": (0, "a", "b", None, 0),
    "random.randrange": (0, "start", "stop", 0, 1),
    "random.uniform": (0, "a", "b", None, 0),
    "random.triangular": (0, "low", "high", None, 0),
    "torch.randint": (0, "low", "high", 0, 1),
    "torch.randint_like": (1, "low", "high", 0, 1),
    "torch.Tensor.random_": (0, "from", "to", 0, 1),
    "torch.Tensor.uniform_": (0, "from", "to", None, 0),
    "tensorflow.random.uniform": (1, "minval", "maxval", None, 0),
}
"""Draws between two numbers: the position of the lower one, both names, the default lower one if
only the higher is passed (None: 0, with 1 for the higher), and their distance if there is one
number between them."""

_VARYING: dict[str, tuple[tuple[int, str, tuple[int, ...]], ...]] = {
    "numpy.random.normal": ((1, "scale", (0,)),),
    "numpy.random.laplace": ((1, "scale", (0,)),),
    "numpy.random.lognormal": ((1, "sigma", (0,)),),
    "numpy.random.exponential": ((0, "scale", (0,)),),
    "numpy.random.gamma": ((1, "scale", (0,)),),
    "numpy.random.poisson": ((0, "lam", (0,)),),
    "numpy.random.binomial": ((0, "n", (0,)), (1, "p", (0, 1))),
    "numpy.random.geometric": ((0, "p", (1,)),),
    "random.choices": ((3, "k", (0,)),),
    "random.gauss": ((1, "sigma", (0,)),),
    "random.getrandbits": ((0, "k", (0,)),),
    "random.normalvariate": ((1, "sigma", (0,)),),
    "random.sample": ((1, "k", (0,)),),
    "torch.normal": ((1, "std", (0,)),),
    "torch.Tensor.normal_": ((1, "std", (0,)),),
    "torch.Tensor.bernoulli_": ((0, "p", (0, 1)),),
    "tensorflow.random.normal": ((2, "stddev", (0,)),),
    "tensorflow.random.truncated_normal": ((2, "stddev", (0,)),),
}
"""The arguments that determine the spread, and the values without any."""

_AMONG = words(
    "numpy.random.choice numpy.random.permutation numpy.random.shuffle numpy.random.permuted "
    "random.choice random.choices random.sample random.shuffle torch.randperm "
    "tensorflow.random.shuffle"
)
"""Draws from given items, or from that many numbers."""

_BY_SHAPE = words("numpy.random.rand numpy.random.randn torch.rand torch.randn")
"""Functions whose arguments are sizes."""


def is_certain(name: str, args: Args) -> bool:
    """Whether the draw `name` has one outcome: at most one number or item to draw."""
    if args.open or args.rest is not None or args.perhaps:
        return False
    return (
        any(_is_none(value) for value in _sizes(name, args))
        or (name in _BETWEEN and _is_between(name, args))
        or any(_is_one_of(args.get(at, word), left) for at, word, left in _VARYING.get(name, ()))
        or (name in _AMONG and _is_one(args.get(0, "a", "x", "seq", "population", "n", "value")))
    )


def _is_one_of(value: Value | None, known: tuple[Hashable, ...]) -> bool:
    return value is not None and all(
        isinstance(atom, Const) and atom.value in known for atom in value.atoms
    )


def _is_one(among: Value | None) -> bool:
    """Whether there is one item to draw, or all are equal."""
    if among is None:
        return False
    held = known_items(among)
    if isinstance(among.constant, str):
        return len(set(among.constant)) < 2
    if held is None:
        return _is_one_of(among, (0, 1))
    alike = {item.constant for item in held}
    return len(held) < 2 or (len(alike) == 1 and None not in alike)


def _sizes(name: str, args: Args) -> Iterator[Value]:
    """The size arguments, as far as their position shows it."""
    if "size" in args.keywords:
        yield args.keywords["size"]
    if name in _BY_SHAPE:
        yield from args.positional
    elif not name.startswith("random.") and name not in _AMONG:
        yield from (value for value in args.positional if any(value.of(Items)))


def _is_none(size: Value) -> bool:
    return 0 in (shape_of(size) or ())


def _is_between(name: str, args: Args) -> bool:
    """Whether there is one number between the arguments."""
    place, low_name, high_name, least, apart = _BETWEEN[name]
    low, high = args.get(place, low_name), args.get(place + 1, high_name)
    if high is not None and (high.is_none or any(high.of(Items))):
        high = None  # it is the size
    if least is None:
        low, high = low or constant(0), high or constant(1)
    elif high is None or low is None:
        low, high = constant(least), high or low
    if name.startswith("tensorflow.") and _is_whole(args.get(3, "dtype")):
        apart = 1
    if high is None or not {"step", "endpoint", "mode"}.isdisjoint(args.keywords):
        return False
    return all(
        _is_apart(one.atom, other.atom, apart)
        for one, other in product(low.choices, high.choices)
        if consistent(one.when, other.when)
    )


def _is_whole(dtype: Value | None) -> bool:
    """Whether that type has only integers."""
    names = dtype.of(External) if dtype is not None else ()
    return any("int" in external.name.rpartition(".")[2] for external in names)


def _is_apart(low: Atom, high: Atom, apart: int) -> bool:
    """Whether `high` is `low` plus `apart`."""
    if isinstance(low, Const) and isinstance(high, Const):
        known = isinstance(low.value, (int, float)) and isinstance(high.value, (int, float))
        return known and low.value + apart == high.value  # type: ignore[operator]
    low, high = as_unknown(low), as_unknown(high)
    if not isinstance(low, Unknown) or not isinstance(high, Unknown) or low.key is None:
        return False
    if not apart:
        return low.key == high.key
    more = constant(apart).choices[0].atom
    added = {computed(ast.Add.__name__, low, more, numeric=it) for it in (True, False)}
    return high.key is not None and high.key in (*added, ("int", low, ast.Add.__name__, apart))
