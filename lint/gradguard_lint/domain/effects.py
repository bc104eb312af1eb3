"""What a run of the interpreter saw: the parallel calls, and the effects, each with its way."""

from __future__ import annotations

from gradguard_lint.domain.conditions import NONE, WITH_A_GPU, Conditions, alternatives, consistent
from gradguard_lint.domain.shapes import idents, name_of
from gradguard_lint.domain.starts import PROCESS, THREAD
from gradguard_lint.domain.values import UNKNOWN, Atom, Frame, Instance, Site, TaskCall, Value
from pytest_gradguard.records import Record, field, fields, record, replace

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    import ast
    from collections.abc import Hashable, Iterable, Iterator
    from typing import Literal

    from gradguard_lint.domain.questions import Key
    from gradguard_lint.domain.starts import WorkerKind

    Kind = Literal[
        "autograd",  # autograd runs: where there is a GPU, it starts threads and the driver
        "awake",  # `framework` has its threads from here on, without a computation
        "backward",  # a backward, or the asking for gradients, of `target` (to `value`)
        "capture",  # a worker uses a variable from outside: `value`, of module `home`; where that
        # is not known, `values` holds what the module's import gave it; or an attribute of the
        # object `ident`
        "collective",  # a collective gives `target` to other processes, as `ident`
        "compute",  # a computation with `framework`
        "cut-off",  # `target` is detached, or wants no gradient, for all who have it
        "ddp-bypass",  # a forward of a wrapped module, but not by its wrapper, as `ident`; `place`
        # is where a method of the module is called that leads to it
        "ddp-step",  # an optimizer steps with gradients of one process, which came by `ident`
        "dask-backend",  # a backend that cannot be named so
        "draw",  # a draw from the global generator of `framework`; the GPU's, if `target` is there
        "epoch-repeated",  # the sampler `ident` is iterated again, in the loop at `place`
        "exact-write",  # a write to `target` that no other thread can spoil
        "generator-draw",  # a draw from the generator object `ident`
        "generator-loaded",  # the global generator of `framework` is there from here on
        "global-change",  # a global of module `home` is bound anew
        "gpu-chosen",  # a block, or what prepares a worker, may say which GPU is used
        "gpu-driver",  # the GPU's driver is started, without a context
        "element-backward",  # a gradient is asked for of one element of a tensor
        "gpu-grown",  # the GPU's memory is taken as it is needed: in all children too, or in this
        # process alone, if `framework` is given
        "gpu-hidden",  # no GPU is seen from here on; in this process alone, if `framework` is given
        "gpu-hint",  # another library is told to use a GPU
        "gpu-implied",  # `framework` takes the GPU without being told
        "gpu-init",  # a GPU context is made
        "gpu-named",  # the same where the program is told that it is a GPU, which nothing shows
        "gpu-meant",  # the program shows that it means to use a GPU
        "gpu-search",  # several jobs over an estimator on a GPU
        "gpu-unasked",  # the driver is not started by questions of `framework` from here on
        "gpu-used",  # a forked worker computes with what lies on a GPU
        "grad-read",  # `.grad` of `target` is read
        "gradient-cut",  # a backward reaches the outputs of collectives in `target`
        "gradient-collected",  # the gradient of one example is collected in the loop at `place`
        "grad-write",  # `.grad` of `target` is set, or shared between processes
        "graph",  # an operation makes a graph
        "gpu-shown",  # the environment no longer says which GPUs are to be seen
        "handed-on",  # a worker gives to something unknown what comes to modules, perhaps: `values`
        # are what can be come to by that, where the worker is a process and goes backward
        "hook",  # a hook is put on the tensor `target`
        "in-place",  # a write to `target`: a "whole" one, by `framework`, if nothing is left of it
        "imports",  # a function of the parent's imports the module `home` of the project
        "keras-fit",  # a Keras model fits or predicts on `values`
        "loader-workers",  # the loader `target` starts workers of its own
        "loss-given",  # a method gives `target` to a library, which goes backward from it
        "map-fn",  # a mapping with `value` iterations at once
        "may-load",  # a library is imported that may load `framework`
        "memory-graph",  # the cached function at `place` returns a tensor with history
        "mode-set",  # a mode called `framework` is put in force
        "memory-shared",  # `target` is made on the memory of an array
        "memory-write",  # the memory of `target` is written to
        "model-change",  # the model `target` is changed; by `value`, as a whole or in part, as
        # `framework` says
        "model-use",  # the model `target` is saved, or its state is asked for
        "one-job",  # the search `ident` is told to fit in one job
        "optimizer-change",  # the optimizer `target` may get other parameters
        "parameter",  # `target`, on the memory of an array, becomes a parameter
        "process-group",  # this process joins a group of processes that train together
        "reduced",  # processes reduce `target`
        "removed-wrapper",  # a module is used that no longer exists
        "seed",  # the global generator of `framework` (some, where it is "") is seeded by `value`
        "several-threads",  # the compute threads of `framework` are set to more than one
        "set-threads",  # the compute threads of `framework` (any, where it is "") are limited
        "set-visible",  # the visible GPUs are set in the environment, to `value`
        "statistics",  # the model `target` runs, in the mode `framework`: training writes buffers
        "step",  # the optimizer `target` steps
        "tape-gradient",  # a tape is asked for gradients
        "unhook",  # the hook of the tensor `target` is removed
        "unknown-call",  # a worker calls something unknown
        "unknown-step",  # something unknown goes `backward`, or makes a `step` (`what`), in the
        # innermost loop at `place`
        "visible-devices",  # TensorFlow's devices are set, to `value`
        "zero-grad",  # the gradients of `target` are cleared
    ]

ORDERED: frozenset[Kind] = frozenset(
    {
        "autograd",
        "awake",
        "compute",
        "exact-write",
        "generator-loaded",
        "global-change",
        "gpu-driver",
        "gpu-grown",
        "gpu-hidden",
        "gpu-init",
        "gpu-named",
        "gpu-unasked",
        "gpu-shown",
        "hook",
        "imports",
        "in-place",
        "may-load",
        "model-change",
        "seed",
        "set-threads",
        "set-visible",
        "step",
        "unhook",
        "visible-devices",
    }
)
"""What is remembered of the way: rules ask whether it came before."""


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
        ships: whether the arguments are pickled, or inherited.
        answers: whether what the tasks return comes back.
        forking_pickler: whether torch itself pickles tensors for it: in shared memory, and none
            with history.
        meant: whether it was asked for a GPU for these workers.
        prepared: whether the library seeds each worker, and limits its compute threads.
        maker: the expression that makes what runs the tasks: the pool, the ``Parallel`` object.
        maps: from how many bytes on arrays arrive as memory maps, and in which mode.
        daemons: whether the workers are daemons, which may start no processes.
        made: the identity of the call that made the object whose method is called, which lives in
            the worker since; 0 for other calls.
        single: whether each task has a worker of its own, which ends with it.
        each: whether it gives out one task each time that it is made.
        turn: the turn of the loops around in which it is made.
        loops: where these are.
        awaited: whether its end is waited for in that turn.
        relayed: whether the next one is made in that loop, once it has ended; None: it is not known
            to end before another one.
        overlaps: the others that run while it does, threads or processes as it does; threads of
            loops before are not told.
        until: where the program goes on meanwhile, what it waits with for the end of the tasks, by
            identity: the thread, the future, the executor.
        queue: the executor whose only worker runs its tasks one after the other, by identity; 0:
            there is none.
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
    ships: bool = True
    answers: bool = True
    forking_pickler: bool = False
    meant: bool = False
    prepared: bool = False
    maker: Site | None = None
    maps: tuple[int, str] | None = None
    daemons: bool = False
    made: int = 0
    single: bool = False
    each: bool = False
    turn: tuple[int, ...] = ()
    loops: tuple[Site, ...] = ()
    awaited: bool = False
    relayed: bool | None = None
    overlaps: list[ParallelCall] = field(default_factory=list)
    until: frozenset[int] = frozenset()
    queue: int = 0
    worker: TaskRun | None = None
    chain: tuple[Step, ...] = ()
    frame: Frame | None = None

    def earlier(self, *kinds: Kind) -> list[Effect]:
        """What the parent did, on one way with this call, before the workers came into being."""
        return self._on_one_way(self.before.items(), kinds)

    def so_far(self, *kinds: Kind) -> list[Effect]:
        """The same before the call itself."""
        past = self.before if self.past is None else self.past
        return self._on_one_way(past.items(), kinds)

    def _on_one_way(
        self, past: Iterable[tuple[object, Conditions]], kinds: tuple[Kind, ...]
    ) -> list[Effect]:
        return [
            event
            for event, when in past
            if isinstance(event, Effect) and event.kind in kinds and consistent(when, self.when)
        ]

    def certain(self, *kinds: Kind) -> list[Effect]:
        """The same without what threads do for which nobody had waited: they may not have come to
        that yet."""
        return [effect for effect in self.earlier(*kinds) if self._is_done(effect)]

    def _is_done(self, effect: Effect) -> bool:
        worker = effect.worker
        if worker is None or worker is self.worker or not worker.call.until:
            return True
        waits = [self.before.get(Waited(ident)) for ident in worker.call.until]
        waits += [
            when
            for event, when in self.before.items()
            if isinstance(event, Told)
            and (effect in event.effects or not event.until.isdisjoint(worker.call.until))
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

    def doer(self, effect: Effect) -> str:
        """The name of what has `effect` in the worker: the task, or the initializer."""
        if self.initializer is not None and effect in self.effects[: self.initialised]:
            return _names(self.initializer)[0]
        return self.name

    def parted(
        self, crossing: list[tuple[str, Atom, bool]]
    ) -> Iterator[tuple[TaskCall, list[tuple[str, Atom, bool]]]]:
        """What of that crosses with the task, and what with the initializer of its worker."""
        yield self.task, crossing[: self.first_at_start]
        if self.initializer is not None:
            yield self.initializer, crossing[self.first_at_start :]

    def meets(self, effect: Effect, earlier: Effect) -> bool:
        """Whether `effect` of this task and `earlier` of the parent happen on one way."""
        before = self.call.before.get(earlier, earlier.when)
        there = WITH_A_GPU if "gpu-init" in (effect.kind, earlier.kind) else NONE
        return consistent(before, self.call.when, effect.when, there) and not alternatives(
            before, (*self.call.when, *effect.when)
        )


@fields
class Effect:
    """Something that was seen to happen at a place.

    Attributes:
        what: the expression, in words, as reports show it.
        worker: the task that it happens in, or None in the parent.
        root: the run that it happens in (1: the module's own code).
        chain: the calls that lead to it, from the worker's (or the program's) start.
        when: the conditions that it happens under.
        calls: the parallel calls that came before it on some way.
        waits: those of them for whose gradients it may wait: none were cleared since.
        beside: those of them that may run still: nobody has asked for their end.
        making: the objects that are being made there, from the outermost in, each with the
            expression that makes it.
        on_import: the module whose import has it, in whichever process; "" where it is done in
            this process only.
    """

    kind: Kind
    site: Site
    what: str
    worker: TaskRun | None
    root: int
    chain: tuple[Step, ...] = ()
    modes: Modes = field(default_factory=Modes)
    when: Conditions = NONE
    calls: set[int] = field(default_factory=set)
    waits: set[int] = field(default_factory=set)
    beside: set[int] = field(default_factory=set)
    framework: str = ""
    heavy: bool = False
    always: bool = False
    """Whether it needs compute threads though the same has been computed before."""
    asks: bool = False
    """Whether it asks or waits, and puts nothing on the GPU that the program asked for; of an order
    that is given again, whether somebody asked for that."""
    bare: bool = False
    """Whether CUDA is initialised, and no context is made on a GPU."""
    grown: bool = False
    """Whether the GPU's memory is taken as it is needed."""
    unknown: bool = False
    """Whether it is something unknown that is called, or calls what does this."""
    target: Value = UNKNOWN
    value: Value = UNKNOWN
    values: tuple[Value, ...] = ()
    ident: int = 0
    home: str = ""
    is_global: bool = False
    place: Site | None = None
    named: tuple[tuple[str, Value], ...] = ()
    """What has to do with it has these names at `place`, each with its value."""
    origin: Step | None = None
    """Where the device that it uses was named."""
    making: tuple[tuple[Instance, ast.AST], ...] = ()
    on_import: str = ""


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

    def kinds(self, *kinds: Kind) -> list[Effect]:
        """The effects of these kinds, in order."""
        return [effect for effect in self.effects if effect.kind in kinds]

    def process_tasks(self) -> list[TaskRun]:
        """The tasks that worker processes run."""
        return [task for call in self.calls if call.kind == PROCESS for task in call.tasks]

    def of_object(self, made: int) -> list[TaskRun]:
        """The tasks that are methods of the object which the call of that identity made."""
        return [task for task in self.process_tasks() if made and task.call.made == made]

    def in_turn(self, call: ParallelCall, *kinds: str) -> bool:
        """Whether each task of `call`, which a loop makes again and again, has ended before another
        one, or the program itself, has such effects."""
        if not call.each or not call.until:
            return call.each  # the call itself waits
        same = [it for it in self.calls if it.site == call.site and it.worker is call.worker]
        relayed = {it.loops for it in same if it.relayed}  # nobody waits for the last one there
        return all(
            (it.awaited or it.loops in relayed)
            and not any(
                effect.kind in kinds
                for other in it.overlaps
                if other.many
                for task in other.tasks
                for effect in task.effects
            )
            for it in same
        ) and not (relayed and any(self._joins_in(it, kinds) for it in same))

    def _joins_in(self, call: ParallelCall, kinds: tuple[str, ...]) -> bool:
        """Whether the program itself has such effects on the same objects while `call` may run."""
        effects = [effect for task in call.tasks for effect in task.effects if effect.kind in kinds]
        shared = set[int]().union(*(idents(effect.target) for effect in effects))
        return any(
            effect.kind in kinds
            and effect.worker is call.worker
            and call.ident in effect.beside
            and not shared.isdisjoint(idents(effect.target))
            for effect in self.effects
        )

    def thread_tasks(self) -> list[TaskRun]:
        """The tasks that worker threads run."""
        return [task for call in self.calls if call.kind == THREAD for task in call.tasks]
