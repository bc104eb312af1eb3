"""Ray: tasks, actors, and objects that are put for them."""

import asyncio

import numpy as np
import pytest
import torch
from torch import nn

try:
    import ray
except ImportError:
    ray = None

pytestmark = pytest.mark.skipif(ray is None, reason="ray is not installed")

DETAILS = {
    "test_leaf_for_an_actor": {"GG101": {"subject": "parameter `x` of `Store.__init__`"}},
    "test_put": {"GG101": {"subject": "`leaf() * 2`, an argument of `ray.put`"}},
    "test_backward_through_results": {"GG101": {"subject": "`x`, parameter `x` of `times`"}},
    "test_buffers_left": {"GG111": {"object": "args[1]", "function": "statistics"}},
    "test_changed_setting": {
        "GG109": {"object": "case_ray.settings['rate']", "in_worker": "0.1", "here": "0.2"}
    },
    "test_history_as_argument": {
        "GG101": {"backend": "ray", "direction": "argument", "object": "args[0]"}
    },
    "test_history_in_a_result": {
        "GG102": {"backend": "ray", "direction": "result", "function": "own_history"}
    },
}


@pytest.fixture(scope="module", autouse=True)
def cluster():
    if ray is not None:
        ray.init(
            num_cpus=1,
            num_gpus=1,  # whether there is one or not
            include_dashboard=False,
            logging_level="ERROR",
            object_store_memory=80 * 2**20,
            log_to_driver=False,
        )
        yield
        ray.shutdown()
    else:
        yield


def remote(item):
    return item if ray is None else ray.remote(item)


def leaf():
    return torch.ones(3, requires_grad=True)


@remote
def number(x):
    return float(x.detach().sum())


@remote
def times(x, k):
    return x * k


@remote
def own_history(k):
    return torch.ones(3, requires_grad=True) * k


@remote
def backward(model, rows):
    loss = model(rows).sum()
    loss.backward()
    return loss.item()


@remote
def gradients(model, rows):
    model(rows).sum().backward()
    return [parameter.grad for parameter in model.parameters()]


@remote
def evaluate(model, rows):
    with torch.no_grad():
        return model(rows).sum()


@remote
def drawn(rng):
    return float(rng.normal())


@remote
def drawn_from(seed):
    return float(np.random.default_rng(seed).normal())


@remote
def on_gpu(k):
    return torch.full((2,), k, device="cuda").sum().item()


@remote
def fail(x):
    raise KeyError(f"no such key: {x}")


class Worker:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def forward(self, rows):
        return self.model(rows)

    def gradients(self, weights, rows):
        self.model.load_state_dict(weights)
        self.model.zero_grad()
        self.model(rows).sum().backward()
        return [parameter.grad.numpy() for parameter in self.model.parameters()]

    def loss(self, rows):
        loss = self.model(rows).sum()
        loss.backward()
        return loss.item()

    def train(self, rows):
        self.optimizer.zero_grad()
        self.model(rows).sum().backward()
        self.optimizer.step()
        return self.model.state_dict()


Actor = remote(Worker)

settings = {"rate": 0.1, "depth": 2}


def read_rate(*_):
    return settings["rate"]


def read_depth():
    return settings["depth"]


def change_and_read(rate):
    settings["rate"] = rate
    return settings["rate"]


class Reader:
    def rate(self):
        return self.scaled(2)

    def scaled(self, k):
        return settings["rate"] * k

    def number(self):
        return 1


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_history_as_argument():
    assert ray.get(number.remote(leaf() * 2)) == 6.0  # -> GG101:warning


def test_captured():
    weight = leaf() * 2

    @remote
    def scaled(k):
        return float((weight * k).detach().sum())

    assert ray.get(scaled.remote(2)) == 12.0  # -> GG101


def test_put():
    reference = ray.put(leaf() * 2)  # -> GG101
    assert ray.get(number.remote(reference)) == 6.0


def test_backward_through_results():
    x = leaf()
    out = ray.get([times.remote(x, k) for k in (2, 3)])  # -> GG101 GG102
    sum(out).sum().backward()  # -> GG103:error
    assert x.grad is None


def multiples(x):
    for factor in (2, 3):
        yield times._function(x, factor)


def test_backward_through_what_is_yielded():
    x = leaf()
    remote = ray.remote(num_returns="streaming")(multiples)
    out = [ray.get(reference) for reference in remote.remote(x)]  # -> GG101 GG102
    sum(out).sum().backward()  # -> GG103:error
    assert x.grad is None


def test_history_in_a_result():
    out = ray.get(own_history.remote(2))  # -> GG102:warning
    assert out.grad_fn is None


def test_history_from_an_actor():
    actor = Actor.remote(nn.Linear(3, 1))
    assert ray.get(actor.forward.remote(torch.ones(2, 3))).is_leaf  # -> GG102


def test_backward_through_what_was_put():
    x = leaf()
    reference = ray.put(x)  # -> GG101
    out = ray.get([times.remote(reference, k) for k in (2, 3)])  # -> GG102
    sum(out).sum().backward()  # -> GG103:error
    assert x.grad is None


def test_backward_through_an_actor():
    x = leaf()
    store = ray.remote(Store).remote(x)  # -> GG101
    ray.get(store.times.remote(2)).sum().backward()  # -> GG102 GG103:error
    assert x.grad is None


class Store:
    def __init__(self, x):
        self.x = x

    def times(self, k):
        return self.x * k

    def total(self):
        return float(self.x.detach().sum())


def test_leaf_for_an_actor():
    store = ray.remote(Store).remote(leaf())  # -> GG101
    assert ray.get(store.total.remote()) == 3.0


class Asynchronous:
    def __init__(self, model):
        self.model = model

    async def forward(self, rows):
        await asyncio.sleep(0)
        return self.model(rows)

    async def score(self, rows):
        await asyncio.sleep(0)
        return float(self.model(rows).detach().sum())

    async def fail(self, key):
        raise KeyError(f"no such key: {key}")


def test_backward_through_an_asynchronous_actor():
    model = nn.Linear(3, 1)
    actor = ray.remote(Asynchronous).remote(model)
    out = ray.get([actor.forward.remote(torch.ones(2, 3)) for _ in range(2)])  # -> GG102
    (out[0] + out[1]).sum().backward()  # -> GG103:warning
    assert model.weight.grad is None


def test_gradients_left():
    model = nn.Linear(3, 1)
    optimizer = sgd(model)
    ray.get([backward.remote(model, torch.ones(2, 3)) for _ in range(2)])
    optimizer.step()  # -> GG106:error
    assert model.weight.grad is None


def test_gradients_left_of_what_was_put():
    model = nn.Linear(3, 1)
    optimizer = sgd(model)
    shared = ray.put(model)
    ray.get([backward.remote(shared, rows=torch.ones(2, 3)) for _ in range(2)])
    optimizer.step()  # -> GG106:error


def test_gradients_left_in_an_actor():
    model = nn.Linear(3, 1)
    optimizer = sgd(model)
    actor = Actor.remote(model)
    for _ in range(2):
        assert ray.get(actor.loss.remote(torch.ones(2, 3))) is not None
        optimizer.step()  # -> GG106:error
    assert model.weight.grad is None


@remote
def statistics(rows, model):
    return float(model.train()(rows).sum().detach())


def test_buffers_left():
    model = nn.BatchNorm1d(3)
    rows = torch.arange(6.0).reshape(2, 3)
    ray.get(statistics.remote(rows, model))  # -> GG111:warning
    model.eval()(rows)


def test_buffers_left_of_what_was_put():
    model = nn.BatchNorm1d(3)
    rows = torch.arange(6.0).reshape(2, 3)
    shared = ray.put(model)
    ray.get([statistics.remote(rows * k, shared) for k in range(2)])  # -> GG111:warning
    model.eval()(rows)


def test_one_generator():
    rng = np.random.default_rng(0)
    first, second = ray.get([drawn.remote(rng) for _ in range(2)])  # -> GG305
    assert first == second


@remote
class Simulator:
    def __init__(self, rng):
        self.rng = rng

    def seed(self, seed):
        self.rng.bit_generator.state = np.random.default_rng(seed).bit_generator.state

    def draw(self):
        return float(self.rng.normal())


def simulators(*generators):
    return [Simulator.remote(rng) for rng in generators]


def numbers_of(actors):
    return ray.get([actor.draw.remote() for actor in actors for _ in range(2)])


def test_one_generator_for_actors():
    rng = np.random.default_rng(0)
    actors = simulators(rng, rng)
    first, second = ray.get([actor.draw.remote() for actor in actors])  # -> GG305
    assert first == second


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_cuda():
    with pytest.raises((AssertionError, RuntimeError)):
        ray.get(on_gpu.remote(2))  # -> GG201


# --- nothing to report -----------------------------------------------------------------------


@remote
def updated(rows, model):
    model.train()(rows)
    return model.state_dict()


def test_buffers_of_what_was_put_returned():
    model = nn.BatchNorm1d(3)
    rows = torch.arange(6.0).reshape(2, 3)
    model.load_state_dict(ray.get(updated.remote(rows, ray.put(model))))
    model.eval()(rows)


def test_numbers():
    assert ray.get([number.remote(torch.ones(3)), number.remote(torch.zeros(3))]) == [3.0, 0.0]
    assert ray.get(ray.put(np.ones(3))).sum() == 3.0


def test_detached():
    x = leaf()
    out = ray.get([times.remote(x.detach(), k) for k in (2, 3)])
    (sum(out) * x).sum().backward()
    assert x.grad.tolist() == [5.0] * 3


def average(model, results):
    for parameter, *parts in zip(model.parameters(), *results, strict=True):
        parameter.grad = sum(torch.as_tensor(part).clone() for part in parts)


def test_gradients_returned():
    model = nn.Linear(3, 1)
    average(model, ray.get([gradients.remote(model, torch.ones(2, 3)) for _ in range(2)]))
    sgd(model).step()


def test_gradients_of_a_shared_model():
    model = nn.Linear(3, 1)
    shared = ray.put(model)
    average(model, ray.get([gradients.remote(shared, torch.ones(2, 3)) for _ in range(2)]))
    sgd(model).step()


def test_parameter_server():
    model = nn.Linear(3, 1)
    optimizer = sgd(model)
    actors = [Actor.remote(nn.Linear(3, 1))]
    for _ in range(2):
        weights = ray.put(model.state_dict())
        optimizer.zero_grad()
        average(model, ray.get([a.gradients.remote(weights, torch.ones(2, 3)) for a in actors]))
        optimizer.step()


def test_actor_that_trains():
    model = nn.Linear(3, 1)
    actor = Actor.remote(model)
    weights = [actor.train.remote(torch.ones(2, 3)) for _ in range(2)][-1]
    model.load_state_dict(ray.get(weights))


class Device:
    def total(self, k):
        return torch.full((2,), k, device="cuda").sum().item()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_actor_with_a_gpu():
    actor = ray.remote(num_gpus=1)(Device).remote()
    with pytest.raises((AssertionError, RuntimeError)):
        ray.get(actor.total.remote(2))


def test_optimizers_beside_actors():
    model, other = nn.Linear(3, 1), nn.Linear(3, 1)
    actor, mine, its = Actor.remote(model), sgd(other), sgd(model)
    for _ in range(2):
        ray.get(actor.loss.remote(torch.ones(2, 3)))
        mine.step()
    model.load_state_dict(ray.get(actor.train.remote(torch.ones(2, 3))))
    its.step()


def test_evaluation():
    model = nn.Linear(3, 1)
    optimizer = sgd(model)
    model(torch.ones(2, 3)).sum().backward()
    out = ray.get(evaluate.remote(model, torch.ones(2, 3)))
    optimizer.step()
    assert not out.requires_grad


def test_seeds():
    first, second = ray.get([drawn_from.remote(seed) for seed in (0, 1)])
    assert first != second


def test_generator_of_one_actor():
    assert len(set(numbers_of(simulators(np.random.default_rng(0))))) == 2


def test_generator_seeded_in_actors():
    rng = np.random.default_rng(0)
    actors = simulators(rng, rng)
    ray.get([actor.seed.remote(index) for index, actor in enumerate(actors)])
    assert len(set(numbers_of(actors))) == 4


def test_generators_spawned_for_actors():
    assert len(set(numbers_of(simulators(*np.random.default_rng(0).spawn(2))))) == 4


def test_error():
    with pytest.raises(KeyError, match="no such key") as caught:
        ray.get(fail.remote(1))
    assert "gradguard" not in str(caught.value)


def test_asynchronous_actor():
    actor = ray.remote(Asynchronous).remote(nn.Linear(3, 1))

    async def main():
        return await asyncio.gather(*(actor.score.remote(torch.ones(2, 3)) for _ in range(2)))

    first, second = asyncio.run(main())
    assert first == second
    with pytest.raises(KeyError, match="no such key"):
        ray.get(actor.fail.remote(1))


def test_pool():
    multiprocessing = pytest.importorskip("ray.util.multiprocessing")
    with multiprocessing.Pool(1) as pool:
        assert pool.map(abs, [-1, 2]) == [1, 2]


def test_functions_stay():
    assert number._function(torch.ones(3)) == 3.0
    assert type(number.remote(torch.ones(3))) is ray.ObjectRef


def test_changed_setting():
    settings["rate"] = 0.2
    assert ray.get([remote(read_rate).remote(), remote(read_rate).remote(1)]) == [
        0.1,
        0.1,
    ]  # -> GG109


def test_changed_setting_in_an_actor():
    settings["rate"] = 0.2
    reader = remote(Reader).remote()
    assert ray.get(reader.rate.remote()) == 0.2  # -> GG109


def test_unchanged_setting():
    assert ray.get(remote(read_depth).remote()) == 2


def test_setting_that_the_task_changes():
    settings["rate"] = 0.2
    assert ray.get(remote(change_and_read).remote(0.3)) == 0.3


def test_method_without_settings():
    settings["rate"] = 0.2
    reader = remote(Reader).remote()
    assert ray.get(reader.number.remote()) == 1


def test_setting_that_travels():
    """Ray pickles a decorated function with its globals."""
    settings["rate"] = 0.2

    @remote
    def rate():
        return settings["rate"]

    assert ray.get(rate.remote()) == 0.2
