"""One noted run: as it is, or with the work of workers done in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from pytest_gradguard.comparing.isolation import Isolation
from pytest_gradguard.comparing.listening import listening
from pytest_gradguard.comparing.notes import Writer
from pytest_gradguard.comparing.noting import Noting
from pytest_gradguard.runtime.kernel import inline, task_seeds
from pytest_gradguard.runtime.kernel.faults import attempt

SEED = 20_240_229
"""Seeds the tasks of all compared runs."""


class Recording:
    """The result of a noted run.

    Attributes:
        calls: how many calls to workers the program has begun.
    """

    calls = 0


@contextmanager
def recording(path: Path, *, inlined: bool, left: Sequence[str] = ()) -> Iterator[Recording]:
    """A block whose gradients and parameters are noted in the file `path`.

    The guard has to be on, because it numbers the calls.

    Args:
        path: the file.
        inlined: do the work of workers in this process.
        left: names of integrations whose tasks still go to their workers.
    """
    recorded = Recording()
    isolation = Isolation()
    noting = Noting(Writer(path), isolation)
    tasks = inline.active(isolation, left) if inlined else nullcontext()
    with listening(noting), tasks, task_seeds.seeding(SEED):
        try:
            yield recorded
        finally:
            recorded.calls = task_seeds.numbered()
            attempt(noting.end)
