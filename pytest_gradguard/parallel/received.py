"""The worker's side of shipping: the arguments of a task, and its results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pytest_gradguard.parallel import bits, refusals, shipping
from pytest_gradguard.parallel.shipping import Spec, version


class Arguments:
    """The arguments of a task in its worker.

    Attributes:
        given: the tensors, by their number among what was sent.
        args, kwargs, function, modules: the call, and the modules in it.
        versions, buffers: how many changes the tensors had, and what the modules held.
    """

    def __init__(self, spec: Spec, payloads: tuple[Any, ...]) -> None:
        import torch

        self.spec, self._payloads = spec, payloads
        self.given: dict[int, Any] = {}
        with torch.inference_mode(False), torch.enable_grad():
            reader = shipping.Unpacker(spec.data, self.load)
            self.args, self.kwargs, _ = reader.load()
            self.function = reader.load()
            self.modules: list[Any] = reader.load()
            for level in spec.levels:  # gradients of results are arguments of a backward pass
                for index in level.cotangents:
                    if index is not None:
                        self.load(index)
        self.versions = {index: version(one) for index, one in self.given.items()}
        self.buffers = [dict(module._buffers) for module in self.modules]

    def load(self, index: int) -> Any:
        """A tensor or an array that was sent."""
        if index not in self.given:
            leaf = self.spec.leaves[index]
            if leaf is None:
                return self._payloads[index]
            value = shipping.rebuilt(self._payloads[index], leaf)
            if leaf.requires_grad and not leaf.is_leaf:  # it had a history, and has one here
                copy = value.requires_grad_().clone()
                made = copy if leaf.stride in (None, copy.stride()) else value.view_as(value)
                made.__dict__.update(leaf.attributes or {})
                value = made
            self.given[index] = value
        return self.given[index]

    def differentiable(self) -> dict[Any, int]:
        """The node of the graph at which each argument that requires grad enters it."""
        return {_node(one): index for index, one in self.given.items() if one.requires_grad}

    def changed_buffers(self) -> Iterator[tuple[int, str, Any]]:
        """Module, name and value of each buffer that the task has changed."""
        numbers = {id(one): index for index, one in self.given.items()}
        for number, (module, before) in enumerate(zip(self.modules, self.buffers, strict=True)):
            for name, buffer in module._buffers.items():
                if buffer is None or name not in before:
                    continue
                if buffer is not before[name] or self._changed(numbers[id(buffer)]):
                    yield number, name, buffer

    def _changed(self, index: int) -> bool:
        """Whether a buffer has other values than it had (its version does not always tell)."""
        leaf = self.spec.leaves[index]
        before = shipping.unpack(self._payloads[index], leaf)  # type: ignore[arg-type]
        return not bits.same_tensor(self.given[index], before)

    def aliases(self) -> dict[int, tuple[int, ...]]:
        """How many references there are to each array and to the owner of its memory."""
        return {
            index: shipping.references(payload)
            for index, payload in enumerate(self._payloads)
            if self.spec.leaves[index] is None
        }

    def release(self) -> None:
        """Forget the call; what only it has referred to is gone."""
        self.args, self.kwargs, self.function, self.modules = (), {}, None, []
        self.buffers = []

    def roots(self) -> Any:
        return refusals.parameters(self.function, self.args, self.kwargs)

    def name(self, index: int) -> str:
        return refusals.path_to(self.given[index], self.roots())


def _node(tensor: Any) -> Any:
    """The node at which a tensor enters a graph."""
    import torch
    from torch.autograd.graph import get_gradient_edge

    if tensor.grad_fn is None and tensor.layout is not torch.strided:  # it has no views
        with torch.enable_grad():
            return tensor.clone().grad_fn.next_functions[0][0]
    return get_gradient_edge(tensor).node


class Results(shipping.Packer):
    """Pickles what a task returns; an argument that comes back stays what it is."""

    small_array = 1024

    def __init__(self, arguments: Arguments | None = None) -> None:
        super().__init__()
        self._given = arguments.given if arguments else {}
        self._arguments = {id(one): index for index, one in self._given.items()}
        self._versions = arguments.versions if arguments else {}
        self._spec_leaves = arguments.spec.leaves if arguments else ()
        self._of_modules: set[int] = set()

    def persistent_id(self, item: Any) -> Any:
        seen = len(self.modules)
        answer = super().persistent_id(item)
        for module in self.modules[seen:]:
            self._of_modules.update(id(one) for one in module._parameters.values())
        return answer

    def tensor(self, item: Any) -> Any:
        index = self._arguments.get(id(item))
        if index is not None and version(item) == self._versions[index]:
            leaf = self._spec_leaves[index]
            if leaf is not None and leaf.requires_grad and id(item) not in self._of_modules:
                return ("argument", index)
        return self.apart(item)

    def with_graph(self) -> list[int]:
        """Which of the tensors have a graph."""
        return [
            index
            for index, one in enumerate(self.found)
            if getattr(one, "grad_fn", None) is not None
        ]
