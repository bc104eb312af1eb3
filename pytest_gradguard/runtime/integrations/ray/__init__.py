"""Ray: tasks, actors, `ray.put`, and its backend of joblib's."""

from __future__ import annotations

from pytest_gradguard.runtime.kernel.registry import Integration, Workers, later

WORKERS = Workers("ray")
PASSED = frozenset({"ray"})
"""The packages through which the program reaches Ray."""
SERIALIZATION = "ray._private.serialization"
WORKER = "ray._private.worker"

INTEGRATION = Integration(
    name="ray",
    patches={
        "ray.remote_function": later(f"{__name__}.tasks:tasks"),
        "ray.actor": later(f"{__name__}.tasks:actors"),
        "ray._private.function_manager": later(f"{__name__}.tasks:classes"),
        WORKER: later(f"{__name__}.tasks:objects"),
        SERIALIZATION: later(f"{__name__}.tasks:results"),
        "ray.train.v2.api.data_parallel_trainer": later(f"{__name__}.libraries:trainers"),
        "ray.tune.trainable": later(f"{__name__}.libraries:trainables"),
        "ray.data.dataset": later(f"{__name__}.libraries:datasets"),
    },
    inline={
        "ray.remote_function": later(f"{__name__}.inline:tasks"),
        "ray.actor": later(f"{__name__}.inline:actors"),
        WORKER: later(f"{__name__}.inline:objects"),
    },
    packages=("ray",),
    joblib_backends={"ray.util.joblib.ray_backend.RayBackend": Workers("ray", library="joblib")},
)
