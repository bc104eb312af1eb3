"""GG202: a GPU tensor, array or module is pickled for, or from, a process worker."""

from pytest_gradguard.pitfalls import Pitfall, Severity, links
from pytest_gradguard.pitfalls.advice import LOADERS, SAMPLES_ON_CPU

PITFALL = Pitfall(
    code="GG202",
    name="cuda-tensor-to-worker",
    title="A GPU tensor is sent to or from a process worker",
    severity=Severity.WARNING,
    happens=(
        "The worker has to initialise CUDA to receive the tensor: every worker that gets one "
        "creates its own context, and the data is copied through the CPU and back to the same "
        "GPU. A worker that sees no GPU cannot receive it. CuPy and JAX arrays and TensorFlow "
        "tensors arrive on the worker's default GPU, whichever GPU they were on; those of "
        "TensorFlow and JAX arrive on the CPU if the worker sees no GPU. Processes and pools of "
        "`multiprocessing` and `torch.multiprocessing` get a handle of the memory instead of a "
        "copy: the parent must keep the tensor as long as a worker uses it."
    ),
    why=(
        "joblib's picklers write a GPU tensor's data and its device, and unpickling puts it "
        "back on that device. torch's own, for `multiprocessing`, write a handle (CUDA IPC), "
        "which only a process with a context of its own can open."
    ),
    fix=(
        "Send `tensor.cpu()` to the workers, and return CPU data from them. For other arrays, "
        "send a NumPy array: `cupy.asnumpy(array)`, `jax.device_get(array)` or TensorFlow's "
        "`tensor.numpy()`. Move data to the GPU in the one process that uses it."
    ),
    cases={
        LOADERS: SAMPLES_ON_CPU,
        "result": (
            "Return `tensor.cpu()` from the worker, and move it to the GPU in the parent if it is "
            "needed there."
        ),
        "model": (
            "Send a copy of the module on the CPU, such as `copy.deepcopy(module).cpu()`, and "
            "return CPU data from the workers."
        ),
        "state": (
            "Send a state dict whose tensors are on the CPU, and return CPU data from the workers."
        ),
        "cupy": (
            "Send a NumPy array, `cupy.asnumpy(array)`, and return NumPy arrays from the workers."
        ),
        "jax": (
            "Send a NumPy array, `jax.device_get(array)`, and return NumPy arrays from the workers."
        ),
        "tensorflow": (
            "Send a NumPy array, `tensor.numpy()`, and return NumPy arrays from the workers."
        ),
        "other arrays": (
            "Send copies in CPU memory to the workers, and return CPU data from them."
        ),
    },
    bad="""\
import torch
from joblib import Parallel, delayed


def largest(row):
    return row.max().item()


table = torch.arange(6.0, device="cuda").reshape(2, 3)
print(Parallel(n_jobs=2)(delayed(largest)(row) for row in table))
""",
    good="""\
import torch
from joblib import Parallel, delayed


def largest(row):
    return row.max().item()


device = "cuda" if torch.cuda.is_available() else "cpu"
table = torch.arange(6.0, device=device).reshape(2, 3)
print(Parallel(n_jobs=2)(delayed(largest)(row) for row in table.cpu()))  # prints: [2.0, 5.0]
""",
    lint=(
        "On the call that ships a GPU tensor, array or module to a process worker. Not where "
        "`share_memory()` says that its memory is to be shared."
    ),
    runtime=(
        "When a GPU tensor or array is pickled for a process worker, or on its way back from "
        "one: a torch tensor, a CuPy array, a TensorFlow tensor or variable (Keras models by "
        "their first variable)."
    ),
    silence=(
        "If you want the copies on the GPU, and its memory has room for them; or if you share the "
        "memory on purpose, and the parent keeps it."
    ),
    links=(links.TORCH_MULTIPROCESSING, links.TORCH_CUDA),
)
