"""Objects of project classes that extend library classes: construction, calls, methods."""

from __future__ import annotations

import ast

from gradguard_lint.domain.values import (
    NOTHING,
    UNKNOWN,
    Atom,
    Frame,
    Instance,
    Tensor,
    Thing,
    Value,
    constant,
    of,
)
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.models.transfers import (
    attribute_tables,
    data_parallel,
    estimators,
    frozen,
    named_tuples,
    optimizers,
    parallel,
    tensorflow_calls,
    torch_modules,
    unknown_calls,
)
from pytest_gradguard.records import replace

_MADE = {
    optimizers.KIND: optimizers.init_instance,
    "estimator": estimators.init_instance,
    "gpu-estimator": estimators.init_instance,
    "parallel": parallel.keep_arguments,
}
"""The ``__init__`` that a project class inherits, by its kind."""


def made(m: Machine, frame: Frame, node: ast.AST, instance: Instance, args: Args) -> None:
    """Record the construction of an object, for the library class that its class extends."""
    what = instance.cls.what
    if what == "torch" and isinstance(node, ast.Call):  # not a representative of any object
        torch_modules.set_training(m, instance, constant(True), depth=0)
    after = m.find_in_class(instance.cls, "__attrs_post_init__")
    if after is not None and m.find_in_class(instance.cls, "__init__") is None:
        m.call(frame, node, m.bind(frame, node, after, instance), Args())
    if what == "parallel" and (instance.ident, "<parallel>") not in m.store:
        parallel.keep_arguments(m, frame, node, instance, args)
    elif what in _MADE and m.find_in_class(instance.cls, "__init__") is None:
        _MADE[what](m, frame, node, instance, args)
    if m.place.worker is not None and (
        m.find_in_class(instance.cls, "__new__") is not None
        or (not instance.cls.plain and m.find_in_class(instance.cls, "__init__") is None)
    ):
        unknown_calls.record_escapes(m, frame, node, args)  # its base class receives the arguments
    if what == "torch" and any(
        part.gpu for _, value in m.fields(instance.ident) for part in value.things("model")
    ):
        m.store[instance.ident, "<gpu>"] = constant(True)


def call(m: Machine, frame: Frame, node: ast.AST, instance: Instance, args: Args) -> Value:
    """An object is called."""
    what = instance.cls.what
    if what == "parallel":
        return parallel.run_instance(m, frame, node, instance, args)
    if m.place.worker is not None and not what:  # its base class receives that object, too
        unknown_calls.record_escapes(m, frame, node, Args([of(instance), *args.values()]))
    if what not in ("torch", "keras"):
        return UNKNOWN
    forward = m.find_in_class(instance.cls, "forward" if what == "torch" else "call")
    result = UNKNOWN
    if what == "torch":
        torch_modules.runs(m, frame, node, instance)
    if forward is not None:
        bound = m.bind(frame, node, forward, instance)
        result = data_parallel.direct_call(
            m, frame, node, instance.ident, lambda: m.call(frame, node, bound, args)
        )
    if what == "keras":
        if any(result.tensors()) or not result.is_unknown:
            return result
        model = Thing("keras-model", "Model", instance.ident)
        return tensorflow_calls.model_call(m, frame, node, model, args)
    gpu = torch_modules.instance_on_gpu(m, instance)
    if not any(result.tensors()):
        if not result.is_unknown:
            return result
        about = torch_modules.about_parts(m, instance) if forward is None else ()
        model = Thing("model", "Module", instance.ident, instance.born, gpu, about)
        return torch_modules.model_call(m, frame, node, model, args)

    def through(atom: Atom) -> Value:
        if not isinstance(atom, Tensor):
            return of(atom)
        sources = atom.sources | {instance.ident}
        partly = atom.grad == "unknown" and atom.framework == "torch" and m.modes.grad
        if partly and frozen.partly_frozen(m, instance.ident):
            atom = replace(atom, grad="history")
        return of(replace(atom, gpu=atom.gpu or gpu, sources=sources))

    return result.map(through)


def method(
    m: Machine, frame: Frame, node: ast.AST, instance: Instance, name: str, args: Args
) -> Value:
    """A method inherited from a library class."""
    what = instance.cls.what
    result: Value | None = None
    if what == "torch" and name == "__init__":
        torch_modules.keep_parts(m, instance, args)
        return NOTHING
    if what == "torch":
        gpu = torch_modules.instance_on_gpu(m, instance)
        result = torch_modules.model_method(
            m, frame, node, instance, instance.ident, gpu, name, args
        )
    elif what == "keras":
        result = tensorflow_calls.model_method(m, frame, node, instance, name, args)
    elif what in _MADE and name == "__init__":
        result = _MADE[what](m, frame, node, instance, args)
    elif what == optimizers.KIND:
        result = optimizers.method(m, frame, node, instance, name, args)
    elif what == attribute_tables.RECORD:
        result = attribute_tables.record_method(m, frame, node, instance, name, args)
    elif what == "tuple":
        result = named_tuples.method(m, node, instance, name, args)
    elif what in ("estimator", "gpu-estimator"):
        result = estimators.method(m, frame, node, instance, name, args)
    elif what == "parallel" and name == "__call__":
        result = parallel.run_instance(m, frame, node, instance, args)
    return result or UNKNOWN
