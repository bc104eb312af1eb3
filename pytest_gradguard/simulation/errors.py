"""What torch says on a machine with GPUs where a program mixes devices, in its own words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

ANOTHER_LIBRARY = "handing a GPU tensor to another library"


class CannotSimulate(RuntimeError):
    """Something of CUDA's that only a real GPU can do."""

    def __init__(self, what: str) -> None:
        super().__init__(_cannot(what))


class NoInterface(CannotSimulate, AttributeError):
    """The address of GPU memory, which other libraries ask of a tensor: here, it has none."""


class NoSuchDriverCall(AttributeError):
    """A function of torch's CUDA build that the simulation does not have."""

    def __init__(self, name: str) -> None:
        super().__init__(_cannot(f"torch._C.{name}"))


def _cannot(what: str) -> str:
    return (
        f"gradguard cannot simulate {what}: the GPU of this run is simulated. Run this part on a "
        "machine that has one."
    )


def refusing(what: str) -> Callable[..., Any]:
    """A function that refuses whatever it is called with."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise CannotSimulate(what)

    return refuse


def elementwise(first: Any, second: Any) -> RuntimeError:
    """Operands of one elementwise operation on two devices."""
    return RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"{first} and {second}!"
    )


def argument(name: str, common: Any, other: Any, argument: str) -> RuntimeError:
    """Arguments of another operation on two devices."""
    if _version() >= (2, 8):
        found = f"but got {argument} is on {other}, different from other tensors on {common}"
        checked = "when checking argument"
    else:
        found = f"but found at least two devices, {common} and {other}!"
        checked = f"when checking argument for argument {argument}"
    return RuntimeError(
        f"Expected all tensors to be on the same device, {found} "
        f"({checked} in method wrapper_CUDA_{name})"
    )


def _version() -> tuple[int, ...]:
    import torch

    return tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])


def convolution(given: str, weight: str) -> RuntimeError:
    """A convolution whose input and weight lie on two devices."""
    return RuntimeError(f"Input type ({given}) and weight type ({weight}) should be the same")


def whole_numbers(one: int, other: int, kind: str) -> NotImplementedError:
    """A product of matrices of so many dimensions, of whole numbers."""
    if one == other == 1:
        name = "dot"
    elif one == 2 and other == 1:
        name = "addmv_impl_cuda"
    else:
        name = "addmm_cuda" if min(one, other) <= 2 else "baddbmm_cuda"
    kind = kind.removeprefix("torch.").removesuffix("Tensor")
    return NotImplementedError(f"\"{name}\" not implemented for '{kind}'")


def not_on_gpus(operator: str) -> NotImplementedError:
    """An operator that torch has for the CPU alone."""
    return NotImplementedError(
        f"Could not run 'aten::{operator}' with arguments from the 'CUDA' backend. This could be "
        "because the operator doesn't exist for this backend, or was omitted during the "
        "selective/custom build process (if using custom build)."
    )


_OWN_WORDS = {
    "grid_sample": "grid_sampler(): expected input and grid to be on same device, but input is on "
    "{one} and grid is on {other}",
    "quantile": "quantile() q tensor must be on the same device as the input tensor",
    "nanquantile": "quantile() q tensor must be on the same device as the input tensor",
    "masked_fill": "expected self and mask to be on the same device, but got mask on {other} and "
    "self on {one}",
    "searchsorted": "torch.searchsorted(): boundaries and input value tensors should have same "
    "device type, but got boundaries tensor device type {one} and input value tensor device type "
    "{other}",
    "bucketize": "torch.searchsorted(): boundaries and input value tensors should have same "
    "device type, but got boundaries tensor device type {other} and input value tensor device type "
    "{one}",
}
"""What functions say that look at the devices of their first two tensors by themselves."""


def in_its_own_words(name: str, one: Any, other: Any) -> RuntimeError | None:
    """What such a function says; None: `name` is none, or its tensors lie together."""
    words = _OWN_WORDS.get(name.removesuffix("_"))
    return (
        None if words is None or one == other else RuntimeError(words.format(one=one, other=other))
    )


def recurrent(what: str, given: Any, other: Any) -> RuntimeError:
    """A recurrent layer whose input lies on another device than its state or its weights."""
    return RuntimeError(
        f"Input and {what} tensors are not at the same device, found input tensor at {given} and "
        f"{what} tensor at {other}"
    )


def index(device: Any) -> RuntimeError:
    """An index on another device than the tensor it indexes."""
    return RuntimeError(
        f"indices should be either on cpu or on the same device as the indexed tensor ({device})"
    )


def to_numpy(device: Any) -> TypeError:
    """`numpy()` of a tensor on a GPU."""
    return TypeError(
        f"can't convert {device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor "
        "to host memory first."
    )


def root_gradient(place: Any, other: Any) -> RuntimeError:
    """A gradient given to `backward` that lies on another device than its tensor."""
    return RuntimeError(f"invalid gradient at index 0 - expected device {place} but got {other}")


def gradient(device: Any, own: Any) -> RuntimeError:
    """A gradient assigned to a tensor on another kind of device."""
    return RuntimeError(
        f"attempting to assign a gradient with device type '{device.type}' to a tensor with "
        f"device type '{own.type}'. Please ensure that the gradient and the tensor are on the "
        "same device"
    )


def gradient_index(device: Any, own: Any) -> RuntimeError:
    """A gradient assigned to a tensor on another device of the same kind."""
    return RuntimeError(
        f"attempting to assign a gradient located on device with index '{device.index}' to a "
        f"tensor located on device with index '{own.index}'. Please ensure that the gradient and "
        "the tensor are on the same device"
    )
