"""Mixed precision of NVIDIA's apex."""


def initialize(models, optimizers=None, *args, **kwargs):
    return models if optimizers is None else (models, optimizers)
