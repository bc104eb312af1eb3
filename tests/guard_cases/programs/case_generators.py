"""Random generators that go to process workers."""

import copy
import functools
import multiprocessing
import pickle
import random

import numpy as np
import torch
from joblib import Parallel, delayed
from joblib.externals import loky
from sklearn.datasets import make_classification
from sklearn.ensemble import BaggingClassifier
from sklearn.model_selection import RandomizedSearchCV, ShuffleSplit, cross_val_score
from sklearn.tree import DecisionTreeClassifier


def sample(rng, size=3):
    return rng.normal(size=size).tolist()


def run(tasks, **settings):
    return Parallel(2, batch_size=1, **settings)(tasks)


def test_generator():
    rng = np.random.default_rng(0)
    first, second = Parallel(2)(delayed(sample)(rng) for _ in range(2))  # -> GG305:warning
    assert first == second


def test_random_state():
    rng = np.random.RandomState(0)
    first, second = Parallel(2)(delayed(sample)(rng) for _ in range(2))  # -> GG305
    assert first == second


def throw(rng):
    return [rng.random() for _ in range(3)]


def test_python_random():
    rng = random.Random(0)
    first, second = Parallel(2)(delayed(throw)(rng) for _ in range(2))  # -> GG305
    assert first == second


def sample_torch(generator):
    return torch.rand(3, generator=generator).tolist()


def test_torch_generator():
    generator = torch.Generator().manual_seed(0)
    first, second = Parallel(2)(delayed(sample_torch)(generator) for _ in range(2))  # -> GG305
    assert first == second


def test_forked():
    rng = np.random.default_rng(0)
    first, second = Parallel(2, backend="multiprocessing")(  # -> GG305
        delayed(sample)(rng) for _ in range(2)
    )
    assert first == second


class Noise:
    def __init__(self, rng):
        self.settings = {"rng": rng}

    def draw(self, size):
        return sample(self.settings["rng"], size)


def test_in_an_object():
    noise = Noise(np.random.default_rng(0))
    Parallel(2)(delayed(noise.draw)(3) for _ in range(2))  # -> GG305


def test_partial():
    task = functools.partial(sample, np.random.default_rng(0))
    Parallel(2)(delayed(task)() for _ in range(2))  # -> GG305


def test_closure():
    rng = np.random.default_rng(0)
    Parallel(2)(delayed(lambda size: rng.normal(size=size).sum())(3) for _ in range(2))  # -> GG305


def test_keyword():
    rng = np.random.default_rng(0)
    Parallel(2)(delayed(sample)(size=2, rng=rng) for _ in range(2))  # -> GG305


def test_different_sizes():
    rng = np.random.default_rng(0)
    first, second = Parallel(2)(delayed(sample)(rng, size) for size in (2, 3))  # -> GG305
    assert first == second[:2]


def test_random_state_different_sizes():
    rng = np.random.RandomState(0)
    first, second = Parallel(2)(delayed(sample)(rng, size) for size in (2, 3000))  # -> GG305
    assert first == second[:2]


def sample_0(rngs, size):
    return sample(rngs[0], size)


def sample_1(rngs, size):
    return sample(rngs[1], size)


def sample_2(rngs, size):
    return sample(rngs[2], size)


def sample_3(rngs, size):
    return sample(rngs[3], size)


BITS = [np.random.MT19937, np.random.PCG64DXSM, np.random.Philox, np.random.SFC64]


def test_every_bit_generator():
    rngs = [np.random.Generator(bits(0)) for bits in BITS]
    first, second = Parallel(2)(delayed(sample_0)(rngs, size) for size in (2, 700))  # -> GG305
    first, second = Parallel(2)(delayed(sample_1)(rngs, size) for size in (2, 700))  # -> GG305
    first, second = Parallel(2)(delayed(sample_2)(rngs, size) for size in (2, 700))  # -> GG305
    first, second = Parallel(2)(delayed(sample_3)(rngs, size) for size in (2, 700))  # -> GG305
    assert first == second[:2]


def test_far_apart():
    rng = np.random.RandomState(0)
    first, second = Parallel(2)(delayed(sample)(rng, size) for size in (2, 200_000))  # -> GG305
    assert first == second[:2]


class Dice(random.Random):
    def roll(self):
        return self.randint(1, 6)


def rolls(dice, number):
    return [dice.roll() for _ in range(number)]


def test_subclass():
    dice = Dice(0)
    first, second = Parallel(2)(delayed(rolls)(dice, number) for number in (4, 5))  # -> GG305
    assert first == second[:4]


def test_submitted_one_by_one():
    rng = np.random.default_rng(0)
    with loky.ProcessPoolExecutor(2) as executor:
        first, second = [executor.submit(sample, rng) for _ in range(2)]  # -> GG305
        assert first.result() == second.result()


class Noisy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(0)

    def forward(self, x):
        return x + torch.randn(3, generator=self.generator) if self.training else x


def forward(model, x):
    return model(x).tolist()


def test_noise_in_a_module():
    model = Noisy()
    first, second = Parallel(2)(
        delayed(forward)(model, torch.ones(3)) for _ in range(2)
    )  # -> GG305
    assert first == second


def test_noise_switched_off():
    model = Noisy().eval()
    run(delayed(forward)(model, torch.ones(3)) for _ in range(2))


def test_mapped_by_a_pool():
    task = functools.partial(sample, np.random.default_rng(0))
    with multiprocessing.get_context("fork").Pool(2) as pool:
        first, second = pool.map(task, [3, 3])  # -> GG305
    assert first == second


def test_own_generators_to_a_pool():
    with multiprocessing.get_context("fork").Pool(2) as pool:
        first, second = pool.map(sample, np.random.default_rng(0).spawn(2))
    assert first != second


def test_submitted_and_awaited():
    with loky.ProcessPoolExecutor(1) as executor:
        for _ in range(2):
            executor.submit(sample, np.random.default_rng(0)).result()


def assigned(rng, state):
    rng.bit_generator.state = state
    return rng.random()


def test_state_assigned():
    rng = np.random.default_rng(0)
    states = [np.random.default_rng(number).bit_generator.state for number in (1, 2)]
    first, second = run(delayed(assigned)(rng, state) for state in states)
    assert first != second


def jumped(rng, number):
    return np.random.Generator(rng.bit_generator.jumped(number)).random()


def test_jumped():
    rng = np.random.Generator(np.random.Philox(0))
    first, second = run(delayed(jumped)(rng, number) for number in range(2))
    assert first != second


def size_of(rng, rows):
    return len(rows)


def test_nobody_draws():
    run(delayed(size_of)(np.random.default_rng(0), [1]) for _ in range(4))
    rng = np.random.default_rng(0)
    run(delayed(size_of)(rng, [1]) for _ in range(4))


def test_spawned():
    first, second = run(delayed(sample)(rng) for rng in np.random.default_rng(0).spawn(2))
    assert first != second


def add(one, other):
    return one + other


def test_one_task():
    rng = np.random.default_rng(0)
    run([delayed(sample)(rng), delayed(add)(1, 2), delayed(add)(3, 4)])


def normals(rng, size):
    return rng.normal(size=size).tolist()


def test_one_batch():
    rng = np.random.default_rng(0)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        first, second = pool.map(functools.partial(normals, rng), (2, 2), chunksize=2)
    assert first != second


def from_seed(seed):
    return np.random.default_rng(seed).normal()


def test_seed_for_each():
    run(delayed(from_seed)(seed) for seed in range(4))


def test_same_seed_on_purpose():
    first, second = run(delayed(sample)(np.random.default_rng(7)) for _ in range(2))
    assert first == second


def test_threads():
    rng = np.random.default_rng(0)
    run((delayed(sample)(rng) for _ in range(2)), backend="threading")


def reseeded(rng, seed):
    rng.seed(seed)
    return rng.normal()


def test_reseeded():
    rng = np.random.RandomState(0)
    first, second = run(delayed(reseeded)(rng, seed) for seed in range(2))
    assert first != second


def reseeded_in_a_helper(rng, number):
    return reseeded(rng, number)


def test_reseeded_in_a_helper():
    rng = np.random.RandomState(0)
    first, second = run(delayed(reseeded_in_a_helper)(rng, seed) for seed in range(2))
    assert first != second


def torch_reseeded(generator, number):
    def prepare():
        return generator.manual_seed(number)

    return torch.rand(1, generator=prepare()).item()


def test_torch_reseeded():
    generator = torch.Generator().manual_seed(0)
    first, second = run(delayed(torch_reseeded)(generator, number) for number in (1, 2))
    assert first != second


def jumping(rng, number):
    rng.bit_generator.advance(number * 1000)
    return rng.random()


def test_jumping_ahead():
    rng = np.random.default_rng(0)
    first, second = run(delayed(jumping)(rng, number) for number in range(2))
    assert first != second


def test_advanced_between():
    rng = np.random.default_rng(0)
    streams = []
    for _ in range(2):
        streams += run([delayed(sample)(copy.deepcopy(rng)), delayed(add)(1, 2)])[:1]
        rng.random()
    assert streams[0] != streams[1]


X, Y = make_classification(60, random_state=0)


def test_sklearn_ensemble():
    BaggingClassifier(n_estimators=4, n_jobs=2, random_state=np.random.RandomState(0)).fit(X, Y)


def test_sklearn_search():
    RandomizedSearchCV(
        DecisionTreeClassifier(random_state=np.random.RandomState(0)),
        {"max_depth": [1, 2, 3]},
        n_iter=2,
        cv=ShuffleSplit(2, random_state=np.random.RandomState(0)),
        n_jobs=2,
        random_state=np.random.RandomState(0),
    ).fit(X, Y)


def test_sklearn_scores():
    tree = DecisionTreeClassifier(random_state=np.random.RandomState(0))
    cross_val_score(tree, X, Y, cv=3, n_jobs=2)


def by_pickle(rng):
    return pickle.loads(pickle.dumps(rng))


def test_pickling_is_unchanged():
    run(delayed(add)(1, 2) for _ in range(2))
    for copies in (copy.deepcopy, by_pickle):
        for rng in (np.random.default_rng(0), np.random.RandomState(0)):
            assert copies(rng).normal() == rng.normal()
        assert copies(random.Random(0)).random() == random.Random(0).random()


def test_one_job():
    rng = np.random.default_rng(0)
    Parallel(1)(delayed(sample)(rng) for _ in range(2))
