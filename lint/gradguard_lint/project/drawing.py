"""Random draws in the bytes of a file, and where their generators are passed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Set

from gradguard_lint.project.literals import before, matches, words_of
from gradguard_lint.project.marks import ASKED, HANDED_OUT, REMOTE
from gradguard_lint.project.places import (
    around,
    assigned_name,
    calls,
    container_names,
    holders,
    is_given_on_at_margin,
    is_passed_on,
    uses_of,
)

_RANDOM = (
    rb"(?:np|numpy)\.random\.(?!default_rng|RandomState|Generator|SeedSequence|mtrand)"
    rb"[a-z]\w*[ \t]*\("
    rb"|from[ \t]+numpy(?:\.random)?[ \t]+import[^\n]*\brand"
    rb"|numpy\.random[ \t]+as\b|np\.random(?![\w.])"
)
"""A draw from NumPy's global generator, or an alias for its module."""
_VARIATES = ((b".rvs(", b".sample("), rb"\.(?:rvs|sample)\(")
_OF_NUMPY = frozenset({b"pandas", b"scipy"})
"""Packages with methods that also draw from NumPy's global generator."""
_ALIAS = rb"\w+[ \t]*=[ \t]*\Z"
_DRAWS = (b"np.random", b"numpy.random", b"from")
SEED = b"random.seed("
_OF_RANDOM = rb"\brandom\.[a-z]\w*[ \t]*\("
GENERATORS = (
    (b"default_rng", b"RandomState", b"Generator", b"Random"),
    rb"(?<!\w)(?:default_rng|RandomState|Generator|Random)[ \t]*\(",
)
_MADE = tuple(name + b"(" for name in GENERATORS[0])
"""The most common constructors, for a fast search."""
_PROCESS = ((b"Process",), rb"Process[ \t]*(?=\()")
_DEFINED = rb"\n[ \t]*(?:async[ \t]+)?def[ \t]+(\w+)"


def may_draw_equally(data: bytes, imported: Set[bytes], *, forks: bool) -> bool:
    """Whether forked workers may draw from NumPy's generator, workers from a seeded one, or a
    generator may be sent to tasks or with their function."""
    if forks and any(_can_be_given(data, draw.start()) for draw in draws(data, imported)):
        return True
    if SEED in data and any(
        _can_be_given(data, call.start()) for call in matches(data, (b"random.",), _OF_RANDOM)
    ):
        return True
    return any(_is_for_tasks(data, made) for made in matches(data, *GENERATORS))


def _is_for_tasks(data: bytes, made: re.Match[bytes]) -> bool:
    """Whether a generator may be sent to tasks, or with their function."""
    if is_passed_on(data, made.start()):
        return True
    name = assigned_name(data, made.start())
    names = dict.fromkeys(filter(None, (name, *container_names(data, made.start()))))
    if not names and not any(word in data for word in ASKED):
        return False
    near = around(data, made.start())
    handed = [it for called in (HANDED_OUT, REMOTE, _PROCESS) for it in calls(near, called)]
    if not name and any(made.group() in it and any(word in it for word in ASKED) for it in handed):
        return True
    said = words_of(b" ".join(handed))
    if any(it in said or any(map(said.__contains__, holders(near, it, said))) for it in names):
        return True
    # A function may capture a global.
    return (
        bool(name) and near is data and any(_can_be_given(data, it) for it in uses_of(data, name))
    )


def passes_generator_on(data: bytes, *, anyhow: bool) -> bool:
    """Whether a generator is created, and passed on at module level or `anyhow`."""
    made = matches(data, _MADE, GENERATORS[1])
    return any(anyhow or is_given_on_at_margin(data, it.start()) for it in made)


def stores_or_returns_generator(data: bytes) -> bool:
    """Whether generators, or objects with them, are stored or returned."""
    return any(is_passed_on(data, it.start()) for it in matches(data, *GENERATORS))


def draws(data: bytes, imported: Set[bytes]) -> Iterator[re.Match[bytes]]:
    """Draws from NumPy's global generator."""
    yield from matches(data, _DRAWS, _RANDOM)
    if not imported.isdisjoint(_OF_NUMPY):
        yield from matches(data, *_VARIATES)


def _can_be_given(data: bytes, place: int) -> bool:
    """Whether `place` is in a function that the file mentions elsewhere."""
    line = before(data, place)
    if b"lambda" in line or b"from" in line or b"import" in line or re.match(_ALIAS, line):
        return True
    indent = len(line) - len(line.lstrip())
    for head in reversed([*re.finditer(_DEFINED, data[:place])]):
        own = head.group()[1:]
        if head.start() >= place - len(line) - 1 or len(own) - len(own.lstrip()) < indent:
            name = head.group(1)
            said = matches(data, (name,), rb"\b" + name + rb"\b")
            return name[:2] == b"__" or sum(1 for _ in said) > 1
    return False
