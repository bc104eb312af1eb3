"""GG502: an optimizer steps while `fully_shard` keeps gradients that it has not reduced.

After `set_requires_gradient_sync(False)` they accumulate apart from `.grad`, until a backward pass
runs after it was enabled again. A step before that does nothing, and loses nothing.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from typing import Any

import torch

from pytest_gradguard.runtime.frameworks.torch import steps, tensors
from pytest_gradguard.runtime.kernel import callsite, collector
from pytest_gradguard.runtime.kernel.by_identity import ByIdentity
from pytest_gradguard.runtime.kernel.callsite import Site
from pytest_gradguard.runtime.kernel.observing import observe
from pytest_gradguard.runtime.kernel.patching import LatePatches, Patch
from pytest_gradguard.runtime.kernel.references import refer
from pytest_gradguard.runtime.kernel.state import dropped_at_end
from pytest_gradguard.runtime.pitfalls.ddp import gg502

_MODULE = "torch.distributed.fsdp._fully_shard._fully_shard"


class _Paused:
    """A module that does not reduce its gradients.

    Args:
        module: the module for which the program disabled it.
        site: where it did.
    """

    def __init__(self, module: Any, site: Site | None) -> None:
        self.site = site
        self.reduced = False
        self._module = refer(module)

    def shards(self) -> Iterator[Any]:
        """FSDP's record of each parameter."""
        module = self._module()
        kind = sys.modules[_MODULE].FSDPModule
        for one in () if module is None else module.modules():
            if isinstance(one, kind):
                state = one._get_fsdp_state()
                groups = getattr(state, "_fsdp_param_groups", None)
                for group in [state._fsdp_param_group] if groups is None else groups:
                    yield from () if group is None else group.fsdp_params

    def unreduced(self) -> list[Any]:
        """FSDP's records of parameters whose gradient waits to be reduced."""
        found = []
        for shard in self.shards():
            if not tensors.gradient_missing(shard.sharded_param):
                self.reduced = True
            elif _waits(shard):
                found.append(shard)
        return found

    def was_reduced(self) -> bool:
        """Whether gradients were reduced after all."""
        return self.reduced or (self._module() is not None and not self.unreduced())


def _waits(shard: Any) -> bool:
    whole = getattr(shard, "_unsharded_param", None)
    accumulated = getattr(shard, "unsharded_accumulated_grad", None) is not None
    return accumulated or (whole is not None and not tensors.gradient_missing(whole))


_paused: ByIdentity[_Paused] = dropped_at_end(ByIdentity())


def _set(module: Any, requires_gradient_sync: bool, **kwargs: Any) -> None:
    if not requires_gradient_sync and _paused.get(module) is None:
        _paused[module] = _Paused(module, callsite.user_site())
        steps.after.subscribe(_stepped)


def _stepped(optimizer: Any) -> None:
    held = {id(one) for one in steps.parameters_of(optimizer)}
    for paused in list(_paused.values()):
        lacking = [one for one in paused.unreduced() if id(one.sharded_param) in held]
        if lacking and not paused.reduced:
            _report(paused, lacking, len(held))


def _report(paused: _Paused, lacking: list[Any], of_all: int) -> None:
    home = collector.innermost()
    if home is None or gg502.CODE in home.ignore | collector.allowed_now():
        return
    site = callsite.user_site()
    names = [getattr(one, "_param_fqn", None) or one._module_info.param_name for one in lacking]
    make = functools.partial(
        gg502.ShardsEvidence, site, paused.site, names, of_all, torch.distributed.get_world_size()
    )
    evidence = home.evidence((gg502.CODE, site and site.key), make)
    assert isinstance(evidence, gg502.ShardsEvidence)
    evidence.count += 1
    evidence.reduced = paused.was_reduced


def _make() -> list[Patch]:
    kind: Any = getattr(sys.modules.get(_MODULE), "FSDPModule", None)
    return [] if kind is None else [observe(kind, "set_requires_gradient_sync", before=_set)]


apply = LatePatches(_make).apply
