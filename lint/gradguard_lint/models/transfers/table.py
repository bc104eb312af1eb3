"""The transfer functions, by their names in rows."""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable
from importlib import import_module
from types import FunctionType

from gradguard_lint.domain.payloads import GpuSetting, LibraryUse, ModelChange, ModelUse, Payload
from gradguard_lint.domain.shapes import sequence
from gradguard_lint.domain.values import (
    NOTHING,
    RANK,
    UNKNOWN,
    Frame,
    Tensor,
    Thing,
    Value,
    constant,
    of,
    unknown,
)
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.models.rows import Row
from gradguard_lint.models.transfers import dispatch, python_calls
from gradguard_lint.models.transfers.devices import asked_for_gpus, driver_started
from gradguard_lint.models.transfers.wrapping import mark
from gradguard_lint.words import words

Transfer = Callable[[Machine, Frame, ast.AST, str, Args, Row], Value]

_HOMES = words(
    "arrays attribute_tables builtin_calls collectives contexts dask_work data_parallel "
    "environment estimators jax_calls module_calls named_tuples options own_gradients parallel "
    "python_calls signals starting tensorflow_calls torch_calls torch_tensors type_questions "
    "unknown_calls wrapping"
)
"""The modules with transfer functions."""


def _is_transfer(it: object) -> bool:
    """Whether `it` is a function with the parameters of a `Transfer`."""
    code = it.__code__ if isinstance(it, FunctionType) else None
    return code is not None and code.co_varnames[: code.co_argcount] == _PARAMETERS


_PARAMETERS = ("m", "frame", "node", "name", "args", "row")


def _query(key: tuple[str, ...], without: Hashable = None) -> Transfer:
    """A query about the machine; `without`: the answer without a GPU.

    If the row names a framework, the query starts the GPU driver.
    """

    def tell(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
        if row.gpu:
            m.effect(frame, node, name, GpuSetting("meant"))
        if row.framework:
            driver_started(m, frame, node, f"{name}()", row.framework)
        return unknown(key) if without is None else asked_for_gpus(m, key, without)

    return tell


def _dispatch(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    function = args.get(0, "func")
    return dispatch.dispatching(m, node, name, function) if function is not None else UNKNOWN


def _returns(make: Callable[[Args, Row], Value]) -> Transfer:
    """A call that only returns `make(args, row)`."""
    return lambda m, frame, node, name, args, row: make(args, row)


def _has_effect(make: Callable[[Args, Row], Payload], gives: Value = NOTHING) -> Transfer:
    """A call with the effect `make(args, row)`."""

    def do(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
        m.effect(frame, node, f"{name}()", make(args, row))
        return gives

    return do


TRANSFERS: dict[str, Transfer] = {
    **{
        name.replace("_", "-"): it
        for home in _HOMES
        for name, it in vars(import_module(f"{__package__}.{home}")).items()
        if _is_transfer(it)
    },
    "asks-gpu": _query(("gpu-present",), False),
    "asks-cpus": _query(("cpu-count",)),
    "asks-group": _query(("process-group",)),
    "asks-rank": _query(RANK),
    "asks-world": _query(("world-size",)),
    "context-manager": python_calls.identity,
    "dispatch": _dispatch,
    "asks-module": _returns(lambda args, row: unknown(("installed", args.constant(0)))),
    "buffers-made": _has_effect(lambda args, row: ModelChange(args.get(*row.argument) or UNKNOWN)),
    "click-context": _returns(lambda args, row: of(Thing("click-context", "click.Context"))),
    "gpu-count": _query(("gpu-count",), 0),
    "mark": _returns(lambda args, row: mark(args.get(*row.argument) or UNKNOWN, row.flag)),
    "nothing": _returns(lambda args, row: UNKNOWN),
    "process-group": _has_effect(lambda args, row: LibraryUse("process group"), UNKNOWN),
    "repeat": _returns(lambda args, row: sequence(args.get(0) or UNKNOWN, "generator")),
    "saved": _has_effect(lambda args, row: ModelUse(args.get(0, "obj") or UNKNOWN)),
    "symbol": _returns(lambda args, row: of(Tensor("tensorflow"))),
    "told": _returns(lambda args, row: constant(row.flag)),
}
"""Transfer functions by `does`, under their own or another name."""
