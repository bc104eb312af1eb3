"""GG304: forked workers draw the same random numbers."""

from pytest_gradguard.pitfalls import Pitfall, Severity, links

PITFALL = Pitfall(
    code="GG304",
    name="identical-random-streams",
    title="Forked workers draw from copies of one random generator",
    severity=Severity.WARNING,
    happens=(
        "Every forked worker starts with the parent's generator state, so all workers draw the "
        "same numbers, and the next parallel call draws them again: noise, dropout and sampling "
        "repeat. (Python's own `random` gets a new seed in each worker.)"
    ),
    why=(
        "A fork copies the state of torch's and NumPy's global generators, and of "
        "TensorFlow's once the parent has seeded or used it. loky's workers are fresh "
        "interpreters, each seeded on its own; the parent's seed has no effect there."
    ),
    fix=(
        "Give every task its own seed, and create a generator from it in the worker. "
        "`numpy.random.SeedSequence(seed).spawn(n)` makes independent seeds."
    ),
    bad="""\
import torch
from joblib import Parallel, delayed


def sample():
    return torch.rand(1).item()


first = Parallel(n_jobs=2, backend="multiprocessing")(delayed(sample)() for _ in range(2))
second = Parallel(n_jobs=2, backend="multiprocessing")(delayed(sample)() for _ in range(2))
print(first[0] == second[0])  # prints: True
""",
    good="""\
import torch
from joblib import Parallel, delayed


def sample(seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(1, generator=generator).item()


first = Parallel(n_jobs=2, backend="multiprocessing")(delayed(sample)(k) for k in (0, 1))
second = Parallel(n_jobs=2, backend="multiprocessing")(delayed(sample)(k) for k in (2, 3))
print(len({*first, *second}))  # prints: 4
""",
    lint=(
        "On a worker of a fork backend that draws from torch's, NumPy's or TensorFlow's "
        "global generator without seeding per task. An initializer that seeds every worker with "
        "one number does not count."
    ),
    runtime=(
        "Info, where two forked workers of one call, or two forked processes, drew from copies of "
        "torch's or NumPy's global generator in the same state."
    ),
    silence="If all workers are meant to draw the same numbers.",
    links=(links.TORCH_RANDOMNESS, links.NUMPY_PARALLEL),
)
