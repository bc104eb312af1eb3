"""One parallel call: its tasks on their way out, and their results on the way back."""

from __future__ import annotations

import copy
import functools
import threading
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import joblib
import torch

from pytest_gradguard.parallel import bits, modes, refusals, shipping, worker
from pytest_gradguard.parallel.expectations import guess, observed
from pytest_gradguard.parallel.graph import Backward, TaskNode
from pytest_gradguard.parallel.refusals import UnsupportedGradientError
from pytest_gradguard.parallel.shipping import (
    Level,
    Spec,
    has_foreign_memory,
    holds_grad,
    pack,
    rebuilt,
    unpack,
    version,
)
from pytest_gradguard.parallel.worker import Answer


class Unsized:
    """The tasks of a call, as they are sent."""

    def __init__(self, tasks: Iterable[Any], call: Call) -> None:
        self._tasks, self._call = tasks, call

    def __iter__(self) -> Iterator[Any]:
        return self._call.prepared(iter(self._tasks))


class Tasks(Unsized):
    """The same, where their number is known."""

    def __len__(self) -> int:
        return len(self._tasks)  # type: ignore[arg-type]


class Shipped:
    """A task that was sent.

    Attributes:
        spec, payloads: what was sent.
        found: the tensors and arrays of the caller's that it holds.
        modules: the modules in it.
    """

    def __init__(self, spec: Spec, packer: Any, task: Any) -> None:
        self.spec = spec
        self.payloads: list[Any] = []
        self.found, self.modules = packer.found, packer.modules
        self._task = task
        self._versions = [version(one) for one in self.found]
        self.buffers = {
            id(one)
            for module in self.modules
            for one in module._buffers.values()
            if one is not None
        }

    @property
    def _key(self) -> Any:
        """By what the same task is known in a later call."""
        function = self._task[0]
        return getattr(function, "__module__", None), refusals.name_of(function), self.spec.task

    def guess(self) -> Any:
        """The gradients that its results are likely to receive."""
        return guess(self._key)

    def observed(self, cotangents: list[Any]) -> bool:
        """Whether these gradients of its results were expected."""
        return observed(self._key, self.spec.guess, cotangents)

    def refuse_change(self, index: int, when: str, *, aliased: bool = False) -> None:
        """Refuse a tensor or an array that the program has changed.

        Args:
            index: its number.
            when: what came in between.
            aliased: compare an array, too; the task's results use its memory.

        Raises:
            UnsupportedGradientError: it has changed since it was sent.
        """
        one = self.found[index]
        if id(one) in self.buffers:
            return
        if version(one) == self._versions[index]:  # `.data` and shared memory leave it as it is
            payload, leaf = self.payloads[index], self.spec.leaves[index]
            if leaf is None:
                same = not aliased or not has_foreign_memory(one) or bits.same_array(one, payload)
            else:
                same = bits.same_tensor(one, unpack(payload, leaf, copy=False))
            if same:
                return
        path = refusals.path_to(one, refusals.parameters(*self._task))
        raise UnsupportedGradientError(
            f"Parallel: `{path}`, an argument of `{refusals.name_of(self._task[0])}`, was changed "
            f"in place {when}; send a copy of it."
        )

    def again(self, level: Level, cotangents: list[Any]) -> Shipped:
        """The task with one more backward pass.

        Args:
            level: the backward pass.
            cotangents: the gradients of the results, or None.
        """
        more = copy.copy(self)
        more.found, more.payloads = list(self.found), list(self.payloads)
        more._versions, leaves, numbers = list(self._versions), list(self.spec.leaves), []
        for one in cotangents:
            numbers.append(None if one is None else len(more.found))
            if one is not None:
                payload, leaf = pack(one, copy=True)
                more.found.append(one)
                more.payloads.append(payload)
                more._versions.append(version(one))
                leaves.append(leaf)
        level = level._replace(cotangents=tuple(numbers))
        levels = (*self.spec.levels, level)
        more.spec = self.spec._replace(leaves=tuple(leaves), levels=levels, guess=None)
        return more


class Call:
    """One call of a `Parallel`."""

    def __init__(self, parallel: Any) -> None:
        self._parallel = parallel
        self._modes = modes.current()
        self._thread = threading.get_ident()
        self._shipped: dict[int, Shipped] = {}
        self._backward = Backward(functools.partial(_run_again, parallel))
        self._functions: dict[int, tuple[Any, bool]] = {}
        self._looked_at: dict[int, tuple[Any, bool]] = {}
        self._packed: dict[int, tuple[Any, int | None, Any]] = {}
        self._left: list[tuple[Any, Any, bool]] = []
        self._written: dict[tuple[int, str], tuple[int, Any, Any]] = {}

    def prepared(self, tasks: Iterator[Any]) -> Iterator[Any]:
        """The tasks as they are sent."""
        backend = self._parallel._backend
        shared = getattr(backend, "supports_sharedmem", False)
        if shared and getattr(backend, "effective_n_jobs", int)(self._parallel.n_jobs) == 1:
            yield from tasks
            return
        needed = None if modes.plain(self._modes) else self._modes
        index = 0
        while True:
            try:
                if threading.get_ident() == self._thread:
                    task = next(tasks)
                else:  # joblib takes the later ones from a thread of its own
                    with self._modes.applied(own_process=False):
                        task = next(tasks)
            except StopIteration:
                return
            if not shared and self._asks(*task):
                task = self._ship(index, task)
            elif needed or not shared:
                task = (worker.call, (needed, not shared, *task), {})
            index += 1
            yield task

    def _asks(self, function: Any, args: Any, kwargs: Any) -> bool:
        """Whether something that requires grad is in a task."""
        if any(self._holds(item) for item in (*args, *kwargs.values())):
            return True
        known = self._functions.get(id(function))
        if known is None:
            parts = shipping.carried(function)
            known = self._functions[id(function)] = (
                function,
                any(map(self._holds, parts))
                or bool(function not in parts and shipping.grad_tensors(function)),
            )
        return known[1]

    def _holds(self, item: Any) -> bool:
        answer = holds_grad(item)
        if answer is None:
            known = self._looked_at.get(id(item))
            if known is None:
                known = self._looked_at[id(item)] = item, bool(shipping.grad_tensors(item))
            return known[1]
        return answer

    def _ship(self, index: int, task: Any) -> Any:
        function, args, kwargs = task
        packer, captured = shipping.pack_task(function, args, kwargs)
        shipped = Shipped(Spec(index, b"", (), captured, self._modes), packer, task)
        leaves = []
        for one in packer.found:
            payload, leaf = self._pack(one)
            shipped.payloads.append(payload)
            leaves.append(leaf)
        shipped.spec = shipped.spec._replace(
            data=packer.file.getvalue(),
            leaves=tuple(leaves),
            guess=shipped.guess() if self._modes.grad else None,
        )
        self._shipped[index] = shipped
        return worker.run, (shipped.spec, *shipped.payloads), {}

    def _pack(self, item: Any) -> Any:
        """Pack a tensor or an array once, so that joblib maps a large one into memory once."""
        kept = self._packed.get(id(item))
        foreign = has_foreign_memory(item)
        if isinstance(item, torch.Tensor):
            if kept is None or kept[1] != version(item) or foreign:
                kept = self._packed[id(item)] = item, version(item), pack(item, copy=True)
        elif kept is None or (foreign and not bits.same_array(item, kept[2][0])):
            kept = self._packed[id(item)] = item, None, (item.copy("K") if foreign else item, None)
        return kept[2]

    def restored(self, outputs: list[Any]) -> list[Any]:
        """The results, on the nodes of their tasks."""
        nodes = [self._node(one, last=False) for one in outputs]
        results = [self._result(one, node) for one, node in zip(outputs, nodes, strict=True)]
        self._write_back()
        return results

    def restored_one_by_one(self, outputs: Iterator[Any]) -> Iterator[Any]:
        """The same, as they come."""
        try:
            for one in outputs:
                yield self._result(one, self._node(one, last=True))
            self._write_back()
        finally:
            outputs.close()  # type: ignore[attr-defined]

    def _node(self, answer: Any, *, last: bool) -> TaskNode | None:
        if isinstance(answer, UnsupportedGradientError):
            raise answer
        if not isinstance(answer, Answer) or not answer.outputs:
            return None
        with torch.enable_grad():
            return TaskNode(self._backward, self._shipped.get(answer.task), answer, last=last)

    def _result(self, answer: Any, node: TaskNode | None) -> Any:
        if not isinstance(answer, Answer):
            return answer
        shipped: Any = self._shipped.pop(answer.task, None)
        values: dict[Any, Any] = {}
        for index, (payload, leaf) in enumerate(zip(answer.payloads, answer.leaves, strict=True)):
            values[index] = payload if leaf is None else rebuilt(payload, leaf)
        if node is not None:
            with torch.enable_grad():  # the task may have recorded a graph in spite of `no_grad`
                outs = node.outputs([values[index] for index in answer.outputs])
            values.update(zip(answer.outputs, outs, strict=True))
        for index in answer.views:
            values[index] = values[index].unsqueeze(0).unbind(0)[0]
        for index in answer.retained:
            values[index].retain_grad()
        if node is not None:
            node.inner = [weakref.ref(values[index]) for index in answer.inner]

        def load(key: Any) -> Any:
            return shipped.found[key[1]] if isinstance(key, tuple) else values[key]

        result, buffers = shipping.Unpacker(answer.data, load).load()
        for number, name, value in buffers:
            module = shipped.modules[number]
            before = self._written.get((id(module), name))
            if before is None or before[0] < answer.task:
                self._written[id(module), name] = answer.task, module, value
        self._left += [(shipped.found[index], one, answer.clears) for index, one in answer.left]
        return result

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _write_back(self) -> None:
        """Do to the caller's modules and tensors what the tasks did to their copies.

        Of several tasks that have changed a buffer, the last one counts. The gradients that their
        own backward passes have left are added up.
        """
        for (_, name), (_, module, value) in self._written.items():
            buffer = module._buffers.get(name)
            if buffer is not None and buffer.shape == value.shape and buffer.dtype == value.dtype:
                buffer.copy_(value)
            else:
                module._buffers[name] = value
        for tensor, packed, clears in self._left:
            left = unpack(*packed)
            tensor.grad = left if clears or tensor.grad is None else tensor.grad + left


def _run_again(parallel: Any, tasks: list[Shipped]) -> list[Any]:
    """Run tasks that were sent before, with their backward passes.

    Runs with a `Parallel` of joblib's; here, while that is at work.
    """
    call = Call(parallel)
    call._shipped = {one.spec.task: one for one in tasks}
    sent: Any = [(worker.run, (one.spec, *one.payloads), {}) for one in tasks]
    if getattr(parallel, "_running", False):
        return call.restored([function(*args) for function, args, _ in sent])
    return call.restored(list(joblib.Parallel.__call__(parallel, sent)))
