"""Hugging Face transformers, and what stands on it, as far as a call uses a GPU."""

from __future__ import annotations

from gradguard_lint.models.rows import Library, Row

LIBRARY = Library(
    tops=("transformers", "sentence_transformers"),
    rows=(
        Row(
            "transformers.set_seed transformers.trainer_utils.set_seed",
            "seed",
            flag="random numpy torch",
        ),
        Row("transformers.pipeline", "told-device", argument=(8, "device")),
        Row("transformers.TrainingArguments", "nothing", driver=True),
        Row("sentence_transformers.SentenceTransformer", "nothing", driver=True),
    ),
)
