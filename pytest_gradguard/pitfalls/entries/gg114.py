"""GG114: a worker trains a copy of a module, and the trained copy is lost."""

from pytest_gradguard.pitfalls import Pitfall, Severity, links

PITFALL = Pitfall(
    code="GG114",
    name="trained-copy-dropped",
    title="A worker trains a copy of a module, and the trained copy is lost",
    severity=Severity.WARNING,
    happens=(
        "A process worker steps the parameters of a module that was sent to it, with an optimizer "
        "of its own, and returns a loss or other numbers. The parent then evaluates, saves or "
        "steps the module as it was before the call: there is no error, and the losses look as "
        "if the module had learned."
    ),
    why=(
        "A process worker gets a copy of the module. Its optimizer changes the parameters of that "
        "copy, which are freed with the task unless the task returns or saves them."
    ),
    fix=(
        "Return `model.state_dict()` from the worker, and load it into the parent's module with "
        "`load_state_dict`. Where several workers train the same module, choose one state or "
        'average them. With `backend="threading"` the tasks share one module. If the copies are '
        "trials only, send `copy.deepcopy(model)`."
    ),
    cases={
        "process": (
            "Call `model.share_memory()` before the process starts, so that it trains the parent's "
            "parameters. Or save `model.state_dict()` there with `torch.save`, and load it into "
            "the parent's module."
        ),
    },
    bad="""\
import torch
from joblib import Parallel, delayed


def train(model, x):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = (model(x) - 1).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


model = torch.nn.Linear(2, 1)
before = model.weight.detach().clone()
losses = Parallel(n_jobs=2)(delayed(train)(model, torch.ones(4, 2)) for _ in range(2))
torch.save(model.state_dict(), "model.pt")
print(torch.equal(before, model.weight))  # prints: True
""",
    good="""\
import torch
from joblib import Parallel, delayed


def train(model, x):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = (model(x) - 1).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item(), model.state_dict()


model = torch.nn.Linear(2, 1)
before = model.weight.detach().clone()
results = Parallel(n_jobs=2)(delayed(train)(model, torch.ones(4, 2)) for _ in range(2))
best, state = min(results, key=lambda result: result[0])
model.load_state_dict(state)
torch.save(model.state_dict(), "model.pt")
print(torch.equal(before, model.weight))  # prints: False
""",
    lint=(
        "On the call that ships a module to a process worker that steps its parameters and "
        "returns neither the module, its `state_dict` nor its parameters, when the parent then "
        "evaluates, saves or steps that module. Nothing is reported if the worker saves the "
        "module, if its parameters are in shared memory, or if the parent first trains or loads "
        "the module itself."
    ),
    runtime=(
        "When an optimizer in a process worker has stepped parameters of a module, the task "
        "returns nothing that may hold them, and the parent then calls or saves "
        "that module with its old parameters. Nothing is reported if the task pickles a module, "
        "reads a `state_dict`, writes a file that is large enough for the parameters or connects "
        "to another host, if the parameters are in shared memory, or if the parent trains or "
        "loads the module itself. What a `Process` sends by queues, connections and managers "
        "counts as what a task returns."
    ),
    reach=(
        "A `Process` is watched until it ends, by whatever ends it, and the parent's use of the "
        "module counts from then on. What a process forked by `os.fork` trains is not seen."
    ),
    silence="If the copies are trials, and the parent should go on with the module as it was.",
    links=(links.TORCH_MULTIPROCESSING, links.TORCH_SERIALIZATION),
)
