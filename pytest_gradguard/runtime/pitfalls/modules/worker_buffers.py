"""GG111, GG114: state left in workers, confirmed by the parent's use of the module.

A worker reports which buffers of which module have changed there without going back. From then on,
until the loss is certain or the program has written these buffers itself, steps, evaluation and
saving of that module are watched. A step alone does not certainly do harm, because the program may
still write the buffers before it evaluates; so that finding holds only while the old values do.
Parameters trained in a worker are not lost if the parent trains or copies the module itself: the
worker's copy was then a trial.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from pytest_gradguard.runtime.frameworks.torch import modules as torch_modules
from pytest_gradguard.runtime.frameworks.torch import steps
from pytest_gradguard.runtime.frameworks.torch.copies import sample
from pytest_gradguard.runtime.kernel import calls, callsite, collector, locate, watching
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.evidence import Evidence
from pytest_gradguard.runtime.kernel.faults import (
    attempt,
    fault,
    freed,
)
from pytest_gradguard.runtime.kernel.observing import caller, observe
from pytest_gradguard.runtime.kernel.patching import Patches
from pytest_gradguard.runtime.kernel.references import Reference, refer
from pytest_gradguard.runtime.pitfalls.modules import gg111, gg114
from pytest_gradguard.runtime.pitfalls.modules.buffers import (
    kept_by,
    parameters_of,
    same,
    state_of,
    text_of,
)
from pytest_gradguard.runtime.pitfalls.modules.gg111 import KeptBuffers, Use


class _Lost:
    """A module of this process whose buffers changed in a worker and did not come back."""

    def __init__(self, kept: KeptBuffers, module: Any, kind: type[gg111.Evidence]) -> None:
        self.kept = kept
        self.kind = kind
        self.number = id(module)
        self._module = weakref.ref(module, freed(self._freed))
        held = {name: (owner, one) for name, owner, one in _state(module) if name in kept.names}
        self._samples = {name: (refer(one), sample(one)) for name, (_, one) in held.items()}
        self._versions = {name: (id(one), one._version) for name, (_, one) in held.items()}
        self._parameters = parameters_of(module)
        self._owners: list[Reference] = [refer(owner) for owner, _ in held.values()]
        self._was_stale: bool | None = None

    @property
    def module(self) -> Any:
        """The module, or None if it no longer exists."""
        return self._module()

    def _freed(self) -> None:
        if self._was_stale is not None:
            return
        # Its buffers live a little longer, unless the garbage collector has freed all at once.
        values = [(reference(), known) for reference, known in self._samples.values()]
        self._was_stale = all(
            one is None or known is None or same(sample(one), known) for one, known in values
        )

    def is_stale(self) -> bool:
        """Whether the module still has the old values in these buffers."""
        if self._was_stale is not None:
            return self._was_stale
        module = self.module
        if module is None:
            return True
        now = {name: one for name, _, one in _state(module)}
        return not self._is_reset(module, now) and all(
            name in now and same(sample(now[name]), known)
            for name, (_, known) in self._samples.items()
        )

    def _is_reset(self, module: Any, now: dict[str, Any]) -> bool:
        """Whether the program has reset the module, including its buffers."""
        written = all(
            name in now and (id(now[name]), now[name]._version) != known
            for name, known in self._versions.items()
        )
        if not written:
            return False
        parameters = parameters_of(module)
        return all(same(one, parameters.get(name)) for name, one in self._parameters.items())

    def settle(self, *, stale: bool | None = None) -> None:
        """Record whether the module has the old values; later changes do not count.

        Args:
            stale: whether the module has the old values; None: as it is now.
        """
        self._was_stale = self.is_stale() if stale is None else stale

    def is_in(self, module: Any) -> bool:
        """Whether `module` holds any of the modules of these buffers."""
        owners = {id(owner()) for owner in self._owners}
        return any(id(one) in owners for one in module.modules())

    def is_evaluated_by(self, module: Any) -> bool:
        """Whether a call of `module` evaluates these; in training mode, only parameters count."""
        return (self.is_trained or not module.training) and self.is_in(module)

    @property
    def is_trained(self) -> bool:
        """Whether they are parameters that a worker has trained."""
        return self.kind is gg114.Evidence


def _state(module: Any) -> Iterator[tuple[str, Any, Any]]:
    """The buffers and parameters of `module`: paths, owning modules and tensors."""
    yield from kept_by(module)
    for path, owner in module.named_modules():
        for name, one in owner._parameters.items():
            if one is not None:
                yield (f"{path}.{name}" if path else name), owner, one


_waiting: dict[_Lost, Call] = {}
"""The lost modules with their calls: a finding about one keeps no call alive."""
_forward: list[Any] = []


def remember(call: Call, notes: Iterable[KeptBuffers], kind: type[gg111.Evidence]) -> None:
    """Record what a worker of `call` has kept, as evidence of that `kind`."""
    if kind.code in call.dropped:
        return
    for kept in notes:
        sent_by = calls.by_token(kept.token)
        module = None if sent_by is None else sent_by.module_of(kept.number)
        if not kept.names:
            _forget_returned(module, kind)
            continue
        known = any(
            of is call and one.kind is kind and one.module is module for one, of in _waiting.items()
        )
        if module is not None and not known and _is_what_was_sent(module, kept):
            _waiting[_Lost(kept, module, kind)] = call
    if _waiting:
        _listen()


def _forget_returned(module: Any, kind: type[gg111.Evidence]) -> None:
    """Forget what workers kept of `module`: a later task has returned it."""
    for lost in list(_waiting):
        if lost.kind is kind and lost.module is module:
            lost.settle(stale=False)
            del _waiting[lost]


def _is_what_was_sent(module: Any, kept: KeptBuffers) -> bool:
    """Whether `module` still has the values that its copy came to the worker with."""
    now = {name: state_of(owner, one) for name, owner, one in kept_by(module)}
    now.update(parameters_of(module))
    return all(text_of(now.get(name)) == text for name, text in kept.values.items())


def _listen() -> None:
    _patches.apply()
    steps.after.subscribe(_stepped)
    torch_modules.copied.subscribe(_copied)
    waiting = [(one, one.module) for one in _waiting]
    if not _forward and any(
        module is not None and (one.is_trained or not module.training) for one, module in waiting
    ):
        hook = torch.nn.modules.module.register_module_forward_pre_hook(_called)
        _forward.append(hook)


def undo() -> None:
    """Stop watching the program's modules."""
    while _waiting:
        _waiting.popitem()[0].settle()
    _stop_watching()


def _stop_watching() -> None:
    _patches.undo()
    torch_modules.copied.unsubscribe(_copied)
    steps.after.unsubscribe(_stepped)
    while _forward:
        _forward.pop().remove()


watching.at_end(undo)


# -- what the program does -----------------------------------------------------------------------


def _stepped(optimizer: Any) -> None:
    held = set(map(id, steps.parameters_of(optimizer)))

    def is_stepped(lost: _Lost, module: Any) -> bool:
        stepped = any(id(one) in held for one in module.parameters())
        return stepped and not lost.is_trained  # the parent trains it itself, from its own values

    _used(Use.STEPS, is_stepped)


def _evaluates(result: Any, module: Any, mode: Any = True) -> None:
    if not mode and _by_the_program(caller()):
        _used(Use.EVALUATES, lambda lost, _: lost.is_in(module))


def _by_the_program(frame: Any) -> bool:
    """Whether the program calls, and not the method itself for a submodule."""
    own = torch.nn.Module.eval.__code__.co_filename
    if frame.f_code.co_name == "eval" and frame.f_code.co_filename == own:
        frame = frame.f_back
    return frame is None or (frame.f_code.co_name, frame.f_code.co_filename) != ("train", own)


def _called(module: Any, args: Any) -> None:
    use = Use.CALLS if module.training else Use.EVALUATES
    attempt(_used, use, lambda lost, _: lost.is_evaluated_by(module))


def _saves(obj: Any, *args: Any, **kwargs: Any) -> None:
    _used(Use.SAVES, functools.partial(_holds, obj))


def _holds(item: Any, lost: _Lost, module: Any) -> bool:
    """Whether `item` holds these buffers of `module`, as a module or as its state."""
    memory = {
        one.untyped_storage().data_ptr()
        for name, _, one in _state(module)
        if name in lost.kept.names
    }

    def is_buffer(one: Any) -> bool:
        return isinstance(one, torch.Tensor) and one.untyped_storage().data_ptr() in memory

    return bool(locate.find([("", item)], is_buffer))


def _reads(module: Any, *args: Any, **kwargs: Any) -> None:
    if not args and not {"destination", "prefix"} & kwargs.keys():
        _used(Use.COPIES, lambda lost, _: not lost.is_trained and lost.is_in(module))


def _copied(module: Any) -> None:
    _used(Use.COPIES, lambda lost, copied: not lost.is_trained and copied is module)


_patches = Patches(
    [
        observe(torch.nn.Module, "train", after=_evaluates),
        observe(torch.nn.Module, "state_dict", before=_reads),
        observe(torch, "save", before=_saves),
    ]
)


# -- what that means -------------------------------------------------------------------------------

_CERTAIN = frozenset({Use.EVALUATES, Use.SAVES})
"""After these uses, new values come too late."""


def _used(use: Use, concerned: Callable[[_Lost, Any], bool]) -> None:
    certain: list[tuple[collector.Collector, Evidence]] = []
    try:
        for lost, call in list(_waiting.items()):
            module = lost.module  # keeps it alive
            if module is None:
                del _waiting[lost]
            elif concerned(lost, module):
                if not lost.is_stale():
                    lost.settle()
                    del _waiting[lost]
                    continue
                evidence = _note(call, lost, use)
                if use in _CERTAIN:
                    del _waiting[lost]
                    if evidence is not None:
                        certain.append((call.collector, evidence))
        if not _waiting:
            _stop_watching()
    except Exception as error:
        fault(error)
    for home, one in certain:
        collector.announce(home, [one])


def _note(call: Call, lost: _Lost, use: Use) -> gg111.Evidence | None:
    """The evidence of one more use of a module with old buffers; None if allowed here."""
    if lost.kind.code in collector.allowed_now():
        return None
    evidence = lost.kind.of(call, about=(lost.kept.task, lost.kept.path))
    if evidence is None:
        return None
    if call.starts:
        evidence.case = "process"
    evidence.describe(lost.kept, use, callsite.user_site())
    evidence.certain = evidence.certain or use in _CERTAIN
    if lost.is_stale not in evidence.stale:
        evidence.stale.append(lost.is_stale)
        evidence.count += 1
    return evidence
