"""TensorFlow and Keras: tapes, variables, models, devices."""

from __future__ import annotations

import ast

from gradguard_lint.domain.conditions import NONE, Conditions, parts_of
from gradguard_lint.domain.evidence import owner_of
from gradguard_lint.domain.payloads import (
    Compute,
    Draw,
    GpuChoice,
    GpuSetting,
    GpuUse,
    LibraryUse,
    ModelChange,
    TapeGradient,
    Write,
)
from gradguard_lint.domain.shapes import inner, sequence
from gradguard_lint.domain.values import (
    GRADIENT,
    GRADIENTS,
    NOTHING,
    UNKNOWN,
    Atom,
    External,
    Frame,
    Instance,
    Items,
    Table,
    Tensor,
    Thing,
    Unknown,
    Value,
    constant,
    join,
    of,
    unknown,
)
from gradguard_lint.engine.containers import element_of
from gradguard_lint.engine.defaults import path_needs_nondefault_option
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.engine.proofs import prove
from gradguard_lint.engine.truth import truthy
from gradguard_lint.models.python import LAST_BASES
from gradguard_lint.models.rows import Row
from gradguard_lint.models.tensorflow import AWAKENS, FITS, REARRANGES, STOPS
from gradguard_lint.models.torch_words import HEAVY
from gradguard_lint.models.transfers import torch_calls
from gradguard_lint.models.transfers.chances import is_certain
from gradguard_lint.models.transfers.devices import (
    gpu_absent,
    gpu_hidden,
    gpu_placement,
    gpu_touched,
    memory_grown,
)
from gradguard_lint.models.transfers.tensor_uses import GRAPHS, operation_placed, worked
from gradguard_lint.models.transfers.tensors import combine, each_tensor, tensors_in, with_anything
from gradguard_lint.models.transfers.wrapping import mark
from gradguard_lint.words import words
from pytest_gradguard.records import replace

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from typing import TypeGuard

_FROZEN = "<frozen>"
_GRADIENTS = (GRADIENT, GRADIENTS)
PAUSES = "stop_recording"
"""The method of a tape that returns a block without recording."""

CPUS = ("cpu-list",)
"""The key of the list of all CPUs."""


def device_scope(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``tf.device(...)``, or ``jax.default_device(...)``."""
    gpu, when = gpu_placement(args.get(*row.argument), m)
    on = gpu and not m.conflicts(when)
    if on:
        m.effect(frame, node, name, GpuSetting("meant"))
    return of(Thing("device-scope", name, gpu=on, site=m.site(frame, node)))


def gpu_list(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``tf.config.list_physical_devices("GPU")``."""
    kinds = [
        value
        for item in (args.get(0, "device_type"), args.get(1, "device_type"))
        if item is not None
        for value in item.constants()
    ]
    if kinds and "GPU" not in kinds:
        return unknown(CPUS)
    m.effect(frame, node, name, GpuSetting("meant"))
    if row.gpu:
        if not gpu_hidden(m, config=True) and not memory_grown(m):
            gpu_touched(m, frame, node, f"{name}(...)", "tensorflow")
        return UNKNOWN
    return unknown(("gpu-list",))


def visible_devices(
    m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row
) -> Value:
    """``tf.config.set_visible_devices(...)``."""
    devices = args.get(0, "devices") or UNKNOWN
    m.effect(frame, node, name, GpuChoice("configuration", devices))
    only = devices.only
    key = only.key if isinstance(only, Unknown) else None
    just_cpus = args.get(1, "device_type") is None and key is not None and CPUS in parts_of(key)
    if just_cpus or (isinstance(only, Items) and only.items == ()):
        m.effect(frame, node, name, GpuSetting("hidden", "tensorflow"))
    else:
        m.effect(frame, node, name, GpuSetting("meant"))
    return NOTHING


def grown(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """GPU memory is allocated on demand."""
    if args.constant(1, "enable") is False:
        return NOTHING
    m.effect(frame, node, name, GpuSetting("grown", "tensorflow"))
    return NOTHING


def session(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``tf.Session()``: creating it starts threads, whatever ``config`` is."""
    if args.get(0, "target") is None:
        m.effect(frame, node, f"`{name}()`", Compute("tensorflow", threads_only=True))
    return of(Thing("session", name, m.ident_at(node), m.worker_ident, site=m.site(frame, node)))


def session_options(
    m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row
) -> Value:
    """``ConfigProto(...)``, ``GPUOptions(...)``: TensorFlow 1's settings of GPUs and memory."""
    counts = args.keywords.get("device_count")
    table = counts.only if counts is not None else None
    gpus = table.get("GPU") if isinstance(table, Table) else None
    share = args.keywords.get("per_process_gpu_memory_fraction")
    grows = args.keywords.get("allow_growth")
    if gpus is not None and gpus.constant == 0:
        m.effect(frame, node, name, GpuSetting("hidden", "tensorflow"))
    elif share is not None or truthy(grows):
        m.effect(frame, node, name, GpuSetting("grown", "tensorflow"))
    return UNKNOWN


def session_option(m: Machine, frame: Frame, target: ast.Attribute, value: Value) -> None:
    """``config.gpu_options.allow_growth = True``, or a fraction of the memory."""
    owner = target.value
    if not isinstance(owner, ast.Attribute) or owner.attr != "gpu_options":
        return
    if target.attr == "per_process_gpu_memory_fraction" or (
        target.attr == "allow_growth" and truthy(value)
    ):
        m.effect(frame, target, ast.unparse(target), GpuSetting("grown", "tensorflow"))


_PASSIVE = LAST_BASES | {"tensorflow.Module"}
"""Bases that call no methods of their subclasses."""


def _is_of_a_foreign_class(scope: Frame | None) -> bool:
    """Whether `scope` is in a method of a class that a library may call."""
    while scope is not None and scope.self_class is None:
        scope = scope.parent
    bases = scope.self_class.outside() if scope is not None and scope.self_class is not None else ()
    return any(not isinstance(it, External) or it.name not in _PASSIVE for it in bases)


def map_fn(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``tf.map_fn(...)``."""
    position = None if args.rest is not None else 3
    iterations = args.get(position, "parallel_iterations")
    foreign = m.place.root != 1 and _is_of_a_foreign_class(frame)
    m.effect(frame, node, name, LibraryUse("map", (iterations or NOTHING,), certain=not foreign))
    mapped = args.get(0, "fn")
    elements = element_of(m, args.get(1, "elems") or UNKNOWN)
    if mapped is not None:
        m.call(frame, node, mapped, Args([elements]))
    return of(Tensor("tensorflow", "none", False, m.worker_ident))


def compiled(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``tf.function(f)``, or ``tf.function()`` as a decorator."""
    wrapped = args.get(*row.argument)
    if wrapped is None:
        return of(External(name))
    return mark(wrapped, "compiled")


def draw_function(
    m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row
) -> Value:
    """A draw, which is also an operation."""
    if "generator" not in args.keywords and not is_certain(name, args):
        m.effect(frame, node, name, Draw(row.framework))
    return operation(m, frame, node, name, args, row)


def operation(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """A TensorFlow operation."""
    return function(m, frame, node, name, name.rpartition(".")[2], args)


def keras_model(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """Creation or loading of a Keras model."""
    operation_placed(m, frame, node, f"{name}(...)")
    implied(m, frame, node, f"{name}(...)")
    if row.flag == AWAKENS:
        awake(m, frame, node, f"`{name}()`")
    model = Thing("keras-model", name, m.ident_at(node), m.worker_ident, m.modes.gpu)
    layers = (args.get(0, "layers") or UNKNOWN).only
    if name.endswith("Sequential") and isinstance(layers, Items):
        for layer in layers.items or ():
            _added(m, frame, node, model, layer)
    return of(model)


def awakens(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """An object with variables or operations from its creation."""
    awake(m, frame, node, f"`{name}()`")
    return UNKNOWN


def tf_variable(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``tf.Variable(...)``."""
    awake(m, frame, node, "`tf.Variable()`")
    operation_placed(m, frame, node, "tf.Variable(...)")
    if args.constant(1, "trainable") is False:
        return of(Tensor("tensorflow", "none", m.modes.gpu, m.worker_ident))  # no tape watches it
    return of(Tensor("tensorflow", "variable", m.modes.gpu, m.worker_ident, m.ident_at(node)))


def keras_optimizer(
    m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row
) -> Value:
    """A Keras optimizer, which has variables from its creation."""
    awake(m, frame, node, f"`{name}()`")
    return torch_calls.optimizer(m, frame, node, name, args, row)


def graphs(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """Record that TensorFlow computes nothing outside sessions from here on."""
    m.store[GRAPHS] = NOTHING
    return NOTHING


def awake(m: Machine, frame: Frame, node: ast.AST, what: str) -> None:
    """Record that TensorFlow starts its threads, however little it computes."""
    if m.stored(*GRAPHS) is None:
        m.effect(frame, node, what, Compute("tensorflow", threads_only=True))


def layer(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """A layer, and whether its input shape is passed."""
    has_shape = name.endswith(".InputLayer") or any(word in args.keywords for word in _SHAPES)
    parts = ((_SHAPED, NOTHING),) if has_shape else ()
    return of(Thing("keras-layer", name, m.ident_at(node), m.worker_ident, parts=parts))


_SHAPES = ("batch_input_shape", "input_dim", "input_shape")
"""The arguments of a model's first layer for the input shape."""

_SHAPED = "<shaped>"
"""Store key of a layer or Sequential: its input shape is known."""


def _added(m: Machine, frame: Frame, node: ast.AST, model: Thing, added: Value) -> None:
    """Record a layer added to a Sequential; it creates its weights once the shape is known."""
    only = added.only
    if isinstance(only, Tensor):  # a `keras.Input`
        m.store[model.ident, _SHAPED] = NOTHING
    if not isinstance(only, Thing) or only.kind != "keras-layer":
        return
    if only.part(_SHAPED) is not None:
        m.store[model.ident, _SHAPED] = NOTHING
    if m.stored(model.ident, _SHAPED) is not None and not only.name.endswith(_WITHOUT_WEIGHTS):
        awake(m, frame, node, f"weights of `{only.name}()`")


_WITHOUT_WEIGHTS = (".Flatten", ".InputLayer", ".Reshape", ".Activation", ".ReLU", ".Rescaling")
"""Layers without weights that are often first."""


def implied(m: Machine, frame: Frame, node: ast.AST, what: str) -> None:
    """Record that TensorFlow uses the GPU by default."""
    is_configured = gpu_hidden(m, config=True) or memory_grown(m)
    if not is_configured and not gpu_absent(m) and not path_needs_nondefault_option(m):
        m.effect(frame, node, what, GpuUse("implied", "tensorflow"))


def function(m: Machine, frame: Frame, node: ast.AST, name: str, short: str, args: Args) -> Value:
    """A TensorFlow operation."""
    found = tensors_in(args.values())
    # it computes with tensors, whatever its arguments are
    tensors = [(replace(tensor, framework="tensorflow"), when) for tensor, when in found]
    worked(m, frame, node, tensors or [(Tensor("tensorflow"), NONE)], heavy=short in HEAVY)
    operation_placed(m, frame, node, f"{name}(...)")
    smooth = short not in STOPS and not (short == "cast" and _to_integers(args))
    value = combine(m, found, framework="tensorflow", smooth=smooth)
    value = with_anything(value, args.values())
    ident = 0 if found else m.ident_at(node)  # a tape may watch it
    if found and short in REARRANGES and all(it.ident in _GRADIENTS for it, _ in found):
        ident = GRADIENTS
    return each_tensor(value, lambda it: replace(it, gpu=it.gpu or m.modes.gpu, ident=ident))


def _to_integers(args: Args) -> bool:
    """Whether the result of ``tf.cast(x, dtype)`` has no gradient."""
    dtype = args.get(1, "dtype")
    only = None if dtype is None else dtype.only
    name = only.name if isinstance(only, External) else getattr(only, "value", "")
    return isinstance(name, str) and "float" not in name and ("int" in name or "bool" in name)


def model_call(m: Machine, frame: Frame, node: ast.AST, model: Thing, args: Args) -> Value:
    """``model(x)``, ``layer(x)``, ``loss(y, p)``."""
    found = tensors_in(args.values())
    worked(m, frame, node, [(Tensor("tensorflow"), NONE)], heavy=model.kind == "keras-model")
    operation_placed(m, frame, node, f"{model.name.rsplit('.', 1)[-1]}(...)")
    if model.kind in ("keras-model", "keras-layer"):
        variable = Tensor("tensorflow", "variable", model.gpu, m.worker_ident, model.ident)
        found.append((variable, frozenset()))
    return combine(m, found, framework="tensorflow")


def model_method(
    m: Machine, frame: Frame, node: ast.AST, model: Atom, name: str, args: Args
) -> Value | None:
    """A method of a Keras model; None for unknown ones."""
    if name in FITS:
        m.effect(frame, node, "tensorflow", Compute("tensorflow", heavy=True))
        implied(m, frame, node, f"`.{name}()`")
        m.effect(frame, node, f"`.{name}()`", LibraryUse("keras fit", tuple(args.values())))
        operation_placed(m, frame, node, f"`.{name}()`")
        if name == "fit" or name.startswith("train"):
            m.effect(frame, node, f"`.{name}()`", ModelChange(of(model)))
        if name == "predict":
            return of(Tensor("numpy"))
        return UNKNOWN
    if name in ("set_weights", "load_weights"):
        change = ModelChange(of(model), extent="whole" if name == "set_weights" else "")
        m.effect(frame, node, f"`.{name}()`", change)
        return NOTHING
    if name in ("build", "compile"):
        awake(m, frame, node, f"`.{name}()`")
        return UNKNOWN
    if name == "add" and isinstance(model, Thing):
        _added(m, frame, node, model, args.get(0, "layer") or UNKNOWN)
    return UNKNOWN if name in _TOLD_NOTHING else None


_TOLD_NOTHING = words(
    "get_weights summary save save_weights to_json get_config count_params add pop"
)
"""Further methods, without relevant effects."""


VARIABLES = ("trainable_variables", "trainable_weights", "weights", "variables")
"""Attributes of models and layers with their variables."""


def variables(m: Machine, model: Thing | Instance, name: str) -> Value:
    """``model.trainable_variables`` and similar attributes."""
    gpu = isinstance(model, Thing) and model.gpu
    whole = Tensor("tensorflow", "variable", gpu, m.worker_ident, model.ident)
    found, frozen = _variables_in(m, model, set())
    if not name.startswith("trainable"):
        return sequence(join([of(whole), *map(of, [*found, *frozen])]))
    if not frozen:
        return sequence(join([of(whole), *map(of, found)]))
    # Frozen variables are omitted: the result may be used only as a part of the whole.
    return sequence(join([*map(of, found), UNKNOWN] if found else [of(replace(whole, ident=0))]))


def _variables_in(
    m: Machine, model: Thing | Instance, seen: set[int]
) -> tuple[list[Tensor], list[Tensor]]:
    """The trainable and the other variables of a model and its parts."""
    if model.ident in seen:
        return [], []
    seen.add(model.ident)
    own = Tensor("tensorflow", "variable", False, m.worker_ident, model.ident)
    if isinstance(model, Thing):
        return ([], [own]) if _frozen(m, model) else ([own], [])
    found: list[Tensor] = []
    frozen: list[Tensor] = []
    for _, value in m.fields(model.ident):
        for part in inner(value):
            if isinstance(part, Tensor) and part.framework == "tensorflow":
                (found if part.grad == "variable" else frozen).append(part)
            elif is_model(part):
                more, less = _variables_in(m, part, seen)
                found += more
                frozen += less
    return ([], [*found, *frozen, own]) if _frozen(m, model) else (found, frozen)


def is_model(atom: Atom) -> TypeGuard[Thing | Instance]:
    """Whether `atom` is a Keras model or layer, also of a project class."""
    if isinstance(atom, Instance):
        return atom.cls.what == "keras"
    return isinstance(atom, Thing) and atom.kind in ("keras-model", "keras-layer")


def tensor_method(m: Machine, frame: Frame, node: ast.AST, tensor: Tensor, name: str) -> Value:
    """A method of a TensorFlow tensor or variable."""
    if name == "numpy":
        return of(Tensor("numpy"))
    if name in ("assign", "assign_add", "assign_sub", "scatter_update"):
        m.effect(frame, node, f"`.{name}()`", Write(of(tensor), exact=name != "assign"))
        return of(tensor)
    if name in ("get_shape", "set_shape", "eval"):
        return UNKNOWN
    found: list[tuple[Tensor, Conditions]] = [(tensor, NONE)]
    worked(m, frame, node, found)
    return combine(m, found, framework="tensorflow")


def frozen_by(m: Machine, model: Thing, trainable: Value) -> None:
    """``model.trainable = ...``"""
    m.store[model.ident, _FROZEN] = constant(trainable.constants() != [True])


def _frozen(m: Machine, model: Thing | Instance) -> bool:
    """Whether a tape may ignore the variables of that model."""
    if isinstance(model, Instance):
        trainable = m.read(model.ident, "trainable")
        return trainable is not None and trainable.constants() != [True]
    value = m.stored(model.ident, _FROZEN)
    return value is not None and True in value.constants()


_VARIABLES = words("trainable_variables trainable_weights")
"""Attributes of models and layers that contain variables."""


def tape_method(
    m: Machine, frame: Frame, node: ast.AST, tape: Thing, name: str, args: Args
) -> Value:
    """``tape.gradient(...)``, ``tape.watch(...)``."""
    if name == PAUSES:
        return of(Thing("tape-paused", name))
    if name == "watch":
        prove(m, args.get(0, "tensor") or UNKNOWN, "variable")
    if name in ("gradient", "jacobian", "batch_jacobian"):
        sources = args.get(1, "sources") or UNKNOWN
        prove(m, sources, "variable")
        for atom in sources.of(Unknown):
            if isinstance(atom.subject, tuple) and atom.subject[-1] in _VARIABLES:
                prove(m, of(Unknown(owner_of(atom))), "keras")
        asked = TapeGradient(args.get(0, "target") or UNKNOWN, sources)
        m.effect(frame, node, f"`tape.{name}()`", asked)
        return sequence(of(Tensor("tensorflow", "none", False, m.worker_ident, GRADIENT)))
    return UNKNOWN
