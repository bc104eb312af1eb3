"""The pages of other projects that entries refer to: each once, by a name of ours."""

from __future__ import annotations

from typing import NamedTuple


class Link(NamedTuple):
    """A page: what it is called, and its address."""

    text: str
    url: str


_TORCH = "https://docs.pytorch.org/docs/stable/"
_JOBLIB = "https://joblib.readthedocs.io/en/stable/"
_TENSORFLOW = "https://www.tensorflow.org/"
_PYTHON = "https://docs.python.org/3/library/"

TORCH_AMP = Link("PyTorch: automatic mixed precision", f"{_TORCH}amp.html")
TORCH_AUTOGRAD = Link("PyTorch: autograd mechanics", f"{_TORCH}notes/autograd.html")
TORCH_CUDA = Link("PyTorch: CUDA semantics", f"{_TORCH}notes/cuda.html")
TORCH_DATA = Link("PyTorch: torch.utils.data", f"{_TORCH}data.html")
TORCH_DDP = Link("PyTorch: Distributed Data Parallel", f"{_TORCH}notes/ddp.html")
TORCH_DISTRIBUTED = Link("PyTorch: torch.distributed", f"{_TORCH}distributed.html")
TORCH_FUNC = Link("PyTorch: torch.func", f"{_TORCH}func.html")
TORCH_MODULES = Link("PyTorch: modules", f"{_TORCH}notes/modules.html")
TORCH_MULTIPROCESSING = Link(
    "PyTorch: multiprocessing best practices", f"{_TORCH}notes/multiprocessing.html"
)
TORCH_NUMPY = Link("PyTorch: torch.from_numpy", f"{_TORCH}generated/torch.from_numpy.html")
TORCH_OPTIM = Link("PyTorch: torch.optim", f"{_TORCH}optim.html")
TORCH_RANDOMNESS = Link("PyTorch: reproducibility", f"{_TORCH}notes/randomness.html")
TORCH_SERIALIZATION = Link("PyTorch: serialization semantics", f"{_TORCH}notes/serialization.html")
TORCH_THREADS = Link(
    "PyTorch: CPU threading", f"{_TORCH}notes/cpu_threading_torchscript_inference.html"
)
NOQA = Link("ruff: unused noqa directives", "https://docs.astral.sh/ruff/rules/unused-noqa/")
JOBLIB_MEMORY = Link("joblib: caching with Memory", f"{_JOBLIB}memory.html")
JOBLIB_PARALLEL = Link("joblib: embarrassingly parallel for loops", f"{_JOBLIB}parallel.html")
SKLEARN_PARALLEL = Link(
    "scikit-learn: parallelism", "https://scikit-learn.org/stable/computing/parallelism.html"
)
TF_AUTODIFF = Link(
    "TensorFlow: gradients and automatic differentiation", f"{_TENSORFLOW}guide/autodiff"
)
TF_FUNCTION = Link("TensorFlow: tf.function", f"{_TENSORFLOW}guide/function")
TF_GPU = Link("TensorFlow: use a GPU", f"{_TENSORFLOW}guide/gpu")
TF_MAP = Link("TensorFlow: tf.map_fn", f"{_TENSORFLOW}api_docs/python/tf/map_fn")
TF_RANDOM = Link("TensorFlow: random number generation", f"{_TENSORFLOW}guide/random_numbers")
TF_TAPE = Link("TensorFlow: tf.GradientTape", f"{_TENSORFLOW}api_docs/python/tf/GradientTape")
TF_VECTORIZED = Link(
    "TensorFlow: tf.vectorized_map", f"{_TENSORFLOW}api_docs/python/tf/vectorized_map"
)
KERAS_SAVING = Link(
    "Keras: saving and serialization", "https://keras.io/guides/serialization_and_saving/"
)
KERAS_SKLEARN = Link("Keras: scikit-learn wrappers", "https://keras.io/api/utils/sklearn_wrappers/")
KERAS_TRAINING = Link("Keras: model training", "https://keras.io/api/models/model_training_apis/")
DASK_BLOCKS = Link(
    "dask: map_blocks", "https://docs.dask.org/en/stable/generated/dask.array.map_blocks.html"
)
DASK_JOBLIB = Link("dask: scikit-learn and joblib", "https://ml.dask.org/joblib.html")
NUMPY_PARALLEL = Link(
    "NumPy: parallel random number generation",
    "https://numpy.org/doc/stable/reference/random/parallel.html",
)
CUDA_VARIABLES = Link(
    "CUDA: environment variables",
    "https://docs.nvidia.com/cuda/cuda-c-programming-guide/#env-vars",
)
PICKLE = Link("Python: pickle", f"{_PYTHON}pickle.html")
START_METHODS = Link(
    "Python: contexts and start methods",
    f"{_PYTHON}multiprocessing.html#contexts-and-start-methods",
)
