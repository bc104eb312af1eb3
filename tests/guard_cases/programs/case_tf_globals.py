"""Keras models and TensorFlow variables of a module that workers import afresh."""

import keras
import numpy as np
import tensorflow as tf
from joblib import Parallel, delayed

EXPECT = {
    "test_variable": {"GG109"},
    "test_keras_variable": {"GG109"},
    "test_variable_of_a_class": {"GG109"},
    "test_called_model": {"GG109"},
    "test_predictions_of_a_fitted_model": {"GG109"},
    "test_predictions_again": {"GG109"},
    "test_model_of_an_object": {"GG109"},
    "test_module_that_is_called": {"GG109"},
    "test_moving_averages": {"GG109"},
}


def model_of_ones():
    dense = keras.layers.Dense(1, kernel_initializer="ones")
    return keras.Sequential([keras.Input((2,)), dense])


class Agent:
    def __init__(self):
        self.model = model_of_ones()
        self.prefix = "agent"

    def act(self, x):
        return float(self.model(x)[0, 0])

    def label(self, index):
        return f"{self.prefix}{index}"


class Linear(tf.Module):
    def __init__(self):
        super().__init__()
        self.weight = tf.Variable([1.0])

    def __call__(self, x):
        return float(self.weight[0]) * x


class Settings:
    weight = tf.Variable([1.0])


scale = tf.Variable([1.0, 1.0])
other = keras.Variable([1.0])
model = model_of_ones()
unchanged = model_of_ones()
agent = Agent()
linear = Linear()
averages = keras.layers.BatchNormalization()
averages.build((None, 2))
generator = tf.random.Generator.from_seed(1)
metric = keras.metrics.Mean()
optimizer = keras.optimizers.Adam(0.1)
optimizer.build([keras.Variable([1.0])])
cache = {}
X = np.ones((1, 2), "float32")


def weights(value):
    return [np.full((2, 1), value), np.zeros(1)]


def in_workers(task, *arguments):
    return Parallel(2)(delayed(task)(*arguments) for _ in range(2))  # -> GG109?


def scaled(x):
    return float(scale[0]) * x


def test_variable():
    scale.assign([3.0, 3.0])
    assert in_workers(scaled, 1.0) == [1.0, 1.0]


def of_keras():
    return float(other.numpy()[0])


def test_keras_variable():
    other.assign([3.0])
    assert in_workers(of_keras) == [1.0, 1.0]


def of_class():
    return float(Settings.weight[0])


def test_variable_of_a_class():
    Settings.weight.assign([3.0])
    assert in_workers(of_class) == [1.0, 1.0]


def called(x):
    return float(model(x)[0, 0])


def test_called_model():
    model.set_weights(weights(3.0))
    assert in_workers(called, X) == [2.0, 2.0]


def predicted(x):
    return float(model.predict(x, verbose=0)[0, 0])


def test_predictions_of_a_fitted_model():
    model.compile("sgd", "mse")
    model.fit(np.ones((4, 2)), np.full((4, 1), 9.0), verbose=0)
    assert in_workers(predicted, X) != [float(model(X)[0, 0])] * 2


def test_predictions_again():
    model.set_weights(weights(4.0))
    for _ in range(2):
        assert in_workers(predicted, X) != [8.0, 8.0]


def act(x):
    return agent.act(x)


def test_model_of_an_object():
    agent.model.set_weights(weights(5.0))
    assert in_workers(act, X) == [2.0, 2.0]


def by_linear(x):
    return linear(x)


def test_module_that_is_called():
    linear.weight.assign([3.0])
    assert in_workers(by_linear, 1.0) == [1.0, 1.0]


def normalized(x):
    return averages(x).numpy().tolist()


def test_moving_averages():
    averages(np.random.default_rng(0).normal(3.0, size=(50, 2)), training=True)
    in_workers(normalized, X)


# -- nothing is stale here -----------------------------------------------------------------------


def called_unchanged(x):
    return float(unchanged(x)[0, 0])


def test_unchanged_model():
    assert in_workers(called_unchanged, X) == [2.0, 2.0]


def label(index):
    return agent.label(index)


def test_label_of_an_object():
    agent.model.set_weights(weights(6.0))
    assert in_workers(label, 1) == ["agent1"] * 2


def layers():
    return len(model.layers)


def test_names_of_a_model():
    model.set_weights(weights(7.0))
    assert in_workers(layers) == [1, 1]


def cloned(values, x):
    clone = keras.models.clone_model(model)
    clone.set_weights(values)
    return float(clone(x)[0, 0])


def test_clone_of_a_model():
    model.set_weights(weights(8.0))
    assert in_workers(cloned, model.get_weights(), X) == [16.0, 16.0]


def set_and_called(values, x):
    model.set_weights(values)
    return float(model(x)[0, 0])


def test_weights_are_set():
    model.set_weights(weights(9.0))
    assert in_workers(set_and_called, model.get_weights(), X) == [18.0, 18.0]


def set_values(one, values):
    one.set_weights(values)


def set_and_trained(values, x):
    set_values(model, values)
    model.compile("sgd", "mse")
    model.fit(x, np.zeros((1, 1)), verbose=0)
    return model.get_weights()


def test_weights_are_set_and_trained():
    for value in (10.0, 11.0):
        model.set_weights(weights(value))
        in_workers(set_and_trained, model.get_weights(), X)


def load_and_call(path, x):
    model.load_weights(path)
    return float(model(x)[0, 0])


def test_weights_are_loaded(tmp_path):
    model.set_weights(weights(12.0))
    path = str(tmp_path / "model.weights.h5")
    model.save_weights(path)
    assert in_workers(load_and_call, path, X) == [24.0, 24.0]


def draw(count):
    return generator.normal([count]).shape[0]


def test_generator():
    generator.normal([5])
    assert in_workers(draw, 3) == [3, 3]


def mean(value):
    metric.reset_state()
    metric.update_state(value)
    return float(metric.result())


def test_metric():
    metric.update_state(5.0)
    assert in_workers(mean, 1.0) == [1.0, 1.0]


def rate():
    return round(float(optimizer.learning_rate), 2)


def test_optimizer():
    optimizer.apply([keras.ops.ones(1)])
    assert in_workers(rate) == [0.1, 0.1]


def shape():
    return int(scale.shape[0])


def test_shape_only():
    scale.assign([4.0, 4.0])
    assert in_workers(shape) == [2, 2]


def cached(key):
    if key not in cache:
        cache[key] = tf.Variable(float(key))
    return float(cache[key])


def test_cache_of_the_workers():
    cached(1)
    for _ in range(2):
        assert in_workers(cached, 1) == [1.0, 1.0]


def of_any(one, x):
    return float(one(x)[0, 0])


def test_model_as_argument():
    model.set_weights(weights(13.0))
    assert in_workers(of_any, model, X) == [26.0, 26.0]
