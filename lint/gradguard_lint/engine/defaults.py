"""What asks for another argument or option than the one that is there by default."""

from __future__ import annotations

from collections.abc import Hashable

from gradguard_lint.domain.conditions import Conditions
from gradguard_lint.domain.questions import Key
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.truth import names_gpu


def far_fetched(m: Machine, when: Conditions) -> bool:
    """Whether `when` asks for an argument that nobody here gives, or names a GPU in one, against
    its default."""
    for key, truth in when:
        if not truth or not isinstance(key, tuple) or not key:
            continue
        if key[0] == "eq":
            if _is_gpu(key[2]) and key[2] not in _defaults(m, key[1], key[2:]):
                return True
        elif key[0] == "contains" or (key[0] == "cmp" and key[2] == "startswith"):
            if not _is_gpu(key[-1]):
                continue
            texts = [it for it in m.defaults.get(key[1], ()) if isinstance(it, str)]
            if not any(str(key[-1]) in text for text in texts):
                return True
        elif key[0] == "among":
            if any(map(_is_gpu, key[2])) and not set(_defaults(m, key[1], key[2])) & set(key[2]):
                return True
        elif key[0] == "argument" and key in m.defaults and not any(m.defaults[key]):
            return True
    return False


def far_fetched_here(m: Machine) -> bool:
    """Whether this place is only reached with such an argument."""
    return far_fetched(m, m.assumed.facts)


def _is_gpu(asked: Hashable) -> bool:
    return isinstance(asked, str) and names_gpu(asked)


def _defaults(m: Machine, key: Key, asked: tuple[Hashable, ...]) -> tuple[Hashable, ...]:
    """The defaults of `key`; where there are none, all that is `asked` for but a GPU."""
    known = m.defaults.get(key)
    if known is not None:
        return known
    return tuple(it for it in asked if not (isinstance(it, str) and names_gpu(it)))
