"""The parent's own gradients: whether it misses gradients that a worker keeps.

If the parent has cleared the gradients of a module since a call, it doesn't wait for those of that
call. Gradients that no optimizer has used yet are recorded as well.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from gradguard_lint.domain.effects import ParallelCall
from gradguard_lint.domain.payloads import Autograd, Backward, GradClear, GradRead, OptimizerStep
from gradguard_lint.domain.shapes import idents, sequence
from gradguard_lint.domain.values import (
    GRADIENT,
    NOTHING,
    UNKNOWN,
    Const,
    Frame,
    Tensor,
    Unknown,
    Value,
    constant,
    of,
)
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.engine.proofs import prove, prove_graph
from gradguard_lint.models.rows import Row
from gradguard_lint.models.transfers import data_parallel
from gradguard_lint.models.transfers.tensors import tensors_in
from pytest_gradguard.records import replace

_CLEARED = "<cleared after>"
"""Store key of a module or tensor: the calls before its gradients were last cleared."""
_FRESH = "<fresh gradients>"
"""Store key: whether it has gradients of the parent that no optimizer has used."""
_ANY = -1
"""Stands for any object whose gradients are cleared."""


def backward(m: Machine, frame: Frame, node: ast.AST, what: str, target: Value) -> None:
    """Record that a backward pass accumulates gradients of what `target` was computed from."""
    asked_for(m, frame, node, what, target, UNKNOWN)
    _note(m, idents(target), fresh=True)


def goes_backward(m: Machine, frame: Frame, node: ast.AST, what: str, loss: Value) -> Value:
    """A library's method runs the backward pass of its argument."""
    backward(m, frame, node, what, loss)
    data_parallel.backward(m, frame, node, loss)
    return NOTHING


def asked_for(
    m: Machine, frame: Frame, node: ast.AST, what: str, target: Value, asked: Value
) -> None:
    """Record that gradients of `target` are computed, with respect to `asked`."""
    prove_graph(m, target)
    prove(m, asked, "leaf")
    m.effect(frame, node, what, Autograd())
    of_element = _is_of_an_element(m, frame, node)
    m.effect(frame, node, what, Backward(target, asked, of_element))


def _is_of_an_element(m: Machine, frame: Frame, node: ast.AST) -> bool:
    """Whether a call retains the graph for the gradient of one element of a tensor."""
    if not isinstance(node, ast.Call) or all(it.arg != "retain_graph" for it in node.keywords):
        return False
    part = next(iter(node.args), None)
    if isinstance(node.func, ast.Attribute) and node.func.attr == "backward" and part is None:
        part = node.func.value
    whole = part.value if isinstance(part, ast.Subscript) else None
    if isinstance(part, ast.Name):
        loops = (site.node for site in reversed(m.place.turns.sites()))
        whole = next((_gone_through(loop, part.id) for loop in loops), None)
    found = m.lookup(frame, whole.id) if isinstance(whole, ast.Name) else None
    only = found[0].only if found is not None else None
    return isinstance(only, Tensor) and only.framework == "torch"


def _gone_through(loop: ast.AST, name: str) -> ast.expr | None:
    """The iterable of a loop whose items are called `name`."""
    if not isinstance(loop, ast.For):
        return None
    target, through = loop.target, loop.iter
    if isinstance(through, ast.Call) and ast.unparse(through.func) == "enumerate" and through.args:
        target = target.elts[-1] if isinstance(target, ast.Tuple) else target
        through = through.args[0]
    return through if isinstance(target, ast.Name) and target.id == name else None


def cleared(m: Machine, frame: Frame, node: ast.AST, what: str, target: Value) -> None:
    """Record that the gradients of `target` (a module, optimizer or tensor) are cleared."""
    m.effect(frame, node, what, GradClear(target))
    data_parallel.cleared(m, target)
    settle(m, target)


def settle(m: Machine, target: Value) -> None:
    """Record that nothing waits any longer for gradients of `target` computed by earlier calls; a
    started process may still compute some."""
    if m.place.worker is not None:
        return
    concerned = idents(target) or {_ANY}
    calls = frozenset(
        event for event in m.state.past if isinstance(event, ParallelCall) and event.channel.answers
    )
    for ident in concerned:
        m.store[ident, _CLEARED] = constant(calls)
    _note(m, concerned, fresh=False)


def used(
    m: Machine,
    frame: Frame,
    kind: type[GradRead | OptimizerStep],
    node: ast.AST,
    what: str,
    target: Value,
) -> None:
    """Record that gradients of `target` are read, or that an optimizer steps with them (`kind`)."""
    concerned = idents(target)
    fresh = any(True in _known(m, ident, _FRESH) for ident in concerned)
    m.effect(frame, node, what, kind(target, fresh), settled=_settled(m, concerned))
    if kind is OptimizerStep:
        _note(m, concerned, fresh=False)


def _note(m: Machine, concerned: Iterable[int], *, fresh: bool) -> None:
    if m.place.worker is None:
        for ident in concerned:
            m.store[ident, _FRESH] = constant(fresh)


def _settled(m: Machine, concerned: Iterable[int]) -> set[object]:
    """Earlier calls for whose gradients none of these waits any longer."""
    found: set[object] = set()
    for ident in (*concerned, _ANY):
        for calls in _known(m, ident, _CLEARED):
            found.update(calls if isinstance(calls, frozenset) else m.state.past)
    return found


def _known(m: Machine, ident: int, name: str) -> list[object]:
    """The possible values of an attribute; None stands for anything."""
    value = m.stored(ident, name)
    atoms = () if value is None else value.atoms
    return [atom.value for atom in atoms if isinstance(atom, Const)] + [
        None for atom in atoms if isinstance(atom, Unknown)
    ]


def gradients(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``autograd.grad(outputs, inputs)``."""
    target = args.get(0, "outputs") or UNKNOWN
    asked = None if name.endswith("backward") else args.get(1, "inputs") or UNKNOWN
    if asked is None:
        backward(m, frame, node, f"{name}(...)", target)
    else:
        asked_for(m, frame, node, f"{name}(...)", target, asked)
    data_parallel.backward(m, frame, node, target, asked)
    made = Tensor("torch", "none", False, m.worker_ident, GRADIENT)
    graph = args.get(4, "create_graph")
    if asked is not None and graph is not None and graph.constant is not False:
        # Depends on the function: if it is linear, the gradient has no history.
        asks = graph.constant is True and any(tensor.tracked for tensor, _ in tensors_in([target]))
        made = replace(made, grad="history" if asks else "unknown")
    return sequence(of(made))
