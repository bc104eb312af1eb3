"""The transfer functions, by the names that rows give them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable

from gradguard_lint.domain.payloads import GpuSetting, LibraryUse
from gradguard_lint.domain.values import RANK, UNKNOWN, Frame, Value, unknown
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.models.rows import Row
from gradguard_lint.models.transfers import (
    arrays,
    attribute_tables,
    builtin_calls,
    collectives,
    dask_work,
    data_parallel,
    defaults,
    dispatch,
    environment,
    estimators,
    getters,
    jax_calls,
    named_tuples,
    options,
    parallel,
    python_calls,
    remote,
    signals,
    starting,
    tensorflow_calls,
    torch_calls,
    torch_tensors,
    unknown_calls,
)
from gradguard_lint.models.transfers.devices import asked_for_gpus, driver_started
from gradguard_lint.models.transfers.wrapping import keeping, mark

Transfer = Callable[[Machine, Frame, ast.AST, str, Args, Row], Value]


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


def _model(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    if row.framework == "tensorflow":
        return tensorflow_calls.keras_model(m, frame, node, name, args, row)
    return torch_calls.module(m, frame, node, name, args, row)


def _dispatch(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    function = args.get(0, "func")
    return dispatch.dispatching(m, node, name, function) if function is not None else UNKNOWN


TRANSFERS: dict[str, Transfer] = {
    "applied": torch_calls.applied,
    "array": arrays.array,
    "asks-grad": torch_calls.asks_grad,
    "asks-gpu": _tells(("gpu-present",), False),
    "asks-module": python_calls.asks_module,
    "import-module": python_calls.import_module,
    "awakens": tensorflow_calls.awakens,
    "asks-cpus": _tells(("cpu-count",)),
    "asks-group": _tells(("process-group",)),
    "asks-rank": _tells(RANK),
    "asks-world": _tells(("world-size",)),
    "autocast": torch_calls.autocast,
    "bag": dask_work.bag,
    "buffers-made": torch_calls.buffers_made,
    "builtin": builtin_calls.builtin,
    "chain": python_calls.chain,
    "click-context": options.click_context,
    "collective": collectives.collective,
    "configuration": options.configuration,
    "compiled": tensorflow_calls.compiled,
    "computes": jax_calls.computes,
    "constant": python_calls.told,
    "keeping": keeping,
    "context-manager": python_calls.identity,
    "copied": python_calls.copied,
    "current-process": starting.current_process,
    "process-number": starting.process_number,
    "dask-compute": dask_work.compute_all,
    "dask-config": dask_work.config,
    "data-parallel": data_parallel.data_parallel,
    "default-device": torch_calls.default_device,
    "default-dict": defaults.default_dict,
    "device": torch_calls.device,
    "device-scope": tensorflow_calls.device_scope,
    "dispatch": _dispatch,
    "distribution": torch_calls.distribution,
    "draw": arrays.draw,
    "draw-function": tensorflow_calls.draw_function,
    "environ-get": environment.environ_get,
    "environ-patch": environment.environ_patch,
    "environ-pop": environment.environ_pop,
    "environ-set": environment.environ_update,
    "estimator": estimators.estimator,
    "exit": python_calls.leave,
    "filled": torch_tensors.filled,
    "fold": python_calls.fold,
    "fork-rng": torch_calls.fork_rng,
    "functional-call": torch_calls.functional_call,
    "generator": arrays.generator,
    "getter": getters.getter,
    "gpu": torch_calls.gpu,
    "gpu-array": arrays.gpu_array,
    "gpu-count": _tells(("gpu-count",), 0),
    "gpu-driver": torch_calls.gpu_driver,
    "gpu-list": tensorflow_calls.gpu_list,
    "grad-mode": torch_calls.grad_mode,
    "gradients": torch_calls.gradients,
    "graphs": tensorflow_calls.graphs,
    "grown": tensorflow_calls.grown,
    "identity": python_calls.identity,
    "jax-devices": jax_calls.devices,
    "jax-put": jax_calls.put,
    "distinct": python_calls.distinct,
    "made-of": python_calls.made_of,
    "gathered": python_calls.gathered,
    "is-tensor": builtin_calls.is_tensor,
    "islice": python_calls.islice,
    "keras-optimizer": tensorflow_calls.optimizer,
    "layer": tensorflow_calls.layer,
    "load": torch_calls.load,
    "map-fn": tensorflow_calls.map_fn,
    "mark": _marks,
    "memory": parallel.memory,
    "model": _model,
    "named-tuple": named_tuples.named_tuple,
    "namespace": python_calls.namespace,
    "parser": options.parser,
    "nothing": python_calls.nothing,
    "number": python_calls.number,
    "operation": tensorflow_calls.operation_call,
    "operator": python_calls.operator,
    "option": options.option,
    "optimizer": torch_calls.optimizer,
    "parallel": parallel.parallel,
    "parallel-config": parallel.config,
    "parameter": torch_calls.parameter,
    "parent-process": starting.parent_process,
    "partial": python_calls.partial,
    "pipeline": estimators.pipeline,
    "process-group": _joins_group,
    "product": python_calls.product,
    "reduced": data_parallel.reduced,
    "remote": remote.remote,
    "repeat": python_calls.repeat,
    "replaced": named_tuples.replaced,
    "fields-as-dict": attribute_tables.fields_as_dict,
    "fields": attribute_tables.fields,
    "saved": torch_calls.saved,
    "search": estimators.search,
    "seed": arrays.seed,
    "session-options": tensorflow_calls.session_options,
    "signal": signals.signal,
    "start-method": starting.start_method,
    "start-method-now": starting.start_method_now,
    "starmap": python_calls.starmap,
    "task": parallel.task,
    "tensor": torch_calls.tensor,
    "told-device": unknown_calls.told_device,
    "total-norm": torch_calls.total_norm,
    "tensor-function": torch_calls.tensor_function,
    "symbol": tensorflow_calls.symbol,
    "tf-variable": tensorflow_calls.variable,
    "session": tensorflow_calls.session,
    "thing": python_calls.thing,
    "threads": torch_calls.threads,
    "variable": torch_calls.variable,
    "variates": arrays.variates,
    "visible-devices": tensorflow_calls.visible_devices,
    "wraps": python_calls.wraps,
    "at-fork": starting.at_fork,
}
