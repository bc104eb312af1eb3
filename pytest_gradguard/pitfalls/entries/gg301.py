"""GG301: no_grad and its kin are not in force in the workers."""

from pytest_gradguard.findings import Severity
from pytest_gradguard.pitfalls import Pitfall

PITFALL = Pitfall(
    code="GG301",
    name="grad-mode-not-propagated",
    title="The caller's gradient mode is not in force in the workers",
    severity=Severity.WARNING,
    happens=(
        "`no_grad`, `inference_mode`, `set_grad_enabled(False)` and `autocast` around a "
        "parallel call hold neither in thread workers nor in loky workers: the tasks build "
        "graphs, and use the memory for them, or run without autocast. (Workers forked by the"
        " multiprocessing backend inherit the mode.) A generator of tasks that computes is "
        "affected as well: joblib pulls it from other threads after the first few tasks."
    ),
    why=(
        "These modes belong to the thread that sets them. New threads and new interpreters "
        "start with the default."
    ),
    fix=(
        "Set the mode inside the worker function, by a `with` block or a decorator. Compute "
        "what the tasks need before the `Parallel` call, not in its generator."
    ),
    bad="""\
import torch
from joblib import Parallel, delayed


def predict(model, x):
    return model(x)


model = torch.nn.Linear(2, 1)
inputs = torch.ones(2, 1, 2)
with torch.no_grad():
    results = Parallel(n_jobs=2, backend="threading")(delayed(predict)(model, x) for x in inputs)
print([result.requires_grad for result in results])  # prints: [True, True]
""",
    good="""\
import torch
from joblib import Parallel, delayed


@torch.no_grad()
def predict(model, x):
    return model(x)


model = torch.nn.Linear(2, 1)
inputs = torch.ones(2, 1, 2)
results = Parallel(n_jobs=2, backend="threading")(delayed(predict)(model, x) for x in inputs)
print([result.requires_grad for result in results])  # prints: [False, False]
""",
    lint=(
        "On the `Parallel(...)` call under `no_grad`, `inference_mode`, "
        "`set_grad_enabled(False)` or `autocast` whose worker runs torch and does not set the"
        " mode itself, for threads and for processes that do not inherit the mode."
    ),
    runtime=(
        "When tasks of such a call made a graph, or ran without the caller's autocast, in "
        "spite of the mode in the caller; also for the caller's own task generator when "
        "joblib pulls it from another thread."
    ),
)
