"""Evidence: what the use of an unknown object proves about it.

``loss.backward()`` raises where nothing in `loss` has a graph, ``SGD(net.parameters())`` where
`net` has no parameters: if the program continues, `loss` has a graph and `net` is a module. That
holds for earlier lines as well, on the same paths.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gradguard_lint.domain.conditions import NONE, Conditions, any_of
from gradguard_lint.domain.questions import Key
from gradguard_lint.domain.values import Unknown, Value

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from typing import Literal

    Kind = Literal[
        "called",  # it is called
        "clears",  # it has the method `zero_grad`
        "has-state",  # it has the method `state_dict`
        "is-given-parameters",  # a call made it of parameters
        "graph",  # a torch tensor with a graph
        "keras",  # a model or layer of Keras
        "leaf",  # a torch tensor that requires grad, and is a leaf or has a graph
        "module",  # a torch module with parameters
        "optimizer",  # an optimizer of torch
        "statistics",  # a torch module that keeps running statistics
        "steps",  # it has the method `step`
        "variable",  # a tensor that a TensorFlow tape watches
    ]

MADE = "made"
"""First element of identities of expression results: followed by the expression, the calls that
lead there, and the worker's task."""

CLASS = "class"
"""First element of keys of project classes that extend an unknown class."""

_STABLE = frozenset({"argument", CLASS, MADE})
"""First elements of keys that are stable across runs of the program."""

_TOGETHER: tuple[tuple[frozenset[Kind], Kind], ...] = (
    (frozenset({"clears", "steps"}), "optimizer"),
    (frozenset({"is-given-parameters", "steps"}), "optimizer"),
    (frozenset({"called", "clears"}), "module"),  # optimizers cannot be called
    (frozenset({"called", "has-state"}), "module"),
)
"""Pairs of partial evidence, and the kind that each pair proves."""

_PARTIAL = frozenset[str]().union(*(parts for parts, _ in _TOGETHER))
"""Kinds of evidence that prove nothing alone."""


class Evidence:
    """Facts proved about unknown values, by their keys.

    Attributes:
        proved: the kinds of each value, each with its conditions.
        is_late: whether something was proved about a value already passed on as unknown.
        is_open: whether an effect depended on an unknown value.
        with_graph: keys of values that have a graph, or an item or attribute with one.
        subjects: the evidence key of each `Thing` that replaces a proved value, by its identity.
        operands: the function (None for operators) and the arguments of each unknown result.
    """

    def __init__(self) -> None:
        self.proved: dict[Key, dict[Kind, Conditions]] = {}
        self._partial: dict[Key, dict[Kind, Conditions]] = {}
        self.is_late = self.is_open = False
        self.with_graph: set[Key] = set()
        self.subjects: dict[int, Key] = {}
        self.operands: dict[Key, tuple[Value | None, Sequence[Value]]] = {}

    def prove(self, subject: Key, kind: Kind, when: Conditions = NONE) -> None:
        """Record that `subject` is of that `kind` if `when` holds."""
        of_kind = self._partial if kind in _PARTIAL else self.proved
        known = of_kind.setdefault(subject, {})
        old = known.get(kind)
        if old is not None and old <= when:
            return
        known[kind] = when if old is None else any_of((old, when))
        if of_kind is self.proved:
            self.is_late = self.is_late or known[kind] != old
            if kind == "graph":
                self.with_graph.update(with_owners(subject))
            return
        for parts, whole in _TOGETHER:
            if kind in parts and parts <= known.keys():
                self.prove(subject, whole, NONE.union(*(known[part] for part in parts)))

    def of(self, subject: Key) -> tuple[Kind, Conditions] | None:
        """The best supported kind of `subject`, with its conditions."""
        kinds = self.proved.get(subject, {}).items()
        return min(kinds, key=lambda it: (len(it[1]), it[0] == "module"), default=None)

    def is_proved(self, subject: Key, kind: Kind) -> bool:
        """Whether `subject` is of that `kind` on some path."""
        return kind in self.proved.get(subject, ())

    def lasting(self) -> Evidence:
        """The evidence whose keys are stable across runs of the program."""
        kept = Evidence()
        kept.proved = {it: dict(kinds) for it, kinds in self.proved.items() if _is_stable(it)}
        kept.with_graph = set(filter(_is_stable, self.with_graph))
        return kept


def owner_of(atom: Unknown) -> Key:
    """The evidence key of the object that `atom` is an attribute of; None if there is none."""
    subject = atom.subject
    if not isinstance(subject, tuple) or subject[0] != "attr":
        return None
    owner: Key = subject[1]
    return None if isinstance(owner, tuple) and owner[0] == "node" else owner


def with_owners(key: Key) -> Iterator[Key]:
    """`key`, and the keys of the objects that it is an attribute or item of."""
    yield key
    while isinstance(key, tuple) and key and key[0] in ("attr", "item"):
        key = key[1]
        yield key


def is_of_a_task(subject: Key) -> bool:
    """Whether a worker's task created the object with the key `subject`."""
    *_, first = with_owners(subject)
    return isinstance(first, tuple) and first[0] == MADE and bool(first[3])


def _is_stable(key: Key) -> bool:
    while isinstance(key, tuple) and key and key[0] in ("attr", "call", "item"):
        key = key[1]
    return isinstance(key, tuple) and bool(key) and key[0] in _STABLE
