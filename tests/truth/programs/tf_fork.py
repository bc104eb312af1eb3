"""TensorFlow in forked workers: the case that is named runs, and may hang."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from cases import case, main
from joblib import Parallel, delayed


def multiply(size):
    matrix = tf.ones((size, size))
    return float(tf.linalg.trace(matrix @ matrix))


def add(value):
    return float(tf.constant(float(value)) + 1.0)


def multiply_numpy(size):
    matrix = np.ones((size, size))
    return float((matrix @ matrix).trace())


def fork(task, size):
    print("forking", flush=True)
    return Parallel(2, backend="multiprocessing")(delayed(task)(size) for _ in range(2))


@case
def only_imported_in_parent():
    return fork(multiply, 300)


@case
def small_operations():
    add(1)
    return fork(add, 1)


@case
def numpy_in_workers():
    multiply(300)
    return fork(multiply_numpy, 300)


@case
def large_in_parent_and_workers():
    multiply(300)
    return fork(multiply, 300)


if __name__ == "__main__":
    main()
