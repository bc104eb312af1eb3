"""Where the bytes of a file draw numbers at random, and who gets what they are drawn from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Set

from gradguard_lint.project.literals import before, matches, words_of
from gradguard_lint.project.marks import ASKED, HANDED_OUT, REMOTE
from gradguard_lint.project.places import (
    around,
    calls,
    given_to,
    holders,
    is_given_on_at_margin,
    is_passed_on,
    kept_by,
    uses_of,
)

_RANDOM = (
    rb"(?:np|numpy)\.random\.(?!default_rng|RandomState|Generator|SeedSequence|mtrand)"
    rb"[a-z]\w*[ \t]*\("
    rb"|from[ \t]+numpy(?:\.random)?[ \t]+import[^\n]*\brand"
    rb"|numpy\.random[ \t]+as\b|np\.random(?![\w.])"
)
"""A draw from NumPy's global generator, or another name for what has it."""
_VARIATES = ((b".rvs(", b".sample("), rb"\.(?:rvs|sample)\(")
_OF_NUMPY = frozenset({b"pandas", b"scipy"})
"""Packages some of whose methods draw from it, too."""
_ALIAS = rb"\w+[ \t]*=[ \t]*\Z"
_DRAWS = (b"np.random", b"numpy.random", b"from")
SEED = b"random.seed("
_OF_RANDOM = rb"\brandom\.[a-z]\w*[ \t]*\("
GENERATORS = (
    (b"default_rng", b"RandomState", b"Generator", b"Random"),
    rb"(?<!\w)(?:default_rng|RandomState|Generator|Random)[ \t]*\(",
)
_MADE = tuple(name + b"(" for name in GENERATORS[0])
"""How most of them are made: these are found in far less time."""
_PROCESS = ((b"Process",), rb"Process[ \t]*(?=\()")
_DEFINED = rb"\n[ \t]*(?:async[ \t]+)?def[ \t]+(\w+)"


def draw_alike(data: bytes, imported: Set[bytes], *, forks: bool) -> bool:
    """Whether forked workers may draw from NumPy, workers from a generator that is seeded, or a
    generator may be given to tasks, or go with their function."""
    if forks and any(_can_be_given(data, draw.start()) for draw in draws(data, imported)):
        return True
    if SEED in data and any(
        _can_be_given(data, call.start()) for call in matches(data, (b"random.",), _OF_RANDOM)
    ):
        return True
    return any(_is_for_tasks(data, made) for made in matches(data, *GENERATORS))


def _is_for_tasks(data: bytes, made: re.Match[bytes]) -> bool:
    """Whether a generator may be given to tasks, or go with their function."""
    if is_passed_on(data, made.start()):
        return True
    name = given_to(data, made.start())
    names = dict.fromkeys(filter(None, (name, *kept_by(data, made.start()))))
    if not names and not any(word in data for word in ASKED):
        return False
    near = around(data, made.start())
    handed = [it for called in (HANDED_OUT, REMOTE, _PROCESS) for it in calls(near, called)]
    if not name and any(made.group() in it and any(word in it for word in ASKED) for it in handed):
        return True
    said = words_of(b" ".join(handed))
    if any(it in said or any(map(said.__contains__, holders(near, it, said))) for it in names):
        return True
    # A global may go along with a function.
    return (
        bool(name) and near is data and any(_can_be_given(data, it) for it in uses_of(data, name))
    )


def gives_on(data: bytes, *, anyhow: bool) -> bool:
    """Whether a generator is made, and given on at the left margin, or `anyhow`."""
    made = matches(data, _MADE, GENERATORS[1])
    return any(anyhow or is_given_on_at_margin(data, it.start()) for it in made)


def passes_on(data: bytes) -> bool:
    """Whether what is made, or given back, is a generator, or has one."""
    return any(is_passed_on(data, it.start()) for it in matches(data, *GENERATORS))


def draws(data: bytes, imported: Set[bytes]) -> Iterator[re.Match[bytes]]:
    """Where something is drawn from NumPy's global generator."""
    yield from matches(data, _DRAWS, _RANDOM)
    if not imported.isdisjoint(_OF_NUMPY):
        yield from matches(data, *_VARIATES)


def _can_be_given(data: bytes, place: int) -> bool:
    """Whether what stands at `place` is in a function that the file mentions elsewhere."""
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
