"""GG503: a shuffling `DistributedSampler` starts another pass with the epoch of the last one.

A repeated order does harm in training only. A pass counts as training if an optimizer steps during
it. If no optimizer of torch steps at all, every complete pass counts.
"""

from __future__ import annotations

import operator
import sys
import weakref
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

from pytest_gradguard.runtime.frameworks.torch import steps
from pytest_gradguard.runtime.kernel import callsite, collector, evidence
from pytest_gradguard.runtime.kernel.callsite import Site
from pytest_gradguard.runtime.kernel.observing import observe
from pytest_gradguard.runtime.kernel.patching import LatePatches, Patch
from pytest_gradguard.runtime.kernel.state import dropped_at_end

CODE = "GG503"
_MODULE = "torch.utils.data.distributed"
_LOADER = "torch.utils.data.dataloader"
_OPTIMIZERS = "torch.optim.optimizer"


def _make() -> list[Patch]:
    kind: Any = getattr(sys.modules.get(_MODULE), "DistributedSampler", None)
    if kind is None:
        return []
    return [
        observe(kind, "__init__", after=_constructed),
        observe(kind, "__iter__", after=_iterates),
        observe(kind, "set_epoch", after=_set),
    ]


apply = LatePatches(_make).apply
"""Watch samplers, if torch is loaded."""


class _Pass:
    """One pass of a sampler.

    Attributes:
        order: equal for two passes that yield the same order.
        place: where in the program it began.
        learns: gradients were enabled as it began.
        trains: an optimizer has stepped during it.
    """

    def __init__(self, sampler: Any, indices: Iterator[Any]) -> None:
        self.order = (sampler.seed + sampler.epoch, len(sampler.dataset))
        self.place: tuple[tuple[CodeType, int], ...] = tuple(
            (frame.f_code, frame.f_lasti) for frame in callsite.user_frames(sys._getframe(1))
        )
        self.learns = bool(sys.modules["torch"].is_grad_enabled())
        self.trains = False
        self._indices = indices
        self._length = operator.length_hint(indices)
        loader = _loader_iterator()
        self._loader = None if loader is None else weakref.ref(loader)
        self._ahead = 1 if loader is None else _taken_at_once(loader)

    @property
    def complete(self) -> bool:
        """Whether it is exhausted."""
        return operator.length_hint(self._indices) == 0

    @property
    def is_first_look(self) -> bool:
        """Whether it was abandoned at its first batch."""
        return not self.complete and (
            self._length - operator.length_hint(self._indices) <= self._ahead
        )

    @property
    def is_over(self) -> bool:
        """Whether it will yield no more."""
        if self._loader is None:
            return len(self._indices.__reduce__()) == 2  # exhausted, and not only at its last one
        loader = self._loader()
        if loader is None or getattr(loader, "_shutdown", False):
            return True
        batches = getattr(loader, "_sampler_iter", None)
        if getattr(batches, "gi_frame", self) is not None:
            return False
        workers = getattr(loader, "_num_workers", 0)
        return not workers or loader._num_yielded >= len(loader._index_sampler)


def _loader_iterator() -> Any:
    """The iterator of the `DataLoader` that asks for indices, if one does."""
    module: Any = sys.modules.get(_LOADER)
    frame = sys._getframe(1)
    while module is not None and frame.f_back is not None:
        frame = frame.f_back
        if frame.f_globals is vars(module):
            found = frame.f_locals.get("self")
            if isinstance(found, module._BaseDataLoaderIter):
                return found
    return None


def _taken_at_once(loader: Any) -> int:
    """How many indices the first batch takes, including those that workers prefetch."""
    size = getattr(loader._index_sampler, "batch_size", None) or 1
    workers = getattr(loader, "_num_workers", 0)
    return int(size) * (1 + workers * (getattr(loader, "_prefetch_factor", None) or 0))


class _Sampler:
    """One sampler.

    Attributes:
        made: where it was created.
        sets_epoch: `set_epoch` was called.
        stepped: an optimizer has stepped since its first pass began.
        last: its last pass.
        whole: the last pass that was not abandoned at its first batch.
        repeats: how many passes in a row repeated the order of the one before.
        suspicion: evidence, withdrawn if the passes turn out not to train.
        pending: reports the pending evidence, once the last pass is known to train.
    """

    def __init__(self, sampler: Any, made: Site | None = None) -> None:
        self.made = made
        self.sets_epoch = False
        self.stepped = False
        self.last: _Pass | None = None
        self.whole: _Pass | None = None
        self.repeats = 0
        self.suspicion: Evidence | None = None
        self.pending: Callable[[], None] | None = None
        weakref.finalize(sampler, _samplers.pop, id(sampler), None).atexit = False

    def confirm(self) -> None:
        """Record that the last pass trains."""
        report, self.pending = self.pending, None
        if report is not None:
            report()


_samplers: dict[int, _Sampler] = dropped_at_end({})
"""The live samplers, by id."""


def _known(sampler: Any, made: Site | None = None) -> _Sampler:
    known = _samplers.get(id(sampler))
    if known is None:
        known = _samplers[id(sampler)] = _Sampler(sampler, made)
    return known


def _stepped(optimizer: Any) -> None:
    """Handle the first step of an optimizer since a pass began."""
    steps.after.unsubscribe(_stepped)
    for known in list(_samplers.values()):
        if known.last is None:
            continue
        known.stepped = True
        if known.suspicion is not None:
            known.suspicion.drop()
            known.suspicion = None
        if not known.last.is_over:
            known.last.trains = True
            known.confirm()


def _constructed(result: None, sampler: Any, *args: Any, **kwargs: Any) -> None:
    if collector.innermost() is not None:
        _known(sampler, callsite.user_site())


def _set(result: None, sampler: Any, *args: Any, **kwargs: Any) -> None:
    if id(sampler) in _samplers:
        _samplers[id(sampler)].sets_epoch = True


def _iterates(indices: Iterator[Any], sampler: Any) -> None:
    """Begin a pass of `sampler`.

    Raises:
        GradGuardError, GradGuardWarning: a finding that the user asked to have raised.
    """
    # One with an `__iter__` of its own may change the order that it gets from here.
    own = type(sampler).__iter__ is not sys.modules[_MODULE].DistributedSampler.__iter__
    if own or not sampler.shuffle or collector.innermost() is None:
        return
    known = _known(sampler)
    if known.last is not None and (known.last.trains or not known.last.is_first_look):
        known.whole = known.last
    before, now = known.whole or known.last, _Pass(sampler, indices)
    known.last, known.pending = now, None
    if _OPTIMIZERS in sys.modules:
        steps.after.subscribe(_stepped)
    if before is None or not _repeats(known, before, now):
        known.repeats = 0
        return
    known.repeats += 1
    home = collector.innermost()
    if home is None or CODE in home.ignore | collector.allowed_now():
        return
    site = callsite.user_site()
    name, backend, epoch = type(sampler).__name__, _backend(), sampler.epoch
    made = known.made

    def count() -> Evidence:
        found = home.evidence((CODE, site and site.key), lambda: Evidence(site, backend, name))
        assert isinstance(found, Evidence)
        found.add(epoch, made)
        return found

    def report() -> None:
        collector.announce(home, [count()])

    if before.trains and before.place != now.place:
        known.pending = report
    elif before.trains or known.repeats > 1:
        known.suspicion = None
        report()
    else:
        known.suspicion = count()


def _repeats(known: _Sampler, before: _Pass, now: _Pass) -> bool:
    """Whether a pass repeats the order of the one before, in a way that may matter."""
    if before.order != now.order or not (before.learns and now.learns):
        return False
    if not before.trains and (known.stepped or not before.complete):
        return False  # it did not train, or was abandoned early
    if before.place == now.place:
        return not before.is_first_look
    # Two loops over one sampler: a program that sets the epoch may intend it.
    return before.complete and not known.sets_epoch


def _backend() -> str:
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return str(distributed.get_backend())
    return "none"


class Evidence(evidence.Evidence):
    """The passes that began at one line and repeat an earlier order.

    Args:
        site: the loop.
        backend: that of the process group.
        name: the sampler's type.
    """

    code = CODE

    def __init__(self, site: Site | None, backend: str, name: str) -> None:
        super().__init__(site, backend, framework="torch", object=name, type=name)

    def add(self, epoch: int, made: Site | None) -> None:
        """Count one more pass.

        Args:
            epoch: that of the sampler.
            made: where the sampler was made.
        """
        with self._lock:
            self.count += 1
            self.details["epoch"] = epoch
            if made is not None:
                self.add_step("the sampler is made here", made.path, made.line, None)

    def drop(self) -> None:
        """Take back the pass counted last."""
        with self._lock:
            self.count -= 1

    def message(self) -> str:
        name, epoch = self.details["object"], self.details["epoch"]
        return (
            f"Another epoch starts here while `{name}` is still at epoch {epoch}: each rank gets "
            "the same samples in the same order again."
        )
