"""Hugging Face datasets: ``map(f, num_proc=4)``, and ``filter``, run `f` in processes."""

from __future__ import annotations

from gradguard_lint.models.rows import Library

LIBRARY = Library(tops=("datasets",), starts_by=("num_proc",))
