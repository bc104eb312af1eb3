"""The transfer functions, by the names that rows give them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable
from importlib import import_module
from types import FunctionType

from gradguard_lint.domain.payloads import GpuSetting, LibraryUse
from gradguard_lint.domain.values import UNKNOWN, Frame, Value, unknown
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.models.rows import Row
from gradguard_lint.models.transfers import dispatch, python_calls
from gradguard_lint.models.transfers.devices import asked_for_gpus, driver_started
from gradguard_lint.models.transfers.wrapping import mark
from gradguard_lint.words import words

Transfer = Callable[[Machine, Frame, ast.AST, str, Args, Row], Value]

_HOMES = words(
    "arrays attribute_tables builtin_calls collectives dask_work data_parallel "
    "environment estimators jax_calls named_tuples options parallel python_calls signals "
    "starting tensorflow_calls torch_calls torch_tensors unknown_calls wrapping"
)
"""The modules that hold transfer functions."""


def _is_transfer(it: object) -> bool:
    """Whether `it` is a function with the parameters of a `Transfer`."""
    code = it.__code__ if isinstance(it, FunctionType) else None
    return code is not None and code.co_varnames[: code.co_argcount] == _PARAMETERS


_PARAMETERS = ("m", "frame", "node", "name", "args", "row")


def _tells(key: tuple[str, ...], without: Hashable = None) -> Transfer:
    """A question about the machine that the program runs on; `without`: the answer without a GPU.

    Where the row names a framework, the question starts the GPU's driver.
    """

    def tell(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
        if row.gpu:
            m.effect(frame, node, name, GpuSetting("meant"))
        if row.framework:
            driver_started(m, frame, node, f"{name}()", row.framework)
        return unknown(key) if without is None else asked_for_gpus(m, key, without)

    return tell


def _joins_group(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """This process joins a group of processes that train together."""
    m.effect(frame, node, f"{name}()", LibraryUse("process group"))
    return UNKNOWN


def _marks(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """A function is marked, and stays what it is."""
    return mark(args.get(*row.argument) or UNKNOWN, row.flag)


def _dispatch(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    function = args.get(0, "func")
    return dispatch.dispatching(m, node, name, function) if function is not None else UNKNOWN


TRANSFERS: dict[str, Transfer] = {
    **{
        name.replace("_", "-"): it
        for home in _HOMES
        for name, it in vars(import_module(f"{__package__}.{home}")).items()
        if _is_transfer(it)
    },
    "asks-gpu": _tells(("gpu-present",), False),
    "asks-cpus": _tells(("cpu-count",)),
    "asks-group": _tells(("process-group",)),
    "asks-world": _tells(("world-size",)),
    "context-manager": python_calls.identity,
    "dispatch": _dispatch,
    "gpu-count": _tells(("gpu-count",), 0),
    "mark": _marks,
    "process-group": _joins_group,
}
"""What rows name by `does`: the functions called so, and some by other names."""
