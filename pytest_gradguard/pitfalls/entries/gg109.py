"""GG109: a worker imports a module afresh and sees its globals as they were at import."""

from pytest_gradguard.pitfalls import Pitfall, Severity, links

PITFALL = Pitfall(
    code="GG109",
    name="stale-module-global",
    title="A worker sees a module's global as it was at import",
    severity=Severity.WARNING,
    happens=(
        "The parent changes a model, tensor, variable or plain setting (a number, a string, an "
        "entry of a dict) that is a global of an imported module. The workers import that "
        "module again and use the value from the import: the results are silently computed with "
        "the old (or newly drawn) values."
    ),
    why=(
        "A function of an imported module is pickled by its name, not with its globals. loky, "
        "spawn and forkserver workers are fresh interpreters that import the module themselves. "
        "Only forked workers inherit the parent's state, and only functions of `__main__` are "
        "pickled with the globals that they use."
    ),
    fix=(
        "Pass the object or the setting to the worker function as an argument. The worker then "
        "gets the values that the parent has now."
    ),
    bad="""\
# network.py
import torch

weight = torch.zeros(1)


def predict(x):
    return (weight * x).item()


# main.py
import network
from joblib import Parallel, delayed

network.weight.fill_(10.0)
print(Parallel(n_jobs=2)(delayed(network.predict)(x) for x in (1.0, 2.0)))  # prints: [0.0, 0.0]
""",
    good="""\
# network.py
import torch

weight = torch.zeros(1)


def predict(weight, x):
    return (weight * x).item()


# main.py
import network
from joblib import Parallel, delayed

network.weight.fill_(10.0)
tasks = (delayed(network.predict)(network.weight, x) for x in (1.0, 2.0))
print(Parallel(n_jobs=2)(tasks))  # prints: [10.0, 20.0]
""",
    lint=(
        "On a worker function outside `__main__` that reads a module-level model, tensor or "
        "variable which the parent changes after import, when the workers are processes that "
        "were not forked."
    ),
    runtime=(
        "When the same global differs between the parent and a worker that imported the module "
        "itself, or is still None there; names that were imported from another module count, too. "
        "Plain values count only if the source of the module that defines them sets them to a "
        "constant that the parent has replaced. Dicts and lists that have only grown are taken "
        "for caches. Ray's workers are compared with the parent as it was when Ray exported the "
        "function or class."
    ),
    silence="If the workers should use the module as it is after import.",
    links=(links.JOBLIB_PARALLEL, links.START_METHODS),
)
