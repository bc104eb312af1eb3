"""Which tensors the results of a task were computed from, by their graph."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from pytest_gradguard.parallel import refusals, shipping
from pytest_gradguard.parallel.received import Arguments
from pytest_gradguard.parallel.refusals import UnsupportedGradientError

_NODES, _USES_BYTES = 1000, 1 << 20
"""Up to here, the gradients of a tensor's uses go back one by one, to be added up as ever."""

_LOOKED_AT = 2000
"""How many objects of a result are looked at for a graph."""


class Usage(NamedTuple):
    """What a graph leads to.

    Attributes:
        consumers: the nodes, and which of their inputs, that use each argument.
        leaves: the nodes of tensors at which the graph ends, arguments apart.
        nodes: the nodes of the graph.
        inner: the nodes of results that other results depend on.
    """

    consumers: dict[int, list[tuple[Any, int]]]
    leaves: list[Any]
    nodes: set[Any]
    inner: set[Any]

    def inputs(self, arguments: Arguments) -> list[tuple[int, int]]:
        """The arguments that results depend on, and how many gradients go back for each."""
        uses = {}
        for index, nodes in self.consumers.items():
            count, tensor = len(nodes), arguments.given[index]
            size = count * tensor.numel() * tensor.element_size()
            uses[index] = count if count > 0 and size <= _USES_BYTES else 1
        if len(self.nodes) > _NODES:
            uses = dict.fromkeys(uses, 1)
        return sorted(uses.items())


def has_graph(result: Any) -> bool:
    """Whether a tensor with a graph is in what a task returned, found without pickling it."""
    from pytest_gradguard.runtime.kernel import locate

    torch = sys.modules["torch"]
    if shipping.holds_grad(result) is False:
        return False
    found: list[bool] = []

    def is_tensor(item: Any) -> bool:
        if isinstance(item, torch.Tensor):
            found.append(item.grad_fn is not None)
        return isinstance(item, torch.Tensor)

    locate.find([("", result)], is_tensor, limit=_LOOKED_AT)
    return any(found)


def usage(outs: list[Any], arguments: Arguments | None = None) -> Usage:
    """What the graph of some results leads to."""
    targets = arguments.differentiable() if arguments and outs else {}
    found = Usage({}, [], set(), set())
    queue, seen = [], found.nodes
    for out in outs:
        if out.grad_fn in targets:  # a result may itself be the node at which an argument enters
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
    """Refuse tensors that came with the function, or that the task has put into a module.

    Raises:
        UnsupportedGradientError: results depend on one.
    """
    function = refusals.name_of(arguments.function)
    for index in range(arguments.spec.captured, len(arguments.spec.leaves)):
        if index in found.consumers:
            what = refusals.path_to(arguments.given[index], [("", arguments.function)])
            what = re.sub(r".*\.(?:closure|globals)\['(\w+)'\]", r"\1", what)
            what = re.sub(r".*\.defaults\[\d+\]", "a default of its parameters", what)
            raise _not_an_argument(function, what)
    held = {id(one) for module in arguments.modules for one in module._parameters.values()}
    for node in found.leaves:
        if id(node.variable) in held:
            path = refusals.path_to(node.variable, arguments.roots())
            raise UnsupportedGradientError(
                f"Parallel: `{function}` replaces the parameter `{path}`, which only its copy in "
                "the worker would show; replace it before the call."
            )


def refuse_hidden(function: str, leaves: list[Any], returned: list[Any]) -> str | None:
    """Refuse tensors that results depend on, that are no arguments, and that outlive the task.

    Args:
        function: its name.
        leaves: the nodes of the tensors.
        returned: the tensors that the task returns.

    Returns:
        Why no gradient can pass the results, where one of the tensors is returned with them.

    Raises:
        UnsupportedGradientError: one is a global, or an attribute of one.
    """
    ids = {id(one) for one in returned}
    kept = [node for node in leaves if id(node.variable) not in ids and _is_kept(node)]
    if kept:
        gc.collect()  # a model of the task's own may be in a cycle
    for node in kept:
        if _is_kept(node):
            raise _not_an_argument(function, refusals.path_to(node.variable, _globals()))
    if any(id(node.variable) in ids for node in leaves):
        return (
            f"Parallel: `{function}` returns a tensor that it has made together with a result "
            "that depends on it; what returns is a copy, which no gradient would reach. Make the "
            "tensor before the call and pass it as an argument, or detach the result."
        )
    return None


def _is_kept(node: Any) -> bool:
    """Whether anything but the graph refers to the tensor of a node."""
    return _references(node) > _graph_alone()


def _references(node: Any) -> int:
    return sys.getrefcount(node.variable)


def _graph_alone() -> int:
    import torch

    with torch.inference_mode(False), torch.enable_grad():
        result = torch.ones((), requires_grad=True) * 2
    return _references(result.grad_fn.next_functions[0][0])


def _not_an_argument(function: str, what: str) -> UnsupportedGradientError:
    quoted = what if " " in what else f"`{what}`"
    return UnsupportedGradientError(
        f"Parallel: `{function}` uses {quoted}, which requires grad and is not among its "
        "arguments, so no gradient would reach it; pass it as an argument."
    )


def _globals() -> Iterator[tuple[str, Any]]:
    """What stands in the user's modules, and in their classes."""
    from pytest_gradguard.runtime.kernel import callsite

    for module in list(sys.modules.values()):
        if not callsite.is_user_file(getattr(module, "__file__", None)):
            continue
        for name, value in list(vars(module).items()):
            yield name, value
            if isinstance(value, type):
                yield from ((f"{name}.{key}", one) for key, one in list(vars(value).items()))
