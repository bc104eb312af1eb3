"""GG201: a process worker makes a GPU context of its own."""

from pytest_gradguard.findings import Severity
from pytest_gradguard.pitfalls import Pitfall
from pytest_gradguard.pitfalls.links import TF_GPU, TORCH_CUDA, TORCH_MULTIPROCESSING

PITFALL = Pitfall(
    code="GG201",
    name="cuda-init-in-worker",
    title="A process worker initialises CUDA",
    severity=Severity.WARNING,
    happens=(
        "Under loky this is legal, and each worker pays for it: a CUDA context of its own "
        "takes hundreds of megabytes of GPU memory and seconds to start, and all workers "
        "crowd the same GPU unless each picks its own; TensorFlow takes nearly all memory of "
        "all GPUs, in each worker, unless told otherwise. Where there is no GPU, the worker "
        "fails, or TensorFlow works on the CPU. In a forked worker whose parent has used "
        "CUDA, it always fails (GG203)."
    ),
    why=(
        "A CUDA context belongs to one process. Workers that are fresh interpreters cannot "
        "share the parent's, so each makes one at the first tensor that it puts on the GPU."
    ),
    fix=(
        "Let the workers prepare data on the CPU, and use the GPU in one process, on whole "
        "batches. Where one process per GPU is meant, start one worker per device, hand each "
        "its device, and accept the finding there."
    ),
    bad="""\
import torch
from joblib import Parallel, delayed


def total(values):
    return torch.tensor(values, device="cuda").square().sum().item()


batches = [[1.0, 2.0], [3.0, 4.0]]
print(sum(Parallel(n_jobs=2)(delayed(total)(batch) for batch in batches)))
""",
    good="""\
import torch
from joblib import Parallel, delayed


def prepare(values):
    return [value / 2 for value in values]


batches = [[1.0, 2.0], [3.0, 4.0]]
prepared = Parallel(n_jobs=2)(delayed(prepare)(batch) for batch in batches)
device = "cuda" if torch.cuda.is_available() else "cpu"
print(torch.tensor(prepared, device=device).square().sum().item())  # prints: 7.5
""",
    lint=(
        "On the expression that initialises a GPU context (torch, CuPy, TensorFlow) inside a "
        "function that a process worker runs, through any depth of calls in the project."
    ),
    runtime=(
        "When a task, or an initializer, of a pool of workers initialised CUDA in its process, or "
        "tried to where there is no GPU. Once for each call, with the number of workers and, where "
        "NVIDIA's driver tells (on Linux, not in every container), the GPU memory that their "
        "contexts take. Processes that a program starts one by one, such as one for each GPU, are "
        "left alone."
    ),
    reach=(
        "It sees torch initialise CUDA, CuPy take its first memory, and TensorFlow take its GPUs "
        "as its context begins. Where there is no GPU: every attempt of torch's, every allocation "
        "of CuPy's, and what CuPy or TensorFlow raises where the task does not catch it. "
        "TensorFlow runs on the CPU what asks for a GPU, unless soft placement is off: that is no "
        "attempt. Not seen: what takes a stream, but no memory; memory under "
        "`cupy.cuda.using_allocator`; what TensorFlow does as tensors arrive, before the task."
    ),
    silence=(
        "Where each worker is meant to have a context of its own, such as one process for each GPU."
    ),
    links=(TORCH_MULTIPROCESSING, TORCH_CUDA, TF_GPU),
)
