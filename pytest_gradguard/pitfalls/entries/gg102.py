"""GG102: a process worker returns a tensor that has a history."""

from pytest_gradguard.pitfalls import Pitfall, Severity, links
from pytest_gradguard.pitfalls.advice import LOADERS

PITFALL = Pitfall(
    code="GG102",
    name="graph-returned-from-worker",
    title="A process worker returns a tensor with its history",
    severity=Severity.WARNING,
    happens=(
        "The parent gets a leaf that requires grad and has no `grad_fn`: the history stays in "
        "the worker and is discarded. There is no error, and a later `backward()` stops at that "
        "leaf."
    ),
    why=(
        "The result is pickled on its way back, and pickle stores the values and the "
        "`requires_grad` flag, not the graph."
    ),
    fix=(
        "Return `tensor.detach()` (or `.item()`, or gradients computed in the worker); if the "
        "parent needs the graph, run the tasks with `pytest_gradguard.parallel.Parallel`. Or "
        'build the graph in the parent, or use `backend="threading"`.'
    ),
    cases={
        LOADERS: (
            "Return indices or inputs from the dataset, and compute what needs a gradient in the "
            "training loop; or use `num_workers=0`. If no gradient is needed, return "
            "`tensor.detach()`."
        ),
        "other arrays": (
            "Return plain values, or gradients computed in the worker; if the parent needs the "
            "graph, keep the tasks in one process, in threads."
        ),
    },
    bad="""\
import torch
from joblib import Parallel, delayed


def loss(factor):
    weight = torch.ones(3, requires_grad=True)
    return (weight * factor).sum()


losses = Parallel(n_jobs=2)(delayed(loss)(k) for k in (1.0, 2.0))
print(losses[0].requires_grad, losses[0].grad_fn)  # prints: True None
""",
    good="""\
import torch
from joblib import Parallel, delayed


def loss(factor):
    weight = torch.ones(3, requires_grad=True)
    value = (weight * factor).sum()
    value.backward()
    return value.item(), weight.grad


results = Parallel(n_jobs=2)(delayed(loss)(k) for k in (1.0, 2.0))
print(results[1])  # prints: (6.0, tensor([2., 2., 2.]))
""",
    lint=(
        "On the `return` of a worker function that returns a tensor with autograd history, when "
        "the workers are processes. The message says so where torch refuses to pickle such a "
        "result (standard pools and executors), and the call fails instead. For a tensor in "
        "another object it is an info finding, unless a backward pass stops there (GG103)."
    ),
    runtime=(
        "When a process worker returns a tensor that has a `grad_fn`, directly or in plain "
        "containers; or a process that the program starts sends one by `multiprocess`, which "
        "drops the graph silently. On a `Queue` of `multiprocessing` it is an error: torch "
        "refuses it after `put` has returned, and the item is lost. Inside another object, such "
        "as an estimator with its last loss, it is info. torch refuses to send such a tensor in a "
        "batch of a `DataLoader`, which then waits forever: an error, raised instead of the hang. "
        "It also refuses to collate tensors that require grad there: reported with its error."
    ),
    part="returned",
    silence=(
        "If the parent only reads the values, for example to log a loss. Calling `.detach()` in "
        "the worker says the same in code."
    ),
    links=(links.TORCH_SERIALIZATION, links.JOBLIB_PARALLEL),
)
