"""dask: what goes past tasks: actors, `Client.run`, scattered modules, modules that come back."""

import asyncio

import numpy
import pytest
import torch
from dask.distributed import Client, LocalCluster, Queue, Variable, get_client
from torch import nn

DETAILS = {
    "test_loss_of_an_actor": {"GG102": {"backend": "dask", "object": "result"}},
    "test_attribute_of_an_actor": {"GG102": {"backend": "dask", "object": "result.last"}},
    "test_leaf_for_an_actor": {"GG101": {"backend": "dask", "object": "kwargs['w']"}},
    "test_run_returns_a_graph": {"GG101": {"backend": "dask", "object": "args[0]"}},
    "test_actor_trains": {"GG114": {"backend": "dask"}},
}

ROWS = torch.arange(12.0).reshape(4, 3) / 12


class Trainer:
    last = None

    def __init__(self, model=None):
        self.model = model

    def take(self, model):
        self.model = model

    def loss(self):
        return self.model(ROWS).square().mean()

    def keep(self):
        self.last = self.loss()

    def backward(self):
        loss = self.loss()
        loss.backward()
        return loss.item()

    def gradients(self):
        return [one.grad for one in self.model.parameters()]

    def train(self):
        return fit(self.model)

    def evaluate(self):
        return calibrate(self.model)

    def state(self):
        return self.model.state_dict()

    def whole(self):
        return self.model

    def times(self, w, k=2):
        return (w * k).sum()


class Counter:
    count = 0

    def add(self, by=1):
        self.count += by
        return self.count

    async def later(self):
        await asyncio.sleep(0.001)
        return self.count

    def fail(self):
        raise KeyError("no such key")


def fit(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = model(ROWS).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def fit_both(first, second):
    return fit(first) + fit(second)


def fit_and_return(model):
    fit(model)
    return model.state_dict()


def calibrate(model):
    with torch.no_grad():
        return model(ROWS).mean().item()


def times(w, k=2):
    return (w * k).sum()


def backward(model):
    loss = model(ROWS).square().mean()
    loss.backward()
    return loss.item()


def gradients(model):
    return torch.autograd.grad(model(ROWS).square().mean(), list(model.parameters()))


def halve(model):
    with torch.no_grad():
        for one in model.parameters():
            one.mul_(0.5)
    return model


def halve_in_a_container(model):
    return {"model": halve(model), "loss": calibrate(model)}


def outer(w):
    client = get_client()
    futures = client.map(times, [w, w], [1, 2], pure=False)  # -> GG101 GG102
    return sum(client.gather(futures)) + w.square().sum()


def signed(dask_worker=None):
    return dask_worker is not None


async def later(x):
    await asyncio.sleep(0.001)
    return x


def fail(x):
    raise KeyError(f"no such key: {x}")


def linear():
    model = nn.Linear(3, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def leaf():
    return torch.ones(3, requires_grad=True)


def step_with(model, optimizer):
    model(ROWS).square().mean().backward()
    optimizer.step()


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=None) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def client(cluster):
    with Client(cluster) as client:
        yield client


def test_loss_of_an_actor(client):
    model, optimizer = linear()
    trainer = client.submit(Trainer, model, actor=True).result()
    loss = trainer.loss().result()  # -> GG102
    loss.backward()  # -> GG103:error
    optimizer.step()
    assert model.weight.grad is None


def test_attribute_of_an_actor(client):
    model, _ = linear()
    trainer = client.submit(Trainer, model, actor=True).result()
    trainer.keep().result()  # -> GG102
    trainer.last.backward()  # -> GG103
    assert model.weight.grad is None


def test_leaf_for_an_actor(client):
    w = leaf()
    trainer = client.submit(Trainer, actor=True).result()
    out = trainer.times(k=3, w=w).result()  # -> GG101 GG102
    (out + w.sum()).backward()  # -> GG103:error
    assert w.grad.tolist() == [1.0] * 3


def test_gradients_left_in_actors(client):
    model, optimizer = linear()
    futures = client.map(Trainer, [model, model], actor=True, pure=False)
    for future in [trainer.backward() for trainer in client.gather(futures)]:
        future.result()
    optimizer.step()  # -> GG106:error


def test_actor_trains(client):
    model, _ = linear()
    trainer = client.submit(Trainer, model, actor=True).result()
    trainer.train().result()  # -> GG114
    model.eval()


def test_actor_trains_what_a_method_was_given(client):
    model, _ = linear()
    trainer = client.submit(Trainer, actor=True).result()
    trainer.take(model).result()
    trainer.train().result()  # -> GG114
    model.eval()


def test_actor_updates_statistics(client):
    model = nn.BatchNorm1d(3)
    trainer = client.submit(Trainer, model, actor=True).result()
    trainer.evaluate().result()  # -> GG111
    model.eval()


def test_run_returns_a_graph(client):
    w = leaf()
    losses = client.run(times, w, k=3)  # -> GG101 GG102
    sum(losses.values()).backward()  # -> GG103:error
    assert len(losses) == 2
    assert w.grad is None


def test_run_leaves_gradients(client):
    model, optimizer = linear()
    client.run(backward, model)
    optimizer.step()  # -> GG106:error


def test_run_trains(client):
    model, _ = linear()
    client.run(fit, model)  # -> GG114
    model.eval()


def test_asynchronous_client(cluster):
    model, optimizer = linear()

    async def train():
        async with Client(cluster.scheduler_address, asynchronous=True) as client:
            trainer = await client.submit(Trainer, model, actor=True)
            first = await trainer.backward()
            optimizer.step()  # -> GG106:error
            second = await client.run(backward, model)
        return first, list(second.values())

    first, second = asyncio.run(train())
    assert second == [first, first]


def test_scattered_module_trained(client):
    model, _ = linear()
    far = client.scatter(model, hash=False)
    client.submit(fit, far).result()  # -> GG114
    model.eval()


def test_scattered_module_of_several(client):
    models = [linear()[0], linear()[0]]
    futures = client.scatter(models, hash=False)
    client.submit(fit, futures[1], pure=False).result()  # -> GG114
    models[0].eval()
    models[1].eval()


def test_returned_module(client):
    model, optimizer = linear()
    model = client.submit(halve, model).result()
    model(ROWS).sum().backward()
    optimizer.step()  # -> GG112:error


def test_returned_in_a_container(client):
    model, optimizer = linear()
    found = client.submit(halve_in_a_container, model).result()
    found["model"](ROWS).sum().backward()
    optimizer.step()  # -> GG112:error


def test_returned_by_an_actor(client):
    model, optimizer = linear()
    trainer = client.submit(Trainer, model, actor=True).result()
    trainer.train().result()
    trained = trainer.whole().result()
    trained.zero_grad()
    trained(ROWS).sum().backward()
    optimizer.step()  # -> GG112:error


def test_nested_client(client):
    w = leaf()
    loss = client.submit(outer, w).result()  # -> GG101 GG102
    loss.backward()  # -> GG103:error
    assert w.grad is None


def test_future_by_a_variable(client):
    w = leaf()
    Variable("loss").set(client.submit(times, w))  # -> GG101 GG102
    loss = Variable("loss").get().result()
    (loss + w.sum()).backward()  # -> GG103:error


def test_future_by_a_queue(client):
    w = leaf()
    Queue("losses").put(client.submit(times, w, 3))  # -> GG101 GG102
    loss = Queue("losses").get().result()
    (loss + w.sum()).backward()  # -> GG103:error


# --- nothing to report ---------------------------------------------------------------------


def test_actor_returns_gradients_later(client):
    model, optimizer = linear()
    trainer = client.submit(Trainer, model, actor=True).result()
    trainer.backward().result()
    for parameter, gradient in zip(model.parameters(), trainer.gradients().result(), strict=True):
        parameter.grad = gradient
    optimizer.step()


def test_actor_returns_its_model_later(client):
    model, _ = linear()
    trainer = client.submit(Trainer, model, actor=True).result()
    trainer.train().result()
    trained = trainer.whole().result()
    assert calibrate(trained.eval()) != calibrate(model.eval())


def test_actor_returns_its_statistics_later(client):
    model = nn.BatchNorm1d(3)
    trainer = client.submit(Trainer, model, actor=True).result()
    trainer.evaluate().result()
    state = trainer.state().result()
    assert not torch.equal(state["running_mean"], model.eval().running_mean)


def test_detached_for_an_actor(client):
    w = leaf()
    trainer = client.submit(Trainer, linear()[0], actor=True).result()
    out = trainer.times(w.detach()).result()
    (out * w.sum()).backward()
    assert w.grad.tolist() == [6.0] * 3
    assert isinstance(trainer.evaluate().result(), float)


def test_counter(client):
    counter = client.submit(Counter, actor=True).result()
    assert [counter.add().result(), counter.add(by=2).result()] == [1, 3]
    assert counter.later().result() == 3
    assert counter.add(separate_thread=False).result() == 4
    assert counter.count == 4
    with pytest.raises(KeyError, match="no such key"):
        counter.fail().result()


def arrays(*self):
    return numpy.ones(2), numpy.zeros(2), 3


class Arrays:
    arrays = arrays


def test_arrays_of_run_and_of_an_actor(client):
    made = client.submit(Arrays, actor=True)
    found = [*client.run(arrays).values(), made.result().arrays().result()]
    assert all(one[0].tolist() == [1, 1] and one[2] == 3 for one in found)


def test_run_returns_gradients(client):
    model, optimizer = linear()
    found = list(client.run(gradients, model).values())
    for parameter, *both in zip(model.parameters(), *found, strict=True):
        parameter.grad = sum(both)
    optimizer.step()


def test_run_on_everything(client):
    assert list(client.run(signed).values()) == [True, True]
    assert list(client.run(signed, nanny=True).values()) == [True, True]
    assert list(client.run(later, 3).values()) == [3, 3]
    assert client.run(later, 3, wait=False) is None
    assert client.run(calibrate, linear()[0], workers=[]) == {}
    assert client.run_on_scheduler(abs, -1) == 1
    errors = client.run(fail, 1, on_error="return").values()
    assert [type(error) for error in errors] == [KeyError, KeyError]
    with pytest.raises(KeyError, match="no such key: 2"):
        client.run(fail, 2)


def test_scattered_module_returned(client):
    model, _ = linear()
    far = client.scatter(model, hash=False)
    assert isinstance(client.submit(calibrate, far).result(), float)
    model.load_state_dict(client.submit(fit_and_return, far).result())
    model.eval()


def test_returned_module_with_an_optimizer(client):
    model = client.submit(halve, linear()[0]).result()
    step_with(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_threads():
    with Client(processes=False, n_workers=1, dashboard_address=None) as client:
        w = leaf()
        future = client.submit(Trainer, linear()[0], actor=True)  # without it the actor may end
        future.result().times(w).result().backward()
        assert w.grad.tolist() == [2.0] * 3
        assert len(client.run(calibrate, linear()[0])) == 1
