"""Installs and uninstalls the guard many times: `installs.py [COUNT]`."""

from __future__ import annotations

import gc
import sys

import joblib.parallel
from torch.optim.optimizer import _global_optimizer_post_hooks as hooks
from trial import patched

from pytest_gradguard import install, uninstall


def main(count: int) -> None:
    before = patched()
    had = dict(hooks)

    def cycle(times: int) -> int:
        for _ in range(times):
            install("record")
            uninstall()
        gc.collect()
        return len(gc.get_objects())

    first = cycle(50)
    last = cycle(count)
    assert last - first < 50, f"{last - first} more objects"
    assert patched() == before, patched() - before
    assert dict(hooks) == had
    assert joblib.parallel.Parallel.__call__.__module__ == "joblib.parallel"


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
