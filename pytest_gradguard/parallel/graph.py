"""The parent's side of autograd: the nodes that stand for the tasks of a call.

Each task has a node for each of its results, and one for its arguments. A backward pass runs the
first ones before any of the second, as the engine takes the youngest node that is ready; they
only note what they are given. The first of the second kind then finds all the tasks that gradients
have reached, and has them run again in one parallel call. With `create_graph` that call has nodes
of its own, for derivatives of any order.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

from pytest_gradguard.parallel import modes
from pytest_gradguard.parallel.refusals import UnsupportedGradientError
from pytest_gradguard.parallel.shipping import Level, unpack
from pytest_gradguard.parallel.worker import Answer


class Backward:
    """The backward passes of one call.

    Args:
        run: what runs tasks again, with their backward passes.
    """

    def __init__(self, run: Any) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._given: dict[tuple[int, int], tuple[TaskNode, dict[int, Any]]] = {}
        self._done: dict[tuple[int, int], list[Any]] = {}

    def given(self, task: TaskNode, slot: int, cotangent: Any, batched: bool) -> None:
        """Note the gradient of one of a task's results."""
        key = _pass(), task.index
        with self._lock:
            self._given.setdefault(key, (task, {}))[1][slot] = cotangent, batched

    def gradients(self, index: int) -> list[Any]:
        """The gradients of a task's inputs, once its results have theirs."""
        now = _pass()
        with self._lock:
            if (now, index) not in self._done:
                mine = [key for key in self._given if key[0] == now]
                given = [self._given.pop(key) for key in mine]
                for task, gradients in self._computed(given):
                    self._done[now, task.index] = gradients
            return self._done.pop((now, index))

    def _computed(self, given: list[tuple[TaskNode, dict[int, Any]]]) -> Any:
        again: list[Any] = []
        for task, slots in given:
            cotangents, batched = task.cotangents(slots)
            known = task.known(cotangents, batched)
            if known is not None:
                yield task, known
            else:
                again.append((task, task.again(cotangents, batched)))
        if again:
            results = self._run([shipped for _, shipped in again])
            yield from zip([task for task, _ in again], results, strict=True)


def _pass() -> int:
    """Which backward pass this is."""
    current = getattr(torch._C, "_current_graph_task_id", threading.get_ident)
    return int(current())


class TaskNode:
    """A task whose results carry gradients, once it has answered.

    Attributes:
        index: its number in the call.
        inner: references to the results that other results depend on.

    Args:
        backward: the backward passes of its call.
        shipped: what was sent; None if nothing that requires grad was.
        answer: what came back.
        last: in a backward pass it runs after all else, for it was not made before the results of
            other tasks.
    """

    def __init__(self, backward: Backward, shipped: Any, answer: Answer, *, last: bool) -> None:
        self.index = answer.task
        self._shipped, self._answer, self._backward = shipped, answer, backward
        self.inner: list[Any] = []
        for index, _ in answer.inputs:
            tensor = shipped.found[index]
            shipped.refuse_change(index, "while its task ran")
            if not tensor.requires_grad:  # the task has called `requires_grad_()` on it
                tensor.requires_grad_()
        inputs = [shipped.found[index] for index, uses in answer.inputs for _ in range(uses)]
        anchor = torch.zeros((), requires_grad=True)
        self._ticket = _Arguments.apply(self, anchor, *inputs)
        if last and self.index >= 0 and hasattr(self._ticket.grad_fn, "_set_sequence_nr"):
            self._ticket.grad_fn._set_sequence_nr(self.index)

    def outputs(self, values: list[Any]) -> tuple[Any, ...]:
        """The results that have a graph: these values, on this task."""
        found: dict[int, Any] = {}
        is_inner = [index in self._answer.inner for index in self._answer.outputs]
        for slot in sorted(range(len(values)), key=is_inner.__getitem__, reverse=True):
            # with an edge to each inner result, a backward pass to that alone comes by this node
            inner = () if is_inner[slot] else [found[one] for one in found if is_inner[one]]
            found[slot] = ParallelResult.apply(self, slot, self._ticket, [values[slot]], *inner)
        del self._ticket
        return tuple(found[slot] for slot in range(len(values)))

    def cotangents(self, slots: dict[int, Any]) -> tuple[list[Any], bool]:
        """The gradients of all results, and whether they are many at once."""
        size = next((one.shape[0] for one, batched in slots.values() if batched), None)
        cotangents: list[Any] = [None] * len(self._answer.outputs)
        for slot, (one, batched) in slots.items():
            cotangents[slot] = one if size is None or batched else one.expand(size, *one.shape)
        return cotangents, size is not None

    def given(self, slot: int, cotangent: Any, batched: bool) -> None:
        """Note the gradient of one of the results.

        Raises:
            UnsupportedGradientError: they would be lost.
        """
        if self._answer.lost is not None:
            raise UnsupportedGradientError(self._answer.lost)
        for one in (reference() for reference in self.inner):
            if one is not None and (one.retains_grad or one._backward_hooks):
                raise _refused_inner("a result with a hook, or with `retain_grad()`,")
        if self._answer.inputs:
            self._backward.given(self, slot, cotangent, batched)

    def gradients(self, nesting: int | None) -> list[Any]:
        """The gradients of each use of each input.

        Args:
            nesting: the vmap that they are batched by.
        """
        every = []
        gradients = self._backward.gradients(self.index)
        for (_, uses), found in zip(self._answer.inputs, gradients, strict=True):
            parts: list[Any] = []
            if found is not None:
                several, value = found
                parts = list(value.unbind(0 if nesting is None else 1)) if several else [value]
            if nesting is not None:
                parts = [torch._add_batch_dim(part, 0, nesting) for part in parts]
            every += parts + [None] * (uses - len(parts))
        return every

    def known(self, cotangents: list[Any], batched: bool) -> list[Any] | None:
        """The gradients that came with the results, where they are the ones asked for."""
        shipped, now = self._shipped, modes.current()
        for index in range(len(shipped.found)):
            aliased = index in self._answer.aliased
            shipped.refuse_change(
                index, "between the forward and the backward pass", aliased=aliased
            )
        if batched or now.grad or shipped.spec.levels:
            return None
        expected = shipped.observed(cotangents)
        same = now._replace(grad=False) == shipped.spec.modes._replace(grad=False, autocast=())
        if not expected or not same or self._answer.gradients is None:
            return None
        return [one and (one[0], unpack(*one[1:])) for one in self._answer.gradients]

    def again(self, cotangents: list[Any], batched: bool) -> Any:
        """What to send for a second run."""
        answer = self._answer
        level = Level(
            answer.drawn,
            answer.threads,
            answer.digest,
            answer.inputs,
            (),
            modes.current(),
            batched,
        )
        return self._shipped.again(level, cotangents)


class _Arguments(torch.autograd.Function):  # type: ignore[misc]
    """A task's arguments; gives their gradients."""

    @staticmethod
    def forward(ctx: Any, task: TaskNode, anchor: Any, *inputs: Any) -> Any:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs)
        ctx.task = task
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, ticket: Any) -> Any:
        inputs = ctx.saved_tensors  # raises where they were changed, or the graph was freed
        if ticket is None or not inputs:
            return (None, None, *(None for _ in inputs))
        nesting = _nesting() if _is_batched(ticket) else None
        return (None, None, *ctx.task.gradients(nesting))


class ParallelResult(torch.autograd.Function):  # type: ignore[misc]
    """A result of a task; takes its gradient."""

    @staticmethod
    def forward(
        ctx: Any, task: TaskNode, slot: int, ticket: Any, value: list[Any], *inner: Any
    ) -> Any:
        ctx.set_materialize_grads(False)
        ctx.task, ctx.slot = task, slot
        return value[0]

    @staticmethod
    def backward(ctx: Any, cotangent: Any) -> Any:
        (ticket_node, _), *inner = ctx.next_functions
        others = [None] * len(inner)
        if cotangent is None:
            return None, None, None, None, *others
        if not _will_run(ticket_node) and any(_will_run(node) for node, _ in inner):
            raise _refused_inner("a result that a gradient is asked for")
        ticket, batched = torch.zeros(()), _is_batched(cotangent)
        if batched:
            nesting = _nesting()
            cotangent = torch._remove_batch_dim(cotangent, nesting, 0, 0)
            ticket = torch._add_batch_dim(torch.zeros(cotangent.shape[0]), 0, nesting)
        if not torch.is_grad_enabled():
            cotangent = cotangent.detach()
        ctx.task.given(ctx.slot, cotangent, batched)
        return None, None, ticket, None, *others


def _will_run(node: Any) -> bool:
    return bool(torch._C._will_engine_execute_node(node))


def _refused_inner(what: str) -> UnsupportedGradientError:
    return UnsupportedGradientError(
        f"Parallel: {what} is one that another result of its task depends on, and that part of its "
        "gradient stays in the worker; return the first one only, and compute the other from it."
    )


def _is_batched(tensor: Any) -> bool:
    """Whether a tensor stands for many, as with `is_grads_batched`.

    Raises:
        UnsupportedGradientError: by a transform of `torch.func`.
    """
    functorch = torch._C._functorch
    if functorch.is_functorch_wrapped_tensor(tensor):
        raise UnsupportedGradientError(
            "Parallel: its results cannot be differentiated inside a `torch.func` transform; use "
            "`torch.autograd.grad` with `is_grads_batched=True`, or the transform inside the task."
        )
    return bool(functorch.is_legacy_batchedtensor(tensor))


def _nesting() -> int:
    """How many vmaps are in force."""
    torch._C._vmapmode_increment_nesting()
    return int(torch._C._vmapmode_decrement_nesting())
