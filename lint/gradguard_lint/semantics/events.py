"""What a run of the interpreter saw: the parallel calls, and the effects, in program order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gradguard_lint.semantics.values import Atom, Site, TaskCall, Thing, Value

PROCESS = "process"
THREAD = "thread"


@dataclass(frozen=True)
class Modes:
    """What is in force around an expression."""

    grad: bool = True
    grad_site: Site | None = None
    autocast: Site | None = None
    tape: Site | None = None
    gpu: bool = False
    backend: Value | None = None
    n_jobs: Value | None = None
    locked: bool = False
    compiled: bool = False


@dataclass(frozen=True)
class Step:
    """One link of the chain that leads to an effect."""

    site: Site
    message: str


@dataclass(eq=False)
class ParallelCall:
    """One call that hands tasks to workers.

    Attributes:
        kind: `PROCESS` or `THREAD`.
        start: how workers come into being: ``loky``, ``fork``, ``spawn``, ``thread``, ``dask``.
        library: ``joblib``, ``multiprocessing``, ``concurrent.futures``, ``dask`` ...
        many: whether it gives out more than one task.
    """

    ident: int
    site: Site
    kind: str
    start: str
    library: str
    modes: Modes
    root: int
    order: int
    many: bool = True
    tasks: list[TaskRun] = field(default_factory=list)

    @property
    def workers(self) -> str:
        """The workers, in words."""
        return {
            "loky": "loky workers",
            "fork": "forked workers",
            "spawn": "spawned workers",
            "thread": "worker threads",
            "dask": "dask workers",
            "dask-threads": "dask's worker threads",
        }[self.start]


@dataclass(eq=False)
class TaskRun:
    """One task of a parallel call, as the interpreter ran it."""

    ident: int
    call: ParallelCall
    task: TaskCall
    shipped: dict[str, Value] = field(default_factory=dict)
    contents: list[tuple[str, Atom, bool]] = field(default_factory=list)
    """What crosses with the task: the path, the object, and whether each task has its own."""
    returns: list[tuple[Value, Site]] = field(default_factory=list)
    result: Value | None = None
    known: bool = False
    """Whether the worker's code was found and followed."""
    effects: list[Effect] = field(default_factory=list)
    initialised: int = 0
    """How many of the effects are the initializer's, which runs once in each worker."""

    @property
    def name(self) -> str:
        """The worker function's name, as reports show it."""
        from gradguard_lint.semantics.values import Bound, External, Function, Method

        for atom in self.task.function.atoms:
            if isinstance(atom, Function):
                return atom.name
            if isinstance(atom, Bound):
                return atom.function.name
            if isinstance(atom, Method):
                return atom.name
            if isinstance(atom, External):
                return atom.name
            if isinstance(atom, Thing):
                return atom.name
        return "the task"


@dataclass(eq=False)
class Effect:
    """Something that was seen to happen at a place.

    Attributes:
        kind: what happens; the libraries' modules document the kinds that they record.
        what: the expression, in words, as reports show it.
        worker: the task that it happens in, or None in the parent.
        order: its place in the run.
        chain: the calls that lead to it, from the worker's (or the program's) start.
    """

    kind: str
    site: Site
    what: str
    worker: TaskRun | None
    order: int
    root: int
    chain: tuple[Step, ...] = ()
    modes: Modes = field(default_factory=Modes)
    data: dict[str, Any] = field(default_factory=dict)


@dataclass
class Program:
    """All that was seen of one program."""

    entry: str
    calls: list[ParallelCall] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    earlier: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """The runs that come before each run (before all of them: the module's own code)."""

    def kinds(self, *kinds: str) -> list[Effect]:
        """The effects of these kinds, in order."""
        return [effect for effect in self.effects if effect.kind in kinds]

    def process_tasks(self) -> list[TaskRun]:
        return [task for call in self.calls if call.kind == PROCESS for task in call.tasks]

    def thread_tasks(self) -> list[TaskRun]:
        return [task for call in self.calls if call.kind == THREAD for task in call.tasks]
