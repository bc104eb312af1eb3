"""Gradients of TensorFlow and Keras that are checked; prints one JSON object."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import joblib
import keras
import numpy as np
import tensorflow as tf

from pytest_gradguard import GradGuardError, check_gradients

X = np.random.RandomState(0).randn(8, 4).astype("float32")


def network() -> Any:
    keras.utils.set_random_seed(0)
    layers = keras.layers
    model = keras.Sequential(
        [layers.Dense(3, activation="tanh"), layers.BatchNormalization(), layers.Dropout(0.3)]
    )
    model.build((None, 4))
    return model


def loss_of(model: Any, x: Any) -> Any:
    return tf.reduce_mean(model(x, training=True) ** 2)


def keras_model() -> Any:
    model = network()
    return lambda: loss_of(model, X), model


def own_tape(factor: float) -> Any:
    model = network()

    def closure() -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(model, X)
        return loss, [factor * one for one in tape.gradient(loss, model.trainable_variables)]

    return closure, model.trainable_variables


def in_threads() -> Any:
    model = network()

    def closure() -> Any:
        with joblib.parallel_config("threading"):
            halves = (joblib.delayed(loss_of)(model, half) for half in np.split(X, 2))
            return tf.add_n(joblib.Parallel(2)(halves))

    return closure, {"kernel": model.layers[0].kernel}


def in_double() -> Any:
    variable = tf.Variable([1.0, 2.0], dtype=tf.float64)
    return lambda: tf.reduce_sum(tf.nn.dropout(variable, 0.5) ** 3), [variable]


def stopped() -> Any:
    variable = tf.Variable([1.0, 2.0], dtype=tf.float64)
    return lambda: tf.reduce_sum(variable * tf.stop_gradient(variable)), variable


def traced() -> Any:
    variable = tf.Variable([1.0, 2.0])
    return tf.function(lambda: tf.reduce_sum(variable**3)), variable


def vector() -> Any:
    variable = tf.Variable([1.0, 2.0])
    return lambda: variable * 2, variable


def constant() -> Any:
    value = tf.constant([1.0, 2.0])
    return lambda: tf.reduce_sum(value), value


def stepping() -> Any:
    variable = tf.Variable([1.0, 2.0])

    def closure() -> Any:
        return tf.reduce_sum(variable.assign_add([1.0, 1.0]))

    return closure, {"variable": variable}


CASES: dict[str, Callable[[], Any]] = {
    "keras_model": keras_model,
    "own_tape": lambda: own_tape(1.0),
    "own_tape_halved": lambda: own_tape(0.5),
    "in_threads": in_threads,
    "in_double": in_double,
    "stopped": stopped,
    "traced": traced,
    "vector": vector,
    "constant": constant,
    "stepping": stepping,
}


def outcome(case: Callable[[], Any]) -> dict[str, Any]:
    closure, variables = case()
    tf.random.set_seed(1)
    values = [one.numpy() for one in getattr(variables, "variables", [])]
    states = random.getstate(), repr(np.random.get_state())
    try:
        told: dict[str, Any] = {"right": str(check_gradients(closure, variables))}
    except GradGuardError as error:
        first = error.findings[0]
        told = {"wrong": first.details["objects"], "message": first.message}
        told["codes"] = [one.code for one in error.findings]
    except Exception as error:
        told = {"raised": f"{type(error).__name__}: {error}"}
    after = [one.numpy() for one in getattr(variables, "variables", [])]
    told["same"] = (random.getstate(), repr(np.random.get_state())) == states and all(
        np.array_equal(one, other) for one, other in zip(values, after, strict=True)
    )
    told["drawn"] = float(tf.random.uniform(()))
    return told


if __name__ == "__main__":
    print(json.dumps({name: outcome(case) for name, case in CASES.items()}))
