"""The machine: the state of a run, its record, and the interface to the engine's parts.

The parts (expressions, calls, statements ...) are functions on the machine, assembled in
`interpreter`; library models are passed in as `Models`. Neither is imported here, which would be
circular.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager

from gradguard_lint.domain.conditions import NONE, Conditions
from gradguard_lint.domain.effects import Effect, Modes, ParallelCall, Program, Progress, Step
from gradguard_lint.domain.options import Options
from gradguard_lint.domain.payloads import Backward, Event, GradClear, OptimizerStep, Write
from gradguard_lint.domain.questions import Key
from gradguard_lint.domain.shapes import idents
from gradguard_lint.domain.starts import PROCESS
from gradguard_lint.domain.state import Error, Outcomes, State, join_states
from gradguard_lint.domain.values import (
    NOTHING,
    UNKNOWN,
    Atom,
    Frame,
    Function,
    Generator,
    Site,
    Value,
)
from gradguard_lint.engine.budget import DEPTH, TOO_DEEP, Budget, OutOfSteps
from gradguard_lint.engine.ports import Args, Models, Project
from gradguard_lint.engine.run_parts import Caches, Facts, Place
from gradguard_lint.engine.variables import Variables
from pytest_gradguard.records import fields

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from typing import Any

    from gradguard_lint.domain.payloads import Payload


SIZE = "<length>"
"""Store key: the length of a sequence, if it is known."""

ARRIVED = "<arrived>"
"""Store key: the object has its pickled attributes."""


FINISHED = "<finished>"
"""Store key: whether the task last started under an identity has ended."""

_CONTENDED = (Backward, GradClear, OptimizerStep, Write)
"""Effects for which concurrent calls are recorded."""


@fields
class Parts:
    """The engine's functions behind the machine's methods."""

    expressions: Mapping[type[ast.AST], Callable[[Machine, Frame, Any], Value]]
    statements: Mapping[type[ast.AST], Callable[[Machine, Frame, Any], None]]
    call: Callable[[Machine, Frame, ast.AST, Value, Args], Value]
    attribute: Callable[[Machine, Frame, ast.AST, Value, str], Value]
    called_attribute: Callable[[Machine, Frame, ast.Attribute], Value]
    bind: Callable[[Machine, Frame, ast.AST, Value, Atom], Value]
    assign: Callable[[Machine, Frame, ast.expr, Value], None]
    resolve: Callable[[Machine, int, str, Value], Value]
    iterated: Callable[[Machine, Frame, ast.AST, Value], Value]
    exhaust_args: Callable[[Machine, Frame, ast.AST, Atom, Args], Args]
    generator_method: Callable[[Machine, Frame, ast.AST, Generator, str], Value]


class Machine(Variables):
    def __init__(
        self, project: Project, models: Models[Machine], options: Options, parts: Parts
    ) -> None:
        self.project = project
        self.models = models
        self.options = options
        self.parts = parts
        self.program = Program("")
        self.state = State()
        self.budget = Budget()
        self.place = Place()
        self.facts = Facts()
        self.caches = Caches()

    # -- the state ------------------------------------------------------------------------------

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
        """End this path."""
        self.state.dead = True

    def outcomes(self, frame: Frame) -> Outcomes:
        """The exits of the code of `frame`."""
        found = self.place.exits.get(frame.ident)
        if found is None:
            found = self.place.exits[frame.ident] = Outcomes()
        return found

    def leave(self) -> State:
        """End this path here; the state returned continues elsewhere.

        The dead state keeps its contents, for exception handlers.
        """
        state = self.state
        self.state = State(state.store, state.assumed, state.past, state.modes, dead=True)
        return state

    def leave_by(self, error: Error) -> None:
        """End this path with an exception; None if it is unknown."""
        state = self.leave()
        if self.place.raised:
            self.place.raised[-1].append((error, state))

    def meet(self, states: Sequence[State]) -> None:
        """Continue with the join of `states`; if all are dead, this path ends."""
        joined = join_states(states)
        if joined is None:
            self.state.dead = True
        else:
            self.state = joined

    # -- into the engine's parts ----------------------------------------------------------------

    def eval(self, frame: Frame, node: ast.AST | None) -> Value:
        """The value of `node`."""
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
        """Execute statements while they are reachable."""
        budget = self.budget
        is_stub = frame.module.is_stub
        for statement in body:
            if self.state.dead:
                return
            if not is_stub:
                self.place.statement = statement
            budget.left -= 1
            if budget.left < 0:
                self.run_out(frame)
            handler = self.parts.statements.get(type(statement))
            if handler is not None:
                handler(self, frame, statement)

    def call(self, frame: Frame, node: ast.AST, function: Value, args: Args) -> Value:
        """The result of calling `function`; its effects are recorded."""
        return self.parts.call(self, frame, node, function, args)

    def attribute(self, frame: Frame, node: ast.AST, receiver: Value, name: str) -> Value:
        """``receiver.name``."""
        return self.parts.attribute(self, frame, node, receiver, name)

    def called_attribute(self, frame: Frame, node: ast.Attribute) -> Value:
        """``receiver.name`` for a call."""
        self.budget.left -= 1
        if self.budget.left < 0:
            self.run_out(frame)
        return self.parts.called_attribute(self, frame, node)

    def bind(self, frame: Frame, node: ast.AST, value: Value, receiver: Atom) -> Value:
        """A class attribute, accessed through an object."""
        return self.parts.bind(self, frame, node, value, receiver)

    def iterated(self, frame: Frame, node: ast.AST, value: Value) -> Value:
        """`value`, with generators replaced by the sequences of their items."""
        if any(isinstance(choice.atom, Generator) for choice in value.choices):
            return self.parts.iterated(self, frame, node, value)
        return value

    def assign(self, frame: Frame, target: ast.expr, value: Value) -> None:
        self.parts.assign(self, frame, target, value)

    # -- identities -----------------------------------------------------------------------------

    def new_ident(self) -> int:
        self.caches.newest_ident += 1
        return self.caches.newest_ident

    def ident_at(self, node: ast.AST, *more: Hashable) -> int:
        """An identity for what `node` creates, the same for each run from the same callers."""
        calls = tuple(id(step.site.node) for step in self.place.chain[-3:])
        newest = self.caches.newest_ident
        if self.place.stub_caller is not None:
            more = (*more, id(self.place.stub_caller.node), self.place.stub_calls)
        elif self.place.stub_calls:
            more = (*more, self.place.stub_calls)
        ident = self.ident_of((id(node), calls, self.worker_ident, *more))
        if self.place.turns.depth or ident <= newest:
            self.new_ident()  # it may stand for several objects
        self.place.turns.made[ident] = self.caches.newest_ident
        return ident

    def ident_of(self, key: Key) -> int:
        """The identity for `key`."""
        ident = self.caches.idents.get(key)
        if ident is None:
            ident = self.caches.idents[key] = self.new_ident()
        return ident

    def exceeds_depth_in(self, frame: Frame, function: Function) -> bool:
        """Whether the limit of nested calls, or of recursion of `function`, is reached.

        Recursion isn't recorded as unfinished: another level would add little.
        """
        if function.module.is_stub:  # stubs are short
            return len(self.place.stub_calls) >= DEPTH
        if len(self.place.stack) >= DEPTH:
            self.leave_unfinished(function, TOO_DEEP)
            self.leave_unfinished(frame, TOO_DEEP)
            return True
        return self.place.stack.count(function.node) >= 2

    def exceeds_budget_in(self, frame: Frame, function: Function | None = None) -> bool:
        """Whether the budget is used up; then records the functions of `frame` and `function`,
        which it calls, as unfinished. Stubs always run."""
        called = frame if function is None else function
        if not self.budget.used_up or called.module.is_stub:
            return False
        if frame.module.is_stub and self.place.stub_caller is not None:
            frame = self.place.stub_caller.frame
        if self.place.stack or self.place.root == 1:  # otherwise only this analysis calls it
            self.leave_unfinished(frame)
        if function is not None:
            self.leave_unfinished(function)
        return True

    def run_out(self, frame: Frame) -> None:
        """Abandon this root: it took too many steps. A stub continues."""
        if frame.module.is_stub:
            return
        self.leave_unfinished(frame)
        raise OutOfSteps

    def leave_unfinished(self, of: Frame | Function, reason: str = "") -> None:
        """Record that a function, or module-level code, isn't analysed completely."""
        function = of if isinstance(of, Function) else of.function
        name = None if function is None else function.qualified_name
        line = 1 if function is None else function.node.lineno
        self.budget.leave(of.module.path, line, name, reason)

    @property
    def worker_ident(self) -> int:
        return self.place.worker.ident if self.place.worker is not None else 0

    @property
    def in_process_worker(self) -> bool:
        return self.place.worker is not None and self.place.worker.call.kind == PROCESS

    @property
    def on_import(self) -> bool:
        """Whether importing the running module runs this code, too."""
        return self.facts.before_main is None or self.place.importing != self.program.entry

    # -- the record -----------------------------------------------------------------------------

    def in_program(self, frame: Frame, node: ast.AST) -> tuple[Frame, ast.AST]:
        """The position in the program; for a stub, where the program calls the library."""
        if self.place.stub_caller is not None and frame.module.is_stub:
            return self.place.stub_caller.frame, self.place.stub_caller.node
        return frame, node

    def site(self, frame: Frame, node: ast.AST) -> Site:
        frame, node = self.in_program(frame, node)
        return Site(frame.module, node, frame.name, self.place.statement)

    def effect(
        self,
        frame: Frame,
        node: ast.AST,
        what: str,
        payload: Payload,
        *,
        origin: Step | None = None,
        settled: Set[object] = frozenset(),
        under: Conditions = NONE,
    ) -> None:
        """Record an effect at `node`, on this path.

        `settled`: earlier calls that it doesn't wait for. `under`: further conditions.
        """
        if self.state.dead:
            return
        links = tuple(id(step.site.node) for step in self.place.chain)
        frame, node = self.in_program(frame, node)
        key: tuple[Hashable, ...] = (
            type(payload).__name__,
            *(id(node), what, self.worker_ident, self.place.root, links),
            *payload.key(),
        )
        effect = self.facts.recorded.get(key)
        when = self.assumed.facts | under
        if effect is None:
            effect = Effect(
                payload,
                self.site(frame, node),
                what,
                self.place.worker,
                self.place.root,
                self.place.chain,
                self.modes,
                when,
                origin=origin,
                making=self.place.making,
                on_import=self.place.importing
                if self.place.worker is None and self.on_import
                else "",
            )
            self.facts.recorded[key] = effect
            self.program.effects.append(effect)
            if self.place.worker is not None:
                self.place.worker.effects.append(effect)
        else:
            effect.when &= when
            effect.payload.merge(payload)
        past = self.state.past
        calls = [it for it in self.facts.handed_out if it in past]
        effect.calls.update(it.ident for it in calls)
        effect.waits.update(it.ident for it in calls if it not in settled)
        if calls and isinstance(payload, _CONTENDED):
            made = min(
                (self.place.turns.made.get(it, 0) for it in idents(payload.target)), default=0
            )
            effect.concurrent_calls.update(
                it.ident
                for it in calls
                if self.place.turns.made.get(it.ident, 0) > made and self.still_runs(it)
            )
        if isinstance(payload, Event):
            known = past.get(effect)
            past[effect] = when if known is None else known & when

    def still_runs(self, call: ParallelCall) -> bool:
        """Whether `call` may still run: neither its end nor its progress was observed."""
        return (
            bool(call.schedule.until)
            and not any(
                (value := self.store.get((ident, FINISHED))) is None or value.constant is not False
                for ident in call.schedule.until
            )
            and not any(
                isinstance(event, Progress)
                and any(it.worker and it.worker.call is call for it in event.effects)
                for event in self.state.past
            )
        )

    # -- names -----------------------------------------------------------------------------------

    def rebinds(self, frame: Frame, node: ast.AST, name: str, holder: Frame) -> None:
        """Record that a module's global is rebound."""
        self.models.global_written(self, frame, node, name, holder)
        if holder.parent is None and not self.in_process_worker:
            by = self.place.importing if self.on_import else ""
            if by in ("", self.program.entry):
                self.facts.rebound_globals.setdefault((holder.ident, name), set()).add(by)

    def resolve(self, ident: int, name: str, value: Value) -> Value:
        """The value of the imported `name`, which is `value` so far."""
        return self.parts.resolve(self, ident, name, value)

    # -- scoped changes -------------------------------------------------------------------------

    @contextmanager
    def called_from(self, frame: Frame, node: ast.AST, message: str) -> Iterator[None]:
        """Run a call of the program, or without `message`, of a stub."""
        saved, statement = self.place.chain, self.place.statement
        if not message:
            pass
        elif self.place.worker is None or node is not self.place.worker.task.site.node:
            self.place.chain = (*saved, Step(self.site(frame, node), message, frame))
        try:
            yield
        finally:
            self.place.chain, self.place.statement = saved, statement
