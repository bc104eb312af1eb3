"""GG106: a backward in a process worker leaves its gradients there."""

from pytest_gradguard.findings import Severity
from pytest_gradguard.pitfalls import Pitfall
from pytest_gradguard.pitfalls.links import TORCH_AUTOGRAD, TORCH_MULTIPROCESSING, TORCH_OPTIM

PITFALL = Pitfall(
    code="GG106",
    name="gradients-left-in-worker",
    title="A backward in a process worker leaves its gradients there",
    severity=Severity.ERROR,
    happens=(
        "The worker runs `backward()` on a copy of the model. The parent's `.grad` stays as it "
        "was, so its `optimizer.step()` silently updates nothing, or misses the workers' part. "
        '`delayed(loss.backward)` and `delayed(optimizer.step)` "succeed" in the same way. '
        "`model.share_memory()` does not help: the parameters are shared, their `.grad` is not."
    ),
    why=(
        "A worker process has a copy of the model. The gradients are stored in the copy, "
        "pickling drops `.grad`, and the copy is thrown away."
    ),
    fix=(
        "Return the gradients (or the new parameters) from the worker and put them into the "
        "parent's model, or run the tasks with `pytest_gradguard.parallel.Parallel`. Or use "
        '`backend="threading"`: the backward calls of several threads on one model add up.'
    ),
    bad="""\
import torch
from joblib import Parallel, delayed


def backward(model, value):
    loss = model(torch.full((1, 2), value)).sum()
    loss.backward()


model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
before = model.weight.detach().clone()
Parallel(n_jobs=2)(delayed(backward)(model, value) for value in (1.0, 2.0))
optimizer.step()
print(torch.equal(before, model.weight))  # prints: True
""",
    good="""\
import torch
from joblib import Parallel, delayed


def gradients(model, value):
    loss = model(torch.full((1, 2), value)).sum()
    return torch.autograd.grad(loss, list(model.parameters()))


model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
before = model.weight.detach().clone()
results = Parallel(n_jobs=2)(delayed(gradients)(model, value) for value in (1.0, 2.0))
for parameter, *parts in zip(model.parameters(), *results):
    parameter.grad = sum(parts)
optimizer.step()
print(torch.equal(before, model.weight))  # prints: False
""",
    lint=(
        "On `delayed(loss.backward)` and `delayed(optimizer.step)`, and on the `.backward()` "
        "in a process worker on a model or tensor that was shipped to it, when the parent "
        "steps an optimizer on the same model or reads its `.grad` and the worker returns "
        "neither gradients nor parameters nor the model."
    ),
    runtime=(
        "When an optimizer steps in the parent over parameters, some or all, that have no "
        "gradient, zeros, an unchanged one from before the call or that of a penalty alone, "
        "whose copies received gradients in a worker or in a `Process` that sent back neither "
        "these gradients nor parameters. A result of the same shape is no gradient: the values "
        "are compared. Nothing is reported where the program clears the gradients itself after "
        "the call, where the copy is trained in shared memory, or where a shared `.grad` arrives."
    ),
    part="lost",
    silence=(
        "Only where the parent's step is meant to use other gradients than those that the "
        "workers computed."
    ),
    links=(TORCH_AUTOGRAD, TORCH_MULTIPROCESSING, TORCH_OPTIM),
)
