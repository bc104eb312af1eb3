"""GG307: the parent's seed does not reach fresh process workers."""

from pytest_gradguard.pitfalls import Pitfall, Severity, links

PITFALL = Pitfall(
    code="GG307",
    name="seed-stays-in-parent",
    title="The seed that the parent sets does not reach its workers",
    severity=Severity.INFO,
    happens=(
        "`torch.manual_seed`, `np.random.seed`, `random.seed` and the functions that call them "
        "seed the generators of the calling process. Tasks in loky, spawn or forkserver workers "
        "draw other numbers, and different ones in every run: the program is seeded, and its "
        "results still change. There is no error."
    ),
    why=(
        "These workers are fresh interpreters with global generators of their own, which are "
        "seeded at random when the library is imported there. (A seed that they run themselves, as "
        "they import the module where it stands, is GG304.)"
    ),
    fix=(
        "Give every task its own seed, drawn in the parent, and create a generator from it in "
        "the worker. `numpy.random.SeedSequence(seed).spawn(n)` makes independent seeds. A seed "
        "in the pool's initializer is not enough: which worker runs which task differs between "
        "runs."
    ),
    bad="""\
import torch
from joblib import Parallel, delayed


def sample():
    return torch.rand(1).item()


runs = []
for _ in range(2):
    torch.manual_seed(0)
    runs.append(Parallel(n_jobs=2)(delayed(sample)() for _ in range(2)))
print(runs[0] == runs[1])  # prints: False
""",
    good="""\
import torch
from joblib import Parallel, delayed


def sample(seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(1, generator=generator).item()


runs = []
for _ in range(2):
    torch.manual_seed(0)
    seeds = torch.randint(2**31, (2,)).tolist()
    runs.append(Parallel(n_jobs=2)(delayed(sample)(seed) for seed in seeds))
print(runs[0] == runs[1])  # prints: True
""",
    lint=(
        "On a seed call in the parent before a call to fresh process workers (loky, spawn, "
        "forkserver) whose tasks draw from the global generator and do not seed it, unless the "
        "workers import a seed of it."
    ),
    runtime=(
        "When tasks in such workers draw from torch's, NumPy's or Python's global generator, which "
        "the parent has seeded and the worker has not."
    ),
    silence=(
        "It is hidden unless you ask for it. If different numbers in every run are fine, there "
        "is nothing to do."
    ),
    links=(links.TORCH_RANDOMNESS, links.NUMPY_PARALLEL),
)
