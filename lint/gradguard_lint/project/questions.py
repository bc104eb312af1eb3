"""What a function of a project's module may do, and the words of its footprint that show it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache

from gradguard_lint.engine.footprint import Footprint, asked, called, filling, keyword, renamed
from gradguard_lint.models.rows import (
    CALLED_BY_HOSTS,
    MATTERS,
    SHARED,
    TELLING,
    VARIABLES,
    libraries,
    registry,
)
from gradguard_lint.project import marks
from pytest_gradguard.records import record

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from gradguard_lint.engine.ports import What


@record
class Question:
    """One of the questions, and how far it is followed.

    Attributes:
        shows: the words of a footprint that show it.
        has: whether what another package has shows it, by the package's name and its own.
        through: how many modules that do not show it themselves are followed on one way to it.
        over: over how many further modules what a name gives is followed at all.
        tables: whether it is followed through variables of modules: a table of functions, which is
            asked for one by its name, would lead to workers that most programs never start.
    """

    shows: Callable[[Footprint], set[str]]
    has: Callable[[str, str], bool] = lambda module, name: False
    through: int = 1
    over: int = 3
    tables: bool = True


def _any_form(words: Collection[str]) -> set[str]:
    """What is mentioned where one of `words` is."""
    return {form for word in words for form in (word, asked(word), called(word), keyword(word))}


def _of(words: Collection[str]) -> Callable[[Footprint], set[str]]:
    """What gives those of `words` that a footprint mentions."""
    wanted = frozenset(words)
    return lambda seen: seen.mentioned & wanted


def _starting(names: frozenset[str]) -> Question:
    """Whether something is called that starts workers, by one of these `names` or by a keyword; or
    a class of that name is mentioned: as an attribute, a function may be anyone's."""
    by_keyword = [word for library in libraries() for word in library.starts_by]
    words = {*map(called, (*names, *by_keyword)), *map(keyword, by_keyword)}
    words |= {asked(name) for name in names if name[:1].isupper()}

    def shows(seen: Footprint) -> set[str]:
        others = map(called, renamed(seen, names))
        return (seen.mentioned & words).union(seen.mentioned.intersection(others))

    return Question(shows, lambda module, name: name in names, through=2, tables=False)


def _loads(seen: Footprint) -> set[str]:
    """Loaders, where the module says how many workers they have, or samples for several
    processes."""
    chosen = _any_form(("num_workers", "DistributedSampler"))
    names = [name.decode() for name in marks.LOADERS]
    loaders = _any_form(renamed(seen, names))
    return set() if seen.mentioned.isdisjoint(chosen) else loaders & seen.mentioned


def _together(seen: Footprint) -> set[str]:
    """Calls of what processes do that train together, and of variants with longer names."""
    names = tuple(renamed(seen, marks.RANKED))
    return {it for it in seen.mentioned if it.endswith("()") and it.startswith(names)}


def _changes(words: Collection[str]) -> set[str]:
    """Those of `words` that change a thing that threads share, or a mode that they do not have."""
    return {
        word
        for word in words
        if word.endswith(_TELLING)
        or word in _SHARED
        or (word.endswith("_()") and word[-4:-3].isalnum())
    }


_TELLING = tuple(map(called, TELLING))
_SHARED = frozenset(map(asked, SHARED))


def _mattering() -> Question:
    """Whether something is mentioned with which workers may have a pitfall."""
    names = (registry().words.matters - MATTERS) | VARIABLES
    names |= {top.decode() for top in marks.FRAMEWORKS}
    environment = {filling("environ"), *_any_form(("putenv", "setenv"))}
    words = {*map(asked, MATTERS), *_any_form(names), *environment}

    def has(module: str, name: str) -> bool:
        first, *parts = f"{module}.{name}".split(".")
        return not {"random", *names}.isdisjoint((first, *parts)) or not MATTERS.isdisjoint(parts)

    return Question(_of(words), has, through=5, over=6)


@cache
def questions(starters: frozenset[str]) -> dict[What, Question]:
    """All questions, by what is asked; `starters` are further names of what starts workers."""
    words = registry().words
    fits = frozenset[str]().union(*(library.beside for library in libraries()))
    trains = _any_form({*words.trains, *CALLED_BY_HOSTS})
    return {
        "starts": _starting(marks.STARTING | starters),
        "starts-processes": _starting(marks.STARTING_PROCESSES | starters),
        "loads": Question(_loads),
        "remembers": Question(_of(_any_form(("Memory",)))),
        "fits": Question(_of(set(map(asked, fits)))),
        "trains": Question(lambda seen: trains & seen.named),
        "trains-together": Question(_together, marks.is_of_a_group),
        "matters": _mattering(),
        "changes": Question(
            lambda seen: _changes(seen.mentioned),
            lambda module, name: bool(_changes((called(name),))),
            through=2,
        ),
    }
