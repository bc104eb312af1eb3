"""GG101: a tensor that requires grad is pickled for a process worker."""

from pytest_gradguard.pitfalls import Pitfall, Severity, links
from pytest_gradguard.pitfalls.advice import LOADERS

PITFALL = Pitfall(
    code="GG101",
    name="grad-tensor-to-worker",
    title="A tensor that requires grad goes to a process worker",
    severity=Severity.WARNING,
    happens=(
        "The worker gets a copy. The copy still requires grad, but its history and its `.grad` "
        "are gone: a tensor that was computed from others arrives as a new leaf. There is no "
        "error, and no gradient that the worker computes reaches the original tensor or the "
        "tensors it was computed from."
    ),
    why=(
        "Pickle stores a tensor's values and its `requires_grad` flag, not the graph behind it. "
        "Only the pickler of the standard `multiprocessing` module refuses a tensor with "
        "history. joblib uses its own picklers, which accept it (on its multiprocessing backend "
        "only if NumPy is installed)."
    ),
    fix=(
        "Run the tasks with `pytest_gradguard.parallel.Parallel`, whose results carry "
        "gradients; or send `tensor.detach()`, return the gradients, and continue the backward "
        'pass in the parent with them. `backend="threading"` keeps the graph without any other '
        "change; it runs in parallel where the work releases the GIL."
    ),
    cases={
        LOADERS: (
            "Give the dataset `tensor.detach()`, and compute what needs a gradient in the training "
            "loop."
        ),
        "other arrays": (
            "Send only the array's values, compute the gradient in the worker and return it; or "
            "keep the tasks in one process, in threads."
        ),
    },
    bad="""\
import torch
from joblib import Parallel, delayed


def gradient(features, factor):
    loss = (features * factor).sum()
    loss.backward()
    return features.grad


weight = torch.ones(3, requires_grad=True)
features = 2 * weight
Parallel(n_jobs=2)(delayed(gradient)(features, k) for k in (1.0, 3.0))
print(weight.grad)  # prints: None
""",
    good="""\
import torch
from joblib import Parallel, delayed


def gradient(features, factor):
    features = features.clone().requires_grad_()
    loss = (features * factor).sum()
    loss.backward()
    return features.grad


weight = torch.ones(3, requires_grad=True)
features = 2 * weight
values = features.detach()
gradients = Parallel(n_jobs=2)(delayed(gradient)(values, k) for k in (1.0, 3.0))
features.backward(sum(gradients))
print(weight.grad)  # prints: tensor([8., 8., 8.])
""",
    lint=(
        "On the `delayed(f)(...)` call, or the call that ships it, when an argument or a "
        "captured variable is known to be a tensor that requires grad and the workers are "
        "processes."
    ),
    runtime=(
        "When a torch tensor that requires grad and isn't an `nn.Parameter`, or a TensorFlow "
        "tensor watched by an active tape, is pickled for a process worker: as an argument, a "
        "captured variable, a global or an attribute, at any depth. Not reported if each worker "
        "returns the gradient, inside an `autograd.Function`, which supplies its own gradients, "
        "nor for an attribute that a module's hook recomputes before each forward pass "
        "(`weight_norm`, `spectral_norm`, pruning). Also when the program puts one with a graph "
        "on a `multiprocessing.Queue`: an error, as torch refuses to pickle it, and it is lost."
    ),
    part="sent",
    silence=(
        "If the workers only read the values and you expect no gradient through them. Passing "
        "`tensor.detach()` says the same in code."
    ),
    links=(links.TORCH_SERIALIZATION, links.TORCH_MULTIPROCESSING, links.JOBLIB_PARALLEL),
)
