"""Programs with tapes: those that get every gradient, and those that lose one on its way."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow_table import batch, expects, network, pair

from pytest_gradguard import watch_gradients

# -- nothing is missing ------------------------------------------------------------------------


@expects("")
def a_model_built_on_its_first_call() -> None:
    model = network()
    with watch_gradients(model), tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(batch()))
        tape.gradient(loss, model.trainable_variables)


@expects("")
def a_traced_step() -> None:
    v, _ = pair()

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(v * v)
        return tape.gradient(loss, v)

    for _ in range(2):  # the second time it is traced already
        with watch_gradients(v):
            step()


@expects("")
def fitted() -> None:
    model = network()
    model.compile("adam", "mse")
    for _ in range(2):
        with watch_gradients(model):
            model.fit(batch(), tf.ones((2, 1)), verbose=0)


@expects("")
def a_train_step_of_ones_own() -> None:
    class Model(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.dense(x)

        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x) - y) ** 2)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss}

    model = Model()
    model.compile("sgd")
    with watch_gradients(model):
        model.fit(batch(), tf.ones((2, 1)), verbose=0)


@expects("")
def a_jacobian() -> None:
    v, _ = pair()
    with watch_gradients(v), tf.GradientTape() as tape:
        y = v * 2.0
        tape.jacobian(y, v)


@expects("")
def a_watched_constant() -> None:
    c = tf.constant([1.0, 2.0])
    with watch_gradients(c), tf.GradientTape() as tape:
        tape.watch(c)
        y = tf.reduce_sum(c * c)
        tape.gradient(y, c)


# -- reasons -----------------------------------------------------------------------------------


@expects("never-backward", "v")
def no_tape() -> None:
    v, _ = pair()
    with watch_gradients({"v": v}):
        tf.reduce_sum(v * v)


@expects("frozen", "first.kernel", "first.bias")
def a_frozen_layer() -> None:
    model = network()
    model(batch())
    model.layers[0].trainable = False
    with watch_gradients(model):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(batch()))
        tape.gradient(loss, model.trainable_variables)


@expects("not-in-graph", "v")
def unused() -> None:
    v, w = pair()
    with watch_gradients({"v": v, "w": w}):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w * 2.0)
        tape.gradient(loss, [v, w])  # <- here


@expects("not-in-graph", "v")
def unused_but_printed() -> None:
    v, w = pair()
    with watch_gradients({"v": v, "w": w}):
        with tf.GradientTape() as tape:
            extra = tf.reduce_sum(v)
            message = f"extra: {extra.numpy()}"
            loss = tf.reduce_sum(w * 2.0)
        tape.gradient(loss, [v, w])  # <- here
    assert message


@expects("not-asked", "w")
def not_among_the_sources() -> None:
    v, w = pair()
    with watch_gradients({"v": v, "w": w}):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(v * w)
        tape.gradient(loss, [v])  # <- here


@expects("other-thread", "v")
def a_thread() -> None:
    v, _ = pair()
    results: list[Any] = []
    with watch_gradients({"v": v}):
        with tf.GradientTape() as tape:
            thread = threading.Thread(target=lambda: results.append(v * 2.0))  # <- here
            thread.start()
            thread.join()
            loss = tf.reduce_sum(results[0])
        tape.gradient(loss, v)


@expects("other-thread", "v")
def joblibs_threads() -> None:
    from joblib import Parallel, delayed

    v, _ = pair()

    def double(factor: float) -> Any:
        return v * factor  # <- here

    with watch_gradients({"v": v}):
        with tf.GradientTape() as tape:
            parts = Parallel(n_jobs=2, backend="threading")(delayed(double)(f) for f in (1.0, 2.0))
            loss = tf.reduce_sum(tf.stack(parts))
        tape.gradient(loss, v)


@expects("other-thread", "v")
def a_pool_of_threads() -> None:
    from concurrent.futures import ThreadPoolExecutor

    v, _ = pair()

    def square() -> Any:
        return v**2  # <- here

    with watch_gradients({"v": v}), ThreadPoolExecutor(1) as pool:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(pool.submit(square).result())
        tape.gradient(loss, v)


@expects("unknown", "v")
def an_operation_that_reads_by_itself_in_a_thread() -> None:
    v, _ = pair()
    results: list[Any] = []
    with watch_gradients({"v": v}):
        with tf.GradientTape() as tape:
            thread = threading.Thread(target=lambda: results.append(tf.square(v)))
            thread.start()
            thread.join()
            loss = tf.reduce_sum(results[0])
        tape.gradient(loss, v)


@expects("cut", "v")
def numpy() -> None:
    v, w = pair()
    with watch_gradients({"v": v, "w": w}):
        with tf.GradientTape() as tape:
            values = np.exp((v * 2.0).numpy())  # <- here
            loss = tf.reduce_sum(w * values)
        tape.gradient(loss, [v, w])


@expects("cut", "v")
def a_python_float() -> None:
    v, w = pair()
    with watch_gradients({"v": v, "w": w}):
        with tf.GradientTape() as tape:
            scale = float(tf.reduce_sum(v))  # <- here
            loss = tf.reduce_sum(w) * scale
        tape.gradient(loss, [v, w])


@expects("cut", "v")
def a_numpy_function() -> None:
    v, w = pair()
    with watch_gradients({"v": v, "w": w}):
        with tf.GradientTape() as tape:
            rooted = tf.numpy_function(np.sqrt, [v * v], tf.float32)  # <- here
            loss = tf.reduce_sum(w * rooted)
        tape.gradient(loss, [v, w])


@expects("cut", "v")
def stop_gradient() -> None:
    v, w = pair()
    with watch_gradients({"v": v, "w": w}):
        with tf.GradientTape() as tape:
            target = tf.stop_gradient(v * 2.0)  # <- here
            loss = tf.reduce_sum((w - target) ** 2)
        tape.gradient(loss, [v, w])


@expects("cut", "first.kernel", "first.bias")
def stop_gradient_of_keras() -> None:
    model = network()
    with watch_gradients(model):
        with tf.GradientTape() as tape:
            hidden = keras.ops.stop_gradient(model.layers[0](batch()))  # <- here
            loss = tf.reduce_mean(model.layers[1](hidden))
        tape.gradient(loss, model.trainable_variables)


@expects("cut", "v")
def stop_gradient_in_a_function() -> None:
    v, w = pair()

    def teacher(x: Any) -> Any:
        return tf.stop_gradient(x * v)  # <- here

    with watch_gradients({"v": v, "w": w}):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w * teacher(tf.ones(2)))
        tape.gradient(loss, [v, w])


@expects("cut", "v")
def cast_to_integers() -> None:
    v, w = pair()
    with watch_gradients({"v": v, "w": w}):
        with tf.GradientTape() as tape:
            rounded = tf.cast(v * 3.0, tf.int32)  # <- here
            loss = tf.reduce_sum(w * tf.cast(rounded, tf.float32))
        tape.gradient(loss, [v, w])


@expects("integer-dtype", "v")
def an_integer_variable() -> None:
    v = tf.Variable([1, 2])
    with watch_gradients({"v": v}):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(v * 2)
        tape.gradient(loss, v)


@expects("not-watched-by-tape", "v")
def a_tape_that_watches_nothing() -> None:
    v, _ = pair()
    with watch_gradients({"v": v}):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            loss = tf.reduce_sum(v * v)
        tape.gradient(loss, v)  # <- here


@expects("not-watched-by-tape", "c")
def a_constant() -> None:
    c = tf.constant([1.0, 2.0])
    with watch_gradients({"c": c}):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(c * c)
        tape.gradient(loss, c)  # <- here


@expects("not-watched-by-tape", "v")
def an_untrainable_variable() -> None:
    v = tf.Variable([1.0, 2.0], trainable=False)
    with watch_gradients({"v": v}):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(v * v)
        tape.gradient(loss, v)  # <- here


@expects("outside-tape", "v")
def before_the_tape() -> None:
    v, _ = pair()
    with watch_gradients({"v": v}):
        hidden = v * 2.0  # <- here
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(hidden)
        tape.gradient(loss, v)


@expects("not-finite", "v")
def a_root_of_zero() -> None:
    v = tf.Variable([0.0, 1.0])
    with watch_gradients({"v": v}):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.sqrt(v))
        tape.gradient(loss, v)  # <- here


# -- cuts of what was read just now, and by operations without a gradient ----------------------


@expects("cut", "v")
def stop_gradient_of_a_variable() -> None:
    v, w = pair()
    with watch_gradients({"v": v, "w": w}):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w * tf.stop_gradient(v))  # <- here
        tape.gradient(loss, [v, w])


@expects("cut", "v")
def cast_of_a_variable() -> None:
    v, w = pair()
    with watch_gradients({"v": v, "w": w}):
        with tf.GradientTape() as tape:
            count = tf.cast(v, tf.int32)  # <- here
            loss = tf.reduce_sum(w * tf.cast(count, tf.float32))
        tape.gradient(loss, [v, w])


@expects("cut", "v")
def numpy_of_a_variable() -> None:
    v, w = pair()
    with watch_gradients({"v": v, "w": w}):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w * v.numpy())  # <- here
        tape.gradient(loss, [v, w])


@expects("cut", "v")
def numpy_of_a_keras_variable() -> None:
    v, w = keras.Variable([1.0, 2.0]), tf.Variable([3.0, 4.0])
    with watch_gradients({"v": v, "w": w}):
        with tf.GradientTape() as tape:
            values = np.array(v)  # <- here
            loss = tf.reduce_sum(w * values)
        tape.gradient(loss, [v.value, w])


@expects("cut", "v")
def the_index_of_the_largest() -> None:
    v, w = pair()
    with watch_gradients({"v": v, "w": w}):
        with tf.GradientTape() as tape:
            best = tf.argmax(v * 2.0)  # <- here
            loss = tf.gather(w, best)
        tape.gradient(loss, [v, w])


@expects("cut", "v")
def a_comparison() -> None:
    v, w = pair()
    with watch_gradients({"v": v, "w": w}):
        with tf.GradientTape() as tape:
            mask = v * 2.0 > 3.0  # <- here
            loss = tf.reduce_sum(tf.where(mask, w, 0.0))
        tape.gradient(loss, [v, w])


@expects("cut", "v")
def rounded_and_cast() -> None:
    v, _ = pair()
    with watch_gradients({"v": v}):
        with tf.GradientTape() as tape:
            whole = tf.round(v * 2.0)  # <- here
            loss = tf.reduce_sum(tf.cast(whole, tf.int64))
        tape.gradient(loss, v)


@expects("cut", "logits")
def sampled() -> None:
    logits, w = tf.Variable([[0.1, 0.9]]), tf.Variable([3.0, 4.0])
    with watch_gradients({"logits": logits, "w": w}):
        with tf.GradientTape() as tape:
            drawn = tf.random.categorical(logits * 2.0, 1)  # <- here
            loss = tf.reduce_sum(tf.gather(w, drawn[0]))
        tape.gradient(loss, [logits, w])


@expects("cut", "v")
def indices_of_the_top() -> None:
    v, w = pair()
    with watch_gradients({"v": v, "w": w}):
        with tf.GradientTape() as tape:
            top = tf.math.top_k(v * 2.0, 1)  # <- here
            loss = tf.reduce_sum(tf.gather(w, top.indices))
        tape.gradient(loss, [v, w])


@expects("cut", "v")
def through_text() -> None:
    v, w = pair()
    with watch_gradients({"v": v, "w": w}):
        with tf.GradientTape() as tape:
            text = f"{tf.reduce_sum(v)}"  # <- here
            loss = tf.reduce_sum(w) * float(text)
        tape.gradient(loss, [v, w])


@expects("cut", "v")
def assigned_to_another_variable() -> None:
    v, w = pair()
    with watch_gradients({"v": v, "w": w}):
        with tf.GradientTape() as tape:
            w.assign(v * 2.0)  # <- here
            loss = tf.reduce_sum(w * w)
        tape.gradient(loss, [v, w])


@expects("cut", "v")
def the_start_of_a_new_variable() -> None:
    v, _ = pair()
    with watch_gradients({"v": v}):
        with tf.GradientTape() as tape:
            start = tf.Variable(v * 2.0)  # <- here
            loss = tf.reduce_sum(start * start)
        tape.gradient(loss, v)


@expects("not-produced", "v")
def a_custom_gradient_of_none() -> None:
    v, w = pair()

    @tf.custom_gradient
    def blocked(x: Any) -> Any:
        return x * 2.0, lambda upstream: None

    with watch_gradients({"v": v, "w": w}):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(blocked(v) * w)  # <- here
        tape.gradient(loss, [v, w])


@expects("not-produced", "v")
def a_custom_gradient_of_one_of_two() -> None:
    v, w = pair()

    @tf.custom_gradient
    def product(x: Any, y: Any) -> Any:
        return x * y, lambda upstream: (None, upstream * x)

    with watch_gradients({"v": v, "w": w}):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(product(v, w))  # <- here
        tape.gradient(loss, [v, w])


@expects("not-produced", "v")
def a_custom_gradient_within_a_layer() -> None:
    v, w = pair()

    @tf.custom_gradient
    def rounded(x: Any) -> Any:
        return tf.round(x), lambda upstream: None

    def layer(x: Any) -> Any:
        return rounded(x) + 1.0  # <- here

    with watch_gradients({"v": v, "w": w}):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(v * 2.0) * w)
        tape.gradient(loss, [v, w])


@expects("not-in-graph", "v")
def logged_beside_the_loss() -> None:
    v, w = pair()
    with watch_gradients({"v": v, "w": w}):
        with tf.GradientTape() as tape:
            print(float(tf.reduce_sum(v)) > 0)
            loss = tf.reduce_sum(w * tf.stop_gradient(tf.ones(2)))
        tape.gradient(loss, [v, w])  # <- here


@expects("not-watched-by-tape", "v")
def a_tape_that_watches_the_other() -> None:
    v, w = pair()
    with watch_gradients({"v": v, "w": w}):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(w)
            loss = tf.reduce_sum(w * v)
        tape.gradient(loss, [v, w])  # <- here


@expects("outside-tape", "v")
def an_operation_that_reads_by_itself_before_the_tape() -> None:
    v, w = pair()
    with watch_gradients({"v": v, "w": w}):
        hidden = tf.square(v)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(hidden * w)
        tape.gradient(loss, [v, w])


@expects("cut", "v")
def a_comparison_of_a_variable() -> None:
    v, w = pair()
    with watch_gradients({"v": v, "w": w}):
        with tf.GradientTape() as tape:
            mask = tf.cast(v < 1.5, tf.float32)  # <- here
            loss = tf.reduce_sum(mask * w)
        tape.gradient(loss, [v, w])


@expects("cut", "v")
def through_a_pickle() -> None:
    v, w = pair()
    with watch_gradients({"v": v, "w": w}):
        with tf.GradientTape() as tape:
            text = pickle.dumps(v * 2.0)  # <- here
            loss = tf.reduce_sum(pickle.loads(text) * w)
        tape.gradient(loss, [v, w])


@expects("not-watched-by-tape", "c")
def watched_after_its_use() -> None:
    c, w = tf.constant([1.0, 2.0]), tf.Variable([3.0, 4.0])
    with watch_gradients({"c": c, "w": w}):
        with tf.GradientTape() as tape:
            hidden = c * 2.0
            tape.watch(c)
            loss = tf.reduce_sum(hidden * w)
        tape.gradient(loss, [c, w])  # <- here


@expects("cut", "first.kernel", "first.bias")
def converted_by_keras_itself() -> None:
    model = network()
    with watch_gradients(model), tf.GradientTape() as tape:
        first, second = model.layers
        hidden = keras.ops.convert_to_numpy(first(batch()))  # <- here
        loss = tf.reduce_mean(second(hidden))
        tape.gradient(loss, model.trainable_variables)


@expects("cut", "first.kernel", "first.bias", "second.kernel", "second.bias")
def predicted_under_the_tape() -> None:
    model = network()
    model.build((None, 2))
    scale = tf.Variable(1.0)
    with watch_gradients(model), tf.GradientTape() as tape:
        loss = scale * tf.reduce_mean(model.predict(batch(), verbose=0))  # <- here
        tape.gradient(loss, [scale, *model.trainable_variables])


@expects("cut", "v")
def a_penalty_on_a_slope_taken_outside() -> None:
    v, x = pair()
    with watch_gradients({"v": v}):
        with tf.GradientTape() as outer, tf.GradientTape() as inner:
            y = tf.reduce_sum(tf.tanh(v * x))
        slope = inner.gradient(y, x)  # <- here
        outer.gradient(tf.reduce_sum(slope**2), v)
