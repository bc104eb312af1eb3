"""Two gloo ranks that check gradients; prints one JSON object a rank.

``python ranks_checks.py FOLDER``: the second rank is forked before anything has run.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

from pytest_gradguard import GradGuardError, check_gradients


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def rows() -> Any:
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(dist.get_rank()))


PAGE = Path(__file__).parents[2] / "docs" / "howto" / "own-all-gather.md"


def gathers_of_the_page() -> list[Any]:
    """The classes of the page: one whose backward keeps its own slice, and the right one."""
    found = []
    for block in re.findall(r"^```py\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL):
        if "class Gather" in block:
            namespace: dict[str, Any] = {}
            exec(block, namespace)
            found.append(namespace["Gather"])
    return found


OwnSlice, AddedSlices = gathers_of_the_page()


def contrastive(model: Any, gather: Any) -> Callable[[], Any]:
    x = rows()

    def closure() -> Any:
        own = nn.functional.normalize(model(x), dim=1)
        everything = gather(own)
        return (own @ everything.T).logsumexp(1).mean()

    return closure


def averaged(model: nn.Module, closure: Callable[[], Any]) -> Callable[[], Any]:
    def step() -> Any:
        loss = closure()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        return loss.detach()

    return step


def own_slice() -> Any:
    model = net()
    return averaged(model, contrastive(model, OwnSlice.apply)), model


def added_slices() -> Any:
    model = net()
    return averaged(model, contrastive(model, AddedSlices.apply)), model


def own_slice_in_ddp() -> Any:
    model = DDP(net())
    return contrastive(model, OwnSlice.apply), model


def added_slices_in_ddp() -> Any:
    model = DDP(net())
    return contrastive(model, AddedSlices.apply), model


def torchs_gather() -> Any:
    model = net()

    def gather(x: Any) -> Any:
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x)
        return torch.cat(parts)

    return averaged(model, contrastive(model, gather)), model


def ddp() -> Any:
    model = DDP(net())
    x = rows()
    return lambda: model(x).pow(2).mean(), model


def bypassed() -> Any:
    model = DDP(net())
    x = rows()
    return lambda: model.module(x).pow(2).mean(), model


def in_double() -> Any:
    model = DDP(net().double())
    x = rows().double()
    return lambda: model(x).pow(2).mean(), model


def fsdp() -> Any:
    model = net()
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    x = rows()
    return lambda: model(x).pow(2).mean(), model


def fsdp_detached() -> Any:
    _, model = fsdp()
    x = rows()
    return lambda: model(x).pow(2).mean() + model(x).detach().pow(2).mean(), model


def added_up() -> Any:
    model = net()
    x = rows()

    def step() -> Any:
        loss = model(x).pow(2).mean()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        return loss

    return step, model


def not_averaged() -> Any:
    model = net()
    x = rows()
    return lambda: model(x).pow(2).mean(), model


def fails_on_one() -> Any:
    model = net()
    x = rows()

    def closure() -> Any:
        if dist.get_rank() == 1:
            raise RuntimeError("no data")
        return model(x).pow(2).mean()

    return closure, model


CASES = (
    own_slice,
    added_slices,
    own_slice_in_ddp,
    added_slices_in_ddp,
    torchs_gather,
    ddp,
    bypassed,
    in_double,
    fsdp,
    fsdp_detached,
    added_up,
    not_averaged,
    fails_on_one,
)


def outcome(case: Callable[[], Any], **options: Any) -> dict[str, Any]:
    closure, model = case()
    before = [one.detach().clone() for one in model.parameters()]
    drawn = torch.get_rng_state()
    try:
        told = {"right": str(check_gradients(closure, model, **options))}
    except GradGuardError as error:
        first = error.findings[0]
        told = {
            "wrong": first.details["objects"],
            "codes": [one.code for one in error.findings],
            "message": first.message,
        }
    except Exception as error:
        told = {"raised": f"{type(error).__name__}: {error}"}
    same = all(
        bool((one.detach() == value).all()) and one.grad is None and one.dtype == value.dtype
        for one, value in zip(model.parameters(), before, strict=True)
    )
    return {**told, "same": same and torch.equal(drawn, torch.get_rng_state())}


def main(folder: str) -> None:
    rank = 0 if os.fork() else 1
    store = dist.FileStore(f"{folder}/store", 2)
    timeout = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timeout)
    told = {case.__name__: outcome(case) for case in CASES}
    told["added_up_as_a_sum"] = outcome(added_up, reduce="sum")
    model = DDP(net())
    check_gradients(lambda: model(rows()).mean(), model)
    model(rows()).pow(2).mean().backward()
    told["ddp_afterwards"] = float(sum(one.grad.sum() for one in model.parameters()))
    Path(folder, f"rank{rank}.json").write_text(json.dumps(told))
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        os.wait()
    else:
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
