"""A parallel call around which tapes record: what its tasks get and read."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python import pywrap_tfe

from pytest_gradguard.runtime.frameworks.tensorflow import tensors
from pytest_gradguard.runtime.kernel import losses
from pytest_gradguard.runtime.kernel.callsite import Site
from pytest_gradguard.runtime.kernel.collector import Collector
from pytest_gradguard.runtime.kernel.evidence import Object
from pytest_gradguard.runtime.pitfalls.tapes import gg105, own, values
from pytest_gradguard.runtime.pitfalls.tapes.inside import key_of, number_of
from pytest_gradguard.runtime.pitfalls.tapes.notes import Behind, Key
from pytest_gradguard.runtime.pitfalls.tapes.own import Identity


def watches(recorder: Any, candidates: list[Any]) -> bool:
    """Whether a tape or forward accumulator of the user watches one of these tensors."""
    if isinstance(recorder, tf.autodiff.ForwardAccumulator):
        handle = recorder._accumulator
        return any(
            pywrap_tfe.TFE_Py_ForwardAccumulatorJVP(handle, one) is not None for one in candidates
        )
    tape = recorder._tape
    return tape is not None and own.seen_by(tape._tape, candidates)


class Given(NamedTuple):
    """A watched tensor that tasks get, and its path there."""

    identity: Identity
    reference: weakref.ref[Any]
    path: str


class MissingGradients(NamedTuple):
    """A request for gradients, and the variables without: by reference, id, key and name."""

    site: Site | None
    verb: str
    variables: list[tuple[weakref.ref[Any], int, Key, str]]


class TapedCall:
    """One parallel call, and the tapes that record around it.

    Attributes:
        recorders: weak references to the tapes.
        variables: the trainable variables that its tasks could reach, with their paths, by id.
        tensors: the watched tensors that they get, by number.
        frozen: variables that their models do not train, by id.
        read: ids of variables that they have read, except frozen ones.
        waiting: objects that the tasks get, to be reported once variables in them are read.
        searched: the module globals that its functions reach were searched.
        looks: how many more batches are searched for all that they could reach.
        reports_late: reports on its tasks come separately from their results, and later.
        behind: then, the sources that any of the results depend on.
        missing_gradients: then, the variables that got no gradient.
        evidence: what was reported of it, and to whom (`home`).
    """

    def __init__(self, recorders: list[Any]) -> None:
        self.recorders = [weakref.ref(recorder) for recorder in recorders]
        self.variables: dict[int, tuple[weakref.ref[Any], str]] = {}
        self.tensors: dict[int, Given] = {}
        self.frozen: dict[int, weakref.ref[Any]] = {}
        self.read: set[int] = set()
        self.waiting: dict[int, tuple[set[int], Object]] = {}
        self.searched = False
        self.looks = 8
        self.reports_late = False
        self.behind: Behind = {}
        self.missing_gradients: list[MissingGradients] = []
        self.evidence: gg105.Evidence | None = None
        self.home: Collector | None = None

    def watched(self, tensor: Any) -> bool:
        """Whether a tape that records around the call watches `tensor`."""
        return any(watches(one, [tensor]) for ref in self.recorders if (one := ref()) is not None)

    def remember(self, value: values.Value) -> None:
        """Remember, weakly, a watched tensor that a task gets."""
        tensor = value.item
        if number_of(tensor) not in self.tensors:
            given = Given(Identity(tensor), weakref.ref(tensor), value.path)
            self.tensors[number_of(tensor)] = given

    def remember_variables(self, value: values.Value) -> set[int]:
        """Remember, weakly, the trainable variables in what a task gets; their ids."""
        found = set()
        for path, variable in values.trainables_of(value):
            found.add(id(variable))
            self._remember(variable, path)
        self.frozen.update((id(one), weakref.ref(one)) for one in values.frozen_in(value))
        return found

    def _remember(self, variable: Any, path: str) -> None:
        known = self.variables.get(id(variable))
        if known is None or known[0]() is not variable:
            self.variables[id(variable)] = (weakref.ref(variable), path)

    def were_read(self, read: Iterable[Any]) -> bool:
        """Record what tasks have read: variables, or their ids or keys.

        Returns:
            Whether any of these may be trained.
        """
        trained = False
        for one in read:
            if tensors.is_variable(one):
                if not self._is_frozen(one):
                    self._remember(one, name_of(one))
                    self.read.add(id(one))
                    trained = True
            elif isinstance(one, int):
                self.read.add(one)
                trained = True
            else:
                fits = {id(v) for v in self._known() if key_of(v) == one}
                self.read |= fits
                frozen = (reference() for reference in self.frozen.values())
                trained |= bool(fits) or one not in {key_of(v) for v in frozen if v is not None}
        return trained

    def _known(self) -> list[Any]:
        references = [reference for reference, _ in list(self.variables.values())]
        return [one for reference in references if (one := reference()) is not None]

    def _is_frozen(self, variable: Any) -> bool:
        known = self.frozen.get(id(variable))
        return known is not None and known() is variable

    def settle(self) -> bool:
        """Confirm the gradients lost in results of workers that reported separately.

        Returns:
            Whether there are any.
        """
        found = False
        for site, verb, variables in self.missing_gradients:
            lost = [
                (reference(), name)
                for reference, one, key, name in variables
                if one in self.behind or key in self.behind
            ]
            found = bool(lost and self.confirm(site, verb, lost, [])) or found
        return found

    def confirm(
        self, site: Site | None, verb: str, lost: list[tuple[Any, str]], partial: list[str]
    ) -> bool:
        """Report that sources lack their gradient, or a part of it; False if nobody listens.

        Args:
            site: where the gradients were requested.
            verb: the method.
            lost: the sources without a gradient, and their names; None for a freed one.
            partial: the names of sources that got a part of it.
        """
        if self.evidence is None or self.home is None:
            return False
        self.evidence.confirm(site, verb, [name for _, name in lost], partial)
        live = (source for source, _ in lost if source is not None)
        losses.record(live, self.evidence, self.home, site)
        return True

    def reachable(self) -> list[Any]:
        """The live variables and tensors that its tasks could reach."""
        given = [one.reference() for one in list(self.tensors.values())]
        return [*self._known(), *(one for one in given if one is not None)]

    def path_of(self, source: Any) -> str:
        """The path by which the tasks got a source, or its name."""
        if tensors.is_tensor(source):
            given = self.tensors.get(number_of(source))
            return name_of(source) if given is None else given.path
        known = self.variables.get(id(source))
        return name_of(source) if known is None or known[0]() is not source else known[1]


def ids_in(value: values.Value) -> tuple[int, ...]:
    """The ids of the trainable variables in a task's argument."""
    return tuple(id(variable) for _, variable in values.trainables_of(value))


def name_of(source: Any) -> str:
    """The name of a source that the tasks did not get directly."""
    return str(source.name).partition(":")[0] if tensors.is_variable(source) else "a tensor"
