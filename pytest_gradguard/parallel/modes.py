"""torch modes and random states, to be restored in workers."""

from __future__ import annotations

import contextlib
import importlib
import random
import sys
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple


class Modes(NamedTuple):
    """torch's modes and settings where a parallel call begins.

    Attributes:
        grad: gradients are recorded.
        inference: inference mode.
        autocast: device, data type and cache of each active autocast.
        device: the default device, unless it is the CPU.
        dtype, deterministic, precision: process-wide settings.
    """

    grad: bool
    inference: bool
    autocast: tuple[tuple[str, Any, bool], ...]
    device: str | None
    dtype: Any
    deterministic: tuple[bool, bool]
    precision: str

    @contextlib.contextmanager
    def applied(self, *, own_process: bool = True) -> Iterator[None]:
        """Apply these modes in a block.

        Args:
            own_process: apply the process-wide settings, too; threads share the caller's.
        """
        import torch

        with contextlib.ExitStack() as stack:
            enter = stack.enter_context
            if own_process and (now := current())[4:] != self[4:]:
                stack.callback(now.set_for_process)
                self.set_for_process()
            if self.inference != torch.is_inference_mode_enabled():
                enter(torch.inference_mode(self.inference))
            enter(torch.set_grad_enabled(self.grad))
            for device, dtype, cache in self.autocast:
                enter(torch.autocast(device, dtype, cache_enabled=cache))
            if self.device is not None:
                enter(torch.device(self.device))
            yield

    def set_for_process(self) -> None:
        """Apply the process-wide settings."""
        import torch

        torch.set_default_dtype(self.dtype)
        torch.use_deterministic_algorithms(self.deterministic[0], warn_only=self.deterministic[1])
        torch.set_float32_matmul_precision(self.precision)

    def is_default(self) -> bool:
        """Whether a new process has these modes."""
        import torch

        thread = (True, False, (), None)
        return self[:4] == thread and self[4:] == (torch.float32, (False, False), "highest")


def current() -> Modes:
    """The modes of the calling thread."""
    import torch

    device = str(torch.get_default_device())
    return Modes(
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        tuple(
            (kind, torch.get_autocast_dtype(kind), torch.is_autocast_cache_enabled())
            for kind in ("cpu", "cuda")
            if torch.is_autocast_enabled(kind)
        ),
        None if device == "cpu" else device,
        torch.get_default_dtype(),
        (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        torch.get_float32_matmul_precision(),
    )


class RandomStates(NamedTuple):
    """The states of a process's global random generators.

    Attributes:
        entropy: the system randomness that a task drew from there on.
    """

    python: Any
    numpy: Any
    torch: Any
    cuda: Any
    entropy: tuple[bytes, ...] = ()

    @classmethod
    def now(cls) -> RandomStates:
        import torch

        numpy = importlib.import_module("numpy.random") if "numpy" in sys.modules else None
        return cls(
            random.getstate(),
            numpy and numpy.get_state(),
            torch.get_rng_state(),
            torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None,
        )

    def restore(self) -> None:
        """Set the generators to these states."""
        import torch

        random.setstate(self.python)
        if self.numpy:
            importlib.import_module("numpy.random").set_state(self.numpy)
        torch.set_rng_state(self.torch)
        if self.cuda:
            torch.cuda.set_rng_state_all(self.cuda)

    def equals(self, other: RandomStates) -> bool:
        """Whether no number was drawn between the two."""
        import torch

        def parts(one: RandomStates) -> list[Any] | None:
            return one.numpy and [
                part.tobytes() if hasattr(part, "tobytes") else part for part in one.numpy
            ]

        if self.python != other.python or parts(self) != parts(other):
            return False
        if (self.cuda is None) != (other.cuda is None):
            return False
        pairs = zip(
            [self.torch, *(self.cuda or ())], [other.torch, *(other.cuda or ())], strict=True
        )
        return all(torch.equal(one, two) for one, two in pairs)


@contextlib.contextmanager
def preserve_random_states() -> Iterator[None]:
    """Restore the random generators after a block."""
    before = RandomStates.now()
    try:
        yield
    finally:
        before.restore()


@contextlib.contextmanager
def record_entropy(replayed: tuple[bytes, ...] = ()) -> Iterator[list[bytes]]:
    """Record the system randomness that `secrets` and unseeded NumPy generators draw.

    Args:
        replayed: what an earlier run drew, to be drawn again.
    """
    drawn, rest, thread = [], list(replayed), threading.get_ident()
    original = random._urandom  # type: ignore[attr-defined]

    def urandom(size: int) -> bytes:
        if threading.get_ident() != thread:
            return bytes(original(size))
        known = rest and len(rest[0]) == size
        drawn.append(rest.pop(0) if known else original(size))
        return drawn[-1]

    random._urandom = urandom  # type: ignore[attr-defined]
    try:
        yield drawn
    finally:
        random._urandom = original  # type: ignore[attr-defined]


@contextlib.contextmanager
def num_threads(count: int) -> Iterator[None]:
    """Use `count` threads of torch: they decide how sums round."""
    import torch

    before = torch.get_num_threads()
    if before != count:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if before != count:
            torch.set_num_threads(before)
