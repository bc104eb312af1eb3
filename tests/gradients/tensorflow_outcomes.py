"""Programs that ask no tape, or ask for too little, or get no good answer."""

from __future__ import annotations

import multiprocessing
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from joblib import Parallel, delayed
from tensorflow_table import batch, expects, network, pair

from pytest_gradguard import watch_gradients

DENSE = ("first.kernel", "first.bias", "second.kernel", "second.bias")


class Branches(keras.Model):
    """A model with a branch that its call leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.main = keras.layers.Dense(1, name="main")
        self.aside = keras.layers.Dense(1, name="aside")
        self.aside.build((None, 2))

    def call(self, x: Any) -> Any:
        return self.main(x)


class Tuned(keras.Model):
    """A model whose own step asks for the gradients of its head alone."""

    def __init__(self) -> None:
        super().__init__()
        self.body = keras.layers.Dense(2, name="body", activation="tanh")
        self.head = keras.layers.Dense(1, name="head")

    def call(self, x: Any) -> Any:
        return self.head(self.body(x))

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
        chosen = self.head.trainable_variables
        gradients = tape.gradient(loss, chosen)
        self.optimizer.apply_gradients(zip(gradients, chosen, strict=True))
        return {"loss": loss}


class Aside(Branches):
    """A model that Keras calls `aside`, as one of its layers."""


# -- no tape was asked -------------------------------------------------------------------------


@expects("never-backward", *DENSE)
def predicted_only() -> None:
    model = network()
    model(batch())
    model.compile("sgd", "mse")
    with watch_gradients(model):
        model.predict(batch(), verbose=0)
        model.evaluate(batch(), tf.ones((2, 1)), verbose=0)


@expects("never-backward", "w", "b")
def a_tape_that_is_never_asked() -> None:
    module = tf.Module()
    module.w, module.b = pair()

    @tf.function
    def loss() -> Any:
        return tf.reduce_sum(module.w * 2.0 + module.b)

    with watch_gradients(module):
        with tf.GradientTape(persistent=True) as tape:
            value = loss()
        module.w.assign_sub(0.1 * tf.ones(2))
        print(value, tape)


# -- frozen ------------------------------------------------------------------------------------


@expects("frozen", "first.kernel", "first.bias")
def fitted_with_a_frozen_layer() -> None:
    model = network()
    model(batch())
    model.layers[0].trainable = False
    model.compile("sgd", "mse")
    with watch_gradients(model):
        model.fit(batch(), tf.ones((2, 1)), epochs=2, verbose=0)


@expects("frozen", "table")
def a_fixed_table_of_a_module() -> None:
    class Lookup(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = tf.Variable(tf.ones((3, 2)), trainable=False)
            self.scale = tf.Variable(2.0)

        def __call__(self, indices: Any) -> Any:
            return tf.gather(self.table, indices) * self.scale

    lookup = Lookup()
    with watch_gradients(lookup):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(lookup(tf.constant([0, 2])))
        tape.gradient(loss, lookup.trainable_variables)


# -- the target was not computed from it -------------------------------------------------------


@expects("not-in-graph", "aside.kernel", "aside.bias")
def fitted_without_a_branch() -> None:
    model = Branches()
    model.compile("sgd", "mse")
    with watch_gradients(model):
        model.fit(batch(), tf.ones((2, 1)), verbose=0)  # <- here


@expects("not-in-graph", "aside.kernel", "aside.bias")
def a_branch_with_the_name_of_its_model() -> None:
    model = Aside()
    model.main.build((None, 2))
    with watch_gradients(model, allow_none=["main.bias"]):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(batch()))
        tape.gradient(loss, model.trainable_variables)  # <- here


@expects("not-in-graph", "w")
def a_jacobian_of_the_other() -> None:
    v, w = pair()
    with watch_gradients({"v": v, "w": w}):
        with tf.GradientTape(persistent=True) as tape:
            outputs = tf.stack([v[0] * v[1], v[1] ** 2])
            print(tf.norm(w))
        tape.jacobian(outputs, {"v": v, "w": w})  # <- here


@expects("cut", "body.kernel", "body.bias")
def fitted_over_epochs_behind_a_stop() -> None:
    class Probe(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.body = keras.layers.Dense(2, name="body")
            self.head = keras.layers.Dense(1, name="head")

        def call(self, x: Any) -> Any:
            return self.head(tf.stop_gradient(self.body(x)))  # <- here

    model = Probe()
    model.compile("sgd", "mse")
    with watch_gradients(model):
        model.fit(batch(), tf.ones((2, 1)), epochs=3, batch_size=1, verbose=0)


# -- not asked ---------------------------------------------------------------------------------


@expects("not-asked", "body.kernel", "body.bias")
def a_step_that_tunes_the_head() -> None:
    model = Tuned()
    model.compile("sgd")
    with watch_gradients(model):
        model.fit(batch(), tf.ones((2, 1)), verbose=0)


@expects("not-asked", "generator.kernel", "generator.bias")
def one_half_of_an_adversarial_pair() -> None:
    generator, critic = (keras.layers.Dense(2, name=name) for name in ("generator", "critic"))
    optimizer = keras.optimizers.SGD(0.1)
    with watch_gradients({"generator": generator, "critic": critic}):
        with tf.GradientTape(persistent=True) as tape:
            fake = tf.reduce_mean(critic(generator(batch())))
            critics = fake - tf.reduce_mean(critic(batch()))
            generators = -fake
        gradients = tape.gradient(critics, critic.trainable_variables)  # <- here
        optimizer.apply_gradients(zip(gradients, critic.trainable_variables, strict=True))
        print(float(generators) > 0)


@expects("not-asked", "v")
def the_slope_along_the_input_inside_a_function() -> None:
    v, _ = pair()

    @tf.function
    def slope(x: Any) -> Any:
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = tf.reduce_sum(v * x**3)
            first = inner.gradient(y, x)
        return outer.gradient(first, x)  # <- here

    with watch_gradients({"v": v}):
        for factor in (1.0, 2.0):  # traced once, run twice
            slope(tf.constant([1.0, 2.0]) * factor)


# -- another model's --------------------------------------------------------------------------


@expects("other-parameters", *DENSE)
def a_clone_is_trained() -> None:
    model = network()
    model.build((None, 2))
    with watch_gradients(model):
        clone = keras.models.clone_model(model)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(clone(batch()))
        tape.gradient(loss, clone.trainable_variables)  # <- here


@expects("other-parameters", *DENSE)
def the_old_model_is_trained() -> None:
    old, model = network(), network()
    for one in (old, model):
        one.build((None, 2))
    optimizer = keras.optimizers.SGD(0.1)
    with watch_gradients(model):
        for _ in range(2):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(old(batch()) ** 2)
            gradients = tape.gradient(loss, old.trainable_variables)  # <- here
            optimizer.apply_gradients(zip(gradients, old.trainable_variables, strict=True))


@expects("other-parameters", "main.kernel", "main.bias", "aside.kernel", "aside.bias")
def a_model_made_again_from_its_class() -> None:
    model, other = Branches(), Branches()
    for one in (model, other):
        one(batch())
    other.compile("sgd", "mse")
    with watch_gradients(model):
        other.fit(batch(), tf.ones((2, 1)), verbose=0)  # <- here


@expects("never-backward", "v")
def a_forward_accumulator() -> None:
    v, _ = pair()
    with watch_gradients({"v": v}):
        with tf.autodiff.ForwardAccumulator(v, tf.ones(2)) as accumulator:
            product = v * v
        accumulator.jvp(product)


# -- integers ----------------------------------------------------------------------------------


@expects("integer-dtype", "steps")
def a_counter_in_a_module() -> None:
    module = tf.Module()
    module.steps, module.w = tf.Variable(0, dtype=tf.int64), tf.Variable([1.0])
    with watch_gradients(module):
        with tf.GradientTape() as tape:
            module.steps.assign_add(1)
            loss = tf.reduce_sum(module.w / tf.cast(module.steps, tf.float32))
        tape.gradient(loss, module.w)


@expects("integer-dtype", "images")
def images_in_bytes() -> None:
    images = tf.constant(np.arange(8).reshape(4, 2), dtype=tf.uint8)
    layer = keras.layers.Dense(1)
    with watch_gradients({"images": images, "layer": layer}):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(tf.cast(images, tf.float32) / 255.0))
        tape.gradient(loss, [images, *layer.trainable_variables])


# -- read where no tape records ----------------------------------------------------------------


@expects("outside-tape", "v")
def after_the_tape() -> None:
    v, w = pair()
    with watch_gradients({"v": v, "w": w}):
        with tf.GradientTape() as tape:
            part = tf.reduce_sum(w * 2.0)
        loss = part + tf.reduce_sum(v * 3.0)  # <- here
        assert loss.shape == ()
        tape.gradient(part, [v, w])


@expects("outside-tape", "v")
def while_the_recording_is_stopped() -> None:
    v, w = pair()
    with watch_gradients({"v": v, "w": w}):
        with tf.GradientTape() as tape:
            with tape.stop_recording():
                scale = 1.0 / (v + 1.0)  # <- here
            loss = tf.reduce_sum(w * scale)
        tape.gradient(loss, [v, w])


@expects("outside-tape", "first.kernel", "first.bias")
def features_made_beforehand() -> None:
    model = network()
    model.build((None, 2))
    body, head = model.layers
    with watch_gradients(model):
        features = body(batch())  # <- here
        for _ in range(2):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(head(features))
            tape.gradient(loss, model.trainable_variables)


# -- values ------------------------------------------------------------------------------------


@expects("not-finite", *DENSE)
def a_nan_in_the_batch() -> None:
    model = network()
    optimizer = keras.optimizers.Adam()
    x = tf.constant([[0.5, float("nan")], [1.0, 2.0]])
    with watch_gradients(model):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)  # <- here
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))


@expects("not-finite", *DENSE)
def fitted_on_nan() -> None:
    model = network()
    model.compile("sgd", "mse")
    with watch_gradients(model):
        model.fit(batch(), tf.fill((2, 1), float("nan")), verbose=0)


@expects("")
def a_zero_in_a_traced_function() -> None:
    v, w = pair()

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.sign(v))
        return tape.gradient(loss, v)

    with watch_gradients({"w": w, "v": v}, nonzero=True):
        step()
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w)
        tape.gradient(loss, w)


@expects("not-finite", "v")
def a_jacobian_at_the_logarithms_pole() -> None:
    v, w = tf.Variable([0.0, 1.0]), tf.Variable([2.0, 3.0])
    with watch_gradients({"v": v, "w": w}):
        with tf.GradientTape() as tape:
            y = tf.where(v > 0.0, tf.math.log(v), 0.0) + w
        tape.jacobian(y, [v, w])  # <- here


@expects("all-zero", "v")
def a_dead_relu() -> None:
    v, _ = pair()
    with watch_gradients({"v": v}, nonzero=True):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.relu(-v))
        tape.gradient(loss, v)  # <- here


@expects("all-zero", *DENSE)
def a_loss_masked_away() -> None:
    model = network()
    measure = keras.losses.MeanSquaredError()
    with watch_gradients(model, nonzero=True):
        for _ in range(2):
            with tf.GradientTape() as tape:
                loss = measure(tf.ones((2, 1)), model(batch()), sample_weight=tf.zeros((2, 1)))
            tape.gradient(loss, model.trainable_variables)  # <- here


@expects("all-zero", "gate")
def a_saturated_gate() -> None:
    gate, v = tf.Variable([300.0, -300.0]), tf.Variable([1.0, 2.0])
    with watch_gradients({"gate": gate, "v": v}, nonzero=True):
        with tf.GradientTape(persistent=True) as tape:
            y = tf.sigmoid(gate) * v
        tape.jacobian(y, {"gate": gate, "v": v})  # <- here


# -- not built ---------------------------------------------------------------------------------


@expects("not-built", "model")
def a_model_that_is_never_called() -> None:
    model = network()  # a watch does not keep it alive
    with watch_gradients(model):
        pass


@expects("not-built", "decoder")
def half_of_an_autoencoder() -> None:
    encoder, decoder = (keras.layers.Dense(2, name=name) for name in ("encoder", "decoder"))
    with watch_gradients({"encoder": encoder, "decoder": decoder}):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(encoder(batch()))
        tape.gradient(loss, encoder.trainable_variables)


@expects("not-built", "model")
def compiled_and_not_fitted() -> None:
    class Lazy(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.inner = keras.Sequential([keras.layers.Dense(1)])

        def call(self, x: Any) -> Any:
            return self.inner(x)

    model = Lazy()
    model.compile("adam", "mse")
    with watch_gradients(model):
        model.get_config()


# -- what cannot be known ----------------------------------------------------------------------


@expects("unknown", "v")
def two_places_that_may_cut() -> None:
    v, w = pair()
    with watch_gradients({"v": v, "w": w}):
        with tf.GradientTape() as tape:
            hidden = tf.stop_gradient(v * 2.0)
            scale = float(tf.reduce_max(v))
            loss = tf.reduce_sum(w * hidden) * scale
        tape.gradient(loss, [v, w])


@expects("unknown", "table")
def rows_gathered_in_a_pool() -> None:
    table, w = tf.Variable(tf.ones((3, 2))), tf.Variable([1.0, 2.0])
    with watch_gradients({"table": table, "w": w}), ThreadPoolExecutor(2) as pool:
        with tf.GradientTape() as tape:
            rows = list(pool.map(lambda index: tf.gather(table, index), [0, 2]))
            loss = tf.reduce_sum(tf.stack(rows) * w)
        tape.gradient(loss, {"table": table, "w": w})


@expects("unknown", "v")
def a_product_in_a_prefetching_thread() -> None:
    v, w = tf.Variable([[1.0, 2.0]]), tf.Variable([[3.0]])
    ready: list[Any] = []

    class Prefetch(threading.Thread):
        def run(self) -> None:
            ready.append(tf.linalg.matmul(v, batch(), transpose_b=True))

    with watch_gradients({"v": v, "w": w}):
        with tf.GradientTape() as tape:
            worker = Prefetch()
            worker.start()
            worker.join()
            loss = tf.reduce_sum(w * ready.pop())
        tape.gradient(loss, [v, w])


# -- a worker process has what the tape lacks --------------------------------------------------


def weighted(v: Any, x: float) -> Any:
    return tf.reduce_sum(v * x)


class Scaled(tf.Module):
    """A module whose call a worker may run."""

    def __init__(self, factor: Any) -> None:
        super().__init__()
        self.factor = factor

    def __call__(self, x: float) -> Any:
        return tf.reduce_sum(self.factor * x)


@expects("cut-at-worker", "v")
def in_processes_of_joblib() -> None:
    v, w = pair()
    with watch_gradients({"v": v, "w": w}):
        with tf.GradientTape() as tape:
            parts = Parallel(n_jobs=2)(delayed(weighted)(v, x) for x in (1.0, 2.0))  # <- here
            loss = tf.reduce_sum(w * tf.add_n(parts))
        tape.gradient(loss, [v, w])


@expects("cut-at-worker", "v")
def in_an_executor_of_processes() -> None:
    v, w = pair()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool, watch_gradients({"v": v, "w": w}):
        with tf.GradientTape(persistent=True) as tape:
            (part,) = pool.map(weighted, [v], [3.0])  # <- here
            loss = tf.reduce_sum(w) * part
        tape.gradient(loss, {"v": v, "w": w})


@expects("cut-at-worker", "factor")
def a_module_called_in_a_process() -> None:
    module = Scaled(tf.Variable([1.0, 2.0]))
    with watch_gradients(module):
        with tf.GradientTape() as tape:
            (part,) = Parallel(n_jobs=2)([delayed(module)(3.0)])  # <- here
            loss = part**2
        tape.gradient(loss, module.trainable_variables)
