"""TensorFlow and Keras through dask, in a program without PyTorch."""

import dask
import dask.array
import keras
import numpy as np
import pytest
import tensorflow as tf
from dask.distributed import Client
from joblib import Parallel, delayed, parallel_config


@pytest.fixture(scope="module")
def client():
    with Client(n_workers=2, threads_per_worker=1, dashboard_address=None) as client:
        yield client


def loss(weight, factor):
    return tf.reduce_sum(weight * factor)


def test_joblib(client):
    weight = tf.Variable([1.0, 2.0])
    with parallel_config(backend="dask"), tf.GradientTape() as tape:
        parts = Parallel(2)(delayed(loss)(weight, k) for k in (1.0, 2.0))  # -> GG105:error
        total = tf.add_n(parts)
    assert tape.gradient(total, weight) is None


def test_submit(client):
    weight = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        parts = [client.submit(loss, weight, k) for k in (1.0, 2.0)]  # -> GG105:error
        total = tf.add_n(client.gather(parts))
    assert tape.gradient(total, weight) is None


def steps(optimizer):
    return int(optimizer.iterations.numpy())


def test_optimizer(client):
    optimizer = keras.optimizers.Adam()
    optimizer.build([keras.Variable([1.0])])
    optimizer.apply([keras.ops.ones(1)])
    assert client.submit(steps, optimizer).result() == 0  # -> GG110:warning


def test_threads():
    weight = tf.Variable([1.0, 2.0])
    tasks = [dask.delayed(loss)(weight, k) for k in (1.0, 2.0)]
    with tf.GradientTape() as tape:
        total = tf.add_n(dask.compute(*tasks, scheduler="threads"))  # -> GG105:error
    assert tape.gradient(total, weight) is None


def total_of(*parts):
    return tf.add_n(parts)


def test_threads_one_after_another():
    weight = tf.Variable([1.0, 2.0])
    task = dask.delayed(total_of)(*[dask.delayed(loss)(weight, k) for k in (1.0, 2.0)])
    with tf.GradientTape() as tape:
        total = task.compute(scheduler="threads")  # -> GG105:error
    assert tape.gradient(total, weight) is None


def failing(weight):
    raise ArithmeticError("no loss")


def test_threads_that_fail():
    tasks = [dask.delayed(failing)(tf.Variable([1.0])) for _ in range(2)]
    with tf.GradientTape(), pytest.raises(ArithmeticError, match="no loss"):
        dask.compute(*tasks, scheduler="threads")


# -- nothing is lost here ------------------------------------------------------------------------


def test_arrays_under_a_tape(client):
    weight = tf.Variable([1.0, 2.0])
    with parallel_config(backend="dask"), tf.GradientTape() as tape:
        factor = sum(Parallel(2)(delayed(np.sum)(np.ones(k)) for k in (1, 2)))
        total = loss(weight, float(factor))
    assert tape.gradient(total, weight).numpy().tolist() == [3.0, 3.0]


def test_arrays_to_submit(client):
    weight = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        factor = sum(client.gather(client.map(np.sum, [np.ones(1), np.ones(2)])))
        total = loss(weight, float(factor))
    assert tape.gradient(total, weight).numpy().tolist() == [3.0, 3.0]


def fitted(epochs):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    model.fit(np.ones((4, 2)), np.ones((4, 1)), epochs=epochs, verbose=0)
    return model.get_weights()


def test_fitted_in_workers(client):
    with parallel_config(backend="dask"):
        assert len(Parallel(2)(delayed(fitted)(epochs) for epochs in (1, 2))) == 2


def gradient(values, factor):
    weight = tf.Variable(values)
    with tf.GradientTape() as tape:
        total = loss(weight, factor)
    return tape.gradient(total, weight).numpy()


def test_tape_in_the_workers(client):
    values = np.ones(2, "float32")
    found = client.gather([client.submit(gradient, values, k) for k in (1.0, 2.0)])
    assert sum(found).tolist() == [3.0, 3.0]


def kept(scheduler, tasks, **options):
    weight = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        factor = sum(dask.compute(*tasks(weight), scheduler=scheduler, **options))
        total = loss(weight, tf.cast(factor, tf.float32))
    assert tape.gradient(total, weight) is not None


def test_threads_with_arrays():
    kept("threads", lambda weight: [dask.delayed(np.sum)(np.ones(k)) for k in (1, 2)])


def test_blocks_of_an_array():
    kept("threads", lambda weight: [dask.array.ones((20, 20), chunks=5).sum()])


def test_one_thread():
    weight = tf.Variable([1.0, 2.0])
    tasks = [dask.delayed(loss)(weight, k) for k in (1.0, 2.0)]
    dask.compute(*tasks, scheduler="threads", num_workers=1)


def test_this_thread():
    kept("sync", lambda weight: [dask.delayed(loss)(weight, k) for k in (1.0, 2.0)])
