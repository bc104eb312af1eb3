"""The tensors that a task's results depend on, by their graph."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from pytest_gradguard.parallel import refusals, shipping
from pytest_gradguard.parallel.received import Arguments
from pytest_gradguard.parallel.refusals import UnsupportedGradientError

_MAX_NODES, _MAX_USES_BYTES = 1000, 1 << 20
"""Up to here, the caller sums the gradients of a tensor's uses."""

_MAX_OBJECTS = 2000
"""Objects of a result to search for a graph."""


class Usage(NamedTuple):
    """What a graph depends on.

    Attributes:
        consumers: for each argument, the nodes and their inputs that use it.
        leaves: the leaf nodes of other tensors.
        nodes: all nodes of the graph.
        inner: the nodes of results that other results depend on.
    """

    consumers: dict[int, list[tuple[Any, int]]]
    leaves: list[Any]
    nodes: set[Any]
    inner: set[Any]

    def inputs(self, arguments: Arguments) -> list[tuple[int, int]]:
        """The arguments that results depend on, with their gradient counts."""
        uses = {}
        for index, nodes in self.consumers.items():
            count, tensor = len(nodes), arguments.tensors[index]
            size = count * tensor.numel() * tensor.element_size()
            uses[index] = count if count > 0 and size <= _MAX_USES_BYTES else 1
        if len(self.nodes) > _MAX_NODES:
            uses = dict.fromkeys(uses, 1)
        return sorted(uses.items())


def has_graph(result: Any) -> bool:
    """Whether a result contains a tensor with a graph, without pickling it."""
    from pytest_gradguard.runtime.kernel import locate

    torch = sys.modules["torch"]
    if shipping.holds_grad(result) is False:
        return False
    found: list[bool] = []

    def is_tensor(item: Any) -> bool:
        if isinstance(item, torch.Tensor):
            found.append(item.grad_fn is not None)
        return isinstance(item, torch.Tensor)

    locate.find([("", result)], is_tensor, limit=_MAX_OBJECTS)
    return any(found)


def trace(outs: list[Any], arguments: Arguments | None = None) -> Usage:
    """Follow the graph of some results."""
    targets = arguments.entry_nodes() if arguments and outs else {}
    found = Usage({}, [], set(), set())
    queue, seen = [], found.nodes
    for out in outs:
        if out.grad_fn in targets:  # the result is an argument
            found.consumers[targets[out.grad_fn]] = []
        else:
            queue.append(out.grad_fn)
    seen.update(queue)
    roots = frozenset(queue)
    while queue:
        node = queue.pop()
        edges = node.next_functions
        if not edges and hasattr(node, "variable"):
            found.leaves.append(node)
        for slot, (following, _) in enumerate(edges):
            if following is None:
                continue
            if following in roots:
                found.inner.add(following)
            if following in targets:
                found.consumers.setdefault(targets[following], []).append((node, slot))
            elif following not in seen:
                seen.add(following)
                queue.append(following)
    return found


def refuse_captured(arguments: Arguments, found: Usage) -> None:
    """Refuse results that depend on a captured tensor or a replaced parameter.

    Raises:
        UnsupportedGradientError: they do.
    """
    function = refusals.name_of(arguments.function)
    for index in range(arguments.spec.captured, len(arguments.spec.infos)):
        if index in found.consumers:
            what = refusals.path_to(arguments.tensors[index], [("", arguments.function)])
            what = re.sub(r".*\.(?:closure|globals)\['(\w+)'\]", r"\1", what)
            what = re.sub(r".*\.defaults\[\d+\]", "a default of its parameters", what)
            raise _not_an_argument(function, what)
    held = {id(one) for module in arguments.modules for one in module._parameters.values()}
    for node in found.leaves:
        if id(node.variable) in held:
            raise UnsupportedGradientError(
                f"Parallel: `{function}` replaces the parameter "
                f"`{arguments.path_to(node.variable)}`, which only its copy in "
                "the worker would show; replace it before the call."
            )


def refuse_hidden(function: str, leaves: list[Any], returned: list[Any]) -> str | None:
    """Refuse results that depend on tensors that are not arguments and outlive the task.

    Args:
        function: its name.
        leaves: the leaf nodes that the results depend on.
        returned: the tensors that the task returns.

    Returns:
        The reason why no gradient can pass the results, if a leaf is returned with them.

    Raises:
        UnsupportedGradientError: a leaf is a global, or an attribute of one.
    """
    ids = {id(one) for one in returned}
    kept = [node for node in leaves if id(node.variable) not in ids and _outlives_task(node)]
    if kept:
        gc.collect()  # a model of the task may be in a reference cycle
    for node in kept:
        if _outlives_task(node):
            raise _not_an_argument(function, refusals.path_to(node.variable, _user_globals()))
    if any(id(node.variable) in ids for node in leaves):
        return (
            f"Parallel: `{function}` returns a tensor that it has made together with a result "
            "that depends on it; what returns is a copy, which no gradient would reach. Make the "
            "tensor before the call and pass it as an argument, or detach the result."
        )
    return None


def _outlives_task(node: Any) -> bool:
    """Whether the tensor of a node has references outside the graph."""
    import torch

    with torch.inference_mode(False), torch.enable_grad():
        result = torch.ones((), requires_grad=True) * 2
    alone = result.grad_fn.next_functions[0][0]
    return sys.getrefcount(node.variable) > sys.getrefcount(alone.variable)


def _not_an_argument(function: str, what: str) -> UnsupportedGradientError:
    quoted = what if " " in what else f"`{what}`"
    return UnsupportedGradientError(
        f"Parallel: `{function}` uses {quoted}, which requires grad and is not among its "
        "arguments, so no gradient would reach it; pass it as an argument."
    )


def _user_globals() -> Iterator[tuple[str, Any]]:
    """The names in the user's modules and their classes."""
    from pytest_gradguard.runtime.kernel import callsite

    for module in list(sys.modules.values()):
        if not callsite.is_user_file(getattr(module, "__file__", None)):
            continue
        for name, value in list(vars(module).items()):
            yield name, value
            if isinstance(value, type):
                yield from ((f"{name}.{key}", one) for key, one in list(vars(value).items()))
