"""Records of one run: its parallel calls, tasks and effects, each with the way that led there."""

from __future__ import annotations

from gradguard_lint.domain.conditions import NONE, WITH_A_GPU, Conditions, alternatives, consistent
from gradguard_lint.domain.payloads import LibraryUse, Payload
from gradguard_lint.domain.shapes import idents, name_of
from gradguard_lint.domain.starts import PROCESS, THREAD
from gradguard_lint.domain.values import UNKNOWN, Atom, Frame, Instance, Site, TaskCall, Value
from gradguard_lint.domain.workers import Channel, Schedule, WorkerTraits
from pytest_gradguard.records import Record, field, fields, record, replace

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    import ast
    from collections.abc import Callable, Hashable, Iterable, Iterator
    from typing import Generic

    from typing_extensions import TypeVar

    from gradguard_lint.domain.questions import Key
    from gradguard_lint.domain.starts import WorkerKind

    P = TypeVar("P", bound=Payload, default=Payload, covariant=True)
    Q = TypeVar("Q", bound=Payload)

    class _About(Generic[P]):
        """A class that is generic in the payload of its effect."""

else:
    P = None

    class _About:
        def __class_getitem__(cls, payload):
            return cls


@record
class Modes(Record):
    """Modes in force around an expression."""

    grad: bool = True
    grad_site: Site | None = None
    autocast: Site | None = None
    tape: Site | None = None
    gpu: bool = False
    device: Value | None = None
    """The default device of new tensors."""
    backend: Value | None = None
    n_jobs: Value | None = None
    maps: tuple[tuple[str, Value], ...] = ()
    """Memory-mapping options that a context sets for the calls in it."""
    locked: bool = False
    compiled: bool = False
    averaged: bool = False
    """Whether a wrapper runs its forward pass, after which gradients are averaged."""

    def after(self, inner: Modes) -> Modes:
        """The modes after a function or module that ended with `inner`: those that calls set
        last."""
        if inner is self:
            return self
        return replace(
            self,
            grad=inner.grad,
            grad_site=inner.grad_site,
            backend=inner.backend,
            n_jobs=inner.n_jobs,
            maps=inner.maps,
        )

    def met(self, other: Modes) -> Modes:
        """The modes where two ways meet: none that only one of them has set."""
        met = replace(
            self,
            device=self.device if self.device == other.device else None,
            backend=self.backend if self.backend == other.backend else UNKNOWN,
            n_jobs=self.n_jobs if self.n_jobs == other.n_jobs else UNKNOWN,
        )
        return met if self.grad == other.grad else replace(met, grad=True, grad_site=None)


@record
class Step(Record):
    """One link of the chain that leads to an effect."""

    site: Site
    message: str
    frame: Frame | None = None
    """The scope that the call is made in."""


@record
class Waited(Record):
    """The end of a concurrent task was waited for, by its identity."""

    ident: int


@record
class Progress(Record):
    """Progress of a concurrent task was observed.

    Attributes:
        key: the question whose answer shows it; None where it is certain.
        until: the identities of tasks that have ended.
        effects: the effects that have happened.
    """

    key: Key | None
    until: frozenset[int] = frozenset()
    effects: frozenset[Effect] = frozenset()


@fields
class ParallelCall:
    """One call that hands tasks to workers.

    Attributes:
        kind: `PROCESS` or `THREAD`.
        start: how workers come into being: ``loky``, ``fork``, ``spawn``, ``thread``, ``dask``.
        workers: the workers, in words.
        library: ``joblib``, ``multiprocessing``, ``concurrent.futures``, ``dask`` ...
        many: whether it gives out more than one task.
        before: what the parent did on the way to where the workers come into being.
        past: what it did on the way to the call, where the workers were there already.
        inherited: what was in force there, which forked workers keep.
        when: the conditions that the call is made under.
        chosen: those of them by which it gets these workers, and not others or none.
        channel: how tasks and results cross.
        traits: what distinguishes its workers.
        schedule: when the tasks run, as the program goes on.
        overlaps: the other calls that run while it does, threads or processes as it does; threads
            of loops before do not know of it.
        worker: the task that makes the call, or None in the parent.
        chain: the calls by which the program came to it.
        frame: the scope that it is made in.
    """

    ident: int
    site: Site
    kind: WorkerKind
    start: str
    workers: str
    library: str
    modes: Modes
    root: int
    many: bool = True
    tasks: list[TaskRun] = field(default_factory=list)
    before: dict[Effect | ParallelCall | Waited | Progress, Conditions] = field(
        default_factory=dict
    )
    past: dict[Effect | ParallelCall | Waited | Progress, Conditions] | None = None
    inherited: Modes = field(default_factory=Modes)
    when: Conditions = NONE
    chosen: Conditions = NONE
    channel: Channel = field(default_factory=Channel)
    traits: WorkerTraits = field(default_factory=WorkerTraits)
    schedule: Schedule = field(default_factory=Schedule)
    overlaps: list[ParallelCall] = field(default_factory=list)
    worker: TaskRun | None = None
    chain: tuple[Step, ...] = ()
    frame: Frame | None = None

    def earlier(self, *kinds: type[Q]) -> list[Effect[Q]]:
        """What the parent did, on one way with this call, before the workers came into being."""
        return self._on_one_way(self.before.items(), kinds)

    def so_far(self, *kinds: type[Q]) -> list[Effect[Q]]:
        """What the parent did, on one way with this call, before it."""
        past = self.before if self.past is None else self.past
        return self._on_one_way(past.items(), kinds)

    def _on_one_way(
        self, past: Iterable[tuple[object, Conditions]], kinds: tuple[type[Q], ...]
    ) -> list[Effect[Q]]:
        return [
            event
            for event, when in past
            if isinstance(event, Effect)
            and isinstance(event.payload, kinds)
            and consistent(when, self.when)
        ]

    def certain(self, *kinds: type[Q]) -> list[Effect[Q]]:
        """The effects of `earlier` without those of threads that nobody had waited for, which may
        not have happened yet."""
        return [effect for effect in self.earlier(*kinds) if self._is_done(effect)]

    def _is_done(self, effect: Effect) -> bool:
        worker = effect.worker
        if worker is None or worker is self.worker or not worker.call.schedule.until:
            return True
        waits = [self.before.get(Waited(ident)) for ident in worker.call.schedule.until]
        waits += [
            when
            for event, when in self.before.items()
            if isinstance(event, Progress)
            and (effect in event.effects or not event.until.isdisjoint(worker.call.schedule.until))
            and (event.key is None or (event.key, True) in self.when)
        ]
        return any(
            when is not None and consistent(when, self.before[effect], self.when) for when in waits
        )


def _names(task: TaskCall) -> list[str]:
    """The names of what a task may call."""
    names = dict.fromkeys(filter(None, map(name_of, task.function.atoms)))
    return [*names] or ["the task"]


@fields
class TaskRun:
    """One task of a parallel call, as the interpreter ran it."""

    ident: int
    call: ParallelCall
    task: TaskCall
    contents: list[tuple[str, Atom, bool]] = field(default_factory=list)
    """Objects pickled with the task: the path, the object, and whether each task has its own."""
    given: list[tuple[str, Atom, bool]] = field(default_factory=list)
    """Objects that the task is given, pickled or not, in the same form."""
    places: dict[int, Site] = field(default_factory=dict)
    """Where models of the parent were moved to the GPU, by their identity."""
    own_pickling: bool = False
    """Whether a class among `contents` defines its own pickling."""
    first_at_start: int = 0
    """The index in `contents` and `given` from which objects cross with the initializer."""
    returns: list[tuple[Value, Site]] = field(default_factory=list)
    held: list[tuple[Value, Site]] = field(default_factory=list)
    """Returned values, with the contents of plain objects in place of the objects."""
    result: Value | None = None
    known: bool = False
    """Whether the worker's code was found and followed."""
    effects: list[Effect] = field(default_factory=list)
    initializer: TaskCall | None = None
    initialised: int = 0
    """The number of effects of the initializer, which runs once in each worker."""
    starting: bool = False
    """Whether the initializer is being run."""
    waits: bool = False
    """Whether the task blocks until another one signals it."""
    own: set[Atom] = field(default_factory=set)
    """Selector values that a thread is given, and that differ from task to task."""

    @property
    def name(self) -> str:
        """The worker function's name, as reports show it."""
        return _names(self.task)[0]

    @property
    def runs(self) -> str:
        """The message of the step at which workers get the task."""
        *others, last = (f"`{name}`" for name in _names(self.task))
        named = f"{', '.join(others)} or {last}" if others else last
        return f"{named} runs in {self.call.workers}"

    def function_of(self, effect: Effect) -> str:
        """The name of the function that causes `effect`: the task, or the initializer."""
        if self.initializer is not None and effect in self.effects[: self.initialised]:
            return _names(self.initializer)[0]
        return self.name

    def split_by_initializer(
        self, crossing: list[tuple[str, Atom, bool]]
    ) -> Iterator[tuple[TaskCall, list[tuple[str, Atom, bool]]]]:
        """`crossing` in two: what goes with the task, and what with the worker's initializer."""
        yield self.task, crossing[: self.first_at_start]
        if self.initializer is not None:
            yield self.initializer, crossing[self.first_at_start :]

    def same_path(self, effect: Effect, earlier: Effect) -> bool:
        """Whether `effect` of this task and `earlier` of the parent may happen in one run."""
        before = self.call.before.get(earlier, earlier.when)
        there = WITH_A_GPU if "context" in (effect.gpu_use, earlier.gpu_use) else NONE
        return consistent(before, self.call.when, effect.when, there) and not alternatives(
            before, (*self.call.when, *effect.when)
        )


@fields
class Effect(_About[P]):
    """Something that happens at a place of the program.

    Attributes:
        payload: what happens.
        what: the expression, in words, as reports show it.
        worker: the task that it happens in, or None in the parent.
        root: the run that it happens in (1: the module's own code).
        chain: the calls that lead to it, from the worker's (or the program's) start.
        when: the conditions that it happens under.
        calls: the parallel calls that came before it on some way.
        waits: those of them for whose gradients it may wait: none were cleared since.
        concurrent_calls: those of them that may run still: nobody has asked for their end.
        origin: where the device that it uses was named.
        making: the objects that are being made there, from the outermost in, each with the
            expression that makes it.
        on_import: the module whose import has it, in whichever process; "" where it is done in
            this process only.
    """

    payload: P
    site: Site
    what: str
    worker: TaskRun | None
    root: int
    chain: tuple[Step, ...] = ()
    modes: Modes = field(default_factory=Modes)
    when: Conditions = NONE
    calls: set[int] = field(default_factory=set)
    waits: set[int] = field(default_factory=set)
    concurrent_calls: set[int] = field(default_factory=set)
    origin: Step | None = None
    making: tuple[tuple[Instance, ast.AST], ...] = ()
    on_import: str = ""

    @property
    def target(self) -> Value:
        """The object that it happens to; unknown where there is none."""
        return self.payload.target

    @property
    def gpu_use(self) -> str:
        """How it uses a GPU; empty where it does not."""
        return self.payload.gpu_use


def of_kinds(effects: Iterable[object], *kinds: type[Q]) -> Iterator[Effect[Q]]:
    """The effects among `effects` that have payloads of these classes."""
    for effect in effects:
        if isinstance(effect, Effect) and isinstance(effect.payload, kinds):
            yield effect


@fields
class Program:
    """Everything that was found about one program."""

    entry: str
    calls: list[ParallelCall] = field(default_factory=list)
    in_line: list[TaskCall] = field(default_factory=list)
    """Tasks that run in the caller, one after the other."""
    nested: list[ParallelCall] = field(default_factory=list)
    """Parallel calls of workers: what they send on, and not what their own workers do."""
    effects: list[Effect] = field(default_factory=list)
    moved: dict[int, set[ast.AST]] = field(default_factory=dict)
    """Expressions that move a model or estimator to the GPU, by its identity."""
    unsure: set[int] = field(default_factory=set)
    """Roots that were run after the budget of another one had ended, in an unknown state."""
    shared: set[int] = field(default_factory=set)
    """Identities of models and tensors whose memory is shared between processes."""
    shared_once: set[int] = field(default_factory=set)
    """Identities in `shared` of modules that were shared outside of loops: each is one object."""
    generators: dict[ast.AST, set[int]] = field(default_factory=dict)
    """Identities of the random generators that an expression makes; 0: of several."""
    buffers: dict[int, int] = field(default_factory=dict)
    """The identity of the model, by that of its buffers."""
    returned: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Models that workers returned: the call, and the model that was copied."""
    replaced: dict[int, set[int]] = field(default_factory=dict)
    """Objects that an attribute held before it was set to such a model."""
    copies: dict[int, set[int]] = field(default_factory=dict)
    """The originals of each copy, by their identities."""
    sent_back: dict[int, int] = field(default_factory=dict)
    """The identity before it was sent, of each tensor that came back or that an actor was given."""
    loops: list[Effect] = field(default_factory=list)
    """Effects of functions that start no workers, but take gradients in loops."""
    imports: dict[str, set[str]] = field(default_factory=dict)
    """Modules of the project that each module imports; of modules that were run."""
    calls_elsewhere: dict[tuple[str, int], int] = field(default_factory=dict)
    """Functions of other modules that the program calls, by path and line, with the line of its
    own function that leads there (0: the module's own code)."""
    defaults: dict[Key, tuple[Hashable, ...]] = field(default_factory=dict)
    """Defaults of its options, and of arguments that no caller passes."""
    cut: set[tuple[str, int, int]] = field(default_factory=set)
    """Functions that some calls were not followed to: the path, the first and last line."""
    unfinished: dict[tuple[str, int, str | None], str] = field(default_factory=dict)
    """All functions that a budget cut off, by path, line and name, each with the reason."""
    hides_gpus: bool = False
    """Whether it hides all GPUs in its environment."""
    guarded: bool = False
    """Whether it asks for ``__name__ == "__main__"``."""

    def effects_of(self, *kinds: type[Q]) -> list[Effect[Q]]:
        """The effects with payloads of these classes, in order."""
        return list(of_kinds(self.effects, *kinds))

    def library_uses(self, *uses: str) -> list[Effect[LibraryUse]]:
        """The uses of libraries in these ways, in order."""
        return [it for it in self.effects_of(LibraryUse) if it.payload.use in uses]

    def process_tasks(self) -> list[TaskRun]:
        """The tasks that worker processes run."""
        return [task for call in self.calls if call.kind == PROCESS for task in call.tasks]

    def of_actor(self, actor: int) -> list[TaskRun]:
        """The tasks that are methods of an actor, by the identity of the call that made it."""
        return [task for task in self.process_tasks() if actor and task.call.traits.actor == actor]

    def in_turn(self, call: ParallelCall, matters: Callable[[Effect], bool]) -> bool:
        """Whether each task of `call`, which a loop makes again and again, has ended before another
        one, or the program itself, has an effect that `matters`."""
        if not call.schedule.each or not call.schedule.until:
            return call.schedule.each  # the call itself waits
        same = [it for it in self.calls if it.site == call.site and it.worker is call.worker]
        relayed = {
            it.schedule.loops for it in same if it.schedule.chained_start
        }  # nobody waits for the last one there
        return all(
            (it.schedule.awaited or it.schedule.loops in relayed)
            and not any(
                matters(effect)
                for other in it.overlaps
                if other.many
                for task in other.tasks
                for effect in task.effects
            )
            for it in same
        ) and not (relayed and any(self._joins_in(it, matters) for it in same))

    def _joins_in(self, call: ParallelCall, matters: Callable[[Effect], bool]) -> bool:
        """Whether the program itself has such effects on the same objects while `call` may run."""
        effects = [effect for task in call.tasks for effect in task.effects if matters(effect)]
        shared = set[int]().union(*(idents(effect.target) for effect in effects))
        return any(
            effect.worker is call.worker
            and call.ident in effect.concurrent_calls
            and matters(effect)
            and not shared.isdisjoint(idents(effect.target))
            for effect in self.effects
        )

    def thread_tasks(self) -> list[TaskRun]:
        """The tasks that worker threads run."""
        return [task for call in self.calls if call.kind == THREAD for task in call.tasks]
