"""Variables, attributes and containers: reads and writes under the assumptions."""

from __future__ import annotations

from collections.abc import Iterator

from gradguard_lint.domain.conditions import Assumed, Conditions, compatible
from gradguard_lint.domain.effects import Program
from gradguard_lint.domain.questions import Key, is_question
from gradguard_lint.domain.state import State, Store
from gradguard_lint.domain.values import (
    UNKNOWN,
    Atom,
    Choice,
    Class,
    Const,
    Frame,
    Imported,
    Instance,
    Items,
    Site,
    Table,
    Thing,
    Unknown,
    Value,
    joined,
    of,
)
from pytest_gradguard.records import replace

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from gradguard_lint.engine.run_parts import Facts, Place

HEAP = "<holds>"
"""Store key: the content of a container."""

_PICKLING = ("__getstate__", "__reduce__", "__reduce_ex__", "__setstate__")

PLACE = "<place>"
"""Store key: where a model was moved to the GPU."""

_MAY_CHANGE = frozenset({Items, Table, Thing})
"""Atoms that may have changed since they were stored."""


class Variables:
    """The machine's access to stored values."""

    program: Program
    state: State
    place: Place
    facts: Facts

    @property
    def store(self) -> Store:
        return self.state.store

    @property
    def assumed(self) -> Assumed:
        return self.state.assumed

    def resolve(self, ident: int, name: str, value: Value) -> Value:
        """The value of the imported `name`, which is `value` so far."""
        raise NotImplementedError

    # -- names ----------------------------------------------------------------------------------

    def write(self, frame: Frame, name: str, value: Value) -> None:
        self.store[frame.outer.get(name, frame).ident, name] = value

    def stored(self, ident: int, name: str) -> Value | None:
        """The stored value, unfiltered."""
        value = self.state.store.get((ident, name))
        return value if value is not None else self.facts.loaded.get((ident, name))

    def read(self, ident: int, name: str) -> Value | None:
        """The value under the current assumptions."""
        value = self.stored(ident, name)
        if value is None:
            return None
        if isinstance(value.choices[0].atom, Imported):
            value = self.resolve(ident, name, value)
        return self.filtered(value)

    def receiver(self, frame: Frame) -> Atom | None:
        """The object whose method runs in `frame`; None if there is none, or it is unknown."""
        function = frame.function
        if function is None or function.owner is None or not function.node.args.args:
            return None
        found = self.lookup(frame, function.node.args.args[0].arg)
        return found[0].only if found is not None else None

    def lookup(self, frame: Frame, name: str) -> tuple[Value, Frame] | None:
        """The value of `name` in `frame` or an enclosing scope, and the frame that holds it."""
        store = self.state.store
        own, shared = store._own, store._shared
        scope: Frame | None = frame.outer.get(name, frame)
        first = True
        while scope is not None:
            if first or not scope.is_class:
                place = (scope.ident, name)  # the hottest loop of the engine
                value = own[place] if place in own else shared.get(place)
                if value is None:
                    value = self.facts.loaded.get(place)
                if value is not None:
                    if isinstance(value.choices[0].atom, Imported):
                        value = self.resolve(scope.ident, name, value)
                    return self.filtered(value), scope
            first = False
            scope = scope.parent
        return None

    def set_field(self, ident: int, name: str, value: Value) -> None:
        """Set an attribute of an object."""
        self.facts.attribute_names.setdefault(ident, {})[name] = None
        self.store[ident, name] = value

    def fields(self, ident: int) -> Iterator[tuple[str, Value]]:
        """The attributes of an object that have values."""
        for name in self.facts.attribute_names.get(ident, ()):
            value = self.store.get((ident, name))
            if value is not None:
                yield name, value

    def find_in_class(self, cls: Class, name: str) -> Value | None:
        """`name` in `cls` or its project bases."""
        return self.find_in((cls, *cls.above), name)

    def find_in(self, classes: tuple[Class, ...], name: str) -> Value | None:
        """`name` in the first of `classes` that has it."""
        for cls in classes:
            value = self.stored(cls.body.ident, name)
            if value is not None:
                return self.filtered(value)
        return None

    def pickles_itself(self, atom: Instance) -> bool:
        """Whether the class of `atom` customises pickling."""
        return any(self.find_in_class(atom.cls, name) is not None for name in _PICKLING)

    # -- containers -----------------------------------------------------------------------------

    def current(self, atom: Atom) -> Value | None:
        """The current content of the container or model `atom`; None if it is unchanged."""
        if isinstance(atom, (Items, Table)):
            return self.store.get((atom.ident, HEAP)) if atom.ident else None
        if isinstance(atom, Thing) and atom.kind == "model" and atom.ident > 0:
            moved = self.store.get((atom.ident, "<gpu>"))
            if moved is not None:
                return Value(
                    tuple(
                        Choice(
                            replace(atom, gpu=isinstance(c.atom, Const) and c.atom.value is True),
                            c.when,
                        )
                        for c in moved.choices
                    )
                )
        return None

    def moved(self, ident: int, site: Site) -> None:
        """Record where a model or estimator was moved to the GPU."""
        self.store[ident, PLACE] = of(Thing("place", "", site=site))
        self.program.moved.setdefault(ident, set()).add(site.node)

    def place_of(self, ident: int) -> Site | None:
        """Where a model was moved to the GPU on this path."""
        noted = self.store.get((ident, PLACE))
        return next((it.site for it in noted.of(Thing) if it.site), None) if noted else None

    # -- assumptions ----------------------------------------------------------------------------

    def conflicts(self, when: Conditions) -> bool:
        """Whether `when` contradicts the assumptions."""
        return not compatible(when, self.assumed)

    def filtered(self, value: Value) -> Value:
        """The current `value`, without alternatives that the assumptions exclude."""
        assumed = self.state.assumed
        choices = value.choices
        if len(choices) == 1 and not choices[0].when:
            atom = choices[0].atom
            if type(atom) is Unknown:
                known = self._known(atom.key) if assumed and atom.key is not None else None
                return value if known is None else of(known)
            if type(atom) not in _MAY_CHANGE or self.current(atom) is None:
                return value
        kept: list[Choice] = []
        changed = False
        for choice in choices:
            atom, when = choice.atom, choice.when
            # A single condition without assumptions always holds.
            may_conflict = assumed or len(when) > 1
            if when and may_conflict and not compatible(when, assumed):
                changed = True
                continue
            now = self.current(atom) if type(atom) in _MAY_CHANGE else None
            if now is not None and (
                len(now.choices) > 1 or now.choices[0].when or now.choices[0].atom != atom
            ):
                changed = True
                alive = [item for item in now.choices if compatible(item.when, assumed)]
                kept.extend([Choice(item.atom, item.when | when) for item in alive] or [choice])
                continue
            if type(atom) is Unknown and assumed and atom.key is not None:
                known = self._known(atom.key)
                if known is not None:
                    choice = Choice(known, when)
                    changed = True
            kept.append(choice)
        if not changed:
            return value
        return joined(kept) if kept else UNKNOWN

    def _known(self, key: Key) -> Const | None:
        """The assumed value of an unknown."""
        assumed = self.state.assumed
        place = ("value", key)
        if place in assumed:
            fixed = assumed[place]
            return Const(fixed, type(fixed).__name__)
        if is_question(key):
            truth = assumed.get(key)
            if isinstance(truth, bool):
                return Const(truth, "bool")
        return None
