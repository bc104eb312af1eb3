"""GG503: a distributed sampler that repeats its order in every epoch."""

from pytest_gradguard.pitfalls import Pitfall, Severity, links

PITFALL = Pitfall(
    code="GG503",
    name="sampler-epoch-not-set",
    title="A DistributedSampler gives the same shuffled order in every epoch",
    severity=Severity.WARNING,
    happens=(
        "Every epoch goes through the data in the same order, and each rank gets the same part of "
        "it again. There is no error: the first epoch is shuffled as it should be."
    ),
    why=(
        "All ranks must draw the same permutation, so `DistributedSampler` seeds its own "
        "generator with `seed + epoch` instead of using the global one. It cannot know when an "
        "epoch begins: its `epoch` stays 0 until the program calls `set_epoch`."
    ),
    fix=(
        "Call `set_epoch(epoch)` on the sampler at the beginning of each epoch, before the loop "
        "over the loader. A sampler for evaluation does not need to shuffle: give it "
        "`shuffle=False`."
    ),
    bad="""\
import torch
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

data = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
sampler = DistributedSampler(data, num_replicas=2, rank=0)
loader = DataLoader(data, batch_size=4, sampler=sampler)
weight = torch.ones(1, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.01)
orders = []
for _ in range(3):
    for batch in loader:
        (weight * batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        orders.append(batch.tolist())
print(orders[0] == orders[1] == orders[2])  # prints: True
""",
    good="""\
import torch
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

data = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
sampler = DistributedSampler(data, num_replicas=2, rank=0)
loader = DataLoader(data, batch_size=4, sampler=sampler)
weight = torch.ones(1, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.01)
orders = []
for epoch in range(3):
    sampler.set_epoch(epoch)
    for batch in loader:
        (weight * batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        orders.append(batch.tolist())
print(orders[0] == orders[1] == orders[2])  # prints: False
""",
    lint=(
        "On a loop over epochs that goes through a loader whose `DistributedSampler` (or one "
        "that extends it, and goes by its epoch) shuffles and gets no `set_epoch`, or one with "
        "the same number each time, if the batches are for training: the loop, or what it calls, "
        "has a `backward` or a `step`, or nothing in the program has one. Not in a program that "
        "joins no process group, where a sampler that is not told its share raises."
    ),
    runtime=(
        "When a sampler that shuffles begins a second pass with the epoch of the first. Passes in "
        "which an optimizer steps count; in a program where none steps, every complete pass does. "
        "A pass that begins with gradients off (evaluation under `no_grad`) never counts, nor does "
        "a first look at one batch, nor a sampler with an `__iter__` of its own."
    ),
    silence="If you want the same order in every epoch.",
    links=(links.TORCH_DATA, links.TORCH_DISTRIBUTED),
)
