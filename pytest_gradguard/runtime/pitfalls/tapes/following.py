"""What the user's tapes compute from workers' results: which gradients lack a part.

A *shadow*, a tape of ours, records alongside each tape of the user. It watches the same tensors,
and the results of workers. Once the user requests gradients, it shows through which results a part
of them would have come if the tasks had run in the calling thread.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import tensorflow as tf

from pytest_gradguard.runtime.frameworks.tensorflow import tapes as tensorflow_tapes
from pytest_gradguard.runtime.frameworks.tensorflow import tensors
from pytest_gradguard.runtime.kernel import callsite, collector
from pytest_gradguard.runtime.kernel.faults import fault, freed
from pytest_gradguard.runtime.kernel.state import dropped_at_end
from pytest_gradguard.runtime.pitfalls.tapes import own, values
from pytest_gradguard.runtime.pitfalls.tapes.inside import add, key_of, number_of
from pytest_gradguard.runtime.pitfalls.tapes.notes import Behind, Flow, Made, Source
from pytest_gradguard.runtime.pitfalls.tapes.own import Identity, OwnTape
from pytest_gradguard.runtime.pitfalls.tapes.taped_call import MissingGradients, TapedCall, watches

_EXACTLY = 50
"""For how many requests of one line without a loss our own gradients are computed."""


class _Result(NamedTuple):
    """A tensor from workers, which is not kept alive."""

    identity: Identity
    sources: Behind
    taped: TapedCall


class _Shadow:
    """Our tape alongside one of the user's, and the results that it follows."""

    def __init__(self, recorder: Any, forget: Any) -> None:
        self.recorder = weakref.ref(recorder, forget)
        self._follows: Any = None
        self.tape: OwnTape
        self.push(recorder)

    def push(self, recorder: Any) -> None:
        """The user's tape starts to record (again)."""
        handle = _handle_of(recorder)
        if self._follows is not handle:  # also after a reset, which forgets everything
            if self._follows is not None:
                self.tape.pop()
            self._follows = handle
            self.results: list[_Result] = []
            self.taped_calls: list[TapedCall] = []
            self.kept: list[Any] = []
            self.tape = OwnTape(automatic=getattr(recorder, "_watch_accessed_variables", False))
        self.tape.push()

    def watch(self, taped: TapedCall, made: list[Made]) -> None:
        """Follow what is computed from these tensors; in any thread."""
        self.results += [_Result(Identity(one.tensor), one.sources, taped) for one in made]
        self.tape.watch([one.tensor for one in made])

    def behind(
        self, targets: list[Any], upstream: Any = None, exact: bool = True
    ) -> list[tuple[_Result, Flow]]:
        """The results that `targets` depend on, and the gradient that would reach each."""
        results = list(self.results)  # other threads may add to them
        if not results or not self.tape.sees(targets):
            return []
        if not exact or not all(hasattr(one, "numpy") for one in targets):
            return [(one, Flow.SOME) for one in results]  # in a graph, nothing can be computed
        flows = self.tape.flows(targets, [one.identity for one in results], upstream)
        return [(one, flow) for one, flow in zip(results, flows, strict=True) if flow]

    def expanded(self, missing: Behind, sources: list[Any]) -> Behind:
        """`missing`, extended by the `sources` that shipped tensors depend on."""
        found: Behind = {}
        waiting = list(missing.items())
        while waiting:
            source, flow = waiting.pop()
            if found.get(source, Flow.NONE) >= flow:
                continue
            found[source] = flow
            if isinstance(source, int) and source <= 0:
                waiting += [
                    (one, min(flow, more)) for one, more in self._before(source, sources).items()
                ]
        return found

    def _before(self, number: int, sources: list[Any]) -> Behind:
        """The `sources` that the shipped tensor of that number depends on, also through results."""
        found: Behind = {}
        for result in list(self.results):
            if result.identity._id == -number:
                add(found, result.sources)
        given = next((g for one in self.taped_calls if (g := one.tensors.get(number))), None)
        if given is None or found:
            return found
        others = [one for one in sources if _source_of(one) != number]
        results = list(self.results)
        asked = [_handle_or_self(one) for one in others] + [one.identity for one in results]
        flows = self.tape.flows([given.identity], asked)
        found = dict(zip(map(_source_of, others), flows, strict=False))
        for result, flow in zip(results, flows[len(others) :], strict=True):
            add(found, result.sources, flow)
        return found


def _handle_of(recorder: Any) -> Any:
    return getattr(recorder, "_tape", None) or getattr(recorder, "_accumulator", None)


def _handle_or_self(source: Any) -> Any:
    return source.handle if tensors.is_variable(source) else source


def _source_of(item: Any) -> Source:
    return number_of(item) if tensors.is_tensor(item) else id(item)


class _Asked(NamedTuple):
    shadow: _Shadow
    recorder: Any
    verb: str
    targets: list[Any]
    sources: Any
    upstream: Any


class _Follower:
    """Follows the user's tapes from when they open."""

    def __init__(self) -> None:
        self._shadows: dict[int, _Shadow] = {}

    def follow_recorder(self, recorder: Any) -> _Shadow:
        """Follow what a tape records from now on, in the thread in which it records."""
        shadow = self.shadow_of(recorder)
        if shadow is None:
            own.listen(self)
            tensorflow_tapes.start(self)
            identity = id(recorder)
            shadow = _Shadow(recorder, freed(self._forget, identity))
            self._shadows[identity] = shadow
        return shadow

    def _forget(self, identity: int) -> None:
        shadow = self._shadows.get(identity)
        if shadow is not None and shadow.recorder() is None:
            del self._shadows[identity]
            shadow.tape.pop()

    def clear(self) -> None:
        """Stop following."""
        for shadow in list(self._shadows.values()):
            shadow.tape.pop()
        self._shadows.clear()

    def shadow_of(self, recorder: Any) -> _Shadow | None:
        """The shadow of a tape, if it has one."""
        shadow = self._shadows.get(id(recorder))
        return shadow if shadow is not None and shadow.recorder() is recorder else None

    # -- events --------------------------------------------------------------------------------

    def opened(self, tape: Any) -> None:
        """See `tensorflow_tapes.Listener`."""
        shadow = self.shadow_of(tape)
        if shadow is not None:
            shadow.push(tape)

    def closing(self, tape: Any) -> None:
        """See `tensorflow_tapes.Listener`."""
        shadow = self.shadow_of(tape)
        if shadow is not None:
            shadow.tape.pop()

    def watches(self, tape: Any, watched: Any) -> None:
        """See `tensorflow_tapes.Listener`."""
        shadow = self.shadow_of(tape)
        if shadow is not None:
            flat = [tensors.variable_of(one) for one in tf.nest.flatten(watched)]
            parts = [_handle_or_self(one) for one in tf.nest.flatten(flat, expand_composites=True)]
            shadow.tape.watch([one for one in parts if hasattr(one, "_id")])

    def asking(self, tape: Any, verb: str, target: Any, sources: Any, upstream: Any) -> Any:
        """See `tensorflow_tapes.Listener`."""
        shadow = self.shadow_of(tape)
        if shadow is None:
            return None
        reports_late = any(one.reports_late for one in shadow.taped_calls)
        if not shadow.results and not reports_late:
            if getattr(tape, "_persistent", True) is False:
                shadow.tape.pop()
                del self._shadows[id(tape)]  # the user's own tape is used up now
            return None
        flat = tf.nest.flatten(target, expand_composites=True)
        targets = [one for one in flat if tensors.is_tensor(one) and tensors.differentiable(one)]
        return _Asked(shadow, tape, verb, targets, sources, upstream)

    def answered(self, asked: _Asked, gradients: Any) -> None:
        """See `tensorflow_tapes.Listener`."""
        if getattr(asked.recorder, "_persistent", True) is False:
            self._shadows.pop(id(asked.recorder), None)
        found = []
        names: dict[int, str] = {}
        for taped, missing in _missing(asked).items():
            without, partial = _lacking(asked, taped, missing, gradients)
            if taped.evidence is not None and (without or partial):
                found.append((taped, without, partial))
                names.update({**without, **partial})
        reports_late = [taped for taped in asked.shadow.taped_calls if taped.reports_late]
        if not found and not reports_late:
            return
        frame = callsite.user_frame()
        if frame is not None:
            names.update(values.names_in(frame, set(names)))
        site = None if frame is None else callsite.site_of(frame)
        for taped, without, partial in found:
            sources = {id(source): source for source, _ in _pairs(asked, taped, gradients)}
            lost = [(sources[one], names[one]) for one in without]
            taped.confirm(site, asked.verb, lost, [names[one] for one in partial])
        for taped in reports_late:
            taped.missing_gradients.append(_missing_gradients(asked, taped, gradients, frame, site))
        for taped in {
            *(taped for taped, *_ in found),
            *(one for one in reports_late if one.settle()),
        }:
            if taped.home is not None and taped.evidence is not None:
                collector.announce(taped.home, [taped.evidence])


def _missing(asked: _Asked) -> dict[TapedCall, Behind]:
    """The sources that a gradient of the targets would have reached in the tasks, by call."""
    upstream = None
    if asked.verb == "gradient":
        upstream = [None] * len(asked.targets)
        if asked.upstream is not None:
            upstream = tf.nest.flatten(asked.upstream, expand_composites=True)
    known = {id(one): one for taped in asked.shadow.taped_calls if (one := taped.evidence)}
    exact = any(one.asks(_EXACTLY) for one in known.values())
    found: dict[TapedCall, Behind] = {}
    for result, flow in asked.shadow.behind(asked.targets, upstream, exact):
        if exact or (result.taped.evidence and result.taped.evidence.confirmed):
            add(found.setdefault(result.taped, {}), result.sources, flow)
    return found


def _lacking(
    asked: _Asked, taped: TapedCall, missing: Behind, gradients: Any
) -> tuple[dict[int, str], dict[int, str]]:
    """The sources, by id with their paths, that got no gradient or only a part of it."""
    without: dict[int, str] = {}
    partial: dict[int, str] = {}
    pairs = _pairs(asked, taped, gradients)
    missing = asked.shadow.expanded(missing, [source for source, _ in pairs])
    for source, gradient in pairs:
        flow = missing.get(_source_of(source), Flow.NONE)
        if tensors.is_variable(source):
            flow = max(flow, missing.get(key_of(source), Flow.NONE))  # the variable's copy
        if gradient is None and flow:
            without[id(source)] = taped.path_of(source)
        elif flow is Flow.SOME:
            partial[id(source)] = taped.path_of(source)
    return without, partial


def _missing_gradients(
    asked: _Asked, taped: TapedCall, gradients: Any, frame: Any, site: Any
) -> MissingGradients:
    """The variables that got no gradient."""
    missing = {
        id(source): source
        for source, gradient in _pairs(asked, taped, gradients)
        if gradient is None and tensors.is_variable(source)
    }
    names = {} if frame is None else values.names_in(frame, set(missing))
    variables = [
        (weakref.ref(source), one, key_of(source), names.get(one) or taped.path_of(source))
        for one, source in missing.items()
    ]
    return MissingGradients(site, asked.verb, variables)


def _pairs(asked: _Asked, taped: TapedCall, gradients: Any) -> list[tuple[Any, Any]]:
    """The sources and their gradients."""
    given = tf.nest.flatten(gradients)
    if asked.sources is not None:
        sources = [tensors.variable_of(one) for one in tf.nest.flatten(asked.sources)]
        pairs = list(zip(sources, given, strict=False))
        return [
            pair for pair in pairs if tensors.is_variable(pair[0]) or tensors.is_tensor(pair[0])
        ]
    product = None if any(one is None for one in given) else given
    return [
        (source, product)
        for source in taped.reachable()
        if watches(asked.recorder, [_handle_or_self(source)])
    ]


_follower = dropped_at_end(_Follower())


def opened(tape: Any) -> None:
    """Follow a gradient tape of the user that starts to record."""
    if tf.executing_eagerly():
        _follower.follow_recorder(tape)


def follow(taped: TapedCall) -> None:
    """Follow what is computed from the results of that call, which begins in this thread."""
    try:
        for reference in taped.recorders:
            recorder = reference()
            if recorder is not None:
                _follower.follow_recorder(recorder).taped_calls.append(taped)
    except Exception as error:
        fault(error)


def results(taped: TapedCall, made: list[Made]) -> None:
    """Follow these results of that call."""
    for shadow in _shadows_of(taped):
        shadow.watch(taped, made)


def keep(taped: TapedCall, tensor: Any) -> bool:
    """Whether a gradient could reach `tensor`, on a tape or through results of workers.

    If so, the shadow keeps it alive: a tape forgets how a freed tensor was made unless it has seen
    it in use. The user's tape would have seen the tasks use it.
    """
    found = False
    for shadow in _shadows_of(taped):
        recorder = shadow.recorder()
        if shadow.tape.sees([tensor]) or (recorder and watches(recorder, [tensor])):
            found = True
            if all(one is not tensor for one in shadow.kept):
                shadow.kept.append(tensor)
    return found


def _shadows_of(taped: TapedCall) -> list[_Shadow]:
    found = [_follower.shadow_of(one) for ref in taped.recorders if (one := ref()) is not None]
    return [shadow for shadow in found if shadow is not None]
