"""Operations that leave a torch graph: their names, and what to use instead."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import FrameType
from typing import Any, NamedTuple

import torch

TORCH = torch.__path__[0] + os.sep
"""The folder of torch's code."""


def inside_torch(frame: FrameType) -> bool:
    """Whether `frame` runs code of torch."""
    return frame.f_code.co_filename.startswith(TORCH)


def outside_torch(frame: FrameType | None) -> FrameType | None:
    """The first frame, from `frame` outwards, that runs other code."""
    while frame is not None and inside_torch(frame):
        frame = frame.f_back
    return frame


class Exit(NamedTuple):
    """One operation that leaves the graph.

    Attributes:
        how: its spelling in source.
        fix: what to use instead; empty if it can be left out.
        copies: it makes a copy that is mostly not for the loss, such as a file.
        rank: of several on the path to a loss, the highest is reported.
    """

    how: str
    fix: str = ""
    copies: bool = False
    rank: int = 2


_SOFT = "Use a function with a gradient (a softmax, a sigmoid), or a straight-through estimator."
NUMPY = "Use torch's own functions instead of NumPy's (`torch.tanh`, not `np.tanh`)."
_PLAIN_NUMBER = (
    "Use the tensor itself, and torch's functions instead of those of `math` (`torch.exp`, not "
    "`math.exp`)."
)
_NEW_TENSOR = (
    "Use `torch.stack` to put tensors together, and the tensor itself or `clone()` for one."
)
_LOSSLESS = "Use the tensor itself instead of what is read back."
OTHER_OBJECT = "Use the tensor itself: a copy has a gradient of its own."
_SECOND_ORDER = "Pass `create_graph=True`."

GRAD = Exit("torch.autograd.grad() without create_graph=True", _SECOND_ORDER)
DEEPCOPY = Exit("copy.deepcopy()", OTHER_OBJECT, copies=True)
COPY = Exit("copy.copy()", "Use the tensor itself, or `clone()`.")
PICKLE = Exit("pickle", _LOSSLESS, copies=True)
TEXT = Exit("str()", _LOSSLESS)
ITEM = Exit(".item()", rank=0)
CHECKPOINT = Exit(
    "checkpoint(use_reentrant=True)",
    "Pass `use_reentrant=False`: the reentrant form needs an input that requires grad.",
)
STATE_DICT = Exit("state_dict()", "Use `named_parameters()`.", copies=True)
FLOAT = Exit("float()", _PLAIN_NUMBER)
COMPLEX = Exit("complex()", _PLAIN_NUMBER)
ARRAY = Exit("numpy.asarray()", NUMPY)
SAMPLE = Exit(".sample()", "Use `rsample()`, or a loss made of `log_prob(sample)`.")

DERIVATIVES = {
    name: Exit(f"torch.autograd.functional.{name}() without create_graph=True", _SECOND_ORDER)
    for name in ("jacobian", "hessian", "vjp", "jvp", "vhp", "hvp")
}
"""Functions of torch that differentiate copies of their inputs, by name."""
_FUNCTIONS = {
    "sample": SAMPLE,
    "sample_n": SAMPLE,
    "state_dict": STATE_DICT,
    "vector_to_parameters": Exit(
        "vector_to_parameters()", "Call the module with `torch.func.functional_call`."
    ),
    "stack_module_state": Exit("stack_module_state()", "Read the gradients of what it returns."),
    "save": Exit("torch.save()", _LOSSLESS, copies=True),
    "__repr__": TEXT,
    **DERIVATIVES,
}
"""Functions of torch that leave the graph internally, by name."""

_COMPARISONS = {
    "__eq__": "==",
    "__ne__": "!=",
    "__lt__": "<",
    "__le__": "<=",
    "__gt__": ">",
    "__ge__": ">=",
}
_WITHOUT_DERIVATIVE = """
    argmax argmin argsort argwhere nonzero nonzero_static where bucketize searchsorted
    count_nonzero any all eq ne lt le gt ge isclose isfinite isinf isnan isneginf isposinf isreal
    isin logical_and logical_or logical_xor logical_not signbit multinomial histc histogram
    hash_tensor quantize_per_tensor quantize_per_channel linspace logspace
"""
_WITH_INDICES = "topk sort kthvalue max min mode median nanmedian cummax cummin frexp"
_FLAT = "round floor ceil trunc fix sign sgn bernoulli normal poisson"
_DRAWN = ("multinomial", "bernoulli", "normal", "poisson")


class Operation(NamedTuple):
    """A function or tensor method of torch that has no gradient.

    Attributes:
        flat: its gradient is zero everywhere.
    """

    owner: Any
    name: str
    exit: Exit
    flat: bool = False


def whole(how: str) -> Exit:
    """A conversion to integers or booleans."""
    return Exit(how, _SOFT)


def new(how: str) -> Exit:
    """A function that makes a new tensor from values."""
    return Exit(how, _NEW_TENSOR)


def operations() -> Iterator[Operation]:
    """The operations that this version of torch has."""
    for name, sign in _COMPARISONS.items():
        yield Operation(torch.Tensor, name, Exit(sign, _SOFT, rank=1))
    indices, flat = _WITH_INDICES.split(), _FLAT.split()
    for name in (*_WITHOUT_DERIVATIVE.split(), *indices, *flat):
        fix = "Draw with `rsample()`, or use `log_prob`." if name in _DRAWN else _SOFT
        exit = Exit(f"{name}()", fix, rank=0 if name in indices else 1)
        for owner in (torch.Tensor, torch):
            if hasattr(owner, name):
                yield Operation(owner, name, exit, name in flat)
    for name in dir(torch.special):
        if "bessel" in name or "_polynomial_" in name or name == "airy_ai":
            yield Operation(torch.special, name, Exit(f"torch.special.{name}()"))


def entered_by(frame: FrameType | None) -> tuple[FrameType | None, Exit | None]:
    """The frame that called torch, from `frame` outwards, and the exit that it called.

    The exit is None if the called function does not leave the graph.
    """
    called: Exit | None = None
    while frame is not None and inside_torch(frame):
        called = _FUNCTIONS.get(frame.f_code.co_name, called)
        frame = frame.f_back
    return frame, called
