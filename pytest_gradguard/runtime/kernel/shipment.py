"""The objects that leave for a worker in one pickling and that matter to the guard."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from pytest_gradguard.runtime.kernel import checks, locate, shipped_modules
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.evidence import Object, TransferEvidence
from pytest_gradguard.runtime.kernel.framework import Framework
from pytest_gradguard.runtime.kernel.references import refer
from pytest_gradguard.runtime.kernel.tasks import parameter_of, roots_of, task_of

differentiated: list[Callable[[Call, Any, Any, Any], Any]] = []
"""Handlers of tensors of a derivative: each gets the call, its tasks, the tensor and its
reduction (None if refused), and returns the reduction for the worker."""


class Shipment:
    """Records the tensors in one batch on its way to a worker.

    A model has many parameters: after the first few, each costs a count and a weak reference, and
    the counts are handed over at the end.
    """

    _handed: dict[int, str] | None = None
    _kept: set[int] | None = None
    _remade: set[int] | None = None

    def __init__(self, call: Call, items: Any) -> None:
        self.call = call
        self.items = items

    # Most batches carry nothing to count, so these containers are created on first use.

    @functools.cached_property
    def _paths(self) -> dict[int, dict[int, str]]:
        return {}

    @functools.cached_property
    def _evidence(self) -> dict[str, TransferEvidence]:
        return {}

    @functools.cached_property
    def _uncounted(self) -> dict[str, int]:
        return {}

    @functools.cached_property
    def parameters(self) -> list[tuple[Any, Framework]]:
        return []

    @functools.cached_property
    def inside(self) -> set[int]:
        return set()

    def tensor(self, tensor: Any, reduction: Any, framework: Framework) -> Any:
        """Record a tensor that may need a gradient; its reduction is unchanged."""
        if framework.wanted(self.call, tensor) and not (
            self._is_kept(tensor, framework) or self._is_remade(tensor, framework)
        ):
            self._ship(checks.crossing("tensor"), tensor, framework)
            self._offer(tensor, framework)
        return reduction

    def _is_remade(self, tensor: Any, framework: Framework) -> bool:
        """Whether `tensor` is only kept by a module whose next forward pass recomputes it."""
        if framework.history(tensor) is None:
            return False
        if self._remade is None:
            self._remade = framework.remade(roots_of(self.items))
        return id(tensor) in self._remade

    def _is_kept(self, tensor: Any, framework: Framework) -> bool:
        """Whether `tensor` is only kept by an object, as an estimator keeps its last loss."""
        if not framework.spent(tensor):
            return False
        roots = roots_of(self.items)
        if self._handed is None:
            self._handed = framework.find(roots, deep=False)
        if id(tensor) in self._handed:
            return False
        if self._kept is None:
            self._kept = {
                identity
                for identity, path in framework.find(roots).items()
                if not any(mark in path for mark in locate.CAPTURES)
            }
        return id(tensor) in self._kept

    def parameter(self, parameter: Any, framework: Framework) -> None:
        """Record a parameter that requires grad, or a variable that is trained."""
        self._ship(checks.crossing("parameter"), parameter, framework)
        self._offer(parameter, framework)

    def ship_parameters(self) -> None:
        """Record the deferred parameters, now that samples are chosen by their count."""
        if "parameters" not in self.__dict__:
            return
        shipped = self.call.shipped
        code = checks.crossing("parameter")
        parameters = iter(self.__dict__.pop("parameters"))
        for parameter, framework in parameters:
            self._ship(code, parameter, framework)
            if code in self._uncounted:
                break
        more = 0
        known = self._evidence.get(code)
        identities: set[int] = set() if known is None else known.identities
        for parameter, framework in parameters:
            more += 1
            identities.add(id(parameter))
            if id(parameter) not in shipped and framework.backwards:
                shipped[id(parameter)] = (refer(parameter), "")
        if more:
            self._uncounted[code] += more

    def _offer(self, item: Any, framework: Framework) -> None:
        """Record an object that needs a gradient for each check that takes it."""
        for code, takes in checks.handlers("takes"):
            if takes(item, framework):
                self._ship(code, item, framework)

    def optimizer(self, optimizer: Any, reduction: Any, framework: Framework) -> Any:
        """Record an optimizer that arrives without its state."""
        self._ship(checks.crossing("optimizer"), optimizer, framework)
        return reduction

    def on_gpu(self, tensor: Any, reduction: Any, framework: Framework) -> Any:
        """Record a tensor or array on a GPU."""
        code = checks.crossing("gpu")
        if code in self._uncounted:
            self._uncounted[code] += 1
        else:
            self._note(code, tensor, framework, for_gradient=False)
        return framework.on_its_way(reduction)

    def differentiated(self, tensor: Any, reduction: Any) -> Any:
        """Report a tensor that cannot be pickled, or send the worker what it lacks."""
        for hear in differentiated:
            reduction = hear(self.call, self.items, tensor, reduction)
        return reduction

    def _ship(self, code: str, item: Any, framework: Framework) -> None:
        if code in self._uncounted:
            self._uncounted[code] += 1
            path = ""
            if code in self._evidence:
                self._evidence[code].identities.add(id(item))
        else:
            path = self._note(code, item, framework)
        shipped = self.call.shipped
        if framework.backwards and id(item) not in shipped:
            shipped[id(item)] = (refer(item), path)

    def module(self, module: Any, reduction: Any) -> Any:
        """Attach its origin to a module that is not part of another."""
        if not isinstance(reduction, tuple):
            return reduction
        return shipped_modules.shipped(self.call.token, self.call.number_of(module), reduction)

    def ended(self) -> None:
        """Hand over the counts: the batch is pickled."""
        self.ship_parameters()
        if "_uncounted" not in self.__dict__:
            return
        for code, count in self._uncounted.items():
            if count and code in self._evidence:
                self._evidence[code].add_more(count)

    def _note(
        self, code: str, item: Any, framework: Framework, *, for_gradient: bool = True
    ) -> str:
        """Count `item`, describe it if a sample is still wanted, and return its path."""
        call = self.call
        history = None
        if for_gradient:
            call.ships_gradients = call.ships_gradients or framework.backwards
            history = framework.history(item)
        path = ""
        if code in call.dropped:
            full = True
        else:
            evidence = self._evidence.get(code) or self._open(code)
            if for_gradient:  # on a GPU, contents of an object are counted, too
                evidence.identities.add(id(item))
            searched = id(framework) in self._paths or not evidence.samples
            if evidence.wants_sample and (searched or call.may_search()):
                sample = self._sample(item, history, framework)
                path = sample.path
                evidence.add(sample)
                full = False
            else:
                evidence.add_more(1)
                full = True
        if history is not None:
            full = False
            if call.may_search():
                for leaf in framework.leaves(history):
                    call.remember_shipped(leaf, path)
        if full:
            self._uncounted[code] = 0
        return path

    def _open(self, code: str) -> TransferEvidence:
        evidence: TransferEvidence = checks.load(code).Evidence.of(self.call)
        self._evidence[code] = evidence
        return evidence

    def _sample(self, item: Any, history: Any, framework: Framework) -> Object:
        paths = self._paths.get(id(framework))
        if paths is None:
            paths = self._paths[id(framework)] = framework.find(roots_of(self.items))
        owner, rest = framework.met(item)
        index, _, path = paths.get(id(owner), "0|args").partition("|")
        path = path.lstrip(".") + rest
        function = self.items[int(index)][0]
        return Object(
            path=path,
            task=task_of(function),
            parameter=parameter_of(function, path),
            description=framework.describe(item),
            history=None if history is None else type(history).__name__,
            plain=True,
        )
