"""Hugging Face transformers, and what stands on it: what uses a GPU, and trainers."""

from __future__ import annotations

from gradguard_lint.models.rows import Library, Row

TRAINERS = (
    "transformers.Trainer transformers.Seq2SeqTrainer "
    "sentence_transformers.SentenceTransformerTrainer"
)
"""What runs the backward pass of the loss that it computes, of a model's outputs."""

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
