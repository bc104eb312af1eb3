"""The machine: the state of a run, its record, and the ways into the engine's parts.

The parts (expressions, calls, statements ...) are functions on the machine, brought together in
`interpreter`; what libraries do comes in as `Models`. Neither is imported here, so that nothing
imports in a circle.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager

from gradguard_lint.domain.conditions import NONE, Assumed, Conditions, compatible
from gradguard_lint.domain.effects import (
    ORDERED,
    Effect,
    Modes,
    ParallelCall,
    Program,
    Step,
    TaskRun,
    Told,
)
from gradguard_lint.domain.options import Options
from gradguard_lint.domain.questions import Key, is_question
from gradguard_lint.domain.shapes import idents
from gradguard_lint.domain.starts import PROCESS
from gradguard_lint.domain.state import (
    Error,
    Moment,
    Outcomes,
    Past,
    Raised,
    State,
    Store,
    join_states,
)
from gradguard_lint.domain.values import (
    NOTHING,
    UNKNOWN,
    Atom,
    Choice,
    Class,
    Const,
    Frame,
    Function,
    Generator,
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
from gradguard_lint.engine.budget import DEPTH, TOO_DEEP, Budget, OutOfSteps
from gradguard_lint.engine.ports import Args, Models, Project
from pytest_gradguard.records import fields, replace

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from typing import Any

    from gradguard_lint.domain.effects import Kind
    from gradguard_lint.reading.source import Module

HEAP = "<holds>"
"""The name under which a container's identity has what it holds."""

SIZE = "<length>"
"""The name under which a sequence's identity has how long it is, where that is known of it."""

ARRIVED = "<arrived>"
"""The name under which it is kept that an object has the attributes here that were pickled."""


OVER = "<over>"
"""The name under which is kept whether what last runs under an identity has ended."""

_CHANGES: frozenset[Kind] = frozenset({"backward", "in-place", "step", "zero-grad"})
"""Effects that are asked what runs beside them."""

TOLD_APART: frozenset[Kind] = frozenset(
    {"backward", "draw", "handed-on", "model-change", "set-visible", "step"}
)
"""Effects of one place that are several where they are of other things, as in turns of a loop."""


@fields
class Parts:
    """The engine's functions that the machine's methods lead to."""

    expressions: Mapping[type[ast.AST], Callable[[Machine, Frame, Any], Value]]
    statements: Mapping[type[ast.AST], Callable[[Machine, Frame, Any], None]]
    call: Callable[[Machine, Frame, ast.AST, Value, Args], Value]
    attribute: Callable[[Machine, Frame, ast.AST, Value, str], Value]
    bind: Callable[[Machine, Frame, ast.AST, Value, Atom], Value]
    assign: Callable[[Machine, Frame, ast.expr, Value], None]
    resolve: Callable[[Machine, int, str, Value], Value]
    iterated: Callable[[Machine, Frame, ast.AST, Value], Value]
    given_away: Callable[[Machine, Frame, ast.AST, Atom, Args], Args]
    generator_method: Callable[[Machine, Frame, ast.AST, Generator, str], Value]


class Machine:
    """One run of one program."""

    def __init__(
        self, project: Project, models: Models[Machine], options: Options, parts: Parts
    ) -> None:
        self.project = project
        self.models = models
        self.options = options
        self.parts = parts
        self.program = Program("")
        self.state = State()
        # where the run is
        self.worker: TaskRun | None = None
        self.chain: tuple[Step, ...] = ()
        self.stack: list[ast.AST] = []
        self.statement: ast.AST | None = None
        self.loops: list[Site] = []
        self.elements: list[tuple[Function | None, frozenset[Key]]] = []
        """The function around each of them, and what stands for its element: where that is known,
        it is one of the turns."""
        self.turns: list[int] = []
        """Which turn of each of the loops this is: no two have the same number."""
        self.loop_depth = 0
        self.around: dict[ast.AST, tuple[ast.expr, Value]] = {}
        """The contexts in which functions run that are decorated with them."""
        self.given_to_all: dict[int, Set[int]] = {}
        """What each turn of a loop makes its own object with, by the identity of that."""
        self.given_as: dict[tuple[int, str], Set[int]] = {}
        """The same of single attributes, where it is told what the object is given as them."""
        self.given_apart: dict[int, Set[Atom]] = {}
        """What may pick things, of what no other turn of a loop makes its object with."""
        self.turn = 0
        """Since when the innermost turn of a loop goes on, as `made` counts; 0: there is none."""
        self.made: dict[int, int] = {}
        """When each thing was made last, as the newest identity there was: its own, where it is
        made once."""
        self.taken: dict[int, int] = {}
        """The same of what turns of loops took of what they iterate: another each."""
        self.guarded_import = False
        self.raised: list[list[Raised]] = []
        """The states in which something was raised, for each ``try`` around."""
        self.last: dict[ast.stmt, State | None] = {}
        """The assignments that end a ``try`` body, and the state before they bind anything: what
        raises has bound nothing."""
        self.root = 0
        self.budget = Budget()
        # what outlives a way
        self.frames: dict[str, Frame] = {}
        self.stars: dict[int, list[str]] = {}
        """What each module imports all names of: of the project, and (negative) of others."""
        self.loaded: dict[tuple[int, str], Value] = {}
        """What modules held when they were imported: it outlives the branch that did so."""
        self.rebound: dict[tuple[int, str], set[str]] = {}
        """The globals of imported modules that this process binds anew, and by whose import: ""
        where none does."""
        self.defaults: dict[Key, tuple[Hashable, ...]] = {}
        """What options of the program, and arguments that nobody here gives, are by default."""
        self.mentioned: dict[str, set[str]] = {}
        """The names that modules read, where that is known."""
        self.names_of: dict[int, dict[str, None]] = {}
        """The attributes that were ever written to an object."""
        self.missed: set[tuple[int, str]] = set()
        """The attributes of objects of which the program asks whether they are there."""
        self.set_on_unknown: set[Hashable] = set()
        """The attributes and keys that were ever written to what is not known."""
        self.measured: set[tuple[int, str]] = set()
        """Where the state would have how long what was asked for its length is."""
        self.origins: dict[tuple[int, str], Site] = {}
        """Where each variable and attribute was last given its value."""
        self.reached: set[int] = set()
        """The functions that have been run."""
        self.reached_in: dict[tuple[str, int], tuple[int, int]] = {}
        """Those that the parent runs, by their module's path and their line, with the line of the
        root by which they were reached first; 0 is the module's own code."""
        self.root_line = 0
        self.reached_of: set[tuple[int, int]] = set()
        """Methods that have been run, each with the class of the object."""
        self.recorded: dict[tuple[Hashable, ...], Effect] = {}
        self.handed_out: list[ParallelCall] = []
        """All calls that are in the past of any way."""
        self.idents: dict[Hashable, int] = {}
        self.fresh = 0
        self.unknown_modules: set[Key] = set()
        """Unknown things that are torch modules, as their use shows."""
        self.left: dict[int, Outcomes] = {}
        """How the code of each frame that is being run is left."""
        self.plain: dict[ast.AST, bool] = {}
        """Expressions whose evaluation is known to change nothing, or not."""
        self.gone: set[int] = set()
        """The frames of calls that came to their end, and to whose variables nothing refers."""
        self.yielding: dict[ast.AST, bool] = {}
        """Functions whose calls make generators, or not."""
        self.classes: dict[ast.AST, ast.stmt] = {}
        """The classes that calls make, as a program would write them."""
        self.signals: dict[tuple[int, str, int], dict[tuple[str, ast.AST], frozenset[Effect]]] = {}
        """What threads have done by the time that they tell something, by what it is told by: what
        is told, and in which run."""
        self.field_nodes: dict[tuple[ast.AST, str], ast.expr] = {}
        """Where the fields of an object are made that a call makes: each at a place of its own."""
        self.givers: dict[int, Callable[[Value], None]] = {}
        """What is done with what a generator yields, by its frame, while it is iterated."""
        self.has_own_slots = False
        """Whether anything was gathered of which the own part may be put back."""
        self.rewritten: dict[ast.AST, tuple[ast.Subscript, ...]] = {}
        """Where each loop gives a container a new item for each that it has."""
        self.rewriting: set[ast.AST] = set()
        """The same places, of the loops that are being run."""
        self.carried_by: dict[ast.AST, frozenset[str]] = {}
        """The names that each loop takes from one turn to the next."""
        self.moments: list[Moment] = []
        """Each time that the workers of a pool came into being."""
        self.stops: dict[int, int] = {}
        """How often the generator of a context manager has come to a ``yield``, by its frame."""
        self.within: dict[tuple[int, ast.AST], tuple[list[Value], Modes]] = {}
        """What ``with`` statements have entered in such generators, by the frame of these, and
        what was in force before."""
        self.rests: dict[tuple[ast.AST, object, str | None], list[ast.stmt]] = {}
        """What is left of such a generator to run, by its ``yield`` and what is raised there."""
        self.asked_before: dict[int, dict[tuple[Hashable, ...], int]] = {}
        """What functions that keep what they gave were asked for, on any way."""
        self.making: tuple[tuple[Instance, ast.AST], ...] = ()
        """The objects whose ``__init__`` is being run, each with the expression that makes it."""
        self.importing = ""
        """The module whose own code is being run."""
        self.before_main: Past | None = None
        """What happened before the module's own ``if __name__ == "__main__"``."""
        self.last_task_state: State | None = None
        """How the last task left things in its worker."""
        self.last_modes = Modes()
        """What was in force at the end of the call that ended last."""
        self.last_returns: tuple[Module, str, list[tuple[Value, ast.AST]]] | None = None
        self.returned: dict[ast.AST, list[tuple[Value, ast.AST]]] = {}
        """What the functions behind decorators return, while a task runs in which they matter."""

    # -- the state ------------------------------------------------------------------------------

    @property
    def store(self) -> Store:
        return self.state.store

    @property
    def assumed(self) -> Assumed:
        return self.state.assumed

    @property
    def modes(self) -> Modes:
        return self.state.modes

    @modes.setter
    def modes(self, modes: Modes) -> None:
        self.state.modes = modes

    @property
    def dead(self) -> bool:
        return self.state.dead

    def die(self) -> None:
        """This way ends here."""
        self.state.dead = True

    def outcomes(self, frame: Frame) -> Outcomes:
        """How the code of `frame` is left."""
        found = self.left.get(frame.ident)
        if found is None:
            found = self.left[frame.ident] = Outcomes()
        return found

    def leave(self) -> State:
        """This way goes on elsewhere, with the state that is given back.

        Here it ends, in the same state: what handles an exception may come upon it.
        """
        state = self.state
        self.state = State(state.store, state.assumed, state.past, state.modes, dead=True)
        return state

    def leave_by(self, error: Error) -> None:
        """This way ends in an exception; None where it is not known which."""
        state = self.leave()
        if self.raised:
            self.raised[-1].append((error, state))

    def meet(self, states: Sequence[State]) -> None:
        """Go on with what holds where `states` meet; where none gets there, this way ends."""
        joined = join_states(states)
        if joined is None:
            self.state.dead = True
        else:
            self.state = joined

    # -- into the engine's parts ----------------------------------------------------------------

    def eval(self, frame: Frame, node: ast.AST | None) -> Value:
        """What `node` may be."""
        if node is None:
            return NOTHING
        budget = self.budget
        budget.left -= 1
        if budget.left < 0:
            self.run_out(frame)
        handler = self.parts.expressions.get(type(node))
        if handler is not None:
            return handler(self, frame, node)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.eval(frame, child)
        return UNKNOWN

    def block(self, frame: Frame, body: Sequence[ast.stmt]) -> None:
        """Execute statements, as far as they are reached."""
        budget = self.budget
        for statement in body:
            if self.state.dead:
                return
            self.statement = statement
            budget.left -= 1
            if budget.left < 0:
                self.run_out(frame)
            handler = self.parts.statements.get(type(statement))
            if handler is not None:
                handler(self, frame, statement)

    def call(self, frame: Frame, node: ast.AST, function: Value, args: Args) -> Value:
        """What calling `function` gives; its effects are recorded."""
        return self.parts.call(self, frame, node, function, args)

    def attribute(self, frame: Frame, node: ast.AST, receiver: Value, name: str) -> Value:
        """``receiver.name``."""
        return self.parts.attribute(self, frame, node, receiver, name)

    def bind(self, frame: Frame, node: ast.AST, value: Value, receiver: Atom) -> Value:
        """A class attribute seen through an object."""
        return self.parts.bind(self, frame, node, value, receiver)

    def iterated(self, frame: Frame, node: ast.AST, value: Value) -> Value:
        """`value`, with what iterating it gives in place of a generator."""
        if any(isinstance(choice.atom, Generator) for choice in value.choices):
            return self.parts.iterated(self, frame, node, value)
        return value

    def assign(self, frame: Frame, target: ast.expr, value: Value) -> None:
        """Bind `target` to `value`."""
        self.parts.assign(self, frame, target, value)

    # -- identities -----------------------------------------------------------------------------

    def new_ident(self) -> int:
        self.fresh += 1
        return self.fresh

    def ident_at(self, node: ast.AST, *more: Hashable) -> int:
        """An identity for what `node` makes here, the same each time it is run from here."""
        calls = tuple(id(step.site.node) for step in self.chain[-3:])
        newest = self.fresh
        ident = self.ident_of((id(node), calls, self.worker_ident, *more))
        if self.loop_depth or ident <= newest:
            self.new_ident()  # it may stand for several objects
        self.made[ident] = self.fresh
        return ident

    def ident_of(self, key: Key) -> int:
        """The identity of what `key` stands for."""
        ident = self.idents.get(key)
        if ident is None:
            ident = self.idents[key] = self.new_ident()
        return ident

    def is_deep_in(self, frame: Frame, function: Function) -> bool:
        """Whether so many calls are being run, or so many of `function`, that `frame` calls it no
        more.

        Recursion is no reason to call it unfinished: one more call would tell little.
        """
        if len(self.stack) >= DEPTH:
            self.leave_unfinished(function, TOO_DEEP)
            self.leave_unfinished(frame, TOO_DEEP)
            return True
        return self.stack.count(function.node) >= 2

    def gives_up_in(self, frame: Frame, function: Function | None = None) -> bool:
        """Whether the budget is used up; the function of `frame` is then recorded as unfinished,
        and `function`, which it calls, too."""
        if not self.budget.used_up:
            return False
        if self.stack or self.root == 1:  # otherwise nobody calls it but this analysis
            self.leave_unfinished(frame)
        if function is not None:
            self.leave_unfinished(function)
        return True

    def run_out(self, frame: Frame) -> None:
        """Leave the run from this root: it took too many steps."""
        self.leave_unfinished(frame)
        raise OutOfSteps

    def leave_unfinished(self, of: Frame | Function, reason: str = "") -> None:
        """Record that a function, or a module's own code, is not followed to its end."""
        function = of if isinstance(of, Function) else of.function
        name = None if function is None else function.qualified_name
        line = 1 if function is None else function.node.lineno
        self.budget.leave(of.module.path, line, name, reason)

    @property
    def worker_ident(self) -> int:
        return self.worker.ident if self.worker is not None else 0

    @property
    def in_process_worker(self) -> bool:
        return self.worker is not None and self.worker.call.kind == PROCESS

    @property
    def on_import(self) -> bool:
        """Whether whoever imports the module that is being run comes by here, too."""
        return self.before_main is None or self.importing != self.program.entry

    # -- the record -----------------------------------------------------------------------------

    def site(self, frame: Frame, node: ast.AST) -> Site:
        return Site(frame.module, node, frame.name, self.statement)

    def effect(
        self,
        frame: Frame,
        kind: Kind,
        node: ast.AST,
        what: str,
        *,
        framework: str = "",
        heavy: bool = False,
        always: bool = False,
        asks: bool = False,
        bare: bool = False,
        grown: bool = False,
        unknown: bool = False,
        target: Value = UNKNOWN,
        value: Value = UNKNOWN,
        values: tuple[Value, ...] = (),
        ident: int = 0,
        home: str = "",
        is_global: bool = False,
        place: Site | None = None,
        named: tuple[tuple[str, Value], ...] = (),
        origin: Step | None = None,
        settled: Set[object] = frozenset(),
        under: Conditions = NONE,
    ) -> None:
        """Record that `kind` happens at `node`, and on this way.

        `settled`: the calls before it of which it does not wait for anything. `under`: what has to
        hold besides.
        """
        if self.state.dead:
            return
        links = tuple(id(step.site.node) for step in self.chain)
        key: tuple[Hashable, ...] = (
            *(kind, id(node), what, framework),
            *(self.worker_ident, self.root, links),
        )
        if kind in TOLD_APART:
            key = (*key, target, value)
        effect = self.recorded.get(key)
        when = self.assumed.facts | under
        if effect is None:
            effect = Effect(
                kind,
                self.site(frame, node),
                what,
                self.worker,
                self.root,
                self.chain,
                self.modes,
                when,
                framework=framework,
                heavy=heavy,
                always=always,
                asks=asks,
                bare=bare,
                grown=grown,
                unknown=unknown,
                target=target,
                value=value,
                values=values,
                ident=ident,
                home=home,
                is_global=is_global,
                place=place,
                named=named,
                origin=origin,
                making=self.making,
                on_import=self.importing if self.worker is None and self.on_import else "",
            )
            self.recorded[key] = effect
            self.program.effects.append(effect)
            if self.worker is not None:
                self.worker.effects.append(effect)
        else:
            effect.when &= when
            effect.heavy = effect.heavy or heavy
            effect.always = effect.always and always
            effect.grown = effect.grown and grown
        past = self.state.past
        calls = [it for it in self.handed_out if it in past]
        effect.calls.update(it.ident for it in calls)
        effect.waits.update(it.ident for it in calls if it not in settled)
        if kind in _CHANGES and calls:
            made = min((self.made.get(it, 0) for it in idents(target)), default=0)
            effect.beside.update(
                it.ident
                for it in calls
                if self.made.get(it.ident, 0) > made and self.still_runs(it)
            )
        if kind in ORDERED:
            known = past.get(effect)
            past[effect] = when if known is None else known & when

    def still_runs(self, call: ParallelCall) -> bool:
        """Whether the program goes on beside what `call` gave out, and has asked for nothing of it
        so far, neither for its end nor for what it has done."""
        return (
            bool(call.until)
            and not any(
                (value := self.store.get((ident, OVER))) is None or value.constant is not False
                for ident in call.until
            )
            and not any(
                isinstance(event, Told)
                and any(it.worker and it.worker.call is call for it in event.effects)
                for event in self.state.past
            )
        )

    # -- names ----------------------------------------------------------------------------------

    def write(self, frame: Frame, name: str, value: Value) -> None:
        self.store[frame.outer.get(name, frame).ident, name] = value

    def rebinds(self, frame: Frame, node: ast.AST, name: str, holder: Frame) -> None:
        """Note that a global of a module is bound anew."""
        self.models.global_written(self, frame, node, name, holder)
        if holder.parent is None and not self.in_process_worker:
            by = self.importing if self.on_import else ""
            if by in ("", self.program.entry):
                self.rebound.setdefault((holder.ident, name), set()).add(by)

    def stored(self, ident: int, name: str) -> Value | None:
        """The value as it stands in the store."""
        value = self.state.store.get((ident, name))
        return value if value is not None else self.loaded.get((ident, name))

    def read(self, ident: int, name: str) -> Value | None:
        """The value under the assumptions that hold here."""
        value = self.stored(ident, name)
        if value is None:
            return None
        if isinstance(value.choices[0].atom, Imported):
            value = self.parts.resolve(self, ident, name, value)
        return self.filtered(value)

    def receiver(self, frame: Frame) -> Atom | None:
        """The object whose method runs in `frame`; None where it is none, or not known."""
        function = frame.function
        if function is None or function.owner is None or not function.node.args.args:
            return None
        found = self.lookup(frame, function.node.args.args[0].arg)
        return found[0].only if found is not None else None

    def lookup(self, frame: Frame, name: str) -> tuple[Value, Frame] | None:
        """The value of `name` seen from `frame`, and the frame that holds it."""
        store = self.state.store
        own, shared = store._own, store._shared
        scope: Frame | None = frame.outer.get(name, frame)
        first = True
        while scope is not None:
            if first or not scope.is_class:
                place = (scope.ident, name)  # what is done here is done most of all
                value = own[place] if place in own else shared.get(place)
                if value is None:
                    value = self.loaded.get(place)
                if value is not None:
                    if isinstance(value.choices[0].atom, Imported):
                        value = self.parts.resolve(self, scope.ident, name, value)
                    return self.filtered(value), scope
            first = False
            scope = scope.parent
        return None

    def set_field(self, ident: int, name: str, value: Value) -> None:
        """Write an attribute of an object."""
        self.names_of.setdefault(ident, {})[name] = None
        self.store[ident, name] = value

    def fields(self, ident: int) -> Iterator[tuple[str, Value]]:
        """The attributes of an object that have a value."""
        for name in self.names_of.get(ident, ()):
            value = self.store.get((ident, name))
            if value is not None:
                yield name, value

    def find_in_class(self, cls: Class, name: str) -> Value | None:
        """`name` in `cls` or its bases in the project."""
        return self.find_in((cls, *cls.above), name)

    def find_in(self, classes: tuple[Class, ...], name: str) -> Value | None:
        """`name` in the first of `classes` that has it."""
        for cls in classes:
            value = self.stored(cls.body.ident, name)
            if value is not None:
                return self.filtered(value)
        return None

    def pickles_itself(self, atom: Instance) -> bool:
        """Whether the class of `atom` says itself what pickling takes along."""
        return any(self.find_in_class(atom.cls, name) is not None for name in _PICKLING)

    # -- containers -----------------------------------------------------------------------------

    def current(self, atom: Atom) -> Value | None:
        """What `atom`, a container or model that changes in place, is now; None: as it says."""
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
        """Note where the model or estimator of that identity came onto the GPU."""
        self.store[ident, PLACE] = of(Thing("place", "", site=site))
        self.program.moved.setdefault(ident, set()).add(site.node)

    def place_of(self, ident: int) -> Site | None:
        """Where it came there, on the way here."""
        told = self.store.get((ident, PLACE))
        return next((it.site for it in told.of(Thing) if it.site), None) if told else None

    # -- assumptions ----------------------------------------------------------------------------

    def conflicts(self, when: Conditions) -> bool:
        """Whether `when` cannot hold under what is assumed."""
        return not compatible(when, self.assumed)

    def filtered(self, value: Value) -> Value:
        """`value` as it is now, without the alternatives that the assumptions rule out."""
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
            told = assumed or len(when) > 1  # one condition alone can always hold
            if when and told and not compatible(when, assumed):
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
        """What is assumed of an unknown."""
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

    # -- scoped changes -------------------------------------------------------------------------

    @contextmanager
    def called_from(self, frame: Frame, node: ast.AST, message: str) -> Iterator[None]:
        saved, statement = self.chain, self.statement
        if self.worker is None or node is not self.worker.task.site.node:
            self.chain = (*saved, Step(self.site(frame, node), message, frame))
        try:
            yield
        finally:
            self.chain, self.statement = saved, statement


_PICKLING = ("__getstate__", "__reduce__", "__reduce_ex__", "__setstate__")

PLACE = "<place>"
"""What is noted under this name of a model: where it came onto the GPU."""

_MAY_CHANGE = frozenset({Items, Table, Thing})
"""What may be something else by now."""
