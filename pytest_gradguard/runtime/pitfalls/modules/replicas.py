"""GG111: state that `forward` assigns in the replicas of `DataParallel`, which drops them.

The replica on the first device shares the memory of the module's buffers, so in-place writes to
them are kept. An assignment is lost if it is state: a buffer of the `state_dict`, or an attribute
computed from its old value. Any other attribute may be a cache.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

from pytest_gradguard.runtime.kernel import callsite, collector
from pytest_gradguard.runtime.kernel.observing import observe
from pytest_gradguard.runtime.kernel.parsing import parsed
from pytest_gradguard.runtime.kernel.patching import LatePatches, Patch
from pytest_gradguard.runtime.kernel.state import dropped_at_end
from pytest_gradguard.runtime.pitfalls.modules import gg111

_MODULE = "torch.nn.parallel.data_parallel"
_FEW = 8
"""How many forward passes of a module are checked."""
_left: weakref.WeakKeyDictionary[Any, int] = dropped_at_end(weakref.WeakKeyDictionary())
"""How many more forward passes of each `DataParallel` are checked."""


class _Replica(NamedTuple):
    """A module, its replica on the first device, and the replica's state before it ran."""

    path: str
    module: Any
    copy: Any
    buffers: dict[str, Any]
    attributes: dict[str, Any]


def _before(parallel: Any, replicas: Any, *args: Any, **kwargs: Any) -> list[_Replica] | None:
    left = _left.setdefault(parallel, _FEW)
    home = collector.innermost()
    if not left or home is None or gg111.CODE in home.ignore | collector.allowed_now():
        return None
    _left[parallel] = left - 1
    modules, copies = list(parallel.module.named_modules()), list(replicas[0].modules())
    if len(modules) != len(copies):
        return None
    return [
        _Replica(path, module, copy, dict(copy._buffers), dict(vars(copy)))
        for (path, module), copy in zip(modules, copies, strict=True)
    ]


def _after(before: list[_Replica], outputs: Any, parallel: Any, *args: Any, **kwargs: Any) -> None:
    lost = [(one, name) for one in before for name in _lost(one)]
    if not lost:
        return
    _left[parallel] = 0
    home = collector.innermost()
    site = callsite.user_site()
    kind = type(lost[0][0].module)
    named = {
        f"{one.path}.{name}" if one.path else name: _places(type(one.module)).get(name)
        for one, name in lost
    }

    def make() -> gg111.ReplicaEvidence:
        return gg111.ReplicaEvidence(site, kind.__name__, named)

    if home is not None:
        evidence = home.evidence((gg111.CODE, site and site.key, "replicas"), make)
        evidence.count += 1
        collector.announce(home, [evidence])


def _lost(one: _Replica) -> Iterator[str]:
    """The state that the replica has assigned."""
    for name, was in one.buffers.items():
        new = one.copy._buffers.get(name)
        kept = name not in one.module._non_persistent_buffers_set
        if kept and new is not was and _differ(one.module._buffers.get(name), new):
            yield name
    for name, new in vars(one.copy).items():
        old = one.attributes.get(name)
        assigned = name in one.attributes and new is not old and name in vars(one.module)
        if assigned and _differ(old, new) and name in _places(type(one.module)):
            yield name


def _differ(old: Any, new: Any) -> bool:
    torch: Any = sys.modules["torch"]
    if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor):
        return old.shape != new.shape or not torch.equal(old.detach(), new.detach().to(old.device))
    if isinstance(old, (int, float)) and isinstance(new, (int, float)):
        return old != new
    return True


_known: weakref.WeakKeyDictionary[type, dict[str, gg111.Place]] = weakref.WeakKeyDictionary()


def _places(kind: type) -> dict[str, gg111.Place]:
    """The lines where methods of a class compute attributes of `self` from their old values."""
    if kind not in _known:
        _known[kind] = _find_places(kind)
    return _known[kind]


def _find_places(kind: type) -> dict[str, gg111.Place]:
    found: dict[str, gg111.Place] = {}
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] in ("torch", "builtins"):
            continue
        try:
            lines, first = inspect.getsourcelines(base)
            tree = parsed(textwrap.dedent("".join(lines)))
            path = inspect.getsourcefile(base) or ""
        except (OSError, TypeError, SyntaxError, ValueError, RecursionError):
            continue
        for node in ast.walk(tree):
            for name in _updated(node):
                found.setdefault(name, (path, first + getattr(node, "lineno", 1) - 1))
    return found


def _updated(node: Any) -> Iterator[str]:
    """The attributes of `self` that a statement computes from their old values."""
    if isinstance(node, ast.AugAssign):
        yield from _own(node.target)
    elif isinstance(node, ast.Assign):
        used = {name for inner in ast.walk(node.value) for name in _own(inner)}
        yield from (name for target in node.targets for name in _own(target) if name in used)


def _own(node: Any) -> Iterator[str]:
    of_name = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    if of_name and node.value.id == "self":
        yield node.attr


def _make() -> list[Patch]:
    kind: Any = getattr(sys.modules.get(_MODULE), "DataParallel", None)
    return [] if kind is None else [observe(kind, "parallel_apply", before=_before, after=_after)]


apply = LatePatches(_make).apply
