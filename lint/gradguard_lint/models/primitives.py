"""The primitives: what stubs of libraries can say beside plain Python.

A stub imports them from here, and calls them as functions:

    from gradguard_lint.models.primitives import backward, unknown

Each is given the place in the program that calls the library (`At`), and the values of its
arguments. A parameter annotated ``str`` or ``bool`` is given the constant; one annotated ``Args``
all arguments that are left; one annotated ``Instance`` each object that the argument may be, one
after the other. A primitive that returns nothing gives None.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable

from gradguard_lint.domain.payloads import LibraryUse
from gradguard_lint.domain.shapes import items, sequence
from gradguard_lint.domain.values import (
    NOTHING,
    RANK,
    UNKNOWN,
    Atom,
    Frame,
    Instance,
    Items,
    Table,
    TaskCall,
    Tensor,
    Thing,
    Unknown,
    Value,
    constant,
    join,
    of,
)
from gradguard_lint.domain.values import PRIMITIVES as PREFIX
from gradguard_lint.domain.values import unknown as value_of
from gradguard_lint.engine import turns, waiting
from gradguard_lint.engine.containers import element_of
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.engine.stub_calls import Caller
from gradguard_lint.engine.tasks import in_line
from gradguard_lint.engine.truth import truthy
from gradguard_lint.models.transfers import (
    collectives,
    dask_work,
    data_parallel,
    loaders,
    optimizers,
    options,
    processes,
    samplers,
    starting,
    work,
)
from gradguard_lint.models.transfers.devices import asks_for_cpu, driver_started
from gradguard_lint.models.transfers.handing import task_given, tasks_of_each, tasks_of_tuples
from gradguard_lint.models.transfers.own_gradients import goes_backward
from gradguard_lint.models.transfers.tensor_uses import value_used
from pytest_gradguard.records import fields

Primitive = Callable[[Machine, Frame, ast.AST, Args], Value]

PRIMITIVES: dict[str, Primitive] = {}
"""The primitives by their full names."""


@fields
class At:
    """Where the program calls the library."""

    m: Machine
    frame: Frame
    node: ast.AST

    @property
    def caller(self) -> Caller:
        """The program's call, with its arguments."""
        return self.m.place.stub_caller or Caller(self.frame, self.node, Args())


def primitive(function: Callable[..., Value | None]) -> Callable[..., Value | None]:
    """Make `function` a primitive."""
    _, *parameters = inspect.signature(function).parameters.values()
    names = {parameter.name for parameter in parameters}
    objects = next((i for i, it in enumerate(parameters) if it.annotation == "Instance"), None)

    def call(m: Machine, frame: Frame, node: ast.AST, args: Args) -> Value:
        given: list[object] = []
        for position, parameter in enumerate(parameters):
            if parameter.kind is parameter.VAR_POSITIONAL:
                given += args.positional[position:]
            elif parameter.annotation == "Args":
                given.append(args.after(position, names))
            else:
                value = args.get(position, parameter.name)
                given.append(
                    parameter.default if value is None else _converted(value, parameter.annotation)
                )
        at = At(m, frame, node)
        if objects is None:
            return function(at, *given) or NOTHING
        of_each, rest = given[objects], given[objects + 1 :]
        assert isinstance(of_each, Value)
        found = [function(at, *given[:objects], it, *rest) for it in of_each.of(Instance)]
        return join(it or NOTHING for it in found)

    PRIMITIVES[PREFIX + function.__name__] = call
    return function


def _converted(value: Value, annotation: str) -> object:
    """`value` as a parameter with that `annotation` has it."""
    if annotation == "str":
        return value.constant if isinstance(value.constant, str) else ""
    return truthy(value) if annotation == "bool" else value


# -- values ---------------------------------------------------------------------------------------


@primitive
def unknown(at: At) -> Value:
    """Something of which nothing is known."""
    return UNKNOWN


@primitive
def output(at: At, outputs: Value, name: str) -> Value:
    """The entry or attribute `name` of what a model gives, the first item of a tuple, or all of
    it."""

    def part(atom: Atom) -> Value:
        if isinstance(atom, Table):
            return atom.get(name) or UNKNOWN
        if isinstance(atom, Items):
            return atom.items[0] if atom.items else UNKNOWN
        if isinstance(atom, Instance):
            return at.m.read(atom.ident, name) or UNKNOWN
        if isinstance(atom, Thing) and atom.kind == "namespace":
            return options.namespace_attribute(at.m, atom, name)
        return of(atom)

    return outputs.map(part)


@primitive
def certainly(at: At, condition: Value) -> Value:
    """Whether `condition` is known to hold."""
    return constant(condition.constant is True)


# -- workers --------------------------------------------------------------------------------------


@primitive
def task(at: At, function: Value, given: Args) -> Value:
    """A task that calls `function` with what follows; nothing if `function` is None."""
    if function.is_none:
        return NOTHING
    return of(task_given(at.m, at.caller, function, given))


@primitive
def each(at: At, function: Value, *iterables: Value) -> Value:
    """A list of tasks, which call `function` with an item of each of `iterables`."""
    return sequence(of(tasks_of_each(at.m, at.caller, function, iterables)))


@primitive
def unpacked(at: At, function: Value, iterable: Value, others: bool = False) -> Value:
    """A list of tasks, which call `function` with the items of each tuple in `iterable`; with
    `others`, what is no tuple is given as it is."""
    made = tasks_of_tuples(at.m, at.caller, function, iterable, others=others)
    return sequence(of(made))


@primitive
def hand_out(
    at: At, pool: Instance, tasks: Value, gives: str = "", callback: Value | None = None
) -> Value:
    """What the workers of `pool` give for a task, or for a list of them.

    `gives` is "" if the call waits for that, "future" if it gives a future of it, and "futures" if
    it gives one for each task; `callback` is called with the result. The class of `pool` says in
    `_library`, `_torch_pickles`, `_forks` and `_daemons` what kind of pool it is, the object in
    `_method` how its workers start.
    """
    return work.give_work(at.m, at.frame, at.node, pool, tasks, gives, callback)


@primitive
def make_there(at: At, actor: Instance, task: Value) -> None:
    """What `task` makes stays in a worker of `actor`, as its `_made`: its methods run there."""
    work.make_there(at.m, at.frame, at.node, actor, task)


@primitive
def run_here(at: At, tasks: Value) -> Value:
    """The results of a list of tasks that run one after the other, in no worker."""
    return sequence(in_line(at.m, at.frame, list(element_of(at.m, tasks).of(TaskCall))))


@primitive
def run_processes(
    at: At,
    task: Value,
    library: str,
    start: Value,
    several: Value,
    daemon: bool,
    torch_pickles: bool = True,
) -> Value:
    """Run `task` in a process of its own, or in `several` of them, which start as `start` says."""
    processes.run_processes(
        *(at.m, at.frame, at.node, list(task.of(TaskCall)), start, library),
        several=constant(several.constant is not False),
        torch_pickles=torch_pickles,
        daemons=daemon,
    )
    return UNKNOWN


@primitive
def start_process(at: At, worker: Instance) -> None:
    """Start `worker`: a process or thread that runs its own `run`, or its `_task`."""
    processes.start_instance(at.m, at.frame, at.node, worker)


@primitive
def begin_pool(at: At, pool: Instance) -> None:
    """A pool is made: from here on its workers may be there."""
    work.begin_pool(at.m, pool)


@primitive
def wait_for(at: At, worker: Instance, timeout: Value | None = None) -> None:
    """The program waits for the end of `worker`; with a `timeout`, that may not have come."""
    if timeout is None or timeout.is_none:
        waiting.wait_for(at.m, worker.ident)
    else:
        waiting.ask_for_end(at.m, at.node, worker.ident)


@primitive
def ask_for_end(at: At, worker: Instance) -> Value:
    """Whether `worker` has come to its end."""
    return value_of(waiting.ask_for_end(at.m, at.node, worker.ident))


@primitive
def results(at: At, futures: Value) -> Value:
    """What a future holds, or each of a list of `futures`, for which the program waits."""
    return work.result_of(at.m, at.m.filtered(futures))


@primitive
def start_method(at: At, context: Value, library: str) -> Value:
    """How workers start that are given `context`: a context or the name of a start method; if it
    is None, how the processes of `library` do."""
    return starting.start_in(at.m, context, library)


@primitive
def in_loop(at: At) -> Value:
    """Whether the call stands in a loop."""
    return constant(turns.in_loop(at.m, at.frame))


@primitive
def place(at: At) -> Value:
    """The place of the call, for reports."""
    return of(Thing("place", "", site=at.m.site(at.frame, at.node)))


@primitive
def rank(at: At) -> Value:
    """The number of a process among others that run the same."""
    return value_of(RANK)


@primitive
def set_client(at: At, client: Value) -> None:
    """From here on, dask computes with `client`."""
    at.m.store[dask_work.CLIENT] = client


@primitive
def drop_client(at: At) -> None:
    """From here on, dask computes with no client."""
    at.m.store.drop(dask_work.CLIENT)


# -- gradients and ranks --------------------------------------------------------------------------


@primitive
def backward(at: At, loss: Value, what: str) -> Value:
    """The library runs the backward pass of `loss`; reports call it `what`."""
    return goes_backward(at.m, at.frame, at.node, what, loss)


@primitive
def joins_group(at: At, what: str) -> None:
    """This process may join others that train together; reports call the call `what`."""
    at.m.effect(at.frame, at.node, what, LibraryUse("process group"))


@primitive
def gathered(at: At, value: Value, what: str) -> Value:
    """What a collective called `what` gives of `value`: of all ranks, without a graph."""
    received = collectives.cut_off(at.m, at.frame, at.node, what, value)
    return of(Tensor("torch", born=at.m.worker_ident)) if received.is_unknown else received


@primitive
def prepared(at: At, by: str, *values: Value) -> Value:
    """The one of `values`, or a tuple of them, prepared for ranks: a model wrapped by `by`, which
    averages gradients; an optimizer as it is; of all else nothing is known."""

    def change(atom: Atom) -> Value:
        if optimizers.optimizers(at.m, of(atom)):
            return of(atom)
        shown = isinstance(atom, Unknown) and at.m.facts.evidence.is_proved(atom.subject, "module")
        model = isinstance(atom, Thing) and atom.kind == "model"
        if shown or model or isinstance(atom, Instance):
            return data_parallel.wrap(at.m, at.node, by, atom)
        return UNKNOWN

    ready = [value.map(change) for value in values]
    return ready[0] if len(ready) == 1 else items("tuple", ready)


@primitive
def unwrapped(at: At, model: Value) -> Value:
    """The module in a wrapper that averages its gradients."""
    return model.map(lambda atom: data_parallel.module_in(atom) or of(atom))


# -- GPUs -----------------------------------------------------------------------------------------


@primitive
def starts_driver(at: At, what: str, given: Args) -> None:
    """The GPU's driver is started, unless an argument in `given` asks for the CPU."""
    if not asks_for_cpu(given):
        driver_started(at.m, at.frame, at.node, what, "torch")


# -- loaders --------------------------------------------------------------------------------------


@primitive
def load(at: At, loader: Instance) -> None:
    """`loader` is iterated: its workers start, and call its dataset."""
    loaders.iterate(at.m, at.frame, at.node, loader)


@primitive
def stack(at: At, samples: Value) -> None:
    """A batch is made of `samples`, on the device that they are on."""
    value_used(at.m, at.frame, at.node, [element_of(at.m, samples)])


@primitive
def worker_info(at: At) -> Value:
    """In a loader's worker, its dataset and what else it has of its own."""
    return loaders.worker_info(at.m, at.node)


@primitive
def begins_order(at: At, sampler: Instance) -> None:
    """`sampler` is made: it gives the order of the first epoch."""
    samplers.begins(at.m, at.frame, at.node, sampler)


@primitive
def new_epoch(at: At, sampler: Instance, epoch: Value) -> None:
    """`sampler` gives the order of that `epoch` from here on."""
    samplers.epoch_set(at.m, sampler, epoch)
