"""The caller's modes of torch, and the random states of a task, wherever it runs."""

from __future__ import annotations

import contextlib
import importlib
import random
import sys
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple


class Modes(NamedTuple):
    """What is in force where a parallel call begins.

    Attributes:
        grad: gradients are recorded.
        inference: the inference mode.
        autocast: device, data type and cache of each autocast in force.
        device: the default device, where it is not the CPU.
        dtype, deterministic, precision: the settings that hold for the whole process.
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
        """Have these modes in force.

        Args:
            own_process: set what holds for the whole process, too; threads of one share it.
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
        """Set what holds for a whole process."""
        import torch

        torch.set_default_dtype(self.dtype)
        torch.use_deterministic_algorithms(self.deterministic[0], warn_only=self.deterministic[1])
        torch.set_float32_matmul_precision(self.precision)


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


def plain(modes: Modes) -> bool:
    """Whether workers have these modes without being told."""
    import torch

    thread = (True, False, (), None)
    return modes[:4] == thread and modes[4:] == (torch.float32, (False, False), "highest")


class RandomStates(NamedTuple):
    """The states of the global random generators of a process.

    Attributes:
        entropy: what a task has drawn of the system from there on.
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
        """Let the generators go on from here."""
        import torch

        random.setstate(self.python)
        if self.numpy:
            importlib.import_module("numpy.random").set_state(self.numpy)
        torch.set_rng_state(self.torch)
        if self.cuda:
            torch.cuda.set_rng_state_all(self.cuda)

    def same(self, other: RandomStates) -> bool:
        """Whether no number was drawn between the two."""
        import torch

        def arrays(one: RandomStates) -> list[bytes]:
            return [part.tobytes() if hasattr(part, "tobytes") else part for part in one.numpy]

        if (self.numpy is None) != (other.numpy is None) or self.python != other.python:
            return False
        if self.numpy and arrays(self) != arrays(other):
            return False
        if (self.cuda is None) != (other.cuda is None):
            return False
        pairs = zip(
            [self.torch, *(self.cuda or ())], [other.torch, *(other.cuda or ())], strict=True
        )
        return all(torch.equal(one, two) for one, two in pairs)


@contextlib.contextmanager
def random_states_kept() -> Iterator[None]:
    """Leave the random generators as they were."""
    before = RandomStates.now()
    try:
        yield
    finally:
        before.restore()


@contextlib.contextmanager
def entropy(again: tuple[bytes, ...] = ()) -> Iterator[list[bytes]]:
    """Record what `secrets` and NumPy's generators without a seed draw of the system.

    Args:
        again: what to give them first, where the task runs once more.
    """
    drawn, rest, thread = [], list(again), threading.get_ident()
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
def threads(count: int) -> Iterator[None]:
    """Let torch compute with so many threads: sums are rounded by how they are divided."""
    import torch

    before = torch.get_num_threads()
    if before != count:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if before != count:
            torch.set_num_threads(before)
