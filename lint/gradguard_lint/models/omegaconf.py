"""OmegaConf: configurations created by the program."""

from __future__ import annotations

from gradguard_lint.models.rows import Library, Row

LIBRARY = Library(
    tops=("omegaconf",),
    rows=(
        Row(
            "omegaconf.OmegaConf.create omegaconf.OmegaConf.structured",
            "configuration",
            argument=(0, "obj"),
        ),
    ),
)
