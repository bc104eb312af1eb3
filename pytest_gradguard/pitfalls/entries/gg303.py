"""GG303: a forked worker computes with torch or TensorFlow after its parent did."""

from pytest_gradguard.pitfalls import Pitfall, Severity, links
from pytest_gradguard.pitfalls.advice import (
    FRESH_WORKERS,
    LIBRARYS_POOL,
    LOADERS,
    SPAWN_AT_THE_START,
)

PITFALL = Pitfall(
    code="GG303",
    name="fork-after-threads-deadlock",
    title="Forked workers compute after the parent's compute threads have started",
    severity=Severity.ERROR,
    happens=(
        "The program hangs forever (Linux): a large operation in the parent started native compute "
        "threads, and a large one in a forked worker waits for threads that do not exist there. "
        "Small ones start none, so the hang often appears with the first real data; of TensorFlow "
        "and JAX any operation starts them, of Keras an optimizer or a model with weights too. "
        "With a GPU, once the parent has taken gradients, even on the CPU, a worker's backward "
        "pass raises `RuntimeError: Unable to handle autograd's threading in combination with "
        "fork-based multiprocessing`."
    ),
    why=(
        "A fork copies only the thread that forks. The copied thread pool still expects its "
        "other threads, and waits for them. torch starts its threads for products of matrices, "
        "convolutions and backward passes, for elementwise operations and reductions of more than "
        "32,768 elements, and for `share_memory()` of parameters of more than 32 KiB."
    ),
    fix=(
        "Start the workers as fresh interpreters, with the start method spawn or forkserver. If "
        "torch must run in forked workers, call `torch.set_num_threads(1)` first in each of them."
    ),
    cases={
        **FRESH_WORKERS,
        **{
            library: (
                f"{FRESH_WORKERS[library]} On the CPU, torch also works in forked workers that "
                "call `torch.set_num_threads(1)` first."
            )
            for library in ("multiprocessing", "torch.multiprocessing")
        },
        LIBRARYS_POOL: (
            "Call `torch.set_num_threads(1)` first in the function (torch on the CPU), or "
            f"{SPAWN_AT_THE_START}"
        ),
        LOADERS: (
            'Give the `DataLoader` `multiprocessing_context="spawn"`; or let its forked workers '
            "compute with torch in the one thread that it gives them, and not with TensorFlow or "
            "JAX."
        ),
    },
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
        "On the `Parallel(...)` call with a fork backend whose worker runs torch, TensorFlow or "
        "JAX compute and does not limit its threads first, when the parent computes earlier in "
        "the program; or whose worker takes gradients after the parent has taken some, in a "
        "program that uses a GPU."
    ),
    runtime=(
        "When a task in a forked worker runs torch, TensorFlow or JAX compute, and the parent's "
        "compute threads were running at the fork: the guard reports it instead of hanging. "
        "Also when autograd refuses to run in a forked worker or process: the finding appears "
        "beside autograd's own error."
    ),
    silence=(
        "If the compute threads are limited to one before the fork, in a way that gradguard "
        "does not see."
    ),
    links=(links.TORCH_MULTIPROCESSING, links.TORCH_THREADS, links.START_METHODS),
)
