"""The primitives: functions for stubs of libraries, beside plain Python.

A stub imports them from here, and calls them as functions:

    from gradguard_lint.models.primitives import backward, unknown

Each receives the program's call of the library (`At`), and the values of its arguments. A parameter
annotated ``str`` or ``bool`` receives the constant; one annotated ``Args`` all remaining arguments;
one annotated ``Instance`` each object that the argument may be, in turn. A primitive without a
result returns None.
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
from gradguard_lint.engine.tasks import run_in_caller
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
    """The program's call of the library."""

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
    """`value` as a parameter with that `annotation` receives it."""
    if annotation == "str":
        return value.constant if isinstance(value.constant, str) else ""
    return truthy(value) if annotation == "bool" else value


# -- values ---------------------------------------------------------------------------------------


@primitive
def unknown(at: At) -> Value:
    """An unknown value."""
    return UNKNOWN


@primitive
def output(at: At, outputs: Value, name: str) -> Value:
    """The entry or attribute `name` of a model's outputs, the first item of a tuple, or all."""

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
    """Whether `condition` certainly holds."""
    return constant(condition.constant is True)


# -- workers --------------------------------------------------------------------------------------


@primitive
def task(at: At, function: Value, given: Args) -> Value:
    """A task that calls `function` with the other arguments; None if `function` is None."""
    if function.is_none:
        return NOTHING
    return of(task_given(at.m, at.caller, function, given))


@primitive
def each(at: At, function: Value, *iterables: Value) -> Value:
    """A list of tasks that call `function` with an item of each of `iterables`."""
    return sequence(of(tasks_of_each(at.m, at.caller, function, iterables)))


@primitive
def unpacked(at: At, function: Value, iterable: Value, others: bool = False) -> Value:
    """A list of tasks that call `function` with the items of each tuple in `iterable`; with
    `others`, items that are no tuples are passed as they are."""
    made = tasks_of_tuples(at.m, at.caller, function, iterable, others=others)
    return sequence(of(made))


@primitive
def hand_out(
    at: At, pool: Instance, tasks: Value, gives: str = "", callback: Value | None = None
) -> Value:
    """The result of a task, or of a list of tasks, in the workers of `pool`.

    `gives` is "" if the call waits for the result, "future" if it returns a future, and "futures"
    if it returns one for each task; `callback` is called with the result. The class of `pool` sets
    `_library`, `_torch_pickles`, `_forks` and `_daemons`, the object `_method`, its start method.
    """
    return work.give_work(at.m, at.frame, at.node, pool, tasks, gives, callback)


@primitive
def make_there(at: At, actor: Instance, task: Value) -> None:
    """Create an object by `task` in a worker of `actor`, as its `_made`; methods run there."""
    work.make_there(at.m, at.frame, at.node, actor, task)


@primitive
def run_here(at: At, tasks: Value) -> Value:
    """The results of a list of tasks that run sequentially in the caller."""
    return sequence(run_in_caller(at.m, at.frame, list(element_of(at.m, tasks).of(TaskCall))))


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
    """Run `task` in one process, or in `several`, with the start method `start`."""
    processes.run_processes(
        *(at.m, at.frame, at.node, list(task.of(TaskCall)), start, library),
        several=constant(several.constant is not False),
        torch_pickles=torch_pickles,
        daemons=daemon,
    )
    return UNKNOWN


@primitive
def start_process(at: At, worker: Instance) -> None:
    """Start `worker`: a process or thread with its own `run`, or a `_task`."""
    processes.start_instance(at.m, at.frame, at.node, worker)


@primitive
def begin_pool(at: At, pool: Instance) -> None:
    """Record that a pool is created, whose workers may start from here on."""
    work.begin_pool(at.m, pool)


@primitive
def wait_for(at: At, worker: Instance, timeout: Value | None = None) -> None:
    """Wait for the end of `worker`; with a `timeout`, it may still run afterwards."""
    if timeout is None or timeout.is_none:
        waiting.wait_for(at.m, worker.ident)
    else:
        waiting.ask_for_end(at.m, at.node, worker.ident)


@primitive
def ask_for_end(at: At, worker: Instance) -> Value:
    """Whether `worker` has ended."""
    return value_of(waiting.ask_for_end(at.m, at.node, worker.ident))


@primitive
def results(at: At, futures: Value) -> Value:
    """The result of a future, or of each in a list of `futures`; the program waits."""
    return work.result_of(at.m, at.m.filtered(futures))


@primitive
def start_method(at: At, context: Value, library: str) -> Value:
    """The start method of `context` (a context, or a name); if it is None, the default of
    `library`."""
    return starting.start_in(at.m, context, library)


@primitive
def in_loop(at: At) -> Value:
    """Whether the call is in a loop."""
    return constant(turns.in_loop(at.m, at.frame))


@primitive
def place(at: At) -> Value:
    """The site of the call, for reports."""
    return of(Thing("place", "", site=at.m.site(at.frame, at.node)))


@primitive
def rank(at: At) -> Value:
    """The rank of a process."""
    return value_of(RANK)


@primitive
def set_client(at: At, client: Value) -> None:
    """Record that dask computes with `client` from here on."""
    at.m.store[dask_work.CLIENT] = client


@primitive
def drop_client(at: At) -> None:
    """Record that dask computes without a client from here on."""
    at.m.store.drop(dask_work.CLIENT)


# -- gradients and ranks --------------------------------------------------------------------------


@primitive
def backward(at: At, loss: Value, what: str) -> Value:
    """Run the backward pass of `loss`; reports call it `what`."""
    return goes_backward(at.m, at.frame, at.node, what, loss)


@primitive
def joins_group(at: At, what: str) -> None:
    """Record that this process may join a process group, by the call `what`."""
    at.m.effect(at.frame, at.node, what, LibraryUse("process group"))


@primitive
def gathered(at: At, value: Value, what: str) -> Value:
    """The result of the collective `what` for `value`, from all ranks, without a graph."""
    received = collectives.cut_off(at.m, at.frame, at.node, what, value)
    return of(Tensor("torch", born=at.m.worker_ident)) if received.is_unknown else received


@primitive
def prepared(at: At, by: str, *values: Value) -> Value:
    """One of `values`, or a tuple of several, prepared for ranks: a model wrapped by `by`, which
    averages gradients; an optimizer unchanged; others unknown."""

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
    """The module inside a wrapper that averages its gradients."""
    return model.map(lambda atom: data_parallel.module_in(atom) or of(atom))


# -- GPUs -----------------------------------------------------------------------------------------


@primitive
def starts_driver(at: At, what: str, given: Args) -> None:
    """Start the GPU driver, unless an argument in `given` selects the CPU."""
    if not asks_for_cpu(given):
        driver_started(at.m, at.frame, at.node, what, "torch")


# -- loaders --------------------------------------------------------------------------------------


@primitive
def load(at: At, loader: Instance) -> None:
    """Iterate `loader`: its workers start, and call its dataset."""
    loaders.iterate(at.m, at.frame, at.node, loader)


@primitive
def stack(at: At, samples: Value) -> None:
    """Create a batch of `samples`, on their device."""
    value_used(at.m, at.frame, at.node, [element_of(at.m, samples)])


@primitive
def worker_info(at: At) -> Value:
    """The worker info: in a loader's worker, its dataset and rank."""
    return loaders.worker_info(at.m, at.node)


@primitive
def begins_order(at: At, sampler: Instance) -> None:
    """Record that `sampler` is created, with the order of the first epoch."""
    samplers.begins(at.m, at.frame, at.node, sampler)


@primitive
def new_epoch(at: At, sampler: Instance, epoch: Value) -> None:
    """Record that `sampler` has the order of that `epoch` from here on."""
    samplers.epoch_set(at.m, sampler, epoch)
