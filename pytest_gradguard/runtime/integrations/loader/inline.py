"""A `DataLoader` whose workers' work is done in the calling process, with the seeds of each."""

from __future__ import annotations

import functools
import itertools
import sys
from collections import deque
from collections.abc import Callable
from types import ModuleType
from typing import Any

from pytest_gradguard.runtime.integrations.loader import LOADERS, WORKERS
from pytest_gradguard.runtime.kernel import calls, generators, inline
from pytest_gradguard.runtime.kernel.patching import Patch


def patches(module: ModuleType) -> list[Patch]:
    """The patches of `torch.utils.data.dataloader`."""
    return [Patch(module.DataLoader, "_get_iterator", functools.partial(_get_iterator, module))]


def _get_iterator(module: ModuleType, original: Callable[..., Any]) -> Callable[..., Any]:
    kind = _iterator_class(module)

    @functools.wraps(original)
    def _get_iterator(self: Any) -> Any:
        if self.num_workers == 0:
            return original(self)
        call = calls.begin()
        if call is not None:
            call.kind = LOADERS
        return kind(self)

    return _get_iterator


def _iterator_class(module: ModuleType) -> Any:
    base: Any = module._BaseDataLoaderIter

    class InlineIterator(base):  # type: ignore[misc]
        """The iterator of a loader: its batches are made here, in the order of the workers."""

        def __init__(self, loader: Any) -> None:
            super().__init__(loader)
            self._loader = loader
            self._prefetched = loader.prefetch_factor * loader.num_workers
            self._workers: list[_Worker] = []
            self._reset(loader, first_iter=True)

        def _reset(self, loader: Any, first_iter: bool = False) -> None:
            super()._reset(loader, first_iter)
            if first_iter or not self._workers:
                self._workers = [
                    _Worker(loader, self._base_seed, number) for number in range(loader.num_workers)
                ]
            for worker in self._workers:
                worker.begin(module)
            self._turn = itertools.cycle(list(self._workers))
            self._indices: deque[Any] = deque()
            for _ in range(self._prefetched):
                self._draw_indices()

        def _draw_indices(self) -> None:
            """Ask the sampler for the next batch, as early as the loader would."""
            try:
                self._indices.append(self._next_index())
            except StopIteration:
                pass

        def _next_data(self) -> Any:
            while self._indices:
                worker = next(self._turn)
                if worker.exhausted:
                    if all(one.exhausted for one in self._workers):
                        break
                    continue
                index = self._indices.popleft()
                try:
                    data = worker.fetch(index)
                except StopIteration:  # an iterable dataset, whose copy in this worker has ended
                    worker.exhausted = True
                    self._draw_indices()
                    continue
                self._draw_indices()
                return data
            raise StopIteration

    return InlineIterator


class _Worker:
    """What one worker of a loader would do."""

    def __init__(self, loader: Any, base_seed: int, number: int) -> None:
        self._loader = loader
        self._dataset = inline.state.isolation.copied(loader.dataset)
        self._seed = base_seed + number
        self._numpy_seed = _generate_state(base_seed, number)
        self._number = number
        self._fetcher: Any = None
        self._state: generators.Restore | None = None
        self.exhausted = False

    def begin(self, module: ModuleType) -> None:
        """Begin an iteration."""
        loader = self._loader
        self.exhausted = False

        def prepare() -> None:
            if self._state is None and loader.worker_init_fn is not None:
                loader.worker_init_fn(self._number)
            self._fetcher = module._DatasetKind.create_fetcher(
                loader._dataset_kind,
                self._dataset,
                loader._auto_collation,
                loader.collate_fn,
                loader.drop_last,
            )

        self._as_worker(prepare)

    def fetch(self, index: Any) -> Any:
        """The batch at `index`."""
        inline.state.handed += 1
        return self._as_worker(lambda: self._fetcher.fetch(index))

    def _as_worker(self, work: Callable[[], Any]) -> Any:
        loop: Any = sys.modules[WORKERS]
        restore, info = generators.capture(), loop._worker_info
        loop._worker_info = loop.WorkerInfo(
            id=self._number,
            num_workers=self._loader.num_workers,
            seed=self._seed,
            dataset=self._dataset,
        )
        try:
            if self._state is None:
                generators.seed_worker(self._seed, self._numpy_seed)
            else:
                self._state()
            with inline.within(), inline.threads(1):
                return work()
        finally:
            self._state = generators.capture()
            restore()
            loop._worker_info = info


def _generate_state(base_seed: int, number: int) -> Any:
    loop: Any = sys.modules[WORKERS]
    return loop._generate_state(base_seed, number)
