"""TensorFlow and Keras values that go to loky workers and come back."""

from __future__ import annotations

import os

import keras
import numpy as np
import tensorflow as tf
from cases import attempt, case, main
from joblib import Parallel, delayed


def call(task, *arguments):
    """What `task` gives in loky workers, one call for each of `arguments`."""
    return Parallel(2, batch_size=1)(delayed(task)(*each) for each in arguments)


def loss(weight, factor):
    return tf.reduce_sum(weight * factor)


def change(variable):
    variable.assign_add([1.0])
    return [type(variable).__name__, variable.trainable, variable.numpy().tolist()]


@case
def variables():
    trainable, frozen = tf.Variable([1.0]), tf.Variable([1.0], trainable=False)
    seen = call(change, (trainable,), (frozen,))
    return {"workers": seen, "parent": trainable.numpy().tolist()}


@case
def eager_tensor():
    return call(lambda t: [type(t).__name__, t.numpy().tolist()], (tf.constant([1.0]),))[0]


@case
def keras_model_and_layer():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1), keras.layers.Dense(1)])
    model.layers[0].trainable = False
    return call(lambda m: [w.trainable for w in m.weights], (model,), (model.layers[1],))


@case
def watched_tensor():
    """What a watched tensor is in the worker, and what its tape gives for it here."""
    x = tf.constant([1.0, 2.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        seen = call(lambda t: [type(t).__name__, t.numpy().tolist()], (x * 2.0,))[0]
        total = tf.add_n(call(loss, (x * 2.0, 1.0), (x * 2.0, 2.0)))
    return [seen, tape.gradient(total, x) is None]


@case
def partial_gradient_around_loky():
    weight = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        total = tf.add_n(call(loss, (weight, 2.0), (weight, 4.0))) + tf.reduce_sum(weight**2) / 2
    return tape.gradient(total, weight).numpy().tolist()


@case
def layer_of_two_models():
    """Whether a layer that two models share is still one layer in the worker."""
    layer = keras.layers.Dense(1)
    first, second = (keras.Sequential([keras.Input((1,)), layer]) for _ in range(2))
    same = call(lambda a, b: a.layers[0] is b.layers[0], (first, second))[0]
    return [first.layers[0] is second.layers[0], same]


@case
def returned_optimizer():
    def train():
        weight = keras.Variable([1.0])
        optimizer = keras.optimizers.Adam()
        optimizer.build([weight])
        optimizer.apply([keras.ops.ones(1)])
        return optimizer

    (optimizer,) = call(train, ())
    return [optimizer.built, int(optimizer.iterations.numpy())]


@case
def tape_around_loky():
    weight = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        total = tf.add_n(call(loss, (weight, 1.0), (weight, 2.0)))
    return tape.gradient(total, weight) is None


def gradient(weight, factor):
    with tf.GradientTape() as tape:
        value = loss(weight, factor)
    return tape.gradient(value, weight)


@case
def tape_inside_loky():
    weight = tf.Variable([1.0, 2.0])
    return tf.add_n(call(gradient, (weight, 1.0), (weight, 2.0))).numpy().tolist()


@case
def fit_in_a_worker():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    before = [weight.numpy() for weight in model.weights]
    outcome = attempt(
        lambda: call(lambda x, y: model.fit(x, y, verbose=0) and None, (np.ones((4, 1)),) * 2)
    )
    moved = any((old != new.numpy()).any() for old, new in zip(before, model.weights, strict=True))
    return {"raises": isinstance(outcome, dict), "parent moved": moved}


@case
def optimizer_argument():
    weight = keras.Variable([1.0])
    optimizer = keras.optimizers.Adam()
    optimizer.build([weight])
    optimizer.apply([keras.ops.ones(1)])
    return call(lambda o: [o.built, int(o.iterations.numpy())], (optimizer,))[0]


def set_no_gpu():
    tf.config.set_visible_devices([], "GPU")
    tf.constant(1.0) + 1
    return "set"


def set_no_gpu_then_no_cpu():
    set_no_gpu()
    return attempt(tf.config.set_visible_devices, [], "CPU")


@case
def visible_devices_in_reused_workers():
    same = call(set_no_gpu, *[()] * 4) + call(set_no_gpu, *[()] * 4)
    return {"same": sorted(set(same)), "changing": call(set_no_gpu_then_no_cpu, ())[0]}


def set_variable(index):
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = str(index)
    return before


@case
def environment_of_reused_workers():
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    first = Parallel(1, backend="loky")(delayed(set_variable)(k) for k in range(2))
    seen = call(set_variable, *[(k,) for k in range(6)])
    return {"one job is this process": first, "stays": any(value is not None for value in seen[2:])}


def build(X, y):
    layers = [keras.Input((X.shape[1],)), keras.layers.Dense(y.shape[1], activation="softmax")]
    model = keras.Sequential(layers)
    model.compile(optimizer="sgd", loss="categorical_crossentropy")
    return model


@case
def searches_over_wrappers():
    """How many models the parent pickles for a search over a function that builds them."""
    from keras.src.saving.keras_saveable import KerasSaveable
    from keras.wrappers import SKLearnClassifier
    from sklearn.model_selection import GridSearchCV

    pickled = []
    original = KerasSaveable.__reduce__

    def counting(self):
        pickled.append(type(self).__name__)
        return original(self)

    KerasSaveable.__reduce__ = counting
    inputs = np.random.default_rng(0).normal(size=(20, 2))
    wrapper = SKLearnClassifier(build, fit_kwargs={"verbose": 0})
    grid = {"fit_kwargs": [{"verbose": 0, "epochs": n} for n in (1, 2)]}
    search = GridSearchCV(wrapper, grid, cv=2, n_jobs=2, refit=False)
    search.fit(inputs, inputs[:, 0] > 0)
    by_search = len(pickled)
    call(lambda model: type(model).__name__, (build(inputs, np.ones((20, 2))),))
    return {"search": by_search, "model as argument": len(pickled) > by_search}


if __name__ == "__main__":
    main()
