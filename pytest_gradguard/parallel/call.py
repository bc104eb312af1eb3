"""One parallel call: its tasks as they are sent, and their results."""

from __future__ import annotations

import copy
import functools
import threading
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import joblib
import torch

from pytest_gradguard.parallel import bits, expectations, modes, refusals, shipping, worker
from pytest_gradguard.parallel.graph import BackwardPasses, TaskNode
from pytest_gradguard.parallel.refusals import UnsupportedGradientError
from pytest_gradguard.parallel.shipping import (
    BackwardPass,
    TaskSpec,
    has_external_memory,
    pack,
    rebuild,
    unpack,
    version,
)
from pytest_gradguard.parallel.worker import Answer


class Tasks:
    """The tasks of a call, as they are sent."""

    def __init__(self, tasks: Iterable[Any], call: Call) -> None:
        self._tasks, self._call = tasks, call

    def __iter__(self) -> Iterator[Any]:
        return self._call.prepare(iter(self._tasks))


class SizedTasks(Tasks):
    """Tasks whose number is known."""

    def __len__(self) -> int:
        return len(self._tasks)  # type: ignore[arg-type]


class SentTask:
    """A task that was sent.

    Attributes:
        spec, payloads: as they were sent.
        items: the caller's tensors and arrays in it.
        modules: the modules in it.
        key: equal for this task in a later call.
    """

    def __init__(self, spec: TaskSpec, packer: Any, task: Any) -> None:
        self.spec = spec
        self.payloads: list[Any] = []
        self.items, self.modules = packer.stored, packer.modules
        self._task = task
        module = getattr(task[0], "__module__", None)
        self.key = module, refusals.name_of(task[0]), spec.task
        self._versions = [version(one) for one in self.items]
        self._buffers = {
            id(one)
            for module in self.modules
            for one in module._buffers.values()
            if one is not None
        }

    def refuse_change(self, index: int, when: str, *, aliased: bool = False) -> None:
        """Refuse a tensor or an array that the program has changed.

        Args:
            index: its number among the items.
            when: the time since it was sent, for the message.
            aliased: an array counts, too, as the results use its memory.

        Raises:
            UnsupportedGradientError: it has changed.
        """
        one = self.items[index]
        if id(one) in self._buffers:
            return
        if version(one) == self._versions[index]:  # `.data` and shared memory do not change it
            payload, info = self.payloads[index], self.spec.infos[index]
            if info is None:
                same = not aliased or not has_external_memory(one) or bits.same_array(one, payload)
            else:
                same = bits.same_tensor(one, unpack(payload, info, copy=False))
            if same:
                return
        path = refusals.path_to(one, refusals.named_arguments(*self._task))
        raise UnsupportedGradientError(
            f"Parallel: `{path}`, an argument of `{refusals.name_of(self._task[0])}`, was changed "
            f"in place {when}; send a copy of it."
        )

    def with_pass(self, backward: BackwardPass, cotangents: list[Any]) -> SentTask:
        """The task with one more backward pass.

        Args:
            backward: the backward pass.
            cotangents: the gradients of the results, or None.
        """
        more = copy.copy(self)
        more.items, more.payloads = list(self.items), list(self.payloads)
        more._versions, infos, numbers = list(self._versions), list(self.spec.infos), []
        for one in cotangents:
            numbers.append(None if one is None else len(more.items))
            if one is not None:
                payload, info = pack(one, copy=True)
                more.items.append(one)
                more.payloads.append(payload)
                more._versions.append(version(one))
                infos.append(info)
        passes = (*self.spec.passes, backward._replace(cotangents=tuple(numbers)))
        more.spec = self.spec._replace(infos=tuple(infos), passes=passes, guess=None)
        return more


class Call:
    """One call of a `Parallel`."""

    def __init__(self, parallel: Any) -> None:
        self._parallel = parallel
        self._modes = modes.current()
        self._thread = threading.get_ident()
        self._sent: dict[int, SentTask] = {}
        self._passes = BackwardPasses(functools.partial(_run_again, parallel))
        self._functions: dict[int, tuple[Any, bool]] = {}
        self._searched: dict[int, tuple[Any, bool]] = {}
        self._packed: dict[int, tuple[Any, int | None, Any]] = {}
        self._left_gradients: list[tuple[Any, Any, bool]] = []
        self._changed_buffers: dict[tuple[int, str], tuple[int, Any, Any]] = {}

    def prepare(self, tasks: Iterator[Any]) -> Iterator[Any]:
        """The tasks, as they are sent."""
        backend = self._parallel._backend
        shared = getattr(backend, "supports_sharedmem", False)
        if shared and getattr(backend, "effective_n_jobs", int)(self._parallel.n_jobs) == 1:
            yield from tasks
            return
        needed = None if self._modes.is_default() else self._modes
        index = 0
        while True:
            try:
                if threading.get_ident() == self._thread:
                    task = next(tasks)
                else:  # joblib dispatches later tasks from its own thread
                    with self._modes.applied(own_process=False):
                        task = next(tasks)
            except StopIteration:
                return
            if not shared and self._needs_grad(*task):
                task = self._send(index, task)
            elif needed or not shared:
                task = (worker.run_without_grad, (needed, not shared, *task), {})
            index += 1
            yield task

    def _needs_grad(self, function: Any, args: Any, kwargs: Any) -> bool:
        """Whether anything in a task requires grad."""
        if any(self._holds_grad(item) for item in (*args, *kwargs.values())):
            return True
        known = self._functions.get(id(function))
        if known is None:
            parts = shipping.bound_objects(function)
            known = self._functions[id(function)] = (
                function,
                any(map(self._holds_grad, parts))
                or bool(function not in parts and shipping.grad_tensors(function)),
            )
        return known[1]

    def _holds_grad(self, item: Any) -> bool:
        answer = shipping.holds_grad(item)
        if answer is None:
            known = self._searched.get(id(item))
            if known is None:
                known = self._searched[id(item)] = item, bool(shipping.grad_tensors(item))
            return known[1]
        return answer

    def _send(self, index: int, task: Any) -> Any:
        function, args, kwargs = task
        packer, captured = shipping.pack_task(function, args, kwargs)
        sent = SentTask(TaskSpec(index, b"", (), captured, self._modes), packer, task)
        infos = []
        for one in packer.stored:
            payload, info = self._pack(one)
            sent.payloads.append(payload)
            infos.append(info)
        sent.spec = sent.spec._replace(
            data=packer.file.getvalue(),
            infos=tuple(infos),
            guess=expectations.predict(sent.key) if self._modes.grad else None,
        )
        self._sent[index] = sent
        return worker.run, (sent.spec, *sent.payloads), {}

    def _pack(self, item: Any) -> Any:
        """Pack an item once, so that joblib memory-maps it once."""
        kept = self._packed.get(id(item))
        external = has_external_memory(item)
        if isinstance(item, torch.Tensor):
            if kept is None or kept[1] != version(item) or external:
                kept = self._packed[id(item)] = item, version(item), pack(item, copy=True)
        elif kept is None or (external and not bits.same_array(item, kept[2][0])):
            kept = self._packed[id(item)] = item, None, (item.copy("K") if external else item, None)
        return kept[2]

    def restore(self, outputs: list[Any]) -> list[Any]:
        """The results, with the nodes of their tasks."""
        nodes = [self._node(one, last=False) for one in outputs]
        results = [self._result(one, node) for one, node in zip(outputs, nodes, strict=True)]
        self._write_back()
        return results

    def restore_one_by_one(self, outputs: Iterator[Any]) -> Iterator[Any]:
        """The results as they come, with the nodes of their tasks."""
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
            return TaskNode(self._passes, self._sent.get(answer.task), answer, last=last)

    def _result(self, answer: Any, node: TaskNode | None) -> Any:
        if not isinstance(answer, Answer):
            return answer
        sent: Any = self._sent.pop(answer.task, None)
        values: dict[Any, Any] = {}
        for index, (payload, info) in enumerate(zip(answer.payloads, answer.infos, strict=True)):
            values[index] = payload if info is None else rebuild(payload, info)
        if node is not None:
            with torch.enable_grad():  # the task may have a graph in spite of `no_grad`
                outs = node.outputs([values[index] for index in answer.outputs])
            values.update(zip(answer.outputs, outs, strict=True))
        for index in answer.views:
            values[index] = values[index].unsqueeze(0).unbind(0)[0]
        for index in answer.retained:
            values[index].retain_grad()
        if node is not None:
            node.inner = [weakref.ref(values[index]) for index in answer.inner]

        def load(key: Any) -> Any:
            return sent.items[key[1]] if isinstance(key, tuple) else values[key]

        result, buffers = shipping.Unpacker(answer.data, load).load()
        for number, name, value in buffers:
            module = sent.modules[number]
            before = self._changed_buffers.get((id(module), name))
            if before is None or before[0] < answer.task:
                self._changed_buffers[id(module), name] = answer.task, module, value
        self._left_gradients += [
            (sent.items[index], one, answer.clears) for index, one in answer.left
        ]
        return result

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _write_back(self) -> None:
        """Apply the tasks' changes of buffers and `.grad` to the caller's objects.

        If several tasks have changed a buffer, the last one counts; their `.grad` is summed.
        """
        for (_, name), (_, module, value) in self._changed_buffers.items():
            buffer = module._buffers.get(name)
            if buffer is not None and buffer.shape == value.shape and buffer.dtype == value.dtype:
                buffer.copy_(value)
            else:
                module._buffers[name] = value
        for tensor, packed, clears in self._left_gradients:
            left = unpack(*packed)
            tensor.grad = left if clears or tensor.grad is None else tensor.grad + left


def _run_again(parallel: Any, tasks: list[SentTask]) -> list[Any]:
    """Run sent tasks again, with their backward passes."""
    call = Call(parallel)
    call._sent = {one.spec.task: one for one in tasks}
    sent: Any = [(worker.run, (one.spec, *one.payloads), {}) for one in tasks]
    if getattr(parallel, "_running", False):  # its workers are busy: run the tasks here
        return call.restore([function(*args) for function, args, _ in sent])
    return call.restore(list(joblib.Parallel.__call__(parallel, sent)))
