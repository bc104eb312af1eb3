"""Models that come back from process workers, and the optimizer of the model that was sent.

GG112 is for a step over the old parameters, which get no gradient, while the program trains what
came back. A new optimizer, the old model with the new values, and models that nobody trains are
right.
"""

import copy
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import torch
from joblib import Parallel, delayed
from joblib.externals.loky import ProcessPoolExecutor as LokyExecutor
from torch import nn

MAY = {}
DETAILS = {
    "test_model_returned": {
        "GG112": {"function": "trained", "parameters": 4, "backend": "loky"},
    },
    "test_encoder_returned": {"GG112": {"replaced": ["weight", "bias"], "parameters": 4}},
    "test_encoder_of_the_returned_model": {"GG112": {"replaced": ["0.weight", "0.bias"]}},
}

X = torch.arange(24.0).reshape(2, 4, 3) / 24
FORK = multiprocessing.get_context("fork")


def net():
    return nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def backward(model, x):
    model(x).square().mean().backward()


def trained(model, x):
    optimizer = sgd(model)
    backward(model, x)
    optimizer.step()
    return model


def run(task, model, **options):
    return Parallel(n_jobs=2, **options)(delayed(task)(model, x) for x in X)


def weights(model):
    return [one.detach().clone() for one in model.parameters()]


def unchanged(model, before):
    return all(map(torch.equal, model.parameters(), before))


# --- the optimizer steps what is not used --------------------------------------------------


def test_model_returned():
    model = net()
    optimizer = sgd(model)
    model = run(trained, model)[0]
    before = weights(model)
    backward(model, X[0])
    optimizer.step()  # -> GG112:error
    assert unchanged(model, before)


def test_training_goes_on():
    model = net()
    optimizer = sgd(model)
    backward(model, X[0])
    optimizer.step()
    model = run(trained, model)[1]
    before = weights(model)
    for x in X:
        optimizer.zero_grad()
        backward(model, x)
        optimizer.step()  # -> GG112:error
    assert unchanged(model, before)


def test_forked_workers():
    model = net()
    optimizer = sgd(model)
    model = run(trained, model, backend="multiprocessing")[0]
    backward(model, X[0])
    optimizer.step()  # -> GG112:error


def test_executor_of_loky():
    model = net()
    optimizer = sgd(model)
    with LokyExecutor(1) as executor:
        model = executor.submit(trained, model, X[0]).result()
    backward(model, X[0])
    optimizer.step()  # -> GG112:error


def test_executor():
    model = net()
    optimizer = sgd(model)
    with ProcessPoolExecutor(1, mp_context=FORK) as executor:
        model = executor.submit(trained, model, X[0]).result()
    before = weights(model)
    backward(model, X[0])
    optimizer.step()  # -> GG112:error
    assert unchanged(model, before)


def test_pool():
    model = net()
    optimizer = sgd(model)
    with FORK.Pool(1) as pool:
        (model,) = pool.starmap(trained, [(model, X[0])])
    backward(model, X[0])
    optimizer.step()  # -> GG112:error


def test_best_of_several():
    model = net()
    optimizer = sgd(model)
    model = min(run(trained, model), key=lambda one: one(X[0]).mean().item())
    backward(model, X[0])
    optimizer.step()  # -> GG112:error


def with_loss(model, x):
    trained(model, x)
    return {"loss": model(x).mean().item(), "model": model}


def test_in_a_tuple():
    model = net()
    optimizer = sgd(model)
    model = run(with_loss, model)[0]["model"]
    backward(model, X[0])
    optimizer.step()  # -> GG112:error


class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = sgd(model)

    def fit(self, x):
        trained(self.model, x)
        return self.model


def test_in_an_object():
    trainer = Trainer(net())
    found = Parallel(n_jobs=2)(delayed(trainer.fit)(x) for x in X)
    trainer.model = found[0]
    backward(trainer.model, X[0])
    trainer.optimizer.step()  # -> GG112:error


def encoder_of(model, x):
    return trained(model, x)[0]


def test_encoder_returned():
    model = net()
    optimizer = sgd(model)
    model[0] = run(encoder_of, model)[0]
    before = weights(model[0])
    backward(model, X[0])
    optimizer.step()  # -> GG112:error
    assert unchanged(model[0], before)


def test_encoder_of_the_returned_model():
    model = net()
    optimizer = sgd(model)
    model[0] = run(trained, model)[0][0]
    backward(model, X[0])
    optimizer.step()  # -> GG112:error


def test_with_a_head_of_this_process():
    encoder, head = nn.Linear(3, 2), nn.Linear(2, 1)
    optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.1)
    encoder = run(trained, encoder)[0]
    backward(nn.Sequential(encoder, head), X[0])
    optimizer.step()  # -> GG112:error


def test_sent_twice():
    model = net()
    optimizer = sgd(model)
    for _ in range(2):
        model = run(trained, model)[0]
    backward(model, X[0])
    optimizer.step()  # -> GG112:error


def test_gradients_from_before_the_call():
    model = net()
    optimizer = sgd(model)
    backward(model, X[0])
    model = run(trained, model)[0]
    backward(model, X[0])
    optimizer.step()  # -> GG112:error


def test_zeros_from_before_the_call():
    model = net()
    optimizer = sgd(model)
    backward(model, X[0])
    model = run(trained, model)[0]
    optimizer.zero_grad(set_to_none=False)
    backward(model, X[0])
    optimizer.step()  # -> GG112:error


def test_adam():
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), weight_decay=0.1)
    model = run(trained, model)[0]
    backward(model, X[0])
    optimizer.step()  # -> GG112:error


# --- what is used is stepped, or nobody trains it ------------------------------------------


def test_new_optimizer():
    model = net()
    optimizer = sgd(model)
    model = run(trained, model)[0]
    optimizer = sgd(model)
    backward(model, X[0])
    optimizer.step()


def test_old_and_new_optimizer():
    model = net()
    old = sgd(model)
    model = run(trained, model)[0]
    new = sgd(model)
    backward(model, X[0])
    old.step()
    new.step()


def test_state_loaded():
    model = net()
    optimizer = sgd(model)
    model.load_state_dict(run(trained, model)[0].state_dict())
    backward(model, X[0])
    optimizer.step()


def state_of(model, x):
    return trained(model, x).state_dict()


def test_state_returned():
    model = net()
    optimizer = sgd(model)
    model.load_state_dict(run(state_of, model)[0])
    backward(model, X[0])
    optimizer.step()


def test_parameters_replaced_in_the_optimizer():
    model = net()
    optimizer = sgd(model)
    model = run(trained, model)[0]
    optimizer.param_groups[0]["params"] = list(model.parameters())
    backward(model, X[0])
    optimizer.step()


def test_parameter_group_added():
    model = net()
    optimizer = sgd(model)
    model = run(trained, model)[0]
    optimizer.add_param_group({"params": model.parameters()})
    backward(model, X[0])
    optimizer.step()


def test_only_evaluated():
    model = net()
    optimizer = sgd(model)
    for found in run(trained, model):
        found(X[0]).mean().item()
    backward(model, X[0])
    optimizer.step()
    optimizer.zero_grad()
    optimizer.step()


def with_optimizer(model, optimizer, x):
    optimizer.zero_grad()
    backward(model, x)
    optimizer.step()
    return model, optimizer


def test_optimizer_returned_as_well():
    model = net()
    optimizer = sgd(model)
    (found, *_) = Parallel(2)(delayed(with_optimizer)(model, optimizer, x) for x in X)
    model, optimizer = found
    before = weights(model)
    backward(model, X[0])
    optimizer.step()
    assert not unchanged(model, before)


def test_old_model_trained():
    model = net()
    optimizer = sgd(model)
    found = run(trained, model)[0]
    (model(X[0]) - found(X[0])).square().mean().backward()
    optimizer.step()


def test_teacher_with_gradients():
    model = nn.ModuleDict({"body": nn.Linear(3, 2), "other": nn.Linear(3, 2)})
    optimizer = sgd(model)
    teacher = Parallel(2)(delayed(both_trained)(model, x) for x in X)[0]
    target = teacher["body"](X[0]) + teacher["other"](X[0])
    (model["body"](X[0]) - target).square().mean().backward()
    optimizer.step()


def both_trained(model, x):
    optimizer = sgd(model)
    (model["body"](x) + model["other"](x)).sum().backward()
    optimizer.step()
    return model


def test_gradients_handed_over():
    model = net()
    optimizer = sgd(model)
    found = run(trained, model)[0]
    backward(found, X[0])
    for old, new in zip(model.parameters(), found.parameters(), strict=True):
        old.grad = new.grad
    optimizer.step()


def test_reptile():
    model = net()
    optimizer = sgd(model)
    found = run(trained, model)[0]
    backward(found, X[0])
    for old, new in zip(model.parameters(), found.parameters(), strict=True):
        old.grad = (old - new).detach()
    optimizer.step()


def test_updated_by_hand():
    model = net()
    optimizer = sgd(model)
    model = run(trained, model)[0]
    for _ in range(2):
        backward(model, X[0])
        with torch.no_grad():
            for one in model.parameters():
                one -= 0.1 * one.grad
        optimizer.step()


def test_threads():
    model = net()
    optimizer = sgd(model)
    (model,) = Parallel(2, backend="threading")(delayed(trained)(model, x) for x in X[:1])
    backward(model, X[0])
    optimizer.step()


def test_one_worker():
    model = net()
    optimizer = sgd(model)
    model = Parallel(n_jobs=1)(delayed(trained)(model, x) for x in X)[0]
    backward(model, X[0])
    optimizer.step()


def test_encoder_with_an_optimizer_of_its_own():
    encoder, head = nn.Linear(3, 2), nn.Linear(2, 1)
    optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.1)
    encoder = run(trained, encoder)[0]
    own = sgd(encoder)
    backward(nn.Sequential(encoder, head), X[0])
    optimizer.step()
    own.step()


def test_gradient_of_the_input():
    model = net()
    kept = copy.deepcopy(model)
    found = run(trained, model)[0]
    x = X[0].clone().requires_grad_()
    optimizer = torch.optim.SGD([x], lr=0.1)
    backward(found, x)
    optimizer.step()
    assert unchanged(model, weights(kept))
