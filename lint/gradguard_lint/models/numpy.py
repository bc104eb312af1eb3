"""NumPy and random: arrays without gradients, and the random generators."""

from __future__ import annotations

from gradguard_lint.models.rows import Library, Row, under
from gradguard_lint.words import words

KEEPS = words("asarray asanyarray ascontiguousarray squeeze ravel reshape transpose")
"""Functions that give the array that they are given, or a view of it."""

MAPPED = words("memmap open_memmap")
"""Functions that map a file into memory."""

SUMMARIES = words("mean sum std var min max median average prod array asarray stack")
"""Functions that make of plain numbers one, or an array of them."""

VIEWS = words("reshape ravel squeeze transpose swapaxes view")
"""Methods of arrays that give views."""

RESHAPES = words("reshape ravel ascontiguousarray")
"""What of them, and of functions like them, gives a copy where the elements lie apart, or are
wanted in another order."""

TURNS = words("transpose swapaxes")
"""What changes the order of the elements."""

ITEM_SIZES = {
    **dict.fromkeys(words("bool bool_ int8 uint8"), 1),
    **dict.fromkeys(words("int16 uint16 float16 half"), 2),
    **dict.fromkeys(words("int32 uint32 float32 single"), 4),
    "complex128": 16,
}
"""The bytes of an element, where they are not 8."""

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
"""What types of elements are called, where they have other names."""

FLOATS = words(
    "zeros ones empty eye rand randn random random_sample standard_normal normal uniform linspace"
)
"""Functions whose arrays are of 64-bit floats, where nobody says otherwise."""

SHAPED = {"zeros": 1, "ones": 1, "empty": 1, "full": 2}
"""Functions that are given a shape, and the position of the type."""

DRAWN_BY_SHAPE = words("rand randn")
"""Functions of random numbers that are given a shape, number by number."""

SIZE_ARGUMENTS = {
    **dict.fromkeys(words("choice exponential poisson"), 1),
    **dict.fromkeys(words("random random_sample standard_exponential standard_normal"), 0),
}
"""Where functions of random numbers are given a size, where it is not in third place."""


RANDOM = "numpy.random"
"""The module that holds the global generator."""

LOAD_RANDOM = words("jax keras lightning pandas pytorch_lightning skorch sklearn tensorflow")
"""Packages that import it as they are imported."""

WITHOUT_NUMPY = words(
    "attr attrs billiard click dotenv loguru multiprocess omegaconf pathos psutil pydantic "
    "requests rich threadpoolctl tqdm typer yaml"
)
"""Packages that import neither it nor another framework as they are imported."""

WITHOUT_TORCH = words(
    "cupy dask datasets distributed jax joblib lightgbm matplotlib numpy pandas scipy sklearn "
    "tensorflow xgboost"
)
"""Those of the others that do not import torch."""

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
