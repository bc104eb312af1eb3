"""Advice that several entries give: each once."""

from __future__ import annotations

FRESH_WORKERS = {
    "joblib": "Use the loky backend (joblib's default), whose workers are fresh interpreters.",
    "multiprocessing": (
        'Start the workers as fresh interpreters, with `multiprocessing.get_context("spawn")`.'
    ),
    "concurrent.futures": (
        'Pass `mp_context=multiprocessing.get_context("spawn")` to the executor, so that its '
        "workers are fresh interpreters."
    ),
}
"""How workers that are forked by default are started otherwise, by library."""
