"""GG504: a DDP forward pass fails because parameters received no gradient before.

`gradients.torch_ddp` watches the models and finds the reasons.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from pytest_gradguard.details import Details
from pytest_gradguard.findings import TraceStep
from pytest_gradguard.runtime.kernel import evidence
from pytest_gradguard.runtime.kernel.callsite import Site
from pytest_gradguard.runtime.kernel.faults import attempt, without_this_frame
from pytest_gradguard.runtime.kernel.observing import observe
from pytest_gradguard.runtime.kernel.patching import LatePatches, Patch
from pytest_gradguard.runtime.kernel.state import dropped_at_end

CODE = "GG504"
_MODULE = "torch.nn.parallel.distributed"
_WATCHING = "pytest_gradguard.gradients.torch_ddp"
"""Loaded with the first DDP model."""
settled: set[int] = dropped_at_end(set())
"""The ids of models whose forward passes need no watching any more."""


def _make() -> list[Patch]:
    kind: Any = getattr(sys.modules.get(_MODULE), "DistributedDataParallel", None)
    if kind is None:
        return []
    return [observe(kind, "__init__", after=_constructed), Patch(kind, "forward", _forwarding)]


apply = LatePatches(_make).apply
"""Watch models of DDP, if torch is loaded."""


def _notify(event: str, ddp: Any, *particulars: Any) -> None:
    """Report an event to `gradients.torch_ddp`."""
    watching = sys.modules.get(_WATCHING) or import_module(_WATCHING)
    getattr(watching, event)(ddp, *particulars)


def _constructed(result: None, ddp: Any, *args: Any, **kwargs: Any) -> None:
    _notify("constructed", ddp)


def _forwarding(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if sys.modules["torch"].compiler.is_compiling():
            return original(self, *args, **kwargs)
        is_watched = id(self) not in settled
        if is_watched:
            attempt(_notify, "forward_begins", self)
        try:
            outputs = original(self, *args, **kwargs)
        except BaseException as error:
            attempt(_notify, "forward_failed", self, error)
            without_this_frame(error)
            raise
        if is_watched:
            attempt(_notify, "forward_ended", self, outputs)
        return outputs

    return forward


class Unused(NamedTuple):
    """Parameters that lack their gradients for one reason.

    Attributes:
        names: their names in the wrapped model.
        reason: the kind of the reason.
        text: the reason as a sentence.
        fix: the fix.
        steps: the lines behind it.
    """

    names: Sequence[str]
    reason: str
    text: str
    fix: str
    steps: Sequence[TraceStep]


class Evidence(evidence.Evidence):
    """The errors of DDP that were raised at one line; the last one is reported.

    Args:
        site: the forward pass.
        backend: that of the process group.
        rank: that of this process.
    """

    code = CODE

    def __init__(self, site: Site | None, backend: str, rank: int) -> None:
        super().__init__(site, backend, rank=rank)
        self._unused: Sequence[Unused] = ()

    def add(self, unused: Sequence[Unused], description: Details) -> None:
        """Count one more error.

        Args:
            unused: which parameters lack a gradient.
            description: the first of them.
        """
        with self._lock:
            self.count += 1
            self._unused = unused
            self.advice = unused[0].fix
            names = [name for one in unused for name in one.names]
            self.details.update(
                {
                    **description,
                    "object": names[0],
                    "objects": names,
                    "reason": unused[0].reason if len(unused) == 1 else "several",
                }
            )

    def message(self) -> str:
        return (
            f"DDP cannot begin this forward pass on rank {self.details['rank']}, because "
            "parameters received no gradient in the last backward pass. "
            + " ".join(one.text for one in self._unused)
        )

    def trace(self) -> Sequence[TraceStep]:
        return [step for one in self._unused for step in one.steps]
