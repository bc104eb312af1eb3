"""What the guard costs a training step of `DistributedDataParallel`: two ranks on gloo.

    python benchmarks/ddp.py [--repeat N] [--warmup N] [--steps N]

Each turn trains for some steps without the guard, once more without it (the control), and with it;
the order rotates. The figures are those of rank 0, as `overhead.py` gives them.
"""

from __future__ import annotations

import argparse
import functools
import gc
import os
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from overhead import VARIANTS, interval, measure
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pytest_gradguard import guard

SIZES = {"3 layers of 64": (64, 3), "8 layers of 256": (256, 8)}


def steps(
    count: int, model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor
) -> None:
    for _ in range(count):
        optimizer.zero_grad()
        model(batch).pow(2).mean().backward()
        optimizer.step()


@contextmanager
def guarded() -> Iterator[None]:
    gc.unfreeze()  # the guard looks for modules that there are already
    with guard("record"):
        yield


def train(rank: int, file: str, options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    del VARIANTS["naive"]
    VARIANTS["on"] = guarded
    for name, (width, depth) in SIZES.items():
        layers = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(depth)]
        model = DistributedDataParallel(nn.Sequential(*layers))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        batch = torch.randn(32, width)

        work = functools.partial(steps, options.steps, model, optimizer, batch)
        ratios, bare = measure(work, options.repeat, options.warmup)
        if rank == 0:
            control, on = (statistics.median(ratios[one]) for one in ("control", "on"))
            low, high = interval(ratios["on"])
            step = f"{bare / options.steps * 1e6:>7.0f} µs"
            print(f"{name:<20} {step} {control:>9.3f} {on:>9.3f}    {low:.3f} to {high:.3f}")
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=31, help="counted turns (default 31)")
    parser.add_argument("--warmup", type=int, default=3, help="turns not counted (default 3)")
    parser.add_argument("--steps", type=int, default=100, help="steps a turn (default 100)")
    options = parser.parse_args()
    print(f"{'model':<20} {'a step':>10} {'control':>9} {'on / off':>9}    on / off, 95 %")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(train, (os.path.join(folder, "group"), options), nprocs=2)


if __name__ == "__main__":
    main()
