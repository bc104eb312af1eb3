"""Hugging Face transformers, and libraries on top: GPU use, and trainers."""

from __future__ import annotations

from gradguard_lint.models.rows import Library, Row

TRAINERS = (
    "transformers.Trainer transformers.Seq2SeqTrainer "
    "sentence_transformers.SentenceTransformerTrainer"
)
"""Trainers that compute a loss of a model's outputs and run its backward pass."""

LIBRARY = Library(
    tops=("transformers", "sentence_transformers"),
    spelled={
        "transformers.trainer.": "transformers.",
        "transformers.trainer_seq2seq.": "transformers.",
        "sentence_transformers.trainer.": "sentence_transformers.",
    },
    rows=(
        Row(
            "transformers.set_seed transformers.trainer_utils.set_seed",
            "seed",
            flag="random numpy torch",
        ),
        Row("transformers.pipeline", "told-device", argument=(8, "device")),
        Row("transformers.TrainingArguments", "nothing", driver=True),
        Row("sentence_transformers.SentenceTransformer", "nothing", driver=True),
        Row(TRAINERS, "trainer"),
        Row("transformers.modeling_outputs.*", "namespace", only="class"),
        Row("transformers.utils.ModelOutput transformers.file_utils.ModelOutput", "namespace"),
    ),
)
