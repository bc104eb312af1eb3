"""GG201: a process worker makes a GPU context of its own."""

from pytest_gradguard.pitfalls import Pitfall, Severity, links
from pytest_gradguard.pitfalls.advice import LOADERS, SAMPLES_ON_CPU

PITFALL = Pitfall(
    code="GG201",
    name="cuda-init-in-worker",
    title="A process worker initialises CUDA",
    severity=Severity.WARNING,
    happens=(
        "With loky workers this is legal, but each worker pays for it: its own CUDA context "
        "takes hundreds of megabytes of GPU memory and seconds to start, and all workers crowd "
        "the same GPU unless each picks its own. TensorFlow takes nearly all memory of all "
        "GPUs, in each worker, unless it is configured otherwise. Without a GPU the worker "
        "fails, or TensorFlow runs on the CPU. In a forked worker whose parent has used CUDA, "
        "it always fails (GG203)."
    ),
    why=(
        "A CUDA context belongs to one process. Workers that are fresh interpreters cannot "
        "share the parent's, so each creates its own with the first tensor that it puts on the "
        "GPU."
    ),
    fix=(
        "Let the workers prepare data on the CPU, and use the GPU in one process, on whole "
        "batches. If you want one process per GPU, start one worker per device, pass each its "
        "device, and silence the finding there."
    ),
    cases={
        LOADERS: SAMPLES_ON_CPU,
        "whole program": (
            "Start no more of these workers than the GPU has room for, give each a GPU of its "
            "own, or run them on the CPU."
        ),
        "ray": (
            "Ask Ray for the GPU, as `@ray.remote(num_gpus=1)` does: it then runs no more of these "
            "at a time than there are GPUs, and shows each its own. Older releases hide the GPUs "
            "from what asks for none."
        ),
        "weights": ('Load with `map_location="cpu"`: nothing else in the worker uses the GPU.'),
    },
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
        "function that a process worker runs, through any depth of calls in the project. Not in "
        "processes that train together, or that a program starts one by one, each with a GPU of "
        "its own, nor where a worker chooses its GPU by its rank or process number, or an "
        "initializer may choose it. Info in a process that alone uses the GPU as long as it "
        "lives, and in the only one that does so beside the parent."
    ),
    runtime=(
        "When a task or an initializer of a worker pool initialises CUDA in its process, or "
        "tries to where there is no GPU. Reported once per call, with the number of workers "
        "and, if NVIDIA's driver reports it (on Linux, not in every container), the GPU memory "
        "that their contexts take. Processes that a program starts one by one, such as one per "
        "GPU, are not reported."
    ),
    reach=(
        "The guard sees torch initialise CUDA, CuPy take its first memory, and TensorFlow take "
        "its GPUs as its context starts. Without a GPU it sees every attempt by torch, every "
        "allocation by CuPy, and the errors of CuPy or TensorFlow that the task does not catch. "
        "With soft placement on, TensorFlow runs on the CPU what asks for a GPU, which does not "
        "count as an attempt. Not seen: code that takes a stream but no memory, memory under "
        "`cupy.cuda.using_allocator`, and what TensorFlow does while tensors arrive, before the "
        "task."
    ),
    silence="If each worker is meant to have its own context, such as one process per GPU.",
    links=(links.TORCH_MULTIPROCESSING, links.TORCH_CUDA, links.TF_GPU),
)
