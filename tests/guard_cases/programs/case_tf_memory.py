"""joblib's caches around functions that a tape watches."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from joblib import Memory

EXPECT = {
    "test_second_call": {"GG108"},
}
DETAILS = {
    "test_second_call": {
        "GG108": {"framework": "tensorflow", "object": "result", "stored": 1, "returned": 1}
    }
}

model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])


@pytest.fixture
def memory(tmp_path):
    return Memory(tmp_path, verbose=0)


def square(weight):
    return tf.reduce_sum(weight**2)


def gradient_of(function, weight):
    with tf.GradientTape() as tape:
        total = function(weight)  # -> GG108?
    return tape.gradient(total, weight)


def test_second_call(memory):
    weight, cached = tf.Variable([1.0, 2.0]), memory.cache(square)
    assert gradient_of(cached, weight).numpy().tolist() == [2.0, 4.0]
    assert gradient_of(cached, weight) is None


def test_first_call_only(memory):
    weight, cached = tf.Variable([1.0, 2.0]), memory.cache(square)
    with tf.GradientTape() as tape:
        total = cached(weight)  # -> GG108:warning
    assert tape.gradient(total, weight) is not None


def parts(weight):
    return {"loss": square(weight), "count": 2}


def test_in_a_dict(memory):
    cached = memory.cache(parts)
    weight = tf.Variable([3.0])
    with tf.GradientTape() as tape:
        total = cached(weight)["loss"]  # -> GG108:warning
    assert tape.gradient(total, weight) is not None


def output(x):
    return model(x)


def test_output_of_a_model(memory):
    cached = memory.cache(output)
    for _ in range(2):
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(cached(np.ones((1, 2), "float32")))  # -> GG108:warning
        found = tape.gradient(total, model.trainable_variables)
    assert found == [None, None]


# -- nothing is lost here ------------------------------------------------------------------------


def array(size):
    return np.ones(size, "float32")


def test_arrays(memory):
    cached = memory.cache(array)
    for _ in range(2):
        found = gradient_of(lambda weight: tf.reduce_sum(weight * cached(2)), tf.Variable(2.0))
        assert float(found) == 2.0


def constant(size):
    return tf.ones(size)


def test_constants(memory):
    cached = memory.cache(constant)
    for _ in range(2):
        found = gradient_of(lambda weight: tf.reduce_sum(weight * cached(2)), tf.Variable(2.0))
        assert float(found) == 2.0


def test_without_a_tape(memory):
    cached, weight = memory.cache(square), tf.Variable([1.0])
    assert [float(cached(weight)) for _ in range(2)] == [1.0, 1.0]


def gradient(weight):
    with tf.GradientTape() as tape:
        total = square(weight)
    return tape.gradient(total, weight)


def test_tape_inside(memory):
    cached, weight = memory.cache(gradient), tf.Variable([1.0])
    assert [float(cached(weight)[0]) for _ in range(2)] == [2.0, 2.0]


def test_stopped_recording(memory):
    cached, weight = memory.cache(square), tf.Variable([1.0, 2.0])
    for _ in range(2):
        with tf.GradientTape() as tape:
            with tape.stop_recording():
                factor = cached(weight)
            total = tf.reduce_sum(weight * factor)
        assert tape.gradient(total, weight).numpy().tolist() == [5.0, 5.0]


def stopped(weight):
    return tf.stop_gradient(square(weight))


def test_stopped_gradient(memory):
    cached = memory.cache(stopped)
    for _ in range(2):
        found = gradient_of(lambda weight: cached(weight) * weight[0], tf.Variable([2.0]))
        assert found.numpy().tolist() == [4.0]


def variable(value):
    return tf.Variable([value])


def test_variables(memory):
    cached = memory.cache(variable)
    for _ in range(2):
        with tf.GradientTape() as tape:
            weight = cached(2.0)
            total = square(weight)
        assert tape.gradient(total, weight).numpy().tolist() == [4.0]


def fitted(epochs):
    one = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    one.compile("adam", "mse")
    one.fit(np.ones((4, 2)), np.ones((4, 1)), epochs=epochs, verbose=0)
    return one


def test_models(memory):
    cached = memory.cache(fitted)
    for _ in range(2):
        one = cached(1)
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(one(np.ones((1, 2), "float32")))
        assert None not in tape.gradient(total, one.trainable_variables)
