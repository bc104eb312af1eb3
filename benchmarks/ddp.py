"""What the guard costs a training step of `DistributedDataParallel`: two ranks on gloo.

    python benchmarks/ddp.py [--repeat N] [--warmup N] [--steps N]

Each turn trains for some steps without the guard, once more without it (the control), and with it;
the order rotates. The figures are those of rank 0, as `overhead.py` gives them. The first steps of
a turn are not counted: in these the guard notes all that may explain a failure, once a model, and
what that takes stands in a column of its own.
"""

from __future__ import annotations

import argparse
import functools
import gc
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from overhead import VARIANTS, interval, measure
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pytest_gradguard import guard

SIZES = {"3 layers of 64": (64, 3), "8 layers of 256": (256, 8)}


def steps(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor, count: int
) -> None:
    for _ in range(count):
        optimizer.zero_grad()
        model(batch).pow(2).mean().backward()
        optimizer.step()


FIRST = 8
"""How many steps of a turn are not counted."""


@contextmanager
def begun(watched: bool, work: Callable[[int], None], taken: list[float]) -> Iterator[None]:
    """Inside the block, the first steps have been made, and `taken` has their time."""
    gc.unfreeze()  # the guard looks for modules that there are already
    with guard("record") if watched else nullcontext():
        start = time.perf_counter()
        work(FIRST)
        taken.append(time.perf_counter() - start)
        yield


def train(rank: int, file: str, options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    del VARIANTS["naive"]
    for name, (width, depth) in SIZES.items():
        layers = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(depth)]
        model = DistributedDataParallel(nn.Sequential(*layers))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        batch = torch.randn(32, width)

        work = functools.partial(steps, model, optimizer, batch)
        first: dict[str, list[float]] = {name: [] for name in VARIANTS}
        for variant, taken in first.items():
            VARIANTS[variant] = functools.partial(begun, variant == "on", work, taken)
        ratios, bare = measure(
            functools.partial(work, options.steps), options.repeat, options.warmup
        )
        once = statistics.median(first["on"]) - statistics.median(first["off"])
        if rank == 0:
            control, on = (statistics.median(ratios[one]) for one in ("control", "on"))
            low, high = interval(ratios["on"])
            step = f"{bare / options.steps * 1e6:>7.0f} µs"
            figures = f"{control:>9.3f} {on:>9.3f}    {low:.3f} to {high:.3f}"
            print(f"{name:<20} {step} {figures} {once * 1e3:>9.1f} ms", flush=True)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=31, help="counted turns (default 31)")
    parser.add_argument("--warmup", type=int, default=3, help="turns not counted (default 3)")
    parser.add_argument("--steps", type=int, default=100, help="steps a turn (default 100)")
    options = parser.parse_args()
    print(f"{'model':<20} {'a step':>10} {'control':>9} {'on / off':>9}    on / off, 95 %   once")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(train, (os.path.join(folder, "group"), options), nprocs=2)


if __name__ == "__main__":
    main()
