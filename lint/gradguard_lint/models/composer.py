"""MosaicML's composer: its trainer runs the backward pass of a model's loss."""

from __future__ import annotations

from gradguard_lint.models.rows import Library, Row

LIBRARY = Library(
    tops=("composer",),
    spelled={
        "composer.trainer.trainer.": "composer.",
        "composer.trainer.": "composer.",
        "composer.models.base.": "composer.models.",
        "composer.ComposerModel": "composer.models.ComposerModel",
    },
    rows=(Row("composer.Trainer composer.models.ComposerModel", "trainer"),),
)
