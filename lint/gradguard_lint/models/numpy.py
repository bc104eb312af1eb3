"""NumPy and random: arrays without gradients, and random generators."""

from __future__ import annotations

from gradguard_lint.models.rows import Library, Row, under
from gradguard_lint.words import words

KEEPS = words("asarray asanyarray ascontiguousarray squeeze ravel reshape transpose")
"""Functions that return their array, or a view of it."""

MAPPED = words("memmap open_memmap")
"""Functions that map a file into memory."""

SUMMARIES = words("mean sum std var min max median average prod array asarray stack")
"""Functions that turn numbers into a number, or an array of them."""

VIEWS = words("reshape ravel squeeze transpose swapaxes view")
"""Methods of arrays that return views."""

RESHAPES = words("reshape ravel ascontiguousarray")
"""Methods and functions that copy non-contiguous arrays, or into another order."""

TURNS = words("transpose swapaxes")
"""Functions that change the order of elements."""

ITEM_SIZES = {
    **dict.fromkeys(words("bool bool_ int8 uint8"), 1),
    **dict.fromkeys(words("int16 uint16 float16 half"), 2),
    **dict.fromkeys(words("int32 uint32 float32 single"), 4),
    "complex128": 16,
}
"""The size of an element in bytes, if it isn't 8."""

ELEMENTS = {
    "bool_": "bool",
    "double": "float64",
    "float": "float64",
    "float_": "float64",
    "half": "float16",
    "int": "int64",
    "int_": "int64",
    "long": "int64",
    "single": "float32",
}
"""Aliases of element types."""

FLOATS = words(
    "zeros ones empty eye rand randn random random_sample standard_normal normal uniform linspace"
)
"""Functions with 64-bit floats by default."""

SHAPED = {"zeros": 1, "ones": 1, "empty": 1, "full": 2}
"""Functions with a shape argument, and the position of the type."""

DRAWN_BY_SHAPE = words("rand randn")
"""Random functions whose arguments are the shape."""

SIZE_ARGUMENTS = {
    **dict.fromkeys(words("choice exponential poisson"), 1),
    **dict.fromkeys(words("random random_sample standard_exponential standard_normal"), 0),
}
"""The position of the size in random functions, if it isn't the third."""


RANDOM = "numpy.random"
"""The module with the global generator."""

LOAD_RANDOM = words("jax keras lightning pandas pytorch_lightning skorch sklearn tensorflow")
"""Packages that import `numpy.random`."""

WITHOUT_NUMPY = words(
    "attr attrs billiard click dotenv loguru multiprocess omegaconf pathos psutil pydantic "
    "requests rich threadpoolctl tqdm typer yaml"
)
"""Packages that import neither NumPy nor another framework."""

WITHOUT_TORCH = words(
    "cupy dask datasets distributed jax joblib lightgbm matplotlib numpy pandas scipy sklearn "
    "tensorflow xgboost"
)
"""Packages that import NumPy, but not torch."""

LIBRARY = Library(
    tops=("numpy", "random"),
    spelled={"numpy.random.mtrand.": "numpy.random."},
    rows=(
        Row(
            "numpy.random.default_rng numpy.random.RandomState numpy.random.Generator "
            "random.Random",
            "generator",
        ),
        Row("numpy.random.seed numpy.random.set_state", "seed", framework="numpy"),
        Row("random.seed", "seed", framework="random"),
        Row(
            under(
                "numpy.random",
                "rand randn random randint normal uniform choice permutation "
                "shuffle beta gamma poisson binomial standard_normal "
                "random_sample sample exponential laplace lognormal "
                "multivariate_normal multinomial random_integers dirichlet "
                "geometric",
            ),
            "draw",
            framework="numpy",
        ),
        Row(
            under(
                "random",
                "random randint randrange choice choices sample shuffle uniform "
                "gauss normalvariate betavariate expovariate triangular "
                "getrandbits",
            ),
            "draw",
            framework="random",
        ),
        Row(
            under(
                "numpy",
                "array asarray stack concatenate vstack hstack mean sum zeros "
                "ones empty arange linspace load copy full zeros_like ones_like "
                "eye dot matmul asanyarray ascontiguousarray split array_split memmap",
            )
            + " numpy.lib.format.open_memmap",
            "array",
            framework="numpy",
        ),
    ),
)
