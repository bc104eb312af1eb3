"""What the engine asks the models: every question, answered by rows and transfer functions."""

from __future__ import annotations

import ast
import builtins
import sys

from gradguard_lint.domain.effects import ParallelCall
from gradguard_lint.domain.shapes import result_call
from gradguard_lint.domain.values import (
    GRADIENT,
    NOTHING,
    ONE,
    UNKNOWN,
    Atom,
    Choice,
    Class,
    Delayed,
    External,
    Frame,
    Function,
    Instance,
    Items,
    Method,
    Table,
    TaskCall,
    Tensor,
    Thing,
    Unknown,
    Value,
    constant,
    of,
    unknown,
)
from gradguard_lint.engine.containers import element_of
from gradguard_lint.engine.machine import (
    Machine,
)
from gradguard_lint.engine.ports import Args
from gradguard_lint.engine.tree import is_fixed
from gradguard_lint.engine.truth import names_cuda
from gradguard_lint.models.known import Known
from gradguard_lint.models.rows import CALLED_BY_HOSTS
from gradguard_lint.models.torch import HOOKS, NOT_WRITING, PARAMETERS
from gradguard_lint.models.transfers import (
    arrays,
    attribute_tables,
    collectives,
    containers,
    contexts,
    dask_work,
    data_parallel,
    dispatch,
    environment,
    estimators,
    getters,
    loaders,
    named_tuples,
    objects,
    optimizers,
    options,
    parallel,
    processes,
    remote,
    samplers,
    tensorflow_calls,
    torch_modules,
    torch_tensors,
    trainers,
    work,
)
from gradguard_lint.models.transfers.devices import (
    asks_for_cpu,
    device_argument,
    driver_started,
    placed,
)
from gradguard_lint.models.transfers.kinds import KERAS_KINDS, method_of
from gradguard_lint.models.transfers.table import TRANSFERS
from gradguard_lint.models.transfers.tensors import derived, gpu_used, operation, viewed
from gradguard_lint.models.transfers.unknown_calls import (
    given_a_gpu,
    handed_on,
    may_seed,
    switches,
)
from gradguard_lint.models.transfers.wrapping import marked
from pytest_gradguard.records import replace

_BUILTIN = frozenset(dir(builtins)) - {"eval", "exec"}
"""Names of Python's own, exceptions above all, which compute nothing with tensors."""

MODULE_METHODS = ("parameters", "named_parameters", "state_dict", "load_state_dict", "zero_grad")
"""What only a torch module has."""


MODELS = ("model", "net", "encoder", "decoder", "policy", "backbone", "classifier", "critic")
"""What parameters of functions are called that are modules to be trained: losses and transforms
are modules, too."""


class Meaning(Known):
    """The answers; see `Models` for what is asked."""

    # -- names ----------------------------------------------------------------------------------

    def imported(self, m: Machine, frame: Frame, node: ast.AST, name: str) -> None:
        plain = self.registry.canonical(name)
        if not m.guarded_import:
            if plain.startswith("keras.wrappers.scikit_learn"):
                m.effect(frame, "removed-wrapper", node, name)
            if name.partition(".")[0] == "torch":
                m.store[environment.IMPORTED] = constant(True)
        arrays.loaded(m, frame, node, plain)
        if not m.project.is_module(name.partition(".")[0]):
            arrays.may_load(m, frame, node, name)

    def imported_star(self, m: Machine, frame: Frame, module: str) -> None:
        for name in self.registry.under(self.registry.canonical(module)):
            m.write(frame, name, of(External(f"{module}.{name}")))

    def name_from_star(self, name: str) -> Value:
        return of(External(name)) if name in self.registry.tops else UNKNOWN

    def external_attribute(
        self, m: Machine, frame: Frame, node: ast.AST, atom: External, name: str
    ) -> Value:
        full = f"{atom.name}.{name}"
        plain = self.registry.canonical(full)
        arrays.loaded(m, frame, node, plain)
        if plain == "keras.wrappers.scikit_learn" and not m.guarded_import:
            m.effect(frame, "removed-wrapper", node, full)
        if plain in ("tensorflow.data.AUTOTUNE", "tensorflow.data.experimental.AUTOTUNE"):
            return constant("AUTOTUNE")
        return unknown((plain,)) if plain == "sys.argv" else self.external(m, full)

    def taken(self, m: Machine, element: Value) -> None:
        samplers.taken(m, element)

    def described(self, m: Machine, frame: Frame, name: str) -> Value | None:
        if not self.registry.described or frame.function is not None or frame.is_class:
            return None
        full = f"{frame.module.name}.{name}"
        if full in self.registry.described:
            return of(External(full))
        for known in sorted(self.registry.described):
            if m.project.origin(known) == full:
                return of(External(known))
        return None

    def external(self, m: Machine, name: str) -> Value:
        known = self.registry.constants.get(name)
        if known is None or (known and m.options.start_method == "spawn"):  # as on other systems
            return of(External(name))
        return constant(known)

    # -- calls ----------------------------------------------------------------------------------

    def call(self, m: Machine, frame: Frame, node: ast.AST, name: str, args: Args) -> Value:
        plain = self.registry.canonical(name)
        row = self.registry.exact.get(name) or self.registry.row(plain)
        if row is not None:
            if row.driver and not asks_for_cpu(args):
                driver_started(m, frame, node, f"{plain}()", "torch")
            arrays.begun(m, frame, node, plain, row)
            return TRANSFERS[row.does](m, frame, node, plain, args, row)
        if plain == "joblib.Parallel.__call__" and args.positional:
            for instance in args.positional[0].of(Instance):
                rest = Args(args.positional[1:], args.keywords, args.rest, args.open)
                return parallel.run_instance(m, frame, node, instance, rest)
        data_parallel.handed_over(m, name, args)
        handed_on(m, frame, node, args)
        given_a_gpu(m, frame, node, name, args)
        top = name.partition(".")[0]
        foreign = top not in self.registry.tops and top not in sys.stdlib_module_names
        may_seed(m, frame, node, name, unknown=foreign)
        return UNKNOWN

    def call_unknown(
        self, m: Machine, frame: Frame, node: ast.AST, atom: Unknown, args: Args
    ) -> Value | None:
        key = atom.key
        name = key[2] if isinstance(key, tuple) and len(key) == 3 and key[0] == "attr" else None
        if name == "startswith" and isinstance(key, tuple) and len(args.positional) == 1:
            start = args.positional[0].constant
            if start == "cuda":
                return unknown(names_cuda(key[1]))
            return unknown(("cmp", key[1], "startswith", start))
        if isinstance(key, tuple) and key[0] == torch_modules.PARTS:
            return torch_modules.part_called(m, frame, node, key[1], args)
        call = result_call(atom)
        if name == "backward":
            data_parallel.unknown_backward(m)
        if name == "set_epoch":
            samplers.epoch_set(m, atom)
        if name == tensorflow_calls.PAUSES:
            return of(Thing("tape-paused", name))
        data_parallel.handed_over(m, str(name), args)
        handed_on(m, frame, node, args)
        if name == "backward" and call is not None:
            target = of(Tensor("torch", "unknown", maybe=frozenset({call})))
            m.effect(frame, "backward", node, "`.backward()`", target=target)
            return None
        base = key[1] if isinstance(key, tuple) and len(key) > 1 else None
        if isinstance(base, tuple) and base[0] == torch_modules.PARTS:
            if name in ("train", "eval"):
                torch_modules.set_training(m, base[1], UNKNOWN)
            return None
        if (
            (name in MODULE_METHODS or (name in ("train", "eval") and switches(args)))
            and isinstance(base, tuple)
            and base[0] != "node"
        ):
            m.unknown_modules.add(base)
            if name in ("parameters", "named_parameters"):
                model = Thing("model", "Module", m.ident_of(base), m.worker_ident)
                return torch_modules.model_method(
                    m, frame, node, model, model.ident, False, name, args
                )
        if key in m.unknown_modules:
            model = Thing("model", "Module", m.ident_of(key), m.worker_ident)
            return torch_modules.model_call(m, frame, node, model, args)
        if name in HOOKS and isinstance(base, tuple) and base[-1] in PARAMETERS:
            return torch_tensors.hooked(m, frame, node, Unknown(base), args)
        if isinstance(name, str):
            given_a_gpu(m, frame, node, f".{name}", args)
            contexts.unknown_lock_method(m, node, name)
            may_seed(m, frame, node, name if name != "seed" else "", unknown=True)
            handed = work.by_method(m, frame, node, name, args)
            if handed is not None:
                return handed
            return torch_tensors.unknown_method(m, frame, node, name, args)
        called = node.func if isinstance(node, ast.Call) else None
        may_seed(m, frame, node, called.id if isinstance(called, ast.Name) else "", unknown=True)
        if (
            m.worker is not None
            and args.positional
            and isinstance(called, ast.Name)
            and called.id not in _BUILTIN
            and not any(it.framework == "numpy" for arg in args.positional for it in arg.tensors())
            and not called.id.endswith(("fn", "func", "function", "callback", "transform"))
        ):
            # What is given may be a model; a name without a value is a function's, as a rule.
            given = key is not None and not (isinstance(key, tuple) and key[0] == ONE)
            m.effect(frame, "unknown-call", node, "an unknown callable", unknown=given)
        return None

    def call_method(
        self, m: Machine, frame: Frame, node: ast.AST, method: Method, args: Args
    ) -> Value:
        receiver, name = method.receiver, method.name
        if name == "set_epoch":
            samplers.epoch_set(m, receiver)
        if isinstance(receiver, Tensor):
            if receiver.framework == "torch":
                return torch_tensors.tensor_method(m, frame, node, receiver, name, args)
            if receiver.framework == "tensorflow":
                return tensorflow_calls.tensor_method(m, frame, node, receiver, name)
            return arrays.array_method(m, frame, node, receiver, name, args)
        if isinstance(receiver, Thing):
            return method_of(m, frame, node, receiver, name, args) or UNKNOWN
        if isinstance(receiver, Instance):
            return _instance_method(m, frame, node, receiver, name, args)
        if isinstance(receiver, Method):
            part = torch_modules.part_method(m, frame, node, receiver, name, args)
            if part is not None:
                return part
            return remote.method_of_method(m, frame, node, receiver, name, args) or UNKNOWN
        if isinstance(receiver, TaskCall) and name == "compute":
            return element_of(m, dask_work.compute(m, frame, node, [of(receiver)], args))
        return containers.container_method(m, frame, node, receiver, name, args)

    def ran(
        self, m: Machine, frame: Frame, node: ast.AST, receiver: Atom, name: str, args: Args
    ) -> None:
        optimizers.ran(m, frame, node, receiver, name, args)

    def call_thing(self, m: Machine, frame: Frame, node: ast.AST, atom: Atom, args: Args) -> Value:
        if isinstance(atom, Tensor) and atom.framework == "torch" and atom.grad == "unknown":
            # What was moved to a GPU, and is called now, is no tensor.
            model = Thing("model", "Module", atom.ident, atom.born, atom.gpu)
            return torch_modules.model_call(m, frame, node, model, args)
        if not isinstance(atom, Thing):
            return UNKNOWN
        if atom.kind == "parallel":
            return parallel.run(m, frame, node, atom, args)
        if atom.kind in ("model", "loss"):
            return torch_modules.model_call(m, frame, node, atom, args)
        if atom.kind in KERAS_KINDS:
            known = any(
                tensor.framework == "tensorflow" for v in args.values() for tensor in v.tensors()
            )
            if (
                atom.kind == "keras-layer"
                and not known
                and not any(v.is_unknown for v in args.values())
            ):
                return UNKNOWN
            return tensorflow_calls.model_call(m, frame, node, atom, args)
        if atom.kind == "cached":
            return parallel.cached_call(m, frame, node, atom, args)
        if atom.kind == "grad-mode":
            function = args.get(0)
            return marked(function, atom) if function is not None else UNKNOWN
        if atom.kind == "future":
            return atom.part("result") or UNKNOWN
        if atom.kind == "dispatch":
            return dispatch.dispatched(m, frame, node, atom, args)
        if atom.kind == getters.KIND:
            return getters.asked(m, frame, node, atom, args)
        if atom.kind == "remote" and args.positional:
            parts = (*atom.parts, ("function", args.positional[0]))
            return of(replace(atom, parts=parts))
        return UNKNOWN

    def call_instance(
        self, m: Machine, frame: Frame, node: ast.AST, instance: Instance, args: Args
    ) -> Value:
        what = instance.cls.what
        if what == "parallel":
            return parallel.run_instance(m, frame, node, instance, args)
        if what not in ("torch", "keras"):
            return UNKNOWN
        forward = m.find_in_class(instance.cls, "forward" if what == "torch" else "call")
        result = UNKNOWN
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
            if partly and torch_tensors.partly_frozen(m, instance.ident):
                atom = replace(atom, grad="history")
            return of(replace(atom, gpu=atom.gpu or gpu, sources=sources))

        return result.map(through)

    def make_task(
        self, m: Machine, frame: Frame, node: ast.AST, delayed: Delayed, args: Args
    ) -> Value:
        return parallel.make_task(m, frame, node, delayed, args)

    def decorate(
        self, m: Machine, frame: Frame, decorator: ast.expr, value: Value, function: Function
    ) -> Value:
        return contexts.decorate(m, frame, decorator, value, function)

    def decorate_class(self, m: Machine, frame: Frame, decorator: ast.expr, value: Value) -> Value:
        return contexts.decorate_class(m, frame, decorator, value)

    def class_of(self, bases: tuple[Atom, ...]) -> str:
        for base in bases:
            what = None
            if isinstance(base, External):
                what = self.registry.base(self.registry.canonical(base.name))
            elif isinstance(base, Class):
                what = base.what
            elif isinstance(base, Method) and (name := processes.name_in_context(base)):
                what = self.registry.base(name)
            if what:
                return what
        return ""

    # -- operators, items, attributes -----------------------------------------------------------

    def operation(
        self,
        m: Machine,
        frame: Frame,
        node: ast.AST,
        values: list[Value],
        *,
        smooth: bool = True,
        matmul: bool = False,
        name: str = "",
    ) -> Value | None:
        result = operation(m, frame, node, values, smooth=smooth, matmul=matmul, name=name)
        if result is None:
            return None
        return collectives.with_own_slot(m, node, values, result, name)

    def derived(self, m: Machine, tensor: Tensor) -> Tensor:
        return derived(m, tensor)

    def indexed(self, m: Machine, frame: Frame, node: ast.AST, tensor: Tensor) -> Tensor:
        gpu_used(m, frame, node, [tensor])
        part = derived(m, tensor)
        index = node.slice if isinstance(node, ast.Subscript) else None
        return viewed(m, part, tensor) if index is not None and is_fixed(index) else part

    def attribute(self, m: Machine, frame: Frame, node: ast.AST, atom: Atom, name: str) -> Value:
        return objects.attribute(m, frame, node, atom, name)

    def inherited_attribute(
        self, m: Machine, frame: Frame, node: ast.AST, atom: Instance, name: str
    ) -> Value:
        return objects.inherited_attribute(m, frame, node, atom, name)

    def set_attribute(
        self, m: Machine, frame: Frame, target: ast.Attribute, atom: Atom, value: Value
    ) -> Value | None:
        return objects.set_attribute(m, frame, target, atom, value)

    def shown_by_attribute(self, m: Machine, name: str) -> Value | None:
        if name != "grad":
            return None
        return of(Tensor("torch", "none", False, m.worker_ident, GRADIENT))

    def shown_by_method(self, m: Machine, node: ast.AST, name: str, args: Args) -> Value | None:
        flag = args.get(0, "requires_grad")
        if name == "requires_grad_" and (flag is None or True in flag.constants()):
            return of(Tensor("torch", "leaf", False, m.worker_ident, m.ident_at(node)))
        return None

    def returned(self, m: Machine, atom: Thing | Instance, call: ParallelCall) -> Atom:
        return torch_modules.returned(m, atom, call)

    def grad_after_pickling(self, tensor: Tensor) -> str:
        lost = tensor.framework == "torch" and tensor.grad == "history"
        return "leaf" if lost else tensor.grad

    def set_item(
        self,
        m: Machine,
        frame: Frame,
        target: ast.Subscript,
        holder: Value,
        index: Value,
        value: Value,
    ) -> Value | None:
        return objects.set_item(m, frame, target, holder, index, value)

    def in_place(self, m: Machine, frame: Frame, node: ast.AugAssign, old: Value) -> Value | None:
        return objects.in_place(m, frame, node, old)

    def given_back(
        self,
        m: Machine,
        frame: Frame,
        node: ast.FunctionDef | ast.AsyncFunctionDef,
        receiver: Instance,
        value: Value,
    ) -> None:
        if node.name in CALLED_BY_HOSTS:
            data_parallel.returned_loss(m, frame, node, receiver, value)

    def global_written(
        self, m: Machine, frame: Frame, node: ast.AST, name: str, holder: Frame
    ) -> None:
        if holder.parent is None:
            m.effect(frame, "global-change", node, name, home=holder.module.name)

    # -- with blocks, loops, objects ------------------------------------------------------------

    def enter_context(self, m: Machine, frame: Frame, node: ast.expr, value: Value) -> Value:
        return contexts.enter_context(m, frame, node, value)

    def exit_context(self, m: Machine, frame: Frame, node: ast.AST, value: Value) -> None:
        contexts.exit_context(m, frame, node, value)

    def awaited(self, atom: Atom) -> Value:
        if isinstance(atom, Thing) and atom.kind == "future":
            return atom.part("result") or UNKNOWN
        return of(atom)

    def field_default(self, m: Machine, frame: Frame, node: ast.AST, atom: Atom) -> Value:
        if not isinstance(atom, Thing) or atom.kind != "field":
            return of(atom)
        made = atom.part("default_factory")
        if made is not None:
            result: Value = m.call(frame, node, made, Args())
            return result
        return atom.part("default") or UNKNOWN

    def swallows(self, m: Machine, value: Value) -> bool:
        return contexts.swallows(m, value)

    def is_module(self, name: str, kind: Value) -> bool:
        atom = kind.only
        return any(word in name.lower() for word in MODELS) and (
            isinstance(atom, (Class, External)) and self.class_of((atom,)) == "torch"
        )

    def runs_nested(self, outer: ParallelCall, library: str) -> bool:
        return library == outer.library == "joblib"

    def of_kind(self, m: Machine, kind: Value) -> Value | None:
        atom = kind.only
        name = self.registry.canonical(atom.name) if isinstance(atom, External) else ""
        row = self.registry.row(name)
        if row is None or row.does != "accelerator":
            return None
        return of(Thing("accelerator", name, m.ident_of(("given", name)), m.worker_ident))

    def item(self, m: Machine, frame: Frame, node: ast.AST, atom: Atom, index: Value) -> Value:
        if isinstance(atom, Thing) and atom.kind == attribute_tables.KIND:
            return attribute_tables.item(m, frame, node, atom, index)
        if isinstance(atom, Thing) and atom.kind in ("dask-frame", "frame"):
            return of(atom)
        if isinstance(atom, Thing) and atom.kind == torch_modules.STATE:
            return torch_modules.state_item(atom)
        key = index.constant
        if isinstance(atom, Thing) and atom.kind == "namespace" and isinstance(key, str):
            return options.namespace_attribute(m, atom, key)
        whole = torch_modules.module_of(atom)
        return of(Method(atom, "[...]")) if whole is not None else UNKNOWN

    def keeps(self, atom: External) -> bool:
        row = self.registry.row(self.registry.canonical(atom.name))
        return row is not None and row.keeps

    def iterated(self, m: Machine, frame: Frame, node: ast.AST, value: Value) -> None:
        samplers.passed(m, frame, node, value)
        for thing in loaders.loaders_in(m, value):
            loaders.iterate_loader(m, frame, node, thing)

    def instantiated(
        self, m: Machine, frame: Frame, node: ast.AST, instance: Instance, args: Args
    ) -> None:
        what = instance.cls.what
        if what == "parallel" and (instance.ident, "<parallel>") not in m.store:
            parallel.keep_arguments(m, instance, args)
        if what in _MADE and m.find_in_class(instance.cls, "__init__") is None:
            _MADE[what](m, frame, node, instance, args)
        if what == "torch" and any(
            part.gpu for _, value in m.fields(instance.ident) for part in value.things("model")
        ):
            m.store[instance.ident, "<gpu>"] = constant(True)

    def changed_receiver(self, m: Machine, receiver: Atom, name: str, args: Args) -> Value | None:
        if isinstance(receiver, (Items, Table)):
            return containers.changed_container(m, receiver, name, args)
        if isinstance(receiver, Tensor) and receiver.framework == "torch":
            if name == "requires_grad_":
                flag = args.get(0, "requires_grad") or constant(True)
                return torch_tensors.set_requires_grad(m, receiver, flag)
            if name == "detach_":
                return of(replace(receiver, grad="none", severed=frozenset()))
            if name.endswith("_") and name not in NOT_WRITING and not name.endswith("__"):
                return torch_tensors.taken_over(m, receiver, args.values())
            return None
        if isinstance(receiver, Thing) and receiver.kind == "model" and not receiver.ident:
            if name in ("cuda", "cpu"):
                return of(replace(receiver, gpu=name == "cuda"))
            gpu, when = placed(device_argument(args), m) if name == "to" else (False, frozenset())
            if gpu:
                moved = Choice(replace(receiver, gpu=True), when)
                return Value((moved, Choice(receiver)) if when else (moved,))
        return None


_MADE = {
    "process": processes.init_instance,
    "thread": processes.init_instance,
    "pool": work.init_pool,
    "loader": loaders.init_instance,
    "sampler": samplers.init_instance,
    optimizers.KIND: optimizers.init_instance,
    "estimator": estimators.init_instance,
    "gpu-estimator": estimators.init_instance,
}
"""By what a project's class is: the ``__init__`` that it extends."""


def _instance_method(
    m: Machine, frame: Frame, node: ast.AST, instance: Instance, name: str, args: Args
) -> Value:
    what = instance.cls.what
    result: Value | None = None
    if what == "torch" and name == "__init__":
        torch_modules.keep_parts(m, instance, args)
        return NOTHING
    if what == "torch":
        gpu = torch_modules.instance_on_gpu(m, instance)
        result = torch_modules.model_method(
            m, frame, node, instance, instance.ident, gpu, name, args
        ) or trainers.lightning_method(m, frame, node, instance, name, args)
    elif what == "keras":
        result = tensorflow_calls.model_method(m, frame, node, instance, name, args)
    elif what in _MADE and name == "__init__":
        result = _MADE[what](m, frame, node, instance, args)
    elif what in ("process", "thread") and name == "start":
        result = processes.start_instance(m, frame, node, instance)
    elif what == "pool":
        result = work.pool_method(m, frame, node, instance, name, args)
    elif what == optimizers.KIND:
        result = optimizers.method(m, frame, node, instance, name, args)
    elif what == "tuple":
        result = named_tuples.method(m, node, instance, name, args)
    elif what in ("estimator", "gpu-estimator"):
        result = estimators.method(m, frame, node, instance, name, args)
    elif what == "parallel" and name == "__call__":
        result = parallel.run_instance(m, frame, node, instance, args)
    elif what == "parallel" and name == "__init__":
        parallel.keep_arguments(m, instance, args)
        result = NOTHING
    return result or UNKNOWN
