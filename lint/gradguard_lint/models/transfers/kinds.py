"""Methods of library objects, by the kind of `Thing`."""

from __future__ import annotations

import ast
from collections.abc import Callable

from gradguard_lint.domain.payloads import Compute, Draw
from gradguard_lint.domain.values import (
    NOTHING,
    UNKNOWN,
    External,
    Frame,
    Tensor,
    Thing,
    Value,
    of,
    unknown,
)
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
from pytest_gradguard.records import replace

KERAS_KINDS = ("keras-model", "keras-layer", "keras-loss")

Methods = Callable[[Machine, Frame, ast.AST, Thing, str, Args], "Value | None"]

METHODS: dict[str, Methods] = {
    attribute_tables.KIND: attribute_tables.method,
    "bag": dask_work.bag_method,
    "dispatch": dispatch.method,
    "dask-frame": arrays.frame_method,
    "estimator": estimators.method,
    "exit-stack": contexts.stack_method,
    "frame": arrays.frame_method,
    "generator": arrays.generator_method,
    "keras-layer": tensorflow_calls.model_method,
    "keras-loss": tensorflow_calls.model_method,
    "keras-model": tensorflow_calls.model_method,
    "optimizer": torch_modules.optimizer_method,
    "parser": options.parser_method,
    torch_modules.STATE: torch_modules.state_method,
    "tape": tensorflow_calls.tape_method,
}
"""The methods of kinds with many."""


def method_of(
    m: Machine, frame: Frame, node: ast.AST, thing: Thing, name: str, args: Args
) -> Value | None:
    """``thing.name(...)``."""
    methods = METHODS.get(thing.kind)
    if methods is not None:
        return methods(m, frame, node, thing, name, args)
    match thing.kind, name:
        case "cached", "call" | "func":
            return parallel.cached_call(m, frame, node, thing, args)
        case "distribution", "sample" | "rsample":
            m.effect(frame, node, f"`.{name}()`", Draw("torch"))
            drawn = of(Tensor("torch", "none", thing.gpu, m.worker_ident))
            return drawn if name == "sample" else thing.part("tensor")
        case "distribution", "log_prob" | "entropy":
            return thing.part("tensor")
        case "future", "result" | "get" | "compute":
            return work.result_of(m, of(thing))
        case "future", "add_done_callback" if (callback := args.get(0, "fn")) is not None:
            call_back(m, frame, node, callback, Args([of(thing)]))
        case "future", "exception":
            wait_for(m, thing.ident)
        case "future", "wait" if all(value.is_none for value in args.values()):
            wait_for(m, thing.ident)
        case "future", "done" | "ready" if not args.positional:
            return unknown(ask_for_end(m, node, thing.ident))
        case "gpu-device", "use" | "synchronize":
            _uses_gpu(m, frame, node, thing, name)
        case "gpu-event", "record" | "synchronize" | "wait":
            _uses_gpu(m, frame, node, thing, name)
        case "hook", "remove":
            return torch_tensors.unhooked(m, frame, node, thing)
        case "lock", "acquire" | "release" if not contexts.is_task_local(m, thing):
            m.modes = replace(m.modes, locked=name == "acquire")
        case "loss", "to" | "cuda" | "cpu" | "eval" | "train":
            return of(thing)
        case "memory", "cache":
            function = args.get(0, "func")
            return cached(function) if function is not None else of(External(CACHE))
        case "model", "forward":
            return torch_modules.model_call(m, frame, node, thing, args)
        case "model", _:
            about = (thing, thing.ident, thing.gpu)
            return torch_modules.model_method(m, frame, node, *about, name, args)
        case "no-memory", "cache":
            return args.get(0, "func")
        case "parallel-config", "unregister" | "__exit__":  # a block may be closed explicitly
            parallel.put_back(m, of(thing))
        case "scaler", "scale":
            return args.get(0)
        case "scaler", "step":
            for optimizer in optimizers.optimizers(m, args.get(0) or UNKNOWN):
                torch_modules.optimizer_method(m, frame, node, optimizer, "step", Args())
        case "session", "run":  # its threads compute, however small the computation
            m.effect(frame, node, "tensorflow", Compute("tensorflow", heavy=True))
        case "variates", "rvs":
            state = args.get(None, "random_state")
            return arrays.drawn_by(m, frame, node, "`.rvs()`", args, state)
    return None


def _uses_gpu(m: Machine, frame: Frame, node: ast.AST, thing: Thing, name: str) -> None:
    chosen = thing.part("device") if name == "use" else None
    framework, asks = thing.name.partition(".")[0], name == "synchronize"
    what = f"`.{name}()`"
    gpu_touched(m, frame, node, what, framework, chosen=chosen or NOTHING, asks=asks)
