"""Advice that several entries give: each once."""

from __future__ import annotations

LIBRARYS_POOL = "datasets"
"""The case of a library that makes the pool itself, and takes no context for it."""

SPAWN_AT_THE_START = (
    '`set_start_method("spawn")` at program start (of `multiprocess` for `datasets` and '
    "pathos, else of `multiprocessing`)."
)
FRESH_WORKERS = {
    LIBRARYS_POOL: f"Call {SPAWN_AT_THE_START}",
    "joblib": "Use the loky backend (joblib's default), whose workers are fresh interpreters.",
    "multiprocessing": (
        'Start the workers as fresh interpreters, with `multiprocessing.get_context("spawn")`.'
    ),
    "torch.multiprocessing": (
        "Start the workers as fresh interpreters, with "
        '`torch.multiprocessing.get_context("spawn")`.'
    ),
    "concurrent.futures": (
        'Pass `mp_context=multiprocessing.get_context("spawn")` to the executor, so that its '
        "workers are fresh interpreters."
    ),
    "local function": (
        "Define the function at the top level of a module (a closure or lambda cannot be "
        "pickled), and start the workers as fresh interpreters, with the start method spawn."
    ),
}
"""How workers that are forked by default are started otherwise, by library; and where they run a
function that fresh ones could not import."""

LOADERS = "torch.utils.data"
"""The library of PyTorch's `DataLoader`, whose workers go by what follows."""

SAMPLES_ON_CPU = (
    "Keep the samples on the CPU in the workers, and move each batch to the GPU in the training "
    "loop (`pin_memory=True`, `batch.to(device, non_blocking=True)`)."
)
