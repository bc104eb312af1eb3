"""DeepSpeed: its engine stands for the model."""

from gradguard_lint.models.primitives import unknown


def initialize(args=None, model=None, optimizer=None, *more, **kwargs):
    return model, optimizer, unknown(), unknown()
