"""What becomes, under the user's tapes, of results that workers made: which gradients lack a part.

Beside each tape of the user's, a tape of ours records, its *shadow*. It watches the same, and the
results of workers. Once the user has asked for gradients, it tells through which results a part of
them would have come, had the tasks run in the calling thread.
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
from pytest_gradguard.runtime.pitfalls.tapes.around import Around, Unanswered, watches
from pytest_gradguard.runtime.pitfalls.tapes.inside import add, key_of, number_of
from pytest_gradguard.runtime.pitfalls.tapes.notes import Behind, Flow, Made, Source
from pytest_gradguard.runtime.pitfalls.tapes.own import Identity, OwnTape

_EXACTLY = 50
"""How often gradients of our own are computed for the calls of one line that lose nothing."""


class _Result(NamedTuple):
    """A tensor from workers, which is not kept alive."""

    identity: Identity
    sources: Behind
    around: Around


class _Shadow:
    """The tape beside one of the user's, and the results that it follows."""

    def __init__(self, recorder: Any, forget: Any) -> None:
        self.recorder = weakref.ref(recorder, forget)
        self._follows: Any = None
        self.tape: OwnTape
        self.push(recorder)

    def push(self, recorder: Any) -> None:
        """The user's tape records (again)."""
        handle = _handle_of(recorder)
        if self._follows is not handle:  # also after a reset, which forgets everything
            if self._follows is not None:
                self.tape.pop()
            self._follows = handle
            self.results: list[_Result] = []
            self.arounds: list[Around] = []
            self.kept: list[Any] = []
            self.tape = OwnTape(automatic=getattr(recorder, "_watch_accessed_variables", False))
        self.tape.push()

    def watch(self, around: Around, made: list[Made]) -> None:
        """Follow what becomes of these tensors; in any thread."""
        self.results += [_Result(Identity(one.tensor), one.sources, around) for one in made]
        self.tape.watch([one.tensor for one in made])

    def behind(
        self, targets: list[Any], upstream: Any = None, exact: bool = True
    ) -> list[tuple[_Result, Flow]]:
        """The results that `targets` hang on, and what comes to them as the gradient."""
        results = list(self.results)  # other threads may add to them
        if not results or not self.tape.sees(targets):
            return []
        if not exact or not all(hasattr(one, "numpy") for one in targets):
            return [(one, Flow.SOME) for one in results]  # in a graph nothing is computed
        flows = self.tape.flows(targets, [one.identity for one in results], upstream)
        return [(one, flow) for one, flow in zip(results, flows, strict=True) if flow]

    def expanded(self, missing: Behind, sources: list[Any]) -> Behind:
        """The same, with those of `sources` that shipped tensors hang on."""
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
        """What the shipped tensor of that number hangs on: `sources`, and those of results."""
        found: Behind = {}
        for result in list(self.results):
            if result.identity._id == -number:
                add(found, result.sources)
        given = next((g for one in self.arounds if (g := one.tensors.get(number))), None)
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
    """Hears of the user's tapes from when they open."""

    def __init__(self) -> None:
        self._shadows: dict[int, _Shadow] = {}

    def stand_beside(self, recorder: Any) -> _Shadow:
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
        apart = any(one.apart for one in shadow.arounds)
        if not shadow.results and not apart:
            if getattr(tape, "_persistent", True) is False:
                shadow.tape.pop()
                del self._shadows[id(tape)]  # the user's own is spent now
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
        for around, missing in _missing(asked).items():
            without, partial = _lacking(asked, around, missing, gradients)
            if around.evidence is not None and (without or partial):
                found.append((around, without, partial))
                names.update({**without, **partial})
        apart = [around for around in asked.shadow.arounds if around.apart]
        if not found and not apart:
            return
        frame = callsite.user_frame()
        if frame is not None:
            names.update(values.names_in(frame, set(names)))
        site = None if frame is None else callsite.site_of(frame)
        for around, without, partial in found:
            sources = {id(source): source for source, _ in _pairs(asked, around, gradients)}
            lost = [(sources[one], names[one]) for one in without]
            around.confirm(site, asked.verb, lost, [names[one] for one in partial])
        for around in apart:
            around.unanswered.append(_unanswered(asked, around, gradients, frame, site))
        for around in {*(around for around, *_ in found), *(one for one in apart if one.settle())}:
            if around.home is not None and around.evidence is not None:
                collector.announce(around.home, [around.evidence])


def _missing(asked: _Asked) -> dict[Around, Behind]:
    """What a gradient of the targets would have come to in the tasks of each call."""
    upstream = None
    if asked.verb == "gradient":
        upstream = [None] * len(asked.targets)
        if asked.upstream is not None:
            upstream = tf.nest.flatten(asked.upstream, expand_composites=True)
    known = {id(one): one for around in asked.shadow.arounds if (one := around.evidence)}
    exact = any(one.asks(_EXACTLY) for one in known.values())
    found: dict[Around, Behind] = {}
    for result, flow in asked.shadow.behind(asked.targets, upstream, exact):
        if exact or (result.around.evidence and result.around.evidence.confirmed):
            add(found.setdefault(result.around, {}), result.sources, flow)
    return found


def _lacking(
    asked: _Asked, around: Around, missing: Behind, gradients: Any
) -> tuple[dict[int, str], dict[int, str]]:
    """The sources, by id with their paths, that got no gradient or only a part of it."""
    without: dict[int, str] = {}
    partial: dict[int, str] = {}
    pairs = _pairs(asked, around, gradients)
    missing = asked.shadow.expanded(missing, [source for source, _ in pairs])
    for source, gradient in pairs:
        flow = missing.get(_source_of(source), Flow.NONE)
        if tensors.is_variable(source):
            flow = max(flow, missing.get(key_of(source), Flow.NONE))  # that of a copy
        if gradient is None and flow:
            without[id(source)] = around.path_of(source)
        elif flow is Flow.SOME:
            partial[id(source)] = around.path_of(source)
    return without, partial


def _unanswered(asked: _Asked, around: Around, gradients: Any, frame: Any, site: Any) -> Unanswered:
    """The variables that got no gradient."""
    missing = {
        id(source): source
        for source, gradient in _pairs(asked, around, gradients)
        if gradient is None and tensors.is_variable(source)
    }
    names = {} if frame is None else values.names_in(frame, set(missing))
    variables = [
        (weakref.ref(source), one, key_of(source), names.get(one) or around.path_of(source))
        for one, source in missing.items()
    ]
    return Unanswered(site, asked.verb, variables)


def _pairs(asked: _Asked, around: Around, gradients: Any) -> list[tuple[Any, Any]]:
    """The sources and what was given for them."""
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
        for source in around.reachable()
        if watches(asked.recorder, [_handle_or_self(source)])
    ]


_follower = dropped_at_end(_Follower())


def opened(tape: Any) -> None:
    """A gradient tape of the user's records from now on."""
    if tf.executing_eagerly():
        _follower.stand_beside(tape)


def follow(around: Around) -> None:
    """Follow what becomes of the results of that call, which begins in this thread."""
    try:
        for reference in around.recorders:
            recorder = reference()
            if recorder is not None:
                _follower.stand_beside(recorder).arounds.append(around)
    except Exception as error:
        fault(error)


def results(around: Around, made: list[Made]) -> None:
    """Follow these results of that call."""
    for shadow in _shadows_of(around):
        shadow.watch(around, made)


def keep(around: Around, tensor: Any) -> bool:
    """Whether a gradient could come to `tensor`, on a tape or through results of workers.

    If so, it is kept as long as the shadow: a tape forgets how a tensor was made that is gone, and
    that it has not seen in use. The user's tape would have seen what the tasks do with it.
    """
    found = False
    for shadow in _shadows_of(around):
        recorder = shadow.recorder()
        if shadow.tape.sees([tensor]) or (recorder and watches(recorder, [tensor])):
            found = True
            if all(one is not tensor for one in shadow.kept):
                shadow.kept.append(tensor)
    return found


def _shadows_of(around: Around) -> list[_Shadow]:
    found = [_follower.shadow_of(one) for ref in around.recorders if (one := ref()) is not None]
    return [shadow for shadow in found if shadow is not None]
