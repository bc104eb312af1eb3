"""GG108: a cached function returns a tensor that has a history."""

from pytest_gradguard.pitfalls import Pitfall, Severity, links

PITFALL = Pitfall(
    code="GG108",
    name="graph-through-memory-cache",
    title="A joblib.Memory cache stores a tensor with its history",
    severity=Severity.WARNING,
    happens=(
        "The first call returns the tensor with its graph, and the backward pass works. Every "
        "later call with the same arguments, in this run or the next, reads the result from the "
        "cache and returns a leaf without a graph: the gradient that was there before is "
        "silently missing. A TensorFlow tensor that was computed under a tape comes back as a "
        "constant."
    ),
    why="`joblib.Memory` stores results by pickling them, and pickle does not carry the graph.",
    fix=(
        "Cache only what has no history, such as `tensor.detach()` of the fixed part, and apply "
        "the trainable part outside the cached function."
    ),
    bad="""\
import tempfile

import torch
from joblib import Memory

memory = Memory(tempfile.mkdtemp(), verbose=0)


@memory.cache
def features(weight):
    return weight * 2


weight = torch.ones(2, requires_grad=True)
features(weight).sum().backward()
print(weight.grad)  # prints: tensor([2., 2.])
weight.grad = None
features(weight).sum().backward()
print(weight.grad)  # prints: None
""",
    good="""\
import tempfile

import torch
from joblib import Memory

memory = Memory(tempfile.mkdtemp(), verbose=0)


@memory.cache
def features(size):
    return torch.full((size,), 2.0)


weight = torch.ones(2, requires_grad=True)
(features(2) * weight).sum().backward()
print(weight.grad)  # prints: tensor([2., 2.])
weight.grad = None
(features(2) * weight).sum().backward()
print(weight.grad)  # prints: tensor([2., 2.])
""",
    lint="On the function cached by `joblib.Memory` whose return value carries autograd history.",
    runtime=(
        "When a `Memory` cache stores or returns a tensor that had a history. If an earlier run "
        "filled the cache: when it returns a tensor that requires grad, isn't a parameter, and "
        "comes from a function that makes no such leaf itself."
    ),
    silence="If only the values of the cached result are used.",
    links=(links.JOBLIB_MEMORY, links.TORCH_SERIALIZATION),
)
