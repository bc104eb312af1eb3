"""MosaicML's composer: its trainer goes backward from the loss that a model computes."""

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
