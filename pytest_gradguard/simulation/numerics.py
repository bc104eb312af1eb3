"""Numbers as a GPU computes them: the data types of CUDA's autocast, and random numbers.

The CPU's autocast runs the operations that both list as low precision; the others of PyTorch's
list for CUDA are cast here. Each GPU has a random generator. It draws from the CPU's, so that the
numbers are those of a run on the CPU, until the program seeds it otherwise.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pytest_gradguard.runtime.kernel import simulated_devices
from pytest_gradguard.simulation.machine import Machine
from pytest_gradguard.simulation.placement import name_set, tensors_in
from pytest_gradguard.simulation.replacements import Replacements, class_facade

_FLOAT32 = name_set(
    "__pow__ __rdiv__ __rpow__ __rtruediv__ acos asin cosh cdist "
    "binary_cross_entropy_with_logits cosine_embedding_loss cosine_similarity cross_entropy "
    "cumprod cumsum dist erfinv exp expm1 group_norm hinge_embedding_loss kl_div l1_loss "
    "layer_norm log log10 log1p log2 log_softmax margin_ranking_loss mse_loss "
    "multi_margin_loss pow multilabel_margin_loss nll_loss norm normalize pdist "
    "poisson_nll_loss prod reciprocal renorm rsqrt sinh smooth_l1_loss soft_margin_loss "
    "softmax softmin softplus sum tan triplet_margin_loss huber_loss"
)
"""Functions that CUDA's autocast runs in float32."""

_WIDEST = name_set(
    "addcdiv addcmul atan2 bilinear cat concat cross dot stack grid_sample index_put "
    "scatter_add tensordot vdot"
)
"""Functions that CUDA's autocast runs in the widest type of their tensors."""

LOW = (torch.float16, torch.bfloat16)
_UNSAFE = (
    "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
    "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
    "In this case, combine the two layers using "
    "torch.nn.functional.binary_cross_entropy_with_logits\n"
    "or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are\n"
    "safe to autocast."
)
_MISSING_ON_CPU = ("not implemented for 'Half'", "not implemented for 'BFloat16'", "primitive")
"""CPU errors for data types that only GPUs support."""


def run_with_autocast(func: Any, args: Any, kwargs: Any) -> Any:
    """Call `func` on the CPU with the data types of CUDA's autocast.

    Raises:
        RuntimeError: autocast refuses `func`.
    """
    try:
        return _run_as_set(func, args, kwargs)
    except RuntimeError as error:
        if not any(reason in str(error) for reason in _MISSING_ON_CPU):
            raise
        low = _low_type(args, kwargs)
        if low is None or func.__name__.endswith("_") or "out" in kwargs:
            raise
    with _cpu_autocast(False):
        return _cast(_run_wide(func, args, kwargs), (torch.float32,), low)


def _run_as_set(func: Any, args: Any, kwargs: Any) -> Any:
    if not torch.is_autocast_enabled("cuda"):
        if not torch.is_autocast_enabled("cpu"):
            return func(*args, **kwargs)
        with _cpu_autocast(False):
            return func(*args, **kwargs)
    name = getattr(func, "__name__", "")
    if name == "binary_cross_entropy":
        raise RuntimeError(_UNSAFE)
    if name in _FLOAT32 or (
        name in _WIDEST and any(one.dtype is torch.float32 for one in _tensors(args, kwargs))
    ):
        with _cpu_autocast(False):
            return _run_wide(func, args, kwargs)
    with _cpu_autocast(True):
        return func(*args, **kwargs)


def _tensors(args: Any, kwargs: Any) -> list[Any]:
    return tensors_in(args) + tensors_in(kwargs.values())


def _low_type(args: Any, kwargs: Any) -> torch.dtype | None:
    """The low-precision type that a function was to run in."""
    for tensor in _tensors(args, kwargs):
        if tensor.dtype in LOW:
            return tensor.dtype
    return torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None


def _run_wide(func: Any, args: Any, kwargs: Any) -> Any:
    """Call `func` with its low-precision tensors in float32."""
    return func(*_cast(args, LOW, torch.float32), **_cast(kwargs, LOW, torch.float32))


def _cast(value: Any, sources: tuple[torch.dtype, ...], target: torch.dtype) -> Any:
    """`value` with its tensors of the types `sources` in the type `target`."""
    if isinstance(value, torch.Tensor):
        return value.to(target) if value.dtype in sources else value
    if type(value) in (list, tuple):
        return type(value)(_cast(one, sources, target) for one in value)
    if type(value) is dict:
        return {key: _cast(one, sources, target) for key, one in value.items()}
    return value


@contextmanager
def _cpu_autocast(enabled: bool) -> Iterator[None]:
    before = (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"))
    torch.set_autocast_enabled("cpu", enabled)
    torch.set_autocast_dtype("cpu", torch.get_autocast_dtype("cuda"))
    try:
        yield
    finally:
        torch.set_autocast_enabled("cpu", before[0])
        torch.set_autocast_dtype("cpu", before[1])


# -- random numbers ------------------------------------------------------------------------------

_RANDOM = name_set(
    "rand randn randint randperm normal bernoulli multinomial poisson rand_like randn_like "
    "randint_like dropout alpha_dropout rrelu dropout1d dropout2d dropout3d "
    "feature_alpha_dropout feature_dropout normal_ uniform_ bernoulli_ random_ exponential_ "
    "geometric_ cauchy_ log_normal_ dropout_ rrelu_ gumbel_softmax lstm gru rnn_tanh rnn_relu "
    "scaled_dot_product_attention multi_head_attention_forward fractional_max_pool2d "
    "fractional_max_pool3d binomial _sample_dirichlet _standard_gamma native_dropout "
    "kaiming_uniform_ kaiming_normal_ trunc_normal_ xavier_uniform_ xavier_normal_ "
    "orthogonal_ sparse_"
)
"""Functions that draw from the generator of their device."""

_Generator: Any = torch._C.Generator


class DeviceGenerator(_Generator):  # type: ignore[misc]
    """A random generator on a simulated GPU."""

    def __new__(cls, device: torch.device) -> Any:
        return super().__new__(cls)

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.place = device

    @property
    def device(self) -> torch.device:
        """The simulated GPU."""
        return self.place

    def __reduce__(self) -> tuple[Any, ...]:
        return (rebuild_generator, (str(self.place), self.initial_seed(), self.get_state()))

    def clone_state(self) -> Any:
        """A new generator in the same state."""
        made = DeviceGenerator(self.place)
        made.set_state(self.get_state())
        return made


DeviceGenerator.__module__, DeviceGenerator.__name__ = "torch", "Generator"
simulated_devices.generators.append(DeviceGenerator)


def rebuild_generator(device: str, seed: int, state: Any) -> Any:
    """Rebuild a generator; called by unpickling."""
    made = DeviceGenerator(torch.device(device))
    made.manual_seed(seed)
    made.set_state(state)
    return made


class DefaultGenerator(DeviceGenerator):
    """A GPU's default generator.

    Attributes:
        independent: it no longer draws from the CPU's generator.
        drawn: numbers were drawn from it since the last common seed.
    """

    independent = False
    drawn = False

    def manual_seed(self, seed: int) -> Any:
        """Seed it; with another seed than the CPU's, it becomes independent."""
        super().manual_seed(seed)
        self.independent = not _local.seeding and (self.drawn or seed != torch.initial_seed())
        return self

    def seed(self) -> int:
        """Seed it with a random number."""
        self.independent = True
        return int(super().seed())

    def set_state(self, state: Any) -> Any:
        """Set its state; with another than the CPU's, it becomes independent."""
        made = super().set_state(state)
        self.independent = True
        self.rejoin()
        return made

    def get_state(self) -> Any:
        """Its state, or the CPU's where it draws from that."""
        return super().get_state() if self.independent else torch.default_generator.get_state()

    def rejoin(self) -> None:
        """Draw from the CPU's generator again once both are in the same state.

        Programs that save and restore the states of all generators (activation checkpointing does
        at each backward pass) then continue with the numbers of the CPU.
        """
        if self.independent:
            with torch._C.DisableTorchFunction():
                own, of_cpu = super().get_state(), torch.default_generator.get_state()
                self.independent = not torch.equal(own, of_cpu)


class _Local(threading.local):
    seeding = False


_local = _Local()


def default_generators(machine: Machine) -> tuple[Any, ...]:
    """A default generator for each visible GPU."""
    return tuple(DefaultGenerator(torch.device("cuda", index)) for index in range(machine.count()))


def draws_independently(func: Any, device: torch.device) -> bool:
    """Whether `func` draws from a generator that is independent of the CPU's."""
    if getattr(func, "__name__", "") not in _RANDOM:
        return False
    generators = torch.cuda.default_generators
    if device.index >= len(generators):
        return False
    generator = generators[device.index]
    if not isinstance(generator, DefaultGenerator):
        return False
    generator.drawn = True
    return generator.independent


@contextmanager
def random_stream(device: torch.device) -> Iterator[None]:
    """Draw from the generator of `device` in this block."""
    generator: Any = torch.cuda.default_generators[device.index]
    cpu = torch.default_generator
    before = cpu.get_state()
    cpu.set_state(generator.get_state())
    try:
        yield
    finally:
        generator.set_state(cpu.get_state())
        cpu.set_state(before)


def check_generator(generator: Any, target: torch.device | None) -> None:
    """Raise torch's error for a generator of another device type than `target`."""
    kind = "cpu" if target is None else target.type
    if generator.device.type != kind:
        raise RuntimeError(
            f"Expected a '{kind}' device type for generator but found '{generator.device.type}'"
        )


def install(simulation: Any, replaced: Replacements) -> None:
    """Support ``torch.Generator("cuda")``, and let `torch.manual_seed` seed all devices."""
    machine: Machine = simulation.machine

    def make_generator(device: Any = "cpu") -> Any:
        place = machine.resolve(device)
        if place is None:
            return _Generator(device=device)
        machine.start_driver()
        machine.check(place.index)
        return DeviceGenerator(place)

    def manual_seed(original: Any, seed: int) -> Any:
        _local.seeding = True
        try:
            result = original(seed)
        finally:
            _local.seeding = False
        for generator in _default_generators():
            generator.independent = generator.drawn = False
        return result

    def set_rng_state(original: Any, new_state: Any) -> None:
        original(new_state)
        for generator in _default_generators():
            generator.rejoin()

    replaced.put(torch, Generator=class_facade((_Generator,), make_generator))
    replaced.wrap(torch.random, "manual_seed", manual_seed, torch)
    replaced.wrap(torch.random, "set_rng_state", set_rng_state, torch)


def _default_generators() -> list[DefaultGenerator]:
    return [one for one in torch.cuda.default_generators if isinstance(one, DefaultGenerator)]
