"""GG112: an optimizer goes on with the parameters of a model that was replaced."""

from pytest_gradguard.pitfalls import Pitfall, Severity, links

PITFALL = Pitfall(
    code="GG112",
    name="optimizer-left-behind",
    title="The optimizer steps a model that was replaced by a worker's copy",
    severity=Severity.ERROR,
    happens=(
        "A process worker trains a model and returns it, and the parent continues with the "
        "returned model and with the optimizer that it made for the old one. `optimizer.step()` "
        "silently updates nothing that is still in use: the returned model never changes, and "
        "its gradients add up."
    ),
    why=(
        "An optimizer holds the parameters it was made with. A model that comes back from a "
        "process worker is a copy with new parameters, which no optimizer in the parent holds."
    ),
    fix=(
        "Make a new optimizer for the returned model, or load its `state_dict()` into the model "
        "that the optimizer already holds. To keep momentum and other optimizer state, load the "
        "`state_dict()`, or return `optimizer.state_dict()` from the worker and load that as "
        "well."
    ),
    bad="""\
import torch
from joblib import Parallel, delayed


def train(model, x):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(x).sum().backward()
    optimizer.step()
    return model


x = torch.ones(1, 2)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model = Parallel(n_jobs=2)(delayed(train)(model, x) for _ in range(2))[0]
before = model.weight.detach().clone()
optimizer.zero_grad()
model(x).sum().backward()
optimizer.step()
print(torch.equal(before, model.weight))  # prints: True
""",
    good="""\
import torch
from joblib import Parallel, delayed


def train(model, x):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(x).sum().backward()
    optimizer.step()
    return model


x = torch.ones(1, 2)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
trained = Parallel(n_jobs=2)(delayed(train)(model, x) for _ in range(2))[0]
model.load_state_dict(trained.state_dict())
before = model.weight.detach().clone()
optimizer.zero_grad()
model(x).sum().backward()
optimizer.step()
print(torch.equal(before, model.weight))  # prints: False
""",
    lint=(
        "On the parent's `optimizer.step()` after the model that the optimizer was made for was "
        "replaced by one that a worker returned."
    ),
    runtime=(
        "When a model that a worker returned receives gradients in the parent, while the "
        "optimizer that steps holds the parameters of the model that was sent, which receive "
        "none. Nothing is reported once an optimizer holds the returned parameters, or if their "
        "values are loaded into the model that was sent."
    ),
    reach=(
        "A returned model is recognised if it is the module that arrived in the worker. A new "
        "module that the worker builds or copies from it is not recognised, nor is one that "
        "comes back from a dask cluster. A module that a `Process` sends by a queue, a connection "
        "or a pickle is recognised by its values as it arrives."
    ),
    part="lost",
    silence="Only if both models stay in use, and the step is meant for the old one.",
    links=(links.TORCH_OPTIM, links.TORCH_SERIALIZATION),
)
