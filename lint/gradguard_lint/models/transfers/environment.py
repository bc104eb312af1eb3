"""Environment variables of the process, as far as they matter."""

from __future__ import annotations

import ast

from gradguard_lint.domain.effects import Effect, ParallelCall, of_kinds
from gradguard_lint.domain.payloads import ComputeThreads, GpuChoice, GpuSetting, LibraryUse
from gradguard_lint.domain.values import (
    UNKNOWN,
    Frame,
    Table,
    Thing,
    Value,
    constant,
    guarded,
    of,
    unknown,
)
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.models.rows import Row
from gradguard_lint.models.transfers.devices import names_no_gpu
from gradguard_lint.models.transfers.starting import STARTS_POOLS

IMPORTED = (0, "<torch>")
"""Store key: torch is imported, and has read the environment."""

_KERAS = (0, "backend of Keras")
"""Store key: the configured backend of Keras."""

_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""The variables of visible GPUs."""


def environ_get(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``os.environ.get(...)``: anything, or a string default."""
    key, default = ("env", args.constant(0)), args.get(1, "default")
    value = unknown(key)
    if default is None or not isinstance(default.constant, str):
        return value
    unset = guarded(default, frozenset({(("eq", key, default.constant), True)}))
    return Value((*value.choices, *unset.choices))


def environ_pop(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``os.environ.pop(...)``, ``os.unsetenv(...)``."""
    environ_unset(m, frame, node, args.get(0) or UNKNOWN)
    return environ_get(m, frame, node, name, args, row)


def environ_unset(m: Machine, frame: Frame, node: ast.AST, key: Value) -> None:
    """Record that an environment variable is unset."""
    if key.constant in _VISIBLE:
        m.effect(frame, node, f'os.environ["{key.constant}"]', GpuSetting("shown"))


def environ_update(
    m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row
) -> Value:
    """``os.environ.update(...)``, ``os.environ.setdefault(...)``."""
    if not name.endswith("update"):
        if len(args.positional) == 2:
            environ_set(m, frame, node, args.positional[0], args.positional[1])
        return UNKNOWN
    for key, value in args.keywords.items():
        environ_set(m, frame, node, constant(key), value)
    environ_from(m, frame, node, args.get(0) or UNKNOWN)
    return UNKNOWN


def environ_from(m: Machine, frame: Frame, node: ast.AST, given: Value) -> None:
    """Record that the variables in a dict are set."""
    for table in given.of(Table):
        for entry, value in table.entries:
            environ_set(m, frame, node, constant(entry), value)


def environ_patch(
    m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row
) -> Value:
    """``mock.patch.dict(os.environ, {...})``: a block, or a decorator."""
    patched, given = args.get(0, "in_dict") or UNKNOWN, args.get(1, "values")
    if "os.environ" not in (getattr(patched.only, "name", ""), patched.constant):
        return UNKNOWN
    plain = {key: value for key, value in args.keywords.items() if key not in _OF_PATCHES}
    parts = (("given", given or UNKNOWN), ("named", of(args.named(plain))))
    return of(Thing(PATCH, name, parts=parts, site=m.site(frame, node)))


PATCH = "environ-patch"
"""The kind of patches of the environment, for a block."""

_OF_PATCHES = frozenset({"in_dict", "values", "clear"})


def enter_patch(m: Machine, frame: Frame, patch: Thing) -> None:
    """Set the variables of a patch."""
    if patch.site is not None:
        for _, given in patch.parts:
            environ_from(m, frame, patch.site.node, given)


def leave_patch(m: Machine, patch: Thing) -> None:
    """Unset the variables of a patch, except for reused workers."""
    past = m.state.past
    here = [it for it in past if isinstance(it, Effect) and it.site == patch.site]
    calls = [it for it in past if isinstance(it, ParallelCall) and it.start in LIVING_ON]
    for event in here:
        if not any(event in call.before for call in calls):
            del past[event]


LIVING_ON = frozenset({"loky"})
"""Start methods whose workers later calls reuse."""


def environ_set(m: Machine, frame: Frame, node: ast.AST, key: Value, value: Value) -> None:
    """Record that an environment variable is set."""
    name = key.constant
    if name in _VISIBLE:
        if names_no_gpu(m, value):
            m.program.hides_gpus = True
            _drop_resets(m)
            m.effect(frame, node, f'os.environ["{name}"] = ...', GpuSetting("hidden"))
        elif value.constant is not None:
            m.effect(frame, node, f'os.environ["{name}"] = ...', GpuSetting("meant"))
        m.effect(frame, node, f'os.environ["{name}"] = ...', GpuChoice("environment", value))
    elif name == "TF_FORCE_GPU_ALLOW_GROWTH" and str(value.constant).lower() in ("true", "1"):
        m.effect(frame, node, f'os.environ["{name}"] = ...', GpuSetting("grown"))
    elif name == "PYTORCH_NVML_BASED_CUDA_CHECK" and value.constant == "1":
        m.effect(frame, node, f'os.environ["{name}"] = ...', GpuSetting("unasked", "torch"))
    elif name == "OMP_NUM_THREADS" and value.constant == "1" and not m.read(*IMPORTED):
        m.effect(frame, node, f'os.environ["{name}"] = ...', ComputeThreads("torch"))
    elif name == "JOBLIB_START_METHOD":
        m.store[STARTS_POOLS] = value
    elif name == "KERAS_BACKEND":
        m.store[_KERAS] = value
    elif name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"):
        m.effect(frame, node, f'os.environ["{name}"] = ...', LibraryUse("process group"))


def keras_has_other_backend(m: Machine) -> bool:
    """Whether Keras has another backend than TensorFlow."""
    backend = m.read(*_KERAS)
    return backend is not None and backend.constants() != ["tensorflow"]


def _drop_resets(m: Machine) -> None:
    """Drop earlier resets: in a loop, they precede this as well."""
    past = m.state.past
    shown = [it for it in of_kinds(past, GpuSetting) if it.payload.setting == "shown"]
    for event in shown:
        del past[event]
