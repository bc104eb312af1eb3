"""The ranks of a program that check one gradient together.

They exchange numbers through the store of torch's rendezvous, not through process groups, so no
collective of the program interferes.
"""

from __future__ import annotations

import itertools
import json
import sys
from typing import Any, Literal

Reduce = Literal["mean", "sum"]

_ALL = "gradguard/check_gradients"
_rounds = itertools.count()


class RankFailed(RuntimeError):
    """The check has failed on another rank."""


class Ranks:
    """All processes that evaluate the loss at the same points.

    Args:
        reduce: how the program combines the losses of its ranks.
    """

    def __init__(self, reduce: Reduce = "mean") -> None:
        self._reduce = reduce
        self.rank, self.size = 0, 1
        distributed: Any = sys.modules.get("torch.distributed")
        if (
            distributed is not None
            and distributed.is_available()
            and distributed.is_initialized()
            and distributed.get_world_size() > 1
        ):
            self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
            self._store = distributed.distributed_c10d._get_default_store()

    def exchange(self, own: Any) -> list[Any]:
        """Exchange plain data; returns each rank's, by rank.

        Raises:
            RankFailed: the check has failed on another rank.
        """
        if self.size == 1:
            return [own]
        number = next(_rounds)
        self._put(number, {"value": own})
        received = [
            json.loads(self._store.get(f"{_ALL}/{number}/{rank}")) for rank in range(self.size)
        ]
        for rank, one in enumerate(received):
            if "error" in one:
                raise RankFailed(f"check_gradients failed on rank {rank}: {one['error']}")
        return [one["value"] for one in received]

    def failed(self, error: BaseException) -> None:
        """Report to the waiting ranks that the check has failed here."""
        if self.size > 1 and not isinstance(error, RankFailed):
            self._put(next(_rounds), {"error": f"{type(error).__name__}: {error}"})

    def _put(self, number: int, value: Any) -> None:
        self._store.set(f"{_ALL}/{number}/{self.rank}", json.dumps(value))

    def loss(self, own: float) -> float:
        """The loss of the program, from this rank's own."""
        total = sum(self.exchange(own))
        return float(total / self.size if self._reduce == "mean" else total)

    def agreed(self, own: bool) -> bool:
        """Whether `own` is true on any rank."""
        return any(self.exchange(own))
