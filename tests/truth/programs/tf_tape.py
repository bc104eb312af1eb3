"""TensorFlow and Keras in one process: tapes and threads, loops over examples, what was removed."""

from __future__ import annotations

import importlib
import pickle
import threading

import dask.array as da
import keras
import numpy as np
import tensorflow as tf
from cases import attempt, case, main
from joblib import Parallel, delayed
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import record


def plain(gradient):
    return None if gradient is None else tf.convert_to_tensor(gradient).numpy().tolist()


def loss(weight, factor):
    return tf.reduce_sum(weight * factor)


def losses(backend, workers, weight):
    return tf.add_n(
        Parallel(workers, backend=backend)(delayed(loss)(weight, k) for k in (1.0, 2.0))
    )


@case
def tape_around_threads():
    weight = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        total = losses("threading", 2, weight)
    return plain(tape.gradient(total, weight))


@case
def tape_around_one_job():
    weight = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        total = losses("loky", 1, weight)
    return plain(tape.gradient(total, weight))


@case
def partial_gradient():
    found = {}
    for name, workers in (("threads", 2), ("one job", 1)):
        weight = tf.Variable([1.0, 2.0])
        with tf.GradientTape() as tape:
            total = losses("threading", workers, weight) + tf.reduce_sum(weight**2) / 2
        found[name] = plain(tape.gradient(total, weight))
    return found


def gradient_in_worker(weight, factor):
    with tf.GradientTape() as tape:
        value = loss(weight, factor)
    return tape.gradient(value, weight)


@case
def other_gradients_around_threads():
    """Jacobians of what threads made, and a tensor of the tape's that they got."""
    weight, x = tf.Variable([1.0, 2.0]), tf.constant([[1.0, 2.0]])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        (made,) = Parallel(2, backend="threading")([delayed(double)(x)])
        (of_weight,) = Parallel(2, backend="threading")([delayed(double)(weight * 1.0)])
    return [plain(tape.batch_jacobian(made, x)), plain(tape.jacobian(of_weight, weight))]


@case
def stopped_recording_around_threads():
    weight = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        with tape.stop_recording():
            factor = losses("threading", 2, weight)
        total = loss(weight, factor)
    return plain(tape.gradient(total, weight))


@case
def what_tells_of_tapes():
    """TensorFlow's own account, thread by thread, of what records and what is watched."""
    weight, found, elsewhere = tf.Variable([1.0]), [], []

    def note(here, *tensors):
        empty = pywrap_tfe.TFE_Py_TapeSetIsEmpty()
        kinds = [pywrap_tfe.TFE_Py_TapeSetPossibleGradientTypes([one]) > 0 for one in tensors]
        here.append([empty, *kinds])

    def in_another_thread(tape, *tensors):
        note(elsewhere, *tensors)
        pywrap_tfe.TFE_Py_TapeSetAdd(tape)
        note(elsewhere, *tensors)
        pywrap_tfe.TFE_Py_TapeSetRemove(tape)
        note(elsewhere, *tensors)

    note(found)
    with tf.GradientTape() as tape:
        made, constant = weight * 2.0, tf.constant([1.0])
        note(found, made, constant)
        with tape.stop_recording():
            note(found, made, constant)
        thread = threading.Thread(target=in_another_thread, args=(tape._tape._tape, made, constant))
        thread.start()
        thread.join()
    note(found)
    with tf.autodiff.ForwardAccumulator(weight, tf.ones(1)):
        note(found)
    return {"here": found, "elsewhere": elsewhere}


@case
def what_tells_of_variables():
    """Trainable variables that are read in one thread, a traced function's among them."""
    read, frozen, traced = tf.Variable(1.0), tf.Variable(1.0, trainable=False), tf.Variable(1.0)
    function = tf.function(lambda: traced * 2.0)
    with record.VariableWatcher() as watcher:
        read + frozen
        function()
        thread = threading.Thread(target=lambda: tf.Variable(1.0) + 1.0)
        thread.start()
        thread.join()
    seen = {id(variable) for variable in watcher.watched_variables()}
    return [seen == {id(read), id(traced)}, len(seen)]


@case
def tape_inside_threads():
    weight = tf.Variable([1.0, 2.0])
    parts = Parallel(2, backend="threading")(
        delayed(gradient_in_worker)(weight, k) for k in (1.0, 2.0)
    )
    return plain(tf.add_n(parts))


@case
def keras_forward_in_threads_under_a_tape():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    with tf.GradientTape() as tape:
        out = Parallel(2, backend="threading")(delayed(model)(tf.ones((1, 2))) for _ in range(2))
        total = tf.reduce_sum(tf.add_n(out))
    return [plain(g) for g in tape.gradient(total, model.trainable_variables)]


@case
def forward_accumulator_around_threads():
    weight = tf.Variable([1.0, 2.0])
    with tf.autodiff.ForwardAccumulator(weight, tf.ones(2)) as accumulator:
        total = losses("threading", 2, weight)
        here = loss(weight, 3.0)
    return [plain(accumulator.jvp(total)), plain(accumulator.jvp(here))]


@case
def gradient_called_from_threads():
    weight = tf.Variable([1.0, 2.0])
    with tf.GradientTape(persistent=True) as tape:
        totals = [loss(weight, k) for k in (1.0, 2.0)]
    found = Parallel(2, backend="threading")(delayed(tape.gradient)(t, weight) for t in totals)
    return [plain(gradient) for gradient in found]


def double(x):
    return x * 2


@case
def parallel_inside_a_function():
    weight, calls = tf.Variable(1.0), []

    def task(factor):
        calls.append(factor)
        return weight * factor

    @tf.function(autograph=False)
    def total(x):
        return x + tf.add_n(Parallel(2, backend="threading")(delayed(task)(k) for k in (1.0, 2.0)))

    @tf.function(autograph=False)
    def of_symbols(x):
        return tf.add_n(Parallel(2, backend="threading")(delayed(double)(x + k) for k in (1, 2)))

    results = [float(total(tf.constant(0.0)))]
    weight.assign(10.0)
    results.append(float(total(tf.constant(0.0))))
    return {
        "results": results,
        "calls": len(calls),
        "symbols": attempt(lambda: float(of_symbols(tf.constant(0.0)))),
    }


@case
def apply_gradients():
    optimizer = keras.optimizers.SGD()
    first, second = keras.Variable([1.0]), keras.Variable([1.0])
    none = attempt(optimizer.apply_gradients, [(None, first), (None, second)])
    some = attempt(optimizer.apply_gradients, [(tf.ones(1), first), (None, second)])
    return {"all": none["raises"], "some": isinstance(some, dict)}


@case
def lost_updates_from_threads():
    """Both threads read before either writes: an order that nothing forbids."""
    barrier = threading.Barrier(2, timeout=60)
    variable = tf.Variable(0)

    def add():
        value = variable + 1
        barrier.wait()
        variable.assign(value)

    def add_at_once():
        for _ in range(500):
            variable.assign_add(1)

    Parallel(2, backend="threading")(delayed(add)() for _ in range(2))
    lost = int(variable)
    variable.assign(0)
    Parallel(2, backend="threading")(delayed(add_at_once)() for _ in range(2))
    return [lost, int(variable)]


@case
def what_pickles():
    open_tape = tf.GradientTape()
    traced = tf.function(lambda x: x + 1)
    traced(tf.constant(1.0))
    with open_tape:
        found = {
            "open tape": attempt(lambda: bool(pickle.dumps(open_tape))),
            "idle tape": attempt(lambda: bool(pickle.dumps(tf.GradientTape()))),
            "traced function": attempt(lambda: bool(cloudpickle_dumps(traced))),
            "concrete function": attempt(
                lambda: bool(cloudpickle_dumps(traced.get_concrete_function(tf.constant(1.0))))
            ),
            "dataset": attempt(lambda: bool(pickle.dumps(tf.data.Dataset.range(3)))),
        }
    return {k: "raises" if isinstance(v, dict) else v for k, v in found.items()}


def cloudpickle_dumps(value):
    import cloudpickle

    return cloudpickle.dumps(value)


def scaled(kind):
    return lambda **options: keras.optimizers.LossScaleOptimizer(kind(**options))


def optimizer_of(kind, moments, **options):
    weight = keras.Variable([1.0])
    optimizer = kind(**({"momentum": 0.9} if moments else {}), **options)
    optimizer.build([weight])
    optimizer.apply([keras.ops.ones(1)], [weight])
    return optimizer


def steps_of(optimizer):
    """Up to Keras 3.8, one that scales losses counts none itself."""
    return int(getattr(optimizer, "inner_optimizer", optimizer).iterations.numpy())


@case
def optimizer_pickled_alone():
    found = {}
    for name, optimizer in (
        ("Adam", optimizer_of(keras.optimizers.Adam, False)),
        ("SGD with momentum", optimizer_of(keras.optimizers.SGD, True)),
        ("SGD", optimizer_of(keras.optimizers.SGD, False)),
        ("SGD with averages", optimizer_of(keras.optimizers.SGD, False, use_ema=True)),
        ("scaled Adam", optimizer_of(scaled(keras.optimizers.Adam), False)),
        ("scaled SGD", optimizer_of(scaled(keras.optimizers.SGD), False)),
    ):
        copy = pickle.loads(pickle.dumps(optimizer))
        found[name] = [steps_of(optimizer), copy.built, steps_of(copy)]
    return found


@case
def optimizer_inside_its_model():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    model.train_on_batch(np.ones((2, 2)), np.ones((2, 1)))
    copy = pickle.loads(pickle.dumps(model))
    return [copy.optimizer.built, int(copy.optimizer.iterations.numpy())]


@case
def map_fn_in_eager_mode():
    running, most, threads = [], [], set()

    def body(x):
        running.append(1)
        most.append(len(running))
        threads.add(threading.get_ident())
        value = x * x
        running.pop()
        return value

    tf.map_fn(body, tf.ones(8), parallel_iterations=4)
    return [max(most), threads == {threading.get_ident()}, len(most)]


@case
def map_fn_autotune():
    return attempt(
        lambda: tf.map_fn(lambda x: x, tf.ones(2), parallel_iterations=tf.data.AUTOTUNE)
    )["raises"]


@case
def tensor_spec_without_shape():
    return attempt(lambda: tf.TensorSpec(dtype=tf.float32))


@case
def per_example_gradients():
    weight = tf.Variable([1.0, 2.0, 3.0])
    batch = tf.random.normal((16, 3), seed=1)

    def gradient(x):
        with tf.GradientTape() as tape:
            value = tf.tanh(tf.reduce_sum(weight * x)) ** 2
        return tape.gradient(value, weight)

    loop = tf.stack([gradient(x) for x in batch])
    vectorized = tf.function(lambda xs: tf.vectorized_map(gradient, xs))(batch)
    with tf.GradientTape() as tape:
        values = tf.tanh(tf.reduce_sum(weight * batch, axis=1)) ** 2
    jacobian = tape.jacobian(values, weight)
    return [float(tf.reduce_max(abs(loop - other))) for other in (vectorized, jacobian)]


@case
def removed_wrappers():
    return {
        "tensorflow.keras": attempt(
            importlib.import_module, "tensorflow.keras.wrappers.scikit_learn"
        )["raises"],
        "keras": attempt(importlib.import_module, "keras.wrappers.scikit_learn")["raises"],
        "attribute": attempt(lambda: tf.keras.wrappers.scikit_learn)["raises"],
        "instead": hasattr(getattr(keras, "wrappers", None), "SKLearnClassifier"),
    }


@case
def predict_on_a_dask_array():
    whole, blocks = [], []

    def note(block):
        blocks.append(block.shape)
        return block

    class Counting:
        def __call__(self, graph, keys, **options):
            import dask

            whole.append(1)
            return dask.get(graph, keys, **options)

    import dask

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    x = da.ones((8, 3), chunks=(2, 3), dtype="float32").map_blocks(note, meta=np.ones((0, 3)))
    with dask.config.set(scheduler=Counting()):
        out = model.predict(x, verbose=0)
    return {"type": type(out).__name__, "computes": len(whole), "blocks": len(blocks)}


if __name__ == "__main__":
    main()
