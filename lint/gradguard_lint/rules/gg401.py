"""``keras.wrappers.scikit_learn`` was removed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial

from gradguard_lint.domain.effects import Effect, Program
from gradguard_lint.domain.values import Site
from gradguard_lint.fixes.changes import Change, Fix, Replace, ReplaceStatement
from gradguard_lint.fixes.searches import Naming, renamed_keywords, renamed_parameters
from gradguard_lint.fixes.written import importing, is_open, keyword
from gradguard_lint.reading.source import Module
from gradguard_lint.rules.base import Examples, Gone, Report, listed
from gradguard_lint.words import words

CODE = "GG401"


def check(program: Program) -> Iterator[Report]:
    removed: dict[tuple[str, int], list[Effect]] = {}
    for effect in program.library_uses("removed wrapper"):
        removed.setdefault((effect.site.path, effect.site.line), []).append(effect)
    for effects in removed.values():
        names = list(dict.fromkeys(f"`{effect.what}`" for effect in effects))
        are, it = ("is", "it") if len(names) == 1 else ("are", "them")
        said = f"{listed(names)} {are} gone since Keras {_WITHOUT}"
        yield Report(
            effects[0].site,
            f"{said}: importing or using {it} raises an error.",
            fix=_by_scikeras(effects[0].site),
            gone=Gone(_PACKAGES, _WITHOUT, said),
        )


_WITHOUT = "2.13"
"""The first version without the wrappers: TensorFlow and its Keras have the same numbers."""

_PACKAGES = (
    "keras",
    "tensorflow",
    "tensorflow-cpu",
    "tensorflow-gpu",
    "tensorflow-intel",
    "tensorflow-macos",
    "tensorflow-rocm",
)


_CLASSES = ("KerasClassifier", "KerasRegressor")
_OWN = words(
    "model build_fn warm_start random_state optimizer loss metrics batch_size "
    "validation_batch_size verbose callbacks validation_split shuffle run_eagerly epochs "
    "class_weight"
)
"""The arguments that SciKeras takes itself; what is for the model has a prefix."""


def _by_scikeras(site: Site) -> Fix | None:
    """SciKeras's class of the same name, with its names of the arguments."""
    module = site.module
    node = site.statement if isinstance(site.node, ast.alias) else site.node
    changes: list[Change] = []
    if isinstance(node, ast.ImportFrom) and (node.module or "").endswith("scikit_learn"):
        if any(alias.name not in _CLASSES for alias in node.names):
            return None
        changes.append(
            ReplaceStatement(module, node, f"from scikeras.wrappers import {_names(node)}")
        )
        names = {alias.asname or alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom) and [a.name for a in node.names] == ["scikit_learn"]:
        name = node.names[0].asname or "scikit_learn"
        changes.append(ReplaceStatement(module, node, f"from scikeras import wrappers as {name}"))
        names = {f"{name}.{known}" for known in _CLASSES}
    elif isinstance(node, ast.Import) and len(node.names) == 1 and node.names[0].asname:
        name = node.names[0].asname
        changes.append(ReplaceStatement(module, node, f"import scikeras.wrappers as {name}"))
        names = {f"{name}.{known}" for known in _CLASSES}
    elif isinstance(node, ast.Attribute):
        imported = importing(module, "scikeras.wrappers")
        if imported is None:
            return None
        changes += (Replace(module, node, "scikeras.wrappers"), *imported)
        names = {f"{ast.unparse(node)}.{known}" for known in _CLASSES}
    else:
        return None
    estimators: dict[ast.Call, Naming] = {}
    for call in ast.walk(module.tree):
        if isinstance(call, ast.Call) and ast.unparse(call.func) in names:
            if isinstance(node, ast.Attribute) and getattr(call.func, "value", None) is not node:
                continue
            naming = _naming(module, call)
            if naming is None:
                return None
            changes.append(renamed_keywords(module, call, naming))
            estimators[call] = naming
    searched = renamed_parameters(module, estimators)
    if searched is None:
        return None
    changes += searched
    return Fix("unsafe", "use SciKeras", tuple(changes))


def _names(node: ast.ImportFrom) -> str:
    return ", ".join(
        f"{alias.name} as {alias.asname}" if alias.asname else alias.name for alias in node.names
    )


def _naming(module: Module, call: ast.Call) -> Naming | None:
    """The names that the arguments of `call` get; None where they do not show."""
    builder = call.args[0] if call.args else None
    given = keyword(call, "build_fn")
    if given is not None:
        builder = given.value
    if is_open(call):
        return None
    parameters = _parameters(module, builder)
    if parameters is None:
        return None
    return partial(_new_name, parameters)


def _new_name(parameters: frozenset[str], name: str) -> str:
    """What SciKeras calls the argument `name`, where the builder has these `parameters`."""
    if name in _OTHERWISE:
        return _OTHERWISE[name]
    return f"model__{name}" if name in parameters or name not in _OWN else name


_OTHERWISE = {"build_fn": "model", "nb_epoch": "epochs"}


def _parameters(module: Module, builder: ast.expr | None) -> frozenset[str] | None:
    """What the function that builds the model may be given; None where it is not seen."""
    if builder is None or isinstance(builder, ast.Constant):
        return frozenset()
    for node in ast.walk(module.tree):
        if (
            isinstance(node, ast.FunctionDef)
            and isinstance(builder, ast.Name)
            and node.name == builder.id
        ):
            spec = node.args
            return frozenset(item.arg for item in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs))
    return None


BAD: Examples = {
    "imported": """\
from tensorflow.keras.wrappers.scikit_learn import KerasClassifier  # GG401

model = KerasClassifier(build_fn=None)
""",
    "with a builder": """\
from tensorflow import keras
from tensorflow.keras.wrappers.scikit_learn import KerasRegressor as Regressor  # GG401


def build(units, optimizer="adam"):
    model = keras.Sequential([keras.layers.Dense(units), keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    return model


model = Regressor(build, units=8, optimizer="sgd", nb_epoch=3, verbose=0)
""",
    "with a builder whose argument is called model": """\
from tensorflow import keras
from tensorflow.keras.wrappers.scikit_learn import KerasClassifier  # GG401


def build(model="small"):
    return keras.Sequential([keras.layers.Dense(9 if model == "big" else 1)])


classifier = KerasClassifier(build_fn=build, model="big")
""",
    "with the epochs of two releases": """\
from tensorflow import keras
from tensorflow.keras.wrappers.scikit_learn import KerasClassifier  # GG401


def build():
    return keras.Sequential([keras.layers.Dense(1)])


classifier = KerasClassifier(build_fn=build, nb_epoch=5, epochs=2)
""",
    "searched by the builder's arguments": """\
import numpy as np
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV, validation_curve
from sklearn.svm import SVC
from tensorflow import keras
from tensorflow.keras.wrappers.scikit_learn import KerasRegressor  # GG401


def build(units=8, optimizer="adam"):
    layers = [keras.Input((2,)), keras.layers.Dense(units), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(optimizer, "mse")
    return model


x, y = np.random.rand(12, 2), np.random.rand(12)
model = KerasRegressor(build_fn=build, nb_epoch=1, verbose=0)
search = GridSearchCV(model, {"units": [2, 4], "batch_size": [6]}, cv=2)
search.fit(x, y)
print(search.best_params_["units"], search.cv_results_["param_units"])
grids = [{"units": [2], "nb_epoch": [1]}, dict(optimizer=["sgd"])]
RandomizedSearchCV(estimator=model, param_distributions=grids, n_iter=2, cv=2).fit(x, y)
print(validation_curve(model, x, y, param_name="units", param_range=[2, 4], cv=2))
model.set_params(units=3, epochs=2)
other = GridSearchCV(SVC(), {"C": [1, 2]})
""",
    "used": """\
import tensorflow as tf

make = tf.keras.wrappers.scikit_learn.KerasRegressor  # GG401
""",
}

FIXED: Examples = {
    "imported": """\
from scikeras.wrappers import KerasClassifier  # GG401

model = KerasClassifier(model=None)
""",
    "with a builder": """\
from tensorflow import keras
from scikeras.wrappers import KerasRegressor as Regressor  # GG401


def build(units, optimizer="adam"):
    model = keras.Sequential([keras.layers.Dense(units), keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    return model


model = Regressor(build, model__units=8, model__optimizer="sgd", epochs=3, verbose=0)
""",
    "with a builder whose argument is called model": """\
from tensorflow import keras
from scikeras.wrappers import KerasClassifier  # GG401


def build(model="small"):
    return keras.Sequential([keras.layers.Dense(9 if model == "big" else 1)])


classifier = KerasClassifier(model=build, model__model="big")
""",
    "searched by the builder's arguments": """\
import numpy as np
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV, validation_curve
from sklearn.svm import SVC
from tensorflow import keras
from scikeras.wrappers import KerasRegressor  # GG401


def build(units=8, optimizer="adam"):
    layers = [keras.Input((2,)), keras.layers.Dense(units), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(optimizer, "mse")
    return model


x, y = np.random.rand(12, 2), np.random.rand(12)
model = KerasRegressor(model=build, epochs=1, verbose=0)
search = GridSearchCV(model, {"model__units": [2, 4], "batch_size": [6]}, cv=2)
search.fit(x, y)
print(search.best_params_["model__units"], search.cv_results_["param_model__units"])
grids = [{"model__units": [2], "epochs": [1]}, dict(model__optimizer=["sgd"])]
RandomizedSearchCV(estimator=model, param_distributions=grids, n_iter=2, cv=2).fit(x, y)
print(validation_curve(model, x, y, param_name="model__units", param_range=[2, 4], cv=2))
model.set_params(model__units=3, epochs=2)
other = GridSearchCV(SVC(), {"C": [1, 2]})
""",
    "used": """\
import scikeras.wrappers
import tensorflow as tf

make = scikeras.wrappers.KerasRegressor  # GG401
""",
}

GOOD: Examples = {
    "what took its place": """\
from keras.wrappers import SKLearnClassifier

model = SKLearnClassifier(None)
""",
    "a fallback for old releases": """\
try:
    from scikeras.wrappers import KerasClassifier
except ImportError:
    from keras.wrappers.scikit_learn import KerasClassifier
""",
}
