"""GG115: a gradient is not the derivative of its loss."""

from pytest_gradguard.pitfalls import Pitfall, Severity, links

PITFALL = Pitfall(
    code="GG115",
    name="wrong-gradient",
    title="A gradient is not the derivative of the loss",
    severity=Severity.ERROR,
    happens=(
        "Every parameter has a gradient, no error is raised, and the loss may even fall; but the "
        "gradient lacks a part, or counts one twice. The optimizer follows another function than "
        "the loss."
    ),
    why=(
        "A path from the parameter to the loss is cut or scaled: by a `backward` of your own, a "
        "collective without a backward pass, a result that came back from a worker without its "
        "graph, a `detach()`, or gradients that are summed where the loss is averaged. Where other "
        "paths remain, the gradient is not missing but wrong."
    ),
    fix=(
        "Look at what the named parameters pass on their way to the loss, and give each step its "
        "derivative. What is meant to be constant, such as the target of a second network, is "
        "computed outside of the closure."
    ),
    bad="""\
import torch


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x**2


def test_the_gradient_is_right(check_gradients):
    weight = torch.ones(2, requires_grad=True)
    check_gradients(lambda: Cube.apply(weight).sum(), weight)
""",
    good="""\
import torch


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 3 * x**2


def test_the_gradient_is_right(check_gradients):
    weight = torch.ones(2, requires_grad=True)
    check_gradients(lambda: Cube.apply(weight).sum(), weight)
""",
    lint=None,
    runtime=(
        "Where `check_gradients` is called, as a fixture or a function: for the parameters whose "
        "gradient does not agree with difference quotients of the loss, with both numbers, and "
        "with the findings that explain it."
    ),
    silence=(
        "If the gradient is not meant to be the derivative of the loss, as with a straight-through "
        "estimator or a gradient penalty that you add by hand. Do not check these parameters."
    ),
    links=(links.TORCH_AUTOGRAD, links.TF_AUTODIFF),
)
