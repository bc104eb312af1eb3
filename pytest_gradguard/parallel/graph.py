"""The nodes that stand for the tasks of a call in the caller's graph.

Each task has one node for each of its results, and one for its arguments. The engine runs the
youngest ready node first, so in a backward pass the result nodes of all tasks run before any
argument node; they only record their gradients. The first argument node then runs all tasks that
gradients have reached again, in one parallel call. With `create_graph` that call has nodes of its
own, for derivatives of any order.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

from pytest_gradguard.parallel import expectations, modes
from pytest_gradguard.parallel.refusals import UnsupportedGradientError
from pytest_gradguard.parallel.shipping import BackwardPass, unpack
from pytest_gradguard.parallel.worker import Answer


class BackwardPasses:
    """The backward passes through the results of one call.

    Args:
        run_again: runs tasks again, with their backward passes.
    """

    def __init__(self, run_again: Any) -> None:
        self._run_again = run_again
        self._lock = threading.Lock()
        self._recorded: dict[tuple[int, int], tuple[TaskNode, dict[int, Any]]] = {}
        self._computed: dict[tuple[int, int], list[Any]] = {}

    def record(self, task: TaskNode, slot: int, cotangent: Any, batched: bool) -> None:
        """Record the gradient of one of a task's results."""
        key = _current_pass(), task.index
        with self._lock:
            self._recorded.setdefault(key, (task, {}))[1][slot] = cotangent, batched

    def gradients(self, index: int) -> list[Any]:
        """The gradients of a task's inputs, from the recorded ones."""
        now = _current_pass()
        with self._lock:
            if (now, index) not in self._computed:
                mine = [key for key in self._recorded if key[0] == now]
                recorded = [self._recorded.pop(key) for key in mine]
                for task, gradients in self._compute(recorded):
                    self._computed[now, task.index] = gradients
            return self._computed.pop((now, index))

    def _compute(self, recorded: list[tuple[TaskNode, dict[int, Any]]]) -> Any:
        rerun: list[Any] = []
        for task, slots in recorded:
            cotangents, batched = task.cotangents(slots)
            predicted = task.predicted_gradients(cotangents, batched)
            if predicted is not None:
                yield task, predicted
            else:
                rerun.append((task, task.second_run(cotangents, batched)))
        if rerun:
            results = self._run_again([sent for _, sent in rerun])
            yield from zip([task for task, _ in rerun], results, strict=True)


def _current_pass() -> int:
    """The identity of the running backward pass."""
    current = getattr(torch._C, "_current_graph_task_id", threading.get_ident)
    return int(current())


class TaskNode:
    """A task whose results carry gradients.

    Attributes:
        index: its number in the call.
        inner: weak references to the results that other results depend on.

    Args:
        passes: the backward passes of its call.
        sent: the task as it was sent; None if nothing in it requires grad.
        answer: its answer.
        last: its argument node runs last although other tasks' results are younger.
    """

    def __init__(self, passes: BackwardPasses, sent: Any, answer: Answer, *, last: bool) -> None:
        self.index = answer.task
        self._sent, self._answer, self._passes = sent, answer, passes
        self.inner: list[Any] = []
        for index, _ in answer.inputs:
            tensor = sent.items[index]
            sent.refuse_change(index, "while its task ran")
            if not tensor.requires_grad:  # the task has called `requires_grad_()` on it
                tensor.requires_grad_()
        inputs = [sent.items[index] for index, uses in answer.inputs for _ in range(uses)]
        anchor = torch.zeros((), requires_grad=True)
        self._ticket = _Arguments.apply(self, anchor, *inputs)
        if last and self.index >= 0 and hasattr(self._ticket.grad_fn, "_set_sequence_nr"):
            self._ticket.grad_fn._set_sequence_nr(self.index)

    def outputs(self, values: list[Any]) -> tuple[Any, ...]:
        """These values, as differentiable results of the task."""
        found: dict[int, Any] = {}
        is_inner = [index in self._answer.inner for index in self._answer.outputs]
        for slot in sorted(range(len(values)), key=is_inner.__getitem__, reverse=True):
            # an edge to each inner result, so a backward pass to one of them runs this node
            inner = () if is_inner[slot] else [found[one] for one in found if is_inner[one]]
            found[slot] = ParallelResult.apply(self, slot, self._ticket, [values[slot]], *inner)
        del self._ticket
        return tuple(found[slot] for slot in range(len(values)))

    def cotangents(self, slots: dict[int, Any]) -> tuple[list[Any], bool]:
        """The gradients of all results, and whether they are batched."""
        size = next((one.shape[0] for one, batched in slots.values() if batched), None)
        cotangents: list[Any] = [None] * len(self._answer.outputs)
        for slot, (one, batched) in slots.items():
            cotangents[slot] = one if size is None or batched else one.expand(size, *one.shape)
        return cotangents, size is not None

    def record(self, slot: int, cotangent: Any, batched: bool) -> None:
        """Record the gradient of one of the results.

        Raises:
            UnsupportedGradientError: it would be lost.
        """
        if self._answer.lost is not None:
            raise UnsupportedGradientError(self._answer.lost)
        for one in (reference() for reference in self.inner):
            if one is not None and (one.retains_grad or one._backward_hooks):
                raise _inner_refused("a result with a hook, or with `retain_grad()`,")
        if self._answer.inputs:
            self._passes.record(self, slot, cotangent, batched)

    def gradients(self, nesting: int | None) -> list[Any]:
        """The gradients of each use of each input.

        Args:
            nesting: the level of the vmap that batches them, if any.
        """
        every = []
        gradients = self._passes.gradients(self.index)
        for (_, uses), found in zip(self._answer.inputs, gradients, strict=True):
            parts: list[Any] = []
            if found is not None:
                several, value = found
                parts = list(value.unbind(0 if nesting is None else 1)) if several else [value]
            if nesting is not None:
                parts = [torch._add_batch_dim(part, 0, nesting) for part in parts]
            every += parts + [None] * (uses - len(parts))
        return every

    def predicted_gradients(self, cotangents: list[Any], batched: bool) -> list[Any] | None:
        """The gradients that came with the results, if the prediction was right."""
        sent, now = self._sent, modes.current()
        for index in range(len(sent.items)):
            aliased = index in self._answer.aliased
            sent.refuse_change(index, "between the forward and the backward pass", aliased=aliased)
        if batched or now.grad or sent.spec.passes:
            return None
        right = expectations.record(sent.key, sent.spec.guess, cotangents)
        same = now._replace(grad=False) == sent.spec.modes._replace(grad=False, autocast=())
        if not right or not same or self._answer.gradients is None:
            return None
        return [one and (one[0], unpack(*one[1:])) for one in self._answer.gradients]

    def second_run(self, cotangents: list[Any], batched: bool) -> Any:
        """The task to send again, with this backward pass."""
        one = self._answer
        first = (one.drawn, one.threads, one.digest, one.inputs)
        backward = BackwardPass(*first, cotangents=(), modes=modes.current(), batched=batched)
        return self._sent.with_pass(backward, cotangents)


class _Arguments(torch.autograd.Function):  # type: ignore[misc]
    """The arguments of a task; its backward returns their gradients."""

    @staticmethod
    def forward(ctx: Any, task: TaskNode, anchor: Any, *inputs: Any) -> Any:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs)
        ctx.task = task
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, ticket: Any) -> Any:
        inputs = ctx.saved_tensors  # raises if they were changed, or the graph was freed
        if ticket is None or not inputs:
            return (None, None, *(None for _ in inputs))
        nesting = _nesting() if _is_batched(ticket) else None
        return (None, None, *ctx.task.gradients(nesting))


class ParallelResult(torch.autograd.Function):  # type: ignore[misc]
    """A result of a task; its backward records the gradient."""

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
            raise _inner_refused("a result that a gradient is asked for")
        ticket, batched = torch.zeros(()), _is_batched(cotangent)
        if batched:
            nesting = _nesting()
            cotangent = torch._remove_batch_dim(cotangent, nesting, 0, 0)
            ticket = torch._add_batch_dim(torch.zeros(cotangent.shape[0]), 0, nesting)
        if not torch.is_grad_enabled():
            cotangent = cotangent.detach()
        ctx.task.record(ctx.slot, cotangent, batched)
        return None, None, ticket, None, *others


def _will_run(node: Any) -> bool:
    return bool(torch._C._will_engine_execute_node(node))


def _inner_refused(what: str) -> UnsupportedGradientError:
    return UnsupportedGradientError(
        f"Parallel: {what} is one that another result of its task depends on, and that part of its "
        "gradient stays in the worker; return the first one only, and compute the other from it."
    )


def _is_batched(tensor: Any) -> bool:
    """Whether a tensor is batched by a vmap, as with `is_grads_batched`.

    Raises:
        UnsupportedGradientError: it is inside a transform of `torch.func`.
    """
    functorch = torch._C._functorch
    if functorch.is_functorch_wrapped_tensor(tensor):
        raise UnsupportedGradientError(
            "Parallel: its results cannot be differentiated inside a `torch.func` transform; use "
            "`torch.autograd.grad` with `is_grads_batched=True`, or the transform inside the task."
        )
    return bool(functorch.is_legacy_batchedtensor(tensor))


def _nesting() -> int:
    """The level of the current vmap."""
    torch._C._vmapmode_increment_nesting()
    return int(torch._C._vmapmode_decrement_nesting())
