"""GG301: modes, settings and derivatives of the caller that do not reach the workers."""

from pytest_gradguard.pitfalls import Pitfall, Severity, links

PITFALL = Pitfall(
    code="GG301",
    name="grad-mode-not-propagated",
    title="The caller's no_grad or autocast does not reach the workers",
    severity=Severity.WARNING,
    happens=(
        "`no_grad`, `inference_mode`, `autocast` and a default device around a parallel call do "
        "not apply in threads (`Thread` included) or loky workers (forked "
        "workers inherit them), and only at first in the generator from which joblib takes the "
        "tasks. `torch.func` transforms around threads give zeros. A tangent of "
        "`forward_ad.dual_level` is not pickled. "
        "`set_default_dtype`, `use_deterministic_algorithms`, `set_float32_matmul_precision` "
        "and the cuDNN flags reach threads, but not loky or spawn workers: tasks create tensors "
        "of another dtype, or compute with another precision. There is no error."
    ),
    why=(
        "The modes belong to the thread that sets them, the settings to the process. New "
        "threads and new interpreters start with the defaults."
    ),
    fix=(
        "Set the mode inside the worker function, with a `with` block or a decorator. Compute "
        "what the tasks need before the `Parallel` call, not in its generator. Apply "
        "process-wide settings in the worker function too, or in the pool's initializer. Open a "
        "transform or a dual level inside the task: have each task return the derivative of its "
        "own part, and add them up in the caller."
    ),
    cases={
        "transform": (
            "Open the transform inside the task: have each task return the derivative of its own "
            "part, and add them up in the caller. Without workers, the transform works as it is."
        ),
        "forward mode": (
            "Enter the dual level inside the task: send the tensor and its tangent, and return "
            "both parts of `unpack_dual`."
        ),
    },
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
        "When tasks of such a call, or a `Thread` that the program starts, built a graph, ran "
        "without autocast, or created tensors on another device; also for the caller's generator "
        "of tasks. It is an error if the caller takes a derivative of what the tasks computed "
        "without it. Settings: when a process worker has torch's default and the caller does not, "
        "and a task created a float tensor without a dtype, or called what the setting affects: "
        "for deterministic algorithms, a function that torch's documentation names, such as "
        "`matmul`. It is info if the setting may make a difference on other hardware only."
    ),
    silence=(
        "If it makes no difference to the tasks: they set the mode in a way that gradguard does "
        "not see, or the graph is cheap and is discarded."
    ),
    links=(links.TORCH_AUTOGRAD, links.TORCH_AMP, links.TORCH_FUNC),
)
