"""What asks for another argument or option than the one that is there by default."""

from __future__ import annotations

from collections.abc import Hashable

from gradguard_lint.domain.conditions import Conditions
from gradguard_lint.domain.questions import Key, some_value, subject_of
from gradguard_lint.domain.values import Unknown, Value
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.truth import names_gpu

CPU = ("cpu", "cpu:0")
"""The names of the CPU as a device."""

_HANDED = ("given", "sent")
"""How the keys of what a call gives begin of which nothing is known: that it is None, nothing
shows."""


def far_fetched(m: Machine, when: Conditions) -> bool:
    """Whether `when` asks for an argument that nobody here gives, or for None in place of one, or
    of an option of the program that it names a GPU, against the default."""
    for key, truth in when:
        if _is_not_the_cpu(m, key, truth, when):
            return True
        if not truth or not isinstance(key, tuple) or not key or _chooses(key):
            continue
        if key[0] == "eq":
            if isinstance(key[2], str) and key[2] not in _defaults(m, key[1], key[2:]):
                return True
            if key[2] is None and isinstance(key[1], tuple) and key[1][0] in _HANDED:
                return True
        elif key[0] == "contains" or (key[0] == "cmp" and key[2] == "startswith"):
            texts = [it for it in m.facts.defaults.get(key[1], ()) if isinstance(it, str)]
            if not any(str(key[-1]) in text for text in texts):
                return True
        elif key[0] == "among":
            if not set(_defaults(m, key[1], key[2])) & set(key[2]):
                return True
        elif key[0] == "argument" and key in m.facts.defaults and not any(m.facts.defaults[key]):
            return True
    return False


def _is_not_the_cpu(m: Machine, key: Key, truth: object, when: Conditions) -> bool:
    """Whether a device is asked to be something other than the CPU, which nothing here shows: its
    default is the CPU, or another that is ruled out as well, or none is known."""
    subject = subject_of(key)
    excluded = not truth and isinstance(key, tuple) and subject is not key and key[2] in CPU
    defaults = m.facts.defaults.get(subject)
    if not defaults:
        return excluded
    if not excluded and not all(it in CPU for it in defaults):
        return False
    asked = [it for it in when if subject_of(it[0]) == subject]
    return not any(some_value(subject, ((("eq", subject, it), True), *asked)) for it in defaults)


def _chooses(key: tuple[Hashable, ...]) -> bool:
    """Whether it is asked what an option of the program says, and not of a GPU: whoever runs the
    program chooses that."""
    of_option = len(key) > 2 and isinstance(key[1], tuple) and key[1][:1] == ("option",)
    asked = key[-1] if isinstance(key[-1], tuple) else key[-1:]
    return of_option and not any(isinstance(it, str) and names_gpu(it) for it in asked)


def only_named(m: Machine) -> bool:
    """Whether this place is far-fetched for that alone that something from outside, of which no
    default is known, has to name a GPU."""
    return not far_fetched(m, frozenset(it for it in m.assumed.facts if not _is_named(m, *it)))


def _is_named(m: Machine, key: Key, truth: object) -> bool:
    if not isinstance(key, tuple) or len(key) != 3 or key[0] != "eq":
        return False
    subject = key[1]
    known = (
        subject in m.facts.defaults or not isinstance(subject, tuple) or subject[0] == "argument"
    )
    named = isinstance(key[2], str) and names_gpu(key[2]) if truth else key[2] in CPU
    return not known and named


def far_fetched_here(m: Machine) -> bool:
    """Whether this place is only reached with such an argument."""
    return far_fetched(m, m.assumed.facts)


def off_by_default(m: Machine, switch: Value) -> Value:
    """`switch`, which is False where nobody sets it: ``.get("x", False)``."""
    only = switch.only
    if isinstance(only, Unknown) and only.key is not None:
        m.facts.defaults.setdefault(only.key, (False,))
    return switch


def _defaults(m: Machine, key: Key, asked: tuple[Hashable, ...]) -> tuple[Hashable, ...]:
    """The defaults of `key`; where there are none, all that is `asked` for but a GPU."""
    known = m.facts.defaults.get(key)
    if known is not None:
        return known
    return tuple(it for it in asked if not (isinstance(it, str) and names_gpu(it)))
