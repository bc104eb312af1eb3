"""The names of parameters, buffers and other leaves in a program's frames."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from pytest_gradguard.comparing.copies import is_of_tensorflow
from pytest_gradguard.runtime.kernel import callsite

_DEPTH = 8
"""How many of the program's frames are searched."""
_MOST = 1_000
"""How many entries of a container are searched."""
_NESTED = 3


def of_frames(frame: FrameType | None) -> dict[str, Any]:
    """Torch's leaves and buffers that the program's frames hold, from `frame` outward, by name."""
    found: dict[str, Any] = {}
    frames = callsite.user_frames(frame, _DEPTH)
    spaces: list[Mapping[str, Any]] = [
        dict(callsite.local_names(one))
        for one in frames
        if one.f_code.co_flags & inspect.CO_OPTIMIZED
    ]
    spaces += [one.f_globals for one in frames]
    seen: set[int] = set()
    for space in spaces:
        if id(space) not in seen:
            seen.add(id(space))
            add(found, space)
    return found


def of_main() -> dict[str, Any]:
    """Torch's leaves and buffers that the main module holds, by name."""
    found: dict[str, Any] = {}
    add(found, vars(sys.modules["__main__"]))
    return found


def add(found: dict[str, Any], space: Mapping[str, Any]) -> None:
    """Add the contents of a namespace to `found`, each object under its first name."""
    known = {id(one) for one in found.values()}
    for name, value in list(space.items()):
        if name.startswith(("__", "@")):
            continue
        for path, tensor in _inside(name, value, _NESTED):
            if id(tensor) not in known and path not in found:
                known.add(id(tensor))
                found[path] = tensor


def _inside(path: str, item: Any, depth: int) -> Iterator[tuple[str, Any]]:
    torch: Any = sys.modules.get("torch") if "torch.nn.parameter" in sys.modules else None
    kind = type(item)
    if is_of_tensorflow(item):
        yield from _weights(path, item)
    elif torch is not None and issubclass(kind, torch.Tensor):
        if item.requires_grad and item.is_leaf:
            yield path, item
    elif torch is not None and issubclass(kind, torch.nn.Module):
        for name, one in item.named_parameters():
            yield f"{path}.{name}", one
        for name, one in item.named_buffers():
            yield f"{path}.{name}", one
    elif depth:
        for name, one in _entries(item, kind):
            yield from _inside(f"{path}{name}", one, depth - 1)


def _weights(path: str, item: Any) -> Iterator[tuple[str, Any]]:
    """The variables of a Keras model or a TensorFlow module, or the variable itself."""
    if hasattr(item, "assign") and hasattr(item, "numpy"):
        yield path, item
        return
    weights = getattr(item, "weights", None) or getattr(item, "variables", None)
    if isinstance(weights, (list, tuple)):
        for index, one in enumerate(weights):
            yield f"{path}.weights[{index}] ({name_of(one)})", one


def name_of(variable: Any) -> str:
    """The name of a variable, without the numbers that distinguish models of one name."""
    name = getattr(variable, "path", None) or getattr(variable, "name", "")
    return re.sub(r"_\d+(?=/|$)", "", str(name))


def _entries(item: Any, kind: type) -> Iterator[tuple[str, Any]]:
    if kind in (list, tuple):
        if len(item) <= _MOST:
            yield from ((f"[{index}]", one) for index, one in enumerate(item))
    elif kind is dict:
        if len(item) <= _MOST:
            yield from ((f"[{key!r}]", one) for key, one in list(item.items()))
    elif (kind.__module__ == "__main__" or callsite.is_users_class(kind)) and "__dict__" in dir(
        kind
    ):
        yield from ((f".{name}", one) for name, one in list(vars(item).items()))
