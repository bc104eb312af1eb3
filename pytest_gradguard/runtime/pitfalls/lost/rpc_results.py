"""GG103: results of `torch.distributed.rpc` outside of a distributed autograd context.

Inside one, their graph leads to the other process. Outside, they arrive as leaves, where a backward
pass ends.
"""

from __future__ import annotations

import itertools
import sys
from typing import Any

import torch

from pytest_gradguard.runtime.frameworks.torch import tensors
from pytest_gradguard.runtime.frameworks.torch.following import tensors_in
from pytest_gradguard.runtime.kernel.by_identity import ByIdentity
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.dispatch import calling
from pytest_gradguard.runtime.kernel.evidence import Object
from pytest_gradguard.runtime.kernel.observing import observe
from pytest_gradguard.runtime.kernel.patching import LatePatches, Patch
from pytest_gradguard.runtime.kernel.registry import Workers
from pytest_gradguard.runtime.kernel.state import dropped_at_end
from pytest_gradguard.runtime.kernel.tasks import Task, task_of
from pytest_gradguard.runtime.pitfalls.ddp import groups

RPC = Workers("rpc", library="torch.distributed.rpc")
_MODULE = "torch.distributed.rpc.api"
_PROXIES = ("_local_invoke", "_local_invoke_async_execution")
"""Functions that call a method of an RRef's object, named by their second argument."""
_LEAVES = 64
"""How many leaves behind the arguments are remembered."""
_pending: ByIdentity[tuple[Call, Task]] = dropped_at_end(ByIdentity())


def _begin(
    to: Any, function: Any, rpc_type: Any, args: Any = None, kwargs: Any = None, *rest: Any
) -> tuple[Call, Task] | None:
    sent = [one for one in tensors_in((args, kwargs)) if tensors.requires_grad(one)]
    if not sent or not torch.is_grad_enabled():
        return None
    call = calling.begin(RPC, frozenset(("torch",)))
    if call is None or "GG103" in call.dropped:
        return None
    call.ships_gradients = True
    for leaf in itertools.islice(tensors.leaves_of(sent), _LEAVES):  # the program keeps no others
        call.remember_shipped(leaf, "")
    if getattr(function, "__name__", "") in _PROXIES:
        return call, Task(str(args[1]), None, None)
    return call, task_of(function)


def _sent(begun: tuple[Call, Task], future: Any, *args: Any, **kwargs: Any) -> None:
    _pending[future] = begun


def _arrived(result: Any, future: Any) -> None:
    known = _pending.pop(future) if _pending else None
    if known is None:
        return
    from pytest_gradguard.runtime.pitfalls.lost import provenance
    from pytest_gradguard.runtime.pitfalls.lost.lacking import Severed

    call, task = known
    for tensor in tensors_in((result,)):
        if tensor.is_leaf and tensors.requires_grad(tensor):
            about = tensors.describe(tensor)
            note = Object(path="result", task=task, description=about, history=None, plain=True)
            provenance.mark(tensor, Severed(call, note, certain=False))


def _joined(*args: Any) -> None:
    for tell in groups.joined:
        tell()


def _make() -> list[Patch]:
    api: Any = sys.modules.get(_MODULE)
    if api is None or not hasattr(api, "_invoke_rpc"):
        return []
    return [
        observe(api, "_init_rpc_states", after=_joined),
        observe(api, "_invoke_rpc", before=_begin, after=_sent),
        observe(torch._C.Future, "wait", after=_arrived),
    ]


apply = LatePatches(_make).apply
