"""Tapes that record around parallel calls, and work that only looks like it."""

import functools
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import joblib
import keras
import numpy as np
import pytest
import tensorflow as tf
from joblib import Parallel, delayed, parallel_backend

EXPECT = {
    "test_partial_gradient": {"GG105"},
    "test_partial_gradient_loky": {"GG105"},
    "test_persistent": {"GG105"},
    "test_outer_of_two_tapes": {"GG105"},
    "test_tape_held_by_an_object": {"GG105"},
    "test_jacobian": {"GG105"},
    "test_batch_jacobian": {"GG105"},
    "test_forward_accumulator": {"GG105"},
    "test_watched_tensor_to_threads": {"GG105"},
    "test_made_of_watched_in_a_list": {"GG105", "GG101"},
    "test_captured": {"GG105"},
    "test_partial_function": {"GG105"},
    "test_global": {"GG105"},
    "test_global_through_another_function": {"GG105"},
    "test_model_in_an_object": {"GG105"},
    "test_layer_in_a_dict": {"GG105"},
    "test_traced_function_as_task": {"GG105"},
    "test_custom_train_step": {"GG105"},
    "test_module_as_argument": {"GG105"},
    "test_closure_of_a_closure": {"GG105"},
    "test_object_that_holds_what_is_watched": {"GG105", "GG101"},
    "test_one_of_several_results": {"GG105"},
    "test_unconnected_as_zeros": {"GG105"},
    "test_through_a_second_call": {"GG105"},
    "test_features_that_are_gone": {"GG105"},
    "test_results_in_a_shared_list": {"GG105"},
    "test_gradients_of_gradients": {"GG105"},
    "test_custom_gradient_is_not_called_for_us": {"GG105"},
    "test_asked_in_another_thread": {"GG105"},
    "test_minimized": {"GG105"},
}
DETAILS = {
    "test_threads": {
        "GG105": {
            "object": "args[0]",
            "direction": "argument",
            "framework": "tensorflow",
            "backend": "threading",
            "type": "Variable",
            "shape": [2],
            "dtype": "float32",
            "confirmed": True,
            "without_gradient": ["weight"],
        }
    },
    "test_loky": {"GG105": {"backend": "loky", "without_gradient": ["weight"]}},
    "test_partial_gradient": {
        "GG105": {"confirmed": True, "partial_gradient": ["weight"], "without_gradient": []}
    },
    "test_partial_gradient_loky": {"GG105": {"partial_gradient": ["weight"]}},
    "test_jacobian": {"GG105": {"partial_gradient": ["weight"]}},
    "test_batch_jacobian": {"GG105": {"partial_gradient": ["x"]}},
    "test_one_of_several_results": {
        "GG105": {"without_gradient": ["weight"], "partial_gradient": []}
    },
    "test_through_a_second_call": {"GG105": {"without_gradient": ["weight"]}},
    "test_model_partly_frozen": {"GG105": {"without_gradient": ["model.second.kernel"]}},
    "test_forward_accumulator": {
        "GG105": {"tape": "ForwardAccumulator", "without_gradient": ["weight"]}
    },
    "test_watched_tensor_to_loky": {
        "GG101": {"object": "args[0]", "type": "EagerTensor", "framework": "tensorflow"}
    },
    "test_made_of_watched_in_a_list": {"GG105": {"without_gradient": ["weight"]}},
    "test_model_as_task": {
        "GG105": {"type": "Sequential", "without_gradient": ["model.first.kernel"]}
    },
    "test_global": {"GG105": {"object": "globals['shared']", "confirmed": True}},
}

shared = tf.Variable([1.0, 2.0])
scale = tf.Variable([3.0])


def loss(weight, factor):
    return tf.reduce_sum(weight * factor)


def loss_of(weight=None, factor=1.0):
    return loss(weight, factor)


def double(array):
    return array * 2.0


def gradient(weight, factor):
    with tf.GradientTape() as tape:
        value = loss(weight, factor)
    return tape.gradient(value, weight)


def calls(task, *arguments, backend="threading", n_jobs=2):
    return Parallel(n_jobs, backend=backend)(  # -> GG105? GG101?
        delayed(task)(*arguments, factor) for factor in (1.0, 2.0)
    )


def test_threads():
    weight = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        parts = Parallel(2, backend="threading")(  # -> GG105:error
            delayed(loss)(weight, factor) for factor in (1.0, 2.0)
        )
        total = tf.add_n(parts)
    assert tape.gradient(total, weight) is None


def test_loky():
    weight = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        total = tf.add_n(
            Parallel(2)(delayed(loss)(weight, factor) for factor in (1.0, 2.0))  # -> GG105:error
        )
    assert tape.gradient(total, weight) is None


def partial(backend):
    weight = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        total = tf.add_n(calls(loss, weight, backend=backend))
        total += tf.reduce_sum(weight**2) / 2
    assert tape.gradient(total, weight).numpy().tolist() == [1.0, 2.0]  # and not [4, 5]


def test_partial_gradient():
    partial("threading")


def test_partial_gradient_loky():
    partial("loky")


def test_persistent():
    weight = tf.Variable([1.0, 2.0])
    with tf.GradientTape(persistent=True) as tape:
        total = tf.add_n(calls(loss, weight))
        other = loss(weight, 5.0)
        assert tape.gradient(total, weight) is None
    assert tape.gradient(other, weight).numpy().tolist() == [5.0, 5.0]


def test_outer_of_two_tapes():
    weight = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            value = loss(weight * weight, 1.0)
        first = inner.gradient(value, weight)
        total = tf.add_n(calls(loss, first))
    assert outer.gradient(total, weight) is None


class Trainer:
    def __init__(self):
        self.weight = tf.Variable([1.0, 2.0])
        self.tape = tf.GradientTape()

    def step(self):
        with self.tape:
            total = tf.add_n(calls(loss, self.weight))
        return self.tape.gradient(total, self.weight)


def test_tape_held_by_an_object():
    assert Trainer().step() is None


def test_jacobian():
    weight = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        values = weight * sum(calls(loss, weight))
    assert tape.jacobian(values, weight).shape == (2, 2)


def test_batch_jacobian():
    x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
    with tf.GradientTape() as tape:
        tape.watch(x)
        values = x * calls(double_of, x)[0]
    assert tape.batch_jacobian(values, source=x).shape == (2, 2, 2)


def double_of(x, factor):
    return x * factor


def test_forward_accumulator():
    weight = tf.Variable([1.0, 2.0])
    with tf.autodiff.ForwardAccumulator(weight, tf.ones(2)) as accumulator:
        total = tf.add_n(calls(loss, weight))
    assert accumulator.jvp(total) is None


def test_watched_tensor_to_threads():
    x = tf.constant([1.0, 2.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        total = tf.add_n(calls(loss, x))
    assert tape.gradient(total, x) is None


def test_watched_tensor_to_loky():
    x = tf.constant([1.0, 2.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        parts = Parallel(2)(delayed(loss)(x, k) for k in (1.0, 2.0))  # -> GG105:error GG101:warning
        total = tf.add_n(parts)
    assert tape.gradient(total, x) is None


def first_of(values, factor):
    return loss(values[0]["x"], factor)


def test_made_of_watched_in_a_list():
    weight = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        features = weight * 2.0
        total = tf.add_n(calls(first_of, [{"x": features}], backend="loky"))
    assert tape.gradient(total, weight) is None


def test_keyword():
    weight = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        total = tf.add_n(
            Parallel(2, backend="threading")(  # -> GG105:error
                delayed(loss_of)(factor=k, weight=weight) for k in (1.0, 2.0)
            )
        )
    assert tape.gradient(total, weight) is None


def test_captured():
    weight = tf.Variable([1.0, 2.0])

    def task(factor):
        return loss(weight, factor)

    with tf.GradientTape() as tape:
        total = tf.add_n(calls(task))
    assert tape.gradient(total, weight) is None


def test_partial_function():
    weight = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        total = tf.add_n(calls(functools.partial(loss, weight)))
    assert tape.gradient(total, weight) is None


def loss_of_shared(factor):
    return loss(shared, factor)


def test_global():
    with tf.GradientTape() as tape:
        total = tf.add_n(calls(loss_of_shared))
    assert tape.gradient(total, shared) is None


def calling(factor):
    return loss_of_shared(factor)


def test_global_through_another_function():
    with tf.GradientTape() as tape:
        total = tf.add_n(calls(calling))
    assert tape.gradient(total, shared) is None


def model_of(*names):
    layers = [keras.layers.Dense(1, use_bias=False, name=name) for name in names]
    return keras.Sequential([keras.Input((2,)), *layers])


def test_method_of_a_model():
    model = model_of("first")
    with tf.GradientTape() as tape:
        parts = Parallel(2, backend="threading")(  # -> GG105:error
            delayed(model.call)(np.ones((1, 2), "float32")) for _ in range(2)
        )
        total = tf.add_n(parts)
    assert tape.gradient(total, model.trainable_variables) == [None]


def test_model_as_task():
    model = model_of("first")
    with tf.GradientTape() as tape:
        parts = Parallel(2, backend="threading")(  # -> GG105:error
            delayed(model)(np.ones((1, 2), "float32")) for _ in range(2)
        )
        total = tf.add_n(parts)
    assert tape.gradient(total, model.trainable_variables) == [None]


class Agent:
    def __init__(self, model):
        self.model = model

    def act(self, factor):
        return tf.reduce_sum(self.model(np.full((1, 2), factor, "float32")))


def test_model_in_an_object():
    agent = Agent(model_of("first"))
    with tf.GradientTape() as tape:
        total = tf.add_n(calls(agent.act))
    assert tape.gradient(total, agent.model.trainable_variables) == [None]


def apply(table, factor):
    return table["layer"](np.full((1, 2), factor, "float32"))


def test_layer_in_a_dict():
    layer = keras.layers.Dense(1)
    layer.build((None, 2))
    with tf.GradientTape() as tape:
        total = tf.add_n(calls(apply, {"layer": layer}))
    assert tape.gradient(total, layer.kernel) is None


def test_variables_in_numpy_out():
    weight = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        total = tf.constant(sum(calls(loss_in_numpy, weight)))
    assert tape.gradient(total, weight) is None


def loss_in_numpy(weight, factor):
    return loss(weight, factor).numpy()


def as_tensor(factor):
    return tf.constant([factor])


def test_numpy_in_tensors_out():
    weight = tf.Variable([1.0])
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(weight * tf.add_n(calls(as_tensor)))
    assert tape.gradient(total, weight).numpy().tolist() == [3.0]


def test_traced_function_as_task():
    weight = tf.Variable([1.0, 2.0])

    @tf.function
    def traced(factor):
        return tf.reduce_sum(weight * factor)

    with tf.GradientTape() as tape:
        total = tf.add_n(calls(traced))
    assert tape.gradient(total, weight) is None


@pytest.mark.skipif(not hasattr(joblib, "parallel_config"), reason="joblib has that since 1.3")
def test_generator_of_results():
    weight = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        total = tf.add_n(
            list(
                Parallel(2, backend="threading", return_as="generator")(  # -> GG105:error
                    delayed(loss)(weight, k) for k in (1.0, 2.0)
                )
            )
        )
    assert tape.gradient(total, weight) is None


def failing(weight, factor):
    raise ArithmeticError(f"no loss for {factor}")


def test_a_task_that_fails():
    weight = tf.Variable([1.0, 2.0])
    with tf.GradientTape(), pytest.raises(ArithmeticError, match="no loss"):
        calls(failing, weight)
    with tf.GradientTape() as tape:
        total = loss(weight, 2.0)
    assert tape.gradient(total, weight).numpy().tolist() == [2.0, 2.0]


def test_inside_a_traced_function():
    weight = tf.Variable([1.0, 2.0])

    @tf.function(autograph=False)
    def step():
        with tf.GradientTape() as tape:
            total = loss(weight, 1.0) + sum(calls(loss_in_numpy, shared))
        return tape.gradient(total, weight)

    assert step().numpy().tolist() == [1.0, 1.0]


class Parted(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1, use_bias=False)
        self.dense.build((None, 2))

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            parts = calls(lambda part, factor: self(part) * factor, x)
            value = tf.reduce_mean((sum(parts) - y) ** 2) + tf.reduce_sum(self.dense.kernel)
        (found,) = tape.gradient(value, self.trainable_variables)
        self.optimizer.apply_gradients([(found, self.dense.kernel)])
        return {"loss": value}


def test_custom_train_step():
    model = Parted()
    model(np.ones((1, 2), "float32"))
    model.compile("sgd", run_eagerly=True)
    model.fit(np.ones((4, 2), "float32"), np.ones((4, 1), "float32"), verbose=0)


class Linear(tf.Module):
    def __init__(self):
        super().__init__()
        self.weights = [tf.Variable([1.0, 2.0])]

    def __call__(self, factor):
        return tf.reduce_sum(self.weights[0] * factor)


def call(module, factor):
    return module(factor)


def test_module_as_argument():
    module = Linear()
    with tf.GradientTape() as tape:
        total = tf.add_n(calls(call, module, backend="loky"))
    assert tape.gradient(total, module.weights[0]) is None


def test_closure_of_a_closure():
    weight = tf.Variable([1.0, 2.0])

    def inner(factor):
        return loss(weight, factor)

    def outer(factor):
        return inner(factor)

    with tf.GradientTape() as tape:
        total = tf.add_n(calls(outer))
    assert tape.gradient(total, weight) is None


def test_last_of_many_tasks():
    weight = tf.Variable(1.0)
    with tf.GradientTape() as tape:
        parts = Parallel(2, backend="threading", batch_size=1)(  # -> GG105:error
            delayed(double)(value) for value in [1.0] * 20 + [weight]
        )
        total = tf.add_n(parts)
    assert tape.gradient(total, weight) is None


def test_method_of_a_variable():
    weight = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        parts = Parallel(2, backend="threading")(  # -> GG105:error
            delayed(weight.sparse_read)([index]) for index in (0, 1)
        )
        total = tf.reduce_sum(tf.concat(parts, 0))
    assert tape.gradient(total, weight) is None


class Features:
    def __init__(self, values):
        self.values = values

    def total(self, factor):
        return tf.reduce_sum(self.values * factor)


def test_object_that_holds_what_is_watched():
    weight = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        features = Features(weight * 2.0)
        total = tf.add_n(calls(features.total, backend="loky"))
    assert tape.gradient(total, weight) is None


def losses(weight, other, factor):
    return {
        "loss": loss(weight, factor),
        "metric": float(loss(other, factor)),
        "other": other * 1.0,
    }


def test_one_of_several_results():
    weight, other = tf.Variable([1.0, 2.0]), tf.Variable([3.0, 4.0])
    with tf.GradientTape() as tape:
        total = tf.add_n([part["loss"] for part in calls(losses, weight, other)])
        total += loss(other, 1.0)
    first, second = tape.gradient(total, [weight, other])
    assert first is None
    assert second.numpy().tolist() == [1.0, 1.0]


def test_unconnected_as_zeros():
    weight = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        total = tf.add_n(calls(loss, weight))
    found = tape.gradient(total, weight, unconnected_gradients="zero")
    assert found.numpy().tolist() == [0.0, 0.0]


def test_through_a_second_call():
    weight = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        first = tf.add_n(calls(loss, weight))
        scaled = first * tf.ones(2)
        second = Parallel(2, backend="threading")(  # -> GG105?
            delayed(loss)(scaled, k) for k in (1.0, 2.0)
        )
        total = tf.add_n(second)
    assert tape.gradient(total, weight) is None


def test_features_that_are_gone():
    weight, other = tf.Variable([1.0, 2.0]), tf.Variable([3.0, 4.0])
    with tf.GradientTape() as tape:
        logged = tf.reduce_sum(other)
        total = tf.add_n(calls(loss, weight * 2.0)) + tf.reduce_sum(weight)
        assert logged > 0.0
    assert tape.gradient(total, weight).numpy().tolist() == [1.0, 1.0]


def test_results_in_a_shared_list():
    weight, parts = tf.Variable([1.0, 2.0]), []

    def task(factor):
        parts.append(loss(weight, factor))

    with tf.GradientTape() as tape:
        calls(task)
        total = tf.add_n(parts)
    assert tape.gradient(total, weight) is None


def slope(weight, factor):
    with tf.GradientTape() as tape:
        value = tf.reduce_sum(weight**3) * factor
    return tape.gradient(value, weight)


def test_gradients_of_gradients():
    weight = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(tf.add_n(calls(slope, weight)))
    assert tape.gradient(total, weight) is None


@tf.custom_gradient
def doubled(x):
    called.append(1)

    def backward(upstream):
        called.append(2)
        return upstream * 2.0

    return x * 2.0, backward


called = []


def loss_of_doubled(weight, factor):
    return tf.reduce_sum(doubled(weight)) * factor


def test_custom_gradient_is_not_called_for_us():
    weight = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        total = doubled(tf.add_n(calls(loss_of_doubled, weight)))
        total += doubled(tf.reduce_sum(weight))
    assert tape.gradient(total, weight).numpy().tolist() == [2.0, 2.0]
    assert sorted(called) == [1, 1, 1, 1, 2]
    called.clear()


def test_model_partly_frozen():
    model = model_of("first", "second")
    model.layers[0].trainable = False
    with tf.GradientTape() as tape:
        parts = Parallel(2)(  # -> GG105:error
            delayed(model)(np.ones((1, 2), "float32")) for _ in range(2)
        )
        total = tf.add_n(parts)
    assert tape.gradient(total, model.trainable_variables) == [None]


def test_asked_in_another_thread():
    weight = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        total = tf.add_n(calls(loss, weight)) + loss(weight, 1.0)
    with ThreadPoolExecutor(1) as executor:
        found = executor.submit(tape.gradient, total, weight).result()
    assert found.numpy().tolist() == [1.0, 1.0]


def test_minimized():
    weight = tf.Variable([1.0, 2.0])
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(1.0)
    optimizer.minimize(
        lambda: tf.add_n(calls(loss, weight)) + tf.reduce_sum(weight**2), var_list=[weight]
    )
    assert weight.numpy().tolist() == [-1.0, -2.0]


# -- nothing is lost here ------------------------------------------------------------------------


def one_job(backend):
    weight = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        total = tf.add_n(calls(loss, weight, backend=backend, n_jobs=1))
    assert tape.gradient(total, weight).numpy().tolist() == [3.0, 3.0]


def test_one_job():
    one_job("loky")


def test_sequential_backend():
    weight = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape, parallel_backend("sequential"):
        total = tf.add_n(Parallel()(delayed(loss)(weight, k) for k in (1.0, 2.0)))
    assert tape.gradient(total, weight).numpy().tolist() == [3.0, 3.0]


def test_tape_inside_the_tasks():
    weight = tf.Variable([1.0, 2.0])
    assert tf.add_n(calls(gradient, weight)).numpy().tolist() == [3.0, 3.0]


def test_tape_inside_the_tasks_loky():
    weight = tf.Variable([1.0, 2.0])
    assert tf.add_n(calls(gradient, weight, backend="loky")).numpy().tolist() == [3.0, 3.0]


def test_stopped_recording():
    weight = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        features = weight * 2.0
        with tape.stop_recording():
            weights = calls(loss, features, backend="loky")
        total = tf.reduce_sum(features * tf.add_n(weights))
    assert tape.gradient(total, weight).numpy().tolist() == [36.0, 36.0]


def test_after_the_tape():
    weight = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        total = loss(weight, 2.0)
    calls(loss, weight)
    assert tape.gradient(total, weight).numpy().tolist() == [2.0, 2.0]


def test_persistent_after_the_tape():
    weight = tf.Variable([1.0, 2.0])
    with tf.GradientTape(persistent=True) as tape:
        total = loss(weight * 1.0, 2.0)
    calls(loss, total, backend="loky")
    assert tape.gradient(total, weight).numpy().tolist() == [2.0, 2.0]


def test_gradient_from_threads():
    weight = tf.Variable([1.0, 2.0])
    with tf.GradientTape(persistent=True) as tape:
        totals = [loss(weight, k) for k in (1.0, 2.0)]
    found = Parallel(2, backend="threading")(delayed(tape.gradient)(t, weight) for t in totals)
    assert tf.add_n(found).numpy().tolist() == [3.0, 3.0]


def test_before_the_tape():
    weight = tf.Variable([1.0, 2.0])
    factors = calls(loss, weight)
    with tf.GradientTape() as tape:
        total = loss(weight, tf.add_n(factors))
    assert tape.gradient(total, weight).numpy().tolist() == [9.0, 9.0]


def test_inner_tape_is_over():
    weight = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        total = loss(weight, 1.0)
    first = tape.gradient(total, weight)
    assert sum(calls(loss_in_numpy, first)) == 6.0


def test_numpy_under_an_open_tape():
    weight = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        parts = Parallel(2, backend="threading")(delayed(double)(np.ones(2)) for _ in range(4))
        total = tf.reduce_sum(weight * np.sum(parts, axis=0).astype("float32"))
    assert tape.gradient(total, weight).numpy().tolist() == [8.0, 8.0]


def test_numpy_under_an_open_tape_loky():
    weight = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        parts = Parallel(2)(delayed(double)(np.ones(2)) for _ in range(4))
        total = tf.reduce_sum(weight * np.sum(parts, axis=0).astype("float32"))
    assert tape.gradient(total, weight).numpy().tolist() == [8.0, 8.0]


def read(path):
    return np.load(path)


def test_files_under_an_open_tape():
    weight = tf.Variable([1.0, 2.0])
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"{index}.npy") for index in range(3)]
        for path in paths:
            np.save(path, np.ones(2, "float32"))
        with tf.GradientTape() as tape:
            batch = np.stack(Parallel(2, backend="threading")(delayed(read)(p) for p in paths))
            total = tf.reduce_sum(weight * batch)
    assert tape.gradient(total, weight).numpy().tolist() == [3.0, 3.0]


def length(path):
    return len(path.numpy())


def test_paths_as_tensors():
    weight = tf.Variable([1.0])
    with tf.GradientTape() as tape:
        sizes = Parallel(2, backend="threading")(
            delayed(length)(path) for path in tf.constant(["a", "bc"])
        )
        total = tf.reduce_sum(weight * float(sum(sizes)))
    assert tape.gradient(total, weight).numpy().tolist() == [3.0]


def count(dataset):
    return sum(1 for _ in dataset)


def test_a_dataset_under_an_open_tape():
    weight = tf.Variable([1.0])
    dataset = tf.data.Dataset.from_tensor_slices(np.ones((3, 2), "float32"))
    with tf.GradientTape() as tape:
        sizes = Parallel(2, backend="threading")(delayed(count)(dataset) for _ in range(2))
        total = tf.reduce_sum(weight * float(sum(sizes)))
    assert tape.gradient(total, weight).numpy().tolist() == [6.0]


def predict_by_a_new_model(array):
    model = model_of("first")
    return model(array).numpy()


def test_model_made_in_the_task():
    weight = tf.Variable([1.0])
    with tf.GradientTape() as tape:
        Parallel(2, backend="threading")(
            delayed(predict_by_a_new_model)(np.ones((1, 2), "float32")) for _ in range(2)
        )
        total = tf.reduce_sum(weight)
    assert tape.gradient(total, weight).numpy().tolist() == [1.0]


class Settings:
    scale = 2.0


def test_same_name_as_a_global():
    weight = tf.Variable([1.0])
    settings = Settings()

    def task(array):
        return array * settings.scale

    with tf.GradientTape() as tape:
        parts = Parallel(2, backend="threading")(delayed(task)(np.ones(1)) for _ in range(2))
        total = tf.reduce_sum(weight * np.sum(parts, axis=0).astype("float32"))
    assert tape.gradient(total, weight).numpy().tolist() == [4.0]


def scaled(array):
    if array.ndim > 3:
        return array * scale.numpy()
    return array


def test_global_that_is_named_and_not_read():
    weight = tf.Variable([1.0])
    with tf.GradientTape() as tape:
        parts = Parallel(2, backend="threading")(delayed(scaled)(np.ones(1)) for _ in range(2))
        total = tf.reduce_sum(weight * np.sum(parts, axis=0).astype("float32"))
    assert tape.gradient(total, weight).numpy().tolist() == [2.0]


class Loader:
    def __init__(self, model):
        self.model = model

    def load(self, factor):
        return np.full(2, factor, "float32")


def loaded(backend):
    loader, weight = Loader(model_of("first")), tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        batch = np.stack(calls(loader.load, backend=backend))
        total = tf.reduce_sum(weight * batch)
    assert tape.gradient(total, weight).numpy().tolist() == [3.0, 3.0]


def test_loader_that_holds_a_model():
    loaded("threading")


def test_loader_that_holds_a_model_loky():
    loaded("loky")


class Estimator:
    def fit(self, inputs):
        self.model_ = model_of("first")
        self.model_.compile("sgd", "mse")
        self.model_.fit(inputs, inputs[:, :1], verbose=0)
        return self


def fit(inputs):
    return Estimator().fit(inputs)


def test_estimators_fitted_in_tasks():
    weight = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        fitted = Parallel(2)(delayed(fit)(np.ones((4, 2), "float32")) for _ in range(2))
        total = tf.reduce_sum(weight * len(fitted))
    assert tape.gradient(total, weight).numpy().tolist() == [2.0, 2.0]


def test_tape_of_another_thread():
    import threading

    weight = tf.Variable([1.0, 2.0])
    opened, over = threading.Event(), threading.Event()

    def record():
        with tf.GradientTape():
            opened.set()
            over.wait(60)

    other = threading.Thread(target=record)
    other.start()
    assert opened.wait(60)
    assert sum(calls(loss_in_numpy, weight)) == 9.0
    over.set()
    other.join()


def test_accumulator_is_over():
    weight = tf.Variable([1.0, 2.0])
    with tf.autodiff.ForwardAccumulator(weight, tf.ones(2)) as accumulator:
        total = loss(weight, 2.0)
    calls(loss, total, backend="loky")
    assert accumulator.jvp(total).numpy() == 4.0


def predict(model, factor):
    return model(np.full((1, 2), factor, "float32")).numpy()


def test_inference_without_a_tape():
    model = model_of("first")
    assert len(calls(predict, model, backend="loky")) == 2


def asked(total_of, *others):
    """Gradients that are what they are in one thread."""
    weight = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(weight**2) + tf.reduce_sum(total_of(weight))
    first, *rest = tape.gradient(total, [weight, *others])
    assert first.numpy().tolist() == [2.0, 4.0]
    assert rest == [None] * len(others)


def load(factor):
    return tf.constant(np.arange(2, dtype="float32") + factor)


def test_inputs_loaded():
    weight = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(weight * tf.add_n(calls(load)))
    assert tape.gradient(total, weight).numpy().tolist() == [3.0, 5.0]


def test_logged_metric():
    asked(lambda weight: float(sum(calls(loss_in_numpy, weight))))


def stopped(weight, factor):
    return tf.stop_gradient(loss(weight, factor))


def test_stopped_in_the_tasks():
    asked(lambda weight: tf.add_n(calls(stopped, weight)))


def test_stopped_in_the_parent():
    asked(lambda weight: tf.stop_gradient(tf.add_n(calls(loss, weight))))


def test_through_numpy_in_the_parent():
    asked(lambda weight: tf.add_n(calls(loss, weight)).numpy())


def scored(model, factor):
    return tf.reduce_sum(model(tf.ones((1, 2)) * factor))


def test_frozen_target():
    model = model_of("first", "second")
    model.trainable = False
    asked(lambda weight: tf.add_n(calls(scored, model)))


def best(weight, factor):
    return tf.argmax(weight * factor)


def test_index_of_the_best():
    asked(lambda weight: tf.cast(calls(best, weight)[0], tf.float32))


def rounded(weight, factor):
    return tf.round(weight * factor)


def test_rounded_beyond_learning():
    asked(lambda weight: tf.add_n(calls(rounded, weight)))


def test_a_mask():
    asked(lambda weight: tf.where(calls(loss, weight)[0] > 0.0, 1.0, 2.0))


def test_factor_of_zero():
    asked(lambda weight: 0.0 * calls(loss, weight)[0])


def test_other_sources():
    other, weight = tf.Variable([1.0, 2.0]), tf.Variable(2.0)
    with tf.GradientTape() as tape:
        total = weight * weight * tf.add_n(calls(loss, other))
    assert tape.gradient(total, weight) == 36.0


def test_never_asked():
    weight = tf.Variable([1.0, 2.0])
    with tf.GradientTape():
        calls(loss, weight)


def test_softmax_adds_up_to_one():
    asked(lambda weight: tf.nn.softmax(tf.stack(calls(loss, weight))))


@tf.function
def stopped_inside(weight, factor):
    return tf.stop_gradient(weight) * factor


def test_stopped_in_a_traced_function():
    weight = tf.Variable([1.0, 2.0])
    asked(lambda _: tf.add_n(calls(stopped_inside, weight)), weight)


def test_result_that_is_only_part_of_another_loss():
    weight = tf.Variable([1.0, 2.0])
    with tf.GradientTape(persistent=True) as tape:
        logged = tf.add_n(calls(loss, weight))
        total = loss(weight, 2.0)
        assert logged > total
    assert tape.gradient(total, weight).numpy().tolist() == [2.0, 2.0]
