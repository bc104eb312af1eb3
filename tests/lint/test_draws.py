"""What leaves nothing to chance is no draw: as the libraries themselves show."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

ONE = """\
np.random.randint(3, 4)
np.random.randint(LOW, LOW + 1)
np.random.randint(LOW, high=LOW + 1, size=3)
np.random.randint(1)
np.random.randint(low=0, high=1)
np.random.randint(k, k + 1)
np.random.randint(*span())
np.random.randint(same(LOW), same(LOW) + 1)
np.random.randint(LOW, above(LOW))
np.random.randint(3, limit(True))
np.random.randint(Range().low, Range().high)
np.random.randint(len(ONE))
np.random.randint(0, 9, size=0)
np.random.randint(0, 9, (0, 3))
np.random.uniform(2.0, 2.0)
np.random.uniform(k, k)
np.random.uniform(low=LOW, high=LOW)
np.random.uniform(1)
np.random.uniform(high=0)
np.random.uniform(**EQUAL)
np.random.normal(3, 0)
np.random.normal(loc=k, scale=0.0)
np.random.normal(scale=SIGMA)
np.random.normal(size=0)
np.random.lognormal(1, 0)
np.random.exponential(0)
np.random.poisson(0)
np.random.binomial(0, 0.5)
np.random.binomial(4, 0)
np.random.binomial(4, 1)
np.random.permutation(1)
np.random.permutation([LOW])
np.random.shuffle([LOW])
np.random.choice([LOW])
np.random.choice(["a"], size=4)
np.random.choice([LOW, LOW])
np.random.rand(0)
random.randint(3, 3)
random.randint(LOW, same(LOW))
random.randrange(3, 4)
random.randrange(1)
random.uniform(k, k)
random.choice([LOW])
random.choice("a")
random.choice(ONE)
random.choices(ONE, k=3)
random.sample(ONE, 1)
random.sample([1, 2], 0)
random.shuffle([LOW])
random.shuffle([])
random.gauss(1, 0)
torch.randint(0, 1, (3,))
torch.randint(1, (3,))
torch.randint(LOW, LOW + 1, (3,))
torch.randint(low=LOW, high=LOW + 1, size=(3,))
torch.randint(high=1, size=(3,))
torch.randint(1, size=(3,))
torch.randint_like(torch.ones(3), 1)
torch.randint_like(torch.ones(3), 3, 4)
torch.randperm(1)
torch.randperm(len(ONE))
torch.rand(0)
torch.randn(0, 3)
torch.randn((0,))
torch.rand(size=(0,))
torch.normal(2.0, 0.0, (3,))
torch.normal(mean=0.0, std=0.0, size=(3,))
torch.ones(3).uniform_(2.0, 2.0)
torch.ones(3).normal_(1.0, 0.0)
torch.ones(3).normal_(std=0)
torch.ones(3).random_(1)
torch.ones(3).random_(3, 4)
torch.ones(3).bernoulli_(0)
torch.ones(3).bernoulli_(1.0)
""".splitlines()

SEVERAL = """\
np.random.randint(3, 5)
np.random.randint(LOW, LOW + 2)
np.random.randint(2)
np.random.randint(k + 5)
np.random.randint(k, k + 2)
np.random.randint(*span(2))
np.random.randint(3, limit(False))
np.random.randint(3, limit(k))
np.random.uniform(2.0, 3.0)
np.random.uniform(LOW)
np.random.uniform(high=0.5)
np.random.uniform(**APART)
np.random.normal(3)
np.random.normal(3, 1)
np.random.normal(0)
np.random.normal(3, 1, size=1)
np.random.exponential()
np.random.poisson(1)
np.random.binomial(4, 0.5)
np.random.permutation(2)
np.random.permutation([LOW, 2])
np.random.choice([LOW, 2])
np.random.choice(["a", "b"])
np.random.choice(2)
np.random.choice(grown())
np.random.rand(1)
random.randint(3, 4)
random.randrange(3)
random.randrange(3, 5)
random.choice("ab")
random.sample([1, 2], 1)
random.gauss(0, 1)
torch.randint(0, 2, (1,))
torch.randint(2, (1,))
torch.randint(LOW, LOW + 2, (1,))
torch.randint(0 + 1, 3, (2,))
torch.randint_like(torch.ones(3), 2)
torch.randperm(2)
torch.rand(1)
torch.randn(1, 3)
torch.rand(())
torch.normal(0.0, 1.0, (3,))
torch.normal(0.0, torch.ones(3))
torch.ones(3).uniform_()
torch.ones(3).uniform_(1, 2)
torch.ones(3).normal_(0)
torch.ones(3).random_()
torch.ones(3).random_(2)
torch.ones(3).bernoulli_()
torch.ones(3).bernoulli_(0.5)
""".splitlines()

NAMES = """\
LOW = 3
SIGMA = 0.0
ONE = ["a"]
EQUAL = {"low": 2.0, "high": 2.0}
APART = {"low": 2.0, "high": 4.0}


class Range:
    def __init__(self, low=3):
        self.low = low
        self.high = low + 1


def span(by=1, low=LOW):
    return low, low + by


def same(x):
    return x


def above(x, by=1):
    return x + by


def limit(is_near):
    return 4 if is_near is True else 9


def grown():
    numbers = [1]
    numbers.append(2)
    return numbers
"""

PROGRAM = """\
import multiprocessing
import random

import numpy as np
import torch

random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
{names}

def work(k):
    return {draw}


if __name__ == "__main__":
    with multiprocessing.get_context("{start}").Pool(2) as pool:
        print(pool.map(work, range(4)))
"""


def outcomes(draw):
    """What comes of a draw that is made several times."""
    names = {"np": np, "random": random, "torch": torch, "k": 2}
    exec(NAMES, names)
    return {repr(eval(draw, names)) for _ in range(40)}


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_where_one_outcome_is_possible(project, start):
    draws = {f"p{number}.py": draw for number, draw in enumerate([*ONE, *SEVERAL])}
    for name, draw in draws.items():
        project.write(name, PROGRAM.format(names=NAMES, draw=draw, start=start))
    found = {draws[path] for code, path, _ in project.codes() if code == "GG304"}
    seeds_itself = {draw for draw in SEVERAL if draw.startswith("random.") and start == "fork"}
    assert found == {*SEVERAL} - seeds_itself


def test_what_comes_of_these_draws():
    assert [draw for draw in ONE if len(outcomes(draw)) > 1] == []
    assert [draw for draw in SEVERAL if len(outcomes(draw)) == 1] == []
