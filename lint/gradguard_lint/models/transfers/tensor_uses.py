"""Resources of tensor operations: compute threads, the GPU, and array memory."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from math import prod

from gradguard_lint.domain.conditions import WITH_A_GPU, Conditions, any_of
from gradguard_lint.domain.payloads import Compute, GpuUse, Graph, MemoryUse
from gradguard_lint.domain.values import UNKNOWN, Atom, Frame, Items, Table, Tensor, Value, of
from gradguard_lint.engine.branches import is_plain
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.tree import last_name
from gradguard_lint.models.jax import LARGE, OPERATORS, SHARED_OUT
from gradguard_lint.models.transfers.devices import (
    gpu_absent,
    gpu_hidden,
    gpu_touched,
    memory_grown,
)

GRAPHS = (0, "<graphs>")
"""Store key: TensorFlow's operations only build a graph, which a session runs."""


def worked(
    m: Machine,
    frame: Frame,
    node: ast.AST,
    found: list[tuple[Tensor, Conditions]],
    *,
    heavy: bool = False,
    by_size: bool = False,
) -> None:
    """Record the computation: ``compute``, and ``graph`` if it builds a graph.

    Args:
        found: the tensors, with their conditions.
        heavy: whether it may start compute threads, if it is on the CPU, and not small.
        by_size: whether it does so for large tensors only.
    """
    tensors = [tensor for tensor, _ in found]
    gpu_used(m, frame, node, tensors)
    large = [
        when | tensor.cpu
        for tensor, when in found
        if not tensor.gpu and (tensor.large if by_size else not tensor.small)
    ]
    large = [when for when in large if not m.conflicts(when)] if heavy else []
    names = {tensor.framework for tensor in tensors}
    if "jax" in names:
        what = _of_jax(node)
        always = is_shared_out(what.removesuffix("()"), tensors)
        m.effect(frame, node, what, Compute("jax", heavy=True, always=always))
    if m.stored(*GRAPHS) is not None:
        names.discard("tensorflow")
    for framework in ("torch", "tensorflow"):
        if framework in names:
            m.effect(
                frame, node, framework, Compute(framework, heavy=bool(large)), under=any_of(large)
            )
            if framework == "torch" and m.modes.grad and any(t.tracked for t in tensors):
                m.effect(frame, node, framework, Graph())


def is_shared_out(name: str, arrays: Iterable[Tensor]) -> bool:
    """Whether several threads compute that JAX function with or for one of these arrays."""
    return name.rpartition(".")[2] in SHARED_OUT and any(
        it.framework == "jax" and it.extent and prod(it.extent[:-1]) >= LARGE for it in arrays
    )


def _of_jax(node: ast.AST) -> str:
    """The JAX function behind an operator or method: what has run once is compiled, under either
    name."""
    operator: ast.AST | None = None
    if isinstance(node, (ast.AugAssign, ast.BinOp, ast.UnaryOp)):
        operator = node.op
    elif isinstance(node, ast.Compare):
        operator = node.ops[0]
    name = OPERATORS.get(type(operator).__name__)
    if isinstance(node, ast.Call):
        name = last_name(node.func) or name
    return f"jax.numpy.{name}()"


def gpu_used(m: Machine, frame: Frame, node: ast.AST, tensors: Iterable[Tensor]) -> None:
    """Record that a forked worker uses the GPU of tensors, on every path."""
    if m.place.worker is None or m.place.worker.call.start != "fork":
        return
    if any(tensor.gpu and tensor.framework != "jax" for tensor in tensors):
        operands = (m.eval(frame, part) for part in _operands(node) if is_plain(m, part))
        value_used(m, frame, node, operands)


def value_used(m: Machine, frame: Frame, node: ast.AST, values: Iterable[Value]) -> None:
    """As `gpu_used`, for values that are, or contain, tensors."""
    forked = m.place.worker is not None and m.place.worker.call.start == "fork"
    if forked and not gpu_absent(m) and any(map(certainly_on_gpu, values)):
        m.effect(frame, node, ast.unparse(node), GpuUse("work"))


def _operands(node: ast.AST) -> Iterator[ast.expr]:
    """The operands of `node`."""
    if isinstance(node, ast.Call):
        own = node.func.value if isinstance(node.func, ast.Attribute) else node.func
        while isinstance(own, ast.Call) and getattr(own.func, "attr", "") == "detach":
            own = getattr(own.func, "value", own.func)
        yield own
        for part in node.args:
            yield from part.elts if isinstance(part, (ast.List, ast.Tuple)) else (part,)
    else:
        yield from (part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr))


def certainly_on_gpu(value: Value) -> bool:
    """Whether all of `value`, or something in it, is on a GPU, on no other condition than that
    there is one."""
    known = [(_is_on_gpu(choice.atom), choice.when) for choice in value.choices]
    there = [when for gpu, when in known if gpu]
    return bool(there) and (len(there) == len(known) or all(it == WITH_A_GPU for it in there))


def _is_on_gpu(atom: Atom) -> bool:
    if isinstance(atom, Items):
        return any(map(certainly_on_gpu, atom.items or (atom.element,)))
    if isinstance(atom, Table):
        return any(map(certainly_on_gpu, [value for _, value in atom.entries] or (atom.rest,)))
    return bool(getattr(atom, "gpu", False))


def all_on_gpu(found: list[tuple[Tensor, Conditions]]) -> Value:
    """The first of the tensors `found`, if all are certainly on a GPU."""
    there = bool(found) and all(tensor.gpu and not when for tensor, when in found)
    return of(found[0][0]) if there else UNKNOWN


def written(m: Machine, frame: Frame, node: ast.AST, what: str, target: Value) -> None:
    """Record a write through torch to an array's memory in a worker process; NumPy itself refuses
    if that is read-only."""
    if m.in_process_worker and any(
        tensor.memory is not None and tensor.framework != "numpy" for tensor in target.tensors()
    ):
        m.effect(frame, node, what, MemoryUse("written", target))


def operation_placed(m: Machine, frame: Frame, node: ast.AST, what: str) -> None:
    """Record the placement of an operation: on the GPU, in a device scope for it."""
    if m.modes.gpu and not gpu_hidden(m, config=True):
        gpu_touched(m, frame, node, what, "tensorflow", grown=memory_grown(m))
