"""The patches of torch that write the log while a watch is open."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.autograd.function import Function, _SingleLevelFunction

from pytest_gradguard.gradients import torch_changes, torch_grad_mode, torch_ways_out
from pytest_gradguard.gradients.torch_exits import (
    ARRAY,
    COMPLEX,
    DEEPCOPY,
    FLOAT,
    ITEM,
    TEXT,
    Exit,
    operations,
    whole,
)
from pytest_gradguard.gradients.torch_log import Listener, Log, recorder
from pytest_gradguard.runtime.frameworks.torch import engine as torch_engine
from pytest_gradguard.runtime.frameworks.torch import steps
from pytest_gradguard.runtime.kernel.faults import attempt
from pytest_gradguard.runtime.kernel.patching import Patch, Patches


def _backward(backward: torch_engine.Backward) -> torch_engine.End | None:
    log = recorder.log
    if log is None:
        return None
    for listener in list(log.listeners):
        listener.before_backward()

    def ended(outcome: Any, raised: BaseException | None) -> None:
        if raised is not None:
            log.backward_failed(raised)
        else:
            log.backward_ended(backward, outcome)

    return ended


def _applied_by() -> Any:
    """The class whose `apply` runs custom functions: `Function` itself since torch 2.15."""
    in_python = isinstance(vars(Function)["apply"], classmethod)
    return _SingleLevelFunction if in_python else Function


def _distributed() -> list[Patch]:
    """Patches of distributed autograd, if this torch has it."""
    module = sys.modules.get("torch.distributed.autograd")
    if not hasattr(module, "get_gradients"):
        return []
    return [
        Patch(module, "backward", torch_changes.distributed_backward),
        Patch(module, "get_gradients", torch_changes.distributed_gradients),
    ]


_TENSOR = torch.Tensor
_patches = Patches(
    [
        Patch(_TENSOR, "detach", torch_ways_out.reading(Exit(".detach()"))),
        Patch(_TENSOR, "detach_", torch_ways_out.detaching_in_place),
        Patch(_TENSOR, "data", torch_ways_out.data_property, inherited=True),
        *(
            Patch(_TENSOR, name, torch_ways_out.reading(way), inherited=True)
            for name, way in (
                ("item", ITEM),
                ("numpy", Exit(".numpy()")),
                ("tolist", Exit(".tolist()")),
                ("__float__", FLOAT),
                ("__int__", whole("int()")),
                ("__bool__", whole("bool()")),
                ("__index__", whole("int()")),
                ("__complex__", COMPLEX),
                ("__array__", ARRAY),
                ("__repr__", TEXT),
                ("__format__", TEXT),
                ("__deepcopy__", DEEPCOPY),
            )
        ),
        *(
            Patch(
                one.owner, one.name, torch_ways_out.operating(one), inherited=one.owner is _TENSOR
            )
            for one in operations()
        ),
        Patch(torch.nn.Parameter, "__deepcopy__", torch_ways_out.reading(DEEPCOPY)),
        Patch(_TENSOR, "__reduce_ex__", torch_ways_out.pickling),
        Patch(torch.nn.Parameter, "__reduce_ex__", torch_ways_out.pickling),
        *(
            Patch(_TENSOR, name, torch_ways_out.writing, inherited=True)
            for name in ("__setitem__", "copy_", "add_", "sub_", "mul_", "lerp_", "index_copy_")
        ),
        Patch(torch.optim.swa_utils.AveragedModel, "update_parameters", torch_changes.averaging),
        Patch(_applied_by(), "apply", torch_ways_out.applying, inherited=True),
        *(
            Patch(_TENSOR, name, torch_ways_out.converting(f".{name}()"), inherited=True)
            for name in ("to", "type", "long", "int", "short", "char", "byte", "bool", "type_as")
        ),
        Patch(_TENSOR, "new_tensor", torch_ways_out.renewing, inherited=True),
        Patch(torch.nn.Parameter, "__new__", torch_ways_out.wrapping),
        Patch(torch, "tensor", torch_ways_out.constructing("torch.tensor()")),
        Patch(torch, "as_tensor", torch_ways_out.constructing("torch.as_tensor()")),
        *(
            Patch(kind, name, torch_grad_mode.switching(f"torch.{kind.__name__}"))
            for kind, names in (
                (torch.no_grad, ("__enter__", "__exit__")),
                (torch.inference_mode, ("__enter__", "__exit__")),
                (torch.enable_grad, ("__enter__", "__exit__")),
                (torch.set_grad_enabled, ("__init__", "__enter__", "__exit__")),
            )
            for name in names
        ),
        Patch(_TENSOR, "requires_grad_", torch_changes.freezing, inherited=True),
        Patch(torch.nn.Module, "requires_grad_", torch_changes.freezing),
        Patch(torch.nn.Module, "zero_grad", torch_changes.clearing),
        Patch(torch.optim.Optimizer, "zero_grad", torch_changes.clearing),
        Patch(torch.nn.Module, "load_state_dict", torch_changes.loading),
        Patch(torch._C.ScriptFunction, "__call__", torch_ways_out.scripted, inherited=True),
        Patch(torch._C.ScriptMethod, "__call__", torch_ways_out.scripted, inherited=True),
        *_distributed(),
    ],
    owned=True,
)


def _teach_script() -> None:
    """Register the wrappers with TorchScript, which looks functions up by identity."""
    table = torch.jit._builtins._get_builtin_table()
    for wrapper in _patches.wrappers():
        operator = table.get(id(getattr(wrapper, "__wrapped__", None)))
        if operator is not None and id(wrapper) not in table:
            table[id(wrapper)] = operator
            _taught.append(id(wrapper))


def _forget_script() -> None:
    table = torch.jit._builtins._get_builtin_table()
    while _taught:
        table.pop(_taught.pop(), None)


_taught: list[int] = []


def _forget_compiler() -> None:
    """Have `torch.compile` look up torch's functions again, if it has cached the wrappers."""
    rules: Any = sys.modules.get("torch._dynamo.trace_rules")
    if rules is None or not rules.get_torch_obj_rule_map.cache_info().currsize:
        return
    known = rules.get_torch_obj_rule_map()
    if any(wrapper in known for wrapper in _patches.wrappers()):
        rules.clear_lru_cache()


def _patch(log: Log) -> None:
    torch.jit._builtins._get_builtin_table()  # built once, from the unpatched functions
    _patches.apply()
    torch_engine.subscribe(_backward, lasting=True)
    _teach_script()
    steps.after.subscribe(torch_changes.stepped, lasting=True)


def _undo(log: Log) -> None:
    attempt(steps.after.unsubscribe, torch_changes.stepped)
    attempt(_forget_script)
    attempt(_forget_compiler)
    attempt(torch_engine.unsubscribe, _backward)
    attempt(_patches.undo)
    attempt(torch_grad_mode.close)


def start(listener: Listener) -> Log:
    """Begin to record for `listener` (see `Recorder`)."""
    return recorder.start(listener, _patch, _undo)


def stop(listener: Listener) -> None:
    """Undo one `start`."""
    recorder.stop(listener, _undo)
