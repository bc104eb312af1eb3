"""torch: what its functions, tensors, modules and optimizers do."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from gradguard_lint.semantics.library.names import (
    CUDA_INIT,
    HEAVY,
    MODELS,
    NO_MODELS,
    NOT_SMOOTH,
    TENSOR_MAKERS,
)
from gradguard_lint.semantics.library.tensors import (
    combine,
    derived,
    device_argument,
    gpu_name,
    gpu_touched,
    move,
    placed,
    requires_grad,
    tensors_in,
    worked,
)
from gradguard_lint.semantics.values import (
    GRADIENT,
    NOTHING,
    NUMBER,
    OUTPUT,
    UNKNOWN,
    Atom,
    Choice,
    Const,
    Instance,
    Items,
    Table,
    Tensor,
    Thing,
    Unknown,
    Value,
    constant,
    guarded,
    inner,
    join,
    of,
    sequence,
    unknown,
)

if TYPE_CHECKING:
    from gradguard_lint.semantics.core import Args, Core
    from gradguard_lint.semantics.frames import Frame

STOPS = {"item", "tolist", "numpy", "data_ptr", "element_size", "storage"}
QUESTIONS = {
    "size", "dim", "numel", "ndimension", "is_contiguous", "is_floating_point", "nelement",
    "get_device", "type_as", "stride", "retain_grad", "register_hook", "is_cuda", "share_memory_",
}


def call(core: Core, frame: Frame, node: ast.AST, name: str, args: Args) -> Value | None:
    """``torch.something(...)``; None where nothing special is known."""
    short = name.rsplit(".", 1)[-1]
    if name == "torch.device":
        return _device(args)
    if name.startswith("torch.cuda.") and short in CUDA_INIT:
        gpu_touched(core, frame, node, f"{name}()", "torch")
        return UNKNOWN
    if name in ("torch.cuda.device_count",):
        return unknown(("gpu-count",))
    if name == "torch.set_num_threads":
        core.effect(frame, "set-threads", node, name, framework="torch")
        return NOTHING
    if name in ("torch.manual_seed", "torch.random.manual_seed", "torch.seed"):
        core.effect(frame, "seed", node, name, framework="torch")
        return of(Thing("rng", name))
    if name in ("torch.no_grad", "torch.inference_mode", "torch.enable_grad",
                "torch.set_grad_enabled", "torch.autograd.no_grad",
                "torch.autograd.set_grad_enabled", "torch.autograd.grad_mode.no_grad",
                "torch.autograd.inference_mode", "torch.autograd.enable_grad"):
        return _grad_mode(core, frame, node, short, args)
    if short == "autocast" and name.startswith("torch."):
        core.effect(frame, "mode-set", node, short, mode="autocast")
        return of(Thing("autocast", name, site=core.site(frame, node),
                        parts=tuple(args.keywords.items())))
    if name == "torch.Generator":
        return of(Thing("generator", name, core.ident_at(node), core.worker_ident))
    if name.startswith("torch.optim.") and short[:1].isupper() and "lr_scheduler" not in name:
        parameters = args.get(0, "params")
        return of(Thing("optimizer", name, core.ident_at(node), core.worker_ident,
                        parts=(("parameters", parameters or UNKNOWN),)))
    if name in ("torch.nn.Parameter", "torch.nn.parameter.Parameter"):
        data = args.get(0, "data")
        gpu = any(t.gpu for t in data.tensors()) if data is not None else False
        return of(Tensor("torch", "parameter", gpu, core.worker_ident, core.ident_at(node)))
    if name in ("torch.nn.ParameterList", "torch.nn.ParameterDict"):
        parameter = of(Tensor("torch", "parameter", False, core.worker_ident, core.ident_at(node)))
        return sequence(parameter) if short == "ParameterList" else of(Table((), parameter))
    if name == "torch.autograd.Variable":
        grad = requires_grad(args)
        return of(Tensor("torch", grad, False, core.worker_ident, core.ident_at(node)))
    if name in ("torch.autograd.grad", "torch.autograd.backward"):
        target = args.get(0, "outputs") or UNKNOWN
        core.effect(frame, "backward", node, f"{name}(...)", target=target,
                    inputs=args.get(1, "inputs"))
        return sequence(of(Tensor("torch", "none", False, core.worker_ident, GRADIENT)))
    if name.startswith("torch.distributions.") and short[:1].isupper():
        return of(Thing("distribution", name, core.ident_at(node), core.worker_ident,
                        parts=(("tensor", combine(core, tensors_in(args.values()),
                                                  framework="torch")),)))
    if name == "torch.from_numpy":
        return of(Tensor("torch", "none", False, core.worker_ident, core.ident_at(node)))
    if name in ("torch.load", "torch.jit.load"):
        location = args.get(1, "map_location")
        gpu, when = placed(location, core)
        if gpu:
            gpu_touched(core, frame, node, f"torch.load(..., map_location={_shown(location)})",
                        "torch")
        return guarded(UNKNOWN, when)
    if name.startswith("torch.nn.init."):
        return args.get(0) or UNKNOWN
    if name in ("torch.nn.DataParallel", "torch.nn.parallel.DataParallel"):
        return args.get(0) or UNKNOWN
    if name in ("torch.jit.script", "torch.jit.trace", "torch.compile"):
        return args.get(0) or UNKNOWN
    if name.startswith(MODELS) and not name.startswith(NO_MODELS):
        return _model(core, frame, node, name, args)
    if short in TENSOR_MAKERS and name == f"torch.{short}":
        return _make(core, frame, node, name, short, args)
    if name in ("torch.FloatTensor", "torch.Tensor", "torch.LongTensor", "torch.DoubleTensor",
                "torch.IntTensor", "torch.BoolTensor", "torch.HalfTensor"):
        return of(Tensor("torch", "none", False, core.worker_ident, core.ident_at(node)))
    if name in ("torch.save", "torch.is_grad_enabled", "torch.get_num_threads", "torch.typename",
                "torch.set_default_dtype", "torch.is_tensor"):
        return UNKNOWN
    if name.startswith("torch.nn.functional.") or (
        name.count(".") == 1 and short.islower()
    ) or name.startswith(("torch.linalg.", "torch.special.", "torch.fft.", "torch.func.")):
        if short.startswith(("set_", "get_", "is_", "use_", "_")):
            return UNKNOWN
        return function(core, frame, node, short, args,
                        linalg=name.startswith("torch.linalg."))
    return None


def function(
    core: Core, frame: Frame, node: ast.AST, short: str, args: Args, *, linalg: bool = False
) -> Value:
    """A torch function on tensors: its result has history where an argument requires grad."""
    found = tensors_in(args.values())
    anything = any(value.is_unknown for value in args.values())
    tensors = [tensor for tensor, _ in found]
    heavy = short in HEAVY or linalg
    worked(core, frame, node, tensors or [Tensor("torch", "unknown")], heavy=heavy)
    smooth = short not in NOT_SMOOTH
    out = args.get(None, "out")
    if out is not None:
        return out
    value = combine(core, found, smooth=smooth, framework="torch")
    if smooth and anything and core.modes.grad:
        value = value.map(
            lambda atom: of(replace(atom, grad="unknown"))
            if isinstance(atom, Tensor) and atom.grad == "none" else of(atom)
        )
    if short in ("split", "chunk", "unbind", "tensor_split", "topk", "sort", "broadcast_tensors",
                 "meshgrid", "svd", "qr", "eigh", "split_with_sizes"):
        return sequence(value, "tuple")
    if short in ("max", "min", "median", "mode", "cummax", "cummin"):
        return value
    if short in ("vmap", "grad", "jacrev", "jacfwd", "hessian", "vjp", "jvp", "func", "compile"):
        return UNKNOWN
    return value


def _shown(value: Value | None) -> str:
    for atom in value.atoms if value is not None else ():
        if not gpu_name(atom):
            continue
        if isinstance(atom, Const):
            return repr(atom.value)
        if isinstance(atom, Thing) and atom.kind == "device":
            return repr(atom.name)
    return "..."


def _device(args: Args) -> Value:
    value = args.get(0, "type") or args.get(0, "device") or UNKNOWN

    def change(atom: Atom) -> Value:
        if isinstance(atom, Const):
            text = f"cuda:{atom.value}" if isinstance(atom.value, int) else str(atom.value)
            return of(Thing("device", text, gpu=gpu_name(atom)))
        if gpu_name(atom) and not isinstance(atom, Thing):
            return of(Thing("device", "cuda", gpu=True))
        return of(atom)

    return value.map(change)


def _grad_mode(core: Core, frame: Frame, node: ast.AST, short: str, args: Args) -> Value:
    off: object = True
    if short == "set_grad_enabled":
        value = args.get(0, "mode")
        if value is not None and isinstance(value.only, Const):
            # It takes effect when it is called; a ``with`` around it puts the mode back.
            on = bool(value.constant)
            core.modes = replace(
                core.modes, grad=on, grad_site=None if on else core.site(frame, node)
            )
    if short in ("enable_grad",):
        off = False
    elif short in ("set_grad_enabled", "inference_mode") and (args.positional or args.keywords):
        value = args.get(0, "mode")
        only = value.only if value is not None else None
        if not isinstance(only, Const):
            return of(Thing("grad-mode", short, site=core.site(frame, node),
                            parts=(("off", UNKNOWN),)))
        off = not only.value if short == "set_grad_enabled" else bool(only.value)
    core.effect(frame, "mode-set", node, short, mode="grad")
    return of(Thing("grad-mode", short, site=core.site(frame, node),
                    parts=(("off", constant(off)),)))


def _make(
    core: Core, frame: Frame, node: ast.AST, name: str, short: str, args: Args
) -> Value:
    grad = requires_grad(args)
    device = args.get(None, "device")
    gpu, when = placed(device, core)
    inherited = short.endswith("_like") and device is None
    if inherited:
        gpu = any(tensor.gpu for tensor, _ in tensors_in(args.values()))
    elif gpu:
        gpu_touched(core, frame, node, f"{name}(..., device={_shown(device)})", "torch")
    if short in ("randn", "rand", "randint", "randperm", "normal", "rand_like", "randn_like",
                 "randint_like") and "generator" not in args.keywords:
        core.effect(frame, "draw", node, f"{name}()", framework="torch")
    generator = args.get(None, "generator")
    if generator is not None:
        drawn(core, frame, node, generator)
    first = args.get(0)
    if short in ("as_tensor", "asarray") and first is not None:
        found = tensors_in([first])
        if found:
            return combine(core, found, framework="torch")
    tensor = Tensor("torch", grad, gpu, core.worker_ident, core.ident_at(node))
    if not when or not gpu:
        return of(tensor)
    return Value((Choice(tensor, when), Choice(replace(tensor, gpu=False), frozenset())))


def drawn(core: Core, frame: Frame, node: ast.AST, generator: Value) -> None:
    """Record that a generator object is drawn from."""
    for thing in generator.things("generator"):
        core.effect(frame, "generator-draw", node, thing.name, ident=thing.ident)


def _model(core: Core, frame: Frame, node: ast.AST, name: str, args: Args) -> Value:
    device = args.get(None, "device")
    gpu, when = placed(device, core)
    if gpu:
        gpu_touched(core, frame, node, f"{name}(..., device={_shown(device)})", "torch")
    short = name.rsplit(".", 1)[-1]
    if name.startswith("torch.nn.") and ("Loss" in short or short in ("CosineSimilarity",)):
        return of(Thing("loss", name, core.ident_at(node), core.worker_ident))
    parts = [
        atom for value in args.values() for atom in inner(value) if isinstance(atom, Thing)
    ]
    gpu = gpu or any(part.gpu for part in parts if part.kind == "model")
    if name in ("torch.nn.ModuleList", "torch.nn.ModuleDict"):
        return args.get(0, "modules") or UNKNOWN
    atom = Thing("model", name, core.ident_at(node), core.worker_ident, gpu)
    return guarded(of(atom), when) if gpu and when else of(atom)


# -- tensors ---------------------------------------------------------------------------------------


def tensor_attribute(core: Core, frame: Frame, node: ast.AST, tensor: Tensor, name: str) -> Value:
    """``tensor.name`` where it is no method."""
    if name == "data":
        return of(replace(tensor, grad="none", severed=frozenset(), sources=frozenset()))
    if name == "grad":
        core.effect(frame, "grad-read", node, "`.grad`", tensor=tensor)
        return of(Tensor("torch", "none", tensor.gpu, core.worker_ident, GRADIENT))
    if name in ("T", "mT", "H", "real", "imag"):
        return of(derived(core, tensor))
    if name == "device":
        if tensor.gpu:
            return of(Thing("device", "cuda", gpu=True))
        return unknown(("device-of", tensor.ident)) if tensor.ident else UNKNOWN
    if name == "is_cuda" and tensor.gpu:
        return constant(True)
    if name in ("shape", "dtype", "ndim", "requires_grad", "is_leaf", "grad_fn", "is_cuda",
                "names", "layout", "itemsize", "nbytes"):
        return UNKNOWN
    from gradguard_lint.semantics.values import Method

    return of(Method(tensor, name))


def tensor_method(
    core: Core, frame: Frame, node: ast.AST, tensor: Tensor, name: str, args: Args
) -> Value:
    """``tensor.name(...)``."""
    if name == "detach":
        return of(replace(tensor, grad="none", severed=frozenset(), sources=frozenset(),
                          ident=tensor.ident))
    if name in STOPS:
        if name == "numpy":
            return of(Tensor("numpy", "none", False, core.worker_ident, tensor.ident))
        return NUMBER
    if name in QUESTIONS:
        return UNKNOWN
    if name == "cuda":
        return move(core, frame, node, tensor, constant("cuda"), "`.cuda()`")
    if name in ("cpu",):
        return of(replace(derived(core, tensor), gpu=False))
    if name == "to":
        device = device_argument(args)
        first = args.get(0, "other")
        if first is not None and any(first.tensors()):
            gpu = any(t.gpu for t in first.tensors())
            return of(replace(derived(core, tensor), gpu=gpu))
        return move(core, frame, node, tensor, device, f"`.to({_shown(device)})`")
    if name == "backward":
        core.effect(frame, "backward", node, "`.backward()`", target=of(tensor), inputs=None)
        core.effect(frame, "compute", node, "torch", framework="torch", heavy=True)
        return NOTHING
    if name == "requires_grad_":
        flag = args.get(0, "requires_grad")
        return of(with_grad(tensor, flag if flag is not None else constant(True)))
    if name == "clone" and tensor.grad == "none":
        return of(replace(tensor, ident=GRADIENT if tensor.ident == GRADIENT else 0))
    if name in ("new_zeros", "new_ones", "new_tensor", "new_empty", "new_full", "new"):
        return of(Tensor("torch", requires_grad(args), tensor.gpu, core.worker_ident,
                         core.ident_at(node)))
    if name.endswith("_") and not name.endswith("__"):
        core.effect(frame, "in-place", node, f"`.{name}()`", target=of(tensor))
        if name == "detach_":
            return of(replace(tensor, grad="none"))
    if name in ("random_", "normal_", "uniform_", "bernoulli_", "exponential_", "bernoulli"):
        core.effect(frame, "draw", node, f"`.{name}()`", framework="torch")
    found = [(tensor, frozenset())]
    found.extend((t, w) for t, w in tensors_in(args.values()))  # type: ignore[misc]
    worked(core, frame, node, [t for t, _ in found], heavy=name in HEAVY)
    value = combine(core, found, smooth=name not in NOT_SMOOTH, framework="torch")
    if name in ("split", "chunk", "unbind", "topk", "sort"):
        return sequence(value, "tuple")
    return value


def unknown_method(
    core: Core, frame: Frame, node: ast.AST, name: str, args: Args
) -> Value | None:
    """A method of something unknown, where only torch has a method of that name and use."""
    if name == "requires_grad_":
        flag = args.get(0, "requires_grad")
        if flag is None or True in flag.constants():
            return of(Tensor("torch", "leaf", False, core.worker_ident, core.ident_at(node)))
        return None
    if name in ("cuda", "to"):
        device = device_argument(args) if name == "to" else constant("cuda")
        if name == "to" and device is not None and any(
            isinstance(atom, Const) and isinstance(atom.value, int) for atom in device.atoms
        ):
            return None
        gpu, when = placed(device, core)
        if not gpu:
            return None
        what = "`.cuda()`" if name == "cuda" else f"`.to({_shown(device)})`"
        if not core.conflicts(when):
            gpu_touched(core, frame, node, what, "torch")
        moved = Tensor("torch", "unknown", True, core.worker_ident, core.ident_at(node))
        if when:
            return Value((Choice(moved, when), Choice(Unknown())))
        return of(moved)
    if name == "item" and not args.positional:
        return NUMBER
    if name == "detach" and not args.positional:
        return of(Tensor("torch", "none", False, core.worker_ident))
    return None


def freeze(core: Core, atom: Atom, frozen: bool) -> None:
    """Note that the parameters of a model do (not) require grad from here on."""
    ident = getattr(atom, "ident", 0)
    if ident:
        core.store[(ident, "<frozen>")] = constant(frozen)
    if isinstance(atom, Instance):
        for (owner, _), value in list(core.store.items()):
            if owner == atom.ident:
                for part in value.things("model"):
                    core.store[(part.ident, "<frozen>")] = constant(frozen)


def is_frozen(core: Core, ident: int) -> bool:
    """Whether the parameters of that model are known to require no grad."""
    value = core.read(ident, "<frozen>") if ident else None
    return value is not None and value.constants() == [True]


def with_grad(tensor: Tensor, flag: Value) -> Tensor:
    """`tensor` after its ``requires_grad`` was set to `flag`."""
    constants = flag.constants()
    if True in constants:
        return replace(tensor, grad="leaf") if tensor.grad in ("none", "unknown") else tensor
    if False in constants:
        return replace(tensor, grad="none")
    return replace(tensor, grad="unknown")


# -- modules ---------------------------------------------------------------------------------------


def model_call(core: Core, frame: Frame, node: ast.AST, model: Thing, args: Args) -> Value:
    """``model(x)``."""
    found = tensors_in(args.values())
    tensor = Tensor(
        "torch", "parameter", model.gpu, core.worker_ident, model.ident, frozenset(),
        frozenset({model.ident}),
    )
    if model.kind == "loss":
        worked(core, frame, node, [t for t, _ in found])
        if not found:
            return of(Tensor("torch", "unknown", False, core.worker_ident))
        value = combine(core, found, framework="torch")
        if any(v.is_unknown for v in args.values()) and core.modes.grad:
            value = value.map(
                lambda atom: of(replace(atom, grad="unknown"))
                if isinstance(atom, Tensor) and atom.grad == "none" else of(atom)
            )
        return value
    if is_frozen(core, model.ident):
        tensor = replace(tensor, grad="none")
    found.append((tensor, frozenset()))
    worked(core, frame, node, [t for t, _ in found], heavy=True)
    core.effect(frame, "model-call", node, "model", ident=model.ident)
    weightless = model.name.rsplit(".", 1)[-1] in (
        "ReLU", "Sigmoid", "Tanh", "Dropout", "Softmax", "LogSoftmax", "Flatten", "Identity",
        "MaxPool2d", "AvgPool2d", "GELU", "Softplus", "LeakyReLU", "ELU", "Unfold", "Fold",
        "AdaptiveAvgPool2d", "MaxPool1d", "AvgPool1d", "SiLU", "Upsample", "ZeroPad2d",
    )
    if weightless:
        found = found[:-1]
        if not found:
            return of(Tensor("torch", "unknown", False, core.worker_ident))
    return combine(core, found, framework="torch").map(
        lambda atom: of(replace(atom, ident=OUTPUT)) if isinstance(atom, Tensor) else of(atom)
    )


def model_method(
    core: Core, frame: Frame, node: ast.AST, model: Atom, ident: int, gpu: bool, name: str,
    args: Args,
) -> Value | None:
    """A method that every torch module has; None where it is none of these."""
    me = of(model)
    if name == "cuda":
        gpu_touched(core, frame, node, "`.cuda()`", "torch")
        return moved_model(core, model, True)
    if name == "cpu":
        return moved_model(core, model, False)
    if name == "to":
        device = device_argument(args)
        on_gpu, when = placed(device, core)
        if on_gpu:
            gpu_touched(core, frame, node, f"`.to({_shown(device)})`", "torch")
            moved = moved_model(core, model, True)
            if when and isinstance(model, Thing):
                return Value((*guarded(moved, when).choices, Choice(model)))
            return moved
        if device is not None and any(
            isinstance(a, Const) or (isinstance(a, Thing) and not a.gpu) for a in device.atoms
        ):
            return moved_model(core, model, False)
        return me
    if name in ("parameters", "named_parameters", "buffers", "children", "modules"):
        born = getattr(model, "born", core.worker_ident)
        grad = "none" if is_frozen(core, ident) else "parameter"
        tensor = Tensor("torch", grad, gpu, born, ident, frozenset(), frozenset({ident}))
        if name == "named_parameters":
            return sequence(of(Items("tuple", (UNKNOWN, of(tensor)), of(tensor))))
        if name in ("children", "modules"):
            return UNKNOWN
        return sequence(of(tensor), "generator")
    if name == "state_dict":
        return of(Thing("state", "state_dict", ident, core.worker_ident, gpu))
    if name == "load_state_dict":
        core.effect(frame, "model-change", node, "`.load_state_dict()`", target=me)
        return UNKNOWN
    if name == "zero_grad":
        core.effect(frame, "zero-grad", node, "`.zero_grad()`", target=me)
        return NOTHING
    if name == "requires_grad_":
        flag = args.get(0, "requires_grad")
        freeze(core, model, flag is not None and flag.constants() == [False])
        return me
    if name in ("eval", "train", "float", "double", "half", "apply", "type",
                "share_memory", "to_empty", "bfloat16"):
        return me
    return None


def moved_model(core: Core, model: Atom, gpu: bool) -> Value:
    """`model` on the GPU, or off it."""
    if isinstance(model, Thing):
        return of(replace(model, gpu=gpu))
    if isinstance(model, Instance):
        core.store[(model.ident, "<gpu>")] = constant(gpu)
    return of(model)


def instance_on_gpu(core: Core, instance: Instance) -> bool:
    """Whether an object of a torch class of the project was moved to a GPU."""
    value = core.read(instance.ident, "<gpu>")
    return value is not None and True in value.constants()


def optimizer_method(
    core: Core, frame: Frame, node: ast.AST, optimizer: Thing, name: str, args: Args
) -> Value:
    """``optimizer.step()`` and the like."""
    if name == "step":
        core.effect(frame, "step", node, "`optimizer.step()`", target=of(optimizer))
    elif name == "zero_grad":
        core.effect(frame, "zero-grad", node, "`optimizer.zero_grad()`", target=of(optimizer))
    elif name == "minimize":
        core.effect(frame, "step", node, "`optimizer.minimize()`", target=of(optimizer))
    elif name == "apply_gradients":
        core.effect(frame, "step", node, "`optimizer.apply_gradients()`", target=of(optimizer))
    elif name == "add_param_group":
        return NOTHING
    if args.positional and name == "step":
        for function in args.positional[:1]:
            if not function.is_unknown and not any(isinstance(a, (Tensor, Unknown))
                                                   for a in function.atoms):
                from gradguard_lint.semantics.core import Args as Plain

                core.call(frame, node, function, Plain())  # type: ignore[attr-defined]
    return UNKNOWN


def joined(values: list[Value]) -> Value:
    return join(values) if values else UNKNOWN
