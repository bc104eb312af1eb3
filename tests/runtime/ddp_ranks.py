"""Two gloo ranks under the guard; prints one JSON line a case and rank.

``python ddp_ranks.py FOLDER``: the first rank is forked before anything has run.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from pytest_gradguard import GradGuardError, guard, watch_gradients


class Net(nn.Module):
    """`ways` says for each rank what becomes of the layer `extra`: used, cut or skipped."""

    def __init__(self, *ways: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(2, 2)
        self.extra = nn.Linear(2, 2)
        self.way = ways[dist.get_rank()]

    def forward(self, x: Any) -> Any:
        hidden = self.body(x)
        if self.way == "skipped":
            return hidden
        extra = self.extra(x)
        return hidden + (extra.detach() if self.way == "cut" else extra)


def train(model: Any, steps: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.full((1, 2), 1.0 + dist.get_rank())).pow(2).sum().backward()
        optimizer.step()


def used() -> list[float]:
    model = DDP(Net("used", "used"))
    train(model, 8)
    return [round(float(one.detach().sum()), 5) for one in model.parameters()]


def different_reasons() -> None:
    train(DDP(Net("cut", "skipped")), 2)


def watched() -> list[str]:
    model = DDP(Net("cut", "skipped"))
    try:
        with watch_gradients(model):
            train(model, 1)
    except GradGuardError as error:
        return [finding.message for finding in error.findings]
    return []


def one_rank_lacks_it() -> None:
    """The other waits for its gradient, until this one ends."""
    train(DDP(Net("skipped", "used")), 2)


CASES: tuple[Callable[[], Any], ...] = (used, different_reasons, watched, one_rank_lacks_it)


def run(case: Callable[[], Any], *, guarded: bool) -> dict[str, Any]:
    result, raised = None, None
    with guard("record") if guarded else nullcontext() as report:
        try:
            result = case()
        except RuntimeError as error:
            raised = [str(error), *getattr(error, "__notes__", ())]
    findings = [] if report is None else report.findings
    found = [
        [f.code, f.message, {**f.details, "fix": f.fix}]
        for f in findings
        if f.severity.label != "info"
    ]
    return {"result": result, "raised": raised, "found": found}


def main(folder: str) -> None:
    rank = 0 if os.fork() == 0 else 1
    limit = datetime.timedelta(seconds=60)
    store = dist.FileStore(os.path.join(folder, "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=limit)
    lines = [{"case": "bare", "rank": rank, **run(used, guarded=False)}]
    lines += [{"case": case.__name__, "rank": rank, **run(case, guarded=True)} for case in CASES]
    with open(os.path.join(folder, f"rank{rank}.json"), "w") as file:
        json.dump(lines, file)
    if rank == 0:
        os._exit(0)  # which the other rank, in the last case, waits for
    os.wait()


if __name__ == "__main__":
    main(sys.argv[1])
