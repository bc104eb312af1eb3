"""GG303: a forked worker computes with torch or TensorFlow after its parent did."""

from pytest_gradguard.findings import Severity
from pytest_gradguard.pitfalls import Pitfall
from pytest_gradguard.pitfalls.links import START_METHODS, TORCH_MULTIPROCESSING, TORCH_THREADS

PITFALL = Pitfall(
    code="GG303",
    name="fork-after-threads-deadlock",
    title="Forked workers compute after the parent's compute threads have started",
    severity=Severity.ERROR,
    happens=(
        "The program hangs forever (Linux): the parent's large operation started native "
        "compute threads, and the same kind of operation in a forked worker waits for threads"
        " that do not exist there. Operations too small to start the threads work, so it "
        "often appears with the first real data. A PyTorch built with CUDA raises `RuntimeError: "
        "Unable to handle autograd's threading in combination with fork-based multiprocessing` "
        "instead, where autograd has used a GPU in the parent and a worker runs a backward pass. "
        "JAX starts its threads with its first operation, "
        "and every operation of its own in a forked worker waits for them."
    ),
    why=(
        "A fork copies only the thread that forks. The copied thread pool believes that its "
        "threads are there and waits for them."
    ),
    fix=(
        "Use the loky backend (joblib's default), or a spawn or forkserver context, whose "
        "workers are fresh interpreters. If torch must run in forked workers, call "
        "`torch.set_num_threads(1)` first in each of them."
    ),
    bad="""\
import torch
from joblib import Parallel, delayed


def trace(size):
    matrix = torch.ones(size, size)
    return (matrix @ matrix).trace().item()


print(trace(2000), flush=True)  # prints: 4000000.0
print(Parallel(n_jobs=2, backend="multiprocessing")(delayed(trace)(2000) for _ in range(2)))
""",
    good="""\
import torch
from joblib import Parallel, delayed


def trace(size):
    matrix = torch.ones(size, size)
    return (matrix @ matrix).trace().item()


print(trace(2000), flush=True)  # prints: 4000000.0
results = Parallel(n_jobs=2)(delayed(trace)(2000) for _ in range(2))
print(results)  # prints: [4000000.0, 4000000.0]
""",
    lint=(
        "On the `Parallel(...)` call with a fork backend whose worker runs torch or "
        "TensorFlow compute and does not limit its threads first, in a program whose parent "
        "computes before."
    ),
    runtime=(
        "When a task in a forked worker runs torch or TensorFlow compute while the parent's "
        "compute threads were up at the fork; reported instead of hanging. And beside "
        "autograd's own error, when it refuses to run in a forked worker."
    ),
    silence=(
        "Where the compute threads are known to be limited to one before the fork, in a way "
        "that gradguard does not see."
    ),
    links=(TORCH_MULTIPROCESSING, TORCH_THREADS, START_METHODS),
)
