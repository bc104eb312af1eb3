"""GG202: a GPU tensor, array or module is pickled for, or from, a process worker."""

from pytest_gradguard.findings import Severity
from pytest_gradguard.pitfalls import Pitfall
from pytest_gradguard.pitfalls.links import TORCH_CUDA, TORCH_MULTIPROCESSING

PITFALL = Pitfall(
    code="GG202",
    name="cuda-tensor-to-worker",
    title="A GPU tensor crosses to a process worker",
    severity=Severity.WARNING,
    happens=(
        "The worker has to initialise CUDA to receive the tensor: every worker that gets one "
        "makes a context of its own, and the data is copied through the CPU and back to the "
        "same GPU. A worker that sees no GPU cannot receive it. Arrays of CuPy and JAX and tensors "
        "of TensorFlow arrive on the worker's default GPU, whichever they were on; those of "
        "TensorFlow and JAX on the CPU where the worker sees none."
    ),
    why=(
        "joblib's picklers write a GPU tensor's bytes and its device, and unpickling puts it "
        "on that device again."
    ),
    fix=(
        "Send `tensor.cpu()` (or a NumPy array: `cupy.asnumpy(array)`, `jax.device_get(array)`, "
        "`tensor.numpy()`) to the workers and return CPU data from them."
        " Move to the GPU in the one process that uses it."
    ),
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
    lint="On the call that ships a GPU tensor, array or module to a process worker.",
    runtime=(
        "When a GPU tensor or array is pickled for, or from, a process worker: a tensor of "
        "torch's, an array of CuPy's, a tensor or variable of TensorFlow's (Keras models by their "
        "first variable)."
    ),
    silence="Where the copies on the GPU are meant, and its memory holds them.",
    links=(TORCH_MULTIPROCESSING, TORCH_CUDA),
)
