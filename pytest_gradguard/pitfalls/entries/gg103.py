"""GG103: a backward in the parent reaches a result that lost its graph on the way back."""

from pytest_gradguard.pitfalls import Pitfall, Severity, links

_ONE_PROCESS = {
    "joblib": 'with `backend="threading"`',
    "multiprocessing": "with `multiprocessing.pool.ThreadPool`",
    "concurrent.futures": "with `ThreadPoolExecutor`",
}
"""How the tasks run in threads of one process instead, by library."""

_CASES = {
    library: (
        "Run the tasks with `pytest_gradguard.parallel.Parallel`, compute the gradients in the "
        f"workers and return them, or keep the forward pass in one process {threads}."
    )
    for library, threads in _ONE_PROCESS.items()
} | {
    "torch.distributed.rpc": (
        "With `from torch.distributed import autograd`, call and compute the loss in "
        "`with autograd.context() as context:`, and run `autograd.backward(context, [loss])` "
        "in place of `loss.backward()`."
    ),
    "dask": (
        'Compute with `dask.compute(..., scheduler="threads")` (what a client submits or maps, in '
        "a `ThreadPoolExecutor`), return gradients from the workers, or use "
        "`pytest_gradguard.parallel.Parallel`."
    ),
    "fixed parameters": (
        "If the parameters are fixed, compute the results in the workers under `torch.no_grad()`. "
        "If not, give them to the optimizer, and run the tasks with "
        "`pytest_gradguard.parallel.Parallel`."
    ),
    "transform": (
        "Compute the gradients in the workers, with the `torch.func` transform inside the task, "
        "and return them."
    ),
}

PITFALL = Pitfall(
    code="GG103",
    name="backward-through-worker-result",
    title="A backward pass in the parent flows through a worker's result",
    severity=Severity.ERROR,
    happens=(
        "`backward()` runs without an error, and the gradient ends in the `.grad` of the "
        "returned result. The tensors that the worker computed it from receive nothing: their "
        "`.grad` stays `None`, or is wrong if part of the loss was computed in the parent."
    ),
    why=(
        "The result was pickled, so it came back as a leaf. To autograd in the parent it is an "
        "input like any other, and the graph ends there."
    ),
    fix=(
        "Run the tasks with `pytest_gradguard.parallel.Parallel`, compute the gradients in the "
        "workers and return them, or keep the forward pass in one process, in threads "
        "(`ThreadPoolExecutor`). Then check with a test that every parameter receives a gradient. "
        "In split learning, ask for the gradient at the boundary explicitly: "
        "`torch.autograd.grad(loss, results)`."
    ),
    cases=_CASES,
    bad="""\
import torch
from joblib import Parallel, delayed


def scale(tensor, factor):
    return tensor * factor


x = torch.ones(3, requires_grad=True)
parts = Parallel(n_jobs=2)(delayed(scale)(x, k) for k in (1.0, 2.0))
loss = (parts[0] + parts[1]).sum()
loss.backward()
print(x.grad)  # prints: None
""",
    good="""\
import torch
from joblib import Parallel, delayed


def scale(tensor, factor):
    return tensor * factor


x = torch.ones(3, requires_grad=True)
parts = Parallel(n_jobs=2, backend="threading")(delayed(scale)(x, k) for k in (1.0, 2.0))
loss = (parts[0] + parts[1]).sum()
loss.backward()
print(x.grad)  # prints: tensor([3., 3., 3.])
""",
    lint=(
        "On the `.backward()` or `autograd.grad` in the parent that flows through a tensor "
        "returned by process workers with a graph behind it. Not for the standard pools and "
        "executors: there torch refuses to pickle the result, and `backward()` is never reached."
    ),
    runtime=(
        "When a backward pass in the parent sends its gradient to a tensor that had a graph in "
        "the worker (also pickled to a file), to a copy of it (dask's threads), or to an RPC's "
        "result outside of an autograd context. An error if a tensor that requires grad was sent "
        "to that call; a warning if none was, if no optimizer holds the parameters sent, or if it "
        "is from a `subprocess`. Not if the program asks for the gradient of the results "
        "(`inputs`, `retain_grad()`), and withdrawn if it sends each result's `.grad` on, sets "
        "the missing gradients, or optimizes the results (in mode `record`)."
    ),
    part="lost",
    silence=(
        "Only if the gradient with respect to the results themselves is what you want (split "
        "learning), in a form that gradguard does not recognise."
    ),
    links=(links.TORCH_AUTOGRAD, links.TORCH_SERIALIZATION, links.JOBLIB_PARALLEL),
)
