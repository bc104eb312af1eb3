"""Shadows: computations on values without a graph, repeated with a graph.

Where a shadow meets a tensor with a graph, the gradient that the program's backward pass brings
there continues through the shadow. So it is known exactly how a loss depends on these values: not
at all if they were cut out, overwritten or masked. The program is not affected.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from pytest_gradguard.runtime.frameworks.torch import engine, tensors, transforms
from pytest_gradguard.runtime.frameworks.torch.following import (
    has_derivative,
    is_constant,
    tensors_in,
)
from pytest_gradguard.runtime.kernel.by_identity import ByIdentity
from pytest_gradguard.runtime.kernel.faults import attempt
from pytest_gradguard.runtime.kernel.state import dropped_at_end

_COLLECTIVES = "torch.distributed"
"""The package whose functions pass through a mode, too; their outputs are handled already."""
_OWN_EFFECTS = frozenset(("backward", "register_hook", "requires_grad_", "retain_grad", "__set__"))
"""Functions with side effects, which are never called twice."""
_WRITES = frozenset(
    (
        "__setitem__",
        *("__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__", "__imod__"),
        *("__ipow__", "__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__"),
    )
)
"""Functions that write to their first argument, in addition to names ending with `_`."""
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_KEY = "gradguard GG501"
"""The key of a node's metadata for its entries."""
_saved = torch.autograd.graph.saved_tensors_hooks(torch.Tensor.detach, lambda saved: saved)
"""Keeps the program's hooks, such as those of a checkpoint, off a shadow's tensors."""


class Source:
    """Values whose influence is followed.

    Attributes:
        leaf: the values in the shadow, once anything is computed from them.
    """

    leaf: Any = None

    def take_gradient(self) -> Any:
        """Return and clear the gradient of the values, or None."""
        gradient = None if self.leaf is None else self.leaf.grad
        if gradient is not None:
            self.leaf.grad = None
        return gradient


class _Part(NamedTuple):
    """Where the values of `source` begin in a tensor's memory, and their number."""

    source: Source
    start: int
    size: int


class _Shadow(NamedTuple):
    """Stands in for a tensor of the program that has no graph.

    Attributes:
        tensor: the same values, with a graph to the leaves.
        sources: the sources of these leaves; a shadow keeps them alive.
        version_gap: by how much the version of the program's tensor is ahead. Another gap means
            that it was written to unseen.
        requires_grad: the program's tensor required a gradient from the start.
        no_grad: it was computed with gradients disabled. An autograd function may still return it
            with a graph.
    """

    tensor: Any
    sources: frozenset[Source]
    version_gap: int
    requires_grad: bool
    no_grad: bool


_parts: ByIdentity[tuple[_Part, ...]] = dropped_at_end(ByIdentity())
"""Tensors that hold values of sources and were not used yet.

Here and below, views are known by their base.
"""
_shadows: ByIdentity[_Shadow] = dropped_at_end(ByIdentity())
_NONE: frozenset[Source] = frozenset()


def add(source: Source, output: Any, part: int, parts: int) -> None:
    """Treat part `part` of `parts` of `output` as the values of `source`."""
    base = tensors.base_of(output)
    size = output.numel() // parts
    start = output.storage_offset() - base.storage_offset() + part * size
    _parts[base] = (*(_parts.get(base) or ()), _Part(source, start, size))


def forget(tensor: Any) -> None:
    """Treat the contents of `tensor` as constants."""
    for known in (_parts, _shadows):
        known.pop(tensors.base_of(tensor))


def forget_all() -> None:
    """Treat all tensors as constants; entries into graphs are kept."""
    _parts.clear()
    _shadows.clear()


def _shadow_of(base: Any) -> _Shadow | None:
    """The shadow of `base`; None if its values are constants as far as known."""
    parts = _parts.pop(base)
    if parts:
        _remember(base, _with_leaves(base, parts), frozenset(one.source for one in parts))
    shadow = _shadows.get(base)
    if shadow is None:
        return None
    has_graph = tensors.requires_grad(base) and not shadow.requires_grad
    if has_graph and shadow.no_grad:
        _enter(base, shadow.tensor, shadow.sources)
    is_constant = shadow.no_grad and torch.is_grad_enabled()
    if has_graph or is_constant or _version_gap(base, shadow.tensor) != shadow.version_gap:
        _shadows.pop(base)
        return None
    return shadow


def _with_leaves(base: Any, parts: Iterable[_Part]) -> Any:
    """A copy of `base` in which the values of sources are computed from leaves."""
    copy = base.detach().clone()
    with torch.enable_grad():  # also for the views that are written to
        for source, start, size in parts:
            place = copy.as_strided((size,), (1,), copy.storage_offset() + start)
            source.leaf = place.detach().clone().requires_grad_()
            place.copy_(source.leaf)
    return copy


def _remember(base: Any, shadow: Any, sources: frozenset[Source]) -> None:
    if shadow.requires_grad and shadow.shape == base.shape and shadow.stride() == base.stride():
        gap, required = _version_gap(base, shadow), tensors.requires_grad(base)
        _shadows[base] = _Shadow(shadow, sources, gap, required, not torch.is_grad_enabled())


def _version_gap(base: Any, shadow: Any) -> int:
    return int(base._version - shadow._version)


def _view(tensor: Any, base: Any, shadow: Any) -> Any:
    """The view of `shadow` that `tensor` is of `base`."""
    if tensor is base:
        return shadow
    offset = shadow.storage_offset() + tensor.storage_offset() - base.storage_offset()
    return shadow.as_strided(tensor.shape, tensor.stride(), offset)


# -- calls ---------------------------------------------------------------------------------------


def repeat(func: Any, args: Any, kwargs: Any) -> RepeatedCall | None:
    """The call to repeat after this one, if any."""
    if not (_shadows or _parts):
        return None
    leaves = tree_leaves((args, kwargs))
    given = [one for one in leaves if isinstance(one, torch.Tensor)]
    bases = {id(base): base for base in map(tensors.base_of, given)}
    known = {id(base): shadow for base in bases.values() if (shadow := _shadow_of(base))}
    module = getattr(func, "__module__", None) or "torch"
    name = getattr(func, "__name__", "")
    if not known or name in _OWN_EFFECTS or module.startswith(_COLLECTIVES):
        return None
    writes = name in _WRITES or (name.endswith("_") and not name.endswith("__"))
    target = args[0] if writes and args and tensors.is_tensor(args[0]) else None
    if not is_constant(func) and (
        module.partition(".")[0] == "torch"
        and all(type(one) in _PLAIN for one in given)
        and not any(isinstance(one, torch.Generator) for one in leaves)
        and transforms.none_active()
        and not torch._C._len_torch_dispatch_stack()
    ):
        return RepeatedCall(func, args, kwargs, known, target)
    if target is not None:
        forget(target)
    return None


class RepeatedCall:
    """A call of the program that is repeated with shadows in place of tensors that have one.

    Args:
        func, args, kwargs: the call, not made yet.
        known: the shadows of its inputs, by the ids of their bases.
        target: the tensor that it writes to.
    """

    def __init__(
        self, func: Any, args: Any, kwargs: Any, known: dict[int, _Shadow], target: Any
    ) -> None:
        self._func = func
        self._sources = _NONE.union(*(one.sources for one in known.values()))
        self._by_base = {base: one.tensor for base, one in known.items()}
        self._target = None if target is None else tensors.base_of(target)
        if self._target is not None:
            self._by_base.setdefault(id(self._target), self._target.detach().clone())
        inputs = {name: value for name, value in kwargs.items() if name != "out"}
        with torch.enable_grad():
            self._args, self._kwargs = tree_map_only(torch.Tensor, self._stand_in, (args, inputs))

    def _stand_in(self, tensor: Any) -> Any:
        base = tensors.base_of(tensor)
        shadow = self._by_base.get(id(base))
        if shadow is not None:
            return _view(tensor, base, shadow)
        # The call may write to it, for example to running statistics.
        values = tensor.detach()
        return values if tensors.requires_grad(tensor) else values.clone()

    def follow_result(self, result: Any) -> None:
        """Follow the `result` of the program's call, unless the call cannot be repeated."""
        try:
            self._make(result)
        except Exception:
            if self._target is not None:
                forget(self._target)

    def _make(self, result: Any) -> None:
        found = tensors_in(result)
        if self._target is None and not any(map(has_derivative, found)):
            return
        gpus = {one.device.index for one in tensors_in((self._args, self._kwargs)) if one.is_cuda}
        with torch.random.fork_rng(gpus), torch.enable_grad(), _saved:
            shadows = tensors_in(self._func(*self._args, **self._kwargs))
        if self._target is not None:
            found, shadows = [self._target], [self._by_base[id(self._target)]]
        for tensor, shadow in zip(found, shadows, strict=True):
            if shadow.requires_grad and has_derivative(tensor):
                self._follow(tensor, shadow)

    def _follow(self, tensor: Any, shadow: Any) -> None:
        base = tensors.base_of(tensor)
        known = _shadows.get(base)
        if tensors.requires_grad(tensor) and not (known and known.requires_grad):
            _shadows.pop(base)
            _enter(tensor, shadow, self._sources)
        else:
            _remember(base, shadow if tensor is base else tensors.base_of(shadow), self._sources)


# -- where the program's graph begins --------------------------------------------------------------


class _End(torch.autograd.Function):  # type: ignore[misc]
    """The end of a shadow, without its values; its gradient comes from the program's graph."""

    @staticmethod
    def forward(ctx: Any, shadow: Any, gradients: list[Any]) -> Any:
        ctx.gradients = gradients
        return shadow.new_zeros(())

    @staticmethod
    def backward(ctx: Any, _: Any) -> Any:
        return ctx.gradients.pop(), None


class _Entry:
    """A tensor of the program's graph that was also computed from a shadow.

    Attributes:
        ran: the current backward pass has reached it.
    """

    def __init__(self, shadow: Any, sources: frozenset[Source], place: int) -> None:
        self.ran = False
        self._sources = sources  # they live as long as the graph
        self._place = place
        self._gradients: list[Any] = []
        self._ones = shadow.detach().new_ones(()).expand(shadow.shape)
        with torch.enable_grad():
            self._end = _End.apply(shadow, self._gradients)

    def hear(self, gradients: tuple[Any, ...]) -> None:
        """Take on the `gradients` that arrive at the tensor's node."""
        if gradients[self._place] is not None:
            attempt(self.run, gradients[self._place])

    def run(self, gradient: Any = None) -> None:
        """Pass the tensor's gradient, or ones if unknown, on to the sources."""
        self.ran = True
        self._gradients.append(self._ones if gradient is None else gradient.detach())
        _run_backward(self._end)


_entries: weakref.WeakSet[_Entry] = dropped_at_end(weakref.WeakSet())


def _enter(tensor: Any, shadow: Any, sources: frozenset[Source]) -> None:
    """Connect the graph of `tensor` to `shadow`."""
    node = tensors.grad_fn(tensor)
    if node is not None:
        entry = _Entry(shadow, sources, tensor.output_nr)
        _entries.add(entry)
        node.register_prehook(entry.hear)
        node.metadata.setdefault(_KEY, []).append(entry)


def _run_backward(end: Any, gradient: Any = None) -> None:
    """Run an unobserved backward pass, from ones if there is no `gradient`."""
    begin = torch.ones_like(end) if gradient is None else gradient.detach()
    with contextlib.suppress(RuntimeError):
        torch.autograd.Variable._execution_engine.run_backward(
            (end,), (begin,), True, False, (), allow_unreachable=True, accumulate_grad=True
        )


def backward_begins(run: engine.Backward) -> bool:
    """Start from outputs that are only constants; False if nothing is followed."""
    if not (_shadows or _parts or _entries):
        return False
    for entry in _entries:
        entry.ran = False
    for output, gradient in zip(run.outputs, run.gradients, strict=False):
        if tensors.is_tensor(output):
            base = tensors.base_of(output)
            shadow = _shadow_of(base)
            if shadow is not None:
                _run_backward(_view(output, base, shadow.tensor), gradient)
    return True


def backward_ended(run: engine.Backward) -> None:
    """If only some gradients were requested, find what else the outputs depend on."""
    if not run.inputs or all(entry.ran for entry in _entries):
        return
    for output in run.outputs:
        node = getattr(output, "grad_fn", None) or getattr(output, "node", None)
        for one in () if node is None else tensors.nodes(node):
            for entry in one.metadata.get(_KEY, ()):
                if not entry.ran:
                    entry.run()
