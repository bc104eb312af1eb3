"""GG203: workers are forked from a parent that has initialised CUDA."""

from pytest_gradguard.pitfalls import Pitfall, Severity, links
from pytest_gradguard.pitfalls.advice import FRESH_WORKERS, LOADERS

_CONTEXTS = "Each of them that uses the GPU makes a context of its own there (GG201)."

PITFALL = Pitfall(
    code="GG203",
    name="cuda-after-fork",
    title="Workers are forked after CUDA was initialised",
    severity=Severity.ERROR,
    happens=(
        'Everything that needs CUDA in the forked workers fails: torch raises "Cannot '
        're-initialize CUDA in forked subprocess", CuPy "cudaErrorInitializationError". Work on '
        "the CPU in those workers is not affected, except for backward passes (GG303)."
    ),
    why=(
        "A fork copies the parent's memory, including a CUDA context that the driver does not "
        "let the child use, and CUDA cannot be initialised a second time there. It is enough that "
        "the parent has started the driver: `torch.cuda.is_available()` does, and so does the "
        "first backward pass on a machine with a GPU, even one on the CPU. "
        "`torch.cuda.device_count()` does not. The finding names the line."
    ),
    fix=(
        "Start the workers as fresh interpreters, with the start method spawn or forkserver. Or "
        "finish the forked work before the parent touches CUDA. If all that the parent does is "
        "ask, set `PYTORCH_NVML_BASED_CUDA_CHECK=1` in its environment."
    ),
    cases={
        **{library: f"{advice} {_CONTEXTS}" for library, advice in FRESH_WORKERS.items()},
        LOADERS: (
            "Return CPU tensors from the dataset and `collate_fn`, and move each batch with "
            "`.to(device)` in the training loop; or give the `DataLoader` "
            '`multiprocessing_context="spawn"`.'
        ),
    },
    bad="""\
import torch
from joblib import Parallel, delayed


def norm(values):
    return torch.tensor(values, device="cuda").norm().item()


scale = torch.tensor(2.0, device="cuda")
batches = [[3.0, 4.0], [6.0, 8.0]]
norms = Parallel(n_jobs=2, backend="multiprocessing")(delayed(norm)(b) for b in batches)
print(scale * sum(norms))
""",
    good="""\
import torch
from joblib import Parallel, delayed


def norm(values):
    return sum(value**2 for value in values) ** 0.5


batches = [[3.0, 4.0], [6.0, 8.0]]
norms = Parallel(n_jobs=2)(delayed(norm)(b) for b in batches)
device = "cuda" if torch.cuda.is_available() else "cpu"
scale = torch.tensor(2.0, device=device)
print((scale * sum(norms)).item())  # prints: 30.0
""",
    lint=(
        "On the `Parallel(...)` call with a fork backend whose worker uses CUDA, or gets what "
        "lies on a GPU, when the parent initialises CUDA earlier in the program, or starts its "
        "driver: by a question such as `torch.cuda.is_available()`, by taking gradients, by "
        "pinned memory, or by what uses a GPU unasked (`DataParallel`, `torch.compile`, "
        "autocast, `Accelerator`, `TrainingArguments`). A warning where an option or argument "
        "that makes the workers asks for none by default."
    ),
    runtime=(
        "When a fork backend starts work while CUDA is initialised in the parent; when a process "
        "that the program forked itself, or a `DataLoader` worker, needs CUDA then; and when CUDA "
        "fails in a forked worker because the parent had started the driver."
    ),
    reach=(
        "The guard sees torch initialise CUDA, TensorFlow take its GPUs as its context starts, "
        "and, while the guard is on, CuPy take its first memory."
    ),
    silence=(
        "Never if a GPU is used: the task fails. Only for a branch that cannot run on such a "
        "machine."
    ),
    links=(links.TORCH_MULTIPROCESSING, links.START_METHODS),
)
