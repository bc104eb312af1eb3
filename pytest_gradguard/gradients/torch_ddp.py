"""Why parameters of a DDP model received no gradient, if its next forward pass fails (GG504).

In the first iterations of a model everything is recorded that may explain it. That costs time, so
it ends when they succeed: a parameter that lacks its gradient later had one before.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import weakref
from dataclasses import dataclass
from typing import Any

import torch

from pytest_gradguard.details import Details
from pytest_gradguard.gradients import targets, torch_log, torch_patches
from pytest_gradguard.gradients.reasons import (
    OR_ALLOW,
    Frozen,
    MeantToStay,
    NotInGraph,
    Reason,
    at,
    in_number,
    step,
)
from pytest_gradguard.gradients.recording import now
from pytest_gradguard.gradients.report import shown
from pytest_gradguard.gradients.torch_diagnosis import diagnose
from pytest_gradguard.gradients.torch_entries import state_of
from pytest_gradguard.messages import GradGuardError, GradGuardWarning
from pytest_gradguard.reports import printable
from pytest_gradguard.runtime.frameworks.torch import tensors
from pytest_gradguard.runtime.frameworks.torch.following import tensors_in
from pytest_gradguard.runtime.kernel import callsite, collector, watching
from pytest_gradguard.runtime.kernel.faults import attempt
from pytest_gradguard.runtime.kernel.references import Reference, refer
from pytest_gradguard.runtime.pitfalls.ddp import gg502
from pytest_gradguard.runtime.pitfalls.ddp.gg504 import CODE, Evidence, Unused, settled

_ERROR = "Expected to have finished reduction in the prior iteration"
_INDICES = re.compile(r"Parameter indices which did not receive grad for rank \d+:([ \d]+)")
_ITERATIONS = 4
"""For how many iterations of a model everything is recorded; the error is mostly in the second."""
_FORWARDS = 64
"""And for how many forward passes at most (an iteration may accumulate many)."""
_REASONS = 6
_FREEZE = "Freeze [it|them] before you wrap the model in `DistributedDataParallel`."
_OR_FREEZE = "or freeze [it|them] before you wrap the model if [it is|they are] not meant to learn"


@dataclass(frozen=True)
class Skipped(Reason):
    """The loss of the last iteration does not depend on the parameter.

    Attributes:
        used: the output of the forward pass does depend on it.
    """

    kind = "not-in-graph"
    used: bool = False

    def text(self) -> str:
        missed = f"the last backward pass{at(self.site)} did not reach [it|them]"
        if self.used:
            return f"the forward pass uses [it|them], but {missed}"
        return f"{missed}, unlike those of earlier iterations"

    def fix(self) -> str:
        if self.used:
            return (
                "Let the loss depend on every output of the forward pass, if only by "
                "`0 * output.sum()`."
            )
        return (
            "Use [it|them] in every iteration, or pass `find_unused_parameters=True` to "
            "`DistributedDataParallel` if iterations are meant to use different parts of the model."
        )


@dataclass(frozen=True)
class Replaced(Reason):
    """The model has replaced this parameter since it was wrapped."""

    kind = "replaced"
    site: None = None

    def text(self) -> str:
        return (
            "[it was|they were] replaced after the model was wrapped, and DDP still waits for the "
            "gradient of the old [one|ones]"
        )

    def fix(self) -> str:
        return (
            "Replace [it|them] before you wrap the model in `DistributedDataParallel`, and build "
            "the optimizer afterwards."
        )


class Model:
    """One DDP model in training.

    Attributes:
        began: when its last forward pass began.
    """

    def __init__(self, ddp: Any) -> None:
        weakref.finalize(ddp, attempt, _forget, id(ddp)).atexit = False
        self._identity = id(ddp)
        self._looked_for = bool(ddp.find_unused_parameters)
        names = {id(one): name for name, one in targets.unwrapped(ddp).named_parameters()}
        # DDP numbers them in this order.
        present = [
            one
            for name, one in ddp.module.named_parameters()
            if one.requires_grad and name not in ddp.parameters_to_ignore
        ]
        reduced = [one for one in getattr(ddp, "_module_parameters", ()) if one.requires_grad]
        if len(reduced) != len(present):  # else some may have been replaced earlier
            reduced = present
        self._parameters: list[Reference] = [refer(one) for one in reduced]
        self._names = [names[id(one)] for one in present]
        self._since = self.began = now()
        self._ran = False
        self._iterations = 0
        self._forwards = 0
        self._used: frozenset[int] = frozenset()
        self._log: torch_log.Log | None = torch_patches.start(self)
        self._noting = True

    # -- what happens --------------------------------------------------------------------------

    def forward_ended(self, outputs: Any, *, averages: bool) -> None:
        """Record a forward pass.

        Args:
            outputs: its outputs.
            averages: DDP averages the gradients of its backward pass.
        """
        self._forwards += 1
        if averages and self._ran:
            self._ran = False
            self._since = self.began
            self._iterations += 1
        if averages and self._noting:
            self._used = frozenset(map(id, tensors.leaves_of(tensors_in(outputs))))
        if self._noting and (self._iterations >= _ITERATIONS or self._forwards >= _FORWARDS):
            self.note_less()

    def note_less(self) -> None:
        """Stop recording everything that happens to tensors."""
        if self._noting:
            self._noting = False
            torch_patches.stop(self)
            self._log = None
            settled.add(self._identity)

    def before_backward(self) -> None:
        """Ignored: only the end of a backward pass matters."""

    def look_at_gradients(self) -> None:
        """Ignored: gradients that the program assigns itself do not go to the reducer."""

    def after_backward(self, inputs: Any, outcome: Any) -> None:
        """Record that a backward pass has run in this iteration."""
        self._ran = True

    def missing(self) -> list[Any]:
        """The parameters: the backward passes that reach them matter in each iteration."""
        return [tensor for one in self._parameters if (tensor := one()) is not None]

    # -- what is missing -----------------------------------------------------------------------

    def unused(self, ddp: Any, error: str) -> dict[Reason, list[int]]:
        """The parameters without a gradient, as DDP's `error` numbers them, by reason."""
        now = {id(one) for one in ddp.module.parameters()}
        found = _INDICES.search(error)
        groups: dict[Reason, list[int]] = {}
        for index in map(int, found[1].split() if found else ()):
            if index >= len(self._parameters):
                return {}  # the model was wrapped before the guard began, and changed since
            tensor = self._parameters[index]()
            if tensor is not None:
                reason = self._reason(tensor) if id(tensor) in now else Replaced()
                groups.setdefault(reason, []).append(index)
        return dict(sorted(groups.items(), key=lambda item: -len(item[1])))

    def _reason(self, tensor: Any) -> Reason:
        """Why the parameter `tensor` has received no gradient in this iteration."""
        state = state_of(tensor)
        used = self._looked_for or id(tensor) in self._used
        if self._log is None:
            return Skipped(None, used) if state.requires_grad else Frozen(None)
        reason = diagnose(self._log, self._since, tensor, state)
        if isinstance(reason, NotInGraph) and (used or self._iterations):
            return Skipped(reason.site, used)
        return reason

    def report(self, ddp: Any, error: BaseException) -> None:
        """Report the parameters without a gradient, and why, in addition to DDP's `error`."""
        home = collector.innermost()
        if home is None or CODE in home.ignore | collector.allowed_now():
            return
        groups = self.unused(ddp, str(error))
        if not groups:
            return
        site = callsite.user_site()
        found = home.evidence((CODE, site and site.key), lambda: _evidence(ddp, site))
        assert isinstance(found, Evidence)
        found.add(
            [self._unused(reason, members) for reason, members in groups.items()][:_REASONS],
            self._description(next(iter(groups.values()))[0]),
        )
        gg502.has_failed(ddp)
        if hasattr(error, "add_note"):
            error.add_note(printable.shown(f"{CODE}: {found.message()}"))
        with contextlib.suppress(GradGuardError, GradGuardWarning):  # the error is their own
            collector.announce(home, [found])

    def _unused(self, reason: Reason, members: list[int]) -> Unused:
        names = [self._names[index] for index in members]
        many = len(names) > 1
        lost = shown(names, self._names)
        of_all = f" ({len(names)} of {len(self._names)} parameters)" if many else ""
        steps = [step(reason.site, f"this leaves {lost} without a gradient"), reason.trace()]
        return Unused(
            names,
            reason.kind,
            in_number(f"No gradient for {lost}{of_all}: {reason.text()}.", many=many),
            in_number(_fix(reason), many=many),
            tuple(itertools.chain(*steps)),
        )

    def _description(self, index: int) -> Details:
        tensor = self._parameters[index]()
        return {} if tensor is None else state_of(tensor).description


def _evidence(ddp: Any, site: callsite.Site | None) -> Evidence:
    group = ddp.process_group
    return Evidence(site, torch.distributed.get_backend(group), rank=torch.distributed.get_rank())


def _fix(reason: Reason) -> str:
    if isinstance(reason, Frozen) or (isinstance(reason, MeantToStay) and reason.follows):
        return _FREEZE
    if isinstance(reason, NotInGraph):
        return f"Let the loss depend on [it|them] by operations that have a gradient, {_OR_FREEZE}."
    return reason.fix().replace(OR_ALLOW, _OR_FREEZE)


# -- events from the guard -------------------------------------------------------------------------

_models: dict[int, Model] = {}
"""The live DDP models, by id."""


def _known(ddp: Any) -> Model | None:
    """The record of `ddp`, created on first use."""
    model = _models.get(id(ddp))
    if model is None and collector.innermost() is not None:
        model = _models[id(ddp)] = Model(ddp)
    return model


def _forget(identity: int) -> None:
    model = _models.pop(identity, None)
    if model is not None:
        model.note_less()
    settled.discard(identity)


def constructed(ddp: Any) -> None:
    """Called when a model was wrapped."""
    _known(ddp)


def forward_begins(ddp: Any) -> None:
    """Called before a forward pass of `ddp`."""
    model = _known(ddp)
    if model is not None:
        model.began = now()


def forward_ended(ddp: Any, outputs: Any) -> None:
    """Called when a forward pass of `ddp` has returned `outputs`."""
    model = _models.get(id(ddp))
    if model is not None:
        averages = torch.is_grad_enabled() and ddp.require_backward_grad_sync
        model.forward_ended(outputs, averages=averages)


def forward_failed(ddp: Any, error: BaseException) -> None:
    """Called when a forward pass of `ddp` raised `error`."""
    model = _models.get(id(ddp))
    if model is not None and _ERROR in str(error):
        model.report(ddp, error)


def _stop() -> None:
    while _models:
        _models.popitem()[1].note_less()


watching.before_end(_stop)
