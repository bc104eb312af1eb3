"""GG305: one random generator object goes to several tasks."""

from pytest_gradguard.pitfalls import Pitfall, Severity, links

PITFALL = Pitfall(
    code="GG305",
    name="generator-object-to-tasks",
    title="One random generator object goes to several tasks",
    severity=Severity.WARNING,
    happens=(
        "Each task gets a copy of the generator in the same state, so every task draws the same "
        "numbers. (Tasks that joblib joins into one batch share a copy: then the numbers repeat "
        "from batch to batch.) The generator in the parent does not advance."
    ),
    why=(
        "The generator is pickled with every batch, often a single task, in the state that it "
        "has in the parent, and no worker's copy is ever sent back."
    ),
    fix=(
        "Give every task its own generator, from `rng.spawn(n)` (NumPy 1.25 and later) or from "
        "a seed per task."
    ),
    cases={
        "numpy.random.RandomState": (
            "Give every task its own generator, from a seed per task: "
            "`np.random.RandomState(seed)`."
        ),
        "random.Random": (
            "Give every task its own generator, from a seed per task: `random.Random(seed)`."
        ),
        "torch.Generator": (
            "Give every task its own generator, from a seed per task: "
            "`torch.Generator().manual_seed(seed)`."
        ),
        "tensorflow.random.Generator": (
            "Give every task its own generator, from `generator.split(n)` or from a seed per task."
        ),
        "keras.random.SeedGenerator": (
            "Give every task its own generator, from a seed per task: "
            "`keras.random.SeedGenerator(seed)`."
        ),
        "torch.utils.data": (
            "Let each worker make its own generator from `torch.initial_seed()`: in the "
            "`worker_init_fn`, or at the dataset's first draw."
        ),
    },
    bad="""\
import numpy as np
from joblib import Parallel, delayed


def sample(rng):
    return rng.normal()


rng = np.random.default_rng(0)
a, b = Parallel(n_jobs=2)(delayed(sample)(rng) for _ in range(2))
print(a == b)  # prints: True
""",
    good="""\
import numpy as np
from joblib import Parallel, delayed


def sample(rng):
    return rng.normal()


rng = np.random.default_rng(0)
a, b = Parallel(n_jobs=2)(delayed(sample)(child) for child in rng.spawn(2))
print(a == b)  # prints: False
""",
    lint=(
        "On the call that passes one random generator object (NumPy, torch, TensorFlow, "
        "`random`) to several tasks for process workers; on the `DataLoader` with several workers "
        "whose dataset draws in `__getitem__` from a generator that it holds."
    ),
    runtime=(
        "When two batches of a process call, two processes that the program starts itself, or two "
        "workers of a `DataLoader` draw from copies of one generator in the same state: a "
        "generator of `random`, NumPy, torch, TensorFlow or Keras that is an argument, an "
        "attribute or captured, or that a pool gives to its initializer; in forked workers also "
        "that of a module. `rng.spawn(1)` counts as a draw. Not tasks and streams that shuffle "
        "and then take a shard; what a stream draws before its first sample is compared between "
        "iterations, not workers."
    ),
    silence="If all tasks are meant to draw the same numbers, for example to compare them.",
    links=(links.NUMPY_PARALLEL, links.TORCH_RANDOMNESS, links.TF_RANDOM),
)
