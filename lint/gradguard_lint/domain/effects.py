"""What a run of the interpreter saw: the parallel calls, and the effects, each with its way."""

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
        """What is generic in its payload."""

else:
    P = None

    class _About:
        def __class_getitem__(cls, payload):
            return cls


@record
class Modes(Record):
    """What is in force around an expression."""

    grad: bool = True
    grad_site: Site | None = None
    autocast: Site | None = None
    tape: Site | None = None
    gpu: bool = False
    device: Value | None = None
    """Where tensors are made that are not told where."""
    backend: Value | None = None
    n_jobs: Value | None = None
    maps: tuple[tuple[str, Value], ...] = ()
    """How calls map arrays, as a context around them says."""
    locked: bool = False
    compiled: bool = False
    averaged: bool = False
    """Whether a forward of a wrapper is running, after which the gradients are averaged."""

    def after(self, inner: Modes) -> Modes:
        """What is in force after a function or module that left `inner`: what calls put in force
        lasts."""
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
        """What is in force where two ways meet: nothing that only one of them put in force."""
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
    """The scope that its place is run in, where it is a call of the project's."""


@record
class Waited(Record):
    """Somebody has waited for what runs beside the program, under this identity."""

    ident: int


@record
class Told(Record):
    """It was seen how far something has come that runs beside the program.

    Attributes:
        key: the question whose answer tells so; None where that is certain.
        until: the identities of what has come to its end.
        effects: what has happened by then.
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
    before: dict[Effect | ParallelCall | Waited | Told, Conditions] = field(default_factory=dict)
    past: dict[Effect | ParallelCall | Waited | Told, Conditions] | None = None
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
        """What of `earlier` no thread does for which nobody had waited: it may not have come to
        that yet."""
        return [effect for effect in self.earlier(*kinds) if self._is_done(effect)]

    def _is_done(self, effect: Effect) -> bool:
        worker = effect.worker
        if worker is None or worker is self.worker or not worker.call.schedule.until:
            return True
        waits = [self.before.get(Waited(ident)) for ident in worker.call.schedule.until]
        waits += [
            when
            for event, when in self.before.items()
            if isinstance(event, Told)
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
    """What crosses with the task: the path, the object, and whether each task has its own."""
    given: list[tuple[str, Atom, bool]] = field(default_factory=list)
    """The same where nothing is pickled: what the task is given."""
    places: dict[int, Site] = field(default_factory=dict)
    """Where the models that the parent had on the GPU came there, by their identity."""
    own_pickling: bool = False
    """Whether the class of something that crosses says itself what pickling takes along."""
    first_at_start: int = 0
    """From which of these on they cross with the initializer, as a worker starts."""
    returns: list[tuple[Value, Site]] = field(default_factory=list)
    held: list[tuple[Value, Site]] = field(default_factory=list)
    """The same, with what plain objects hold in their place."""
    result: Value | None = None
    known: bool = False
    """Whether the worker's code was found and followed."""
    effects: list[Effect] = field(default_factory=list)
    initializer: TaskCall | None = None
    initialised: int = 0
    """How many of the effects are the initializer's, which runs once in each worker."""
    starting: bool = False
    """Whether that runs now."""
    waits: bool = False
    """Whether it waits until others tell it to go on."""
    own: set[Atom] = field(default_factory=set)
    """Of what a thread is given, what may pick things and differs from task to task."""

    @property
    def name(self) -> str:
        """The worker function's name, as reports show it."""
        return _names(self.task)[0]

    @property
    def runs(self) -> str:
        """The step at which workers get the task; any of several functions may be the one."""
        *others, last = (f"`{name}`" for name in _names(self.task))
        named = f"{', '.join(others)} or {last}" if others else last
        return f"{named} runs in {self.call.workers}"

    def function_of(self, effect: Effect) -> str:
        """The name of what has `effect` in the worker: the task, or the initializer."""
        if self.initializer is not None and effect in self.effects[: self.initialised]:
            return _names(self.initializer)[0]
        return self.name

    def split_by_initializer(
        self, crossing: list[tuple[str, Atom, bool]]
    ) -> Iterator[tuple[TaskCall, list[tuple[str, Atom, bool]]]]:
        """What of that crosses with the task, and what with the initializer of its worker."""
        yield self.task, crossing[: self.first_at_start]
        if self.initializer is not None:
            yield self.initializer, crossing[self.first_at_start :]

    def same_path(self, effect: Effect, earlier: Effect) -> bool:
        """Whether `effect` of this task and `earlier` of the parent happen on one way."""
        before = self.call.before.get(earlier, earlier.when)
        there = WITH_A_GPU if "context" in (effect.gpu_use, earlier.gpu_use) else NONE
        return consistent(before, self.call.when, effect.when, there) and not alternatives(
            before, (*self.call.when, *effect.when)
        )


@fields
class Effect(_About[P]):
    """Something that was seen to happen at a place.

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
    """All that was seen of one program."""

    entry: str
    calls: list[ParallelCall] = field(default_factory=list)
    in_line: list[TaskCall] = field(default_factory=list)
    """The tasks that run where they are given out, one after the other."""
    nested: list[ParallelCall] = field(default_factory=list)
    """Those of workers, by which they send something on; what is done there has its own workers."""
    effects: list[Effect] = field(default_factory=list)
    moved: dict[int, set[ast.AST]] = field(default_factory=dict)
    """What moves each model or estimator to the GPU, by its identity."""
    unsure: set[int] = field(default_factory=set)
    """The runs of functions that were called after the budget of another run had ended: how things
    stood there, nobody knows."""
    shared: set[int] = field(default_factory=set)
    """The models and tensors whose memory the program shares between processes, by identity."""
    generators: dict[ast.AST, set[int]] = field(default_factory=dict)
    """The identities of the random generators that each expression makes; 0: of more than one."""
    buffers: dict[int, int] = field(default_factory=dict)
    """Whose the buffers of that identity are."""
    returned: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Of the models that workers returned: the call, and the model that it is a copy of."""
    replaced: dict[int, set[int]] = field(default_factory=dict)
    """Of these models: those that were an attribute until it became one of them."""
    copies: dict[int, set[int]] = field(default_factory=dict)
    """What each copy is one of, by their identities."""
    sent_back: dict[int, int] = field(default_factory=dict)
    """Of the tensors that workers returned, and of what actors were made with: the identity that
    each had before it was sent."""
    loops: list[Effect] = field(default_factory=list)
    """The effects of functions that start no workers, but take gradients in loops."""
    imports: dict[str, set[str]] = field(default_factory=dict)
    """The modules of the project that each of them imports, whoever imports it; of those that were
    run."""
    calls_elsewhere: dict[tuple[str, int], int] = field(default_factory=dict)
    """The functions of other modules that it calls, by path and line, each with the line of its
    own function by which it comes there; 0 is the module's own code."""
    defaults: dict[Key, tuple[Hashable, ...]] = field(default_factory=dict)
    """What its options, and arguments that nobody here gives, are by default."""
    cut: set[tuple[str, int, int]] = field(default_factory=set)
    """The functions that some calls were not followed to: the path, the first and last line."""
    unfinished: dict[tuple[str, int, str | None], str] = field(default_factory=dict)
    """All functions that a budget cut off, by path, line and name, each with the reason."""
    hides_gpus: bool = False
    """Whether it says in its environment that no GPU is to be seen."""
    guarded: bool = False
    """Whether it tells that it is started as a program from that it is imported."""

    def effects_of(self, *kinds: type[Q]) -> list[Effect[Q]]:
        """The effects with payloads of these classes, in order."""
        return list(of_kinds(self.effects, *kinds))

    def library_uses(self, *uses: str) -> list[Effect[LibraryUse]]:
        """The uses of libraries in these ways, in order."""
        return [it for it in self.effects_of(LibraryUse) if it.payload.use in uses]

    def process_tasks(self) -> list[TaskRun]:
        """The tasks that worker processes run."""
        return [task for call in self.calls if call.kind == PROCESS for task in call.tasks]

    def of_object(self, made: int) -> list[TaskRun]:
        """The tasks that are methods of the object which the call of that identity made."""
        return [task for task in self.process_tasks() if made and task.call.traits.actor == made]

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
