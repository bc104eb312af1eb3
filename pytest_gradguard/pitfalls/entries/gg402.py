"""GG402: a dask array is handed to a Keras model."""

from pytest_gradguard.pitfalls import Pitfall, Severity, links

PITFALL = Pitfall(
    code="GG402",
    name="dask-array-to-predict",
    title="A dask array is passed to a Keras model",
    severity=Severity.WARNING,
    happens=(
        "The whole array is computed at once in this process and must fit into its memory; "
        "the result is a NumPy array. Nothing is distributed."
    ),
    why=(
        "Keras does not know dask: it converts its input to a NumPy array, which makes dask "
        "compute all of it."
    ),
    fix=(
        "Predict block by block with `x.map_blocks(...)`, or pass `x.compute()`. Both make the "
        "cost visible."
    ),
    bad="""\
import dask.array as da
import keras

model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
x = da.ones((8, 3), chunks=(4, 3), dtype="float32")
predictions = model.predict(x, verbose=0)
print(type(predictions).__name__)  # prints: ndarray
""",
    good="""\
import dask.array as da
import keras

model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
x = da.ones((8, 3), chunks=(4, 3), dtype="float32")


def predict(block):
    return model.predict_on_batch(block)


predictions = x.map_blocks(predict, dtype="float32", chunks=(4, 1), meta=x[:, :1])
print(predictions.compute(scheduler="threads").shape)  # prints: (8, 1)
""",
    lint="On a dask array passed to `predict`, `fit` or `evaluate` of a Keras model.",
    runtime=None,
    silence="If the array fits into memory, and `.compute()` is what you want.",
    links=(links.DASK_BLOCKS, links.KERAS_TRAINING),
)
