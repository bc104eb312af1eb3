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
import torch.distributed.fsdp
import torch.distributed.optim
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


def rounded(model: Any) -> list[float]:
    return [round(float(one.detach().sum()), 5) for one in model.parameters()]


def used() -> list[float]:
    model = DDP(Net("used", "used"))
    train(model, 8)
    return rounded(model)


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


def one_step(
    model: nn.Module, *, before: Any = None, loss: Any = None, **options: Any
) -> list[Any]:
    """By how much one step changes each parameter.

    Args:
        model: what is wrapped.
        before: changes it afterwards.
        loss: computes the loss, from the wrapped model and its inputs.
        options: those of DDP.
    """
    ddp = DDP(model, **options)
    if before is not None:
        before(model)
    parameters = dict(model.named_parameters())
    known = {name: one.detach().clone() for name, one in parameters.items()}
    optimizer = torch.optim.SGD(parameters.values(), lr=0.1)
    inputs = torch.full((1, 2), 1.0 + dist.get_rank())
    (ddp(inputs).sum() if loss is None else loss(ddp, inputs)).backward()
    optimizer.step()
    changed = ((known[name] - one.detach()).sum() for name, one in parameters.items())
    return [round(float(one), 5) for one in changed]


def unused_layer() -> list[Any]:
    return one_step(Net("skipped", "skipped"))


def unused_layer_repaired() -> list[Any]:
    return one_step(Net("skipped", "skipped"), find_unused_parameters=True)


def slope(ddp: Any, inputs: Any) -> tuple[Any, Any]:
    """What the model returns, and a penalty on its slope, which its bias has no part in."""
    inputs.requires_grad_()
    outputs = ddp(inputs)
    (gradient,) = torch.autograd.grad(outputs.sum(), inputs, create_graph=True)
    return outputs, gradient.pow(2).sum()


def bent() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1))


def penalty() -> list[Any]:
    return one_step(bent(), loss=lambda *given: slope(*given)[1])


def penalty_repaired() -> list[Any]:
    def loss(ddp: Any, inputs: Any) -> Any:
        output, of_slope = slope(ddp, inputs)
        return of_slope + 0 * output.sum()

    return one_step(bent(), loss=loss)


def replace(model: Any) -> None:
    model.body.weight = nn.Parameter(torch.ones(2, 2))


def unfreeze(model: Any) -> None:
    model.body.weight.requires_grad_()


def frozen() -> Net:
    model = Net("used", "used")
    model.body.weight.requires_grad_(False)
    return model


def replaced() -> list[Any]:
    return one_step(Net("used", "used"), before=replace)


def replaced_and_not_waited_for() -> list[Any]:
    return one_step(Net("used", "used"), before=replace, find_unused_parameters=True)


def replaced_repaired() -> list[Any]:
    model = Net("used", "used")
    replace(model)
    return one_step(model)


def unfrozen() -> list[Any]:
    return one_step(frozen(), before=unfreeze)


def unfrozen_repaired() -> list[Any]:
    model = frozen()
    unfreeze(model)
    return one_step(model)


def average_each(model: Any) -> None:
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= 2


def average_flat(model: Any) -> None:
    gradients = [one.grad for one in model.parameters()]
    flat = torch.cat([one.flatten() for one in gradients])
    dist.all_reduce(flat)
    sizes = [one.numel() for one in gradients]
    for one, mean in zip(gradients, (flat / 2).split(sizes), strict=True):
        one.copy_(mean.view_as(one))


def average_gathered(model: Any) -> None:
    for parameter in model.parameters():
        parts = [torch.empty_like(parameter.grad) for _ in range(2)]
        dist.all_gather(parts, parameter.grad)
        parameter.grad = torch.stack(parts).mean(0)


def copy_from_rank_0(model: Any) -> None:
    for parameter in model.parameters():
        torch.distributed.broadcast(parameter.data, 0)


def by_hand(
    average: Any, *, skips: bool = False, steps: int = 3, seed: int = 0, copied: bool = False
) -> list[float]:
    """Train a module of one layer; with `skips`, rank 1 leaves out the second step."""
    torch.manual_seed(seed * dist.get_rank())
    model = nn.Linear(2, 1)
    if copied:
        copy_from_rank_0(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.full((1, 2), 1.0 + dist.get_rank())).pow(2).sum().backward()
        average(model)
        if not (skips and step == 1 and dist.get_rank() == 1):
            optimizer.step()
    return rounded(model)


def averaged_by_hand() -> Any:
    return [by_hand(one) for one in (average_each, average_flat, average_gathered)]


def seed_of_its_own() -> Any:
    return by_hand(average_each, seed=1)


def seed_of_its_own_flat() -> Any:
    return by_hand(average_flat, seed=1)


def seed_of_its_own_gathered() -> Any:
    return by_hand(average_gathered, seed=1)


def seed_of_its_own_repaired() -> Any:
    return by_hand(average_each, seed=1, copied=True)


def skipped_by_hand() -> Any:
    return by_hand(average_each, skips=True)


def loaded_on_rank_0() -> Any:
    model = DDP(Net("used", "used"))
    if dist.get_rank() == 0:
        model.module.load_state_dict({k: 2 * v for k, v in model.module.state_dict().items()})
    train(model, 1)
    return rounded(model)


def skipped_step() -> Any:
    model = DDP(Net("used", "used"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(4):
        optimizer.zero_grad()
        model(torch.full((1, 2), 1.0 + dist.get_rank())).pow(2).sum().backward()
        if step != 2 or dist.get_rank() == 0:
            optimizer.step()
    return rounded(model)


def parts_of_each_rank() -> Any:
    """Each rank steps some parameters, and copies them to the other, as ZeRO does."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = torch.optim.SGD(layers[dist.get_rank()].parameters(), lr=0.1)
    for _ in range(3):
        layers.zero_grad()
        layers(torch.full((1, 2), 1.0 + dist.get_rank())).pow(2).sum().backward()
        average_each(layers)
        optimizer.step()
        for rank, layer in enumerate(layers):
            for parameter in layer.parameters():
                dist.broadcast(parameter.data, rank)
    return rounded(layers)


def sharded_optimizer() -> Any:
    model = DDP(Net("used", "used"))
    kind = torch.distributed.optim.ZeroRedundancyOptimizer
    optimizer = kind(model.parameters(), torch.optim.SGD, lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.full((1, 2), 1.0 + dist.get_rank())).pow(2).sum().backward()
        optimizer.step()
    return rounded(model)


def averages_parameters() -> None:
    """Local steps, and parameters averaged after every third."""
    never_synchronized(averages=True)


def never_synchronized(averages: bool = False) -> Any:
    model = DDP(Net("used", "used"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        optimizer.zero_grad()
        with model.no_sync():
            model(torch.full((1, 2), 1.0 + dist.get_rank())).pow(2).sum().backward()
        optimizer.step()
        if averages and step % 3 == 2:
            for parameter in model.parameters():
                dist.all_reduce(parameter.data)
                parameter.data /= 2
    dist.all_gather([torch.empty(2, 2) for _ in range(2)], model.module.body.weight.detach())
    return rounded(model)


def synchronized_every_second(then: Callable[[Any, int], None] | None = None) -> Any:
    """An optimizer that steps after each micro-batch, of which every second is averaged."""
    model = DDP(Net("used", "used"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(16):
        optimizer.zero_grad()
        with model.no_sync() if step % 2 else nullcontext():
            model(torch.full((1, 2), 1.0 + dist.get_rank())).pow(2).sum().backward()
        if then is not None:
            then(model, step)
        optimizer.step()
    return rounded(model)


def averages_between_synchronized() -> Any:
    def average(model: Any, step: int) -> None:
        for parameter in model.parameters() if step % 2 else ():
            dist.all_reduce(parameter.grad)
            parameter.grad /= 2

    return synchronized_every_second(average)


def penalty_between_synchronized() -> Any:
    """The gradient of a penalty on parameters is equal on all ranks, without synchronization."""

    model = DDP(Net("used", "used"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(16):
        optimizer.zero_grad()
        if step % 2:
            with model.no_sync():
                sum(parameter.pow(2).sum() for parameter in model.parameters()).backward()
        else:
            model(torch.full((1, 2), 1.0 + dist.get_rank())).pow(2).sum().backward()
        optimizer.step()
    return rounded(model)


def accumulated_past_ddp() -> Any:
    model = DDP(module=Net("used", "used"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.no_sync():
        model(torch.full((1, 2), 1.0 + dist.get_rank())).pow(2).sum().backward()
    model.module(torch.full((1, 2), 2.0 + dist.get_rank())).pow(2).sum().backward()
    optimizer.step()
    return rounded(model)


def own_head() -> None:
    """A DDP module, and a layer of each rank's own, in one optimizer; one layer is ignored."""
    model = Net("used", "used")
    nn.init.constant_(model.extra.weight, dist.get_rank())
    DDP._set_params_and_buffers_to_ignore_for_model(model, ["extra.weight", "extra.bias"])
    ddp = DDP(model)
    torch.manual_seed(dist.get_rank())
    head = nn.Linear(2, 1)
    optimizer = torch.optim.SGD([*ddp.parameters(), *head.parameters()], lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        head(ddp(torch.full((1, 2), 1.0 + dist.get_rank()))).pow(2).sum().backward()
        optimizer.step()


class Both(Net):
    """Returns what each layer computes."""

    def forward(self, x: Any) -> Any:
        return self.body(x), self.extra(x)


def output_not_in_the_loss(advised: bool = False) -> None:
    ddp = DDP(Both("used", "used"))
    for _ in range(2):
        first, output = ddp(torch.ones(1, 2))
        loss = first.sum()
        if advised:
            loss = loss + 0 * output.sum()
        loss.backward()


def output_in_the_loss() -> None:
    output_not_in_the_loss(advised=True)


def replaced_twice() -> None:
    """The second forward pass fails."""
    ddp = DDP(Net("used", "used"))
    replace(ddp.module)
    train(ddp, 2)


EARLY: list[Any] = []


def replaced_before_the_guard() -> None:
    """The model was wrapped, and its parameter replaced, before the guard began."""
    train(EARLY.pop(), 2)


class Sharded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(2, 2), nn.Linear(2, 1)

    def features(self, x: Any) -> Any:
        return self._hidden(x).tanh()

    def _hidden(self, x: Any) -> Any:
        return self.body(x)

    def forward(self, x: Any) -> Any:
        return self.head(self.features(x))


def sharded() -> Any:
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
    return torch.distributed.fsdp.fully_shard(Sharded(), mesh=mesh)


def steps_of_shards(reduces: Callable[[int], bool]) -> Any:
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        model.set_requires_gradient_sync(reduces(step))
        model(torch.full((1, 2), 1.0 + dist.get_rank())).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [round(one, 5) for one in model.body.weight.full_tensor().flatten().tolist()]


def shards_never_reduced() -> Any:
    return steps_of_shards(lambda step: False)


def shards_reduced_at_last() -> Any:
    return steps_of_shards(lambda step: step % 2 == 1)


def gradient_of_features(model: Any) -> list[float]:
    model.features(torch.full((1, 2), 1.0 + dist.get_rank())).sum().backward()
    gradient = model.body.weight.grad
    whole = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
    return [round(one, 5) for one in whole.flatten().tolist()]


def method_of_shards() -> None:
    gradient_of_features(sharded())


def method_of_shards_repaired() -> list[float]:
    model = sharded()
    torch.distributed.fsdp.register_fsdp_forward_method(model, "features")
    return gradient_of_features(model)


def method_of_one_process() -> list[float]:
    model = Sharded()
    both = torch.tensor([[1.0, 1.0], [2.0, 2.0]])
    (model.features(both).sum() / 2).backward()
    return [round(one, 5) for one in model.body.weight.grad.flatten().tolist()]


def one_rank_lacks_it() -> None:
    """The other waits for its gradient, until this one ends."""
    train(DDP(Net("skipped", "used")), 2)


CASES: tuple[Callable[[], Any], ...] = (
    *(used, different_reasons, watched, unused_layer, unused_layer_repaired, penalty),
    *(penalty_repaired, replaced, replaced_and_not_waited_for, replaced_repaired, unfrozen),
    *(unfrozen_repaired, replaced_twice, replaced_before_the_guard),
    *(output_not_in_the_loss, output_in_the_loss),
    *(method_of_shards, method_of_shards_repaired, method_of_one_process),
    *(averaged_by_hand, seed_of_its_own, seed_of_its_own_flat, seed_of_its_own_gathered),
    *(seed_of_its_own_repaired, skipped_by_hand, loaded_on_rank_0, skipped_step),
    *(
        parts_of_each_rank,
        sharded_optimizer,
        averages_parameters,
        never_synchronized,
        synchronized_every_second,
        averages_between_synchronized,
        penalty_between_synchronized,
        accumulated_past_ddp,
    ),
    *(shards_never_reduced, shards_reduced_at_last),
    own_head,
    one_rank_lacks_it,
)


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
    apart = [one for one in found if one[0] == "GG505"]
    found = [one for one in found if one not in apart]
    return {"result": result, "raised": raised, "found": found, "apart": apart}


def main(folder: str) -> None:
    rank = 0 if os.fork() == 0 else 1
    limit = datetime.timedelta(seconds=60)
    store = dist.FileStore(os.path.join(folder, "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=limit)
    lines = [{"case": "bare", "rank": rank, **run(used, guarded=False)}]
    EARLY.append(DDP(Net("used", "used")))
    replace(EARLY[0].module)
    lines += [{"case": case.__name__, "rank": rank, **run(case, guarded=True)} for case in CASES]
    with open(os.path.join(folder, f"rank{rank}.json"), "w") as file:
        json.dump(lines, file)
    if rank == 0:
        os._exit(0)  # which the other rank, in the last case, waits for
    os.wait()


if __name__ == "__main__":
    main(sys.argv[1])
