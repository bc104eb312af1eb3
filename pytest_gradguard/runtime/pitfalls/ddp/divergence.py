"""GG505, GG506: each rank records its parameters after some steps, and compares others' records.

No rank waits: the last rank to record a step sees the notes of all. Compared are the parameters of
DDP modules, and those whose gradients the program averages itself.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from pytest_gradguard.platforms import HERE
from pytest_gradguard.runtime.frameworks.torch import steps, tensors
from pytest_gradguard.runtime.kernel import callsite, collector, watching
from pytest_gradguard.runtime.kernel.state import GuardState, dropped_at_end
from pytest_gradguard.runtime.pitfalls.ddp import by_hand, gg502, gg505, gg506, notes, sketches
from pytest_gradguard.runtime.pitfalls.ddp.followed import (
    BEGIN,
    END,
    FIRST,
    Comparison,
    Followed,
    is_sampled,
)
from pytest_gradguard.runtime.pitfalls.ddp.reduced import Reduced

_MANY = 64
"""How many sets of parameters are compared in one process."""
_HOOKS = "torch.distributed.algorithms.ddp_comm_hooks."
_MEANT_TO_DIFFER = (f"{_HOOKS}post_localSGD_hook", f"{_HOOKS}debugging_hooks")


class _Module:
    """A DDP module.

    Args:
        module: the module.
        number: how many were wrapped before it in its group; None: the guard was off.

    Attributes:
        local: the program may step with gradients of its own, and average parameters later.
        sets: how many sets of its parameters are compared.
    """

    def __init__(self, module: Any, number: int | None) -> None:
        self._reference = weakref.ref(module)
        self.number = number
        self.local = False
        self.sets = 0

    @property
    def module(self) -> Any:
        """The module, while it lives."""
        return self._reference()

    def is_compared(self) -> bool:
        """Whether its parameters are to be equal on all ranks."""
        hooks = [one[0] for one in getattr(self.module, "_comm_hooks", ())]
        self.local = self.local or bool(hooks)
        names = [getattr(one, "__module__", None) or "" for one in hooks]
        return not any(name.startswith(_MEANT_TO_DIFFER) for name in names)

    def parameters(self) -> Iterator[tuple[str, Any]]:
        """The parameters whose gradients it is to average, with their names."""
        module = self.module
        for name, one in module.module.named_parameters():
            if one.requires_grad and name not in module.parameters_to_ignore:
                yield name, one


class _Optimizer:
    """What is compared after the steps of one optimizer.

    Attributes:
        groups: its number of parameter groups.
        looks: how many more steps are searched for gradients that the program averages.
        sets: the compared parameters.
    """

    def __init__(self) -> None:
        self.groups = -1
        self.looks = FIRST
        self.sets: list[_Set] = []


class _Set(Followed):
    """A set of parameters, and what was found of it.

    Attributes:
        owner: the DDP module that they belong to; None: the program averages their gradients.
        began_apart: they differed before the first step.
        found: the reported evidence.
    """

    def __init__(
        self,
        parameters: Mapping[str, Any],
        ranks: Sequence[int],
        about: object,
        owner: _Module | None,
    ) -> None:
        super().__init__(parameters, ranks, about)
        self.owner = owner
        self.site: callsite.Site | None = None
        self.memory: str | None = None
        self.began_apart = False
        self.found: gg505.Evidence | None = None
        self.averaged_later = False
        self._collectives = (0, 0)

    def header(self) -> dict[str, Any]:
        """What other ranks need in addition to the parameters."""
        module = None if self.owner is None else self.owner.module
        rounds = by_hand.count()
        if module is not None:
            rounds += int(module._get_ddp_logging_data().get("iteration", 0))
        return {
            "steps": self.steps,
            "rounds": rounds,
            "memory": self.memory,
            "causes": [list(one) for one in gg502.causes(module)],
        }

    def differs(self, evidence: gg505.Evidence) -> None:
        """Record that a difference is reported."""
        self.found = evidence
        self._collectives = by_hand.count(), by_hand.written()

    def look(self) -> None:
        """Before a step, check whether a difference may have been averaged since."""
        if self.found is not None and by_hand.count() != self._collectives[0]:
            self.averaged_later = True

    @property
    def may_be_meant(self) -> bool:
        """Whether the program steps with local gradients, and averages parameters now and then."""
        local = self.owner is not None and self.owner.local
        return local and (self.averaged_later or by_hand.written() != self._collectives[1])


class _State(GuardState):
    """The parameters that the ranks of one process group compare; reset for a new group.

    Attributes:
        modules: the modules of DDP.
        optimizers: by the id of a live optimizer.
        sets: by subject.
        numbers: counters for modules and sets, equal on all ranks.
        reduced: the tensors passed to collectives.
        notes: the notes of this rank, if it can share them with others.
        session: distinguishes these notes from earlier ones, which may still exist.
    """

    def __init__(self) -> None:
        self.modules: list[_Module] = []
        self.optimizers: dict[int, _Optimizer] = {}
        self.sets: dict[str, _Set] = {}
        self.numbers: dict[object, Iterator[int]] = {}
        self.reduced = Reduced()
        self.notes: notes.Notes | None = None
        self.session = 0


_state = dropped_at_end(_State(), in_child=True)
forget = _state.clear
_sessions = itertools.count(1)


# -- what is compared ----------------------------------------------------------------------------


def wrapped(module: Any, *, under_guard: bool) -> None:
    """Record a DDP module that was created, while the guard was on or before."""
    ranks = tuple(torch.distributed.get_process_group_ranks(module.process_group))
    if len(ranks) > 1:
        number = next(_state.numbers.setdefault(ranks, itertools.count())) if under_guard else None
        _state.modules.append(_Module(module, number))
        steps.after.unsubscribe(_stepped)  # to run after GG502, which may be a cause
        steps.after.subscribe(_stepped)


def pauses(module: Any) -> None:
    """Record that the program uses `no_sync`."""
    for known in _state.modules:
        if known.module is module:
            known.local = True


def _look_at(optimizer: Any, known: _Optimizer) -> None:
    """Find the parameters of `optimizer` to compare."""
    held = {id(one): one for one in steps.parameters_of(optimizer) if one.requires_grad}
    if known.groups != len(optimizer.param_groups):
        known.groups = len(optimizer.param_groups)
        known.sets = []
    for one in known.sets:
        for parameter in one.parameters():
            held.pop(id(parameter), None)
    if not known.sets:
        for module in _state.modules:
            if module.module is not None:
                _look_at_module(module, held, known)
    known.looks = known.looks - 1 if held and known.looks else 0
    if held:
        for ranks, parameters in _state.reduced.find(list(held.values())):
            known.looks = 0
            number = next(_state.numbers.setdefault(("by hand", ranks), itertools.count()))
            _follow(known, _Set(parameters, ranks, [_state.session, "by hand", number], None))


def _look_at_module(module: _Module, held: dict[int, Any], known: _Optimizer) -> None:
    mine = [each for each in module.parameters() if held.pop(id(each[1]), None) is not None]
    own = {name: one for name, one in mine if sketches.is_comparable(one)}
    if own and module.is_compared():
        ranks = torch.distributed.get_process_group_ranks(module.module.process_group)
        _follow(known, _Set(own, ranks, [_state.session, module.number, module.sets], module))
        module.sets += 1


def _follow(known: _Optimizer, one: _Set) -> None:
    home = collector.innermost()
    if home is None or len(_state.sets) >= _MANY or _state.notes is None:
        return
    same = _state.sets.setdefault(one.subject, one)
    if same is not one:  # indistinguishable for other ranks
        same.stop()
        return
    known.sets.append(one)
    home.ask_first(_compare_all)
    one.memory = _shared_memory(one.parameters()[0])
    _note(one, BEGIN)


def _shared_memory(parameter: Any) -> str | None:
    """Identifies the shared memory of `parameter`, equally in each process; None if not shared."""
    if parameter.device.type != "cpu" or not tensors.in_shared_memory(parameter):
        return None
    place = parameter.data_ptr()
    for it in HERE.mappings():
        if it.start <= place < it.end:
            return f"{it.device}:{it.inode}+{place - it.start + it.offset}"
    return None


# -- steps ---------------------------------------------------------------------------------------


def _stepping(optimizer: Any) -> None:
    known = _state.optimizers.get(id(optimizer))
    if known is None:
        known = _state.optimizers[id(optimizer)] = _Optimizer()
        weakref.finalize(optimizer, _state.optimizers.pop, id(optimizer), None).atexit = False
    if known.looks or known.groups != len(optimizer.param_groups):
        _look_at(optimizer, known)
    for one in known.sets:
        if one.found is not None:
            one.look()


def _stepped(optimizer: Any) -> None:
    _state.reduced.stepped()
    known = _state.optimizers.get(id(optimizer))
    for one in () if known is None else known.sets:
        one.stepped()
        if is_sampled(one.steps):
            one.site = callsite.user_site()
            _note(one, one.steps)


def _note(one: _Set, step: int) -> None:
    if _state.notes is not None:
        one.note(_state.notes, step, one.header())
        _compare(one)


def _compare_all() -> None:
    for one in list(_state.sets.values()):
        _compare(one)


def _compare(one: _Set) -> None:
    for seen in () if _state.notes is None else one.compare(_state.notes):
        header = seen.note.header
        if one.memory is not None and header.get("memory") == one.memory:
            if seen.step != BEGIN and one.owner is not None:
                _report_shared(one, seen)
        elif seen.step == BEGIN:
            one.began_apart = one.began_apart or bool(seen.differences)
        elif one.found is not None:
            one.found.explain(_causes(one, seen))
        elif seen.differences:
            _report(one, seen)


# -- what is found -------------------------------------------------------------------------------


def _backend() -> str:
    distributed = torch.distributed
    return str(distributed.get_backend()) if distributed.is_initialized() else "none"


def _report_shared(one: _Set, seen: Comparison) -> None:
    home = collector.innermost()
    if home is None or gg506.CODE in home.ignore | collector.allowed_now():
        return
    site = one.site

    def make() -> gg506.Evidence:
        return gg506.Evidence(site, _backend(), one.names, (seen.rank, seen.note.rank))

    evidence = home.evidence((gg506.CODE, site and site.key), make)
    if not evidence.count:
        evidence.count = 1
        collector.announce(home, [evidence])


def _report(one: _Set, seen: Comparison) -> None:
    home = collector.innermost()
    if home is None or gg505.CODE in home.ignore | collector.allowed_now():
        return
    site, most = one.site, max(seen.differences, key=lambda each: each.size)
    named = [one.names[each.which] for each in (most, *seen.differences)]
    ranks = (seen.rank, seen.note.rank)
    step = one.steps if seen.step == END else seen.step

    def make() -> gg505.Evidence:
        return gg505.Evidence(
            site,
            _backend(),
            list(dict.fromkeys(named)),
            len(one.names),
            most,
            ranks,
            step,
            seen.equal_at,
            lambda: not one.may_be_meant,
        )

    evidence = home.evidence((gg505.CODE, one.subject), make)
    assert isinstance(evidence, gg505.Evidence)
    evidence.explain(_causes(one, seen))
    evidence.count = 1
    one.differs(evidence)
    if one.owner is None or not one.owner.local:
        collector.announce(home, [evidence])


def _causes(one: _Set, seen: Comparison) -> Iterable[gg505.Cause]:
    """The reasons for the difference that this rank and the other one recorded."""
    mine, other = seen.header, seen.note.header
    for cause in (*mine["causes"], *_plain_causes(other)):
        yield gg505.Cause(*cause)
    if one.began_apart:
        yield gg505.began_apart(one.owner is not None)
    ranks = (seen.rank, seen.note.rank)
    name = "steps" if seen.step == END else "rounds"
    counts = mine[name], other.get(name)
    if all(type(each) is int for each in counts) and counts[0] != counts[1]:
        fewer = min(counts) if name == "steps" else max(counts)
        late = counts.index(fewer)
        yield gg505.skipped(ranks[late], ranks[1 - late])


def _plain_causes(header: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """The causes that another rank has noted, if well-formed."""
    causes = header.get("causes")
    for one in causes if isinstance(causes, list) else ():
        if isinstance(one, list) and len(one) == 3 and all(isinstance(text, str) for text in one):
            yield one[0], one[1], one[2]


# -- on and off ----------------------------------------------------------------------------------


def apply() -> None:
    """Compare parameters with other ranks from now on."""
    if _state.notes is None:
        _state.session = next(_sessions)
        _state.notes = notes.of_this_rank()
    steps.before.subscribe(_stepping)
    steps.after.subscribe(_stepped)
    by_hand.listeners.subscribe(_record_inputs)


def _record_inputs(name: str, group: Any, given: list[Any]) -> None:
    _state.reduced.record(name, group, given)


def leaving() -> None:
    """Note the parameters a last time: this process leaves its group, or ends."""
    for one in list(_state.sets.values()):
        if one.is_untouched:
            _note(one, END)
        else:
            _compare(one)
    if _state.notes is not None:
        _state.notes.end()
        _state.notes = None


watching.before_end(leaving)
