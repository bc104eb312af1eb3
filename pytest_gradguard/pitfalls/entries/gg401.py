"""GG401: the scikit-learn wrappers of tf.keras no longer exist."""

from pytest_gradguard.pitfalls import Pitfall, Severity, links

PITFALL = Pitfall(
    code="GG401",
    name="removed-keras-wrapper",
    title="keras.wrappers.scikit_learn no longer exists",
    severity=Severity.ERROR,
    happens=(
        "Since Keras and TensorFlow 2.13, the import raises `ModuleNotFoundError`, and the "
        "attribute `tf.keras.wrappers.scikit_learn` raises `AttributeError` (run with TensorFlow "
        "2.21, Keras 3.15)."
    ),
    why="Keras removed the module; the classes were replaced, not renamed.",
    fix=(
        "Use `keras.wrappers.SKLearnClassifier` or `SKLearnRegressor` (Keras 3.8 and newer), or "
        "SciKeras. They take a function of the data that returns a compiled model."
    ),
    bad="""\
from tensorflow.keras.wrappers.scikit_learn import KerasClassifier  # raises: ModuleNotFoundError

print(KerasClassifier)
""",
    good="""\
import keras
import numpy as np
from keras.wrappers import SKLearnClassifier


def build(X, y):
    layers = [keras.Input((X.shape[1],)), keras.layers.Dense(y.shape[1], activation="softmax")]
    model = keras.Sequential(layers)
    model.compile(optimizer="sgd", loss="categorical_crossentropy")
    return model


inputs = np.random.default_rng(0).normal(size=(20, 2))
classifier = SKLearnClassifier(build, fit_kwargs={"verbose": 0})
classifier.fit(inputs, inputs[:, 0] > 0)
print(classifier.classes_)  # prints: [False  True]
""",
    lint=(
        "On the import or use of `keras.wrappers.scikit_learn`. Severity is info where the "
        "project asks for a Keras or TensorFlow below 2.13: in `requirements*.txt`, "
        "`requirements/*.txt`, `pyproject.toml`, `setup.cfg`, `setup.py`, `Pipfile` or "
        "`environment.yml`, beside the file or above it in the project; where none of these names "
        "one, in all its other folders that do."
    ),
    runtime=None,
    silence="Only in code for an old TensorFlow that the project's files do not pin.",
    links=(links.KERAS_SKLEARN,),
)
