"""GG301: no_grad, autocast and the derivatives that the caller takes do not reach the workers."""

from pytest_gradguard.findings import Severity
from pytest_gradguard.pitfalls import Pitfall
from pytest_gradguard.pitfalls.links import TORCH_AMP, TORCH_AUTOGRAD, TORCH_FUNC

PITFALL = Pitfall(
    code="GG301",
    name="grad-mode-not-propagated",
    title="The caller's no_grad or autocast does not reach the workers",
    severity=Severity.WARNING,
    happens=(
        "`no_grad`, `inference_mode`, `set_grad_enabled(False)` and `autocast` around a parallel "
        "call hold neither in thread workers nor in loky workers (forked ones inherit them): the "
        "tasks build graphs, or run without autocast. So does the caller's generator of tasks, "
        "which joblib pulls from other threads after the first few. `torch.func.grad`, `vjp` and "
        "`jvp` around thread workers silently give zeros, or lack the workers' part, and `vmap` "
        "fails; their tensors cannot be pickled. A tangent of `forward_ad.dual_level` reaches "
        "threads, but is not pickled, and there is no error."
    ),
    why=(
        "These modes belong to the thread that sets them. New threads and new interpreters "
        "start with the default."
    ),
    fix=(
        "Set the mode inside the worker function, by a `with` block or a decorator. Compute "
        "what the tasks need before the `Parallel` call, not in its generator. Open a transform "
        "or a dual level inside the worker function too: have each task return the derivative of "
        "its own part, and add them up in the caller."
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
        "joblib pulls it from another thread. An error where the caller takes a derivative, by "
        "`torch.func` or in forward mode, of what the tasks computed without it, and where torch "
        "refuses to run or pickle a task for that reason; silent where nothing that the tasks "
        "computed reaches the derivative."
    ),
    silence=(
        "Where it makes no difference to the tasks: they set the mode in a way that gradguard "
        "does not see, or the graph costs little and is thrown away."
    ),
    links=(TORCH_AUTOGRAD, TORCH_AMP, TORCH_FUNC),
)
