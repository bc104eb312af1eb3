"""GG106: a backward in a process worker leaves its gradients there."""

from pytest_gradguard.pitfalls import Pitfall, Severity, links

PITFALL = Pitfall(
    code="GG106",
    name="gradients-left-in-worker",
    title="A backward pass in a process worker leaves its gradients there",
    severity=Severity.ERROR,
    happens=(
        "The worker runs `backward()` on a copy of the model. The parent's `.grad` stays as it "
        "was, so its `optimizer.step()` silently updates nothing, or misses the workers' part. "
        '`delayed(loss.backward)` and `delayed(optimizer.step)` "succeed" in the same way. '
        "`model.share_memory()` does not help: it shares the parameters, not their `.grad`."
    ),
    why=(
        "A worker process has a copy of the model. The gradients are stored in that copy, "
        "pickling drops `.grad`, and the copy is discarded."
    ),
    fix=(
        "Return the gradients (or the new parameters) from the worker and put them into the "
        "parent's model, or run the tasks with `pytest_gradguard.parallel.Parallel`. Or use "
        '`backend="threading"`: `backward()` calls from several threads on one model add up '
        "their gradients."
    ),
    cases={
        "shared memory": (
            "Run the optimizer's step in the worker, on the shared parameters. Or, for forked "
            "workers, share the gradients first (`p.grad = torch.zeros_like(p).share_memory_()`; "
            "`zero_grad(set_to_none=False)`)."
        ),
    },
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
        "neither gradients nor parameters nor the model. Nothing is reported if the parent clears "
        "these gradients after the call, computes them anew, or asks only whether there are any."
    ),
    runtime=(
        "When an optimizer steps in the parent, or code updates by `.grad`, over parameters whose "
        "copies, however they came, received gradients in a worker, a `Process` or an `os.fork`, "
        "however it ended, and that returned neither these gradients nor parameters. In the "
        "parent, some or all of the parameters have no gradient, zeros, one that a step has used "
        "before, or only that of a penalty. A result of the same shape does not count: the values "
        "are compared. Nothing is reported if the program clears the gradients itself after the "
        "call, trains the copy in shared memory, or shares the `.grad`."
    ),
    part="lost",
    silence=(
        "Only if the parent's step is meant to use other gradients than those that the workers "
        "computed."
    ),
    links=(links.TORCH_AUTOGRAD, links.TORCH_MULTIPROCESSING, links.TORCH_OPTIM),
)
