"""GG111: running statistics that a process worker or a replica updates stay there."""

from pytest_gradguard.pitfalls import Pitfall, Severity, links

PITFALL = Pitfall(
    code="GG111",
    name="worker-buffers-lost",
    title="Buffers that a process worker updates stay in the worker",
    severity=Severity.WARNING,
    happens=(
        "A module with running statistics, such as `BatchNorm`, runs in training mode in a "
        "process worker, which returns gradients or parameters but no buffers. The parent's "
        "`running_mean`, `running_var` and `num_batches_tracked` silently stay as they were: the "
        "parent evaluates and saves a model whose statistics do not belong to its parameters. The "
        "replicas of `DataParallel` lose what `forward` assigns to buffers and attributes."
    ),
    why=(
        "A forward pass in training mode updates buffers in place, without a gradient. In a "
        "worker it updates the buffers of a copy, and `parameters()` does not include them. "
        "`DataParallel` makes new replicas for each forward pass; the first one shares the memory "
        "of the module's buffers, so that only writes in place reach the module."
    ),
    fix=(
        "Return the buffers (or the whole `state_dict()`) from the worker as well, and load or "
        "average them in the parent. Or call `model.eval()` in the worker if the statistics "
        "should not change, or use a norm without them, such as `GroupNorm`. With "
        '`backend="threading"` the tasks share one module.'
    ),
    cases={
        "process": (
            "Call `model.share_memory()` before the process starts, so that it updates the "
            "parent's buffers. Or send the buffers to the parent as well, and copy them into its "
            "module."
        ),
    },
    bad="""\
import torch
from joblib import Parallel, delayed


def gradients(model, x):
    loss = model(x).square().mean()
    return torch.autograd.grad(loss, list(model.parameters()))


model = torch.nn.BatchNorm1d(2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
parts = torch.full((8, 2), 5.0).chunk(2)
results = Parallel(n_jobs=2)(delayed(gradients)(model, part) for part in parts)
for parameter, *grads in zip(model.parameters(), *results):
    parameter.grad = sum(grads) / len(grads)
optimizer.step()
print(model.running_mean)  # prints: tensor([0., 0.])
""",
    good="""\
import torch
from joblib import Parallel, delayed


def gradients(model, x):
    loss = model(x).square().mean()
    grads = torch.autograd.grad(loss, list(model.parameters()))
    return grads, model.running_mean, model.running_var


model = torch.nn.BatchNorm1d(2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
parts = torch.full((8, 2), 5.0).chunk(2)
results = Parallel(n_jobs=2)(delayed(gradients)(model, part) for part in parts)
results, means, variances = zip(*results)
for parameter, *grads in zip(model.parameters(), *results):
    parameter.grad = sum(grads) / len(grads)
optimizer.step()
model.running_mean.copy_(sum(means) / len(means))
model.running_var.copy_(sum(variances) / len(variances))
print(model.running_mean)  # prints: tensor([0.5000, 0.5000])
""",
    lint=(
        "On the call that ships a module with running statistics to a process worker that calls "
        "it in training mode and returns neither buffers, `state_dict` nor the module, when the "
        "parent uses that module afterwards."
    ),
    runtime=(
        "When buffers of a module changed in a process worker, the result brings none of them "
        "back, and the parent then continues with that module: it steps its parameters, calls "
        "it or saves it. Nothing is reported for a copy that the worker trains by itself and "
        "discards, nor if the parent writes the buffers itself."
    ),
    reach=(
        "Buffers in shared memory, as `multiprocessing.Pool` and `ProcessPoolExecutor` send "
        "them, reach the parent when they are changed in place. A `Process` is watched until it "
        "ends, by whatever ends it; what it saves to a file counts as returned. What a process "
        "forked by `os.fork` changes is not seen."
    ),
    silence=(
        "If the parent's statistics should stay as they are, or are recomputed before evaluation."
    ),
    links=(links.TORCH_MODULES, links.TORCH_SERIALIZATION),
)
