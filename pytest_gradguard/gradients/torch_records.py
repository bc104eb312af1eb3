"""The log's records of one call site: backward passes, cuts, steps, changes."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from pytest_gradguard.gradients.flow import Chain
from pytest_gradguard.gradients.recording import Record
from pytest_gradguard.gradients.torch_exits import Exit
from pytest_gradguard.runtime.kernel.callsite import Site
from pytest_gradguard.runtime.kernel.references import Reference

_ORIGINALS = 100
"""Tensors read at one call site whose memory is compared."""
FROZEN = "requires_grad_(False)"
WRITTEN = "written"
SCRIPTED = "TorchScript"
DISTRIBUTED = "torch.distributed.autograd.backward"


def _among(references: dict[int, Reference], tensor: Any) -> bool:
    """Whether `references`, keyed by tensor ids, hold `tensor`."""
    reference = references.get(id(tensor))
    return reference is not None and reference() is tensor


@dataclass
class Backward(Record):
    """The backward passes at one call site.

    Attributes:
        restricted: only some gradients were requested (`inputs=`).
        first_order: its gradients have a graph: another loss is computed from them.
        found: by the id of each leaf, the last event in which a search found it.
        transform: a transform of `torch.func` ran it, which differentiates its arguments.
    """

    verb: str = "backward"
    walked: int = 0
    restricted: bool = False
    first_order: bool = False
    transform: bool = False
    complete: bool = True
    leaves: dict[int, Reference] = field(default_factory=dict)
    found: dict[int, int] = field(default_factory=dict)
    users: dict[int, tuple[str, ...]] = field(default_factory=dict)
    passed: set[int] = field(default_factory=set)
    severed: list[Any] = field(default_factory=list)

    @property
    def asked_for_all(self) -> bool:
        """Whether gradients of all leaves were requested."""
        return self.verb == "backward" and not self.restricted

    def reached(self, tensor: Any, since: int = 0) -> bool:
        """Whether a search found `tensor`, a leaf after the event `since`, in a loss's graph."""
        if _among(self.leaves, tensor):
            return self.found[id(tensor)] > since
        return id(tensor) in self.passed


@dataclass
class Cut(Record):
    """Values taken out of a graph at one call site, in one way.

    Attributes:
        exit: the operation; None if the program itself disabled gradients.
        confirmed: ids of leaves whose loss was observed to be computed through here.
        behind: by the id of each output, the ids of the leaves behind it.
    """

    how: str = ""
    exit: Exit | None = None
    confirmed: set[int] = field(default_factory=set)
    mode: str = ""
    entered: Site | None = None
    walked: int = 0
    partial: bool = False
    leaves: dict[int, Reference] = field(default_factory=dict)
    itself: dict[int, Reference] = field(default_factory=dict)
    made: dict[int, Reference] = field(default_factory=dict)
    behind: dict[int, frozenset[int]] = field(default_factory=dict)

    def severed(self, tensor: Any) -> bool:
        """Whether a value computed from `tensor` was taken out here."""
        return _among(self.leaves, tensor) or _among(self.itself, tensor)

    def produced(self, tensor: Any) -> bool:
        """Whether `tensor` is an output."""
        return _among(self.made, tensor)

    def original_of(self, made: Any) -> Any:
        """The tensor that shares its memory with the output `made`."""
        for reference in islice(reversed(self.itself.values()), _ORIGINALS):
            original = reference()
            if original is not None and original.data_ptr() == made.data_ptr():
                return original
        return None


@dataclass
class Step(Record):
    """Optimizer steps at one call site."""

    parameters: dict[int, Reference] = field(default_factory=dict)

    def covers(self, tensor: Any) -> bool:
        """Whether an optimizer that stepped here updates `tensor`."""
        return _among(self.parameters, tensor)


@dataclass
class Change(Record):
    """Tensors that were frozen, replaced, written or cleared at one call site."""

    how: str = ""
    tensors: dict[int, Reference] = field(default_factory=dict)

    def concerns(self, tensor: Any) -> bool:
        """Whether `tensor` was changed here."""
        return _among(self.tensors, tensor)


@dataclass
class Failure:
    """The last backward pass that raised.

    Attributes:
        chain: its call sites, if the loss had no graph; otherwise empty.
    """

    when: int
    error: str
    site: Site | None
    chain: Chain
