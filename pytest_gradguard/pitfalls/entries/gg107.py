"""GG107: parameters or trainable variables are pickled for a process worker."""

from pytest_gradguard.pitfalls import Pitfall, Severity, links

PITFALL = Pitfall(
    code="GG107",
    name="parameters-to-worker",
    title="Parameters go to a process worker, which works on a copy",
    severity=Severity.INFO,
    happens=(
        "The worker gets a copy of the parameters, which still require grad. What the worker "
        "learns stays in its copy: the model in the parent is unchanged unless the worker "
        "returns what it learned and the parent loads it."
    ),
    why=(
        "Arguments of process workers are pickled. That is right for inference, or for training "
        "one model per worker and returning it. It is a surprise if you expect all workers to "
        "share one model."
    ),
    fix=(
        "If the worker trains, return the model or its `state_dict()` and load it in the "
        "parent. If all workers train one model, return gradients from them and step in the "
        "parent."
    ),
    cases={
        **dict.fromkeys(
            ("tensorflow", "keras"),
            "If the worker trains, return the values of the variables (`model.get_weights()` of "
            "a Keras model) and set them in the parent.",
        ),
        "other arrays": (
            "If the worker trains, return the trained parameters and load them in the parent."
        ),
    },
    bad="""\
import torch
from joblib import Parallel, delayed


def train(model, target):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = (model(torch.ones(1, 2)) - target).square().sum()
    loss.backward()
    optimizer.step()
    return loss.item()


models = [torch.nn.Linear(2, 1) for _ in range(2)]
before = [model.weight.detach().clone() for model in models]
Parallel(n_jobs=2)(delayed(train)(model, 5.0) for model in models)
print([torch.equal(old, m.weight) for old, m in zip(before, models)])  # prints: [True, True]
""",
    good="""\
import torch
from joblib import Parallel, delayed


def train(state, target):
    model = torch.nn.Linear(2, 1)
    model.load_state_dict(state)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = (model(torch.ones(1, 2)) - target).square().sum()
    loss.backward()
    optimizer.step()
    return model.state_dict()


models = [torch.nn.Linear(2, 1) for _ in range(2)]
before = [model.weight.detach().clone() for model in models]
states = Parallel(n_jobs=2)(delayed(train)(model.state_dict(), 5.0) for model in models)
for model, state in zip(models, states):
    model.load_state_dict(state)
print([torch.equal(old, m.weight) for old, m in zip(before, models)])  # prints: [False, False]
""",
    lint=None,
    runtime=(
        "When parameters or trainable variables, alone or in a module or model, are pickled "
        "for a process worker."
    ),
    part="sent",
    silence="It is hidden unless you ask for it: usually a copy of the model is what you want.",
    links=(links.TORCH_SERIALIZATION, links.KERAS_SAVING),
)
