"""Two ranks on gloo: what each of them has of collectives and of DDP, one case after the other.

What is due at a line, and of which ranks, is said in a comment behind it. Run by `test_ranks`:
started by `torch.multiprocessing`, with the start method and what ends the second rank as
arguments; by `subprocess`, with "popen"; or by a launcher, without.
"""

import os
import subprocess
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def parts(rank):
    torch.manual_seed(0)
    encoder, head = nn.Linear(2, 2), nn.Linear(2, 1)
    return encoder, head, encoder(torch.ones(3, 2) * (rank + 1))


def slots(tensor):
    return [torch.empty_like(tensor) for _ in range(dist.get_world_size())]


def total(module):
    return [None if p.grad is None else round(p.grad.sum().item(), 4) for p in module.parameters()]


def all_gather(rank):
    encoder, head, features = parts(rank)
    gathered = slots(features)
    dist.all_gather(gathered, features)  # -> GG501 [0, 1]
    head(torch.cat(gathered)).sum().backward()
    return total(encoder)


def own_slot(rank):
    encoder, head, features = parts(rank)
    gathered = slots(features)
    dist.all_gather(gathered, features)
    gathered[rank] = features
    head(torch.cat(gathered)).sum().backward()
    return total(encoder)


def others_of_one_buffer(rank):
    encoder, head, features = parts(rank)
    buffer = torch.empty(3 * dist.get_world_size(), 2)
    dist.all_gather(list(buffer.chunk(dist.get_world_size())), features)
    others = torch.cat([buffer[: 3 * rank], features, buffer[3 * rank + 3 :]])
    head(others).sum().backward()
    return total(encoder)


def gather(rank):
    encoder, head, features = parts(rank)
    gathered = slots(features) if rank == 0 else None
    dist.gather(features, gathered)  # -> GG501 [0]
    if rank == 0:
        head(torch.cat(gathered)).sum().backward()
    return total(encoder)


def objects(rank):
    encoder, head, features = parts(rank)
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, features)  # -> GG501 [0, 1]
    head(torch.cat(gathered)).sum().backward()
    return total(encoder)


def broadcast(rank):
    encoder, head, features = parts(rank)
    dist.broadcast(features, 0)  # -> GG501 [1]
    head(features).sum().backward()
    return total(encoder)


def broadcast_of_the_same(rank):
    encoder, head, features = parts(0)
    dist.broadcast(features, 0)
    head(features).sum().backward()
    return total(encoder)


def group_of_its_own(rank):
    encoder, head, features = parts(rank)
    gathered = slots(features)
    dist.all_gather(gathered, features, group=dist.new_group([0, 1]))  # -> GG501 [0, 1]
    head(torch.cat(gathered)).sum().backward()
    return total(encoder)


def wrapped(rank):
    encoder, _, _ = parts(rank)
    return DistributedDataParallel(encoder), torch.ones(3, 2) * (rank + 1)


def step(ddp):
    before = ddp.module.weight.sum().item()
    torch.optim.SGD(ddp.parameters(), lr=0.1).step()  # -> GG502 [0, 1], GG505 [0, 1]
    return [round(before - ddp.module.weight.sum().item(), 4)]


def ddp_module(rank):
    ddp, batch = wrapped(rank)
    ddp.module(batch).sum().backward()
    return step(ddp)


def ddp_itself(rank):
    ddp, batch = wrapped(rank)
    ddp(batch).sum().backward()
    return step(ddp)


def accumulated(rank):
    ddp, batch = wrapped(rank)
    with ddp.no_sync():
        ddp(batch).sum().backward()
    ddp(batch).sum().backward()
    return step(ddp)


def reduced_by_hand(rank):
    ddp, batch = wrapped(rank)
    ddp.module(batch).sum().backward()
    for parameter in ddp.parameters():
        dist.all_reduce(parameter.grad)
    return step(ddp)


CASES = [
    *(all_gather, own_slot, others_of_one_buffer, gather, objects, broadcast),
    *(broadcast_of_the_same, group_of_its_own, ddp_module, ddp_itself, accumulated),
    reduced_by_hand,
]


def run(rank, file=None, end=""):
    file = {} if file is None else {"init_method": f"file://{file}"}
    dist.init_process_group("gloo", rank=rank, world_size=2, **file)
    for case in CASES:
        found = [None, None]
        dist.all_gather_object(found, case(rank))
        if rank == 0:
            print(case.__name__, *found, flush=True)
    if end and rank == 1:
        os.kill(os.getpid(), 9)
    dist.barrier()
    dist.destroy_process_group()


def popen(shared):
    command = [sys.executable, __file__, "--file", shared]
    started = []
    for rank in range(2):
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"}
        started.append(subprocess.Popen(command, env=environment))
    assert [one.wait() for one in started] == [0, 0]
    assert [one.args for one in started] == [command, command]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--file"]:
        assert "GRADGUARD_RANKS" not in os.environ
        run(int(os.environ["RANK"]), sys.argv[2])
    elif "RANK" in os.environ:
        run(int(os.environ["RANK"]), end="".join(sys.argv[1:]))
    elif sys.argv[1:] == ["popen"]:
        with tempfile.TemporaryDirectory() as folder:
            popen(os.path.join(folder, "group"))
    else:
        method, *end = sys.argv[1:]
        with tempfile.TemporaryDirectory() as folder:
            shared = os.path.join(folder, "group")
            mp.start_processes(run, (shared, *end), nprocs=2, start_method=method)
