"""GG306: a task writes, through torch, into the memory map that joblib made of its argument."""

from pytest_gradguard.pitfalls import Pitfall, Severity, links

PITFALL = Pitfall(
    code="GG306",
    name="memmap-written-in-worker",
    title="A task writes through torch into an array that joblib has memory-mapped",
    severity=Severity.ERROR,
    happens=(
        "A segmentation fault kills the worker, and the call raises `TerminatedWorkerError`, "
        'which names neither the array nor the line (with `backend="multiprocessing"`, the call '
        "waits forever). It starts with the first array above 1 MB: smaller ones are copied, "
        'and writing to those works. With `mmap_mode="r+"` there is no error: all tasks write '
        "into one file, so each finds the array as the others left it."
    ),
    why=(
        "joblib writes each NumPy array above `max_nbytes` (1 MB) to a file, and every worker maps "
        "that file into its memory, read-only. NumPy refuses to write there. Torch has no "
        "read-only tensors: `torch.from_numpy`, `as_tensor`, `asarray` and `from_dlpack` share the "
        "array's memory, and an in-place operation, `out=` or an optimizer's step writes there."
    ),
    fix=(
        "Copy the array in the task, with `torch.tensor(array)` or "
        "`torch.from_numpy(array.copy())`, before anything writes to it. Or let joblib do it: "
        '`Parallel(..., mmap_mode="c")` gives each task private pages for its writes, and '
        "`max_nbytes=None` sends whole copies."
    ),
    bad="""\
import numpy as np
import torch
from joblib import Parallel, delayed


def doubled_sum(values):
    tensor = torch.from_numpy(values)
    tensor.mul_(2)
    return tensor.sum().item()


values = np.ones(1_000_000, dtype=np.float32)
tasks = [delayed(doubled_sum)(values) for _ in range(2)]
print(Parallel(n_jobs=2)(tasks))  # raises: TerminatedWorkerError
""",
    good="""\
import numpy as np
import torch
from joblib import Parallel, delayed


def doubled_sum(values):
    tensor = torch.tensor(values)
    tensor.mul_(2)
    return tensor.sum().item()


values = np.ones(1_000_000, dtype=np.float32)
tasks = [delayed(doubled_sum)(values) for _ in range(2)]
print(Parallel(n_jobs=2)(tasks))  # prints: [2000000.0, 2000000.0]
""",
    lint=(
        "On the in-place operation, or the `nn.Parameter`, on `torch.from_numpy` or `as_tensor` of "
        "an array that is an argument of a process worker of joblib."
    ),
    runtime=(
        "When a write to such an array kills a worker (Linux): the finding appears beside "
        "joblib's error, with the array, the task and the line. With joblib's multiprocessing "
        "backend, the call raises `WorkerKilledError` instead of waiting forever. With "
        '`mmap_mode="r+"`, when two tasks of a call have written to the same elements. Reading, '
        "copies and the program's own writable memory maps are not reported."
    ),
    silence="If the array always stays below `max_nbytes`.",
    links=(links.JOBLIB_PARALLEL, links.TORCH_NUMPY),
)
