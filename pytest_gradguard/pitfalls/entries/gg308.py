"""GG308: thread workers seed one global generator."""

from pytest_gradguard.pitfalls import Pitfall, Severity, links

PITFALL = Pitfall(
    code="GG308",
    name="threads-share-generator",
    title="Tasks in several threads seed the same global generator",
    severity=Severity.WARNING,
    happens=(
        "A task that seeds the global generator and then draws may get numbers from another "
        "thread's seed, or from a stream that another thread draws from too. The results depend "
        "on timing, and differ from those of the same tasks run one after another. There is no "
        "error."
    ),
    why=(
        "`torch.manual_seed`, `np.random.seed` and `random.seed` set one generator for the whole "
        "process, which all of its threads share. `torch.random.fork_rng` saves and restores that "
        "same generator, so it does not help."
    ),
    fix=(
        "Create a generator in each task from the task's seed, and draw from it: "
        "`torch.Generator().manual_seed(seed)`, `np.random.default_rng(seed)` or "
        "`random.Random(seed)`. Each process worker has its own global generator, so tasks may "
        "seed it there."
    ),
    cases={
        "torch": (
            "Create a generator in each task from the task's seed, "
            "`torch.Generator().manual_seed(seed)`, and draw from it."
        ),
        "numpy": (
            "Create a generator in each task from the task's seed, `np.random.default_rng(seed)`, "
            "and draw from it."
        ),
        "tensorflow": (
            "Create a generator in each task from the task's seed, "
            "`tf.random.Generator.from_seed(seed)`, and draw from it."
        ),
        "random": (
            "Create a generator in each task from the task's seed, `random.Random(seed)`, and draw "
            "from it."
        ),
    },
    bad="""\
import threading

import torch
from joblib import Parallel, delayed

both_seeded = threading.Barrier(2)  # makes the threads meet here in every run


def sample(seed):
    torch.manual_seed(seed)
    both_seeded.wait()
    return torch.rand(1).item()


a, b = Parallel(n_jobs=2, backend="threading")(delayed(sample)(0) for _ in range(2))
print(a == b)  # prints: False
""",
    good="""\
import threading

import torch
from joblib import Parallel, delayed

both_seeded = threading.Barrier(2)


def sample(seed):
    generator = torch.Generator().manual_seed(seed)
    both_seeded.wait()
    return torch.rand(1, generator=generator).item()


a, b = Parallel(n_jobs=2, backend="threading")(delayed(sample)(0) for _ in range(2))
print(a == b)  # prints: True
""",
    lint="On a call that seeds a global generator in a thread worker.",
    runtime=(
        "When tasks of one call seed one global generator in different threads and it is drawn "
        "from. Tasks that only draw share one stream, and are not reported."
    ),
    silence="If it does not matter which task gets which numbers.",
    links=(links.TORCH_RANDOMNESS, links.NUMPY_PARALLEL),
)
