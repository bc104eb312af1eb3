"""Tapes that record around threads which the program starts itself."""

import queue
import threading

import keras
import tensorflow as tf

EXPECT = {
    "test_result_in_a_list": {"GG105"},
    "test_subclass_that_keeps_its_result": {"GG105"},
    "test_part_of_the_loss_by_a_queue": {"GG105"},
    "test_result_in_a_global": {"GG105"},
    "test_keras_model": {"GG105"},
    "test_timer": {"GG105"},
}

RESULTS = {}


def variable():
    return tf.Variable([2.0, 3.0])


def through(*threads):
    for thread in threads:
        thread.start()  # -> GG105:error
    for thread in threads:
        thread.join()


def silent(*threads):
    for thread in threads:
        thread.start()
        thread.join()


def test_result_in_a_list():
    weight, made = variable(), []

    def work(factor):
        made.append(tf.reduce_sum(weight * factor))

    with tf.GradientTape() as tape:
        through(*(threading.Thread(target=work, args=(factor,)) for factor in (1.0, 2.0)))
        loss = tf.add_n(made)
    assert tape.gradient(loss, weight) is None


class Worker(threading.Thread):
    def __init__(self, weight):
        super().__init__()
        self.weight, self.result = weight, None

    def run(self):
        self.result = tf.reduce_sum(self.weight * self.weight)


def test_subclass_that_keeps_its_result():
    weight = variable()
    with tf.GradientTape() as tape:
        workers = [Worker(weight) for _ in range(2)]
        through(*workers)
        loss = workers[0].result + workers[1].result
    assert tape.gradient(loss, weight) is None


def test_part_of_the_loss_by_a_queue():
    weight, made = variable(), queue.Queue()
    with tf.GradientTape() as tape:
        through(threading.Thread(target=lambda: made.put(tf.reduce_sum(weight) ** 2)))
        loss = tf.reduce_sum(weight * weight) + made.get()
    assert tape.gradient(loss, weight).numpy().tolist() == [4.0, 6.0]


def put_into_a_global(weight):
    RESULTS["loss"] = tf.reduce_sum(weight * 2.0)


def test_result_in_a_global():
    weight = variable()
    with tf.GradientTape() as tape:
        through(threading.Thread(target=put_into_a_global, kwargs={"weight": weight}))
        loss = RESULTS["loss"] * 3.0
    assert tape.gradient(loss, weight) is None


def test_keras_model():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    batch, losses = tf.ones((4, 2)), {}

    def shard(number):
        losses[number] = tf.reduce_mean(model(batch) ** 2)

    with tf.GradientTape() as tape:
        through(*(threading.Thread(target=shard, args=(number,)) for number in range(2)))
        loss = losses[0] + losses[1]
    assert tape.gradient(loss, model.trainable_variables) == [None, None]


def test_timer():
    weight, made = variable(), []
    with tf.GradientTape() as tape:
        through(threading.Timer(0.001, lambda: made.append(tf.reduce_sum(weight))))
        loss = made[0] * 2.0
    assert tape.gradient(loss, weight) is None


def test_own_tape():
    weight, gradients = variable(), []

    def work():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight * weight)
        gradients.append(tape.gradient(loss, weight))

    with tf.GradientTape() as tape:
        silent(*(threading.Thread(target=work) for _ in range(2)))
        loss = tf.reduce_sum(weight)
    total = tape.gradient(loss, weight) + gradients[0] + gradients[1]
    assert total.numpy().tolist() == [9.0, 13.0]


def test_data():
    weight, batches = variable(), []

    def load(number):
        batches.append(tf.cast(tf.range(2) + number, tf.float32))

    with tf.GradientTape() as tape:
        silent(*(threading.Thread(target=load, args=(number,)) for number in range(2)))
        loss = tf.reduce_sum(weight * batches[0]) + tf.reduce_sum(weight * batches[1])
    assert tape.gradient(loss, weight).numpy().tolist() == [1.0, 3.0]


def test_logged_metric():
    weight, logged = variable(), []

    def log(output):
        logged.append(tf.reduce_mean(output * weight))

    with tf.GradientTape() as tape:
        output = weight * [1.0, 2.0]
        silent(threading.Thread(target=log, args=(output,)))
        loss = tf.reduce_sum(output)
    assert tape.gradient(loss, weight).numpy().tolist() == [1.0, 2.0]
    assert logged[0].numpy() == 11.0


def test_stopped_target():
    weight, other, targets = variable(), variable(), []

    def aim():
        targets.append(tf.stop_gradient(tf.reduce_sum(other * 2.0)))

    with tf.GradientTape() as tape:
        silent(threading.Thread(target=aim))
        loss = (tf.reduce_sum(weight) - targets[0]) ** 2
    assert tape.gradient(loss, weight).numpy().tolist() == [-10.0, -10.0]


def test_thread_that_fails():
    weight, raised = variable(), []

    class Failing(threading.Thread):
        def run(self):
            try:
                super().run()
            except ValueError as error:
                raised.append(error)

    def work():
        tf.reduce_sum(weight * weight)
        raise ValueError("refused")

    with tf.GradientTape() as tape:
        silent(Failing(target=work))
        loss = tf.reduce_sum(weight)
    assert [str(error) for error in raised] == ["refused"]
    assert tape.gradient(loss, weight).numpy().tolist() == [1.0, 1.0]
