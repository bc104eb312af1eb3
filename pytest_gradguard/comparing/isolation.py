"""Runs a worker's task in the calling process, and undoes the changes that it brings back.

The task works on the program's own parameters, so its changes are visible. The program may use the
copies that come back, so the parameters, buffers and gradients that the task brings back are
restored. Other changes are kept: in a worker they would be lost.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Any

from pytest_gradguard.comparing import copies
from pytest_gradguard.comparing.actors import Process
from pytest_gradguard.comparing.before import Before
from pytest_gradguard.comparing.variables import Variables
from pytest_gradguard.runtime.kernel import inline, locate
from pytest_gradguard.runtime.kernel.faults import attempt
from pytest_gradguard.runtime.kernel.inline import Run, Task
from pytest_gradguard.runtime.kernel.registry import Workers

_CHANGED = "changes its worker's copy, and does not return it"
_LOST = "changes the copy of its actor, which never returns it"


class Isolation(inline.Isolation):
    """See the module.

    Attributes:
        fresh: the program's own backward passes have computed gradients since the last step.
    """

    def __init__(self) -> None:
        self.fresh = False
        self._sent: list[Any] = []
        self._copies: list[tuple[weakref.ref[Any], weakref.ref[Any]]] = []
        self._processes: list[Process] = []

    def process(self) -> Process:
        """The process of an actor."""
        self._processes.append(Process())
        return self._processes[-1]

    def run(
        self,
        workers: Workers,
        task: Task,
        run: Run,
        *,
        inherited: bool = False,
        process: Process | None = None,
    ) -> Any:
        """Run `task`, and restore the tensors that it brings back."""
        function, args, kwargs = task
        memo: dict[int, Any] = {}
        own = not workers.shares_memory
        args, kwargs = (copies.with_own_data(one, memo, tensors=own) for one in (args, kwargs))
        task = (function, args, kwargs)
        if process is not None:
            return self._run_in(process, task, run)
        variables = Variables()
        result = self._run(workers, task, run, inherited)
        if variables.put_back([result, *self._sent]):
            _say(function, _CHANGED)
        return result

    def _run(self, workers: Workers, task: Task, run: Run, inherited: bool) -> Any:
        """Run `task`, with torch's tensors handled."""
        if "torch.nn.parameter" not in sys.modules:
            return run(task)
        function = task[0]
        before = [Before(tensor) for tensor in _tensors()]
        outer, self._sent = self._sent, []
        try:
            result = run(task)
            shared = workers.shares_memory and not inherited
            return self._settled(before, result, shared, function)
        except BaseException:
            for one in before:
                one.keep_gradient(self.fresh)
            raise
        finally:
            self._sent = outer

    def _run_in(self, process: Process, task: Task, run: Run) -> Any:
        """The result of a task of an actor."""
        if "torch.nn.parameter" not in sys.modules:
            return run(task)
        before = [Before(tensor) for tensor in _tensors() if not process.has_made(tensor)]
        outer, self._sent = self._sent, []
        process.enter(before)
        result = None
        try:
            result = run(task)
        finally:
            process.add_made(_tensors(), before)
            found = _Found([result, *self._sent])
            own = process.leave(before, found.of, _said(task[0], _LOST))
            result = self._copied_result(result, own, [one for one in own if one.left is not None])
            for one in before:
                if one.changed:
                    one.put_back_value()
                one.put_back_gradient()
            self._sent = outer
        return result

    def settle(self, *, ended: bool) -> None:
        """Give the program's tensors the changes that actors have never brought back.

        Args:
            ended: the program has ended; otherwise only gradients, as an optimizer is about to
                step.
        """
        for process in self._processes:
            for tensor, value, gradient, said in process.lost(gradients_only=not ended):
                inline.state.kept[said] = None
                one = Before(tensor)
                tensor.grad = gradient
                one.keep_gradient(self.fresh)
                if value is not None:
                    tensor.data.copy_(value)

    def _settled(self, before: list[Before], result: Any, shared: bool, function: Any) -> Any:
        """The result of a task as it arrives.

        Args:
            before: the tensors that it may have changed.
            result: the task's result.
            shared: its tensor arguments are in shared memory.
            function: the task's function.
        """
        changed = [one for one in before if one.changed]
        left = [one for one in before if one.left is not None]
        if not (changed or left):
            for one in before:
                one.put_back_gradient()
            return _without_gradients(result, before)
        found = _Found([result, *self._sent])
        values = found.of([one.tensor.detach() for one in changed], [one.value for one in changed])
        back = {id(one) for one, came in zip(changed, values, strict=True) if came}
        gradients = found.of([one.left for one in left])
        returned = back | {id(one) for one, came in zip(left, gradients, strict=True) if came}
        if any(id(one) not in returned for one in left):
            _say(function, "leaves gradients on its worker's copy, and returns none of them")
        if any(id(one) not in back for one in changed) and not shared:
            _say(function, _CHANGED)
        result = self._copied_result(result, changed, left)
        for one in before:
            if id(one) in back and not (shared or one.tensor.is_shared()):
                one.put_back_value()
            if id(one) in returned:
                one.put_back_gradient()
            else:
                one.keep_gradient(self.fresh)
        return _without_gradients(result, before)

    def _copied_result(self, result: Any, changed: list[Before], left: list[Before]) -> Any:
        torch: Any = sys.modules["torch"]
        touched = {id(one.tensor) for one in changed} | {id(one.left) for one in left}

        def is_kept(item: Any) -> bool:
            if isinstance(item, torch.Tensor):
                return bool(item.requires_grad) and (not item.is_leaf or id(item) not in touched)
            if isinstance(item, torch.nn.Module):
                return not any(id(one) in touched for one in _inside(item))
            return False

        memo: dict[int, Any] = {}
        made = copies.copied(result, is_kept, memo)
        for one in changed:
            copy = memo.get(id(one.tensor))
            if copy is not None and copy is not one.tensor:
                self._copies.append((weakref.ref(copy), weakref.ref(one.tensor)))
        return made

    def gradient_of(self, parameter: Any) -> Any:
        """The gradient of `parameter`, or of a copy of it that a task has returned."""
        if parameter.grad is not None:
            return parameter.grad
        for copy, original in self._copies:
            known = copy()
            if original() is parameter and known is not None and known.grad is not None:
                return known.grad
        return None

    def copied(self, item: Any) -> Any:
        """A copy of a dataset, without copying arrays, tensors and modules."""
        return copies.copied(item, _is_shared)

    def pickled(self, item: Any) -> Any:
        """A copy of an item that a library stores, or sends."""
        return copies.pickled(item, self._is_the_programs)

    def _is_the_programs(self, item: Any) -> bool:
        """Whether `item` carries gradients, and no actor has created it."""
        torch: Any = sys.modules.get("torch")
        if torch is None:
            return False
        if isinstance(item, torch.nn.Module):
            return not any(
                one.has_made(inner) for one in self._processes for inner in _inside(item)
            )
        if isinstance(item, torch.Tensor):
            return bool(item.requires_grad) and not any(
                one.has_made(item) for one in self._processes if item.is_leaf
            )
        return False

    def sent(self, item: Any) -> Any:
        """A copy of an item sent to a queue or a pipe, which is a result."""
        self._sent.append(item)
        return copies.copied(item, lambda inner: False)


def _inside(module: Any) -> list[Any]:
    return [*module.parameters(), *module.buffers()]


def _say(function: Any, what: str) -> None:
    inline.state.kept[_said(function, what)] = None


def _said(function: Any, what: str) -> str:
    function = getattr(function, "__wrapped__", function)
    owner = getattr(function, "__self__", None)
    function = getattr(owner, "_target", None) or function
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return f"`{name}`, called at {inline.place()}, {what}"


def _without_gradients(result: Any, before: list[Before]) -> Any:
    """`result`, with leaves without gradients: pickling drops these."""
    torch: Any = sys.modules["torch"]
    own = {id(one.tensor) for one in before}

    def clear(item: Any) -> bool:
        if isinstance(item, torch.Tensor):
            if item.is_leaf and item.grad is not None and id(item) not in own:
                item.grad = None
            return True
        return False

    attempt(locate.find, [("", result)], clear)
    return result


def _is_shared(item: Any) -> bool:
    torch: Any = sys.modules["torch"]
    return copies.is_data(item) or isinstance(item, (torch.Tensor, torch.nn.Module))


def _tensors() -> Iterator[Any]:
    """The parameters, buffers and other leaves that require grad, of this process."""
    torch: Any = sys.modules["torch"]
    seen: set[int] = set()
    for item in gc.get_objects():
        kind = type(item)
        if issubclass(kind, torch.Tensor):
            found = [item] if item.requires_grad and item.is_leaf else []
        elif issubclass(kind, torch.nn.Module):
            found = [one for one in vars(item).get("_buffers", {}).values() if one is not None]
        else:
            continue
        for one in found:
            plain = one.layout is torch.strided and one.device.type != "meta"
            if id(one) not in seen and plain and not one.is_inference():
                seen.add(id(one))
                yield one


class _Found:
    """The contents of a task's results."""

    def __init__(self, results: list[Any]) -> None:
        from pytest_gradguard.runtime.pitfalls.kept.returned import Held

        self._held = Held(results)

    def of(self, wanted: list[Any], before: list[Any] | None = None) -> list[bool]:
        """Which of the tensors `wanted` the results bring back, unchanged or derived.

        Args:
            wanted: values or gradients.
            before: the values before the task: the difference may come back, too.
        """
        held = self._held
        sizes = [one.numel() for one in wanted]
        if held.unknown or held.may_hold_text_of(max(1, sum(sizes))) or held.is_long_vector(sizes):
            return [True] * len(wanted)
        shapes = Counter(tuple(one.shape) for one in held.arrays if hasattr(one, "shape"))
        if len(wanted) > 1 and not Counter(tuple(one.shape) for one in wanted) - shapes:
            return [True] * len(wanted)
        changes = [None] * len(wanted) if before is None else before
        return [self._brings(one, old) for one, old in zip(wanted, changes, strict=True)]

    def _brings(self, tensor: Any, before: Any) -> bool:
        torch: Any = sys.modules["torch"]
        own = tensor.detach().to(torch.float64).flatten()
        changes = [own] if before is None else [own, own - before.to(torch.float64).flatten()]
        for one in self._held.fitting(tensor):
            if one is tensor:
                return True
            values = torch.as_tensor(one).detach().to(torch.float64)
            rows = values.reshape(-1, own.numel()) if own.numel() else values
            if any(_is_multiple(row, change) for row in rows for change in changes):
                return True
        return False


def _is_multiple(values: Any, wanted: Any) -> bool:
    """Whether `values` are `wanted`, scaled."""
    torch: Any = sys.modules["torch"]
    if torch.allclose(values, wanted, rtol=1e-4, atol=1e-7):
        return True
    if len(wanted) < 2:
        return False
    scale = values.norm() * wanted.norm()
    return bool(scale > 0 and (values @ wanted).abs() > 0.9999 * scale)
