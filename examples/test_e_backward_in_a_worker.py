"""The workers run backward() on the model that they were sent; the parent takes the step.

Each worker has a copy of the model, and the gradients stay in that copy: the parent's parameters
have none, so step() silently changes nothing.

The guard reports GG106, an error, at step(): none of its parameters has a gradient, and their
copies got theirs in workers that returned neither gradients nor parameters. That the parameters are
copied to the workers is GG107, for information only (shown with -v): to read a model does the same.
"""

import torch
from joblib import Parallel, delayed


def accumulate(model, batch):
    loss = model(batch).square().mean()
    loss.backward()
    return loss.item()


def test_step_without_gradients():
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.weight.detach().clone()
    Parallel(n_jobs=2)(delayed(accumulate)(model, torch.randn(8, 3)) for _ in range(2))
    optimizer.step()
    assert model.weight.grad is None
    assert torch.equal(model.weight, before)  # nothing was learned
