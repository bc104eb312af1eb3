"""What runs in a worker: a task, and later the same task again with backward passes after it.

Nothing is kept here between the two.
"""

from __future__ import annotations

import contextlib
import operator
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from pytest_gradguard.parallel import bits, modes, refusals, shipping, usage
from pytest_gradguard.parallel.modes import RandomStates, random_states_kept
from pytest_gradguard.parallel.received import Arguments, Results
from pytest_gradguard.parallel.refusals import UnsupportedGradientError
from pytest_gradguard.parallel.shipping import Leaf, Level, Spec, pack, unpack


class Answer(NamedTuple):
    """What a task has returned, without its tensors.

    Attributes:
        task: its number in the call; -1 where it cannot run again.
        data: the result, and the buffers of modules that the task has changed.
        leaves: what is kept apart; None for an array.
        payloads: the tensors and arrays.
        outputs: which of them have a graph.
        views: which of them share the storage of an argument.
        inputs: the arguments that the graph leads to, and how often each is used.
        digest: of the tensors and arrays, where there are inputs.
        drawn: the random states before the task, where it has drawn numbers.
        threads: how many threads torch has there.
        aliased: the arrays among the arguments whose memory the results still use.
        gradients: those for the expected gradients of the outputs, if it was given such.
        left: arguments in whose `.grad` the task's own backward passes left something, and that.
        clears: the task clears gradients before it does so.
        lost: why no gradient can pass the outputs.
        inner: the outputs that others depend on.
        retained: the outputs whose gradient the task has asked for with `retain_grad()`.
    """

    task: int
    data: bytes
    leaves: list[Leaf | None]
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


def run(spec: Spec, *payloads: Any) -> Answer | UnsupportedGradientError:
    """Run a task; what is refused is returned, for an error would cost joblib its workers."""
    try:
        if spec.levels:
            return _again(spec, payloads)
        return _first(spec, payloads)
    except UnsupportedGradientError as error:
        return error


def call(the_modes: Any, own_process: bool, function: Any, args: Any, kwargs: Any) -> Any:
    """Run a task that was given nothing that requires grad.

    Args:
        the_modes: those of the caller; None where workers have them anyway.
        own_process: the caller is in another process.
        function, args, kwargs: the task.

    Returns:
        Its result; an `Answer` where that has a graph.
    """
    with the_modes.applied(own_process=own_process) if the_modes else contextlib.nullcontext():
        result = function(*args, **kwargs)
    if not own_process or "torch" not in sys.modules or not usage.has_graph(result):
        return result
    packer = Results()
    packer.dump((result, []))
    outputs = packer.with_graph()
    leaves = usage.usage([packer.found[index] for index in outputs]).leaves
    try:
        lost = usage.refuse_hidden(refusals.name_of(function), leaves, packer.found)
    except UnsupportedGradientError as error:
        return error
    return Answer(-1, packer.file.getvalue(), *_apart(packer), outputs, lost=lost)


def _first(spec: Spec, payloads: tuple[Any, ...]) -> Answer:
    import torch

    with spec.modes.applied():
        arguments = Arguments(spec, payloads)
        before, aliases = RandomStates.now(), arguments.aliases()
        with modes.entropy() as entropy:
            result = arguments.function(*arguments.args, **arguments.kwargs)
        is_same = not entropy and before.same(RandomStates.now())
        drawn = None if is_same else before._replace(entropy=tuple(entropy))
        now = arguments.aliases()
        aliased = [index for index in now if any(map(operator.gt, now[index], aliases[index]))]
        buffers = list(arguments.changed_buffers())
        packer = Results(arguments)
        packer.dump((result, buffers))
    outputs = packer.with_graph()
    outs = [packer.found[index] for index in outputs]
    found = usage.usage(outs, arguments)
    inputs = found.inputs(arguments)
    usage.refuse_captured(arguments, found)
    if inputs:
        _refuse(arguments, outs, [one for _, _, one in buffers])
    name, clears = refusals.name_of(arguments.function), False
    left = [
        (index, pack(one.grad))
        for index, one in arguments.given.items()
        if one.is_leaf
        and one.grad is not None
        and shipping.version(one) == arguments.versions[index]
    ]
    if left:
        clears = _clears(arguments.function)
    arguments.release()
    gradients = lost = None
    if found.leaves:
        lost = usage.refuse_hidden(name, found.leaves, packer.found)
    if inputs and spec.guess is not None and lost is None:
        gradients = _expected(spec, arguments, outs, inputs, found)
    storages = {_storage(one) for one in arguments.given.values()} - {None}
    return Answer(
        spec.task,
        packer.file.getvalue(),
        *_apart(packer),
        outputs,
        frozenset(index for index in outputs if _storage(packer.found[index]) in storages),
        inputs,
        bits.digest(packer.found) if inputs else b"",
        drawn if inputs else None,
        torch.get_num_threads(),
        frozenset(aliased),
        gradients,
        left,
        clears,
        lost,
        frozenset(index for index in outputs if packer.found[index].grad_fn in found.inner),
        frozenset(index for index in outputs if packer.found[index].retains_grad),
    )


def _again(spec: Spec, payloads: tuple[Any, ...]) -> Answer:
    """Run a task once more, and the backward passes after it.

    The result is a list: for each input of the last one None, or a tensor and how many gradients
    are stacked in it (0 where it is one).
    """
    first, last = spec.levels[0], spec.levels[-1]
    with random_states_kept(), modes.threads(first.threads):
        with spec.modes.applied():
            arguments = Arguments(spec, payloads)
            if first.drawn is not None:
                first.drawn.restore()
            with modes.entropy(first.drawn.entropy if first.drawn else ()):
                result = arguments.function(*arguments.args, **arguments.kwargs)
            packer = Results(arguments)
            packer.dump((result, list(arguments.changed_buffers())))
        for level in spec.levels:
            outs = [packer.found[index] for index in packer.with_graph()]
            if bits.digest(packer.found) != level.digest:
                raise UnsupportedGradientError(
                    f"Parallel: `{refusals.name_of(arguments.function)}` computed something else "
                    "when it ran again for the backward pass; its results must depend on its "
                    "arguments and on the global random generators of torch, NumPy and random "
                    "alone, not on another generator without a seed, the order of a set, the time "
                    "or what an earlier task has left."
                )
            cotangents = [None if n is None else arguments.given[n] for n in level.cotangents]
            with level.modes.applied():
                result = _gradients(arguments, outs, cotangents, level)
            packer = Results(arguments)
            packer.dump((result, []))
    outputs = packer.with_graph() if last.modes.grad else []
    found = usage.usage([packer.found[index] for index in outputs], arguments)
    return Answer(
        spec.task,
        packer.file.getvalue(),
        *_apart(packer),
        outputs,
        inputs=found.inputs(arguments),
        digest=bits.digest(packer.found) if outputs else b"",
        drawn=first.drawn,
        threads=first.threads,
    )


def _clears(function: Any) -> bool:
    """Whether a task clears gradients (`zero_grad`, `p.grad = None`), by its code."""
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


def _apart(packer: Results) -> tuple[list[Leaf | None], list[Any]]:
    """What the packer keeps apart, as it travels."""
    torch = sys.modules["torch"]
    packed = [pack(one) if isinstance(one, torch.Tensor) else (one, None) for one in packer.found]
    return [leaf for _, leaf in packed], [payload for payload, _ in packed]


def _refuse(arguments: Arguments, outs: list[Any], buffers: list[Any]) -> None:
    function = refusals.name_of(arguments.function)
    own = {id(one) for module in arguments.modules for one in module._buffers.values()}
    own |= {id(one) for before in arguments.buffers for one in before.values()}
    for index, tensor in arguments.given.items():
        if shipping.version(tensor) != arguments.versions[index] and id(tensor) not in own:
            raise UnsupportedGradientError(
                f"Parallel: `{function}` changes its argument `{arguments.name(index)}` in place, "
                "which only its copy in the worker would show; let the task change a clone."
            )
    for buffer in buffers:
        if buffer.requires_grad:
            path = refusals.path_to(buffer, arguments.roots())
            raise UnsupportedGradientError(
                f"Parallel: `{function}` leaves a tensor with a graph in the buffer `{path}`, and "
                "the graph would stay in the worker; store `.detach()` there."
            )


def _storage(item: Any) -> int | None:
    """Which memory a tensor uses."""
    if not isinstance(item, sys.modules["torch"].Tensor):
        return None
    try:
        return int(item.untyped_storage()._cdata) if item.numel() else None
    except (NotImplementedError, RuntimeError):
        return None


def _expected(
    spec: Spec, arguments: Arguments, outs: list[Any], inputs: Any, found: usage.Usage
) -> list[Any] | None:
    """The packed gradients of the inputs, where those of the outputs are as expected."""
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
    level = Level(None, 0, b"", inputs, (), plain, False)
    try:
        with random_states_kept(), plain.applied():
            gradients = _gradients(arguments, outs, cotangents, level, found)
    except Exception:  # the backward pass raises it, if there will be one
        return None
    return [one and (one[0], *pack(one[1])) for one in gradients]


def _gradients(
    arguments: Arguments,
    outs: list[Any],
    cotangents: list[Any],
    level: Level,
    found: usage.Usage | None = None,
) -> list[tuple[int, Any] | None]:
    """The gradients of each input's uses: one tensor, or several in one."""
    import torch

    if any(uses > 1 for _, uses in level.inputs):
        found = found or usage.usage(outs, arguments)
    asked = [arguments.given[index] for index, _ in level.inputs]
    counts: list[int] = []

    def passed(*given: Any) -> tuple[Any, ...]:
        with contextlib.ExitStack() as hooks:
            parts = {
                index: _listen(found.consumers.get(index, ()), hooks)
                for index, uses in level.inputs
                if uses > 1 and found is not None
            }
            whole = torch.autograd.grad(
                [out for out, one in zip(outs, cotangents, strict=True) if one is not None],
                asked,
                given,
                allow_unused=True,
                create_graph=level.modes.grad,
            )
        gradients = []
        for (index, uses), one in zip(level.inputs, whole, strict=True):
            several = [part for part in parts.get(index, ()) if part.shape == one.shape]
            split = 1 < len(several) <= uses and one.layout is torch.strided
            split = split and len(several) == len(parts[index])
            counts.append(len(several) if split else 0)
            gradients.append(torch.stack(several) if split else one)
        return tuple(gradients)

    if level.batched:
        from torch._vmap_internals import _vmap

        passed = _vmap(passed, 0, 0, allow_none_pass_through=True)
    gradients = passed(*(one for one in cotangents if one is not None))
    return [
        None if one is None else (count, one) for count, one in zip(counts, gradients, strict=True)
    ]


def _listen(consumers: Any, hooks: contextlib.ExitStack) -> list[Any]:
    """Collect the gradients that these nodes send, in the order in which they run."""
    parts: list[Any] = []
    slots: dict[Any, list[int]] = {}
    for node, slot in consumers:
        slots.setdefault(node, []).append(slot)

    def heard(mine: list[int]) -> Any:
        def hook(sent: Any, _: Any) -> None:
            parts.extend(sent[slot].clone() for slot in mine if sent[slot] is not None)

        return hook

    for node, mine in slots.items():
        hooks.callback(node.register_hook(heard(mine)).remove)
    return parts
