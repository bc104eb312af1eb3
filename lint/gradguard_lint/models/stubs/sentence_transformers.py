"""Trainers of sentence-transformers, whose losses are modules that are given features."""

import transformers

from gradguard_lint.models.primitives import unknown


class SentenceTransformerTrainer(transformers.Trainer):
    def __init__(self, model=None, *args, loss=None, **kwargs):
        super().__init__(model)
        self.loss = loss

    def compute_loss(self, model, inputs, *args, **kwargs):
        if self.loss is not None:
            return self.loss(unknown(), unknown())
        return super().compute_loss(model, inputs)
