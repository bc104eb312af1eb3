"""A model with a hook goes to a rank, by one launcher after the other; run by test_launchers.py."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.multiprocessing as mp
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from pytest_gradguard import guard


def fit(rank: int, label: str, net: Any) -> None:
    net(torch.ones(1, 2)).sum().backward()


def fit_alone(label: str, net: Any) -> None:
    fit(0, label, net)


class Trainer:
    def fit(self, rank: int, label: str, net: Any) -> None:
        fit(rank, label, net)


def spawn(mine: Any) -> None:
    mp.spawn(fit, args=("a", mine), nprocs=1)


def spawn_method(mine: Any) -> None:
    mp.spawn(Trainer().fit, args=("a", mine))


def spawn_partial(mine: Any) -> None:
    mp.spawn(functools.partial(fit, 7), args=(mine,))


def start_processes(mine: Any) -> None:
    mp.start_processes(fit, args=("a", mine), nprocs=1, start_method="spawn")


def elastic(mine: Any) -> None:
    config = LaunchConfig(
        *(1, 1, 1),
        run_id="one",
        start_method="spawn",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=0.1,
    )
    elastic_launch(config, fit_alone)("a", mine)


def accelerate(mine: Any) -> None:
    from accelerate.utils import PrepareForLaunch

    fit_alone = PrepareForLaunch(globals()["fit_alone"], distributed_type="MULTI_CPU")
    mp.start_processes(fit_alone, args=("a", mine), nprocs=1, start_method="spawn")


def fabric(mine: Any) -> None:
    from lightning.fabric import Fabric

    Fabric(accelerator="cpu", devices=2, strategy="ddp_spawn").launch(fit, "a", mine)


LAUNCHERS: dict[str, Callable[[Any], None]] = {
    one.__name__: one for one in (spawn, spawn_method, spawn_partial, start_processes, elastic)
}
for needs, launcher in (("accelerate", accelerate), ("lightning", fabric)):
    if importlib.util.find_spec(needs):
        LAUNCHERS[launcher.__name__] = launcher


def main() -> None:
    warnings.simplefilter("ignore")
    found = {}
    for name, launch in LAUNCHERS.items():
        with guard("record") as report:
            net = torch.nn.Linear(2, 1)
            net.weight.register_hook(lambda gradient: gradient * 0)
            launch(net)
        found[name] = [
            (one.details["object"], one.details["subject"], one.location.function)
            for one in report.findings
            if one.code == "GG113"
        ]
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    main()
