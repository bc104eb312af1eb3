"""GG113: hooks of tensors do not travel to process workers."""

from pytest_gradguard.pitfalls import Pitfall, Severity, links

PITFALL = Pitfall(
    code="GG113",
    name="hooks-lost",
    title="A tensor goes to a process worker without its hooks",
    severity=Severity.WARNING,
    happens=(
        "The hooks that `register_hook` and `register_post_accumulate_grad_hook` put on a "
        "tensor do not run in the worker: the gradients that they should clip, mask or log stay "
        "unchanged. For parameters there is no warning."
    ),
    why=(
        "Pickling a tensor stores its values, not its hooks. torch warns about this for "
        "tensors, but not for parameters. Hooks on modules, such as those of "
        "`register_forward_hook`, are pickled."
    ),
    fix=(
        "Register the hook inside the worker function, on the copy that arrives. Thread workers "
        '(`backend="threading"`) share the tensor and its hooks.'
    ),
    bad="""\
import torch
from joblib import Parallel, delayed


def gradient(model, x):
    model(x).sum().backward()
    return model.weight.grad


model = torch.nn.Linear(2, 1)
model.weight.register_hook(lambda grad: grad * 0)  # frozen
grads = Parallel(n_jobs=2)(delayed(gradient)(model, torch.ones(1, 2)) for _ in range(2))
print(grads[0])  # prints: tensor([[1., 1.]])
""",
    good="""\
import torch
from joblib import Parallel, delayed


def gradient(model, x):
    model.weight.register_hook(lambda grad: grad * 0)  # frozen
    model(x).sum().backward()
    return model.weight.grad


model = torch.nn.Linear(2, 1)
grads = Parallel(n_jobs=2)(delayed(gradient)(model, torch.ones(1, 2)) for _ in range(2))
print(grads[0])  # prints: tensor([[0., 0.]])
""",
    lint="On the call that ships a module or tensor on which a tensor hook was registered.",
    runtime=(
        "When a parameter or tensor with such hooks is pickled for a process worker. Hooks "
        "marked with `torch.utils.hooks.unserializable_hook` are meant to stay behind and are "
        "not reported."
    ),
    silence=(
        "If the hook is only needed in the parent: it logs there, or clips what the parent "
        "computes."
    ),
    links=(links.TORCH_AUTOGRAD, links.TORCH_SERIALIZATION),
)
