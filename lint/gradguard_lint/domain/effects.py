"""Records of one run: parallel calls, tasks and effects, each with the path that led there."""

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
    """Memory-mapping options that a context manager sets for the calls in it."""
    locked: bool = False
    compiled: bool = False
    averaged: bool = False
    """Whether the forward pass runs in a wrapper that averages gradients afterwards."""

    def after(self, inner: Modes) -> Modes:
        """The modes after a call that ended with `inner`: grad mode and joblib settings persist."""
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

    def joined_with(self, other: Modes) -> Modes:
        """The modes where two paths join: settings on which both agree."""
        met = replace(
            self,
            device=self.device if self.device == other.device else None,
            backend=self.backend if self.backend == other.backend else UNKNOWN,
            n_jobs=self.n_jobs if self.n_jobs == other.n_jobs else UNKNOWN,
        )
        return met if self.grad == other.grad else replace(met, grad=True, grad_site=None)


@record
class Step(Record):
    """One link of the call chain that leads to an effect."""

    site: Site
    message: str
    frame: Frame | None = None
    """The scope that contains the call."""


@record
class Waited(Record):
    """The program waited for a concurrent task, by its identity."""

    ident: int


@record
class Progress(Record):
    """Progress of a concurrent task was observed.

    Attributes:
        key: the question whose answer shows it; None if it is certain.
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
        start: the start method: ``loky``, ``fork``, ``spawn``, ``thread``, ``dask``.
        workers: what reports call the workers.
        library: ``joblib``, ``multiprocessing``, ``concurrent.futures``, ``dask`` ...
        many: whether it dispatches more than one task.
        before: the parent's events before the workers started.
        past: its events before the call, if the workers had started earlier.
        inherited: the modes at the start of the workers, which forked workers keep.
        when: the conditions of the call.
        chosen: the part of `when` that selects this kind of workers.
        channel: how tasks and results cross.
        traits: what distinguishes its workers.
        schedule: when the tasks run, as the program goes on.
        overlaps: other calls that run concurrently with workers of the same kind; not recorded in
            threads of earlier loops.
        worker: the task that makes the call, or None in the parent.
        chain: the calls that lead to it.
        frame: the scope that contains it.
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
        """Effects of the parent before the workers started, on a path compatible with this call."""
        return self._on_one_way(self.before.items(), kinds)

    def so_far(self, *kinds: type[Q]) -> list[Effect[Q]]:
        """Effects of the parent before this call, on a path compatible with it."""
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
        """`earlier` without effects of threads not yet waited for, which may be pending."""
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
    """Names of the functions that a task may call."""
    names = dict.fromkeys(filter(None, map(name_of, task.function.atoms)))
    return [*names] or ["the task"]


@fields
class TaskRun:
    """One task of a parallel call, as the interpreter ran it."""

    ident: int
    call: ParallelCall
    task: TaskCall
    contents: list[tuple[str, Atom, bool]] = field(default_factory=list)
    """Objects pickled with the task: the path, the object, and whether it differs by task."""
    given: list[tuple[str, Atom, bool]] = field(default_factory=list)
    """Objects passed to the task, pickled or not, in the form of `contents`."""
    places: dict[int, Site] = field(default_factory=dict)
    """Where models of the parent were moved to the GPU, by identity."""
    own_pickling: bool = False
    """Whether a class among `contents` defines its own pickling."""
    first_at_start: int = 0
    """The index in `contents` and `given` from which objects cross with the initializer."""
    returns: list[tuple[Value, Site]] = field(default_factory=list)
    held: list[tuple[Value, Site]] = field(default_factory=list)
    """Returned values, with plain objects replaced by their contents."""
    result: Value | None = None
    known: bool = False
    """Whether the worker's code was found and run."""
    effects: list[Effect] = field(default_factory=list)
    initializer: TaskCall | None = None
    initialised: int = 0
    """The number of effects of the initializer, which runs once per worker."""
    starting: bool = False
    """Whether the initializer is running."""
    waits: bool = False
    """Whether the task blocks until another one signals it."""
    own: set[Atom] = field(default_factory=set)
    """Selector values passed to a thread that differ between tasks."""

    @property
    def name(self) -> str:
        return _names(self.task)[0]

    @property
    def runs(self) -> str:
        """The message of the step in which workers get the task."""
        *others, last = (f"`{name}`" for name in _names(self.task))
        named = f"{', '.join(others)} or {last}" if others else last
        return f"{named} runs in {self.call.workers}"

    def function_of(self, effect: Effect) -> str:
        """The name of the function that has `effect`: the task or the initializer."""
        if self.initializer is not None and effect in self.effects[: self.initialised]:
            return _names(self.initializer)[0]
        return self.name

    def split_by_initializer(
        self, crossing: list[tuple[str, Atom, bool]]
    ) -> Iterator[tuple[TaskCall, list[tuple[str, Atom, bool]]]]:
        """`crossing`, split into objects of the task and of the worker's initializer."""
        yield self.task, crossing[: self.first_at_start]
        if self.initializer is not None:
            yield self.initializer, crossing[self.first_at_start :]

    def same_path(self, effect: Effect, earlier: Effect) -> bool:
        """Whether `effect` of this task and `earlier` of the parent can happen in one run."""
        before = self.call.before.get(earlier, earlier.when)
        there = WITH_A_GPU if "context" in (effect.gpu_use, earlier.gpu_use) else NONE
        return consistent(before, self.call.when, effect.when, there) and not alternatives(
            before, (*self.call.when, *effect.when)
        )


@fields
class Effect(_About[P]):
    """Something that happens at one site of the program.

    Attributes:
        payload: what happens.
        what: the expression as reports show it.
        worker: the task that it happens in, or None in the parent.
        root: the run that it happens in (1: the module's own code).
        chain: the calls that lead to it, from the start of the worker or program.
        when: the conditions of the effect.
        calls: earlier parallel calls, on any path.
        waits: earlier parallel calls after which no gradients were cleared.
        concurrent_calls: earlier parallel calls that may still run: not joined.
        origin: where its device was named.
        making: the objects under construction, outermost first, each with the expression that
            constructs it.
        on_import: the module whose import causes it in any process; "" if it happens in this
            process only.
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
        return self.payload.target

    @property
    def gpu_use(self) -> str:
        """How it uses a GPU; empty if it doesn't."""
        return self.payload.gpu_use


def of_kinds(effects: Iterable[object], *kinds: type[Q]) -> Iterator[Effect[Q]]:
    """The `effects` with payloads of these classes."""
    for effect in effects:
        if isinstance(effect, Effect) and isinstance(effect.payload, kinds):
            yield effect


@fields
class Program:
    """The results of running one program."""

    entry: str
    calls: list[ParallelCall] = field(default_factory=list)
    in_line: list[TaskCall] = field(default_factory=list)
    """Tasks that run sequentially in the caller."""
    nested: list[ParallelCall] = field(default_factory=list)
    """Parallel calls made by workers: what they send, not what their workers do."""
    effects: list[Effect] = field(default_factory=list)
    moved: dict[int, set[ast.AST]] = field(default_factory=dict)
    """Expressions that move a model or estimator to the GPU, by its identity."""
    unsure: set[int] = field(default_factory=set)
    """Roots that ran in an unknown state, after another root exceeded its budget."""
    shared: set[int] = field(default_factory=set)
    """Identities of models and tensors whose memory is shared between processes."""
    shared_once: set[int] = field(default_factory=set)
    """Identities in `shared` of modules shared outside of loops: each is one object."""
    generators: dict[ast.AST, set[int]] = field(default_factory=dict)
    """Identities of the random generators that an expression creates; 0: several."""
    buffers: dict[int, int] = field(default_factory=dict)
    """The identity of the model, by that of its buffer."""
    returned: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Models that workers returned: the call, and the original model."""
    replaced: dict[int, set[int]] = field(default_factory=dict)
    """Objects that an attribute held before a returned model replaced them."""
    copies: dict[int, set[int]] = field(default_factory=dict)
    """The originals of each copy, by their identities."""
    sent_back: dict[int, int] = field(default_factory=dict)
    """The original identity of each tensor that was sent back, or to an actor."""
    loops: list[Effect] = field(default_factory=list)
    """Gradient effects in loops of functions that start no workers."""
    imports: dict[str, set[str]] = field(default_factory=dict)
    """The project modules that each executed module imports."""
    calls_elsewhere: dict[tuple[str, int], int] = field(default_factory=dict)
    """Functions of other modules that the program calls, by path and line, with the line of the
    calling function of its own (0: module level)."""
    defaults: dict[Key, tuple[Hashable, ...]] = field(default_factory=dict)
    """Defaults of options, and of arguments that no caller passes."""
    cut: set[tuple[str, int, int]] = field(default_factory=set)
    """Functions with calls that weren't followed: the path, first and last line."""
    unfinished: dict[tuple[str, int, str | None], str] = field(default_factory=dict)
    """Functions that a budget cut off, by path, line and name, with the reason."""
    hides_gpus: bool = False
    """Whether it hides all GPUs in its environment."""
    guarded: bool = False
    """Whether it has an ``if __name__ == "__main__"`` guard."""

    def effects_of(self, *kinds: type[Q]) -> list[Effect[Q]]:
        """The effects with payloads of these classes, in order."""
        return list(of_kinds(self.effects, *kinds))

    def library_uses(self, *uses: str) -> list[Effect[LibraryUse]]:
        """The `LibraryUse` effects of these uses, in order."""
        return [it for it in self.effects_of(LibraryUse) if it.payload.use in uses]

    def process_tasks(self) -> list[TaskRun]:
        """The tasks that worker processes run."""
        return [task for call in self.calls if call.kind == PROCESS for task in call.tasks]

    def of_actor(self, actor: int) -> list[TaskRun]:
        """The tasks that are methods of an actor, by the identity of the call that made it."""
        return [task for task in self.process_tasks() if actor and task.call.traits.actor == actor]

    def in_turn(self, call: ParallelCall, matters: Callable[[Effect], bool]) -> bool:
        """Whether each task of `call` in a loop ends before another task, or the program itself,
        has an effect that `matters`."""
        if not call.schedule.each or not call.schedule.until:
            return call.schedule.each  # a call in a loop without `until` waits by itself
        same = [it for it in self.calls if it.site == call.site and it.worker is call.worker]
        chained_loops = {
            it.schedule.loops for it in same if it.schedule.chained_start
        }  # the last task of such a loop is never joined
        return all(
            (it.schedule.awaited or it.schedule.loops in chained_loops)
            and not any(
                matters(effect)
                for other in it.overlaps
                if other.many
                for task in other.tasks
                for effect in task.effects
            )
            for it in same
        ) and not (chained_loops and any(self._joins_in(it, matters) for it in same))

    def _joins_in(self, call: ParallelCall, matters: Callable[[Effect], bool]) -> bool:
        """Whether the program has such effects on the same objects while `call` may run."""
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
