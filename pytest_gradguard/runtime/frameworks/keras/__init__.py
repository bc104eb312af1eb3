"""Keras 3, with any backend."""

from pytest_gradguard.runtime.kernel.framework import Framework


class Keras(Framework):
    """Keras: its models, layers and optimizers report by themselves."""

    name = "keras"
    title = "Keras"
    module = "keras.src.saving.keras_saveable"
    complete = ("keras", "Variable")
    packages = ("keras",)
    default_gpu = True
    implementation = f"{__name__}.objects"
    more_reductions = (implementation,)


FRAMEWORK = Keras()
