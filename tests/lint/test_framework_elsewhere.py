"""Programs of several files, of which those on the way to a pitfall import no framework.

Each text holds the files of a program, after ``# file: name.py`` lines; a comment at a line's end
names the codes that are reported there, and all other lines are silent.
"""

from __future__ import annotations

import re

import pytest

CASES = {
    "functions that register themselves in another module's table": """
# file: main.py
from joblib import Parallel, delayed
from metrics import METRICS

def evaluate(pairs, name):
    function = METRICS[name]
    return Parallel(n_jobs=4)(delayed(function)(a, b) for a, b in pairs)

if __name__ == "__main__":
    print(evaluate([(1.0, 2.0)] * 8, "chamfer"))
# file: metrics/__init__.py
from .registry import METRICS, register
from . import distances
# file: metrics/registry.py
METRICS = {}

def register(name):
    def keep(function):
        METRICS[name] = function
        return function
    return keep
# file: metrics/distances.py
import torch
from .registry import register

@register("chamfer")
def chamfer(a, b):
    return abs(torch.tensor(a).cuda() - b).item()  # GG201
""",
    "functions that register themselves with an object": """
# file: main.py
from joblib import Parallel, delayed
from metrics import METRICS

def evaluate(pairs, name):
    function = METRICS.get(name)
    return Parallel(n_jobs=4)(delayed(function)(a, b) for a, b in pairs)

if __name__ == "__main__":
    print(evaluate([(1.0, 2.0)] * 8, "chamfer"), evaluate([(1.0, 2.0)] * 8, "plain"))
# file: metrics/__init__.py
from .registry import METRICS
from . import distances
# file: metrics/registry.py
class Registry:
    def __init__(self):
        self.known = {}

    def register(self, name):
        def keep(function):
            self.known[name] = function
            return function
        return keep

    def get(self, name):
        return self.known[name]

METRICS = Registry()
# file: metrics/distances.py
import torch
from .registry import METRICS

@METRICS.register("chamfer")
def chamfer(a, b):
    return abs(torch.tensor(a).cuda() - b).item()  # GG201

@METRICS.register("plain")
def plain(a, b):
    return abs(a - b)
""",
    "functions of which only those without a framework register themselves": """
# file: main.py
from joblib import Parallel, delayed
from metrics import METRICS

def evaluate(pairs, name):
    function = METRICS[name]
    return Parallel(n_jobs=4)(delayed(function)(a, b) for a, b in pairs)

if __name__ == "__main__":
    print(evaluate([(1.0, 2.0)] * 8, "plain"))
# file: metrics/__init__.py
from .registry import METRICS, register
from . import distances
# file: metrics/registry.py
METRICS = {}

def register(name):
    def keep(function):
        METRICS[name] = function
        return function
    return keep
# file: metrics/distances.py
import torch
from .registry import register

def chamfer(a, b):
    return abs(torch.tensor(a).cuda() - b).item()

@register("plain")
def plain(a, b):
    return abs(a - b)
""",
    "a function that calls one of its module, which calls another file's": """
# file: main.py
import multiprocessing
from model import multi

def worker(k):
    return multi(k)

if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(3) as pool:
        print(pool.map(worker, [1, 2, 3]))
# file: model.py
from rng import uni

def simulation(k):
    return uni()

def multi(k):
    return simulation(k)

def plain(k):
    return k
# file: rng.py
import torch

def uni():
    return torch.rand(1).item()  # GG304
""",
    "a function beside it that calls nothing of another file": """
# file: main.py
import multiprocessing
from model import plain

def worker(k):
    return plain(k)

if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(3) as pool:
        print(pool.map(worker, [1, 2, 3]))
# file: model.py
from rng import uni

def simulation(k):
    return uni()

def plain(k):
    return k
# file: rng.py
import torch

def uni():
    return torch.rand(1).item()
""",
    "three modules between the workers and the GPU": """
# file: main.py
import multiprocessing
from m1 import f1

def worker(k):
    return f1(k)

if __name__ == "__main__":
    with multiprocessing.Pool(2) as pool:
        print(pool.map(worker, [1, 2, 3]))
# file: m1.py
from m2 import f2

def f1(k):
    return f2(k)
# file: m2.py
from m3 import f3

def f2(k):
    return f3(k)
# file: m3.py
from m4 import f4

def f3(k):
    return f4(k)
# file: m4.py
import torch

def f4(k):
    return torch.zeros(3, device="cuda").sum().item()  # GG201
""",
    "a function and a class that modules without a framework only pass on": """
# file: main.py
from joblib import Parallel, delayed
import shared
from ops import Model, total

model = Model()
print(Parallel(n_jobs=2)(delayed(total)(k) for k in range(3)))
print(Parallel(n_jobs=2)(delayed(model.run)(k) for k in range(3)))
print(Parallel(n_jobs=2)(delayed(shared.mean)(k) for k in range(3)))
print(Parallel(n_jobs=2)(delayed(shared.plain)(k) for k in range(3)))
# file: ops.py
from kernels import Network as Model
from kernels import total
# file: shared.py
from kernels import mean, plain
# file: kernels.py
import torch

def total(k):
    return torch.ones(3, device="cuda").sum().item() * k  # GG201

def mean(k):
    return torch.ones(3, device="cuda").mean().item() * k  # GG201

def plain(k):
    return torch.ones(3).sum().item() * k

class Network:
    def run(self, k):
        return torch.zeros(3).cuda().sum().item()  # GG201
""",
    "a loader's workers, whose number a program passes on": """
# file: main.py
from runner import run

if __name__ == "__main__":
    print(run([[1.0, 2.0], [3.0]], 2))
# file: runner.py
from joblib import Parallel, delayed
from ld import loader

def count(ds, workers):
    return sum(len(b) for b in loader(ds, workers))

def run(parts, workers):
    return Parallel(n_jobs=2)(delayed(count)(p, workers) for p in parts)
# file: ld.py
from torch.utils.data import DataLoader

def loader(ds, workers):
    return DataLoader(ds, batch_size=2, num_workers=workers)  # GG206
""",
    "no such workers": """
# file: main.py
from runner import run

if __name__ == "__main__":
    print(run([[1.0, 2.0], [3.0]], 0))
# file: runner.py
from joblib import Parallel, delayed
from ld import loader

def count(ds, workers):
    return sum(len(b) for b in loader(ds, workers))

def run(parts, workers):
    return Parallel(n_jobs=2)(delayed(count)(p, workers) for p in parts)
# file: ld.py
from torch.utils.data import DataLoader

def loader(ds, workers):
    return DataLoader(ds, batch_size=2, num_workers=workers)
""",
    "a bypassed wrapper, which another file trains": """
# file: main.py
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from engine import fit
dist.init_process_group("gloo")
net = DDP(torch.nn.Linear(3, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
fit(net, opt, torch.ones(3, 4, 3))
# file: engine.py
def fit(net, opt, xs):
    for x in xs:
        opt.zero_grad()
        net.module(x).square().mean().backward()  # GG502
        opt.step()
""",
    "a wrapper that another file trains": """
# file: main.py
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from engine import fit
dist.init_process_group("gloo")
net = DDP(torch.nn.Linear(3, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
fit(net, opt, torch.ones(3, 4, 3))
# file: engine.py
def fit(net, opt, xs):
    for x in xs:
        opt.zero_grad()
        net(x).square().mean().backward()
        opt.step()
""",
    "a wrapper, an engine and a program, each in a file": """
# file: main.py
import torch.distributed as dist
from engine import Engine
from setup import build
if __name__ == "__main__":
    dist.init_process_group("gloo")
    Engine(*build()).fit(3)
# file: engine.py
class Engine:
    def __init__(self, net, opt, loader):
        self.net, self.opt, self.loader = net, opt, loader
    def fit(self, epochs):
        for epoch in range(epochs):
            for x, in self.loader:
                self.opt.zero_grad()
                self.net.module(x).square().mean().backward()  # GG502
                self.opt.step()
# file: setup.py
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.nn.parallel import DistributedDataParallel
def build():
    net = DistributedDataParallel(torch.nn.Linear(3, 1))
    ds = TensorDataset(torch.randn(64, 3))
    loader = DataLoader(ds, 8)
    return net, torch.optim.SGD(net.parameters(), lr=0.1), loader
""",
    "a model without a wrapper": """
# file: main.py
import torch.distributed as dist
from engine import Engine
from setup import build
if __name__ == "__main__":
    dist.init_process_group("gloo")
    Engine(*build()).fit(3)
# file: engine.py
class Engine:
    def __init__(self, net, opt, loader):
        self.net, self.opt, self.loader = net, opt, loader
    def fit(self, epochs):
        for epoch in range(epochs):
            for x, in self.loader:
                self.opt.zero_grad()
                self.net.module(x).square().mean().backward()
                self.opt.step()
# file: setup.py
import torch
from torch.utils.data import DataLoader, TensorDataset
class Holder:
    def __init__(self, module):
        self.module = module
    def parameters(self):
        return self.module.parameters()
def build():
    net = Holder(torch.nn.Linear(3, 1))
    ds = TensorDataset(torch.randn(64, 3))
    loader = DataLoader(ds, 8)
    return net, torch.optim.SGD(net.parameters(), lr=0.1), loader
""",
    "what is gathered, over two files": """
# file: main.py
import torch
import torch.distributed as dist
from loop import step
dist.init_process_group("gloo")
net = torch.nn.Linear(3, 1)
step(net, torch.optim.SGD(net.parameters(), lr=0.1), torch.ones(2, 3))
# file: loop.py
from comm import concat_all
def step(net, opt, x):
    z = concat_all(net(x))
    loss = z.var()
    opt.zero_grad()
    loss.backward()
    opt.step()
# file: comm.py
import torch
import torch.distributed as dist
def concat_all(t):
    parts = [torch.empty_like(t) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, t)  # GG501
    return torch.cat(parts)
""",
    "what is gathered, and put back": """
# file: main.py
import torch
import torch.distributed as dist
from loop import step
dist.init_process_group("gloo")
net = torch.nn.Linear(3, 1)
step(net, torch.optim.SGD(net.parameters(), lr=0.1), torch.ones(2, 3))
# file: loop.py
from comm import concat_all
def step(net, opt, x):
    z = concat_all(net(x))
    loss = z.var()
    opt.zero_grad()
    loss.backward()
    opt.step()
# file: comm.py
import torch
import torch.distributed as dist
def concat_all(t):
    parts = [torch.empty_like(t) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, t)
    parts[dist.get_rank()] = t
    return torch.cat(parts)
""",
    "a sampler without an epoch, of a loader that another file makes": """
# file: main.py
import torch
import torch.distributed as dist
from engine import Engine
from builder import build
dist.init_process_group("gloo")
loader = build()
net = torch.nn.Linear(3, 1)
Engine(net, torch.optim.SGD(net.parameters(), lr=0.1), loader).fit(3)
# file: engine.py
import torch
class Engine:
    def __init__(self, net, opt, loader):
        self.net, self.opt, self.loader = net, opt, loader
    def fit(self, epochs):
        for epoch in range(epochs):  # GG503
            for x, in self.loader:
                self.opt.zero_grad()
                self.net(x).square().mean().backward()
                self.opt.step()
# file: builder.py
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
def build():
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
    ds = TensorDataset(torch.randn(64, 3))
    loader = DataLoader(ds, 8, sampler=DistributedSampler(ds))
    return loader
""",
    "a sampler with an epoch": """
# file: main.py
import torch
import torch.distributed as dist
from engine import Engine
from builder import build
dist.init_process_group("gloo")
loader = build()
net = torch.nn.Linear(3, 1)
Engine(net, torch.optim.SGD(net.parameters(), lr=0.1), loader).fit(3)
# file: engine.py
import torch
class Engine:
    def __init__(self, net, opt, loader):
        self.net, self.opt, self.loader = net, opt, loader
    def fit(self, epochs):
        for epoch in range(epochs):
            self.loader.sampler.set_epoch(epoch)
            for x, in self.loader:
                self.opt.zero_grad()
                self.net(x).square().mean().backward()
                self.opt.step()
# file: builder.py
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
def build():
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
    ds = TensorDataset(torch.randn(64, 3))
    loader = DataLoader(ds, 8, sampler=DistributedSampler(ds))
    return loader
""",
    "tensors of another file, given to workers": """
# file: main.py
from joblib import Parallel, delayed
from data import gpu_batches, leaf
from worker import total
print(Parallel(n_jobs=2)(delayed(total)(x) for x in gpu_batches()))  # GG202
w = leaf()
print(Parallel(n_jobs=2)(delayed(total)(w * k) for k in range(3)))  # GG101
# file: data.py
import torch
def gpu_batches():
    return [torch.ones(3).cuda() for _ in range(4)]
def leaf():
    return torch.ones(3, requires_grad=True)
# file: worker.py
def total(x):
    return x.sum().item()
""",
    "tensors of another file, on the CPU": """
# file: main.py
from joblib import Parallel, delayed
from data import gpu_batches, leaf
from worker import total
print(Parallel(n_jobs=2)(delayed(total)(x) for x in gpu_batches()))
w = leaf()
print(Parallel(n_jobs=2)(delayed(total)(w * k) for k in range(3)))
# file: data.py
import torch
def gpu_batches():
    return [torch.ones(3) for _ in range(4)]
def leaf():
    return torch.ones(3)
# file: worker.py
def total(x):
    return x.sum().item()
""",
    "a model of another file, which threads train": """
# file: main.py
from concurrent.futures import ThreadPoolExecutor, wait
from net import build, batches
from worker import train
if __name__ == "__main__":
    net, opt = build()
    with ThreadPoolExecutor(4) as ex:
        wait([ex.submit(train, net, opt, x) for x in batches()])
# file: net.py
import torch
def build():
    net = torch.nn.Linear(3, 1)
    return net, torch.optim.SGD(net.parameters(), lr=0.1)
def batches():
    return torch.randn(4, 8, 3)
# file: worker.py
def train(model, opt, x):
    opt.zero_grad()  # GG302
    model(x).square().mean().backward()
    opt.step()  # GG302
""",
    "a model of another file, which threads ask": """
# file: main.py
from concurrent.futures import ThreadPoolExecutor, wait
from net import build, batches
from worker import train
if __name__ == "__main__":
    net, opt = build()
    with ThreadPoolExecutor(4) as ex:
        wait([ex.submit(train, net, opt, x) for x in batches()])
# file: net.py
import torch
def build():
    net = torch.nn.Linear(3, 1)
    return net, torch.optim.SGD(net.parameters(), lr=0.1)
def batches():
    return torch.randn(4, 8, 3)
# file: worker.py
def train(model, opt, x):
    return model(x).mean().item()
""",
    "a generator that a program gives to tasks of another file": """
# file: main.py
import numpy as np
from runner import run
print(run(np.random.default_rng(0)))
# file: runner.py
from joblib import Parallel, delayed
from worker import work
def run(rng):
    return Parallel(n_jobs=2)(delayed(work)(rng, k) for k in range(3))  # GG305
# file: worker.py
def work(rng, k):
    return rng.normal() + k
""",
    "a generator for each task": """
# file: main.py
import numpy as np
from runner import run
print(run(np.random.default_rng(0)))
# file: runner.py
from joblib import Parallel, delayed
from worker import work
def run(rng):
    return Parallel(n_jobs=2)(delayed(work)(r, k) for k, r in enumerate(rng.spawn(3)))
# file: worker.py
def work(rng, k):
    return rng.normal() + k
""",
    "a start method that a program passes on": """
# file: main.py
from runner import run
if __name__ == "__main__":
    print(run(3, "fork"))
# file: runner.py
from multiprocessing import get_context
from worker import work
def run(n, method):
    with get_context(method).Pool(2) as p:
        return p.map(work, range(n))
# file: worker.py
import numpy as np
def work(k, draw=True):
    if draw:
        return np.random.rand() + k  # GG304
    return k
""",
    "another start method": """
# file: main.py
from runner import run
if __name__ == "__main__":
    print(run(3, "spawn"))
# file: runner.py
from multiprocessing import get_context
from worker import work
def run(n, method):
    with get_context(method).Pool(2) as p:
        return p.map(work, range(n))
# file: worker.py
import numpy as np
def work(k, draw=True):
    if draw:
        return np.random.rand() + k
    return k
""",
    "tensors and models of another file that its functions change": """
# file: main.py
from joblib import Parallel, delayed
import state

if __name__ == "__main__":
    state.scale(2.0)
    state.set_up()
    Parallel(n_jobs=2)(delayed(state.scaled)(x) for x in [1.0, 2.0])
    Parallel(n_jobs=2)(delayed(state.shifted)(x) for x in [1.0, 2.0])
    Parallel(n_jobs=2)(delayed(state.asked)(x) for x in [1.0, 2.0])
    Parallel(n_jobs=2)(delayed(state.kept)(x) for x in [1.0, 2.0])
    Parallel(n_jobs=2)(delayed(state.counted)(x) for x in [1.0, 2.0])
# file: state.py
import torch
from nets import build

SCALE, FIXED = torch.ones(1), torch.ones(1)
FIRST = SHIFT = torch.zeros(1)
NET = build(1)
COUNTS = [1]

def scale(value):
    SCALE.fill_(value)
    SHIFT.fill_(value)
    COUNTS.append(value)

def set_up():
    NET.weight.data.fill_(1.0)

def scaled(x):
    return (SCALE * x).item()  # GG109

def shifted(x):
    return (SHIFT + x).item()  # GG109

def asked(x):
    return NET(x).item()  # GG109

def kept(x):
    return (FIXED * x).item()

def counted(x):
    return x * len(COUNTS)
# file: nets.py
import torch

def build(size):
    return torch.nn.Linear(size, 1)
""",
    "a model of another file that comes from a third": """
# file: main.py
from joblib import Parallel, delayed
import state

state.set_up(2.0)
Parallel(n_jobs=2)(delayed(state.asked)(x) for x in [1.0, 2.0])
# file: state.py
from nets import build

NET = build(1)

def set_up(value):
    NET.weight.data.fill_(value)

def asked(x):
    return NET(x).item()  # GG109
# file: nets.py
import torch

def build(size):
    return torch.nn.Linear(size, 1)
""",
    "a cache of a third file": """
# file: main.py
import torch
from feats import feats
net = torch.nn.Linear(3, 1)
for _ in range(3):
    feats(net, torch.ones(2, 3)).mean().backward()
# file: feats.py
from cache import memory
@memory.cache
def feats(net, x):  # GG108
    return net(x)
# file: cache.py
from joblib import Memory
memory = Memory(".c", verbose=0)
""",
    "a cache in a file without a framework": """
# file: main.py
import torch
from feats import feats

net = torch.nn.Linear(3, 1)
for _ in range(3):
    feats(net, torch.ones(2, 3)).mean().backward()
# file: feats.py
from joblib import Memory

memory = Memory(".c", verbose=0)

@memory.cache
def feats(net, x):  # GG108
    return net(x)
""",
    "a cache of another file's function in a program without a framework": """
# file: main.py
from joblib import Memory
from encoder import Encoder, detached, encode
memory = Memory(".c", verbose=0)
cached = [memory.cache(encode), memory.cache(detached)]
encoder = Encoder(memory)
for _ in range(2):
    print([f([1.0, 2.0, 3.0, 4.0]) for f in cached])
    encoder.encode([1.0, 2.0, 3.0, 4.0]).sum().backward()
# file: encoder.py
import torch
net = torch.nn.Linear(4, 2)
def encode(x):  # GG108
    return net(torch.tensor(x))
def detached(x):
    return net(torch.tensor(x)).detach()
class Encoder:
    def __init__(self, memory):
        self.encode = memory.cache(self.encoded)
    @staticmethod
    def encoded(x):  # GG108
        return net(torch.tensor(x))
""",
    "a cache of a third file in a program without a framework": """
# file: main.py
from cache import memory
from features import encode
cached = memory.cache(encode)
print(cached([1.0, 2.0, 3.0, 4.0]))
# file: cache.py
from joblib import Memory
memory = Memory(".c", verbose=0)
# file: features.py
from encoder import net
def encode(x):  # GG108
    return net(x)
# file: encoder.py
import torch
net = torch.nn.Linear(4, 2)
""",
    "a cache of what has no history": """
# file: main.py
import torch
from feats import feats
net = torch.nn.Linear(3, 1)
for _ in range(3):
    feats(net, torch.ones(2, 3)).mean().backward()
# file: feats.py
from cache import memory
@memory.cache
def feats(net, x):
    return net(x).detach()
# file: cache.py
from joblib import Memory
memory = Memory(".c", verbose=0)
""",
    "the generator of NumPy by another name": """
# file: main.py
import numpy.random as npr
import multiprocessing as mp

npr.seed(0)

def f(i):
    return npr.rand()  # GG304

if __name__ == "__main__":
    with mp.get_context("fork").Pool(2) as p:
        print(p.map(f, range(4)))
""",
    "the generator of NumPy by another name, seeded for each task": """
# file: main.py
import numpy.random as npr
import multiprocessing as mp

def f(i):
    npr.seed(i)
    return npr.rand()

if __name__ == "__main__":
    with mp.get_context("fork").Pool(2) as p:
        print(p.map(f, range(4)))
""",
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_reported_where_files_on_the_way_import_no_framework(project, name):
    parts = re.split(r"^# file: (\S+)\n", CASES[name], flags=re.MULTILINE)
    expected = []
    for path, source in zip(parts[1::2], parts[2::2], strict=True):
        project.write(path, source)
        for number, line in enumerate(source.splitlines(), 1):
            codes = re.findall(r"GG\d{3}", line.partition("  # ")[2])
            expected += [(code, path, number) for code in codes]
    assert sorted(project.codes()) == sorted(expected)
