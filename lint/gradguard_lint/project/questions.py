"""What a function of a project module may do, and the footprint words that show it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache

from gradguard_lint.engine.footprint import Footprint, asked, called, filling, keyword, renamed
from gradguard_lint.models.rows import (
    CALLED_BY_HOSTS,
    MATTERS,
    MODE_SUFFIXES,
    SHARED,
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
    """A question about modules, and how far it is followed.

    Attributes:
        shows: the words in a footprint that answer it.
        has: whether a name of an external package answers it.
        through: the most modules on a path that don't answer it themselves.
        over: the most further modules on a path.
        tables: whether module variables are followed: a table of functions would lead to workers
            that most programs never start.
    """

    shows: Callable[[Footprint], set[str]]
    has: Callable[[str, str], bool] = lambda module, name: False
    through: int = 1
    over: int = 3
    tables: bool = True


def _any_form(words: Collection[str]) -> set[str]:
    """All forms of mention of `words`."""
    return {form for word in words for form in (word, asked(word), called(word), keyword(word))}


def _of(words: Collection[str]) -> Callable[[Footprint], set[str]]:
    """A function that returns those of `words` that a footprint mentions."""
    wanted = frozenset(words)
    return lambda seen: seen.mentioned & wanted


def _starting(names: frozenset[str]) -> Question:
    """Whether workers are started, by a call of one of `names` or a keyword; also by an attribute
    of that name, if it is a class."""
    by_keyword = [word for library in libraries() for word in library.starts_by]
    words = {*map(called, (*names, *by_keyword)), *map(keyword, by_keyword)}
    words |= {asked(name) for name in names if name[:1].isupper()}

    def shows(seen: Footprint) -> set[str]:
        others = map(called, renamed(seen, names))
        return (seen.mentioned & words).union(seen.mentioned.intersection(others))

    return Question(shows, lambda module, name: name in names, through=2, tables=False)


def _loads(seen: Footprint) -> set[str]:
    """Loaders, if the module sets their number of workers, or has a distributed sampler."""
    chosen = _any_form(("num_workers", "DistributedSampler"))
    names = [name.decode() for name in marks.LOADERS]
    loaders = _any_form(renamed(seen, names))
    return set() if seen.mentioned.isdisjoint(chosen) else loaders & seen.mentioned


def _together(seen: Footprint) -> set[str]:
    """Calls of distributed training, also with longer names."""
    names = tuple(renamed(seen, marks.RANKED))
    return {it for it in seen.mentioned if it.endswith("()") and it.startswith(names)}


def _changes(words: Collection[str]) -> set[str]:
    """The `words` that change shared state of threads, or a mode that they don't inherit."""
    return {
        word
        for word in words
        if word.endswith(_MODE_ENDINGS)
        or word in _SHARED
        or (word.endswith("_()") and word[-4:-3].isalnum())
    }


_MODE_ENDINGS = tuple(map(called, MODE_SUFFIXES))
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
    """All questions; `starters` are further names that start workers."""
    words = registry().words
    fits = frozenset[str]().union(*(library.import_words for library in libraries()))
    trains = _any_form({*words.trains, *CALLED_BY_HOSTS})
    return {
        "starts": _starting(marks.STARTING | starters),
        "starts-processes": _starting(marks.STARTING_PROCESSES | starters),
        "loads": Question(_loads),
        "remembers": Question(_of(_any_form(("Memory",)))),
        "fits": Question(_of(set(map(asked, fits)))),
        "trains": Question(lambda seen: trains & seen.named),
        "trains-together": Question(_together, marks.is_for_ranks),
        "matters": _mattering(),
        "changes": Question(
            lambda seen: _changes(seen.mentioned),
            lambda module, name: bool(_changes((called(name),))),
            through=2,
        ),
    }
