"""Hugging Face transformers, as far as a call says that it uses a GPU."""

from __future__ import annotations

from gradguard_lint.models.rows import Library, Row

LIBRARY = Library(
    tops=("transformers",),
    rows=(Row("transformers.pipeline", "told-device", argument=(8, "device")),),
)
