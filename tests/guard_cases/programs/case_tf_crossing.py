"""Keras models, variables and optimizers that go to process workers and come back."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from joblib import Parallel, delayed
from sklearn.model_selection import GridSearchCV, cross_val_score

EXPECT = {
    "test_sgd_with_momentum": {"GG110"},
    "test_optimizer_of_a_fitted_model_alone": {"GG110"},
    "test_optimizer_with_averages": {"GG110"},
    "test_scaled_optimizer": {"GG110"},
}
DETAILS = {
    "test_adam": {
        "GG110": {
            "object": "args[0]",
            "direction": "argument",
            "framework": "keras",
            "backend": "loky",
            "type": "Adam",
            "iterations": 2,
        }
    },
    "test_optimizer_of_a_plain_object": {"GG110": {"object": "args[0].optimizer"}},
    "test_captured_optimizer": {"GG110": {"direction": "capture"}},
    "test_returned_optimizer": {"GG110": {"direction": "result", "object": "result['optimizer']"}},
}

INPUTS = np.random.default_rng(0).normal(size=(20, 2)).astype("float32")
TARGETS = (INPUTS[:, :1] > 0).astype("float32")


def stepped(kind, steps=2, **options):
    optimizer = kind(**options)
    weight = keras.Variable([1.0])
    optimizer.build([weight])
    for _ in range(steps):
        optimizer.apply([keras.ops.ones(1)])
    return optimizer


def state_of(optimizer):
    counts = getattr(optimizer, "inner_optimizer", optimizer)  # up to Keras 3.8, the inner one does
    return [optimizer.built, int(counts.iterations.numpy())]


def states(*arguments):
    return Parallel(2)(delayed(state_of)(each) for each in arguments)  # -> GG110?


def test_adam():
    optimizer = stepped(keras.optimizers.Adam)
    found = Parallel(2)(delayed(state_of)(optimizer) for _ in range(2))  # -> GG110:warning
    assert found == [[False, 0]] * 2


def test_sgd_with_momentum():
    assert states(stepped(keras.optimizers.SGD, momentum=0.9)) == [[False, 0]]


def keyword(*, optimizer):
    return int(optimizer.iterations.numpy())


def test_optimizer_by_keyword():
    optimizer = stepped(keras.optimizers.RMSprop)
    assert Parallel(2)(delayed(keyword)(optimizer=optimizer) for _ in range(2)) == [  # -> GG110
        0,
        0,
    ]


def inside(table):
    return int(table["optimizers"][0].iterations.numpy())


def test_optimizer_in_a_dict():
    optimizer = stepped(keras.optimizers.Adam)
    Parallel(2)(delayed(inside)({"optimizers": [optimizer]}) for _ in range(2))  # -> GG110


class Trainer:
    def __init__(self, optimizer):
        self.optimizer = optimizer


def of_trainer(trainer):
    return int(trainer.optimizer.iterations.numpy())


def test_optimizer_of_a_plain_object():
    trainer = Trainer(stepped(keras.optimizers.Adam))
    Parallel(2)(delayed(of_trainer)(trainer) for _ in range(2))  # -> GG110


def test_captured_optimizer():
    optimizer = stepped(keras.optimizers.Adam)
    assert Parallel(2)(
        delayed(lambda: int(optimizer.iterations.numpy()))() for _ in range(2)
    ) == [  # -> GG110
        0,
        0,
    ]


def test_method_of_an_optimizer():
    optimizer = stepped(keras.optimizers.Adam)
    Parallel(2)(delayed(optimizer.get_config)() for _ in range(2))  # -> GG110


def fitted():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    model.fit(INPUTS, TARGETS, verbose=0)
    return model


def both(model, optimizer):
    return [int(model.optimizer.iterations.numpy()), int(optimizer.iterations.numpy())]


def test_optimizer_beside_its_model():
    model = fitted()
    pairs = Parallel(2)(delayed(both)(model, model.optimizer) for _ in range(2))  # -> GG110
    assert pairs == [[1, 0]] * 2


def test_optimizer_of_a_fitted_model_alone():
    assert states(fitted().optimizer) == [[False, 0]]


def test_optimizer_with_averages():
    assert states(stepped(keras.optimizers.SGD, use_ema=True)) == [[False, 0]]


def test_scaled_optimizer():
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())
    weight = keras.Variable([1.0])
    optimizer.build([weight])
    optimizer.apply([keras.ops.ones(1)], [weight])
    assert states(optimizer)[0][1] == 0


def train(steps):
    return {"optimizer": stepped(keras.optimizers.Adam, steps)}


def test_returned_optimizer():
    found = Parallel(2)(delayed(train)(steps) for steps in (1, 2))  # -> GG110:warning
    assert [state_of(one["optimizer"]) for one in found] == [[False, 0]] * 2


# -- nothing is lost here ------------------------------------------------------------------------


def test_plain_sgd():
    assert states(stepped(keras.optimizers.SGD)) == [[False, 2]]


def test_sgd_with_a_schedule():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    assert states(stepped(keras.optimizers.SGD, learning_rate=schedule)) == [[False, 2]]


def test_scaled_plain_sgd():
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    weight = keras.Variable([1.0])
    optimizer.build([weight])
    optimizer.apply([keras.ops.ones(1)], [weight])
    assert states(optimizer)[0][1] == 1


def test_new_optimizer():
    assert states(keras.optimizers.Adam()) == [[False, 0]]


def test_built_optimizer_without_steps():
    assert states(stepped(keras.optimizers.Adam, steps=0)) == [[False, 0]]


def inner_state(model):
    return state_of(model.optimizer)


def test_optimizer_inside_its_model():
    model = fitted()
    found = Parallel(2)(delayed(inner_state)(each) for each in (model, [model][0]))
    assert found == [[True, 1]] * 2


def test_optimizer_to_threads():
    optimizer = stepped(keras.optimizers.Adam)
    found = Parallel(2, backend="threading")(delayed(state_of)(optimizer) for _ in range(2))
    assert found == [[True, 2]] * 2


def rebuilt(config, values):
    optimizer = keras.optimizers.Adam.from_config(config)
    optimizer.build([keras.Variable([1.0])])
    for variable, value in zip(optimizer.variables, values, strict=True):
        variable.assign(value)
    return int(optimizer.iterations.numpy())


def test_optimizer_by_its_config():
    optimizer = stepped(keras.optimizers.Adam)
    values = [variable.numpy() for variable in optimizer.variables]
    assert Parallel(2)(delayed(rebuilt)(optimizer.get_config(), values) for _ in range(2)) == [2, 2]


def test_one_job():
    optimizer = stepped(keras.optimizers.Adam)
    assert Parallel(1)(delayed(state_of)(optimizer) for _ in range(2)) == [[True, 2]] * 2


def total(values):
    return float(sum(np.sum(value) for value in values))


def test_variables():
    values = [tf.Variable([1.0]), keras.Variable([2.0]), tf.Variable([3.0], trainable=False)]
    assert Parallel(2)(delayed(total)(values) for _ in range(2)) == [6.0, 6.0]


def test_tensors():
    values = [tf.constant([1.0]), tf.Variable([2.0]) * 2.0]
    found = Parallel(2)(delayed(tf.add_n)(values) for _ in range(2))
    assert [one.numpy().tolist() for one in found] == [[5.0], [5.0]]


def shape_of(layer):
    return tuple(layer.kernel.shape)


def test_layers():
    layer = fitted().layers[0]
    assert Parallel(2)(delayed(shape_of)(layer) for _ in range(2)) == [(2, 1)] * 2


def fit(epochs):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    model.fit(INPUTS, TARGETS, epochs=epochs, verbose=0)
    return model


def weights(epochs):
    return fit(epochs).get_weights()


def test_fit_and_return_the_weights():
    first, second = Parallel(2)(delayed(weights)(epochs) for epochs in (1, 2))
    assert [value.shape for value in first] == [value.shape for value in second]


def test_fit_and_return_the_model():
    for model in Parallel(2)(delayed(fit)(epochs) for epochs in (1, 2)):
        assert model.optimizer.built
        model.fit(INPUTS, TARGETS, verbose=0)


def more(model):
    model.fit(INPUTS, TARGETS, verbose=0)
    return model


def test_fit_a_shipped_model_and_return_it():
    model = fitted()
    found = Parallel(2)(delayed(more)(model) for _ in range(2))
    assert [int(one.optimizer.iterations.numpy()) for one in found] == [2, 2]


def test_inference():
    predict = functools.partial(fitted().predict, verbose=0)
    found = Parallel(2)(delayed(predict)(INPUTS) for _ in range(2))
    assert [one.shape for one in found] == [(20, 1)] * 2


HAS_WRAPPERS = pytest.mark.skipif(not hasattr(keras, "wrappers"), reason="Keras has that since 3.8")


def build(X, y, width=1):
    layers = [keras.layers.Dense(width), keras.layers.Dense(y.shape[1], activation="softmax")]
    model = keras.Sequential([keras.Input((X.shape[1],)), *layers])
    model.compile("adam", "categorical_crossentropy")
    return model


@HAS_WRAPPERS
def test_wrapper_in_a_search():
    wrapper = keras.wrappers.SKLearnClassifier(build, fit_kwargs={"verbose": 0})
    grid = {"model_kwargs": [{"width": 1}, {"width": 2}]}
    search = GridSearchCV(wrapper, grid, cv=2, n_jobs=2)
    search.fit(INPUTS, TARGETS[:, 0] > 0)
    assert search.best_estimator_.predict(INPUTS).shape == (20,)


@HAS_WRAPPERS
def test_wrapper_in_cross_validation():
    wrapper = keras.wrappers.SKLearnClassifier(build, fit_kwargs={"verbose": 0})
    assert len(cross_val_score(wrapper, INPUTS, TARGETS[:, 0] > 0, cv=2, n_jobs=2)) == 2


def configure(index):
    tf.config.set_visible_devices([], "GPU")
    return float(tf.reduce_sum(tf.ones(index)))


def configured(times):
    return [Parallel(2)(delayed(configure)(index) for index in range(4)) for _ in range(times)]


def test_device_configuration():
    assert configured(2) == [[0.0, 1.0, 2.0, 3.0]] * 2
