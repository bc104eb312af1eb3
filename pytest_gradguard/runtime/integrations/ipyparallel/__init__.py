"""`ipyparallel`: functions on the engines of a cluster that runs on this machine."""

from __future__ import annotations

from pytest_gradguard.runtime.kernel.registry import Integration, Workers, later

WORKERS = Workers("ipyparallel")

INTEGRATION = Integration(
    name="ipyparallel",
    patches={
        "ipyparallel.client.view": later(f"{__name__}.views:views"),
        "ipyparallel.client.client": later(f"{__name__}.views:clients"),
        "ipyparallel.client.remotefunction": later(f"{__name__}.views:maps"),
    },
    packages=("ipyparallel",),
)
