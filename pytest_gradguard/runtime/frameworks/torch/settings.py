"""PyTorch: settings of a whole process, and what tasks do with torch's defaults instead.

Threads and forked processes have the settings of the process that they come from; new interpreters
have none of them. A function mode observes what tasks compute, only if a setting of the caller is
missing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

from pytest_gradguard.runtime.kernel.faults import fault

_C: Any = torch._C
_compiling = torch.compiler.is_compiling
_FROM_DATA = frozenset((torch.tensor, torch.as_tensor, torch.asarray))
_WITH_A_DTYPE = ("sparse_", "nested_", "empty_quantized")
"""Prefixes of functions whose tensors get the dtype of their input."""
_ARITHMETIC = frozenset(
    (
        *("div", "divide", "true_divide", "mul", "multiply", "add", "sub", "subtract", "rsub"),
        *("pow", "sqrt", "rsqrt", "exp", "log", "log2", "log10", "sin", "cos", "tanh", "sigmoid"),
    )
)
"""Functions that make floating-point numbers of integers: of the default dtype."""
_MATMULS = frozenset(
    (
        *("linear", "bilinear", "matmul", "mm", "bmm", "addmm", "baddbmm", "addbmm", "einsum"),
        *("tensordot", "chain_matmul", "scaled_dot_product_attention"),
        *("multi_head_attention_forward", "lstm", "gru", "rnn_tanh", "rnn_relu"),
    )
)
_NOT_DETERMINISTIC = frozenset(
    (
        *("index_add", "index_copy", "index_put", "index_reduce", "put"),
        *("scatter", "scatter_add", "scatter_reduce", "mm", "mv", "bmm", "matmul"),
    )
)
"""Functions that torch's documentation of `use_deterministic_algorithms` names, and that programs
call by these names: they count on any device."""
_NOT_DETERMINISTIC_ON_GPUS = _MATMULS | {
    *("bincount", "cumsum", "ctc_loss", "embedding", "embedding_bag", "gather", "grid_sample"),
    *("histc", "index_select", "interpolate", "kthvalue", "median", "nll_loss", "cross_entropy"),
    *("pad", "repeat_interleave"),
}
_POOLS = ("conv", "avg_pool", "max_pool", "max_unpool", "adaptive_", "fractional_", "upsample")
_IN_CUDNN = ("conv", "lstm", "gru", "rnn_", "batch_norm", "instance_norm", "ctc_loss")
"""Prefixes of functions that cuDNN computes."""
_COMPUTES_NOTHING = frozenset(
    ("__get__", "__getitem__", "clone", "contiguous", "cpu", "cuda", "detach", "float", "to")
)


class _Called(NamedTuple):
    """A call of a torch function, and its resulting tensor."""

    function: Any
    name: str
    given: list[Any]
    options: Mapping[str, Any]
    result: Any


class Setting(NamedTuple):
    """One setting of a process.

    Attributes:
        read: its current value.
        defaults: torch's own values.
        shown: a value as code writes it, in plain values.
        code: the code that sets it, with ``{}`` for the value.
        names: code that names one of these sets it itself.
        uses: whether a call depends on it.
        may_use: whether a call may depend on it, in unknown cases.
        has_effect: whether a value, as `shown`, changes anything on this machine.
        computes: the setting affects computations, not the kind of tensors created.
        asks: the functions that return its value.
    """

    read: Callable[[], Any]
    defaults: tuple[Any, ...]
    code: str
    names: frozenset[str]
    uses: Callable[[_Called], bool]
    shown: Callable[[Any], str] = str
    computes: bool = True
    may_use: Callable[[_Called], bool] | None = None
    has_effect: Callable[[str], bool] | None = None
    asks: tuple[str, ...] = ()

    def is_default(self) -> bool:
        """Whether this process has torch's own value."""
        return self.read() in self.defaults


def _makes_default_dtype(call: _Called) -> bool:
    """Whether the result has the default dtype because nothing else determines it."""
    if call.result.dtype is not torch.get_default_dtype():
        return False
    if call.options.get("dtype") is not None or call.options.get("out") is not None:
        return False
    if any(isinstance(one, torch.dtype) for one in call.given):
        return False
    if call.function in _FROM_DATA:
        return _is_float(call.given[0] if call.given else None)
    if call.function in _device_constructors():
        return not call.name.startswith(_WITH_A_DTYPE)
    tensors = [one for one in call.given if isinstance(one, torch.Tensor)]
    return call.name in _ARITHMETIC and not any(one.dtype.is_floating_point for one in tensors)


def _is_float(data: Any) -> bool:
    """Whether Python numbers determine the dtype of a tensor made of `data`, and are floats."""
    while type(data) in (list, tuple) and data:
        data = data[0]
    return type(data) is float


def _computes(call: _Called) -> bool:
    if call.name in _COMPUTES_NOTHING or call.result._is_view():
        return False
    return call.name == "empty" or any(isinstance(one, torch.Tensor) for one in call.given)


def _is_not_deterministic(call: _Called) -> bool:
    name = call.name.strip("_")
    if name in _NOT_DETERMINISTIC:
        return True
    on_gpu = call.result.device.type == "cuda"
    return on_gpu and (name in _NOT_DETERMINISTIC_ON_GPUS or name.startswith(_POOLS))


def _multiplies(device: str) -> Callable[[_Called], bool]:
    def uses(call: _Called) -> bool:
        result = call.result
        full = result.dtype is torch.float32 and result.device.type == device
        return call.name in _MATMULS and full

    return uses


def _has_precision(precision: str) -> bool:
    """Whether a CPU may multiply in the precision of that name; ``high`` needs AMX."""
    if precision != "high":
        return True
    supported: Any = getattr(torch.cpu, "_is_amx_fp16_supported", None)
    return supported is not None and bool(supported())


def _in_cudnn(call: _Called) -> bool:
    return call.result.device.type == "cuda" and call.name.startswith(_IN_CUDNN)


def _fp32_precision(backend: str) -> Callable[[], Any] | None:
    """Reads the precision of matrix products; the public functions may warn, or refuse."""
    getter = getattr(_C, "_get_fp32_precision_getter", None)  # since torch 2.9
    return None if getter is None else functools.partial(getter, backend, "matmul")


def _deterministic(value: bool) -> str:
    only = value and _C._get_deterministic_algorithms_warn_only()
    return "True, warn_only=True" if only else str(value)


_PRECISIONS = {"none": "highest", "ieee": "highest", "tf32": "high", "bf16": "medium"}
"""The names of a backend's precisions in `set_float32_matmul_precision`."""
_OF_MATMULS = frozenset(("set_float32_matmul_precision", "allow_tf32", "fp32_precision"))


def _of_cudnn(name: str, read: Callable[[], bool], default: bool) -> dict[str, Setting]:
    code = f"from torch.backends import cudnn; cudnn.{name} = {{}}"
    about = Setting(read, (default,), code, _CUDNN, _in_cudnn)
    return {f"`torch.backends.cudnn.{name}`": about}


_CUDNN = frozenset(("cudnn",))
# cloudpickle cannot pickle a function of `__main__` that uses such a module by its full name.
_ON_GPUS = {
    "`torch.backends.cuda.matmul.allow_tf32`": Setting(
        _fp32_precision("cuda") or _C._get_cublas_allow_tf32,
        (False, "none", "ieee"),
        "from torch.backends import cuda; cuda.matmul.allow_tf32 = {}",
        _OF_MATMULS,
        _multiplies("cuda"),
        lambda value: str(value in (True, "tf32")),
    ),
    **_of_cudnn("deterministic", _C._get_cudnn_deterministic, False),
    **_of_cudnn("benchmark", _C._get_cudnn_benchmark, False),
    **_of_cudnn("enabled", _C._get_cudnn_enabled, True),
}
SETTINGS: dict[str, Setting] = {
    "the default dtype": Setting(
        torch.get_default_dtype,
        (torch.float32,),
        "torch.set_default_dtype({})",
        frozenset(("set_default_dtype", "set_default_tensor_type")),
        _makes_default_dtype,
        computes=False,
        asks=("get_default_dtype",),
    ),
    "`use_deterministic_algorithms`": Setting(
        _C._get_deterministic_algorithms,
        (False,),
        "torch.use_deterministic_algorithms({})",
        frozenset(("use_deterministic_algorithms", "set_deterministic_debug_mode")),
        _is_not_deterministic,
        _deterministic,
        may_use=_computes,
        asks=("are_deterministic_algorithms_enabled", "get_deterministic_debug_mode"),
    ),
    "the float32 matmul precision": Setting(
        _fp32_precision("mkldnn") or _C._get_float32_matmul_precision,
        ("none", "ieee", "highest"),
        'torch.set_float32_matmul_precision("{}")',
        _OF_MATMULS,
        _multiplies("cpu"),
        lambda value: _PRECISIONS.get(value, value),
        has_effect=_has_precision,
        asks=("get_float32_matmul_precision",),
    ),
    **(_ON_GPUS if torch.backends.cuda.is_built() else {}),
}
"""By their names in findings."""
_READ = tuple((name, setting.read, setting.defaults) for name, setting in SETTINGS.items())


def changed() -> dict[str, str]:
    """The settings of this process that are not torch's defaults; run in every parallel call."""
    found = {}
    for name, read, defaults in _READ:
        value = read()
        if value not in defaults:
            found[name] = SETTINGS[name].shown(value)
    return found


def missing(asked: Iterable[str]) -> list[str]:
    """The settings among `asked` that have torch's defaults in this process."""
    return [name for name in asked if name in SETTINGS and SETTINGS[name].is_default()]


def spellings(dtype: str) -> frozenset[str]:
    """The words by which code requests that dtype."""
    name = dtype.removeprefix("torch.")
    return frozenset((name, _SHORT.get(name, name)))


_SHORT = {"float64": "double", "float16": "half"}


class Watch(TorchFunctionMode):  # type: ignore[misc]
    """Watches what this thread computes without some settings, from now to `end`.

    Args:
        names: these settings.
    """

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self._without = {name: SETTINGS[name] for name in names}
        self._used: dict[str, str] = {}
        self._may_use: dict[str, str] = {}
        self.__enter__()

    def end(self) -> tuple[dict[str, str], dict[str, str]]:
        """Return the first function that depends on each missing setting, by the setting.

        Returns:
            Functions that depend on it, and functions that may.
        """
        self.__exit__(None, None, None)
        return self._used, self._may_use

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self._without and not _compiling():
            try:
                first = result[0] if type(result) is tuple and result else result
                if isinstance(first, torch.Tensor):
                    self._look(func, args, kwargs or {}, first)
            except Exception as error:
                fault(error)
        return result

    def _look(self, func: Any, args: Any, kwargs: Mapping[str, Any], result: Any) -> None:
        name = getattr(func, "__name__", "")
        given = [*args, *kwargs.values()]
        call = _Called(func, name, given, kwargs, result)
        for setting, about in list(self._without.items()):
            if about.uses(call):
                del self._without[setting]
                if about.is_default():
                    self._used[setting] = name.strip("_")
            elif about.may_use is not None and about.may_use(call) and about.is_default():
                self._may_use.setdefault(setting, name.strip("_"))
