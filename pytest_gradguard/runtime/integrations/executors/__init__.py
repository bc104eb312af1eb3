"""`concurrent.futures` and loky: their executors."""

from __future__ import annotations

from pytest_gradguard.runtime.kernel.registry import THREADS, Integration, Workers, later

EXECUTOR = Workers(
    "ProcessPoolExecutor", forks=True, shares_memory=True, library="concurrent.futures"
)
LOKY = Workers("loky")

_processes = later(f"{__name__}.submitting:patches", "ProcessPoolExecutor", EXECUTOR)
_threads = later(f"{__name__}.submitting:patches", "ThreadPoolExecutor", THREADS)
_of_loky = later(f"{__name__}.submitting:patches", "ProcessPoolExecutor", LOKY)
_loky_inline = later(f"{__name__}.inline:patches", "ProcessPoolExecutor", LOKY)
_pickling = later(f"{__name__}.submitting:pickling")

INTEGRATION = Integration(
    name="executors",
    patches={
        "concurrent.futures.process": _processes,
        "concurrent.futures.thread": _threads,
        "joblib.externals.loky.process_executor": _of_loky,
        "loky.process_executor": _of_loky,
        "joblib.externals.loky.backend.reduction": _pickling,
        "loky.backend.reduction": _pickling,
    },
    inline={
        "concurrent.futures.process": later(
            f"{__name__}.inline:patches", "ProcessPoolExecutor", EXECUTOR
        ),
        "concurrent.futures.thread": later(
            f"{__name__}.inline:patches", "ThreadPoolExecutor", THREADS
        ),
        "joblib.externals.loky.process_executor": _loky_inline,
        "loky.process_executor": _loky_inline,
    },
    packages=("concurrent", "loky", "joblib.externals.loky"),
    transparent=True,
    runners={
        "concurrent.futures.process": {"_process_worker": later(f"{__name__}.submitting:answer")}
    },
    forks_in=("concurrent.futures.process",),
)
