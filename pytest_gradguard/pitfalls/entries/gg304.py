"""GG304: workers draw the same random numbers."""

from pytest_gradguard.pitfalls import Pitfall, Severity, links

PITFALL = Pitfall(
    code="GG304",
    name="identical-random-streams",
    title="Workers draw from random generators in the same state",
    severity=Severity.WARNING,
    happens=(
        "Every forked worker starts with the parent's generator state, so all workers draw the "
        "same numbers, and the next parallel call draws them again: noise, dropout and sampling "
        "repeat. (Python's own `random` gets a new seed in each of them.) Spawned workers draw the "
        "same numbers where a seed stands beside their functions."
    ),
    why=(
        "A fork copies the state of torch's and NumPy's global generators where the parent has "
        "loaded them, and of TensorFlow's where it has used TensorFlow or seeded it. loky's "
        "workers are fresh interpreters, each seeded on its own; the parent's seed has no effect "
        "there. But a fresh worker imports the module of its function, and under spawn and "
        "forkserver the program itself: a seed there that is not under "
        '`if __name__ == "__main__":` runs again in each.'
    ),
    fix=(
        "Give every task its own seed, and create a generator from it in the worker. "
        "`numpy.random.SeedSequence(seed).spawn(n)` makes independent seeds."
    ),
    cases={
        "only numpy": "Seed NumPy's generator in each task as well: `numpy.random.seed(seed)`.",
        "only random": "Seed Python's generator in each task as well: `random.seed(seed)`.",
        "only tensorflow": (
            "Seed TensorFlow's generator in each task as well: `tf.random.set_seed(seed)`."
        ),
        "only torch": "Seed torch's generator in each task as well: `torch.manual_seed(seed)`.",
    },
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
        "On a forked worker that draws from torch's, NumPy's or TensorFlow's global generator "
        "without seeding per task, and on any other where what it imports seeds the generator. An "
        "initializer that seeds every worker with one number does not count, and undoes what a "
        "`DataLoader` does for its workers. Not where the parent has not loaded torch or NumPy "
        "before the fork; an info where it has neither used nor seeded TensorFlow. Not what only "
        "fills a new module that then gets a state, nor draws on a GPU in a forked worker unless "
        "the parent seeds torch."
    ),
    runtime=(
        "Info, where two forked workers of one call, or two forked processes, drew from copies of "
        "torch's or NumPy's global generator in the same state."
    ),
    silence="If all workers are meant to draw the same numbers.",
    links=(links.TORCH_RANDOMNESS, links.NUMPY_PARALLEL),
)
