"""Keras on its torch backend: what goes to process workers."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
import torch
from joblib import Parallel, delayed

INPUTS = np.random.default_rng(0).normal(size=(20, 2)).astype("float32")
TARGETS = (INPUTS[:, :1] > 0).astype("float32")


def fitted(optimizer="adam"):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    model.fit(INPUTS, TARGETS, verbose=0)
    return model


def steps(optimizer):
    return int(optimizer.iterations.numpy())


def steps_of(model):
    return int(model.optimizer.iterations.numpy())


def test_optimizer_alone():
    optimizer = fitted().optimizer
    assert Parallel(2)(delayed(steps)(optimizer) for _ in range(2)) == [0, 0]  # -> GG110:warning


def test_optimizer_inside_its_model():
    model = fitted()
    assert Parallel(2)(delayed(steps_of)(model) for _ in range(2)) == [1, 1]


def test_plain_sgd():
    optimizer = fitted("sgd").optimizer
    assert Parallel(2)(delayed(steps)(optimizer) for _ in range(2)) == [1, 1]


def total(variable, layer):
    return float(np.sum(variable.numpy())) + layer.units


def test_variable_and_layer():
    layer = fitted().layers[0]
    found = Parallel(2)(delayed(total)(keras.Variable([1.0]), layer) for _ in range(2))
    assert found == [2.0, 2.0]


def test_fit_and_return_the_model():
    models = Parallel(2)(delayed(fitted)() for _ in range(2))
    assert [model.predict(INPUTS, verbose=0).shape for model in models] == [(20, 1)] * 2


def outputs(model, inputs):
    return model(inputs)


def test_backward_through_outputs():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    results = Parallel(2)(delayed(outputs)(model, INPUTS[i::2]) for i in range(2))  # -> GG102
    torch.cat(results).mean().backward()  # -> GG103:error
    assert all(weight.value.grad is None for weight in model.trainable_weights)


def arrays(model, inputs):
    with torch.no_grad():
        return model(inputs)


def test_outputs_without_a_graph():
    model = fitted()
    results = Parallel(2)(delayed(arrays)(model, INPUTS[i::2]) for i in range(2))
    loss = (model(INPUTS).mean() - torch.cat(results).mean()) ** 2
    loss.backward()


def noise(seeds):
    return float(keras.random.normal((), seed=seeds))


def test_one_seed_generator():
    seeds = keras.random.SeedGenerator(1)
    first, second = Parallel(2)(delayed(noise)(seeds) for _ in range(2))  # -> GG305
    assert first == second


def test_a_seed_generator_each():
    each = [keras.random.SeedGenerator(seed) for seed in range(2)]
    first, second = Parallel(2)(delayed(noise)(seeds) for seeds in each)
    assert first != second
