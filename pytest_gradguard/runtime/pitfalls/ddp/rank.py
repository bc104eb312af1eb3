"""A rank that another process has started: its findings, and how it reports them."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from pytest_gradguard.findings import Finding
from pytest_gradguard.runtime.kernel import collector, pipes, watching
from pytest_gradguard.runtime.kernel.faults import fault
from pytest_gradguard.runtime.pitfalls.ddp import C10D


def _number() -> int:
    """The number of this process: its rank, or that of its `torch.distributed.rpc` worker."""
    c10d = sys.modules[C10D]
    if c10d.is_initialized():
        return int(c10d.get_rank())
    return int(sys.modules["torch.distributed.rpc.api"].get_worker_info().id)


class Rank:
    """This process, guarded from now on.

    Args:
        write: the end of a pipe to report findings to.
        ignore: codes that are left out.
        forked: it has inherited the guard.
    """

    def __init__(self, write: Any, ignore: frozenset[str], forked: bool) -> None:
        self._number = _number()
        self._write = write
        self._collector = collector.Collector(ignore=ignore, announce=self._announce)
        collector.enter(self._collector)
        if not forked:
            watching.start(self)

    def _announce(self, found: list[Finding]) -> None:
        try:
            self.report()
        except Exception as error:
            fault(error)

    def end(self) -> None:
        """Check what shows only at the end, and report all findings."""
        divergence: Any = sys.modules.get(f"{__package__}.divergence")
        if divergence is not None:
            divergence.leaving()
        self.report()

    def report(self) -> None:
        """Report all findings so far."""
        found = [
            replace(one, details={**one.details, "ranks": [self._number]})
            for one in self._collector.findings
        ]
        if found:
            pipes.send(self._write.fileno(), found)
