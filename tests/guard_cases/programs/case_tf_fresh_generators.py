"""Random generators of TensorFlow's and Keras's that several tasks share."""

import keras
import numpy as np
import tensorflow as tf
from joblib import Parallel, delayed

DETAILS = {
    "test_one_generator": {"GG305": {"framework": "tensorflow"}},
    "test_one_of_keras": {"GG305": {"framework": "keras"}},
}


def total(generator, size):
    return float(tf.reduce_sum(generator.normal((size,))))


def test_one_generator():
    generator = tf.random.Generator.from_seed(1)
    first, second = Parallel(2)(delayed(total)(generator, 3) for _ in range(2))  # -> GG305
    assert first == second


class Noise:
    def __init__(self):
        self.sources = {"noise": tf.random.Generator.from_seed(2)}

    def sample(self):
        return float(self.sources["noise"].uniform(()))


def test_one_in_an_object():
    noise = Noise()
    first, second = Parallel(2)(delayed(noise.sample)() for _ in range(2))  # -> GG305
    assert first == second


def test_different_sizes():
    generator = tf.random.Generator.from_seed(3)
    Parallel(2)(delayed(total)(generator, size) for size in (2, 500))  # -> GG305


def test_forked():
    generator = tf.random.Generator.from_seed(4)
    first, second = Parallel(2, backend="multiprocessing")(  # -> GG305
        delayed(total)(generator, 3) for _ in range(2)
    )
    assert first == second


def drawn_by_keras(seeds):
    return float(keras.random.normal((), seed=seeds))


def test_one_of_keras():
    seeds = keras.random.SeedGenerator(5)
    first, second = Parallel(2)(delayed(drawn_by_keras)(seeds) for _ in range(2))  # -> GG305
    assert first == second


def test_split_for_the_tasks():
    generator = tf.random.Generator.from_seed(6)
    first, second = Parallel(2)(delayed(total)(one, 3) for one in generator.split(2))
    assert first != second


def of_split(generator, index):
    return total(generator.split(2)[index], 3)


def test_split_by_the_tasks():
    generator = tf.random.Generator.from_seed(7)
    first, second = Parallel(2)(delayed(of_split)(generator, index) for index in range(2))
    assert first != second


def after_reset(generator, seed):
    generator.reset_from_seed(seed)
    return total(generator, 3)


def test_reset_by_the_tasks():
    generator = tf.random.Generator.from_seed(8)
    first, second = Parallel(2)(delayed(after_reset)(generator, seed) for seed in range(2))
    assert first != second


def after_skip(generator, steps):
    generator.skip(steps)
    return total(generator, 3)


def test_skipped_by_the_tasks():
    generator = tf.random.Generator.from_seed(9)
    first, second = Parallel(2)(delayed(after_skip)(generator, 1000 * step) for step in range(2))
    assert first != second


def only_named(generator, index):
    return f"{generator.algorithm}-{index}"


def test_not_drawn_from():
    generator = tf.random.Generator.from_seed(10)
    Parallel(2)(delayed(only_named)(generator, index) for index in range(2))


def test_threads():
    generator = tf.random.Generator.from_seed(11)
    Parallel(2, backend="threading")(delayed(total)(generator, 3) for _ in range(2))


def test_one_of_keras_for_each():
    each = [keras.random.SeedGenerator(seed) for seed in range(2)]
    first, second = Parallel(2)(delayed(drawn_by_keras)(seeds) for seeds in each)
    assert first != second


def masked(layer, x):
    return layer(x, training=True).numpy()


def test_dropout():
    layer = keras.layers.Dropout(0.5)
    layer.build((4, 4))
    Parallel(2)(delayed(masked)(layer, np.ones((4, 4), "float32")) for _ in range(2))
