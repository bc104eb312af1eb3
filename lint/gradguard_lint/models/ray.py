"""Ray: tasks and actors. With ``num_gpus``, Ray selects the GPU: its use is intended."""

from __future__ import annotations

from gradguard_lint.domain.starts import Start
from gradguard_lint.models.rows import Library, Row
from gradguard_lint.words import words

LIBRARY = Library(
    tops=("ray",),
    rows=(
        Row("ray.remote", "remote", start="ray", flag="num_gpus"),
        Row("ray.put", "identity"),
        Row(
            "ray.util.multiprocessing.Pool",
            "pool",
            start="ray",
            methods=words("map imap imap_unordered starmap apply apply_async"),
        ),
    ),
    starts=(Start("ray", "process", "Ray workers"),),
)
