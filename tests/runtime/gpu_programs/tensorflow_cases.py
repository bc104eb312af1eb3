"""What the guard says of TensorFlow and GPUs; prints it as JSON.

There is no GPU. With the argument ``stand-in`` a second logical CPU of TensorFlow's own, on which
it really puts tensors and variables, is taken for one.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from joblib import Parallel, delayed

from pytest_gradguard import guard

STAND_IN = "stand-in" in sys.argv


def second_cpu() -> None:
    """Let TensorFlow, which is not initialised yet, have a second CPU, and take it for a GPU."""
    from pytest_gradguard.runtime.frameworks.tensorflow import tensors as tensorflow
    from pytest_gradguard.runtime.pitfalls.cuda import tensorflow as watched

    (cpu,) = tf.config.list_physical_devices("CPU")
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, two)
    tensorflow._GPU = ":CPU:1"
    watched._is_gpu = lambda device: device.name.endswith("CPU:1")


def total(values: list[float]) -> float:
    return float(tf.reduce_sum(tf.constant(values)))


def sum_on_gpu(values: list[float]) -> Any:
    with tf.device("/GPU:0"):
        return tf.reduce_sum(tf.constant(values))


def total_on_gpu(values: list[float]) -> float:
    return float(sum_on_gpu(values))


def strictly(values: list[float]) -> float:
    tf.config.set_soft_device_placement(False)
    try:
        return total_on_gpu(values)
    finally:
        tf.config.set_soft_device_placement(True)


def in_function(values: list[float]) -> Any:
    tf.config.set_soft_device_placement(False)
    try:
        return float(tf.function(sum_on_gpu)(values))  # AutoGraph finds no source to convert
    finally:
        tf.config.set_soft_device_placement(True)


def bad_shapes(values: list[float]) -> float:
    return float(tf.matmul(tf.ones((2, 3)), tf.ones((2, 3)))[0, 0])


def asked(values: list[float]) -> int:
    return len(tf.config.list_physical_devices("GPU"))


def size_of(item: Any) -> int:
    return int(item.shape[0])


def with_second_cpu(function: Any, *arguments: Any) -> Any:
    if tf.config.get_logical_device_configuration(tf.config.list_physical_devices()[0]) is None:
        second_cpu()
    return function(*arguments)


def make(values: list[float]) -> Any:
    with tf.device("/CPU:1"):
        return {"made": tf.constant(values)}


def choose(index: int) -> float:
    os.environ["CUDA_VISIBLE_DEVICES"] = str(index)
    return total([float(index)])


def parallel(function: Any, *arguments: Any, backend: str = "loky") -> Any:
    # A tensor initialises TensorFlow as it arrives: too late for a second CPU.
    if STAND_IN and backend == "loky" and function is not size_of:
        tasks = [delayed(with_second_cpu)(function, one) for one in arguments]
    else:
        tasks = [delayed(function)(one) for one in arguments]
    return Parallel(2, backend=backend)(tasks)


def found(run: Callable[[], Any]) -> dict[str, Any]:
    with guard("record") as report:
        try:
            run()
            raised = None
        except Exception as error:
            raised = [type(error).__name__, sorted(error.__dict__)]
    return {"raised": raised, "findings": [one.to_dict() for one in report.findings]}


told: dict[str, Any] = {}
ONE, TWO = [1.0, 2.0], [3.0, 4.0]
if STAND_IN:
    second_cpu()
    forked = "multiprocessing"
    told["fork before"] = found(lambda: parallel(len, ONE, TWO, backend=forked))
    told["workers start"] = found(lambda: parallel(total, ONE, TWO))
    told["visible devices"] = found(lambda: parallel(choose, 0, 1, 2))
    told["workers give"] = found(lambda: parallel(make, ONE, TWO))
    with tf.device("/CPU:1"):
        tensor, variable = tf.constant(ONE), tf.Variable(TWO)
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    plain = tf.constant(ONE)
    told["model"] = found(lambda: parallel(type, model, model))
    told["tensor"] = found(lambda: parallel(size_of, tensor, tensor))
    told["variable"] = found(lambda: parallel(size_of, variable, variable))
    told["on the cpu"] = found(lambda: parallel(size_of, plain, plain))
    told["numpy"] = found(lambda: parallel(size_of, tensor.numpy(), variable.numpy()))
    told["threads"] = found(lambda: parallel(size_of, tensor, tensor, backend="threading"))
    told["fork after"] = found(lambda: parallel(len, ONE, TWO, backend=forked))
else:
    told["cpu"] = found(lambda: parallel(total, ONE, TWO))
    told["softly"] = found(lambda: parallel(total_on_gpu, ONE, TWO))
    told["strictly"] = found(lambda: parallel(strictly, ONE, TWO))
    told["in a function"] = found(lambda: parallel(in_function, ONE, TWO))
    told["another error"] = found(lambda: parallel(bad_shapes, ONE, TWO))
    told["asked"] = found(lambda: parallel(asked, ONE, TWO))
    plain = tf.constant(ONE)
    told["tensors"] = found(lambda: parallel(size_of, plain, plain))
print(json.dumps(told))
