"""Tensors: graphs, sizes, and results of operations."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable

from gradguard_lint.domain.conditions import NONE, Conditions
from gradguard_lint.domain.shapes import inner, is_certain, items, result_call, sequence
from gradguard_lint.domain.values import (
    ANYTHING,
    COPIED,
    FIGURE,
    GRADIENT,
    GRADIENTS,
    Choice,
    Const,
    Frame,
    Items,
    Method,
    Tensor,
    Thing,
    Unknown,
    Value,
    is_number,
    of,
)
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.engine.proofs import sources_of
from gradguard_lint.models.torch_words import (
    ALONG,
    KEEPS_COUNT,
    ORDERS,
    SEVERAL,
    TO_ONE,
    WITH_INDICES,
)
from gradguard_lint.models.transfers.devices import (
    cpu_when,
    gpu_placement,
    gpu_touched,
)
from gradguard_lint.models.transfers.tensor_uses import gpu_used, worked
from pytest_gradguard.records import replace

SMALL = 1000
"""The number of elements up to which no operation uses several threads."""

FRAMEWORK_ORDER = ("torch", "tensorflow", "cupy", "dask", "jax", "numpy")


LARGE_FROM = 32769
"""The number of elements from which torch uses threads for elementwise operations and reductions.
"""


def known_count(values: Iterable[Value]) -> int | None:
    """The product of these sizes, numbers or tuples of them; None if unknown."""
    count = 1
    for value in values:
        only = value.only
        if isinstance(only, Items) and only.items is not None:
            inside = known_count(only.items)
            if inside is None:
                return None
            count *= inside
        elif isinstance(only, Const) and isinstance(only.value, (bool, str, type(None))):
            continue
        elif isinstance(only, Const) and isinstance(only.value, int):
            count *= max(only.value, 1)
        else:
            return None
    return count


def known_small(values: Iterable[Value]) -> bool:
    """Whether these sizes are known and small."""
    count = known_count(values)
    return count is not None and count <= SMALL


def is_large(values: Iterable[Value]) -> bool:
    """Whether one of these operands is certainly a large tensor."""
    return any(
        value.choices and all(isinstance(it, Tensor) and it.large for it in value.atoms)
        for value in values
    )


def as_large(name: str, operands: Iterable[Value], value: Value) -> Value:
    """`value`, the result of the operation `name` on `operands`: large if one of them is and the
    number of elements is kept."""
    if name not in KEEPS_COUNT or not is_large(operands):
        return value
    return each_tensor(value, lambda it: replace(it, large=True))


def tensors_in(values: Iterable[Value]) -> list[tuple[Tensor, Conditions]]:
    """The tensors among `values`, including those in containers, one level deep."""
    found = []
    for value in values:
        for choice in value.choices:
            call = result_call(choice.atom)
            if isinstance(choice.atom, Tensor):
                found.append((choice.atom, choice.when))
            elif call is not None:
                found.append((unknown_result(call), choice.when))
            elif isinstance(choice.atom, Items):
                parts = (
                    choice.atom.items if choice.atom.items is not None else (choice.atom.element,)
                )
                found.extend(
                    (tensor, choice.when | when)
                    for tensor, when in tensors_in(
                        Value(
                            tuple(
                                inner for inner in part.choices if not isinstance(inner.atom, Items)
                            )
                        )
                        for part in parts
                    )
                )
    return found


def unknown_result(call: int) -> Tensor:
    """The tensor for an unknown result of a process call."""
    return Tensor("torch", "unknown", maybe=frozenset({call}))


def unsettled(value: Value) -> bool:
    """Whether `value`, or something in it, is entirely unknown."""
    return any(isinstance(atom, Unknown) and result_call(atom) is None for atom in inner(value, 1))


def combine(
    m: Machine,
    found: list[tuple[Tensor, Conditions]],
    *,
    smooth: bool = True,
    framework: str | None = None,
) -> Value:
    """The result of an operation on tensors."""
    tensors = [tensor for tensor, _ in found]
    names = {tensor.framework for tensor in tensors}
    if framework is None:
        framework = next((name for name in FRAMEWORK_ORDER if name in names), "numpy")
    gpu_of = [when for tensor, when in found if tensor.gpu]
    grad_of = [when for tensor, when in found if tensor.tracked]
    grad = "none"
    if framework == "torch":
        if grad_of and m.modes.grad and smooth:
            grad = "history"
        elif any(tensor.grad == "unknown" for tensor in tensors) and m.modes.grad and smooth:
            grad = "unknown"
    elif any(tensor.grad in ("variable", "history") for tensor in tensors):
        grad = "history"
    severed: frozenset[int] = frozenset()
    sources: frozenset[int] = frozenset()
    if smooth:
        severed = severed.union(*(tensor.severed for tensor in tensors))
        sources = sources.union(
            *(
                tensor.sources | ({tensor.ident} if tensor.ident else frozenset())
                for tensor in tensors
            )
        ) - {COPIED}
        if framework == "torch" and not m.modes.grad:
            severed = frozenset()
        if framework == "tensorflow" and m.place.worker is not None:
            call = m.place.worker.call
            severed |= {call.ident} if call.modes.tape is not None else set()
    maybe: frozenset[int] = frozenset()
    if smooth and all(tensor.maybe or tensor.grad == "none" for tensor in tensors):
        maybe = maybe.union(*(tensor.maybe for tensor in tensors))
    atom = Tensor(
        framework,
        grad,
        bool(gpu_of),
        m.worker_ident,
        0,
        severed,
        frozenset(sources),
        maybe,
        next((tensor.place for tensor in tensors if tensor.gpu), None),
        bool(tensors) and all(tensor.small for tensor in tensors),
        NONE.union(*(tensor.cpu for tensor in tensors)),
    )
    conditions = [when for group in (gpu_of, grad_of) for when in group]
    when = frozenset.intersection(*conditions) if conditions else NONE
    if not when:
        return of(atom)
    plain = replace(
        atom, gpu=False, place=None, grad="unknown" if framework == "torch" else atom.grad
    )
    return Value((Choice(atom, when), Choice(plain, frozenset())))


def each_tensor(value: Value, change: Callable[[Tensor], Tensor]) -> Value:
    """`value` with `change` applied to each tensor."""
    return value.map(lambda atom: of(change(atom) if isinstance(atom, Tensor) else atom))


def unsure_of_grad(tensor: Tensor) -> Tensor:
    """`tensor`, possibly with an unknown history."""
    return replace(tensor, grad="unknown") if tensor.grad == "none" else tensor


def as_figure(
    m: Machine,
    found: list[tuple[Tensor, Conditions]],
    short: str,
    others: list[Value],
    args: Args,
    value: Value,
) -> Value:
    """The result `value` of the operation `short` on `found`, with its sources: a scalar computed
    from gradients isn't a gradient, and one from parameters isn't a copy; reordered or joined
    values are copies.

    Args:
        others: its arguments, without the tensor itself.
    """
    copies = short in ORDERS and bool(found) and all(_has_values(tensor) for tensor, _ in found)
    limits = others[1:] if short.endswith("norm") else others
    if not copies and (short not in TO_ONE or limits or not args.keywords.keys() <= _WHOLE):
        return value
    of_gradients = any(GRADIENT in (tensor.ident, *tensor.sources) for tensor, _ in found)

    def marked(it: Tensor) -> Tensor:
        sources = it.sources
        if copies:
            sources |= {COPIED}
        elif of_gradients:
            sources = sources - {GRADIENT, GRADIENTS} | {FIGURE}
        elif it.grad == "none":
            sources = frozenset(one for one in sources if one < 0 or one in m.program.buffers)
        return replace(it, sources=sources)

    return each_tensor(value, marked)


def _has_values(tensor: Tensor) -> bool:
    """Whether `tensor` is a parameter, or a copy of its values."""
    return tensor.grad == "parameter" or COPIED in tensor.sources


_WHOLE = frozenset({"p", "ord", "dtype", "correction", "unbiased", "input"})
"""Arguments with which an operation still reduces the whole tensor."""


def several(
    m: Machine, found: list[tuple[Tensor, Conditions]], short: str, dim: Value | None, value: Value
) -> Value:
    """The result of the operation `short`, of which `value` is the first or each part.

    Args:
        found: its tensor arguments.
        dim: the argument that may be a dimension.
    """
    if short in SEVERAL:
        return sequence(value, "tuple")
    along = dim is not None and (isinstance(dim.constant, int) or any(map(is_number, dim.atoms)))
    if short in WITH_INDICES or (short in ALONG and along):
        return items("tuple", (value, combine(m, found, smooth=False, framework="torch")))
    return value


def operation(
    m: Machine,
    frame: Frame,
    node: ast.AST,
    values: list[Value],
    *,
    smooth: bool = True,
    matmul: bool = False,
) -> Value | None:
    """The result of an operator on `values`; None if none is a tensor."""
    found = [
        (choice.atom, choice.when)
        for value in values
        for choice in value.choices
        if isinstance(choice.atom, Tensor)
    ]
    if not found:
        return _of_results(values)
    if any(result_call(atom) is not None for value in values for atom in value.atoms):
        found = tensors_in(values)
    by_size = not matmul and is_large(values)
    worked(m, frame, node, found, heavy=matmul or by_size, by_size=by_size)
    value = combine(m, found, smooth=smooth)
    value = with_anything(value, values)
    value = as_large("add" if by_size else "", values, value)
    if smooth:
        value = with_sources(m, value, values)
    if _has_tensor(node, values):
        value = certainly(value)
    if len(found) == 1 and found[0][0].framework == "numpy" and not matmul:
        made = replace(found[0][0], memory=("array", m.ident_at(node)))
        return each_tensor(value, lambda _: made)
    return value


def _has_tensor(node: ast.AST, values: list[Value]) -> bool:
    """Whether an operand of the operator `node` is a tensor, so that its result is one."""
    if not isinstance(node, (ast.BinOp, ast.AugAssign, ast.UnaryOp)):
        return False
    if isinstance(node.op, ast.Mod):  # possibly string formatting
        values = values[:1]
    return any(map(is_certain, values))


def certainly(value: Value) -> Value:
    """`value` as one torch tensor on every path."""
    return each_tensor(value, lambda it: replace(it, certain=it.framework == "torch" or it.certain))


def with_sources(m: Machine, value: Value, given: Iterable[Value]) -> Value:
    """`value`, a torch tensor computed from `given`: it may have a graph if something unknown there
    may."""
    if not m.modes.grad or all(it.framework != "torch" or it.tracked for it in value.tensors()):
        return value
    behind = sources_of(given)

    def change(tensor: Tensor) -> Tensor:
        if tensor.framework != "torch" or tensor.tracked:
            return tensor
        return replace(tensor, grad="unknown", behind=behind)

    return each_tensor(value, change) if behind else value


def with_anything(value: Value, given: Iterable[Value]) -> Value:
    """`value`, a TensorFlow tensor, with `ANYTHING` as a source if `given` contains anything
    unknown."""
    atoms = [atom for each in given for atom in inner(each, 1)]
    if not any(isinstance(atom, (Method, Unknown)) for atom in atoms):
        return value

    def marked(tensor: Tensor) -> Tensor:
        own = {ANYTHING} if tensor.framework == "tensorflow" else set()
        return replace(tensor, sources=tensor.sources | own)

    return each_tensor(value, marked)


def _of_results(values: list[Value]) -> Value | None:
    """The result of an operator on unknown results of one call and numbers."""
    calls = set()
    for value in values:
        for atom in value.atoms:
            call = result_call(atom)
            if call is not None:
                calls.add(call)
            elif not isinstance(atom, Const) and not is_number(atom):
                return None
    return of(Unknown(("result", calls.pop()))) if len(calls) == 1 else None


def derived(m: Machine, tensor: Tensor) -> Tensor:
    """A view or part of `tensor`."""
    grad = tensor.grad
    if tensor.framework == "torch" and tensor.tracked:
        grad = "history" if m.modes.grad else "none"
    elif tensor.grad == "variable":
        grad = "history"
    return replace(
        tensor,
        grad=grad,
        ident=0,
        sources=tensor.sources
        | ({tensor.ident} if tensor.ident else frozenset())
        | ({COPIED} if tensor.grad == "parameter" else frozenset()),
        whole=0,
        extent=() if tensor.framework == "jax" else tensor.extent,
        large=False,
    )


def viewed(m: Machine, view: Tensor, tensor: Tensor) -> Tensor:
    """`view`, which shares the memory of `tensor`: a thread's writes to one are in the other."""
    if m.place.worker is None or m.in_process_worker:
        return view
    return replace(view, whole=tensor.whole or tensor.ident, born=tensor.born)


def requires_grad(args: Args) -> str:
    """The `grad` of a tensor by its ``requires_grad`` argument."""
    value = args.get(None, "requires_grad")
    if value is None:
        return "none"
    constants = value.constants()
    if True in constants:
        return "leaf"
    return "none" if constants and not any(value.of(Unknown)) else "unknown"


def move(
    m: Machine, frame: Frame, node: ast.AST, tensor: Tensor, device: Value | None, what: str
) -> Value:
    """``tensor.to(device)``."""
    gpu, when = gpu_placement(device, m)
    if not gpu:
        known = device is not None and any(
            isinstance(atom, (Const, Thing)) for atom in device.atoms
        )
        if device is not None and not any(isinstance(it, Unknown) for it in device.atoms):
            gpu_used(m, frame, node, [tensor])
        left = derived(m, tensor)
        cpu = NONE if tensor.gpu else cpu_when(device)
        return of(replace(left, gpu=False if known else tensor.gpu, cpu=cpu))
    gpu_touched(m, frame, node, what, tensor.framework, device, when)
    moved = replace(derived(m, tensor), gpu=True, place=m.site(frame, node), memory=None)
    if not when:
        return of(moved)
    left = replace(derived(m, tensor), cpu=cpu_when(device))
    return Value((Choice(moved, when), Choice(left, frozenset())))
