"""Trainers of Hugging Face's transformers."""

import accelerate

from gradguard_lint.models.primitives import backward, output, unknown


class Trainer:
    def __init__(self, model=None, *args, **kwargs):
        self.model = model
        self.accelerator = accelerate._Prepares()

    def train(self, *args, **kwargs):
        for batch in unknown():
            self.training_step(self.model, batch)

    def training_step(self, model, inputs, *args):
        backward(output(self.compute_loss(model, inputs), "loss"), "the training step")

    def compute_loss(self, model, inputs, *args, **kwargs):
        return output(model(**unknown()), "loss")


class Seq2SeqTrainer(Trainer):
    pass
