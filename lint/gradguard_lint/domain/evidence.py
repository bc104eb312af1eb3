"""Evidence: what the use of an unknown thing proves about it.

``loss.backward()`` raises where nothing in `loss` has a graph, ``SGD(net.parameters())`` where
`net` has no parameters: where the program goes on, `loss` has a graph, and `net` is a module. That
holds for the lines before, too, on the ways on which it is used so.
"""

from __future__ import annotations

from gradguard_lint.domain.conditions import NONE, Conditions, any_of
from gradguard_lint.domain.questions import Key
from gradguard_lint.domain.values import Unknown

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from typing import Literal

    Kind = Literal[
        "graph",  # a torch tensor with a graph
        "keras",  # a model or layer of Keras
        "leaf",  # a torch tensor that requires grad, and is a leaf or has a graph
        "module",  # a torch module with parameters
        "optimizer",  # an optimizer of torch
        "tensor",  # a torch tensor
        "variable",  # a tensor that a TensorFlow tape watches
    ]

_STABLE = frozenset({"argument", "attr", "call", "item", "made"})
"""How the keys begin of what is the same in another run of the program."""


class Evidence:
    """What is proved of unknown things, by what they are known by.

    Attributes:
        is_late: whether something was proved of what had been handed on as unknown.
        is_open: whether anything was done of which the effect hangs on what is not known.
        sources: for the result of an unknown call, the unknown things that its graph may be of.
    """

    def __init__(self) -> None:
        self._proved: dict[Key, dict[Kind, Conditions]] = {}
        self.is_late = self.is_open = False
        self.sources: dict[Key, frozenset[Key]] = {}

    def prove(self, subject: Key, kind: Kind, when: Conditions = NONE) -> None:
        """Note that `subject` is of that `kind`, on the ways on which `when` holds."""
        known = self._proved.setdefault(subject, {})
        old = known.get(kind)
        if old is not None and old <= when:
            return
        known[kind] = when if old is None else any_of((old, when))
        self.is_late = self.is_late or known[kind] != old

    def of(self, subject: Key) -> dict[Kind, Conditions]:
        """What is proved of `subject`: each kind that it is, with the conditions."""
        return self._proved.get(subject, {})

    def is_proved(self, subject: Key, kind: Kind) -> bool:
        """Whether `subject` is of that `kind`, on some way."""
        return kind in self.of(subject)

    def lasting(self) -> Evidence:
        """What is proved of things that are known by the same in another run of the program."""
        kept = Evidence()
        kept._proved = {it: dict(kinds) for it, kinds in self._proved.items() if _is_stable(it)}
        return kept


def owner_of(atom: Unknown) -> Key:
    """What evidence about the thing is kept under of which `atom` is an attribute."""
    subject = atom.subject
    if not isinstance(subject, tuple) or subject[0] != "attr":
        return None
    owner: Key = subject[1]
    return None if isinstance(owner, tuple) and owner[0] == "node" else owner


def _is_stable(key: Key) -> bool:
    while isinstance(key, tuple) and key and key[0] in _STABLE:
        if key[0] in ("argument", "made"):
            return True
        key = key[1]
    return False
