"""Simulated GPUs: programs that ask torch for CUDA run on the CPU.

The tensors of a simulated program are CPU tensors with a tag (`placement`). `Simulation` (`mode`)
handles every function of torch and runs it on the CPU; `moves`, `operators` and `backward` have the
functions that need more. `machine` and `driver` answer `torch.cuda`. `switch` applies all of it;
torch is never imported for it.
"""

from pytest_gradguard.runtime.kernel import simulated_devices
from pytest_gradguard.simulation import lifecycle
from pytest_gradguard.simulation.lifecycle import is_loaded, pretended, start, stop

__all__ = ["is_loaded", "pretended", "start", "stop"]

simulated_devices.register(lifecycle)
