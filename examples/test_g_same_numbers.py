"""Every task is handed one generator of random numbers; all of them draw the same.

Each batch of tasks gets a copy of the generator, in the state that it has in the parent.

The guard reports GG305, a warning, at the call.
"""

import random

from joblib import Parallel, delayed


def estimate(generator, points):
    """A quarter of pi, by throwing darts."""
    hits = sum(generator.random() ** 2 + generator.random() ** 2 < 1 for _ in range(points))
    return hits / points


def test_mean_of_estimates():
    generator = random.Random(0)
    parallel = Parallel(n_jobs=2, batch_size=1)
    estimates = parallel(delayed(estimate)(generator, 1_000) for _ in range(4))

    print("estimates:", estimates)
    assert len(set(estimates)) == 1  # four times the work, no more knowledge
