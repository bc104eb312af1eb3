"""What runs in a worker: a task, and later the same task again with the backward pass after it.

Nothing is kept here between the two.
"""

from __future__ import annotations

import re
import sys
from typing import Any, NamedTuple

from pytest_gradguard.parallel import refusals, shipping
from pytest_gradguard.parallel.modes import RandomStates, random_states_kept
from pytest_gradguard.parallel.refusals import UnsupportedGradientError
from pytest_gradguard.parallel.shipping import Leaf, Spec, pack, unpack

_WALKED = 1000
"""How many nodes of a graph are looked at to learn how often the task uses each tensor."""
_USES, _USES_BYTES = 1000, 1 << 20
"""Up to here, the gradients of a tensor's uses go back one by one, to be added up as ever."""


class Digest(NamedTuple):
    """By what a result is known again."""

    size: tuple[int, ...]
    dtype: Any
    sums: tuple[float, float]


class Answer(NamedTuple):
    """What a task has returned, without its tensors.

    Attributes:
        task: its number in the call.
        data: the result, and the buffers of modules that the task has changed.
        leaves: what is kept apart; None for an array.
        payloads: the tensors and arrays.
        outputs: which of them have a graph.
        views: which of them share the storage of an argument.
        inputs: the arguments that the graph leads to, and how often each is used.
        digests: of the outputs.
        drawn: the random states before the task, where it has drawn numbers.
        gradients: those for the expected gradients of the outputs, if it was given such.
        left: arguments in whose `.grad` the task's own backward passes left something, and that.
        clears: the task clears gradients before it does so.
    """

    task: int
    data: bytes
    leaves: list[Leaf | None]
    payloads: list[Any]
    outputs: list[int]
    views: frozenset[int]
    inputs: list[tuple[int, int]]
    digests: list[Digest]
    drawn: RandomStates | None
    gradients: list[Any] | None
    left: list[tuple[int, Any]]
    clears: bool


class Again(NamedTuple):
    """What the second run of a task needs beside the task: see `Answer`."""

    drawn: RandomStates | None
    digests: list[Digest]
    inputs: list[tuple[int, int]]
    cotangents: list[Any]


class _Arguments:
    """The arguments of a task in its worker."""

    def __init__(self, spec: Spec, payloads: tuple[Any, ...]) -> None:
        import torch

        self._spec, self._payloads = spec, payloads
        self.given: dict[int, Any] = {}
        with torch.inference_mode(False), torch.enable_grad():
            reader = shipping.Unpacker(spec.data, self._load)
            self.args, self.kwargs, _ = reader.load()
            self.function = reader.load()
            self.modules: list[Any] = reader.load()
        self.versions = {index: one._version for index, one in self.given.items()}
        self.buffers = [dict(module._buffers) for module in self.modules]

    def _load(self, index: int) -> Any:
        if index not in self.given:
            leaf = self._spec.leaves[index]
            if leaf is None:
                return self._payloads[index]
            value = shipping.rebuilt(self._payloads[index], leaf)
            if leaf.requires_grad and not leaf.is_leaf:  # it had a history, and has one here
                copy = value.requires_grad_().clone()
                made = copy if copy.stride() == value.stride() else value.view_as(value)
                made.__dict__.update(leaf.attributes or {})
                value = made
            self.given[index] = value
        return self.given[index]

    def differentiable(self) -> dict[Any, int]:
        """The node of the graph at which each argument that requires grad enters it."""
        from torch.autograd.graph import get_gradient_edge

        return {
            get_gradient_edge(one).node: index
            for index, one in self.given.items()
            if one.requires_grad
        }

    def changed(self, index: int) -> bool:
        """Whether a buffer has other values than it had (its version does not always tell)."""
        now, before = pack(self.given[index])[0], self._payloads[index]
        same = (now == before).all() if now.shape == before.shape else False
        return not bool(same)

    def roots(self) -> Any:
        return refusals.parameters(self.function, self.args, self.kwargs)

    def name(self, index: int) -> str:
        return refusals.path_to(self.given[index], self.roots())


class _Results(shipping.Packer):
    """Pickles what a task returns; an argument that comes back stays what it is."""

    def __init__(self, arguments: _Arguments) -> None:
        super().__init__()
        self._arguments = {id(one): index for index, one in arguments.given.items()}
        self._versions = arguments.versions
        self._spec_leaves = arguments._spec.leaves
        self._of_modules: set[int] = set()

    def persistent_id(self, item: Any) -> Any:
        seen = len(self.modules)
        answer = super().persistent_id(item)
        for module in self.modules[seen:]:
            self._of_modules.update(id(one) for one in module._parameters.values())
        return answer

    def tensor(self, item: Any) -> Any:
        index = self._arguments.get(id(item))
        if index is not None and item._version == self._versions[index]:
            leaf = self._spec_leaves[index]
            if leaf is not None and leaf.requires_grad and id(item) not in self._of_modules:
                return ("argument", index)
        return self.apart(item)


def run(spec: Spec, *payloads: Any) -> Answer | UnsupportedGradientError:
    """Run a task; what is refused is returned, for an error would cost joblib its workers."""
    try:
        return _answer(spec, payloads)
    except UnsupportedGradientError as error:
        return error


def _answer(spec: Spec, payloads: tuple[Any, ...]) -> Answer:
    with spec.modes.applied():
        arguments = _Arguments(spec, payloads)
        before = RandomStates.now()
        result = arguments.function(*arguments.args, **arguments.kwargs)
        drawn = None if before.same(RandomStates.now()) else before
        buffers = list(_changed_buffers(arguments))
        packer = _Results(arguments)
        packer.dump((result, buffers))
    outputs = _with_graph(packer.found)
    outs = [packer.found[index] for index in outputs]
    inputs, consumers = _inputs(arguments, outs)
    if inputs:
        _refuse(arguments, outs, [one for _, _, one in buffers])
    gradients = None
    if inputs and spec.guess is not None:
        gradients = _expected(spec, arguments, outs, inputs, consumers)
    left = [
        (index, pack(one.grad))
        for index, one in arguments.given.items()
        if one.is_leaf and one.grad is not None and one._version == arguments.versions[index]
    ]
    packed = [_apart(one) for one in packer.found]
    storages = {_storage(one) for one in arguments.given.values()} - {None}
    return Answer(
        spec.task,
        packer.file.getvalue(),
        [leaf for _, leaf in packed],
        [payload for payload, _ in packed],
        outputs,
        frozenset(index for index in outputs if _storage(packer.found[index]) in storages),
        inputs,
        [_digest(out) for out in outs] if inputs else [],
        drawn if inputs else None,
        gradients,
        left,
        bool(left) and _clears(arguments.function),
    )


def run_again(
    spec: Spec, again: Again, *payloads: Any
) -> tuple[int, list[Any] | UnsupportedGradientError]:
    """Run a task once more, and its backward pass after it.

    Returns:
        Its number, and for each of its inputs the gradients of its uses, packed.
    """
    try:
        return spec.task, _again(spec, again, payloads)
    except UnsupportedGradientError as error:
        return spec.task, error


def _again(spec: Spec, again: Again, payloads: tuple[Any, ...]) -> list[Any]:
    with random_states_kept():
        with spec.modes.applied(recompute=True):
            arguments = _Arguments(spec, payloads)
            if again.drawn is not None:
                again.drawn.restore()
            result = arguments.function(*arguments.args, **arguments.kwargs)
            packer = _Results(arguments)
            packer.dump((result, list(_changed_buffers(arguments))))
        outs = [packer.found[index] for index in _with_graph(packer.found)]
        if not _alike(again.digests, [_digest(out) for out in outs]):
            raise UnsupportedGradientError(
                f"Parallel: `{refusals.name_of(arguments.function)}` computed something else when "
                "it ran again for the backward pass; its results must depend on its arguments and "
                "on the random generators of torch, NumPy and random alone."
            )
        _, consumers = _inputs(arguments, outs)
        cotangents = [one and unpack(*one) for one in again.cotangents]
        with spec.modes.applied(recompute=True, autocast=False):
            return _gradients(arguments, outs, cotangents, again.inputs, consumers)


def _clears(function: Any) -> bool:
    """Whether a task clears gradients (`zero_grad`, `p.grad = None`), by its code."""
    import dis

    from pytest_gradguard.runtime.used_globals import uses_of

    return any(
        "zero_grad" in one.__code__.co_names
        or any(
            step.opname == "STORE_ATTR" and step.argval == "grad"
            for step in dis.get_instructions(one.__code__)
        )
        for one in uses_of(function).functions
    )


def _apart(item: Any) -> tuple[Any, Leaf | None]:
    return pack(item) if isinstance(item, sys.modules["torch"].Tensor) else (item, None)


def _with_graph(found: list[Any]) -> list[int]:
    """Which of these have a graph."""
    return [index for index, one in enumerate(found) if getattr(one, "grad_fn", None) is not None]


def _changed_buffers(arguments: _Arguments) -> Any:
    """Module, name and value of each buffer that the task has changed."""
    numbers = {id(one): index for index, one in arguments.given.items()}
    for number, (module, before) in enumerate(
        zip(arguments.modules, arguments.buffers, strict=True)
    ):
        for name, buffer in module._buffers.items():
            if buffer is None or name not in before:
                continue
            if buffer is not before[name] or arguments.changed(numbers[id(buffer)]):
                yield number, name, buffer


def _inputs(arguments: _Arguments, outs: list[Any]) -> tuple[list[tuple[int, int]], Any]:
    """The arguments that results depend on, how often each is used, and by which nodes."""
    if not outs:
        return [], {}
    targets = arguments.differentiable()
    foreign = _foreign(arguments)
    consumers: dict[int, list[tuple[Any, int]]] = {}
    seen = {out.grad_fn for out in outs}
    queue = list(seen)
    for out in outs:  # a result may itself be the node at which an argument enters
        if out.grad_fn in targets:
            consumers.setdefault(targets[out.grad_fn], [])
    while queue and (len(seen) <= _WALKED or foreign):
        node = queue.pop()
        for slot, (following, _) in enumerate(node.next_functions):
            if following is None:
                continue
            if following in foreign:
                _refuse_foreign(arguments, foreign[following])
            if following in targets:
                consumers.setdefault(targets[following], []).append((node, slot))
            elif following not in seen:
                seen.add(following)
                queue.append(following)
    if queue:
        return [(index, 1) for index in sorted(targets.values())], {}
    uses = {}
    for index, nodes in consumers.items():
        size = arguments.given[index].nbytes * len(nodes)
        single = len(nodes) > _USES or size > _USES_BYTES or not len(nodes)
        uses[index] = 1 if single else len(nodes)
    return sorted(uses.items()), consumers


def _foreign(arguments: _Arguments) -> dict[Any, Any]:
    """The nodes of tensors that the function has captured, or reads as globals."""
    from torch.autograd.graph import get_gradient_edge

    from pytest_gradguard.runtime.used_globals import value_at

    spec = arguments._spec
    nodes: dict[Any, Any] = {}
    for index, tensor in arguments.given.items():
        if index >= spec.captured and tensor.requires_grad:
            nodes[get_gradient_edge(tensor).node] = tensor
    for module, path in spec.globals:
        if module in sys.modules:
            for tensor in shipping.grad_tensors(value_at(sys.modules[module], path)):
                nodes[get_gradient_edge(tensor).node] = ".".join(path)
    return nodes


def _quoted(path: str) -> str:
    return path if " " in path else f"`{path}`"


def _refuse_foreign(arguments: _Arguments, what: Any) -> None:
    function = refusals.name_of(arguments.function)
    if not isinstance(what, str):
        what = refusals.path_to(what, [("", arguments.function)])
        what = re.sub(r".*\.(?:closure|globals)\['(\w+)'\]", r"\1", what)
        what = re.sub(r".*\.defaults\[\d+\]", "a default of its parameters", what)
    raise UnsupportedGradientError(
        f"Parallel: `{function}` uses {_quoted(what)}, which requires grad and is not among its "
        "arguments, so no gradient would reach it; pass it as an argument."
    )


def _refuse(arguments: _Arguments, outs: list[Any], buffers: list[Any]) -> None:
    function = refusals.name_of(arguments.function)
    own = {id(one) for module in arguments.modules for one in module._buffers.values()}
    own |= {id(one) for before in arguments.buffers for one in before.values()}
    for index, tensor in arguments.given.items():
        if tensor._version != arguments.versions[index] and id(tensor) not in own:
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
    spec: Spec, arguments: _Arguments, outs: list[Any], inputs: Any, consumers: Any
) -> list[Any] | None:
    """The gradients of the inputs, where those of the outputs are as expected."""
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
    try:
        with random_states_kept(), spec.modes.applied(recompute=True, autocast=False):
            return _gradients(arguments, outs, cotangents, inputs, consumers)
    except Exception:  # the backward pass raises it, if there will be one
        return None


def _gradients(
    arguments: _Arguments,
    outs: list[Any],
    cotangents: list[Any],
    inputs: list[tuple[int, int]],
    consumers: dict[int, list[tuple[Any, int]]],
) -> list[Any]:
    """The packed gradients of each input's uses: one tensor, or several in one."""
    import torch

    parts: dict[int, list[Any]] = {}
    for index, uses in inputs:
        if uses > 1:
            parts[index] = []
            _listen(consumers.get(index, ()), parts[index])
    asked = [arguments.given[index] for index, _ in inputs]
    pairs = [(out, one) for out, one in zip(outs, cotangents, strict=True) if one is not None]
    found = torch.autograd.grad(
        [out for out, _ in pairs], asked, [one for _, one in pairs], allow_unused=True
    )
    gradients: list[Any] = []
    for (index, uses), whole in zip(inputs, found, strict=True):
        several = parts.get(index)
        if several and 1 < len(several) <= uses and all(p.shape == whole.shape for p in several):
            gradients.append((len(several), *pack(torch.stack(several))))
        else:
            gradients.append(None if whole is None else (0, *pack(whole)))
    return gradients


def _listen(consumers: Any, parts: list[Any]) -> None:
    """Collect the gradients that these nodes send, in the order in which they run."""
    slots: dict[Any, list[int]] = {}
    for node, slot in consumers:
        slots.setdefault(node, []).append(slot)

    def heard(mine: list[int]) -> Any:
        def hook(sent: Any, _: Any) -> None:
            parts.extend(sent[slot].clone() for slot in mine if sent[slot] is not None)

        return hook

    for node, mine in slots.items():
        node.register_hook(heard(mine))


def _digest(out: Any) -> Digest:
    import torch

    value = out.detach()
    if value.layout is not torch.strided:
        value = value.to_dense()
    flat = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
    flat = flat.double()
    return Digest(tuple(out.shape), out.dtype, (float(flat.sum()), float(flat.abs().sum())))


def _alike(before: list[Digest], now: list[Digest]) -> bool:
    """Whether the results are the same, but for rounding."""
    if [one[:2] for one in before] != [one[:2] for one in now]:
        return False
    for (_, _, (one, size)), (_, _, (other, _)) in zip(before, now, strict=True):
        if one == one and abs(one) != float("inf") and not abs(one - other) <= 1e-3 * size + 1e-30:
            return False
    return True
