"""Tapes around tasks that reach their variables in a roundabout way; doors other than joblib's."""

import asyncio
import contextlib
import functools
import sys
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool

import keras
import numpy as np
import tensorflow as tf
from joblib import Parallel, delayed

EXPECT = {
    "test_attribute_of_a_module": {"GG105"},
    "test_attribute_of_a_module_loky": {"GG105"},
    "test_called_module": {"GG105"},
    "test_called_object": {"GG105"},
    "test_object_as_task": {"GG105"},
    "test_traced_function": {"GG105"},
    "test_traced_before": {"GG105"},
    "test_partial": {"GG105"},
    "test_cached_function": {"GG105"},
    "test_variable_of_a_class": {"GG105"},
    "test_object_made_by_the_task": {"GG105"},
    "test_method_through_another": {"GG105"},
    "test_py_function_under_the_tape": {"GG105"},
    "test_tape_of_a_context_manager": {"GG105"},
}

this = sys.modules[__name__]
weight = tf.Variable([1.0, 2.0])
scale = tf.Variable(2.0)
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])


class Linear(tf.Module):
    def __init__(self):
        super().__init__()
        self.weight = tf.Variable([1.0, 2.0])

    def __call__(self, factor):
        return tf.reduce_sum(self.weight * factor)


class Box:
    def __init__(self):
        self.linear = Linear()
        self.tag = "box"

    def __call__(self, factor):
        return self.linear(factor)

    def label(self, factor):
        return f"{self.tag}{factor}"


linear = Linear()
box = Box()


def in_workers(task, backend):
    return Parallel(2, backend=backend)(delayed(task)(k) for k in (1.0, 2.0))  # -> GG105:error?


def lost(task, source, backend="threading"):
    with tf.GradientTape() as tape:
        total = tf.add_n(in_workers(task, backend))
    assert tape.gradient(total, source) is None


def kept(task):
    factor = tf.Variable(1.0)
    with tf.GradientTape() as tape:
        total = factor * sum(in_workers(task, "threading"))
    assert tape.gradient(total, factor) is not None


def by_attribute(factor):
    return tf.reduce_sum(this.weight) * factor


def test_attribute_of_a_module():
    lost(by_attribute, weight)


def test_attribute_of_a_module_loky():
    lost(by_attribute, weight, "loky")


def by_module(factor):
    return linear(factor)


def test_called_module():
    lost(by_module, linear.weight)


def by_object(factor):
    return box(factor)


def test_called_object():
    lost(by_object, box.linear.weight)


def test_object_as_task():
    lost(box, box.linear.weight)


@tf.function
def traced(factor):
    return tf.reduce_sum(weight * factor)


def by_traced(factor):
    return traced(tf.constant(factor))


def test_traced_function():
    lost(by_traced, weight)


def test_traced_before():
    by_traced(1.0)
    lost(by_traced, weight)


def by_model(factor):
    return float(model.predict(np.full((1, 2), factor), verbose=0)[0, 0])


def test_predicting_model():
    by_model(1.0)
    kept(by_model)


def scaled(variable, factor):
    return variable * factor


double = functools.partial(scaled, scale)


def by_partial(factor):
    return double(factor)


def test_partial():
    lost(by_partial, scale)


@functools.lru_cache
def cached(factor):
    return scale * factor


def by_cached(factor):
    return cached(factor)


def test_cached_function():
    lost(by_cached, scale)


class Settings:
    weight = tf.Variable(3.0)


def by_class(factor):
    return Settings.weight * factor


def test_variable_of_a_class():
    lost(by_class, Settings.weight)


class Scorer:
    def __init__(self, factor):
        self.factor = factor

    def score(self, factor=1.0):
        return self._value() * self.factor * factor

    def _value(self):
        return scale.read_value()


def by_new_object(factor):
    return Scorer(factor).score()


def test_object_made_by_the_task():
    lost(by_new_object, scale)


def test_method_through_another():
    lost(Scorer(1.0).score, scale)


def of_ragged(ragged, factor):
    return tf.reduce_sum(ragged.flat_values * factor)


def test_ragged_argument():
    with tf.GradientTape() as tape:
        ragged = tf.RaggedTensor.from_row_lengths(weight * 1.0, [1, 1])
        parts = Parallel(2, backend="threading")(  # -> GG105:error
            delayed(of_ragged)(ragged, k) for k in (1.0, 2.0)
        )
        total = tf.add_n(parts)
    assert tape.gradient(total, weight) is None


def as_sparse(factor):
    return tf.sparse.from_dense([[0.0, factor]])


def test_sparse_result():
    column = tf.Variable([[1.0], [2.0]])
    with tf.GradientTape() as tape:
        first, _ = in_workers(as_sparse, "threading")
        total = tf.reduce_sum(tf.sparse.sparse_dense_matmul(first, column))
    assert tape.gradient(total, column) is not None


def gradient_of_rows(factor):
    table = tf.Variable(tf.ones((3, 2)))
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(tf.gather(table, [1])) * factor
    return tape.gradient(total, table)


def test_gradients_of_rows():
    with tf.GradientTape() as tape:
        first, _ = in_workers(gradient_of_rows, "threading")
        total = scale * tf.reduce_sum(first.values)
    assert tape.gradient(total, scale) is not None


def in_python(x):
    parts = Parallel(2, backend="threading")(  # -> GG105:error
        delayed(tf.reduce_sum)(x * k) for k in (1.0, 2.0)
    )
    return tf.add_n(parts)


def test_py_function_under_the_tape():
    with tf.GradientTape() as tape:
        total = tf.py_function(in_python, [weight], tf.float32)
    assert not np.any(tape.gradient(total, weight))


def value_of(factor):
    return tf.reduce_sum(weight * factor)


def test_thread_pool_executor():
    with ThreadPoolExecutor(2) as executor, tf.GradientTape() as tape:
        parts = [executor.submit(value_of, k) for k in (1.0, 2.0)]  # -> GG105:error
        total = tf.add_n([part.result() for part in parts])
    assert tape.gradient(total, weight) is None


def test_thread_pool():
    with ThreadPool(2) as pool, tf.GradientTape() as tape:
        total = tf.add_n(list(pool.imap(value_of, (1.0, 2.0))))  # -> GG105:error
    assert tape.gradient(total, weight) is None


def test_asyncio():
    async def main():
        with tf.GradientTape() as tape:
            total = await asyncio.to_thread(value_of, 2.0)  # -> GG105:error
        return tape.gradient(total, weight)

    assert asyncio.run(main()) is None


@contextlib.contextmanager
def recording(tapes):
    with tf.GradientTape() as tape:
        tapes.append(tape)
        yield


def test_tape_of_a_context_manager():
    tapes = []
    with recording(tapes):
        total = tf.add_n(in_workers(value_of, "threading"))
    assert tapes[0].gradient(total, weight) is None


# -- nothing is lost here ------------------------------------------------------------------------


class Loader:
    def __init__(self):
        self.model = model
        self.data = np.ones((4, 2), "float32")

    def batch(self, index):
        return self.data[index::2]


def test_method_of_a_loader_in_an_executor():
    loader = Loader()
    with ThreadPoolExecutor(2) as executor, tf.GradientTape() as tape:
        batches = list(executor.map(loader.batch, (0, 1)))
        total = tf.add_n([tf.reduce_sum(model(batch)) for batch in batches])
    assert None not in tape.gradient(total, model.trainable_variables)


def length_of_label(factor):
    return float(len(box.label(factor)))


def test_label_of_an_object():
    kept(length_of_label)


def test_arrays_in_asyncio():
    async def main():
        with tf.GradientTape() as tape:
            factor = await asyncio.to_thread(np.sum, np.ones(2))
            total = tf.reduce_sum(weight * float(factor))
        return tape.gradient(total, weight)

    assert asyncio.run(main()).numpy().tolist() == [2.0, 2.0]


def filled(value):
    return tf.fill([2], value)


def loaded(x):
    return tf.add_n(Parallel(2, backend="threading")(delayed(filled)(one) for one in (x, x)))


def test_pipeline_of_a_py_function():
    def load(x):
        return tf.py_function(loaded, [tf.cast(x, tf.float32)], tf.float32)

    dataset = tf.data.Dataset.range(3).map(load)
    with tf.GradientTape() as tape:
        total = tf.add_n([tf.reduce_sum(weight * row) for row in dataset])
    assert tape.gradient(total, weight).numpy().tolist() == [6.0, 6.0]


def read(index):
    return np.full(2, index, "float32")


def test_next_batch_in_an_executor():
    with ThreadPoolExecutor(1) as executor:
        coming = executor.submit(read, 0)
        for index in range(3):
            with tf.GradientTape() as tape:
                batch = coming.result()
                coming = executor.submit(read, index + 1)
                total = tf.reduce_sum(weight * batch)
            assert tape.gradient(total, weight).numpy().tolist() == [index, index]
