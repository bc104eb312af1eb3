"""The parts of a run: where it is, what was found, and what is remembered."""

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
    """The arguments of a call, by which a cache finds its result, and whether they are certain."""


class SuspendedContexts:
    """How far the generators of context managers have come, by their frame."""

    def __init__(self) -> None:
        self.yields: dict[int, int] = {}
        """How many ``yield`` statements the generator has come to, by its frame."""
        self.entered: dict[tuple[int, ast.AST], tuple[list[Value], Modes]] = {}
        """Values that ``with`` statements entered in such a generator, and the modes before, by
        its frame and the statement."""


class LastCall:
    """How the call, or the task, that ended last left things."""

    def __init__(self) -> None:
        self.task_state: State | None = None
        """How the last task left things in its worker."""
        self.modes = Modes()
        """What was in force at the end of the call that ended last."""
        self.returns: tuple[Module, str, list[tuple[Value, ast.AST]]] | None = None
        self.decorated_returns: dict[ast.AST, list[tuple[Value, ast.AST]]] = {}
        """What the functions behind decorators return, while a task runs in which they matter."""


class Position:
    """Where in the program a run is, to come back there."""

    def __init__(self, place: Place) -> None:
        self.fields = {name: getattr(place, name) for name in _POSITION}
        self.loops, self.depth = place.turns.loops, place.turns.depth

    def restore(self, place: Place) -> None:
        """Go on here."""
        vars(place).update(self.fields)
        place.turns.loops, place.turns.depth = self.loops, self.depth


_POSITION = (
    *("chain", "importing", "making", "raised", "stack", "statement"),
    *("stub_caller", "stub_calls", "worker"),
)
"""The fields of a place that say where in the program it is."""


class Place:
    """Where the run is."""

    def __init__(self) -> None:
        self.stub_caller: Caller | None = None
        """While a stub runs: where the program itself calls the library."""
        self.stub_calls: tuple[int, ...] = ()
        """The calls within stubs that led here, by the identity of their expressions."""
        self.worker: TaskRun | None = None
        self.chain: tuple[Step, ...] = ()
        self.stack: list[ast.AST] = []
        self.statement: ast.AST | None = None
        self.turns = Turns()
        self.decorating_contexts: dict[ast.AST, tuple[ast.expr, Value]] = {}
        """The contexts in which functions run that are decorated with them."""
        self.guarded_import = False
        self.raised: list[list[Raised]] = []
        """The states in which something was raised, for each ``try`` around."""
        self.ending_assignments: dict[ast.stmt, State | None] = {}
        """The assignments that end a ``try`` body, and the state before they bind anything: what
        raises has bound nothing."""
        self.root = 0
        self.root_line = 0
        self.making: tuple[tuple[Instance, ast.AST], ...] = ()
        """The objects whose ``__init__`` is being run, each with the expression that makes it."""
        self.importing = ""
        """The module whose own code is being run."""
        self.exits: dict[int, Outcomes] = {}
        """How the code of each frame that is being run is left."""
        self.yield_receivers: dict[int, Callable[[Value], None]] = {}
        """What is done with what a generator yields, by its frame, while it is iterated."""
        self.suspended = SuspendedContexts()
        self.ended = LastCall()


class Facts:
    """What was found, on any way."""

    def __init__(self) -> None:
        self.queried_attributes: set[tuple[int, str]] = set()
        """Attributes whose presence the program asks for, by identity."""
        self.cached_calls: dict[int, dict[CallKey, int]] = {}
        """Arguments that caching functions were called with, on any way."""
        self.executed_methods: set[tuple[int, int]] = set()
        """Methods that have been run, each with the class of the object."""
        self.frames: dict[str, Frame] = {}
        self.star_imports: dict[int, list[str]] = {}
        """Modules whose names each module imports all of: the project's, and (negative) others."""
        self.loaded: dict[tuple[int, str], Value] = {}
        """What modules held when they were imported: it outlives the branch that did so."""
        self.rebound_globals: dict[tuple[int, str], set[str]] = {}
        """Globals of imported modules that this process binds anew, and by whose import: ""
        where none does."""
        self.defaults: dict[Key, tuple[Hashable, ...]] = {}
        """What options of the program, and arguments that nobody here gives, are by default."""
        self.names_read: dict[str, set[str]] = {}
        """Names that modules read, where that is known."""
        self.attribute_names: dict[int, dict[str, None]] = {}
        """Attributes that were ever written to an object."""
        self.written_on_unknown: set[Hashable] = set()
        """Attributes and keys that were ever written to something unknown."""
        self.queried_lengths: set[tuple[int, str]] = set()
        """Store keys whose `len()` was queried."""
        self.origins: dict[tuple[int, str], Site] = {}
        """Where each variable and attribute was last given its value."""
        self.executed: set[int] = set()
        """Functions that have been run, by the identity of their node."""
        self.executed_lines: dict[tuple[str, int], tuple[int, int]] = {}
        """Functions that the parent runs, by path and line: their identity, and the line of the
        root that reached them first (0: the module's own code)."""
        self.recorded: dict[tuple[Hashable, ...], Effect] = {}
        self.handed_out: list[ParallelCall] = []
        """All calls that are in the past of any way."""
        self.evidence = Evidence()
        self.ended_frames: set[int] = set()
        """Frames of calls that ended, and to whose variables nothing refers."""
        self.signals: dict[
            tuple[int, str, int], dict[tuple[type[Payload], ast.AST], frozenset[Effect]]
        ] = {}
        """Effects of threads that precede a signal, by its object, what it says, and the run."""
        self.pool_starts: list[Moment] = []
        """Moments at which the workers of a pool came into being."""
        self.has_own_slots = False
        """Whether anything was gathered of which the own part may be put back."""
        self.before_main: Past | None = None
        """What happened before the module's own ``if __name__ == "__main__"``."""


class Caches:
    """What is remembered so that it is not computed again."""

    def __init__(self) -> None:
        self.idents: dict[Hashable, int] = {}
        self.newest_ident = 0
        self.changes_nothing: dict[ast.AST, bool] = {}
        """Expressions whose evaluation is known to change nothing, or not."""
        self.makes_generator: dict[ast.AST, bool] = {}
        """Functions whose calls make generators, or not."""
        self.made_classes: dict[ast.AST, ast.stmt] = {}
        """The classes that calls make, as a program would write them."""
        self.field_nodes: dict[tuple[ast.AST, str], ast.expr] = {}
        """Where the fields of an object are made that a call makes: each at a place of its own."""
