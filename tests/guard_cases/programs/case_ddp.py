"""DDP models whose parameters get no gradient: the next forward pass raises, or nothing happens."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

DETAILS = {
    "test_layer_not_called": {
        "GG504": {
            "objects": ["extra.weight", "extra.bias"],
            "reason": "not-in-graph",
            "rank": 0,
            "backend": "gloo",
            "shape": [2, 2],
        }
    },
    "test_detached": {"GG504": {"objects": ["body.weight", "body.bias"], "reason": "cut"}},
    "test_under_no_grad": {"GG504": {"objects": ["body.weight", "body.bias"], "reason": "no-grad"}},
    "test_output_not_in_the_loss": {
        "GG504": {"objects": ["extra.weight", "extra.bias"], "reason": "not-in-graph"}
    },
    "test_frozen_after_wrapping": {
        "GG504": {"objects": ["body.weight", "body.bias"], "reason": "frozen"}
    },
    "test_through_numpy": {"GG504": {"objects": ["body.weight", "body.bias"], "reason": "cut"}},
    "test_branch_of_the_third_iteration": {
        "GG504": {"objects": ["extra.weight", "extra.bias"], "reason": "not-in-graph"}
    },
    "test_branch_of_the_twentieth_iteration": {
        "GG504": {"objects": ["extra.weight", "extra.bias"], "reason": "not-in-graph"}
    },
    "test_detached_in_the_twentieth_iteration": {
        "GG504": {"objects": ["body.weight", "body.bias"], "reason": "not-in-graph"}
    },
    "test_graph_that_changes_though_static": {
        "GG504": {"objects": ["extra.weight", "extra.bias"], "reason": "not-in-graph"}
    },
    "test_after_accumulation": {
        "GG504": {"objects": ["extra.weight", "extra.bias"], "reason": "not-in-graph"}
    },
    "test_compiled_module": {
        "GG504": {"objects": ["extra.weight", "extra.bias"], "reason": "not-in-graph"}
    },
    "test_target_network_inside": {
        "GG504": {"objects": ["target.weight", "target.bias"], "reason": "no-grad"}
    },
    "test_several_reasons": {"GG504": {"object": "body.weight", "reason": "several"}},
}
ERROR = "Expected to have finished reduction in the prior iteration"


@pytest.fixture(autouse=True, scope="module")
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def batch():
    return torch.linspace(-1, 1, 6).reshape(3, 2)


class Net(nn.Module):
    """`way(self, x)` is the forward pass."""

    def __init__(self, way):
        super().__init__()
        self.body = nn.Linear(2, 2)
        self.extra = nn.Linear(2, 2)
        self.head = nn.Linear(2, 1)
        self.way = way
        self.step = 0

    def forward(self, x):
        self.step += 1
        return self.way(self, x)


def everything(net, x):
    return net.head(net.body(x) + net.extra(x))


def without_extra(net, x):
    return net.head(net.body(x))


def detached(net, x):
    return net.head(net.body(x).detach() + net.extra(x))


def train(model, steps=2):
    for _ in range(steps):
        model(batch()).sum().backward()


def test_layer_not_called():
    model = DDP(Net(without_extra))
    model(batch()).sum().backward()
    with pytest.raises(RuntimeError, match=ERROR):
        model(batch())  # -> GG504:error


def test_detached():
    model = DDP(Net(detached))
    model(batch()).sum().backward()
    with pytest.raises(RuntimeError, match=ERROR):
        model(batch())  # -> GG504


def test_under_no_grad():
    def way(net, x):
        with torch.no_grad():
            hidden = net.body(x)
        return net.head(hidden + net.extra(x))

    model = DDP(Net(way))
    model(batch()).sum().backward()
    with pytest.raises(RuntimeError, match=ERROR):
        model(batch())  # -> GG504


def test_output_not_in_the_loss():
    model = DDP(Net(lambda net, x: (net.head(net.body(x)), net.extra(x))))
    first, _ = model(batch())
    first.sum().backward()
    with pytest.raises(RuntimeError, match=ERROR):
        model(batch())  # -> GG504


def test_frozen_after_wrapping():
    model = DDP(Net(everything))
    model.module.body.requires_grad_(False)
    model(batch()).sum().backward()
    with pytest.raises(RuntimeError, match=ERROR):
        model(batch())  # -> GG504


def test_through_numpy():
    def way(net, x):
        hidden = torch.from_numpy(net.body(x).detach().numpy())
        return net.head(hidden + net.extra(x))

    model = DDP(Net(way))
    model(batch()).sum().backward()
    with pytest.raises(RuntimeError, match=ERROR):
        model(batch())  # -> GG504


def test_branch_of_the_third_iteration():
    model = DDP(Net(lambda net, x: (without_extra if net.step == 3 else everything)(net, x)))
    train(model, 3)
    with pytest.raises(RuntimeError, match=ERROR):
        model(batch())  # -> GG504


def test_branch_of_the_twentieth_iteration():
    model = DDP(Net(lambda net, x: (without_extra if net.step == 20 else everything)(net, x)))
    train(model, 20)
    with pytest.raises(RuntimeError, match=ERROR):
        model(batch())  # -> GG504


def test_detached_in_the_twentieth_iteration():
    model = DDP(Net(lambda net, x: (detached if net.step == 20 else everything)(net, x)))
    train(model, 20)
    with pytest.raises(RuntimeError, match=ERROR):
        model(batch())  # -> GG504


def test_several_reasons():
    model = DDP(Net(lambda net, x: net.head(net.body(x).detach())))
    model(batch()).sum().backward()
    with pytest.raises(RuntimeError, match=ERROR):
        model(batch())  # -> GG504


def test_graph_that_changes_though_static():
    way = Net(lambda net, x: (everything if net.step == 1 else without_extra)(net, x))
    model = DDP(way, static_graph=True)
    train(model, 2)
    with pytest.raises(RuntimeError, match=ERROR):
        model(batch())  # -> GG504


def test_after_accumulation():
    model = DDP(Net(lambda net, x: (without_extra if net.step == 3 else everything)(net, x)))
    with model.no_sync():
        train(model, 2)
    train(model, 1)
    with pytest.raises(RuntimeError, match=ERROR):
        model(batch())  # -> GG504


def test_compiled_module():
    model = DDP(torch.compile(Net(without_extra), backend="eager"))
    model(batch()).sum().backward()
    with pytest.raises(RuntimeError, match=ERROR):
        model(batch())  # -> GG504


def test_caught_and_repaired():
    net = Net(without_extra)
    model = DDP(net)
    model(batch()).sum().backward()
    with pytest.raises(RuntimeError, match=ERROR):
        model(batch())  # -> GG504
    net.way = everything
    model = DDP(net)
    train(model, 3)


def test_target_network_inside():
    class Student(nn.Module):
        def __init__(self):
            super().__init__()
            self.student = nn.Linear(2, 2)
            self.target = nn.Linear(2, 2)

        def forward(self, x):
            with torch.no_grad():
                for mine, other in zip(
                    self.target.parameters(), self.student.parameters(), strict=True
                ):
                    mine.lerp_(other, 0.1)
                wanted = self.target(x)
            return (self.student(x) - wanted).pow(2)

    model = DDP(Student())
    model(batch()).sum().backward()
    with pytest.raises(RuntimeError, match=ERROR):
        model(batch())  # -> GG504


def test_all_used():
    train(DDP(Net(everything)), 6)


def test_unused_is_looked_for():
    train(DDP(Net(without_extra), find_unused_parameters=True), 6)


def test_frozen_before_wrapping():
    net = Net(without_extra)
    net.extra.requires_grad_(False)
    train(DDP(net), 6)


def test_accumulation():
    model = DDP(Net(everything))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        with model.no_sync():
            train(model, 2)
        train(model, 1)
        optimizer.step()
        optimizer.zero_grad()


def test_one_iteration():
    train(DDP(Net(without_extra)), 1)


def test_evaluation_between():
    model = DDP(Net(everything))
    for _ in range(6):
        train(model, 1)
        model.eval()
        with torch.no_grad():
            model(batch())
        model.train()


def test_two_losses():
    model = DDP(Net(lambda net, x: (net.head(net.body(x)), net.extra(x))))
    for _ in range(8):
        first, second = model(batch())
        first.sum().backward()
        second.sum().backward()


def test_ignored_parameters():
    net = Net(without_extra)
    DDP._set_params_and_buffers_to_ignore_for_model(net, ["extra.weight", "extra.bias"])
    train(DDP(net), 6)


def test_static_graph():
    train(DDP(Net(without_extra), static_graph=True), 6)


def test_two_models():
    generator, critic = DDP(Net(everything)), DDP(nn.Linear(1, 1))
    for _ in range(6):
        critic(generator(batch()).detach()).sum().backward()
        critic.requires_grad_(False)
        critic.module(generator(batch())).sum().backward()
        critic.requires_grad_(True)


def test_another_error():
    def way(net, x):
        raise RuntimeError("a fault of the program's")

    model = DDP(Net(way))
    with pytest.raises(RuntimeError, match="a fault of the program's"):
        model(batch())


def test_wrapped_by_torch_compile():
    train(torch.compile(DDP(Net(everything)), backend="eager"), 6)


def test_gradient_by_autograd_grad_of_inputs():
    model = DDP(Net(everything))
    for _ in range(6):
        x = batch().requires_grad_()
        torch.autograd.grad(model(x).sum(), x)
