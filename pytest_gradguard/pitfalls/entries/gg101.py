"""GG101: a tensor that requires grad is pickled for a process worker."""

from pytest_gradguard.findings import Severity
from pytest_gradguard.pitfalls import Pitfall
from pytest_gradguard.pitfalls.links import (
    JOBLIB_PARALLEL,
    TORCH_MULTIPROCESSING,
    TORCH_SERIALIZATION,
)

PITFALL = Pitfall(
    code="GG101",
    name="grad-tensor-to-worker",
    title="A tensor that requires grad goes to a process worker",
    severity=Severity.WARNING,
    happens=(
        "The worker gets a copy. The copy still requires grad, but its history and its "
        "`.grad` are gone: a tensor that was computed from others arrives as a new leaf. "
        "There is no error, and no gradient that the worker computes reaches the tensor in the "
        "parent or what it was computed from."
    ),
    why=(
        "Pickle carries a tensor's values and its `requires_grad` flag, not the graph behind "
        "it. Torch refuses to pickle a tensor with history only in the pickler of the "
        "standard `multiprocessing`; joblib has picklers of its own (on its multiprocessing "
        "backend only where NumPy is installed), so nothing refuses."
    ),
    fix=(
        "Run the tasks with `pytest_gradguard.parallel.Parallel`, whose results carry gradients; "
        "or send `tensor.detach()`, return gradients from the worker, and continue the backward "
        'in the parent with them. `backend="threading"` keeps the graph and needs no other '
        "change; it pays where the work releases the GIL."
    ),
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
        "When a torch tensor that requires grad and is no `nn.Parameter`, or a TensorFlow "
        "tensor watched by an active tape, is pickled for a process worker: as argument, "
        "capture, global or attribute, at any depth. Silent within the `forward` and `backward` "
        "of an `autograd.Function`, which gives its gradients by itself, and for an attribute "
        "that a module's hook computes anew before each forward pass (`weight_norm`, "
        "`spectral_norm`, pruning)."
    ),
    part="sent",
    silence=(
        "Where the workers only read the values, and no gradient is expected through them; "
        "`tensor.detach()` in the call says the same."
    ),
    links=(TORCH_SERIALIZATION, TORCH_MULTIPROCESSING, JOBLIB_PARALLEL),
)
