"""The functions that run in a worker: a task, and the task again with backward passes after it.

The worker keeps nothing between the two.
"""

from __future__ import annotations

import contextlib
import operator
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from pytest_gradguard.parallel import bits, modes, refusals, shipping, usage
from pytest_gradguard.parallel.modes import RandomStates, preserve_random_states
from pytest_gradguard.parallel.received import Arguments, Results
from pytest_gradguard.parallel.refusals import UnsupportedGradientError
from pytest_gradguard.parallel.shipping import BackwardPass, TaskSpec, TensorInfo, pack, unpack


class Answer(NamedTuple):
    """The result of a task without its tensors and arrays.

    Attributes:
        task: its number in the call; -1 if it cannot run again.
        data: the result, and the buffers of modules that the task has changed.
        infos: of the stored items; None for an array.
        payloads: the stored items, as they travel.
        outputs: the items that have a graph.
        views: the outputs that share the storage of an argument.
        inputs: the arguments that the outputs depend on, with their numbers of uses.
        digest: of the items, if there are inputs.
        drawn: the random states before the task, if it drew numbers.
        threads: torch's threads in the worker.
        aliased: the arrays among the arguments whose memory the result uses.
        gradients: of the inputs, for the predicted gradients of the outputs.
        left: arguments with the `.grad` that the task's own backward passes left.
        clears: the task clears gradients before its backward passes.
        lost: why no gradient can pass the outputs.
        inner: the outputs that other outputs depend on.
        retained: the outputs on which the task called `retain_grad()`.
    """

    task: int
    data: bytes
    infos: list[TensorInfo | None]
    payloads: list[Any]
    outputs: list[int]
    views: frozenset[int] = frozenset()
    inputs: Sequence[tuple[int, int]] = ()
    digest: bytes = b""
    drawn: RandomStates | None = None
    threads: int = 1
    aliased: frozenset[int] = frozenset()
    gradients: list[Any] | None = None
    left: Sequence[tuple[int, Any]] = ()
    clears: bool = False
    lost: str | None = None
    inner: frozenset[int] = frozenset()
    retained: frozenset[int] = frozenset()


def run(spec: TaskSpec, *payloads: Any) -> Answer | UnsupportedGradientError:
    """Run a task; a refusal is returned, since errors end workers."""
    try:
        return (_run_again if spec.passes else _run_first)(spec, payloads)
    except UnsupportedGradientError as error:
        return error


def run_without_grad(
    task_modes: modes.Modes | None, own_process: bool, function: Any, args: Any, kwargs: Any
) -> Any:
    """Run a task whose arguments do not require grad.

    Args:
        task_modes: those of the caller; None for the default ones.
        own_process: the task runs in another process than the caller.
        function, args, kwargs: the task.

    Returns:
        Its result; an `Answer` if that has a graph.
    """
    with task_modes.applied(own_process=own_process) if task_modes else contextlib.nullcontext():
        result = function(*args, **kwargs)
    if not own_process or "torch" not in sys.modules or not usage.has_graph(result):
        return result
    packer = Results()
    packer.dump((result, []))
    outputs = packer.with_graph()
    leaves = usage.trace([packer.stored[index] for index in outputs]).leaves
    try:
        lost = usage.refuse_hidden(refusals.name_of(function), leaves, packer.stored)
    except UnsupportedGradientError as error:
        return error
    return Answer(-1, packer.file.getvalue(), *_payloads(packer), outputs, lost=lost)


def _run_first(spec: TaskSpec, payloads: tuple[Any, ...]) -> Answer:
    import torch

    with spec.modes.applied():
        arguments = Arguments(spec, payloads)
        before, references = RandomStates.now(), arguments.array_references()
        with modes.record_entropy() as entropy:
            result = arguments.function(*arguments.args, **arguments.kwargs)
        is_same = not entropy and before.equals(RandomStates.now())
        drawn = None if is_same else before._replace(entropy=tuple(entropy))
        now = arguments.array_references()
        aliased = [index for index in now if any(map(operator.gt, now[index], references[index]))]
        buffers = list(arguments.changed_buffers())
        packer = Results(arguments)
        packer.dump((result, buffers))
    outputs = packer.with_graph()
    outs = [packer.stored[index] for index in outputs]
    found = usage.trace(outs, arguments)
    inputs = found.inputs(arguments)
    usage.refuse_captured(arguments, found)
    if inputs:
        _refuse_changes(arguments, [one for _, _, one in buffers])
    name = refusals.name_of(arguments.function)
    left = [
        (index, pack(one.grad))
        for index, one in arguments.tensors.items()
        if one.is_leaf
        and one.grad is not None
        and shipping.version(one) == arguments.versions[index]
    ]
    clears = bool(left) and _clears_gradients(arguments.function)
    arguments.release()
    gradients = lost = None
    if found.leaves:
        lost = usage.refuse_hidden(name, found.leaves, packer.stored)
    if inputs and spec.guess is not None and lost is None:
        gradients = _predicted_gradients(spec, arguments, outs, inputs, found)
    storages = {_storage(one) for one in arguments.tensors.values()} - {None}
    return Answer(
        spec.task,
        packer.file.getvalue(),
        *_payloads(packer),
        outputs,
        frozenset(index for index in outputs if _storage(packer.stored[index]) in storages),
        inputs,
        bits.digest(packer.stored) if inputs else b"",
        drawn if inputs else None,
        torch.get_num_threads(),
        frozenset(aliased),
        gradients,
        left,
        clears,
        lost,
        frozenset(index for index in outputs if packer.stored[index].grad_fn in found.inner),
        frozenset(index for index in outputs if packer.stored[index].retains_grad),
    )


def _run_again(spec: TaskSpec, payloads: tuple[Any, ...]) -> Answer:
    """Run a task once more, and the backward passes after it.

    The result is a list: for each input of the last pass None, or a tensor with the number of
    gradients stacked in it (0: it is one gradient).
    """
    first, last = spec.passes[0], spec.passes[-1]
    with preserve_random_states(), modes.num_threads(first.threads):
        with spec.modes.applied():
            arguments = Arguments(spec, payloads)
            if first.drawn is not None:
                first.drawn.restore()
            with modes.record_entropy(first.drawn.entropy if first.drawn else ()):
                result = arguments.function(*arguments.args, **arguments.kwargs)
            packer = Results(arguments)
            packer.dump((result, list(arguments.changed_buffers())))
        for one in spec.passes:
            outs = [packer.stored[index] for index in packer.with_graph()]
            if bits.digest(packer.stored) != one.digest:
                raise UnsupportedGradientError(
                    f"Parallel: `{refusals.name_of(arguments.function)}` computed something else "
                    "when it ran again for the backward pass; its results must depend on its "
                    "arguments and on the global random generators of torch, NumPy and random "
                    "alone, not on another generator without a seed, the order of a set, the time "
                    "or what an earlier task has left."
                )
            cotangents = [None if n is None else arguments.tensors[n] for n in one.cotangents]
            with one.modes.applied():
                result = _gradients(arguments, outs, cotangents, one)
            packer = Results(arguments)
            packer.dump((result, []))
    outputs = packer.with_graph() if last.modes.grad else []
    found = usage.trace([packer.stored[index] for index in outputs], arguments)
    return Answer(
        spec.task,
        packer.file.getvalue(),
        *_payloads(packer),
        outputs,
        inputs=found.inputs(arguments),
        digest=bits.digest(packer.stored) if outputs else b"",
        drawn=first.drawn,
        threads=first.threads,
    )


def _clears_gradients(function: Any) -> bool:
    """Whether the code of a task clears gradients (`zero_grad`, `p.grad = None`)."""
    import dis

    from pytest_gradguard.runtime.kernel.used_globals import uses_of

    return any(
        "zero_grad" in one.__code__.co_names
        or any(
            step.opname == "STORE_ATTR" and step.argval == "grad"
            for step in dis.get_instructions(one.__code__)
        )
        for one in uses_of(function).functions
    )


def _payloads(packer: Results) -> tuple[list[TensorInfo | None], list[Any]]:
    """The infos and payloads of the stored items."""
    torch = sys.modules["torch"]
    packed = [pack(one) if isinstance(one, torch.Tensor) else (one, None) for one in packer.stored]
    return [info for _, info in packed], [payload for payload, _ in packed]


def _refuse_changes(arguments: Arguments, buffers: list[Any]) -> None:
    """Refuse changes of arguments that would stay in the worker."""
    function = refusals.name_of(arguments.function)
    own = {id(one) for module in arguments.modules for one in module._buffers.values()}
    own |= {id(one) for before in arguments.buffers for one in before.values()}
    for index, tensor in arguments.tensors.items():
        if shipping.version(tensor) != arguments.versions[index] and id(tensor) not in own:
            raise UnsupportedGradientError(
                f"Parallel: `{function}` changes its argument `{arguments.path_to(tensor)}` in "
                "place, which only its copy in the worker would show; let the task change a clone."
            )
    for buffer in buffers:
        if buffer.requires_grad:
            raise UnsupportedGradientError(
                f"Parallel: `{function}` leaves a tensor with a graph in the buffer "
                f"`{arguments.path_to(buffer)}`, and the graph would stay in the worker; store "
                "`.detach()` there."
            )


def _storage(item: Any) -> int | None:
    """The identity of a tensor's memory."""
    if not isinstance(item, sys.modules["torch"].Tensor):
        return None
    try:
        return int(item.untyped_storage()._cdata) if item.numel() else None
    except (NotImplementedError, RuntimeError):
        return None


def _predicted_gradients(
    spec: TaskSpec, arguments: Arguments, outs: list[Any], inputs: Any, found: usage.Usage
) -> list[Any] | None:
    """The packed gradients of the inputs, if the prediction is right."""
    import torch

    if spec.guess == "ones":
        if len(outs) != 1 or outs[0].numel() != 1:
            return None
        cotangents = [torch.ones_like(outs[0])]
    else:
        cotangents = [one and unpack(*one) for one in spec.guess]
        shapes = [(out.shape, out.dtype) for out in outs]
        if len(cotangents) != len(outs) or any(
            one is not None and (one.shape, one.dtype) != shape
            for one, shape in zip(cotangents, shapes, strict=True)
        ):
            return None
    plain = spec.modes._replace(grad=False, autocast=())
    first_order = BackwardPass(None, 0, b"", inputs, (), plain, False)
    try:
        with preserve_random_states(), plain.applied():
            gradients = _gradients(arguments, outs, cotangents, first_order, found)
    except Exception:  # a backward pass of the program will raise it
        return None
    return [one and (one[0], *pack(one[1])) for one in gradients]


def _gradients(
    arguments: Arguments,
    outs: list[Any],
    cotangents: list[Any],
    backward: BackwardPass,
    found: usage.Usage | None = None,
) -> list[tuple[int, Any] | None]:
    """The gradients of each input's uses, stacked in one tensor."""
    import torch

    if any(uses > 1 for _, uses in backward.inputs):
        found = found or usage.trace(outs, arguments)
    inputs = [arguments.tensors[index] for index, _ in backward.inputs]
    counts: list[int] = []

    def differentiate(*grad_outputs: Any) -> tuple[Any, ...]:
        with contextlib.ExitStack() as hooks:
            parts = {
                index: _record_gradients(found.consumers.get(index, ()), hooks)
                for index, uses in backward.inputs
                if uses > 1 and found is not None
            }
            whole = torch.autograd.grad(
                [out for out, one in zip(outs, cotangents, strict=True) if one is not None],
                inputs,
                grad_outputs,
                allow_unused=True,
                create_graph=backward.modes.grad,
            )
        gradients = []
        for (index, uses), one in zip(backward.inputs, whole, strict=True):
            several = [part for part in parts.get(index, ()) if part.shape == one.shape]
            split = 1 < len(several) <= uses and one.layout is torch.strided
            split = split and len(several) == len(parts[index])
            counts.append(len(several) if split else 0)
            gradients.append(torch.stack(several) if split else one)
        return tuple(gradients)

    if backward.batched:
        from torch._vmap_internals import _vmap

        differentiate = _vmap(differentiate, 0, 0, allow_none_pass_through=True)
    gradients = differentiate(*(one for one in cotangents if one is not None))
    return [
        None if one is None else (count, one) for count, one in zip(counts, gradients, strict=True)
    ]


def _record_gradients(consumers: Any, hooks: contextlib.ExitStack) -> list[Any]:
    """A list that receives the gradients that these nodes send."""
    parts: list[Any] = []
    slots: dict[Any, list[int]] = {}
    for node, slot in consumers:
        slots.setdefault(node, []).append(slot)

    def recording(mine: list[int]) -> Any:
        def hook(sent: Any, _: Any) -> None:
            parts.extend(sent[slot].clone() for slot in mine if sent[slot] is not None)

        return hook

    for node, mine in slots.items():
        hooks.callback(node.register_hook(recording(mine)).remove)
    return parts
