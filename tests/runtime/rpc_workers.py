"""Two workers of `torch.distributed.rpc`: what the first computes with the help of the second."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import torch
import torch.distributed.autograd as distributed_autograd
import torch.multiprocessing as multiprocessing
from torch import nn
from torch.distributed import rpc

ROWS = torch.arange(6.0).reshape(2, 3)
HEAD = nn.Linear(4, 1)
for parameter in HEAD.parameters():
    nn.init.constant_(parameter, 0.5)


def head(hidden: Any) -> Any:
    return HEAD(hidden)


def parameters_of_head() -> list[Any]:
    return list(HEAD.parameters())


def take(values: Any) -> int:
    return len(values)


def encoder() -> nn.Module:
    layer = nn.Linear(3, 4)
    nn.init.constant_(layer.weight, 0.1)
    return layer


def train_through_a_function() -> None:
    layer = encoder()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    rpc.rpc_sync("second", head, (layer(ROWS),)).pow(2).mean().backward()
    optimizer.step()
    print("plain", layer.weight.grad)


def train_in_a_context() -> None:
    layer = encoder()
    with distributed_autograd.context() as context:
        loss = rpc.rpc_sync("second", head, (layer(ROWS),)).pow(2).mean()
        distributed_autograd.backward(context, [loss])
        found = distributed_autograd.get_gradients(context)[layer.weight]
    HEAD(layer(ROWS)).pow(2).mean().backward()
    print("context", torch.allclose(found, layer.weight.grad))


def train_through_a_proxy() -> None:
    layer = encoder()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    model = rpc.remote("second", nn.Linear, (4, 1))
    model.rpc_sync().forward(layer(ROWS)).sum().backward()
    optimizer.step()


def differentiate_operators() -> None:
    weight = torch.ones(3, requires_grad=True)
    futures = [rpc.rpc_async("second", torch.mul, (weight, float(k))) for k in range(2)]
    sum(future.wait() for future in futures).sum().backward()
    assert weight.grad is None


def use_a_parameter_server() -> None:
    weight, bias = rpc.rpc_sync("second", parameters_of_head)
    (torch.ones(1, 4) @ weight.T + bias).sum().backward()
    rpc.rpc_sync("second", take, ([weight.grad, bias.grad],))


def send_what_is_logged() -> None:
    layer = encoder()
    loss = layer(ROWS).pow(2).mean()
    assert rpc.rpc_sync("second", torch.Tensor.item, (loss,)) == loss.item()
    loss.backward()
    with torch.no_grad():
        rpc.rpc_sync("second", head, (layer(ROWS),))


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"file://{os.path.join(folder, 'store')}", _transports=["uv"]
    )
    name = ("first", "second")[rank]
    rpc.init_rpc(name, rank=rank, world_size=2, rpc_backend_options=options)
    if rank == 0:
        train_through_a_function()
        train_in_a_context()
        train_through_a_proxy()
        differentiate_operators()
        use_a_parameter_server()
        send_what_is_logged()
    rpc.shutdown()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        multiprocessing.spawn(work, (place,), nprocs=2)
