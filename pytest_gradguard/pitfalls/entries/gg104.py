"""GG104: a watched tensor received no gradient."""

from pytest_gradguard.pitfalls import Pitfall, Severity, links

PITFALL = Pitfall(
    code="GG104",
    name="missing-gradient",
    title="A watched tensor received no gradient",
    severity=Severity.ERROR,
    happens=(
        "Training runs, and the loss may even fall, but part of the model never learns: its "
        "`.grad` is `None` after the backward pass, and `optimizer.step()` silently skips it."
    ),
    why=(
        "A tensor gets a gradient only if the loss was computed from it without a break. "
        "`.detach()`, `.data`, `.item()`, NumPy, an operation without a derivative (`argmax`, "
        "`>`, `.sample()`), a copy, `autograd.grad` without `create_graph=True`, `no_grad`, a "
        "frozen parameter, a layer that is never called, and a round trip through a process "
        "worker all break it."
    ),
    fix=(
        "Follow the reason that the finding gives, and reconnect the graph. If a tensor is not "
        "meant to learn (an EMA or target network), list it in `allow_none`."
    ),
    bad="""\
import torch


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(2, 2)
        self.head = torch.nn.Linear(2, 1)

    def forward(self, x):
        return self.head(self.body(x).detach())


def test_every_parameter_learns(watch_gradients):
    model = Network()
    watch_gradients(model)
    model(torch.ones(1, 2)).sum().backward()
""",
    good="""\
import torch


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(2, 2)
        self.head = torch.nn.Linear(2, 1)

    def forward(self, x):
        return self.head(self.body(x))


def test_every_parameter_learns(watch_gradients):
    model = Network()
    watch_gradients(model)
    model(torch.ones(1, 2)).sum().backward()
""",
    lint=None,
    runtime=(
        "At the end of a test that uses the fixture `watch_gradients`, for every watched tensor "
        "that received no gradient from a backward pass since it was watched, with the reason. "
        "It watches tensors of torch and TensorFlow."
    ),
    silence=(
        "If a parameter is not meant to learn. List it in `allow_none`, so that the others stay "
        "watched."
    ),
    links=(links.TORCH_AUTOGRAD, links.TF_AUTODIFF),
)
