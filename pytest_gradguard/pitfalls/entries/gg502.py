"""GG502: a step with gradients that `DistributedDataParallel` did not average."""

from pytest_gradguard.pitfalls import Pitfall, Severity, links

PITFALL = Pitfall(
    code="GG502",
    name="ddp-bypassed",
    title="The gradients of a DistributedDataParallel module are not averaged",
    severity=Severity.ERROR,
    happens=(
        "Training through `ddp.module(x)` or the model that was wrapped runs without an error, "
        "but the ranks do not exchange their gradients: each steps with those of its own data, "
        "and the replicas drift apart. `torch.autograd.grad` over a DDP output does the same. So "
        "does a loss that leaves out one parameter, which DDP waits for in vain, and a second "
        "`backward()` after the same forward pass, and `no_sync` around every backward pass "
        "before a step. Parameters that were replaced, added or unfrozen after the module was "
        "wrapped are never averaged."
    ),
    why=(
        "DDP prepares its reducer in its own `forward`, and averages a gradient when a backward "
        "pass accumulates it into `.grad`. A forward pass of the wrapped module does not "
        "prepare the reducer, and `autograd.grad` returns gradients without accumulating them. The "
        "reducer knows the parameters that were trainable when the module was wrapped, and writes "
        "averages only once it has the gradients of all of them."
    ),
    fix=(
        "Call the DDP module itself in training, and `loss.backward()` on what it returns. To "
        "accumulate gradients over several passes, use `ddp.no_sync()` for all but the last. If "
        "you compute gradients in another way, average them with `dist.all_reduce` before the "
        "step. `ddp.module` is right for evaluation and for saving."
    ),
    cases={
        "method": (
            "Compute the loss in the module's `forward`, and call the DDP module itself: only that "
            "call averages gradients."
        ),
        "training loop": (
            "Take the loop and `optimizer.step()` out of the module, compute the loss in its "
            "`forward`, and call the DDP module itself: only that call averages gradients."
        ),
    },
    bad="""\
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

averaged = []


def count(state, bucket):
    averaged.append(bucket.index())
    return allreduce_hook(state, bucket)


dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = DistributedDataParallel(torch.nn.Linear(2, 1))
model.register_comm_hook(None, count)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss = model.module(torch.ones(4, 2)).sum()
loss.backward()
optimizer.step()
print(f"averaged: {len(averaged)} of 1 buckets")  # prints: averaged: 0 of 1 buckets
dist.destroy_process_group()
""",
    good="""\
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

averaged = []


def count(state, bucket):
    averaged.append(bucket.index())
    return allreduce_hook(state, bucket)


dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = DistributedDataParallel(torch.nn.Linear(2, 1))
model.register_comm_hook(None, count)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss = model(torch.ones(4, 2)).sum()
loss.backward()
optimizer.step()
print(f"averaged: {len(averaged)} of 1 buckets")  # prints: averaged: 1 of 1 buckets
dist.destroy_process_group()
""",
    lint=(
        "On the training forward pass through `ddp.module(…)` or the module that was wrapped, "
        "or the `autograd.grad` over a DDP output, when an optimizer of these parameters steps "
        "afterwards."
    ),
    runtime=(
        "When an optimizer steps parameters of a live DDP module that received gradients since "
        "its last step, while the module's reducer did not run or still waits for some, `no_sync` "
        "was not used, and the program reduced nothing itself. The same for parameters that the "
        "module got after it was wrapped, where all backward passes before the step ran in "
        "`no_sync` and no rank averages parameters, and for gradients that `fully_shard` never "
        "reduces. Also with a world size of 1, where the numbers are still right. If the next "
        "forward pass fails for the missing gradients, only GG504 is reported."
    ),
    part="lost",
    silence=(
        "If the ranks are meant to train separately, or average in a way that gradguard does "
        "not see."
    ),
    links=(links.TORCH_DDP, links.TORCH_DISTRIBUTED),
)
