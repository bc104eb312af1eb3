"""A GPU that is not there: programs that ask torch for CUDA run on the CPU.

`start` begins it in this process: `torch.cuda` tells of so many simulated GPUs, tensors move there
and back, and everything is computed on the CPU. `stop` undoes it. Nothing of torch is imported
before the program does, and nothing at all while nobody asks for a simulation.

The parts: `machine` is what lies in the driver, `driver` answers `torch.cuda`, `tags` keeps where a
tensor lies, and `mode` sees the functions of torch's. `switch` puts them in place, as `starting`
asks for it. The guard knows of all this by its kernel's `simulated_devices` only, where `arriving`
registers itself, `tags` and `randomness` say what they know.
"""

from pytest_gradguard.runtime.kernel import simulated_devices
from pytest_gradguard.simulation import arriving
from pytest_gradguard.simulation.starting import is_loaded, pretended, start, stop

__all__ = ["is_loaded", "pretended", "start", "stop"]

simulated_devices.register(arriving)
