"""The arguments and results of a task in its worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pytest_gradguard.parallel import bits, refusals, shipping
from pytest_gradguard.parallel.shipping import TaskSpec, version


class Arguments:
    """The arguments of a task in its worker.

    Attributes:
        tensors: the tensors, by their numbers among the stored items.
        args, kwargs, function, modules: the call, and the modules in it.
        versions, buffers: of the tensors and modules, before the task.
    """

    def __init__(self, spec: TaskSpec, payloads: tuple[Any, ...]) -> None:
        import torch

        self.spec, self._payloads = spec, payloads
        self.tensors: dict[int, Any] = {}
        with torch.inference_mode(False), torch.enable_grad():
            reader = shipping.Unpacker(spec.data, self.load)
            self.args, self.kwargs, _ = reader.load()
            self.function = reader.load()
            self.modules: list[Any] = reader.load()
            for one in spec.passes:
                for index in one.cotangents:
                    if index is not None:
                        self.load(index)
        self.versions = {index: version(one) for index, one in self.tensors.items()}
        self.buffers = [dict(module._buffers) for module in self.modules]

    def load(self, index: int) -> Any:
        """A stored tensor or array."""
        if index not in self.tensors:
            info = self.spec.infos[index]
            if info is None:
                return self._payloads[index]
            value = shipping.rebuild(self._payloads[index], info)
            if info.requires_grad and not info.is_leaf:  # not a leaf here, either
                copy = value.requires_grad_().clone()
                made = copy if info.stride in (None, copy.stride()) else value.view_as(value)
                made.__dict__.update(info.attributes or {})
                value = made
            self.tensors[index] = value
        return self.tensors[index]

    def entry_nodes(self) -> dict[Any, int]:
        """The nodes at which tensors that require grad enter a graph."""
        return {_entry_node(one): index for index, one in self.tensors.items() if one.requires_grad}

    def changed_buffers(self) -> Iterator[tuple[int, str, Any]]:
        """Module, name and value of each buffer that the task has changed."""
        numbers = {id(one): index for index, one in self.tensors.items()}
        for number, (module, before) in enumerate(zip(self.modules, self.buffers, strict=True)):
            for name, buffer in module._buffers.items():
                if buffer is None or name not in before:
                    continue
                if buffer is not before[name] or self._has_changed(numbers[id(buffer)]):
                    yield number, name, buffer

    def _has_changed(self, index: int) -> bool:
        """Whether a tensor's values have changed; its version does not always tell."""
        info = self.spec.infos[index]
        before = shipping.unpack(self._payloads[index], info)  # type: ignore[arg-type]
        return not bits.same_tensor(self.tensors[index], before)

    def array_references(self) -> dict[int, tuple[int, ...]]:
        """The reference counts of arrays and of their memory's owners."""
        return {
            index: shipping.reference_counts(payload)
            for index, payload in enumerate(self._payloads)
            if self.spec.infos[index] is None
        }

    def release(self) -> None:
        """Drop the call, so that only what outlives it remains."""
        self.args, self.kwargs, self.function, self.modules = (), {}, None, []
        self.buffers = []

    def path_to(self, item: Any) -> str:
        """The path of an object among the arguments."""
        roots = refusals.named_arguments(self.function, self.args, self.kwargs)
        return refusals.path_to(item, roots)


def _entry_node(tensor: Any) -> Any:
    import torch
    from torch.autograd.graph import get_gradient_edge

    if tensor.grad_fn is None and tensor.layout is not torch.strided:  # it has no views
        with torch.enable_grad():
            return tensor.clone().grad_fn.next_functions[0][0]
    return get_gradient_edge(tensor).node


class Results(shipping.Packer):
    """Pickles the result of a task, unchanged arguments as references."""

    small_array = 1024

    def __init__(self, arguments: Arguments | None = None) -> None:
        super().__init__()
        tensors = arguments.tensors if arguments else {}
        self._arguments = {id(one): index for index, one in tensors.items()}
        self._versions = arguments.versions if arguments else {}
        self._infos = arguments.spec.infos if arguments else ()
        self._parameters: set[int] = set()

    def persistent_id(self, item: Any) -> Any:
        seen = len(self.modules)
        answer = super().persistent_id(item)
        for module in self.modules[seen:]:
            self._parameters.update(id(one) for one in module._parameters.values())
        return answer

    def store_tensor(self, item: Any) -> Any:
        index = self._arguments.get(id(item))
        if index is not None and version(item) == self._versions[index]:
            info = self._infos[index]
            if info is not None and info.requires_grad and id(item) not in self._parameters:
                return ("argument", index)
        return self.store(item)

    def with_graph(self) -> list[int]:
        """The numbers of the stored tensors that have a graph."""
        return [
            index
            for index, one in enumerate(self.stored)
            if getattr(one, "grad_fn", None) is not None
        ]
