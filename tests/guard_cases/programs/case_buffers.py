"""Buffers that process workers update, and what the parent does with the module then.

GG111 is for a parent that goes on with the old values. Where they came back in any form, where the
program writes them itself, or where nobody uses the module again, there is nothing to report.
"""

import copy
import io
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch
from joblib import Parallel, delayed
from joblib.externals.loky import ProcessPoolExecutor as LokyExecutor
from torch import nn

EXPECT = {
    "test_gradients_returned_by_forked_workers": {"GG111"},
    "test_evaluated": {"GG111"},
    "test_parameters_returned": {"GG111"},
    "test_parameters_in_a_dict": {"GG111"},
    "test_saved": {"GG111"},
    "test_state_copied": {"GG111"},
    "test_own_running_buffer": {"GG111"},
    "test_functional_batch_norm": {"GG111"},
    "test_replaced_buffer": {"GG111"},
    "test_held_by_an_object": {"GG111"},
    "test_calibration": {"GG111"},
    "test_training_in_the_worker_alone": {"GG111"},
    "test_copy_trained_for_a_score": {"GG114"},
    "test_old_buffers_beside_new_parameters": {"GG111"},
}
MAY = {}
DETAILS = {
    "test_gradients_returned": {
        "GG111": {
            "object": "args[0]",
            "function": "gradients",
            "buffers": ["1.running_mean", "1.running_var", "1.num_batches_tracked"],
        }
    },
    "test_held_by_an_object": {"GG111": {"object": "args[0].model"}},
    "test_captured": {"GG111": {"object": "closure['model']"}},
}

X = torch.arange(24.0).reshape(2, 4, 3)


@pytest.fixture(autouse=True)
def one_thread():
    """Workers are forked here, and `batch_norm` starts compute threads even for small tensors."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def net():
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 1))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.01)


def gradients(model, x):
    loss = model(x).square().mean()
    return torch.autograd.grad(loss, list(model.parameters()))


def put(model, results):
    for parameter, *parts in zip(model.parameters(), *results, strict=True):
        parameter.grad = sum(parts)


def run(task, model, **options):
    return Parallel(n_jobs=2, **options)(delayed(task)(model, x) for x in X)  # -> GG111? GG114?


# --- the parent goes on with the old values ------------------------------------------------


def test_gradients_returned():
    model = net()
    optimizer = sgd(model)
    for _ in range(2):
        put(model, Parallel(2)(delayed(gradients)(model, x) for x in X))  # -> GG111:warning
        optimizer.step()
    assert model[1].num_batches_tracked == 0


def test_gradients_returned_by_forked_workers():
    model = net()
    optimizer = sgd(model)
    put(model, run(gradients, model, backend="multiprocessing"))
    optimizer.step()
    assert model[1].num_batches_tracked == 0


def test_evaluated():
    model = net()
    results = run(gradients, model)
    with torch.no_grad():
        for parameter, *parts in zip(model.parameters(), *results, strict=True):
            parameter -= 0.1 * sum(parts)
    model.eval()
    model(X[0])


def trained(model, x):
    optimizer = sgd(model)
    model(x).square().mean().backward()
    optimizer.step()
    return list(model.parameters())


def test_parameters_returned():
    model = net()
    first, _ = run(trained, model)
    with torch.no_grad():
        for parameter, new in zip(model.parameters(), first, strict=True):
            parameter.copy_(new)
    model.eval()


def trained_by_name(model, x):
    trained(model, x)
    return {name: one.detach().numpy() for name, one in model.named_parameters()}


def test_parameters_in_a_dict():
    model = net()
    first, _ = run(trained_by_name, model)
    state = {name: torch.from_numpy(one) for name, one in first.items()}
    model.load_state_dict(state, strict=False)
    model.train(False)


def test_saved():
    model = net()
    put(model, run(gradients, model))
    torch.save(model.state_dict(), io.BytesIO())


def test_state_copied():
    model = net()
    put(model, run(gradients, model))
    assert copy.deepcopy(model.state_dict())["1.num_batches_tracked"] == 0


class Centered(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("mean", torch.zeros(2))

    def forward(self, x):
        out = self.linear(x)
        if self.training:
            self.mean.mul_(0.9).add_(0.1 * out.detach().mean(0))
        return out - self.mean


def test_own_running_buffer():
    model = Centered()
    put(model, run(gradients, model))
    sgd(model).step()


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("center", torch.zeros(2))
        self.register_buffer("scale", torch.ones(2))

    def forward(self, x):
        out = self.linear(x)
        return nn.functional.batch_norm(out, self.center, self.scale, training=self.training)


def test_functional_batch_norm():
    model = nn.Sequential(Normed())
    put(model, run(gradients, model))
    sgd(model).step()


class Replacing(Centered):
    def forward(self, x):
        out = self.linear(x)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * out.detach().mean(0)
        return out - self.mean


def test_replaced_buffer():
    model = Replacing()
    put(model, run(gradients, model))
    sgd(model).step()


def listed(model, x):
    return [one.tolist() for one in gradients(model, x)]


def put_lists(model, results):
    put(model, [[torch.tensor(one) for one in result] for result in results])


def test_replaced_buffer_in_an_executor():
    model = Replacing()
    with ProcessPoolExecutor(2) as executor:
        put_lists(model, executor.map(listed, [model] * 2, X))  # -> GG111
    sgd(model).step()


def test_replaced_buffer_in_a_pool():
    model = Replacing()
    with multiprocessing.Pool(2) as pool:
        put_lists(model, pool.starmap(listed, [(model, x) for x in X]))  # -> GG111
    sgd(model).step()


class Trainer:
    def __init__(self, model):
        self.model = model


def gradients_of(trainer, x):
    return gradients(trainer.model, x)


def test_held_by_an_object():
    trainer = Trainer(net())
    put(trainer.model, run(gradients_of, trainer))
    sgd(trainer.model).step()


def test_captured():
    model = net()
    found = Parallel(2)(delayed(lambda x: gradients(model, x))(x) for x in X)  # -> GG111
    put(model, found)
    sgd(model).step()


def test_executor_of_loky():
    model = net()
    with LokyExecutor(1) as executor:
        put(model, [executor.submit(gradients, model, X[0]).result()])  # -> GG111
    sgd(model).step()


def calibrate(model, x):
    model.train()
    with torch.no_grad():
        model(x)


def test_calibration():
    model = net().eval()
    run(calibrate, model)
    model(X[0])


def gradients_in_training_mode(model, x):
    return gradients(model.train(), x)


def test_training_in_the_worker_alone():
    model = net().eval()
    put(model, run(gradients_in_training_mode, model))
    sgd(model).step()


def test_instance_norm():
    model = nn.Sequential(nn.InstanceNorm1d(4, track_running_stats=True), nn.Linear(3, 1))
    Parallel(2)(delayed(gradients)(model, X) for _ in range(2))  # -> GG111
    model.eval()


def test_two_modules():
    body, head = net(), nn.Linear(3, 1)
    tasks = (delayed(of_two)(head, body, x) for x in X)
    put(body, Parallel(2)(tasks))  # -> GG111
    sgd(body).step()


def of_two(head, body, x):
    return gradients(body, head(x).detach() + x)


# --- nothing is lost, or nobody uses it ----------------------------------------------------


def with_buffers(model, x):
    return gradients(model, x), dict(model.named_buffers())


def goes_on(model, results):
    put(model, results)
    sgd(model).step()


def test_buffers_returned():
    model = net()
    found = run(with_buffers, model)
    goes_on(model, [one for one, _ in found])
    model.load_state_dict(found[0][1], strict=False)
    model.eval()


def with_lists(model, x):
    found = gradients(model, x)
    return found, model[1].running_mean.tolist(), model[1].running_var.numpy() / 2


def test_buffers_returned_as_lists():
    model = net()
    goes_on(model, [found for found, *_ in run(with_lists, model)])


def with_one_vector(model, x):
    found = gradients(model, x)
    return found, torch.cat([b.flatten().float() for b in model.buffers()])


def test_buffers_returned_in_one_vector():
    model = net()
    goes_on(model, [found for found, _ in run(with_one_vector, model)])


def with_state(model, x):
    trained(model, x)
    return {"epoch": 1, "state": model.state_dict()}


def test_state_returned():
    model = net()
    model.load_state_dict(run(with_state, model)[0]["state"])
    model.eval()


def as_bytes(model, x):
    trained(model, x)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    return file.getvalue()


def test_state_returned_as_bytes():
    model = net()
    model.load_state_dict(torch.load(io.BytesIO(run(as_bytes, model)[0])))
    model.eval()


def whole(model, x):
    trained(model, x)
    return model


def test_module_returned():
    model = net()
    found = run(whole, model)
    model.eval()
    found[0].eval()


def held(trainer, x):
    trained(trainer.model, x)
    return trainer


def test_holder_returned():
    trainer = Trainer(net())
    run(held, trainer)
    trainer.model.eval()


def test_averaged_by_hand():
    model = net()
    found = run(with_buffers, model)
    goes_on(model, [one for one, _ in found])
    for name, buffer in model.named_buffers():
        buffer.copy_(sum(one[name] for _, one in found) / len(found))


def with_statistics(model, x):
    found = gradients(model, x)
    inner = model[0](x).detach()
    return found, inner.mean(0), inner.var(0)


def test_statistics_of_the_batch_returned():
    model = net()
    found = run(with_statistics, model)
    goes_on(model, [one for one, *_ in found])
    model[1].running_mean.lerp_(sum(mean for _, mean, _ in found) / 2, 0.1)
    model[1].running_var.lerp_(sum(var for *_, var in found) / 2, 0.1)
    model.eval()


def gradients_in_evaluation_mode(model, x):
    return gradients(model.eval(), x)


def test_evaluation_mode():
    model = net()
    goes_on(model, run(gradients_in_evaluation_mode, model))
    goes_on(model, run(gradients, model.eval()))
    model(X[0])


def test_no_running_statistics():
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5, track_running_stats=False))
    goes_on(model, run(gradients, model))
    model.eval()


def test_never_used_again():
    model = net()
    assert len(run(gradients, model)) == 2


def score(model, x):
    trained(model, x)
    return model.eval()(x).mean().item()


def test_copy_trained_for_a_score():
    model = net()
    for _ in range(2):
        run(score, model)
        model.eval()
        model(X[0])
        model.train()


def test_threads():
    model = net()
    goes_on(model, run(gradients, model, backend="threading"))
    model.eval()


def test_one_worker():
    model = net()
    goes_on(model, Parallel(n_jobs=1)(delayed(gradients)(model, x) for x in X))
    model.eval()


def test_shared_memory():
    model = net()
    with multiprocessing.Pool(2) as pool:
        put_lists(model, pool.starmap(listed, [(model, x) for x in X]))
    assert model[1].num_batches_tracked > 0
    sgd(model).step()
    model.eval()


def test_parent_computes_them_itself():
    model = net()
    goes_on(model, run(gradients, model))
    for x in X:
        model(x)
    model.eval()


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("mask", torch.tensor([1.0, 0.0]))

    def forward(self, x):
        return self.linear(x) * self.mask


def test_constant_buffers():
    model = Masked()
    goes_on(model, run(gradients, model))
    model.eval()


class Caching(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("cached", torch.zeros(1), persistent=False)

    def forward(self, x):
        self.cached = torch.arange(float(len(x)))
        return self.linear(x)


def test_cache_that_is_not_saved():
    model = Caching()
    goes_on(model, run(gradients, model))
    model.eval()


def moved(model, x):
    return [one.float() for one in gradients(model.double(), x.double())]


def test_moved_module():
    model = Masked()
    goes_on(model, run(moved, model))
    model.eval()


def gradients_of_a_copy(model, x):
    return gradients(copy.deepcopy(model), x)


def test_copied_in_the_worker():
    model = net()
    goes_on(model, run(gradients_of_a_copy, model))
    model.eval()


def test_other_module_used():
    model, other = net(), net()
    run(gradients, model)
    put(other, [[torch.ones_like(one) for one in other.parameters()]])
    sgd(other).step()
    other.eval()
    torch.save(other.state_dict(), io.BytesIO())


def test_statistics_frozen():
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5, momentum=0.0))
    goes_on(model, run(gradients, model))
    model.eval()


def test_put_back_to_the_start():
    model = net()
    start = copy.deepcopy(model.state_dict())
    optimizer = sgd(model)
    put(model, run(gradients, model))
    optimizer.step()
    model.load_state_dict(start)
    model.eval()


def test_old_buffers_beside_new_parameters():
    model = net()
    start = copy.deepcopy(model.state_dict())
    first, _ = run(trained_by_name, model)
    start.update({name: torch.from_numpy(one) for name, one in first.items()})
    model.load_state_dict(start)
    model.eval()
