"""The tensors that came with the tasks of a batch, and their changes by backward passes."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, NamedTuple

import torch

from pytest_gradguard.runtime.frameworks.torch import tensors
from pytest_gradguard.runtime.kernel import locate, used_globals
from pytest_gradguard.runtime.kernel.tasks import roots_of

_SAMPLED = 64
"""How many values of a tensor identify it."""
_LOSSES = 16
"""How many loss values of backward passes are kept."""


_LEAVES = 64
"""How many leaves behind a tensor are reported."""


def leaves_behind(history: Any) -> dict[int, str]:
    """The digests of the leaves behind a tensor with this `history`, by id.

    A forked process has inherited leaves at the same addresses as its parent."""
    found: dict[int, str] = {}
    for leaf in tensors.leaves(history):
        found[id(leaf)] = digest(leaf) or ""
        if len(found) == _LEAVES:
            break
    return found


def digest(tensor: Any) -> str | None:
    """A digest that is equal for a tensor and its copy in another process.

    Returns:
        None if the values cannot be read.
    """
    with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
        if not _has_values(tensor):
            return None
        read = tensors.fingerprint(_some_of(tensor).to("cpu"), _SAMPLED)
        if read is None:
            return None
        return blake2b(f"{list(tensor.shape)}".encode() + read, digest_size=16).hexdigest()


def sample(tensor: Any) -> Any:
    """Some values of `tensor`, to compare with later ones; None if they cannot be read."""
    with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
        if not _has_values(tensor):
            return None
        values = _some_of(tensor)
        if values.is_complex():
            values = torch.view_as_real(values).reshape(-1)
        return values.to("cpu", torch.float64, copy=True)


def _some_of(tensor: Any) -> Any:
    """Some values of `tensor`, without a large copy: compute threads may be missing here."""
    values = tensor.detach()
    every = max(1, values.numel() // _SAMPLED)
    if values.is_contiguous():
        return values.view(-1)[::every]
    return values.take(torch.arange(0, values.numel(), every, device=values.device))


def _has_values(tensor: Any) -> bool:
    """Whether `tensor` has plain numbers that may be read now."""
    return (
        tensor.layout is torch.strided
        and not (tensor.is_quantized or tensor.is_meta)
        and not isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin)
        and tensors.readable(tensor)
    )


def all_zero(gradient: Any) -> bool:
    """Whether a gradient is zero everywhere; False if it cannot be read."""
    with torch._C.DisableTorchFunctionSubclass():
        return (
            gradient.layout is torch.strided
            and tensors.readable(gradient)
            and not bool(gradient.any())
        )


class GradientState(NamedTuple):
    """Identifies a tensor's gradient: equal unless it was replaced or changed."""

    identity: int
    version: int


def gradient_state(tensor: Any) -> GradientState | None:
    """The state of the gradient of `tensor`; None without one."""
    with torch._C.DisableTorchFunctionSubclass():
        gradient = tensor.grad
        return None if gradient is None else GradientState(gradient._cdata, gradient._version)


_first: dict[int, GradientState | None] = {}
"""By the ids of inherited tensors, to which earlier tasks here may have left gradients."""


class Copy:
    """One tensor that came with the tasks and that requires grad.

    Attributes:
        digest: its digest when it got its first gradient; None: it has none so far.
        state: that of the gradient that it came with.
        inherited: it was not pickled: if this process was forked, it is the parent's.
        first: if so, the state of its gradient when this process first inspected it.
    """

    def __init__(self, tensor: Any, shared: bool, inherited: bool) -> None:
        self.tensor = tensor
        self.inherited = inherited
        self.digest: str | None = None
        self.state = gradient_state(tensor)
        self.first = _first.setdefault(id(tensor), self.state) if inherited else None
        self._shared = shared and self.state is not None and tensors.in_shared_memory(tensor.grad)
        self._version = tensor._version

    def look(self) -> None:
        """Check, after a backward pass, whether it has got its first gradient."""
        state = gradient_state(self.tensor)
        if state is not None and state != self.state:
            self.digest = digest(self.tensor) or ""
            self._version = self.tensor._version

    def look_at_last(self) -> None:
        """Check, after the last backward pass, whether the task itself has set its gradient.

        If the task then steps, its values have changed since it arrived.
        """
        if gradient_state(self.tensor) != self.state and self.gradient is not None:
            self.digest = digest(self.tensor) or ""

    @property
    def seen_by_the_parent(self) -> bool:
        """Whether the task has changed it, or its gradient, in memory shared with the parent."""
        with torch._C.DisableTorchFunctionSubclass():
            changed = self.tensor._version > self._version
        changed = changed and tensors.in_shared_memory(self.tensor)
        state = gradient_state(self.tensor) if self._shared else None
        return bool(changed or (state and self.state and state.identity == self.state.identity))

    @property
    def gradient(self) -> Any:
        """Its gradient, or None if that was cleared."""
        with torch._C.DisableTorchFunctionSubclass():
            gradient = self.tensor.grad
        return None if gradient is None or all_zero(gradient) else gradient


class Copies:
    """The tensors passed to the tasks of one batch.

    Args:
        items: the tasks, before their first backward pass.
        shared: the program may read memory that it shares with this process.

    Attributes:
        passes: how many backward passes gave a gradient to any of them.
        losses: the last single values that backward passes began at.
        for_inputs: a backward pass gave a gradient to a tensor that the tasks created.
        every: all tensors that require grad.
        others: the ids of the other tensors and arrays.
        sent: the ids of copies of which something was sent to another process.
        gradients: by the ids of tensors, gradients that were returned instead of accumulated; None
            if another process has computed it.
    """

    def __init__(self, items: Any, shared: bool = False) -> None:
        found: dict[int, Any] = {}
        self.others: set[int] = set()
        shares = shared
        self._buffers: list[tuple[Any, int]] = []
        self._rooms: list[int] = []

        def look(item: Any) -> bool:
            if not tensors.is_tensor(item):
                if type(item).__name__ == "ndarray":
                    self.others.add(id(item))
                if type(item).__module__ in _BELOW:
                    return True
                if shares:
                    self._rooms.append(_room(item))
                return False
            with torch._C.DisableTorchFunctionSubclass():
                if item.is_leaf and item.requires_grad:
                    found[id(item)] = item
                    return True
                self.others.add(id(item))
                if shares and tensors.in_shared_memory(item):
                    self._buffers.append((item, item._version))
            return True

        paths = locate.find([*roots_of(items), *getattr(items, "beside", ())], look)
        given = {one for one in found if not shared and used_globals.GLOBAL not in paths[one]}
        if not any(isinstance(found[one], torch.nn.Parameter) for one in given):
            shares = True
            locate.find(used_globals.values_used_by(items), look)
        self.every = [Copy(tensor, shares, one not in given) for one, tensor in found.items()]
        self.sent: set[int] = set()
        self._written: set[torch.Size] = set()
        self._waiting = list(self.every)
        self.passes = 0
        self.losses: list[Any] = []
        self.for_inputs = False
        self.gradients: dict[int, list[Any]] = {}

    def add(self, leaves: Iterable[Any]) -> None:
        """Add tensors that have arrived, before the next backward pass."""
        more = [Copy(leaf, shared=True, inherited=False) for leaf in leaves]
        self.every += more
        self._waiting += more

    def written(self, tensor: Any) -> None:
        """Record that the program pickles `tensor`: gradients of its shape may leave in a file."""
        if self.passes:
            self._written.add(tensor.shape)

    def _may_be_written(self, copy: Copy) -> bool:
        shape, size = copy.tensor.shape, copy.tensor.numel()
        return shape in self._written or any(one.numel() > size for one in self._written)

    def returned(self, inputs: Iterable[Any], gradients: Iterable[Any]) -> None:
        """Record gradients that were computed and returned on request."""
        own = {id(copy.tensor) for copy in self.every}
        for one, gradient in zip(inputs, gradients, strict=False):
            if id(one) in own:
                known = self.gradients.setdefault(id(one), [])
                known.append(gradient)
                del known[:-_LOSSES]

    def backward_ended(self, outputs: Any) -> None:
        """Record the effects of a backward pass that began at `outputs`."""
        self.passes += 1
        for copy in self._waiting:
            copy.look()
        self._waiting = [copy for copy in self._waiting if copy.digest is None]
        for output in outputs:
            if tensors.is_tensor(output) and output.numel() == 1 and len(self.losses) < _LOSSES:
                self.losses.append(output.detach())
        if not self.for_inputs and self.passes <= _LOSSES:
            own = {id(copy.tensor) for copy in self.every}
            self.for_inputs = any(
                id(leaf) not in own and not isinstance(leaf, torch.nn.Parameter)
                for leaf in tensors.leaves_of(outputs)
                if not tensors.gradient_missing(leaf)
            )

    def ended(self) -> None:
        """Record what the tasks have done since their last backward pass."""
        if self.passes:
            for copy in self._waiting:
                copy.look_at_last()
            self._waiting = [copy for copy in self._waiting if copy.digest is None]

    @property
    def with_gradient(self) -> list[Copy]:
        """The copies with a gradient that are distinct from others by their values."""
        got = [copy for copy in self.every if copy.digest and id(copy) not in self.sent]
        if self._written:
            got = [copy for copy in got if not self._may_be_written(copy)]
        if not got:
            return got
        others = Counter(digest(copy.tensor) for copy in self._waiting)
        return [copy for copy in got if not others[copy.digest]]

    def may_be_in_shared_memory(self, size: int) -> bool:
        """Whether so many numbers may be in memory that another process reads."""
        written = sum(
            tensor.numel() for tensor, version in self._buffers if tensor._version > version
        )
        return written >= size or any(room >= size for room in self._rooms)


_BELOW = ("multiprocessing.heap", "multiprocess.heap")
"""The modules that allocate shared values and barriers: whole pages, whatever the size."""
_C_RECORDS = (ctypes.Array, ctypes.Structure, ctypes.Union)
_LEAST = 4
"""The least bytes of a number in a structure."""


def _room(item: Any) -> int:
    """How many numbers an object can hold in memory that other processes may share."""
    kind = type(item)
    if issubclass(kind, ctypes._SimpleCData):
        return 1
    if issubclass(kind, _C_RECORDS):
        simple = isinstance(getattr(getattr(kind, "_type_", None), "_type_", None), str)
        return len(item) if simple else ctypes.sizeof(item) // _LEAST
    if kind.__module__ == "mmap":
        return len(item)
    if kind.__module__ == "multiprocessing.shared_memory":
        return int(getattr(item, "size", 0) or len(getattr(item, "shm", b"")))
    if kind.__module__ != "numpy" or isinstance(item, type) or not hasattr(item, "base"):
        return 0
    base = item
    while type(base) is kind:
        base = base.base
    if (
        base is None
        or isinstance(base, bytes)
        or (tensors.is_tensor(base) and not tensors.in_shared_memory(base))
    ):
        return 0
    return int(item.size)
