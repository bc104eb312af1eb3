"""Objects and models of a module that workers import afresh: what tasks really read of them."""

import torch
from joblib import Parallel, delayed
from torch import nn

EXPECT = {
    "test_method_that_reads_the_model": {"GG109"},
    "test_method_that_reads_a_table": {"GG109"},
    "test_property": {"GG109"},
    "test_attribute_of_a_class": {"GG109"},
    "test_method_of_a_module": {"GG109"},
    "test_method_with_a_closure": {"GG109"},
    "test_trained_where_it_is_stale": {"GG109"},
    "test_object_is_handed_on": {"GG109"},
}


class Policy:
    kind = "linear"

    def __init__(self):
        self.net = filled(nn.Linear(2, 1), 1.0)
        self.rate = 0.1
        self.table = {"bonus": torch.ones(1)}
        self.extra = torch.zeros(1)
        self.history = []

    @property
    def bonus(self):
        return float(self.table["bonus"])

    def act(self, x):
        return self._scored(x)

    def _scored(self, x):
        return float(self.net(x))

    def acts(self, xs):
        return [self._scored(x) for x in xs]

    def rated(self, x):
        return self.rate * float(x.sum())

    def load(self, state):
        self.net.load_state_dict(state)

    def reset(self, value):
        self.extra = torch.full((1,), value)

    def put(self, value):
        self.table["bonus"] = torch.full((1,), value)


class Custom(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 1)
        self.size = 2
        filled(self.inner, 1.0)

    def score(self, x):
        return float(self.inner(x))


class Constants:
    name = "constants"
    weight = torch.ones(2)


def filled(model, value):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    return model


class Proxy:
    """Stands for something that is there later, as web frameworks have it."""

    @property
    def __class__(self):
        raise RuntimeError("nothing is bound")

    def __getattr__(self, name):
        raise RuntimeError("nothing is bound")


proxy = Proxy()
titles = ["a title"]
policy = Policy()
custom = Custom()
net = filled(nn.Linear(2, 1), 1.0)
large = torch.zeros(10)
X = torch.ones(1, 2)


def in_workers(task, *arguments):
    return Parallel(2)(delayed(task)(*arguments) for _ in range(2))  # -> GG109?


def act(x):
    return policy.act(x)


def test_method_that_reads_the_model():
    filled(policy.net, 2.0)
    assert in_workers(act, X) == [3.0, 3.0]


def act_on_all(xs):
    return policy.acts(xs)


def test_method_with_a_closure():
    filled(policy.net, 2.0)
    assert in_workers(act_on_all, [X]) == [[3.0]] * 2


def bonus_of(table):
    return float(table["bonus"])


def bonus():
    return bonus_of(policy.table)


def test_method_that_reads_a_table():
    policy.table["bonus"] = torch.full((1,), 5.0)
    assert in_workers(bonus) == [1.0, 1.0]


def bonus_by_property():
    return policy.bonus


def test_property():
    policy.table["bonus"] = torch.full((1,), 6.0)
    assert in_workers(bonus_by_property) == [1.0, 1.0]


def constants():
    return float(Constants.weight.sum())


def test_attribute_of_a_class():
    Constants.weight.fill_(3.0)
    assert in_workers(constants) == [2.0, 2.0]


def score(x):
    return custom.score(x)


def test_method_of_a_module():
    filled(custom, 4.0)
    assert in_workers(score, X) == [3.0, 3.0]


def trained(model, x):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def train(x):
    return trained(net, x)


def test_trained_where_it_is_stale():
    for _ in range(2):
        filled(net, 7.0)
        in_workers(train, X)


def of_any(agent, x):
    return agent.act(x)


def act_by_another(x):
    return of_any(policy, x)


def test_object_is_handed_on():
    filled(policy.net, 9.0)
    assert in_workers(act_by_another, X) == [3.0, 3.0]


# -- nothing of what differs is read -------------------------------------------------------------


def rated(x):
    return policy.rated(x)


def test_method_that_reads_another_attribute():
    filled(policy.net, 2.5)
    assert in_workers(rated, X) == [0.2, 0.2]


def rate():
    return policy.rate


def test_other_attribute():
    filled(policy.net, 2.5)
    assert in_workers(rate) == [0.1, 0.1]


def kind():
    return policy.kind


def test_attribute_of_its_class():
    filled(policy.net, 2.5)
    assert in_workers(kind) == ["linear"] * 2


def name():
    return Constants.name


def test_name_of_a_class():
    Constants.weight.fill_(4.0)
    assert in_workers(name) == ["constants"] * 2


def size():
    return custom.size


def test_size_of_a_module():
    filled(custom, 5.0)
    assert in_workers(size) == [2, 2]


def shape():
    return tuple(large.shape)


def test_shape_only():
    large.fill_(1.0)
    assert in_workers(shape) == [(10,)] * 2


# -- the tasks give it the values they need ------------------------------------------------------


def loaded(state, x):
    net.load_state_dict(state)
    return float(net(x))


def test_state_is_loaded():
    filled(net, 2.0)
    assert in_workers(loaded, net.state_dict(), X) == [6.0, 6.0]


def loaded_and_trained(state, x):
    net.load_state_dict(state)
    return trained(net, x)


def test_state_is_loaded_and_trained():
    for value in (3.0, 4.0):
        filled(net, value)
        in_workers(loaded_and_trained, net.state_dict(), X)


def set_parameters(model, values):
    names = model.state_dict()
    model.load_state_dict(dict(zip(names, map(torch.tensor, values), strict=True)))


def set_and_trained(values, x):
    set_parameters(net, values)
    return trained(net, x)


def test_state_is_loaded_by_a_helper():
    for value in (5.0, 6.0):
        filled(net, value)
        in_workers(set_and_trained, [one.numpy() for one in net.state_dict().values()], X)


def load_policy(state, x):
    policy.load(state)
    return trained(policy.net, x)


def test_state_is_loaded_by_a_method():
    for value in (5.5, 6.5):
        filled(policy.net, value)
        in_workers(load_policy, policy.net.state_dict(), X)


def copied(values, x):
    with torch.no_grad():
        for parameter, value in zip(net.parameters(), values, strict=True):
            parameter.copy_(value)
    return float(net(x))


def test_parameters_are_copied():
    filled(net, 8.0)
    values = [parameter.detach().clone() for parameter in net.parameters()]
    assert in_workers(copied, values, X) == [24.0, 24.0]


def another(x):
    model = filled(nn.Linear(2, 1), 1.0)
    return float(model(x))


def test_another_model_of_the_same_sizes():
    filled(net, 8.5)
    assert in_workers(another, X) == [3.0, 3.0]


def replaced(value):
    policy.extra = torch.full((1,), value)
    return float(policy.extra)


def test_task_replaces_it():
    policy.extra = torch.full((1,), 9.0)
    assert in_workers(replaced, 2.0) == [2.0, 2.0]


def replaced_by_a_method(value):
    policy.reset(value)
    return float(policy.extra)


def test_method_replaces_it():
    policy.extra = torch.full((1,), 9.0)
    assert in_workers(replaced_by_a_method, 3.0) == [3.0, 3.0]


def put(value):
    policy.put(value)
    return float(policy.table["bonus"])


def test_task_puts_it_into_a_table():
    policy.table["bonus"] = torch.full((1,), 7.0)
    assert in_workers(put, 4.0) == [4.0, 4.0]


def remembered(value):
    policy.history.append(value)
    return policy.history[-1]


def test_history_grows():
    filled(policy.net, 3.5)
    assert in_workers(remembered, 1) == [1, 1]


def with_a_proxy(bound):
    return proxy.title + proxy(titles) if bound else 1


def test_proxy_that_is_not_bound():
    assert in_workers(with_a_proxy, False) == [1, 1]
