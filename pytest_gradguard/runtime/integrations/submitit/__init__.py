"""`submitit`: functions in programs of their own, on this machine.

Jobs of a cluster run elsewhere, where the guard may not be installed: they are left alone.
"""

from __future__ import annotations

from pytest_gradguard.runtime.kernel.registry import Integration, Workers, later

WORKERS = Workers("submitit")

INTEGRATION = Integration(
    name="submitit",
    patches={"submitit.core.core": later(f"{__name__}.jobs:patches")},
    packages=("submitit",),
)
