"""Copies of modules that process workers train, and what the parent does with the modules then."""

import copy
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import torch
from joblib import Parallel, delayed
from torch import nn

BATCH = torch.ones(4, 3)


def fit(model, lr=0.1):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(3):
        optimizer.zero_grad()
        loss = (model(BATCH) - 1).square().mean()
        loss.backward()
        optimizer.step()
    return loss.item()


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))


def test_saved(tmp_path):
    model = net()
    Parallel(2)(delayed(fit)(model) for _ in range(2))  # -> GG114:warning
    torch.save(model.state_dict(), tmp_path / "model.pt")


def test_called():
    models = [net(), net()]
    Parallel(2)(delayed(fit)(model) for model in models)  # -> GG114
    assert all((model(BATCH) - 1).square().mean() > 0 for model in models)


def test_evaluated():
    model = net()
    Parallel(2, backend="multiprocessing")(delayed(fit)(model) for _ in range(2))  # -> GG114
    model.eval()
    model(BATCH)


def test_pool_shares_the_memory():
    model = net()
    before = model[0].weight.detach().clone()
    with multiprocessing.get_context("fork").Pool(1) as pool:
        pool.map(fit, [model])
    assert not torch.equal(before, model[0].weight)


def test_executor_shares_the_memory():
    model = net()
    before = model[0].weight.detach().clone()
    with ProcessPoolExecutor(1) as executor:
        executor.submit(fit, model).result()
    assert not torch.equal(before, model[0].weight)


def fit_and_predict(model):
    fit(model)
    return model(BATCH).detach().numpy()


def test_predictions_returned():
    model = net()
    Parallel(2)(delayed(fit_and_predict)(model) for _ in range(2))  # -> GG114
    model(BATCH)


def fit_state(model):
    return fit(model), model.state_dict()


def test_state_returned():
    model = net()
    ((_, state),) = Parallel(2)(delayed(fit_state)(model) for _ in range(1))
    model.load_state_dict(state)
    model(BATCH)


def fit_model(model):
    fit(model)
    return model


def test_module_returned():
    model = net()
    Parallel(2)(delayed(fit_model)(model) for _ in range(2))
    model(BATCH)


def fit_parameters(model):
    fit(model)
    return [one.tolist() for one in model.parameters()]


def test_parameters_returned():
    model = net()
    Parallel(2)(delayed(fit_parameters)(model) for _ in range(2))
    model(BATCH)


def fit_changes(model):
    before = [one.detach().clone() for one in model.parameters()]
    fit(model)
    pairs = zip(model.parameters(), before, strict=True)
    return [(one - was).detach().numpy() for one, was in pairs]


def test_changes_returned():
    model = net()
    model(BATCH)
    results = Parallel(2)(delayed(fit_changes)(model) for _ in range(2))
    model(BATCH)
    with torch.no_grad():
        for one, *changes in zip(model.parameters(), *results, strict=True):
            one += torch.as_tensor(sum(changes) / 2)


def fit_and_save(model, path):
    loss = fit(model)
    torch.save(model, path)
    return loss


def test_saved_in_the_worker(tmp_path):
    model = net()
    Parallel(2)(delayed(fit_and_save)(model, tmp_path / f"{k}.pt") for k in range(2))
    model(BATCH)


def test_trials_before_the_training():
    model = net()
    rates = (0.01, 0.1)
    losses = Parallel(2)(delayed(fit)(model, lr) for lr in rates)
    fit(model, min(zip(losses, rates, strict=True))[1])
    model.eval()
    model(BATCH)


def test_trials_of_copies():
    model = net()
    for _ in range(2):
        Parallel(2)(delayed(fit)(copy.deepcopy(model), lr) for lr in (0.01, 0.1))
    model(BATCH)


def test_put_back_before_it_is_used():
    model = net()
    Parallel(2)(delayed(fit)(model) for _ in range(2))
    model.load_state_dict(net().state_dict())
    model(BATCH)


def test_shared_memory():
    model = net().share_memory()
    with multiprocessing.get_context("fork").Pool(1) as pool:
        pool.apply(fit, (model,))
    model(BATCH)


def test_threads():
    model = net()
    Parallel(2, backend="threading")(delayed(fit)(model) for _ in range(1))
    model(BATCH)


def test_stepped_without_an_effect():
    model = net()
    Parallel(2)(delayed(fit)(model, 0.0) for _ in range(2))
    model(BATCH)


def test_not_used_again():
    Parallel(2)(delayed(fit)(model) for model in (net(), net()))
