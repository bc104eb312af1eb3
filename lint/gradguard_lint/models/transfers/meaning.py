"""The answers to the engine's questions, by rows and transfer functions."""

from __future__ import annotations

import ast
import sys

from gradguard_lint.domain.effects import ParallelCall
from gradguard_lint.domain.payloads import GlobalWrite, LibraryUse
from gradguard_lint.domain.values import (
    GRADIENT,
    NOTHING,
    UNKNOWN,
    Atom,
    Choice,
    Class,
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
from gradguard_lint.engine import caching
from gradguard_lint.engine.containers import element_of
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.engine.tree import is_fixed, sets_attributes
from gradguard_lint.models.known import Known
from gradguard_lint.models.primitives import PRIMITIVES
from gradguard_lint.models.rows import CALLED_BY_HOSTS
from gradguard_lint.models.torch_words import CHANGE_PARTS, COMPUTED, NOT_WRITING
from gradguard_lint.models.transfers import (
    arrays,
    attribute_tables,
    by_use,
    collectives,
    containers,
    contexts,
    dask_work,
    data_parallel,
    dispatch,
    environment,
    frozen,
    instances,
    module_parts,
    objects,
    optimizers,
    options,
    parallel,
    part_calls,
    python_calls,
    samplers,
    stated_fields,
    tensorflow_calls,
    torch_calls,
    torch_modules,
    torch_tensors,
    unknown_calls,
    work,
    wrapping,
)
from gradguard_lint.models.transfers.devices import (
    asks_for_cpu,
    device_argument,
    driver_started,
    gpu_placement,
)
from gradguard_lint.models.transfers.kinds import KERAS_KINDS, method_of
from gradguard_lint.models.transfers.table import TRANSFERS
from gradguard_lint.models.transfers.tensor_uses import gpu_used
from gradguard_lint.models.transfers.tensors import (
    certainly,
    derived,
    operation,
    viewed,
)
from gradguard_lint.models.transfers.wrapping import marked
from pytest_gradguard.records import replace

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from gradguard_lint.domain.evidence import Kind

MODELS = ("model", "net", "encoder", "decoder", "policy", "backbone", "classifier", "critic")
"""Names of parameters for modules that are trained; losses and transforms are modules, too."""


_OPTIMIZERS = frozenset({"torch.optim.Optimizer", "torch.optim.optimizer.Optimizer"})


class Meaning(Known):
    """The implementation of `Models`."""

    # -- names ----------------------------------------------------------------------------------

    def imported(self, m: Machine, frame: Frame, node: ast.AST, name: str) -> None:
        plain = self.registry.canonical(name)
        if not m.place.guarded_import:
            if plain.startswith("keras.wrappers.scikit_learn"):
                m.effect(frame, node, name, LibraryUse("removed wrapper"))
            if name.partition(".")[0] == "torch":
                m.store[environment.IMPORTED] = constant(True)
        arrays.loaded(m, frame, node, plain)
        if not m.project.is_module(name.partition(".")[0]):
            arrays.may_load(m, frame, node, name)

    def imported_star(self, m: Machine, frame: Frame, module: str) -> None:
        for name in self.registry.under(self.registry.canonical(module)):
            m.write(frame, name, self.external(m, f"{module}.{name}"))

    def name_from_star(self, name: str) -> Value:
        return of(External(name)) if name in self.registry.tops else UNKNOWN

    def external_attribute(
        self, m: Machine, frame: Frame, node: ast.AST, atom: External, name: str
    ) -> Value:
        full = f"{atom.name}.{name}"
        if name == "__dict__":
            return attribute_tables.attributes_of(atom)
        plain = self.registry.canonical(full)
        arrays.loaded(m, frame, node, plain)
        if plain == "keras.wrappers.scikit_learn" and not m.place.guarded_import:
            m.effect(frame, node, full, LibraryUse("removed wrapper"))
        if plain in ("tensorflow.data.AUTOTUNE", "tensorflow.data.experimental.AUTOTUNE"):
            return constant("AUTOTUNE")
        return unknown((plain,)) if plain == "sys.argv" else self.external(m, full)

    def described(self, m: Machine, frame: Frame, name: str) -> Value | None:
        if not self.registry.described or frame.function is not None or frame.is_class:
            return None
        if frame.module.is_stub:
            return None
        full = f"{frame.module.name}.{name}"
        if full in self.registry.described:
            return self.external(m, full)
        for known in sorted(self.registry.described):
            if m.project.origin(known) == full:
                return self.external(m, known)
        return None

    def described_in(self, m: Machine, module: str) -> list[tuple[str, Value]]:
        parts = ((full, *full.rpartition(".")) for full in self.registry.described)
        return [(own, self.external(m, full)) for full, home, _, own in parts if home == module]

    def external(self, m: Machine, name: str) -> Value:
        if self.registry.canonical(name).startswith(
            "keras."
        ) and environment.keras_has_other_backend(m):
            return UNKNOWN
        stub = self.stub(m, name)
        if stub is not None:
            return stub
        known = self.registry.constants.get(name)
        if known is None or (known and m.options.start_method == "spawn"):  # as on other systems
            return of(External(name))
        return constant(known)

    # -- calls ----------------------------------------------------------------------------------

    def call(self, m: Machine, frame: Frame, node: ast.AST, name: str, args: Args) -> Value:
        primitive = PRIMITIVES.get(name)
        if primitive is not None:
            return primitive(m, frame, node, args)
        plain = self.registry.canonical(name)
        row = self.registry.exact.get(name) or self.registry.row(plain)
        if row is not None:
            if row.driver and not asks_for_cpu(args):
                driver_started(m, frame, node, f"{plain}()", "torch")
            arrays.begun(m, frame, node, plain, row)
            value = TRANSFERS[row.does](m, frame, node, plain, args, row)
            return certainly(value) if torch_calls.gives_one(plain, args, row) else value
        if plain == "joblib.Parallel.__call__" and args.positional:
            for instance in args.positional[0].of(Instance):
                rest = replace(args, positional=args.positional[1:], written=False)
                return parallel.run_instance(m, frame, node, instance, rest)
        data_parallel.escape_to_unknown(m, name, args)
        unknown_calls.record_escapes(m, frame, node, args)
        unknown_calls.record_gpu_argument(m, frame, node, name, args)
        top = name.partition(".")[0]
        foreign = top not in self.registry.tops and top not in sys.stdlib_module_names
        unknown_calls.may_seed(m, frame, node, name, unknown=foreign)
        return UNKNOWN

    def call_method(
        self, m: Machine, frame: Frame, node: ast.AST, method: Method, args: Args
    ) -> Value:
        receiver, name = method.receiver, method.name
        if name == "set_epoch":
            samplers.epoch_set(m, receiver, args.get(0, "epoch"))
        if isinstance(receiver, Tensor):
            if receiver.framework == "torch":
                value = torch_tensors.tensor_method(m, frame, node, receiver, name, args)
                one = receiver.certain and torch_tensors.gives_one(name, args)
                return certainly(value) if one else value
            if receiver.framework == "tensorflow":
                return tensorflow_calls.tensor_method(m, frame, node, receiver, name)
            return arrays.array_method(m, frame, node, receiver, name, args)
        if isinstance(receiver, Thing):
            row = self.registry.exact.get(full := f"{receiver.name}.{name}")
            if row is not None and row.does == "leave":
                return TRANSFERS[row.does](m, frame, node, full, args, row)
            if receiver.kind == "model":
                if name in CHANGE_PARTS:
                    frozen.parts_changed(m, receiver.ident)
                part = part_calls.called(m, frame, node, method, args)
                if part is not None:
                    return part
            return method_of(m, frame, node, receiver, name, args) or UNKNOWN
        if isinstance(receiver, Instance):
            return instances.method(m, frame, node, receiver, name, args)
        if isinstance(receiver, Method):
            part = part_calls.method(m, frame, node, receiver, name, args)
            if part is None:
                part = part_calls.called(m, frame, node, method, args)
            return part or UNKNOWN
        if isinstance(receiver, Function) and name == "cache_clear":
            caching.clear_cache(m, receiver)
            return NOTHING
        if isinstance(receiver, TaskCall) and name == "compute":
            return element_of(m, dask_work.compute(m, frame, node, [of(receiver)], args))
        if isinstance(receiver, (Items, Table)):
            of_modules = part_calls.of_list(m, frame, node, receiver, name, args)
            if of_modules is not None:
                return of_modules
        return containers.container_method(m, frame, node, receiver, name, args)

    def call_thing(self, m: Machine, frame: Frame, node: ast.AST, atom: Atom, args: Args) -> Value:
        if isinstance(atom, Tensor) and atom.framework == "torch" and atom.grad == "unknown":
            # A moved object that is called is no tensor.
            model = Thing("model", "Module", atom.ident, atom.born, atom.gpu)
            return torch_modules.model_call(m, frame, node, model, args)
        if not isinstance(atom, Thing):
            return UNKNOWN
        if atom.kind == "parallel":
            return parallel.run(m, frame, node, atom, args)
        if atom.kind in ("model", "loss"):
            return torch_modules.model_call(m, frame, node, atom, args)
        if atom.kind in KERAS_KINDS:
            given = [*args.values()]
            known = any(it.framework == "tensorflow" for value in given for it in value.tensors())
            known = known or any(value.is_unknown for value in given)
            if atom.kind == "keras-layer" and not known:
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
        if atom.kind == "getter":
            return python_calls.ask_getter(m, frame, node, atom, args)
        return UNKNOWN

    def class_of(self, bases: tuple[Atom, ...]) -> str:
        for base in bases:
            what = None
            if isinstance(base, External):
                what = self.registry.base(self.registry.canonical(base.name))
            elif isinstance(base, Class):
                what = base.what
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
    ) -> Value | None:
        result = operation(m, frame, node, values, smooth=smooth, matmul=matmul)
        if result is None:
            return None
        return collectives.with_own_slot(m, node, values, result)

    def indexed(self, m: Machine, frame: Frame, node: ast.AST, tensor: Tensor) -> Tensor:
        gpu_used(m, frame, node, [tensor])
        part = derived(m, tensor)
        index = node.slice if isinstance(node, ast.Subscript) else None
        return viewed(m, part, tensor) if index is not None and is_fixed(index) else part

    def read_attribute(self, m: Machine, value: Value) -> Value:
        return value.map(lambda atom: of(torch_tensors.part_of_output(m, atom)))

    def shown_by_attribute(self, m: Machine, name: str, atom: Unknown) -> Value | None:
        if name == "requires_grad" and atom.key is not None:
            asked = frozenset({(("attr", atom.key, name), True)})
            m.facts.evidence.prove(atom.subject, "leaf", asked)
        if name != "grad":
            return None
        return of(Tensor("torch", "none", False, m.worker_ident, GRADIENT))

    def shown_by_method(self, m: Machine, node: ast.AST, name: str, args: Args) -> Value | None:
        flag = args.get(0, "requires_grad")
        if name == "requires_grad_" and (flag is None or True in flag.constants()):
            return of(Tensor("torch", "leaf", False, m.worker_ident, m.ident_at(node)))
        return None

    def grad_after_pickling(self, tensor: Tensor) -> str:
        lost = tensor.framework == "torch" and tensor.grad == "history"
        return "leaf" if lost else tensor.grad

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
            m.effect(frame, node, name, GlobalWrite(holder.module.name))

    # -- with blocks, loops, objects ------------------------------------------------------------

    def lacks(self, m: Machine, value: Value, name: Value) -> bool:
        asked, only = name.constant, value.only
        return only is not None and isinstance(asked, str) and options.lacks(m, only, asked)

    def awaited(self, m: Machine, atom: Atom) -> Value:
        if isinstance(atom, Thing) and atom.kind == "future":
            return work.result_of(m, of(atom))
        return of(atom)

    def annotated(self, name: str, kind: Value) -> Kind | None:
        atom = kind.only
        if isinstance(atom, External) and self.registry.canonical(atom.name) in _OPTIMIZERS:
            return "optimizer"
        is_torch = isinstance(atom, (Class, External)) and self.class_of((atom,)) == "torch"
        return "module" if is_torch and any(word in name.lower() for word in MODELS) else None

    def runs_nested(self, outer: ParallelCall, library: str) -> bool:
        return library == outer.library == "joblib"

    def sends_on(self, m: Machine, library: str) -> bool:
        call = m.place.worker.call if m.place.worker is not None else None
        return call is not None and (
            library == call.library == "ray" or (call.traits.single and not call.traits.daemons)
        )

    def of_kind(self, m: Machine, kind: Value) -> Value | None:
        atom = kind.only
        if isinstance(atom, Class) and atom.module.is_stub and not sets_attributes(atom.node):
            ident = m.ident_of(("given", atom.full_name))
            return of(Instance(atom, ident, m.worker_ident))
        name = self.registry.canonical(atom.name) if isinstance(atom, External) else ""
        row = self.registry.row(name)
        if row is None or row.does != "click-context":
            return None
        return of(Thing(row.does, name, m.ident_of(("given", name)), m.worker_ident))

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
        return module_parts.at(m, frame, node, atom, index) if whole is not None else UNKNOWN

    def keeps(self, atom: External) -> bool:
        row = self.registry.row(self.registry.canonical(atom.name))
        return row is not None and row.keeps

    def iterated(self, m: Machine, frame: Frame, node: ast.AST, value: Value) -> Value:
        samplers.record_pass(m, frame, node, value)
        return value.map(wrapping.within)

    def changed_receiver(
        self, m: Machine, frame: Frame, node: ast.AST, receiver: Atom, name: str, args: Args
    ) -> Value | None:
        if isinstance(receiver, (Items, Table)):
            return containers.changed_container(m, frame, node, receiver, name, args)
        if isinstance(receiver, Tensor) and receiver.framework == "torch":
            if name == "requires_grad_":
                flag = args.get(0, "requires_grad") or constant(True)
                return torch_tensors.set_requires_grad(m, receiver, flag)
            if name == "detach_":
                return of(replace(receiver, grad="none", severed=frozenset()))
            if name.endswith("_") and name not in NOT_WRITING and not name.endswith("__"):
                return torch_tensors.with_history_of(m, receiver, args.values())
            return None
        if isinstance(receiver, Thing) and receiver.kind == "model" and not receiver.ident:
            if name in ("cuda", "cpu"):
                return of(replace(receiver, gpu=name == "cuda"))
            gpu, when = (
                gpu_placement(device_argument(args), m) if name == "to" else (False, frozenset())
            )
            if gpu:
                moved = Choice(replace(receiver, gpu=True), when)
                return Value((moved, Choice(receiver)) if when else (moved,))
        return None

    # -- answered as they are asked ---------------------------------------------------------------

    attribute = staticmethod(objects.attribute)
    call_instance = staticmethod(instances.call)
    call_unknown = staticmethod(unknown_calls.call)
    class_by_use = staticmethod(by_use.class_by_use)
    computed = staticmethod(by_use.computed)
    decorate = staticmethod(contexts.decorate)
    decorate_class = staticmethod(contexts.decorate_class)
    delete_item = staticmethod(objects.delete_item)
    derived = staticmethod(derived)
    enter_context = staticmethod(contexts.enter_context)
    exit_context = staticmethod(contexts.exit_context)
    field_given_as = staticmethod(stated_fields.given_as)
    field_value = staticmethod(stated_fields.value_of)
    in_place = staticmethod(objects.in_place)
    inherited_attribute = staticmethod(objects.inherited_attribute)
    instantiated = staticmethod(instances.made)
    is_field = staticmethod(stated_fields.is_field)
    make_task = staticmethod(parallel.make_task)
    mapping = staticmethod(attribute_tables.as_dict)
    parts_of = staticmethod(module_parts.iterated)
    proved = staticmethod(by_use.proved)
    computes = staticmethod(COMPUTED.__contains__)
    put_back = staticmethod(parallel.put_back)
    ran = staticmethod(optimizers.ran)
    refuses_pickling = staticmethod(objects.refuses_pickling)
    returned = staticmethod(torch_modules.returned)
    set_attribute = staticmethod(objects.set_attribute)
    set_item = staticmethod(objects.set_item)
    swallows = staticmethod(contexts.swallows)
    next_item = staticmethod(samplers.begin_next_loader)
