"""State that `forward` writes in the replicas of `DataParallel`, on two simulated GPUs."""

import torch
from torch import nn

EXPECT = {
    "test_counter": {"GG111"},
    "test_buffer_and_attribute": {"GG111"},
    "test_average_in_a_part": {"GG111"},
    "test_in_a_method": {"GG111"},
}
DETAILS = {
    "test_buffer_and_attribute": {
        "GG111": {"object": "centre", "buffers": ["centre", "calls"], "framework": "torch"}
    },
    "test_average_in_a_part": {"GG111": {"object": "0.mean"}},
}


class Net(nn.Module):
    """`way(self, y)` is what its forward pass does with its output."""

    def __init__(self, way=None, **buffers):
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.way = way
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer)
        self.calls = 0

    def forward(self, x):
        y = self.linear(x)
        if self.way is not None:
            self.way(self, y)
        return y


class Counting(Net):
    def forward(self, x):
        self.calls += 1
        return super().forward(x)


class Averaging(Net):
    def __init__(self):
        super().__init__()
        self.mean = torch.zeros(2, device="cuda")

    def forward(self, x):
        y = super().forward(x)
        self.mean = 0.9 * self.mean.to(y.device) + 0.1 * y.detach().mean(0)
        return y


class ByMethod(Net):
    def forward(self, x):
        self.count()
        return super().forward(x)

    def count(self):
        self.calls = self.calls + 1


def train(module, **options):
    parallel = nn.DataParallel(module.cuda(), **options)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        parallel(torch.ones(4, 2, device="cuda")).sum().backward()  # -> GG111:warning
        optimizer.step()
    return parallel.module


def train_well(module, **options):
    parallel = nn.DataParallel(module.cuda(), **options)
    for _ in range(3):
        parallel(torch.ones(4, 2, device="cuda")).sum().backward()
    return parallel.module


def assign(net, y):
    net.centre = 0.9 * net.centre + 0.1 * y.detach().mean(0)


def test_counter():
    assert train(Counting()).calls == 0


def test_buffer_and_attribute():
    net = train(Counting(assign, centre=torch.zeros(2)))
    assert net.centre.tolist() == [0, 0]


def test_average_in_a_part():
    part = train(nn.Sequential(Averaging(), nn.Linear(2, 2)))[0]
    assert part.mean.tolist() == [0, 0]


def test_in_a_method():
    assert train(ByMethod()).calls == 0


def test_buffer_without_gradients():
    parallel = nn.DataParallel(Net(assign, centre=torch.zeros(2)).cuda())
    with torch.no_grad():
        parallel(torch.ones(4, 2, device="cuda"))  # -> GG111:warning
    assert parallel.module.centre.tolist() == [0, 0]


def test_written_in_place():
    """As the advice says."""

    def way(net, y):
        net.centre.copy_(0.9 * net.centre + 0.1 * y.detach().mean(0))
        net.count.add_(1)

    net = train_well(Net(way, centre=torch.zeros(2), count=torch.zeros(())))
    assert net.count.item() == 3
    assert net.centre.tolist() != [0, 0]


def test_statistics():
    net = train_well(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    assert net[1].num_batches_tracked.item() == 3


def test_shared_list():
    seen = []
    net = Net(lambda net, y: net.seen.append(len(y)))
    net.seen = seen
    train_well(net)
    assert len(seen) == 6


class Caching(Net):
    def __init__(self):
        super().__init__()
        self.cached = None
        self.length = 0

    def forward(self, x):
        if self.cached is None or self.length != len(x):
            self.length = len(x)
            self.cached = torch.arange(self.length, device=x.device)
        return super().forward(x) + self.cached[:, None]


def test_cache():
    train_well(Caching())


def test_last_output():
    def way(net, y):
        net.last = y

    net = Net(way)
    net.last = None
    train_well(net)


def test_buffer_that_is_not_kept():
    net = Net(assign)
    net.register_buffer("centre", torch.zeros(2), persistent=False)
    train_well(net)


def test_same_value():
    def way(net, y):
        net.scale = net.scale.clone()

    train_well(Net(way, scale=torch.ones(2)))


def test_one_device():
    assert train_well(Counting(), device_ids=[0]).calls == 3


def test_nothing_written():
    train_well(Net())
