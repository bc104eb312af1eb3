"""GG501: a collective of `torch.distributed` hands out tensors without history."""

from pytest_gradguard.pitfalls import Pitfall, Severity, links

PITFALL = Pitfall(
    code="GG501",
    name="collective-cuts-graph",
    title="A collective of torch.distributed cuts the graph",
    severity=Severity.ERROR,
    happens=(
        "`all_gather`, `gather` and the other collectives fill their output tensors with values "
        "only. There is no error: a loss that is computed from the outputs has no gradient for "
        "what was gathered, not even for this rank's own part. The rest of the model trains."
    ),
    why=(
        "The communication runs outside autograd, so each output is a leaf to autograd, as if it "
        "had been read from a file. `all_gather_object` pickles the tensor, which drops its graph."
    ),
    fix=(
        "Use a differentiable collective: `torch.distributed.nn.functional.all_gather(features)` "
        "or its functional successor, in Lightning `self.all_gather(features, sync_grads=True)`. "
        "Its backward pass brings each rank the gradients of the losses of all ranks. "
        "`gathered[rank] = features` restores the gradient of this rank's own loss alone: that is "
        "exact only if no loss uses the rows of other ranks. `accelerator.gather` is for metrics. "
        "If you want no gradient, gather `features.detach()`."
    ),
    bad="""\
import torch
import torch.distributed as dist

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
encoder = torch.nn.Linear(2, 2)
head = torch.nn.Linear(2, 1)
features = encoder(torch.ones(3, 2))
gathered = [torch.empty_like(features) for _ in range(dist.get_world_size())]
dist.all_gather(gathered, features)
loss = head(torch.cat(gathered)).sum()
loss.backward()
print(head.weight.grad is None)  # prints: False
print(encoder.weight.grad is None)  # prints: True
dist.destroy_process_group()
""",
    good="""\
import torch
import torch.distributed as dist
from torch.distributed.nn.functional import all_gather

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
encoder = torch.nn.Linear(2, 2)
head = torch.nn.Linear(2, 1)
features = encoder(torch.ones(3, 2))
gathered = all_gather(features)
loss = head(torch.cat(gathered)).sum()
loss.backward()
print(head.weight.grad is None)  # prints: False
print(encoder.weight.grad is None)  # prints: False
dist.destroy_process_group()
""",
    lint=(
        "On the call of `all_gather`, `all_gather_into_tensor`, `gather`, `all_gather_object` "
        "or `broadcast` of `torch.distributed`, or of `accelerator.gather`, that gets a tensor "
        "with history, if its outputs reach a loss and this rank's own slot is not put back."
    ),
    runtime=(
        "When a backward pass starts from something that was computed from this rank's own part "
        "of such an output, as a constant, although the tensor that was passed in had history, "
        "and the loss depends on that part: where its rows are cut out, overwritten with "
        "the tensor itself or masked, nothing is reported. Reported at the call, also with a "
        "world size of 1. Nothing is reported for metrics, for `detach` and `no_grad`, and for "
        "differentiable collectives. `broadcast` is reported on the ranks that receive: the "
        "gradient goes to what they computed themselves, which the received values have "
        "replaced."
    ),
    part="lost",
    silence=(
        "Only if the gathered values are meant as constants. Gathering `features.detach()` says "
        "the same in code."
    ),
    links=(links.TORCH_DISTRIBUTED, links.TORCH_AUTOGRAD),
)
