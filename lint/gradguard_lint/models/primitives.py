"""The primitives: what stubs of libraries can say beside plain Python.

A stub imports them from here, and calls them as functions:

    from gradguard_lint.models.primitives import backward, unknown

Each is given the place in the program that calls the library (`At`), and the values of its
arguments. A parameter annotated ``str`` or ``bool`` is given the constant; one annotated ``Args``
all arguments that are left.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable

from gradguard_lint.domain.shapes import items
from gradguard_lint.domain.values import (
    NOTHING,
    UNKNOWN,
    Atom,
    Frame,
    Instance,
    Items,
    Table,
    Thing,
    Unknown,
    Value,
    of,
)
from gradguard_lint.engine.calls import PRIMITIVES as PREFIX
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.engine.truth import truthy
from gradguard_lint.models.transfers import collectives, data_parallel, optimizers, options
from gradguard_lint.models.transfers.devices import asks_for_cpu, driver_started
from gradguard_lint.models.transfers.own_gradients import goes_backward
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


def primitive(function: Callable[..., Value]) -> Callable[..., Value]:
    """Make `function` a primitive."""
    _, *parameters = inspect.signature(function).parameters.values()
    names = {parameter.name for parameter in parameters}

    def call(m: Machine, frame: Frame, node: ast.AST, args: Args) -> Value:
        given: list[object] = []
        for position, parameter in enumerate(parameters):
            if parameter.kind is parameter.VAR_POSITIONAL:
                return function(At(m, frame, node), *given, *args.positional[position:])
            if parameter.annotation == "Args":
                given.append(args.after(position, names))
            else:
                value = args.get(position, parameter.name)
                given.append(
                    parameter.default if value is None else _converted(value, parameter.annotation)
                )
        return function(At(m, frame, node), *given)

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


# -- gradients and ranks --------------------------------------------------------------------------


@primitive
def backward(at: At, loss: Value, what: str) -> Value:
    """The library runs the backward pass of `loss`; reports call it `what`."""
    return goes_backward(at.m, at.frame, at.node, what, loss)


@primitive
def joins_group(at: At, what: str) -> Value:
    """This process may join others that train together; reports call the call `what`."""
    at.m.effect(at.frame, "process-group", at.node, what)
    return NOTHING


@primitive
def gathered(at: At, value: Value, what: str) -> Value:
    """What a collective called `what` gives of `value`: of all ranks, without a graph."""
    return collectives.cut_off(at.m, at.frame, at.node, what, value)


@primitive
def prepared(at: At, by: str, *values: Value) -> Value:
    """The one of `values`, or a tuple of them, prepared for ranks: a model wrapped by `by`, which
    averages gradients; an optimizer as it is; of all else nothing is known."""

    def change(atom: Atom) -> Value:
        if optimizers.optimizers(at.m, of(atom)):
            return of(atom)
        shown = isinstance(atom, Unknown) and atom.key in at.m.unknown_modules
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
def starts_driver(at: At, what: str, given: Args) -> Value:
    """The GPU's driver is started, unless an argument in `given` asks for the CPU."""
    if not asks_for_cpu(given):
        driver_started(at.m, at.frame, at.node, what, "torch")
    return NOTHING
