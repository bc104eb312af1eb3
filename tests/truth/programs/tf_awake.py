"""What of Keras and TensorFlow starts TensorFlow's threads without computing anything."""

from __future__ import annotations

import os

import keras
import tensorflow as tf
from cases import case, main
from keras import layers


def _added(*parts):
    model = keras.Sequential()
    for part in parts:
        model.add(part)
    return model


MADE = {
    "optimizer": keras.optimizers.Adam,
    "variable": lambda: tf.Variable(1.0),
    "metric": keras.metrics.Mean,
    "pretrained network": lambda: keras.applications.MobileNet(
        weights=None, input_shape=(32, 32, 3)
    ),
    "compile": lambda: _added(layers.Dense(3)).compile("adam", "mse"),
    "build": lambda: _added(layers.Dense(3)).build((None, 2)),
    "Sequential with Input": lambda: keras.Sequential([layers.Input((2,)), layers.Dense(3)]),
    "Sequential with a shape": lambda: _added(layers.Dense(3, input_shape=(2,))),
    "layer of a symbol": lambda: layers.Dense(3)(keras.Input((2,))),
    "dataset": lambda: tf.data.Dataset.from_tensor_slices([1, 2]),
    "layer": lambda: layers.Dense(3, input_shape=(2,)),
    "Input": lambda: keras.Input((2,)),
    "Sequential": lambda: _added(layers.Dense(3), layers.Dense(2)),
    "Sequential without weights": lambda: _added(layers.Input((2,)), layers.Flatten()),
    "schedule": lambda: keras.optimizers.schedules.ExponentialDecay(0.1, 1, 1),
    "loss": keras.losses.MeanSquaredError,
}


def _is_awake(make) -> bool:
    """Whether TensorFlow refuses, after `make()`, what it refuses once its threads are up."""
    child = os.fork()
    if not child:
        make()
        try:
            tf.config.threading.set_inter_op_parallelism_threads(3)
        except RuntimeError:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


@case
def awake():
    return {name: _is_awake(make) for name, make in MADE.items()}


if __name__ == "__main__":
    main()
