"""torch: methods of tensors, also of unknown objects recognised by them."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from gradguard_lint.domain.conditions import NONE, Conditions
from gradguard_lint.domain.payloads import Compute, Detached, Draw, GradRead, GradWrite, Hook, Write
from gradguard_lint.domain.questions import Key
from gradguard_lint.domain.shapes import sequence
from gradguard_lint.domain.values import (
    COPIED,
    GRADIENT,
    GRADIENTS,
    MARKS,
    NOTHING,
    NUMBER,
    NUMBERS,
    OUTPUT,
    UNKNOWN,
    Atom,
    Choice,
    Const,
    External,
    Frame,
    Function,
    Method,
    Tensor,
    Thing,
    Unknown,
    Value,
    constant,
    of,
    unknown,
)
from gradguard_lint.engine.branches import is_plain
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.engine.proofs import prove
from gradguard_lint.engine.truth import names_cuda
from gradguard_lint.models.rows import Row
from gradguard_lint.models.torch_words import (
    BY_SIZE,
    CASTS,
    CLEARS,
    COUNTS,
    DRAWS_OF,
    GIVE_ONE,
    GIVES,
    HEAVY,
    HOOKS,
    IN_ORDER,
    IN_PLACE_DRAWS,
    METHODS_GIVE_ONE,
    NOT_SMOOTH,
    NOT_WRITING,
    OF_MODULES,
    OF_TENSORS,
    ONE_OF_ALL,
    PARAMETERS,
    QUESTIONS,
    RESHAPES,
    SEVERAL,
    STAYS_BEHIND,
    STOPS,
    TO_ONE,
    TURNS,
    VIEW_ATTRIBUTES,
    VIEWS,
    WHOLE,
    WITH_INDICES,
)
from gradguard_lint.models.transfers import (
    collectives,
    data_parallel,
    frozen,
    module_parts,
    own_gradients,
)
from gradguard_lint.models.transfers.chances import is_certain
from gradguard_lint.models.transfers.devices import (
    as_written,
    cuda_argument,
    device_argument,
    gpu_placement,
    gpu_touched,
    is_unknown_integer,
    of_tensor,
)
from gradguard_lint.models.transfers.extents import same_element
from gradguard_lint.models.transfers.tensor_uses import all_on_gpu, gpu_used, worked, written
from gradguard_lint.models.transfers.tensors import (
    as_figure,
    as_large,
    combine,
    derived,
    each_tensor,
    is_large,
    move,
    requires_grad,
    several,
    tensors_in,
    viewed,
    with_sources,
)
from gradguard_lint.words import words
from pytest_gradguard.records import replace


def tensor_attribute(m: Machine, frame: Frame, node: ast.AST, tensor: Tensor, name: str) -> Value:
    """``tensor.name``; a `Method` if it isn't a known attribute."""
    if name == "data":
        return of(_without_history(tensor))
    if name == "grad":
        own_gradients.used(m, frame, GradRead, node, "`.grad`", of(tensor))
        return of(Tensor("torch", "none", tensor.gpu, m.worker_ident, GRADIENT, small=tensor.small))
    if name in VIEW_ATTRIBUTES:
        return of(replace(viewed(m, derived(m, tensor), tensor), strided=True))
    if name == "device":
        if tensor.gpu:
            return of_tensor(m)
        return unknown(_device_of(tensor, node))
    if name == "is_cuda":
        return constant(True) if tensor.gpu else unknown(names_cuda(_device_of(tensor, node)))
    if name == "requires_grad" and tensor.grad in ("none", "leaf", "history"):
        return constant(tensor.grad != "none")
    if name == "grad_fn" and tensor.grad in ("none", "leaf", "parameter"):
        return NOTHING
    if name == "grad_fn" and tensor.grad == "history":
        return of(Thing("node", name))
    if name == "shape":
        return sequence(NUMBER, "tuple")
    if name in ("dtype", "layout"):
        return unknown(("attr", ("node", id(node)), name))
    if name in ("ndim", "itemsize", "nbytes"):
        return NUMBER
    if name in ("requires_grad", "is_leaf", "grad_fn", "names"):
        return UNKNOWN
    return of(Method(tensor, name))


def part_of_output(m: Machine, atom: Atom) -> Atom:
    """An attribute of a model's output, ``model(batch).logits``, unless `atom` is a method."""
    whole = atom.receiver if isinstance(atom, Method) else None
    if not isinstance(atom, Method) or not isinstance(whole, Tensor):
        return atom
    if whole.ident != OUTPUT or whole.certain or atom.name in _METHODS or atom.name[-1] == "_":
        return atom
    return replace(derived(m, whole), ident=OUTPUT)


_METHODS = frozenset().union(
    *(
        CASTS,
        COUNTS,
        HEAVY,
        HOOKS,
        METHODS_GIVE_ONE,
        NOT_SMOOTH,
        OF_MODULES,
        OF_TENSORS,
        ONE_OF_ALL,
    ),
    *(QUESTIONS, SEVERAL, STOPS, TO_ONE, TURNS, VIEWS, WITH_INDICES, GIVE_ONE),
)
"""Names of tensor attributes that are methods."""


def _device_of(tensor: Tensor, node: ast.AST) -> Key:
    """The key of the device of `tensor`, which isn't known to be on a GPU."""
    return ("device-of", tensor.ident or ("node", id(node)))


def tensor_method(
    m: Machine, frame: Frame, node: ast.AST, tensor: Tensor, name: str, args: Args
) -> Value:
    """``tensor.name(...)``."""
    if tensor.ident == GRADIENT:  # None has no methods
        prove(m, _owner_of_gradient(m, frame, node), "leaf")
    if name == "detach":
        return of(_without_history(tensor))
    if name in STOPS or name in ("clone", "cpu"):
        gpu_used(m, frame, node, [tensor])
    if name in STOPS:
        if name == "numpy":
            of_it = tensor.sources
            return of(Tensor("numpy", ident=tensor.ident, born=m.worker_ident, sources=of_it))
        if name == "tolist":
            known = tensor.ident > 0 or GRADIENT in (tensor.ident, *tensor.sources)
            return UNKNOWN if known else NUMBERS
        return NUMBER
    if name in COUNTS:
        return NUMBER if args.positional or name != "size" else sequence(NUMBER, "tuple")
    if name in QUESTIONS:
        if name == "share_memory_" and tensor.ident == GRADIENT:
            m.effect(frame, node, "`.share_memory_()`", GradWrite())
        elif name == "share_memory_" and tensor.ident:
            m.program.shared.add(tensor.ident)
        return UNKNOWN
    if name in HOOKS:
        return hooked(m, frame, node, tensor, args)
    if name == "cuda":
        return move(m, frame, node, tensor, cuda_argument(args), "`.cuda()`")
    if name == "cpu":
        return of(replace(derived(m, tensor), gpu=False, cpu=NONE))
    if name == "to":
        device = device_argument(args)
        first = args.get(0, "other")
        if first is not None and any(first.tensors()):
            gpu = any(t.gpu for t in first.tensors())
            return of(replace(derived(m, tensor), gpu=gpu))
        given = [value for value in args.values() if isinstance(value.only, External)]
        here = device.constant == "cpu" if device is not None else bool(given)
        same = all(same_element(tensor.memory, value) for value in given)
        if not here or not same or "copy" in args.keywords:
            tensor = replace(tensor, memory=None)  # possibly a copy
        if any(map(_of_whole_numbers, given)):
            tensor = _without_history(tensor)
        return move(m, frame, node, tensor, device, f"`.to({as_written(node, device)})`")
    wanted = args.constant(0, "dtype") if name == "type" else None
    if isinstance(wanted, str) and wanted.startswith("torch.cuda."):
        return move(m, frame, node, tensor, constant("cuda"), f"`.type({wanted!r})`")
    if any(map(_of_whole_numbers, args.values())):
        tensor = _without_history(tensor)
    if name == "backward":
        own_gradients.backward(m, frame, node, "`.backward()`", of(tensor))
        heavy = not (tensor.small or tensor.gpu)
        m.effect(frame, node, "torch", Compute("torch", heavy=heavy))
        data_parallel.backward(m, frame, node, of(tensor))
        return NOTHING
    if name == "requires_grad_":
        flag = args.get(0, "requires_grad") or constant(True)
        if False in flag.constants():
            m.effect(frame, node, "`.requires_grad_(False)`", Detached(of(tensor)))
        return set_requires_grad(m, tensor, flag) or of(tensor)
    if name == "clone" and tensor.grad == "none":
        ident = tensor.ident if tensor.ident in (GRADIENT, GRADIENTS) else 0
        sources = tensor.sources | ({tensor.ident} if tensor.ident else frozenset())
        return of(replace(tensor, ident=ident, sources=sources, memory=None))
    if name == "pin_memory":
        gpu_touched(m, frame, node, "`.pin_memory()`", "torch")
        return of(tensor)
    if name in ("new_zeros", "new_ones", "new_tensor", "new_empty", "new_full", "new"):
        made = Tensor("torch", requires_grad(args), tensor.gpu, m.worker_ident, m.ident_at(node))
        device = args.get(None, "device")
        if device is None:
            gpu_used(m, frame, node, [tensor])
            return of(made)
        return move(
            m, frame, node, made, device, f"`.{name}(..., device={as_written(node, device)})`"
        )
    if name.endswith("_") and not name.endswith("__"):
        if name not in NOT_WRITING:
            written(m, frame, node, f"`.{name}()`", of(tensor))
        m.effect(frame, node, f"`.{name}()`", Write(of(tensor), whole=name in _REPLACING))
        if tensor.ident == GRADIENT and name in (*CLEARS, *GIVES):
            owner = _owner_of_gradient(m, frame, node)
            if name in CLEARS:
                own_gradients.cleared(m, frame, node, f"`.grad.{name}()`", owner)
            elif any(value.constant is None for value in args.values()):
                m.effect(frame, node, f"`.grad.{name}()`", GradWrite(owner))
        for value in args.values():
            collectives.put_back(m, of(tensor), value)
        if name == "detach_":
            m.effect(frame, node, "`.detach_()`", Detached(of(tensor)))
            return of(replace(tensor, grad="none"))
    draws = name in DRAWS_OF or (
        name in IN_PLACE_DRAWS and not is_certain(f"torch.Tensor.{name}", args)
    )
    if draws and "generator" not in args.keywords:
        on_gpu = tensor.gpu or _is_buffer_on_gpu(m, tensor)
        on = all_on_gpu([(replace(tensor, gpu=on_gpu is True), NONE)])
        if on_gpu is not None:
            m.effect(frame, node, f"`.{name}()`", Draw("torch", on))
    found: list[tuple[Tensor, Conditions]] = [(tensor, NONE)]
    found.extend((t, w) for t, w in tensors_in(args.values()))
    smooth = name not in NOT_SMOOTH
    operands = [of(tensor), *args.values()]
    by_size = name.rstrip("_") in BY_SIZE and is_large(operands)
    if name not in OF_MODULES:
        worked(m, frame, node, found, heavy=name in HEAVY or by_size, by_size=by_size)
    value = combine(m, found, smooth=smooth, framework="torch")
    if smooth:
        value = with_sources(m, value, (of(tensor), *args.values()))
    value = as_large(name.rstrip("_"), operands, value)
    value = as_figure(m, found, name, args.positional, args, value)
    same = name in CASTS and same_element(tensor.memory, constant(name))
    is_view = same or (name in VIEWS and not (tensor.strided and name in RESHAPES))
    if is_view and tensor.memory is not None:
        apart = tensor.strided or not (same or name in IN_ORDER)
        value = each_tensor(value, lambda it: replace(it, memory=tensor.memory, strided=apart))
    if is_view and (name in IN_ORDER or name in TURNS):
        value = each_tensor(value, lambda it: viewed(m, it, tensor))
    value = collectives.with_own_slot(m, node, [of(tensor), *args.values()], value, name)
    return several(m, found, name, args.get(0, "dim"), value)


def _is_buffer_on_gpu(m: Machine, tensor: Tensor) -> bool | None:
    """Whether `tensor` is a buffer of a module moved to a GPU; None: possibly."""
    owner = m.program.buffers.get(tensor.ident, 0)
    moved = m.read(owner, "<gpu>") if owner else None
    if moved is None or True not in moved.constants():
        return False
    return True if moved.constant is True else None


def gives_one(name: str, args: Args) -> bool:
    """Whether the tensor method `name` returns one tensor for any arguments."""
    of_all = name in ONE_OF_ALL and not args.positional and not args.keywords
    return name in GIVE_ONE or name in METHODS_GIVE_ONE or of_all


_REPLACING = words("copy_ fill_ zero_")
"""Methods that replace all elements."""


def _of_whole_numbers(kind: Value) -> bool:
    """Whether `kind` is an element type without gradients."""
    return isinstance(kind.only, External) and kind.only.name.rpartition(".")[2] in WHOLE


def _without_history(tensor: Tensor) -> Tensor:
    """`tensor` without its history."""
    whole = tensor.grad == "none" or COPIED in tensor.sources
    kept = tensor.sources if whole else tensor.sources & MARKS
    return replace(tensor, grad="none", severed=frozenset(), sources=kept, maybe=frozenset())


def _owner_of_gradient(m: Machine, frame: Frame, call: ast.AST) -> Value:
    """The owner of the gradient whose method `call` calls: as in ``w.grad.data.zero_()``."""
    read: ast.AST | None = getattr(getattr(call, "func", None), "value", None)
    while isinstance(read, ast.Attribute) and read.attr == "data":
        read = read.value
    if isinstance(read, ast.Attribute) and read.attr == "grad" and is_plain(m, read.value):
        return m.eval(frame, read.value)
    return UNKNOWN


def hooked(m: Machine, frame: Frame, node: ast.AST, tensor: Atom, args: Args) -> Value:
    """``tensor.register_hook(...)``, which returns a handle that removes the hook."""
    hooks = [getattr(it, "function", it) for it in (args.get(0, "hook") or UNKNOWN).atoms]
    if not any(isinstance(hook, Function) and STAYS_BEHIND in hook.marks for hook in hooks):
        m.effect(frame, node, ast.unparse(node), Hook(of(tensor)))
    return of(Thing("hook", "hook", m.ident_at(node), parts=(("tensor", of(tensor)),)))


def unhooked(m: Machine, frame: Frame, node: ast.AST, handle: Thing) -> Value:
    """``handle.remove()``, or the end of its ``with`` block."""
    m.effect(frame, node, "`.remove()`", Hook(handle.part("tensor") or UNKNOWN, removed=True))
    return NOTHING


def unknown_method(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args) -> Value | None:
    """A method of an unknown object that only torch has."""
    if name == "requires_grad_":
        flag = args.get(0, "requires_grad")
        if flag is None or True in flag.constants():
            return of(Tensor("torch", "leaf", False, m.worker_ident, m.ident_at(node)))
        return None
    if name in ("cuda", "to"):
        device = device_argument(args) if name == "to" else cuda_argument(args)
        if (
            name == "to"
            and device is not None
            and any(
                (isinstance(atom, Const) and isinstance(atom.value, int))
                or is_unknown_integer(atom)
                for atom in device.atoms
            )
        ):
            return None
        gpu, when = gpu_placement(device, m)
        if not gpu:
            return None
        what = "`.cuda()`" if name == "cuda" else f"`.to({as_written(node, device)})`"
        gpu_touched(m, frame, node, what, "torch", device, when)
        place = m.site(frame, node)
        moved = Tensor("torch", "unknown", True, m.worker_ident, m.ident_at(node), place=place)
        if when:
            return Value((Choice(moved, when), Choice(Unknown())))
        return of(moved)
    if name == "item" and not args.positional:
        return NUMBER
    if name == "detach" and not args.positional:
        return of(Tensor("torch", "none", False, m.worker_ident))
    return None


def set_requires_grad(m: Machine, tensor: Tensor, flag: Value) -> Value | None:
    """`tensor` with ``requires_grad`` set; None if it represents a module's parameters, for which
    that is recorded."""
    if frozen.stands_for_all(tensor):
        frozen.freeze(m, tensor.ident, frozen.frozen_by(m, flag))
        return None
    if tensor.grad == "parameter" and flag.constants() != [True]:
        for ident in tensor.sources or (tensor.ident,):  # unknown ones of a module
            frozen.freeze(m, ident, UNKNOWN)
    return of(with_grad(tensor, flag))


def filled(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``torch.nn.init.zeros_(tensor)`` and similar functions, which return their tensor.

    The decomposition in ``orthogonal_`` starts the compute threads at any size (observed at 4 x 4).
    """
    value = args.get(0, "tensor") or UNKNOWN
    what = f"`{name.rpartition('.')[2]}`"
    written(m, frame, node, what, value)
    target = value.map(lambda atom: _of_part(m, atom))
    m.effect(frame, node, what, Write(target))
    if row.flag == "heavy":
        data = [
            (replace(tensor, small=False, grad="none"), when)
            for tensor, when in tensors_in([target])
            if not module_parts.is_away(m, tensor.ident)
        ]
        worked(m, frame, node, data, heavy=True)
    return value


def _of_part(m: Machine, atom: Atom) -> Value:
    """The parameter of a known submodule, or its data, for `atom`."""
    part = atom
    while isinstance(part, Method) and part.name == "data":
        part = part.receiver
    if not isinstance(part, Method) or part.name not in PARAMETERS:
        return of(atom)
    modules = module_parts.modules_of_part(m, part.receiver)
    only = modules.only if modules is not None else None
    if not isinstance(only, Thing):
        return of(atom)
    return of(Tensor("torch", "parameter", only.gpu, only.born, only.ident))


def with_history_of(m: Machine, tensor: Tensor, given: Iterable[Value]) -> Value | None:
    """`tensor` after a write: with the history of the written values; None if these have none, or
    it already has one."""
    if tensor.framework != "torch" or tensor.tracked or not m.modes.grad:
        return None
    found = tensors_in(given)
    if not any(one.tracked for one, _ in found):
        return None
    made = combine(m, [(tensor, NONE), *found], framework="torch")
    history = ("grad", "severed", "sources", "maybe")
    return each_tensor(made, lambda it: replace(tensor, **{at: getattr(it, at) for at in history}))


def with_grad(tensor: Tensor, flag: Value) -> Tensor:
    """`tensor` with ``requires_grad`` set to `flag`."""
    constants = flag.constants()
    if True in constants:
        return (
            replace(tensor, grad="leaf", maybe=frozenset())
            if tensor.grad in ("none", "unknown")
            else tensor
        )
    if False in constants:
        return replace(tensor, grad="none")
    return replace(tensor, grad="unknown")
