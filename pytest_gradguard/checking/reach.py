"""The models, tensors and random generators that a closure refers to."""

from __future__ import annotations

import functools
import random
import sys
import types
from collections.abc import Iterator
from typing import Any

from pytest_gradguard.runtime.kernel import callsite
from pytest_gradguard.runtime.kernel.tasks import names_in

_MOST = 5_000
"""How many objects are searched."""
_PLAIN = (str, bytes, int, float, complex, bool, type(None), type, types.ModuleType, range)


class Reached:
    """The objects that a function refers to, through its variables and their attributes.

    Attributes:
        modules: `torch.nn.Module`s and Keras layers.
        tensors: torch tensors outside of modules.
        generators: random generators of the program.
    """

    def __init__(self, function: Any) -> None:
        self.modules: list[Any] = []
        self.tensors: list[Any] = []
        self.generators: list[Any] = []
        torch: Any = sys.modules.get("torch")
        keras: Any = sys.modules.get("keras")
        numpy: Any = sys.modules.get("numpy.random")
        self._tensor = getattr(torch, "Tensor", ())
        self._module = tuple(
            kind
            for kind in (
                getattr(getattr(torch, "nn", None), "Module", None),
                getattr(keras, "Layer", None),
            )
            if kind is not None
        )
        kinds = [random.Random, getattr(torch, "Generator", None)]
        kinds += [getattr(numpy, name, None) for name in ("Generator", "RandomState")]
        self._generator = tuple(kind for kind in kinds if isinstance(kind, type))
        self._walk(function)

    def _walk(self, function: Any) -> None:
        waiting = [function]
        seen: dict[int, Any] = {}
        while waiting and len(seen) < _MOST:
            item = waiting.pop()
            if isinstance(item, _PLAIN) or id(item) in seen:
                continue
            seen[id(item)] = item
            if isinstance(item, self._tensor):
                self.tensors.append(item)
            elif isinstance(item, self._generator):
                self.generators.append(item)
            else:
                if isinstance(item, self._module):
                    self.modules.append(item)
                waiting += list(_inside(item))


def _inside(item: Any) -> Iterator[Any]:
    """The objects that `item` refers to through its own variables."""
    if isinstance(item, types.FunctionType):
        yield from (cell.cell_contents for cell in item.__closure__ or () if cell != _EMPTY)
        yield from item.__defaults__ or ()
        yield from (item.__kwdefaults__ or {}).values()
        if callsite.is_users_function(item):
            known = item.__globals__
            yield from (known[name] for name in names_in(item.__code__) if name in known)
    elif isinstance(item, types.MethodType):
        yield item.__self__
        yield item.__func__
    elif isinstance(item, functools.partial):
        yield from (item.func, *item.args, *item.keywords.values())
    elif isinstance(item, dict):
        yield from list(item.values())
    elif isinstance(item, (list, tuple, set, frozenset)):
        yield from list(item)
    else:
        yield from list(getattr(item, "__dict__", {}).values())


_EMPTY = types.CellType()
