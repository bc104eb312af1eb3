"""Random numbers on simulated GPUs.

Each GPU has a generator of its own. As long as a program has not seeded it apart from the CPU's, it
draws from the CPU's, so that a simulated run gives the numbers of a run on the CPU.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pytest_gradguard.runtime.kernel import simulated_devices
from pytest_gradguard.simulation.machine import Machine
from pytest_gradguard.simulation.replacing import Replacements, standing_for

_Generator: Any = torch._C.Generator

_DRAWING = frozenset(
    {
        *("rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "poisson"),
        *("rand_like", "randn_like", "randint_like", "dropout", "alpha_dropout", "rrelu"),
        *("dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout", "feature_dropout"),
        *("normal_", "uniform_", "bernoulli_", "random_", "exponential_", "geometric_", "cauchy_"),
        *("log_normal_", "dropout_", "rrelu_", "gumbel_softmax", "lstm", "gru", "rnn_tanh"),
        *("rnn_relu", "scaled_dot_product_attention", "multi_head_attention_forward"),
        *("fractional_max_pool2d", "fractional_max_pool3d", "binomial", "_sample_dirichlet"),
        *(
            "_standard_gamma",
            "native_dropout",
            "kaiming_uniform_",
            "kaiming_normal_",
            "trunc_normal_",
        ),
        *("xavier_uniform_", "xavier_normal_", "orthogonal_", "sparse_"),
    }
)
"""Functions that draw from the generator of their device."""


class DeviceGenerator(_Generator):  # type: ignore[misc]
    """A generator that says that it lies on a simulated GPU."""

    place: torch.device

    def __new__(cls, device: torch.device) -> Any:
        return super().__new__(cls)

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.place = device

    @property
    def device(self) -> torch.device:
        """Where it draws."""
        return self.place

    def __reduce__(self) -> tuple[Any, ...]:
        return (rebuild, (str(self.place), self.initial_seed(), self.get_state()))

    def clone_state(self) -> Any:
        """Another generator in the same state."""
        made = DeviceGenerator(self.place)
        made.set_state(self.get_state())
        return made


DeviceGenerator.__module__, DeviceGenerator.__name__ = "torch", "Generator"
simulated_devices.generators.append(DeviceGenerator)


def rebuild(device: str, seed: int, state: Any) -> Any:
    """Rebuild a generator in another process; called by unpickling."""
    made = DeviceGenerator(torch.device(device))
    made.manual_seed(seed)
    made.set_state(state)
    return made


class DefaultGenerator(DeviceGenerator):
    """The generator from which a GPU draws when a program names none."""

    apart = False
    drawn = False

    def manual_seed(self, seed: int) -> Any:
        """Seed it: apart from the CPU's, unless that begins with the same seed just now."""
        super().manual_seed(seed)
        self.apart = not _local.seeding and (self.drawn or seed != torch.initial_seed())
        return self

    def seed(self) -> int:
        """Seed it with a number that nobody knows."""
        self.apart = True
        return int(super().seed())

    def set_state(self, state: Any) -> Any:
        """Let it go on from `state`: apart from the CPU's, unless that stands there as well."""
        made = super().set_state(state)
        self.apart = True
        self.rejoin()
        return made

    def get_state(self) -> Any:
        """Where it stands."""
        return super().get_state() if self.apart else torch.default_generator.get_state()

    def rejoin(self) -> None:
        """Draw from the CPU's again where that stands in the same state.

        A program that saves the states of all generators and sets them again, as checkpoints of
        activations do at each backward, goes on as it was.
        """
        if self.apart:
            with torch._C.DisableTorchFunction():
                own, of_cpu = super().get_state(), torch.default_generator.get_state()
                self.apart = not torch.equal(own, of_cpu)


class _Local(threading.local):
    seeding = False


_local = _Local()


def default_generators(machine: Machine) -> tuple[Any, ...]:
    """A generator for each GPU that this process sees."""
    return tuple(DefaultGenerator(torch.device("cuda", index)) for index in range(machine.count()))


def draws(func: Any, device: torch.device) -> bool:
    """Whether `func` draws from the generator of `device`, and that stands apart from the CPU's."""
    if getattr(func, "__name__", "") not in _DRAWING:
        return False
    generators = torch.cuda.default_generators
    if device.index >= len(generators):
        return False
    generator = generators[device.index]
    if not isinstance(generator, DefaultGenerator):
        return False
    generator.drawn = True
    return generator.apart


@contextmanager
def stream(device: torch.device) -> Iterator[None]:
    """A block that draws from the generator of `device`."""
    generator: Any = torch.cuda.default_generators[device.index]
    cpu = torch.default_generator
    before = cpu.get_state()
    cpu.set_state(generator.get_state())
    try:
        yield
    finally:
        generator.set_state(cpu.get_state())
        cpu.set_state(before)


def check(generator: Any, target: torch.device | None) -> None:
    """Refuse a generator of another kind of device.

    Raises:
        RuntimeError: `generator` lies on another kind of device than `target`.
    """
    kind = "cpu" if target is None else target.type
    if generator.device.type != kind:
        raise RuntimeError(
            f"Expected a '{kind}' device type for generator but found '{generator.device.type}'"
        )


def install(machine: Machine, replaced: Replacements) -> None:
    """Let ``torch.Generator("cuda")`` be made, and `torch.manual_seed` seed all devices alike."""

    def generator(device: Any = "cpu") -> Any:
        place = machine.meant(device)
        if place is None:
            return _Generator(device=device)
        machine.start_driver()
        machine.check(place.index)
        return DeviceGenerator(place)

    seeding, setting = torch.random.manual_seed, torch.random.set_rng_state

    @functools.wraps(seeding)
    def manual_seed(seed: int) -> Any:
        _local.seeding = True
        try:
            result = seeding(seed)
        finally:
            _local.seeding = False
        for one in _defaults():
            one.apart = one.drawn = False
        return result

    @functools.wraps(setting)
    def set_rng_state(new_state: Any) -> None:
        setting(new_state)
        for one in _defaults():
            one.rejoin()

    replaced.put(torch, "Generator", standing_for((_Generator,), generator))
    for owner in (torch.random, torch):
        replaced.put(owner, "set_rng_state", set_rng_state)
        replaced.put(owner, "manual_seed", manual_seed)


def _defaults() -> list[DefaultGenerator]:
    return [one for one in torch.cuda.default_generators if isinstance(one, DefaultGenerator)]
