"""Conditions that need another argument or option than the default."""

from __future__ import annotations

from collections.abc import Hashable

from gradguard_lint.domain.conditions import Conditions
from gradguard_lint.domain.questions import Key, some_value, subject_of
from gradguard_lint.domain.values import Unknown, Value
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.truth import names_gpu

CPU = ("cpu", "cpu:0")

_HANDED = ("given", "sent")
"""Key prefixes of unknown arguments of calls; nothing shows that they are None."""


def needs_nondefault_option(m: Machine, when: Conditions) -> bool:
    """Whether `when` needs an argument that no call here passes, None in place of an argument, or
    an option that names a GPU against its default."""
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
    """Whether a device must be other than the CPU without evidence: its default is the CPU, is
    ruled out as well, or is unknown."""
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
    """Whether the question concerns the value of a program option and not a GPU: the user chooses
    that."""
    of_option = len(key) > 2 and isinstance(key[1], tuple) and key[1][:1] == ("option",)
    asked = key[-1] if isinstance(key[-1], tuple) else key[-1:]
    return of_option and not any(isinstance(it, str) and names_gpu(it) for it in asked)


def gpu_by_name_only(m: Machine) -> bool:
    """Whether this path is implausible only because an external value without a known default has
    to name a GPU."""
    return not needs_nondefault_option(
        m, frozenset(it for it in m.assumed.facts if not _is_named(m, *it))
    )


def _is_named(m: Machine, key: Key, truth: object) -> bool:
    if not isinstance(key, tuple) or len(key) != 3 or key[0] != "eq":
        return False
    subject = key[1]
    known = (
        subject in m.facts.defaults or not isinstance(subject, tuple) or subject[0] == "argument"
    )
    named = isinstance(key[2], str) and names_gpu(key[2]) if truth else key[2] in CPU
    return not known and named


def path_needs_nondefault_option(m: Machine) -> bool:
    """Whether this path needs such an argument."""
    return needs_nondefault_option(m, m.assumed.facts)


def off_by_default(m: Machine, switch: Value) -> Value:
    """`switch` with False as its default: ``.get("x", False)``."""
    only = switch.only
    if isinstance(only, Unknown) and only.key is not None:
        m.facts.defaults.setdefault(only.key, (False,))
    return switch


def _defaults(m: Machine, key: Key, asked: tuple[Hashable, ...]) -> tuple[Hashable, ...]:
    """The defaults of `key`; if unknown, all that is `asked` for except GPUs."""
    known = m.facts.defaults.get(key)
    if known is not None:
        return known
    return tuple(it for it in asked if not (isinstance(it, str) and names_gpu(it)))
