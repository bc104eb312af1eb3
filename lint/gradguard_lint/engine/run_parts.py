"""The parts of a run: its position, its findings, and its caches."""

from __future__ import annotations

from gradguard_lint.domain.effects import Modes
from gradguard_lint.domain.evidence import Evidence
from gradguard_lint.engine.turn_state import Turns

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    import ast
    from collections.abc import Callable, Hashable

    from gradguard_lint.domain.effects import Effect, ParallelCall, Step, TaskRun
    from gradguard_lint.domain.payloads import Payload
    from gradguard_lint.domain.questions import Key
    from gradguard_lint.domain.state import Moment, Outcomes, Past, Raised, State
    from gradguard_lint.domain.values import Frame, Instance, Site, Value
    from gradguard_lint.engine.stub_calls import Caller
    from gradguard_lint.reading.source import Module

    CallKey = tuple[bool, tuple[tuple[str, ...], tuple[Value, ...]] | None]
    """The arguments of a call as a cache key, and whether they are certain."""


class SuspendedContexts:
    """Progress of the generators of context managers, by frame."""

    def __init__(self) -> None:
        self.yields: dict[int, int] = {}
        """The number of ``yield`` statements reached."""
        self.entered: dict[tuple[int, ast.AST], tuple[list[Value], Modes]] = {}
        """Contexts entered by ``with`` statements in such a generator, and the modes before."""


class LastCall:
    """The end of the last call or task."""

    def __init__(self) -> None:
        self.task_state: State | None = None
        """The final state of the last task in its worker."""
        self.modes = Modes()
        """The modes at the end of the last call."""
        self.returns: tuple[Module, str, list[tuple[Value, ast.AST]]] | None = None
        self.decorated_returns: dict[ast.AST, list[tuple[Value, ast.AST]]] = {}
        """Return values of decorated functions, while a task runs in which they matter."""


class Position:
    """A position in the program, to be restored later."""

    def __init__(self, place: Place) -> None:
        self.fields = {name: getattr(place, name) for name in _POSITION}
        self.loops, self.depth = place.turns.loops, place.turns.depth

    def restore(self, place: Place) -> None:
        """Restore this position."""
        vars(place).update(self.fields)
        place.turns.loops, place.turns.depth = self.loops, self.depth


_POSITION = (
    *("chain", "importing", "making", "raised", "stack", "statement"),
    *("stub_caller", "stub_calls", "worker"),
)
"""The fields of `Place` that a `Position` saves."""


class Place:
    """The current position of the run."""

    def __init__(self) -> None:
        self.stub_caller: Caller | None = None
        """In a stub: the call of the library in the program."""
        self.stub_calls: tuple[int, ...] = ()
        """The calls in stubs that led here, by the ids of their nodes."""
        self.worker: TaskRun | None = None
        self.chain: tuple[Step, ...] = ()
        self.stack: list[ast.AST] = []
        self.statement: ast.AST | None = None
        self.turns = Turns()
        self.decorating_contexts: dict[ast.AST, tuple[ast.expr, Value]] = {}
        """Context managers that decorate functions."""
        self.guarded_import = False
        self.raised: list[list[Raised]] = []
        """States in which exceptions are raised, for each enclosing ``try``."""
        self.ending_assignments: dict[ast.stmt, State | None] = {}
        """Final assignments of ``try`` bodies, with the state before they bind: after an exception
        nothing is bound."""
        self.root = 0
        self.root_line = 0
        self.making: tuple[tuple[Instance, ast.AST], ...] = ()
        """The objects under construction, each with the expression that constructs it."""
        self.importing = ""
        """The module whose code is running."""
        self.exits: dict[int, Outcomes] = {}
        """The exits of each running frame."""
        self.yield_receivers: dict[int, Callable[[Value], None]] = {}
        """The consumers of running generators, by frame."""
        self.suspended = SuspendedContexts()
        self.ended = LastCall()


class Facts:
    """Facts found on any path."""

    def __init__(self) -> None:
        self.queried_attributes: set[tuple[int, str]] = set()
        """Attributes whose presence the program tests, by identity."""
        self.cached_calls: dict[int, dict[CallKey, int]] = {}
        """Arguments with which cached functions were called."""
        self.executed_methods: set[tuple[int, int]] = set()
        """Methods that have run, each with the class of the object."""
        self.frames: dict[str, Frame] = {}
        self.star_imports: dict[int, list[str]] = {}
        """Modules star-imported by each module: the project's, and (negative) others."""
        self.loaded: dict[tuple[int, str], Value] = {}
        """Values of modules after their import, independent of the branch that imported them."""
        self.rebound_globals: dict[tuple[int, str], set[str]] = {}
        """Globals of imported modules that this process rebinds, and the module whose import does
        it ("": none)."""
        self.defaults: dict[Key, tuple[Hashable, ...]] = {}
        """Defaults of program options, and of arguments that no call passes."""
        self.names_read: dict[str, set[str]] = {}
        """Names that modules read, if known."""
        self.attribute_names: dict[int, dict[str, None]] = {}
        """Attributes that were ever set on an object."""
        self.written_on_unknown: set[Hashable] = set()
        """Attributes and keys that were ever set on unknown objects."""
        self.queried_lengths: set[tuple[int, str]] = set()
        """Store keys whose `len()` was queried."""
        self.origins: dict[tuple[int, str], Site] = {}
        """Where each variable and attribute was last set."""
        self.executed: set[int] = set()
        """Functions that have run, by the id of their node."""
        self.executed_lines: dict[tuple[str, int], tuple[int, int]] = {}
        """Functions that the parent runs, by path and line: their id, and the line of the first
        root that reached them (0: module-level code)."""
        self.recorded: dict[tuple[Hashable, ...], Effect] = {}
        self.handed_out: list[ParallelCall] = []
        """All calls in the past of any path."""
        self.evidence = Evidence()
        self.ended_frames: set[int] = set()
        """Frames of ended calls with no references to their variables."""
        self.signals: dict[
            tuple[int, str, int], dict[tuple[type[Payload], ast.AST], frozenset[Effect]]
        ] = {}
        """Effects of threads that precede a signal, by its object, message and run."""
        self.pool_starts: list[Moment] = []
        """The moments at which pools started their workers."""
        self.has_own_slots = False
        """Whether anything was gathered into which a process may put its own part back."""
        self.before_main: Past | None = None
        """Events before ``if __name__ == "__main__"``."""


class Caches:
    """Caches of computed facts."""

    def __init__(self) -> None:
        self.idents: dict[Hashable, int] = {}
        self.newest_ident = 0
        self.changes_nothing: dict[ast.AST, bool] = {}
        """Whether evaluating an expression has no side effects."""
        self.makes_generator: dict[ast.AST, bool] = {}
        """Whether calls of a function create generators."""
        self.made_classes: dict[ast.AST, ast.stmt] = {}
        """Classes created by calls, as a program would define them."""
        self.field_nodes: dict[tuple[ast.AST, str], ast.expr] = {}
        """The fields of classes created by calls, each with a node of its own."""
