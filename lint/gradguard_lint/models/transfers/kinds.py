"""Methods of library objects, by what kind of thing they are."""

from __future__ import annotations

import ast
from collections.abc import Callable

from gradguard_lint.domain.payloads import Draw
from gradguard_lint.domain.values import NOTHING, External, Frame, Tensor, Thing, Value, of, unknown
from gradguard_lint.engine.calls import call_back
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.engine.waiting import ask_for_end, wait_for
from gradguard_lint.models.transfers import (
    arrays,
    attribute_tables,
    contexts,
    dask_work,
    dispatch,
    estimators,
    optimizers,
    options,
    parallel,
    tensorflow_calls,
    torch_modules,
    torch_tensors,
    work,
)
from gradguard_lint.models.transfers.devices import gpu_touched
from gradguard_lint.models.transfers.wrapping import CACHE, cached

KERAS_KINDS = ("keras-model", "keras-layer", "keras-loss")

Methods = Callable[[Machine, Frame, ast.AST, Thing, str, Args], "Value | None"]


def method_of(
    m: Machine, frame: Frame, node: ast.AST, thing: Thing, name: str, args: Args
) -> Value | None:
    """``thing.name(...)``."""
    methods = METHODS.get(thing.kind)
    return methods(m, frame, node, thing, name, args) if methods is not None else None


def _model(
    m: Machine, frame: Frame, node: ast.AST, thing: Thing, name: str, args: Args
) -> Value | None:
    if name == "forward":
        return torch_modules.model_call(m, frame, node, thing, args)
    return torch_modules.model_method(m, frame, node, thing, thing.ident, thing.gpu, name, args)


def _loss(
    m: Machine, frame: Frame, node: ast.AST, thing: Thing, name: str, args: Args
) -> Value | None:
    return of(thing) if name in ("to", "cuda", "cpu", "eval", "train") else None


def _scaler(
    m: Machine, frame: Frame, node: ast.AST, thing: Thing, name: str, args: Args
) -> Value | None:
    if name == "step":
        for item in args.positional[:1]:
            for optimizer in optimizers.optimizers(m, item):
                torch_modules.optimizer_method(m, frame, node, optimizer, "step", Args())
    return args.get(0) if name == "scale" else None


def _distribution(
    m: Machine, frame: Frame, node: ast.AST, thing: Thing, name: str, args: Args
) -> Value | None:
    if name in ("sample", "rsample"):
        m.effect(frame, node, f"`.{name}()`", Draw("torch"))
    if name in ("log_prob", "rsample", "entropy"):
        return thing.part("tensor")
    if name == "sample":
        return of(Tensor("torch", "none", thing.gpu, m.worker_ident))
    return None


def _future(
    m: Machine, frame: Frame, node: ast.AST, thing: Thing, name: str, args: Args
) -> Value | None:
    callback = args.get(0, "fn") if name == "add_done_callback" else None
    if callback is not None:
        call_back(m, frame, node, callback, Args([of(thing)]))
    if name in ("result", "get", "compute"):
        return work.result_of(m, of(thing))
    if name == "exception" or (name == "wait" and all(value.is_none for value in args.values())):
        wait_for(m, thing.ident)
    if name in ("done", "ready") and not args.positional:
        return unknown(ask_for_end(m, node, thing.ident))
    return None


def _hook(
    m: Machine, frame: Frame, node: ast.AST, thing: Thing, name: str, args: Args
) -> Value | None:
    return torch_tensors.unhooked(m, frame, node, thing) if name == "remove" else None


def _memory(
    m: Machine, frame: Frame, node: ast.AST, thing: Thing, name: str, args: Args
) -> Value | None:
    if name != "cache":
        return None
    function = args.get(0, "func")
    if thing.kind == "no-memory":
        return function
    return cached(function) if function is not None else of(External(CACHE))


def _cached(
    m: Machine, frame: Frame, node: ast.AST, thing: Thing, name: str, args: Args
) -> Value | None:
    if name in ("call", "func"):
        return parallel.cached_call(m, frame, node, thing, args)
    return None


def _on_gpu(*methods: str) -> Methods:
    """Something that uses the GPU once one of these methods is called."""

    def method(
        m: Machine, frame: Frame, node: ast.AST, thing: Thing, name: str, args: Args
    ) -> Value | None:
        if name in methods:
            chosen = thing.part("device") if name == "use" else None
            framework, asks = thing.name.partition(".")[0], name == "synchronize"
            what = f"`.{name}()`"
            gpu_touched(m, frame, node, what, framework, chosen=chosen or NOTHING, asks=asks)
        return None

    return method


METHODS: dict[str, Methods] = {
    attribute_tables.KIND: attribute_tables.method,
    "bag": dask_work.bag_method,
    "cached": _cached,
    "gpu-device": _on_gpu("use", "synchronize"),
    "gpu-event": _on_gpu("record", "synchronize", "wait"),
    "dispatch": dispatch.method,
    "dask-frame": arrays.frame_method,
    "distribution": _distribution,
    "estimator": estimators.method,
    "exit-stack": contexts.stack_method,
    "frame": arrays.frame_method,
    "future": _future,
    "generator": arrays.generator_method,
    "hook": _hook,
    "keras-layer": tensorflow_calls.model_method,
    "keras-loss": tensorflow_calls.model_method,
    "keras-model": tensorflow_calls.model_method,
    "lock": contexts.lock_method,
    "loss": _loss,
    "memory": _memory,
    "model": _model,
    "no-memory": _memory,
    "optimizer": torch_modules.optimizer_method,
    "parallel-config": parallel.config_method,
    "parser": options.parser_method,
    "scaler": _scaler,
    "session": tensorflow_calls.session_method,
    torch_modules.STATE: torch_modules.state_method,
    "variates": arrays.variates_method,
    "tape": tensorflow_calls.tape_method,
}
