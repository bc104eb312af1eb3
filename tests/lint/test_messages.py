"""What findings say of a program: in its own names, and once."""

from __future__ import annotations

import pytest

DECORATED = """\
import functools

import torch
from joblib import Parallel, delayed


def timed(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)

    return wrapper


@timed
def fit(seed):
    weights = torch.zeros(3, requires_grad=True)
    return (weights - seed).sum()


Parallel(2)(delayed(fit)(seed) for seed in range(2))
"""


def test_a_decorated_worker_goes_by_its_own_name(project):
    project.write("program.py", DECORATED)
    (found,) = project.lint(json_output=True).json["findings"]
    assert found["location"]["function"] == "fit"
    assert found["message"].startswith("`fit` returns a tensor")
    assert found["trace"][0]["message"] == "`fit` runs in loky workers"
    assert found["edits"] is None  # the wrapper may do anything with what it is given


def test_one_function_that_seeds_all_generators_is_one_finding(project):
    source = """\
import random

import numpy as np
import torch
from joblib import Parallel, delayed


def seed_everything(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def sample(seed):
    seed_everything(seed)
    np.random.seed(seed + 1)
    return torch.randn(3).tolist(), np.random.rand(), random.random()


Parallel(n_jobs=4, backend="threading")(delayed(sample)(seed) for seed in range(8))
"""
    project.write("program.py", source)
    own, all_of_them = project.lint(json_output=True).json["findings"][::-1]
    assert all_of_them["location"]["line"] == 9
    assert all_of_them["message"].startswith(
        "`random.seed()`, `numpy.random.seed()` and `torch.manual_seed()` seed the generators"
    )
    assert "`random.Random(seed)`" in all_of_them["fix"]
    assert "`np.random.default_rng(seed)`" in all_of_them["fix"]
    assert [(step["line"], step["message"]) for step in all_of_them["trace"][2:]] == [
        (10, "`numpy.random.seed()` seeds one, too"),
        (11, "`torch.manual_seed()` seeds one, too"),
    ]
    assert own["location"]["line"] == 16
    assert own["message"].startswith("`numpy.random.seed()` seeds the generator that")
    assert "`random.Random(seed)`" not in own["fix"]


def test_all_that_is_on_the_gpu_is_named(project):
    source = """\
import torch
from joblib import Parallel, delayed


def count(*given, **named):
    return len(given)


batch = torch.ones(3).to("cuda")
net = torch.nn.Linear(3, 1).cuda()
other = torch.ones(3)
a, b, c, d, e = (torch.ones(3, device="cuda") for _ in range(5))
Parallel(2)(delayed(count)(batch, other, {"net": net}, k) for k in range(3))
Parallel(2)(delayed(count)(a, b, c, d, e, batch, last=batch) for k in range(3))
"""
    project.write("program.py", source)
    two, seven = project.lint("--select", "GG202", json_output=True).json["findings"]
    assert two["message"].startswith("`batch` and `given[2]['net']` are on the GPU and are pickled")
    assert "gets them creates" in two["message"]
    assert "tensor.cpu()" not in two["fix"]  # which moves a module in place
    assert [(step["line"], step["message"]) for step in two["trace"][:2]] == [
        (9, "`batch` is put on the GPU here"),
        (10, "`given[2]['net']` is put on the GPU here"),
    ]
    assert seven["message"].startswith("`a`, `b`, `c`, `d`, `e` and 2 more are on the GPU")
    assert [(step["line"], step["message"]) for step in seven["trace"][:2]] == [
        (12, "`a`, `b`, `c`, `d` and `e` are put on the GPU here"),
        (9, "`batch` and `last` are put on the GPU here"),
    ]
    assert "tensor.cpu()" in seven["fix"]


def test_what_is_on_the_gpu_came_there_before_it_was_sent(project):
    """Neither the worker nor what comes later has put there what was sent."""
    source = """\
import copy
import multiprocessing

import torch

spawn = multiprocessing.get_context("spawn")


class Net(torch.nn.Module):
    def __init__(self, device):
        super().__init__()
        self.head = torch.nn.Linear(3, 1)
        self.to(device)


class Evaluator:
    def __init__(self, net):
        self.net = net

    def run(self):
        self.net.to("cuda")
        return self.net(torch.ones(3, device="cuda"))


def evaluate(net):
    return net.cuda()


def main():
    evaluators = [Evaluator(Net("cuda")) for _ in range(2)]
    for _ in range(2):
        for it in evaluators:
            spawn.Process(target=it.run).start()


def later():
    net = torch.nn.Linear(3, 1)
    net.cuda()
    other = copy.deepcopy(net)
    made = torch.nn.Linear(3, 1, device="cuda")
    for _ in range(3):
        spawn.Process(target=evaluate, args=(net,)).start()
        spawn.Process(target=evaluate, args=(other,)).start()
        spawn.Process(target=evaluate, args=(made,)).start()
    net.cpu()
    net.to("cuda:1")


def back():
    with spawn.Pool(2) as pool:
        returned = pool.apply(evaluate, (torch.nn.Linear(3, 1),))
        pool.apply(evaluate, (returned,))


if __name__ == "__main__":
    main()
    later()
    back()
"""
    project.write("program.py", source)
    found = project.lint("--select", "GG202", json_output=True).json["findings"]
    lines = source.splitlines()
    put = {
        step["message"].split("`")[1]: lines[step["line"] - 1].strip()
        for finding in found
        for step in finding["trace"]
        if step["message"].endswith("put on the GPU here")
    }
    assert len(found) == 5
    assert put == {
        "it.net": "self.to(device)",
        "net": "net.cuda()",
        "other": "net.cuda()",
        "returned": "return net.cuda()",
    }


GIVEN = """\
import asyncio
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import torch
from joblib import Parallel, delayed
from torch.multiprocessing import Pool, spawn

w = torch.ones(3, requires_grad=True)
ws = [w]
pairs = [(1, w)]
some = [(k, w) for k in range(3) if k]
mixed = []
for k in range(5):
    mixed.append((k, w) if k else (k, w, k))
    if k > 2:
        some.append((k, w))


def one(x):
    return 1


def two(x, y, *more):
    return 1


async def main(loop, executor):
    await loop.run_in_executor(executor, two, 1, w)  # w


if __name__ == "__main__":
    with Pool(2) as pool:
        pool.map(one, ws)  # ws[...]
        pool.map(one, [w])  # w
        pool.map(one, [w * k for k in range(3)])  # w * k
        pool.map(one, [w] * 3)  # w
        pool.map(one, [w, ws[0]])  # x
        pool.starmap(two, pairs)  # pairs[...][1]
        pool.starmap(two, some)  # some[...][1]
        pool.starmap(two, mixed)  # mixed[...][...]
        pool.starmap(two, [pair for pair in mixed])  # pair[...]
        pool.starmap(two, [(k, w) if k else (k, w, k) for k in range(5)])  # an argument
        pool.starmap(two, [(k, w) for k in range(3)])  # w
        pool.starmap(two, zip(range(3), ws))  # ws[...]
        pool.apply_async(two, (1, w))  # w
    with ProcessPoolExecutor() as executor:
        executor.map(two, range(3), ws)  # ws[...]
        executor.submit(two, 1, w)  # w
        for pair in mixed:
            executor.submit(two, 1, *pair)  # pair[...]
            executor.submit(two, *pair, 1)  # an argument
            executor.submit(two, *pair, *pair)  # an argument
        executor.submit(two, {"w": w}, 1)  # x['w']
        asyncio.run(main(asyncio.get_event_loop(), executor))
    multiprocessing.get_context("spawn").Process(target=two, args=(1, w)).start()  # w
    spawn(two, args=(w,))  # w
    Parallel(2)(map(delayed(one), ws))  # ws[...]
    Parallel(2)(delayed(two)(*pair) for pair in some)  # y
    Parallel(2)(delayed(two)(*pair) for pair in mixed)  # pair[...]
"""


def test_what_is_given_goes_by_its_name_at_the_call(project):
    project.write("program.py", GIVEN)
    told = {
        finding["location"]["line"]: finding["message"].split("`")[1]
        for finding in project.lint("--select", "GG101", json_output=True).json["findings"]
    }
    lines = enumerate(GIVEN.splitlines(), 1)
    assert told == {number: line.split("  # ")[1] for number, line in lines if "  # " in line}


def test_no_context_is_promised_where_cuda_fails(project):
    source = """\
import multiprocessing

import torch
from joblib import Parallel, delayed


def forked(k):
    return torch.ones(3, device="cuda").sum().item() * k


def both(k):
    return torch.zeros(3, device="cuda").sum().item() * k


if __name__ == "__main__":
    base = torch.zeros(3).cuda()
    with multiprocessing.Pool(2) as pool:
        pool.map(forked, range(3))
        pool.map(both, range(3))
        pool.map(str, [base])
    Parallel(2)(delayed(both)(k) for k in range(3))
"""
    project.write("program.py", source)
    found = project.lint("--select", "GG201,GG202,GG203", json_output=True).json["findings"]
    said = {(item["code"], item["location"]["line"]): item for item in found}
    assert said.keys() == {
        *(("GG201", 8), ("GG201", 12), ("GG203", 18), ("GG203", 19)),
        *(("GG202", 20), ("GG203", 20)),
    }
    assert "no worker can unpickle it, as the parent" in said["GG202", 20]["message"]
    assert "on the GPU, is unpickled in forked workers" in said["GG203", 20]["message"]
    fails = said["GG201", 8]
    assert "raises an error there, as the parent starts CUDA before the fork" in fails["message"]
    assert fails["trace"][-1]["message"].endswith("fails here")
    works = said["GG201", 12]
    assert "inside loky workers: each worker process makes a context" in works["message"]
    assert works["details"]["also_from"] == [{"path": "program.py", "line": 19}]


HANDED_OVER = (
    "creates its own GPU context to reach the parent's memory, which the parent must keep "
    "meanwhile."
)
"""What a GPU tensor costs that torch pickles: with the module, it hands its memory over."""


def test_no_worker_is_said_to_unpickle_what_was_on_the_gpu_before_its_fork(project):
    source = """\
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import torch


def save(x):
    torch.save(x, "x.pt")


def later(loader, device):
    with ProcessPoolExecutor(4) as executor:
        for x in loader:
            if device == "cuda":
                x = x.cuda()
            executor.submit(save, x)  # forked with the first of these


def before(loader, device):
    with multiprocessing.Pool(4) as pool:
        for x in loader:
            if device == "cuda":
                x = x.cuda()
            pool.apply_async(save, (x,))


def fresh(loader, device):
    with ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("spawn")) as executor:
        for x in loader:
            if device == "cuda":
                x = x.cuda()
            executor.submit(save, x)
"""
    project.write("program.py", source)
    options = ("--select", "GG202", "--start-method", "fork")
    found = project.lint(*options, json_output=True).json["findings"]
    said = {it["location"]["function"]: it["message"].partition("workers: ")[2] for it in found}
    assert said.keys() == {"later", "before", "fresh"}
    assert said["later"].startswith("no worker can unpickle it, as the parent starts CUDA before")
    assert said["before"] == said["fresh"] == f"each worker that gets it {HANDED_OVER}"


def test_memory_that_torch_hands_over_is_no_copy(project):
    source = """\
import torch
import joblib
from multiprocessing import get_context


def total(x):
    return x.sum().item()


if __name__ == "__main__":
    x = torch.ones(3).cuda()
    get_context("spawn").Process(target=total, args=(x,)).start()
    torch.multiprocessing.get_context("spawn").Process(target=total, args=(x,)).start()
    joblib.Parallel(2)(joblib.delayed(total)(x) for _ in range(2))
"""
    project.write("program.py", source)
    handed, by_torch, copied = (
        finding["message"]
        for finding in project.lint(json_output=True).json["findings"]
        if finding["code"] == "GG202"
    )
    assert handed == by_torch
    assert handed.endswith(HANDED_OVER)
    assert copied.endswith("creates its own GPU context, and its own copy of the data.")


def test_what_an_initializer_is_given_is_told_where_the_pool_is_made(project):
    text = """\
import multiprocessing

import numpy as np
import torch


def set_up(*given):
    global own
    own = given[0]


def draw(k):
    return own.normal() + k


if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    net, w = torch.nn.Linear(2, 1).cuda(), torch.ones(2, requires_grad=True)
    rng = np.random.default_rng(0)
    with spawn.Pool(2, set_up, (net, w)) as pool:
        pool.map(abs, range(4))
        pool.map(str, range(4))
    with spawn.Pool(2, set_up, (w * 2,)) as pool:
        pool.map(abs, range(4))
    with spawn.Pool(2, set_up, (rng,)) as pool:
        pool.map(draw, range(4))
"""
    project.write("program.py", text)
    findings = project.lint(json_output=True).json["findings"]
    told = {(found["code"], found["location"]["line"]): found for found in findings}
    assert [*told] == [("GG101", 20), ("GG202", 20), ("GG101", 23), ("GG305", 25)]
    assert told["GG202", 20]["message"] == (
        "`net` is on the GPU and is pickled for spawned workers: each worker gets it as it starts "
        f"and {HANDED_OVER}"
    )
    assert (20, "the initializer runs in spawned workers") in [
        (step["line"], step["message"]) for step in told["GG202", 20]["trace"]
    ]
    assert told["GG101", 20]["message"].startswith("`w` requires grad and is pickled for spawned")
    assert told["GG101", 23]["message"].endswith(
        "torch refuses to pickle it, and no worker starts."
    )
    assert "all workers draw the same numbers" in told["GG305", 25]["message"]


def test_a_worker_that_takes_the_gpu_on_several_branches_is_one_finding_that_names_them(project):
    functions = "".join(
        f"def f{k}(x):\n    return torch.full((3,), x + {k}).to('cuda')\n" for k in range(8)
    )
    branches = "".join(f"    if kind == {k}:\n        return f{k}(x).cpu()\n" for k in range(8))
    call = "Parallel(2)(delayed(work)(int(line), 1.0) for line in open('kinds'))\n"
    source = "import torch\nfrom joblib import Parallel, delayed\n" + functions
    source += f"def work(kind, x):\n{branches}{call}"
    project.write("program.py", source)
    (found,) = project.lint(json_output=True).json["findings"]
    assert (found["code"], found["location"]["line"]) == ("GG201", 4)
    also = [step for step in found["trace"] if "another branch" in step["message"]]
    assert [step["line"] for step in also] == [6, 8, 10, 12, 14]
    assert also[0]["message"] == "on another branch, `.to('cuda')` does"
    assert also[-1]["message"] == "on another branch, `.to('cuda')` does, and so do 2 more"


def test_names_that_no_longer_exist_are_one_finding_a_line(project):
    source = """\
from keras.wrappers.scikit_learn import KerasClassifier, KerasRegressor
from keras.wrappers.scikit_learn import BaseWrapper
"""
    project.write("program.py", source)
    first, second = project.lint(json_output=True).json["findings"]
    module = "keras.wrappers.scikit_learn"
    assert first["message"].startswith(
        f"`{module}.KerasClassifier` and `{module}.KerasRegressor` are gone since Keras 2.13"
    )
    assert second["message"].startswith(
        f"`{module}.BaseWrapper` is gone since Keras 2.13: importing"
    )


def test_each_function_that_a_task_may_call_is_named_where_it_is_handed_out(project):
    source = """\
import numpy as np
from multiprocessing import get_context


class Fusion:
    def render(self, path):
        return path

    def sample(self, path):
        return np.random.rand(3)

    def run(self, mode, paths):
        if mode == "render":
            method = self.render
        else:
            method = self.sample
        with get_context("fork").Pool(2) as pool:
            return pool.map(method, paths)
"""
    project.write("program.py", source)
    (found,) = project.lint("--select", "GG304", json_output=True).json["findings"]
    assert found["trace"][0]["message"] == "`render` or `sample` runs in forked workers"


SEVERAL_GENERATORS = """\
import numpy as np
import pandas
import torch
import torch.multiprocessing as mp


def work(k):
    chosen = np.random.randint(9)
    print(chosen, torch.rand(2), np.random.rand())
    print(torch.randn(2))


if __name__ == "__main__":
    for k in range(3):
        mp.Process(target=work, args=(k,)).start()
"""


def test_a_worker_that_draws_from_several_generators_is_one_finding(project):
    project.write("program.py", SEVERAL_GENERATORS)
    (found,) = project.lint(json_output=True).json["findings"]
    assert (found["code"], found["location"]["line"]) == ("GG304", 8)
    assert found["message"] == (
        "`numpy.random.randint()` draws from NumPy's global generator, and all forked workers "
        "start with a copy of its state: they draw the same numbers. So it is with torch's "
        "(`torch.rand()`, line 9)."
    )
    assert [(step["line"], step["message"]) for step in found["trace"]] == [
        (15, "`work` runs in forked workers"),
        (9, "`torch.rand()` draws from torch's global generator"),
    ]


def test_a_generator_that_the_task_seeds_is_not_named_with_the_others(project):
    seeded = SEVERAL_GENERATORS.replace("    chosen", "    torch.manual_seed(k)\n    chosen")
    project.write("program.py", seeded)
    (found,) = project.lint(json_output=True).json["findings"]
    assert "So it is with" not in found["message"]


SEEDED_BESIDE_THE_TASKS = """\
import random
import torch
import torch.multiprocessing as mp

torch.manual_seed(42)
random.seed(42)


def work(k):
    print(k, torch.rand(2), random.random())


if __name__ == "__main__":
    for k in range(3):
        mp.get_context("spawn").Process(target=work, args=(k,)).start()
"""


def test_a_seed_that_spawned_workers_run_again_is_told_with_its_place(project):
    project.write("program.py", SEEDED_BESIDE_THE_TASKS)
    (found,) = project.lint(json_output=True).json["findings"]
    assert found["message"] == (
        "`torch.rand()` draws from torch's global generator, and all spawned workers run "
        "`torch.manual_seed()` (line 5) again as they import its file: they draw the same numbers. "
        "So it is with Python's (`random.random()`, line 10)."
    )
    assert [(step["line"], step["message"]) for step in found["trace"]] == [
        (15, "`work` runs in spawned workers"),
        (5, "`torch.manual_seed()` runs again in each worker that imports this file"),
        (10, "`random.random()` draws from Python's global generator"),
        (6, "`random.seed()` runs again in each worker that imports this file"),
    ]


UNPACKED = """\
import torch
from joblib import Parallel, delayed


def made(rows):
    options = dict(dtype=torch.int64, device="cuda")
    return torch.zeros((rows, 2), **options).sum().item()


def by_default(k):
    torch.set_default_device("cuda")
    rows = 5
    return torch.zeros(rows).sum().item()


for work in (made, by_default):
    Parallel(2)(delayed(work)(k) for k in range(2))
"""


def test_a_size_is_not_shown_as_a_device(project):
    project.write("program.py", UNPACKED)
    unpacked, default = project.lint(json_output=True).json["findings"]
    assert unpacked["message"].startswith("`torch.zeros(..., device='cuda')` initialises the GPU")
    assert default["message"].startswith("`torch.zeros(...)` initialises the GPU")
    assert not any("is set here" in step["message"] for step in default["trace"])


METHODS_OF_WHAT_CROSSES = """\
from functools import partial

import numpy as np
import torch
from joblib import Parallel, delayed

weights = torch.ones(3, requires_grad=True)
losses = [(weights * k).sum() for k in range(3)]
rng = np.random.default_rng(0)
scaled = weights.mul
Parallel(n_jobs=2)(delayed(loss.backward)() for loss in losses)
Parallel(n_jobs=2)(delayed(losses[0].mul)(k) for k in range(3))
Parallel(n_jobs=2)(delayed(scaled)(k) for k in range(3))
Parallel(n_jobs=2)(delayed(partial(weights.mul, 3))() for k in range(3))
Parallel(n_jobs=2)(delayed(rng.normal)(size=3) for k in range(3))
"""


def test_what_travels_with_a_method_of_a_library_is_called_as_the_program_calls_it(project):
    project.write("program.py", METHODS_OF_WHAT_CROSSES)
    found = project.lint("--select=GG101,GG305", json_output=True).json["findings"]
    assert [it["message"].partition(" for ")[0] for it in found] == [
        "`loss` has history and is pickled",
        "`losses[0]` has history and is pickled",
        "What `mul` belongs to requires grad and is pickled",
        "What `mul` belongs to requires grad and is pickled",
        "`rng` is one generator",
    ]


def test_an_object_that_travels_with_its_method_is_called_as_the_program_calls_it(project):
    source = """\
import multiprocessing
import torch
from joblib import Parallel, delayed


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(3, 1)

    def produce(self, k):
        return k


class Trainer:
    def __init__(self):
        self.net = Net().to("cuda")

    def train(self, k):
        return k


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    model, trainer = Net().to("cuda"), Trainer()
    context.Process(target=model.produce, args=(1,)).start()
    context.Process(target=Net.produce, args=(model, 1)).start()
    context.Process(target=trainer.train, args=(1,)).start()
    context.Process(target=Trainer().train, args=(1,)).start()
    with context.Pool(2) as pool:
        pool.map(model.produce, range(3))
        pool.map(model, range(3))
    Parallel(n_jobs=2)(delayed(trainer.net.produce)(k) for k in range(3))
"""
    project.write("program.py", source)
    findings = project.lint("--select", "GG202", json_output=True).json["findings"]
    named = [found["message"].partition(" is on")[0].strip("`") for found in findings]
    assert named == ["model", "model", "trainer.net", "self.net", "model", "model", "trainer.net"]


EPOCHS = """\
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from tqdm import tqdm


def loader_of(data):
    return DataLoader(data, batch_size=2, sampler=DistributedSampler(data, 2, 0))


def train(loader, optimizer):
    for batch in loader:
        optimizer.step()


def inside(data, optimizer):
    loader = loader_of(data)
    for e in range(3):
        bar = tqdm(loader)
        for batch in bar:
            optimizer.step()


def outside(data, optimizer):
    ours = loader_of(data)
    bar = tqdm(ours)
    for epoch in range(3):
        train(bar, optimizer)


def bar_alone(data, optimizer):
    bar = tqdm(loader_of(data))
    for epoch in range(3):
        train(bar, optimizer)


def several(parts, optimizer):
    loaders = []
    for part in parts:
        own = loader_of(part)
        loaders.append(own)
    for epoch in range(3):
        for loader in loaders:
            train(loader, optimizer)


class Trainer:
    def __init__(self, data, optimizer):
        self.data, self.optimizer = loader_of(data), optimizer

    def run(self):
        for number in range(3):
            self.epoch()

    def epoch(self):
        for index, batch in enumerate(self.data):
            self.optimizer.step()


data = list(range(8))
inside(data, None)
outside(data, None)
bar_alone(data, None)
several([data], None)
Trainer(data, None).run()
"""


def test_the_sampler_goes_by_a_name_of_the_loop_over_epochs(project):
    project.write("program.py", EPOCHS)
    found = project.lint("--select", "GG503", json_output=True).json["findings"]
    said = {
        EPOCHS.splitlines()[it["location"]["line"] - 2].strip(): (
            it["message"].partition(" gives")[0],
            it["fix"].partition(" at ")[0],
            it["edits"] and it["edits"]["edits"][0]["content"].strip(),
        )
        for it in found
    }
    by_name = {
        "loader = loader_of(data)": ("`bar` (line 19)", "loader.sampler.set_epoch(e)"),
        "bar = tqdm(ours)": ("`loader` (line 11)", "ours.sampler.set_epoch(epoch)"),
        "def run(self):": (
            "`enumerate(self.data)` (line 55)",
            "self.data.sampler.set_epoch(number)",
        ),
    }
    for before, (iterated, written) in by_name.items():
        assert said.pop(before) == (iterated, f"Call `{written}`", written)
    assert said == {
        "bar = tqdm(loader_of(data))": (
            "`loader` (line 11)",
            "Call `set_epoch(epoch)` on the sampler",
            None,
        )
    }


BYPASSED = """\
import torch
from torch.nn.parallel import DistributedDataParallel


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(3, 1)

    def forward(self, x):
        return self.body(x)

    def loss(self, x):
        return self(x).sum()

    def epoch(self, batches, optimizer):
        for batch in batches:
            optimizer.zero_grad()
            self.body(batch).sum().backward()
            optimizer.step()


def plain(batch):
    ddp = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    ddp.module(batch).sum().backward()
    optimizer.step()


def by_method(batch):
    ddp = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    ddp.module.loss(batch).backward()
    optimizer.step()


def by_loop(batches):
    ddp = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    ddp.module.epoch(batches, optimizer)
"""


def test_how_a_wrapper_is_called_depends_on_what_bypasses_it(project):
    project.write("program.py", BYPASSED)
    found = project.lint("--select", "GG502", json_output=True).json["findings"]
    plain, method, loop = (it["fix"] for it in found)
    assert plain.startswith("Call the DDP module itself in training")
    assert method.startswith("Compute the loss in the module's `forward`, and call the DDP")
    assert loop.startswith("Take the loop and `optimizer.step()` out of the module")


def test_how_forked_workers_come_to_cuda_depends_on_what_they_run(project):
    project.write(
        "local.py",
        """\
import torch
import torch.multiprocessing as mp
from made import Net


def main():
    device = torch.device("cuda")
    model = Net().to(device)

    def train(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.train()
        batch = torch.ones(2, 3).to(device)
        model(batch).sum().backward()
        optimizer.step()

    mp.Process(target=train, args=(model,)).start()


main()
""",
    )
    project.write(
        "loading.py",
        """\
import torch
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.ones(3).to("cuda")


weight = torch.ones(3, device="cuda")
for rows in DataLoader(Rows(), num_workers=2):
    print(rows @ weight)
""",
    )
    found = project.lint("--select", "GG203", json_output=True).json["findings"]
    loading, local = sorted(found, key=lambda it: it["location"]["path"])
    assert local["fix"].startswith("Define the function at the top level of a module")
    assert local["trace"][-1]["line"] == 13  # no parameter is used where they are only named
    assert loading["fix"].startswith("Return CPU tensors from the dataset and `collate_fn`")


def test_workers_that_train_are_not_told_to_leave_the_gpu(project):
    project.write(
        "program.py",
        """\
import torch
from joblib import Parallel, delayed


def data(rows):
    return torch.tensor(rows).to("cuda").sum().item()


def train(seed):
    print(torch.cuda.mem_get_info())
    model = torch.nn.Linear(3, 1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 3, device="cuda")).sum().backward()
    optimizer.step()


def evaluate(path):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = torch.nn.Linear(3, 1)
    model.load_state_dict(torch.load(path, map_location=device))
    return model(torch.ones(2, 3)).sum().item()


Parallel(2)(delayed(data)([k]) for k in range(4))
Parallel(2)(delayed(train)(k) for k in range(4))
Parallel(2)(delayed(evaluate)(f"{k}.pt") for k in range(4))
""",
    )
    found = project.lint("--select", "GG201", json_output=True).json["findings"]
    data, train, evaluate = sorted(found, key=lambda it: it["location"]["line"])
    assert data["fix"].startswith("Let the workers prepare data on the CPU")
    assert train["fix"].startswith("Start no more of these workers than the GPU has room for")
    assert [(step["line"], step["message"]) for step in train["trace"][1:]] == [
        (10, "`torch.cuda.mem_get_info()` initialises the GPU here"),
        (11, "`.cuda()` is the first to put something on it"),
    ]
    assert evaluate["fix"].startswith('Load with `map_location="cpu"`')


def test_each_function_that_a_task_may_be_is_named(project):
    project.write(
        "program.py",
        """\
import sys

import torch
from joblib import Parallel, delayed


def one(k):
    return torch.ones(3, device="cuda").sum().item()


def two(k):
    return torch.ones(k).cuda().sum().item()


work = {"one": one, "two": two}[sys.argv[1]]
Parallel(2)(delayed(work)(k) for k in range(3))
""",
    )
    (finding,) = project.lint("--select", "GG201", json_output=True).json["findings"]
    assert (finding["location"]["line"], finding["trace"][-1]["line"]) == (8, 12)


def test_tasks_of_ray_are_told_to_ask_for_the_gpu(project):
    project.write(
        "program.py",
        """import ray
import torch


@ray.remote
class Trainer:
    def __init__(self):
        self.model = torch.nn.Linear(3, 1).cuda()

    def step(self, rows):
        self.model(torch.tensor(rows).cuda()).sum().backward()


trainers = [Trainer.remote() for _ in range(2)]
ray.get([trainer.step.remote([[1.0, 2.0, 3.0]]) for trainer in trainers])
""",
    )
    found = project.lint("--select", "GG201", json_output=True).json["findings"]
    assert found
    assert all(it["fix"].startswith("Ask Ray for the GPU, as") for it in found)


def test_which_generator_is_seeded_and_which_is_not(project):
    project.write(
        "program.py",
        """\
from multiprocessing import Pool

import numpy as np
import pandas as pd
import torch


def rows(seed):
    torch.manual_seed(seed)
    frame = pd.DataFrame({"a": [1, 2, 3]})
    return frame.sample(2), torch.rand(2)


def actions(probabilities):
    return torch.distributions.Categorical(probabilities).sample()


def fixed(count):
    torch.manual_seed(0)
    return np.random.rand(count)


if __name__ == "__main__":
    print(np.random.rand())
    with Pool(2) as pool:
        pool.map(rows, range(4))
        pool.map(actions, [torch.ones(3)] * 4)
        pool.map(fixed, range(4))
""",
    )
    found = project.lint("--select", "GG304", json_output=True).json["findings"]
    rows, actions, fixed = sorted(found, key=lambda it: it["location"]["line"])
    assert rows["message"].startswith("`.sample()` draws from NumPy's global generator")
    assert rows["message"].endswith("The worker seeds torch's (line 9), but not NumPy's.")
    assert "`numpy.random.seed(seed)`" in rows["fix"]
    assert actions["message"].startswith("`.sample()` draws from torch's global generator")
    for other in (actions, fixed):
        assert "The worker seeds" not in other["message"]
        assert other["fix"].startswith("Give every task its own seed")


def test_the_trace_shows_what_creates_tensorflows_generator_in_the_parent(project):
    project.write(
        "program.py",
        """\
from multiprocessing import Pool

import tensorflow as tf


def draw(k):
    return float(tf.random.normal(()) * k)


if __name__ == "__main__":
    tf.random.set_seed(1)
    with Pool(2) as pool:
        print(pool.map(draw, [1.0, 2.0]))
""",
    )
    (found,) = project.lint("--select", "GG304", json_output=True).json["findings"]
    assert (found["trace"][-1]["line"], found["trace"][-1]["message"]) == (
        11,
        "`tensorflow.random.set_seed()` creates that generator in the parent",
    )


def test_a_loop_over_single_batches_begins_a_pass_at_the_end_of_the_last(project):
    project.write(
        "program.py",
        """\
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

data = list(range(99))
loader = DataLoader(data, sampler=DistributedSampler(data))
net = DistributedDataParallel(torch.nn.Linear(1, 1))


def train(batch):
    net(batch).sum().backward()


batches = iter(loader)
for step in range(1000):
    try:
        batch = next(batches)
    except StopIteration:
        batches = iter(loader)
        batch = next(batches)
    train(batch)
for epoch in range(10):
    for batch in loader:
        train(batch)
""",
    )
    found = project.lint("--select", "GG503", json_output=True).json["findings"]
    by_step, by_epoch = sorted(found, key=lambda it: it["location"]["line"])
    assert " the same order each time it is iterated anew in this loop: " in by_step["message"]
    assert " the same order in each iteration of this loop: " in by_epoch["message"]


def test_what_stands_below_the_fork_was_done_in_an_earlier_iteration(project):
    project.write(
        "program.py",
        """\
from multiprocessing import Process

import torch


def act():
    torch.ones(512, 512) @ torch.ones(512, 512)


def play():
    worker = Process(target=act)
    worker.start()
    worker.join()


def around():
    for _ in range(3):
        play()
        torch.ones(512, 512) @ torch.ones(512, 512)


def once():
    torch.ones(512, 512) @ torch.ones(512, 512)
    for _ in range(3):
        Process(target=act).start()


def episode(model, batch):
    worker = Process(target=act)
    worker.start()
    worker.join()
    model(batch).sum().backward()


def outside():
    while True:
        episode(torch.nn.Linear(512, 512), torch.empty(512, 512))
""",
    )
    found = project.lint("--select", "GG303", json_output=True).json["findings"]
    told = {
        step["line"]: step["message"].partition("before the fork")[2]
        for finding in found
        for step in finding["trace"]
        if "before the fork" in step["message"]
    }
    assert told == {
        19: ", in an earlier iteration of the loop (line 17)",
        23: "",
        32: ", in an earlier iteration of the loop (line 36)",
    }


def test_a_switch_without_which_no_worker_starts_is_named(project):
    project.write(
        "program.py",
        """\
import argparse
from multiprocessing import Pool

import numpy as np


def draw(_):
    return np.random.rand()


def shuffled(rows):
    np.random.shuffle(rows)
    return rows


def both(rows):
    return rows, np.random.rand()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--multicore", action="store_true")
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--serial", action="store_true")
    args = parser.parse_args()
    np.random.seed(0)
    if args.multicore:
        with Pool(4) as pool:
            pool.map(draw, range(8))
    if args.workers is None:
        args.workers = 4
    if args.workers > 1:
        with Pool(args.workers) as pool:
            pool.map(shuffled, [[1, 2], [3, 4]])
    if args.jobs > 1 and not args.serial:
        with Pool(args.jobs) as pool:
            pool.map(both, [[1, 2], [3, 4]])
""",
    )
    found = project.lint("--select", "GG304", json_output=True).json["findings"]
    told = [found["trace"][0]["message"].partition(" runs in ")[2] for found in found]
    assert told == [
        "forked workers, where `multicore` is set, which is off by default",
        "forked workers",
        "forked workers",
    ]


WAYS = """\
import argparse

import torch
import torch.multiprocessing as mp

parser = argparse.ArgumentParser()
parser.add_argument("--gpu", default=False)
parser.add_argument("--algo", choices=["es", "a3c"], default="es")
parser.add_argument("--parts", default="all")


def train(rank, args):
    model = torch.nn.Linear(2, 2)
    if CONDITION:
        model.cuda()


if __name__ == "__main__":
    args = parser.parse_args()
    for i in range(2):
        mp.get_context("spawn").Process(target=train, args=(i, args)).start()
"""


@pytest.mark.parametrize(
    ("condition", "told"),
    [
        ("args.gpu", ", where `gpu` is set, which is off by default"),
        ('args.algo == "a3c"', ", where `algo` is 'a3c', which is 'es' by default"),
        ('args.algo == "es"', ""),
        ('args.algo != "a3c"', ""),
        ('"train" in args.parts', ", where `parts` has 'train', which is 'all' by default"),
        ('"al" in args.parts', ""),
        (
            'args.gpu and args.algo == "a3c"',
            ", where `gpu` is set, which is off by default, and `algo` is 'a3c', which is 'es' by "
            "default",
        ),
    ],
)
def test_what_has_to_be_told_for_what_workers_do_is_said(project, condition, told):
    project.write("train.py", WAYS.replace("CONDITION", condition))
    (found,) = project.lint(json_output=True).json["findings"]
    assert (found["code"], found["severity"]) == ("GG201", "warning")
    assert found["trace"][-1]["message"] == f"`.cuda()` initialises the GPU here{told}"


OFF = """\
import argparse
import json
from multiprocessing import Pool

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--gpu", action="store_true")
parser.add_argument("--no-gpu", action="store_true")
args = parser.parse_args()
read = json.load(open("settings.json"))
made = {"net": "mlp", **read}
one = read["one"] if read["a"] else made if read["b"] else args
for item in (3, None, made, read["net"]):
    pass


def work(k):
    if CONDITION:
        return torch.ones(3).cuda().sum().item()


if __name__ == "__main__":
    base = torch.zeros(3).cuda()
    with Pool(2) as pool:
        pool.map(work, range(3))
"""


@pytest.mark.parametrize(
    ("condition", "severity"),
    [
        ('read.get("gpu", False)', "warning"),
        ('read["net"].get("gpu", False)', "warning"),
        ('made.get("gpu", False)', "warning"),
        ('one.get("gpu", False)', "warning"),
        ('item.get("gpu", False)', "warning"),
        ('getattr(read, "gpu", False)', "warning"),
        ("args.gpu", "warning"),
        ('k and not read.get("cpu") and read.get("gpu", False)', "warning"),
        ("True", "error"),
        ("not args.no_gpu", "error"),
        ('not read.get("no_gpu", False)', "error"),
        ('read.get("gpu", True)', "error"),
        ('read.get("gpu")', "error"),
        ('read["gpu"]', "error"),
        ('made["gpu"]', "error"),
        ('made.get("net", False)', "error"),
        ('getattr(read, "gpu", True)', "error"),
    ],
)
def test_what_only_a_switch_brings_that_is_off_by_default_is_a_warning(
    project, condition, severity
):
    project.write("a.py", OFF.replace("CONDITION", condition))
    (found,) = project.lint("--select", "GG203", json_output=True).json["findings"]
    assert found["severity"] == severity
    told = "`gpu` is set, which is off by default"
    assert (told in found["trace"][-1]["message"]) == (severity == "warning")


@pytest.mark.parametrize(
    ("condition", "told"),
    [("args.noise", ", where `noise` is set, which is off by default"), ("not args.noise", "")],
)
def test_what_has_to_be_told_for_a_draw_from_a_shared_generator_is_said(project, condition, told):
    project.write(
        "drawn.py",
        f"""\
import argparse
from multiprocessing import Pool

import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--noise", action="store_true")


def simulate(given):
    rng, k, args = given
    return k + rng.normal() if {condition} else k


if __name__ == "__main__":
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    with Pool(4) as pool:
        print(pool.map(simulate, [(rng, k, args) for k in range(8)]))
""",
    )
    (found,) = project.lint("--select", "GG305", json_output=True).json["findings"]
    assert [step["message"] for step in found["trace"]] == [
        "`simulate` runs in forked workers",
        f"`simulate` draws from it here{told}",
    ]


def test_a_switch_of_one_program_of_two_is_not_named(project):
    project.write(
        "drawing.py",
        """\
from multiprocessing import Pool

import numpy as np


def draw(_):
    return np.random.rand()


def drawn():
    with Pool(4) as pool:
        return pool.map(draw, range(8))
""",
    )
    project.write(
        "asked.py",
        """\
import argparse

import numpy as np
from drawing import drawn

parser = argparse.ArgumentParser()
parser.add_argument("--multicore", action="store_true")
args = parser.parse_args()
np.random.seed(0)
if args.multicore:
    drawn()
""",
    )

    def told():
        (found,) = project.lint("--select", "GG304", json_output=True).json["findings"]
        return [step["message"] for step in found["trace"] if " runs in " in step["message"]]

    assert told() == [
        "`draw` runs in forked workers, where `multicore` is set, which is off by default"
    ]
    project.write("always.py", "import numpy as np\nfrom drawing import drawn\n\ndrawn()\n")
    assert told() == ["`draw` runs in forked workers"]


PROBED = """\
import multiprocessing as mp

import torch


def probe(queue):
    torch.zeros(1, device="cuda")
    queue.put(torch.cuda.get_device_properties(0).total_memory)


def fit(seed):
    return torch.nn.Linear(8, 1).cuda()(torch.ones(1, 8, device="cuda")).item()


if __name__ == "__main__":
    queue = mp.Queue()
    process = mp.Process(target=probe, args=(queue,))
    process.start()
    print(queue.get())
"""

POOL = """\
    with mp.Pool(2) as pool:
        print(pool.map(fit, range(3)))
"""


@pytest.mark.parametrize(
    ("then", "severity", "said"),
    [
        ("", "info", "no other process of this program uses it"),
        ("    print(fit(0))\n", "info", "this process makes a context of its own on it, "),
        ("    print(fit(0))\n", "info", "beside the parent's."),
        (POOL, "warning", "beside those of other processes."),
        (
            "    process.join()\n" + POOL,
            "info",
            "no other process of this program uses it meanwhile",
        ),
        (
            "    others = [mp.Process(target=probe, args=(queue,)) for _ in range(2)]\n"
            "    for other in others:\n        other.start()\n",
            "warning",
            "each worker process makes a context of its own on it.",
        ),
    ],
)
def test_one_process_is_told_from_several(project, then, severity, said):
    project.write("program.py", PROBED + then)
    options = ("--select", "GG201", "--min-severity", "info")
    found = project.lint(*options, json_output=True).json["findings"]
    (probe,) = [it for it in found if it["location"]["line"] == 7]
    assert probe["severity"] == severity
    assert said in probe["message"]


LOADED = """\
import argparse

import torch
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, k):
        return torch.ones(3, device="cuda") * k


def run(workers):
    torch.ones(1).cuda()
    return [x.sum() for x in DataLoader(Rows(), num_workers=workers)]


parser = argparse.ArgumentParser()
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--readers", type=int, default=2)
args = parser.parse_args()
"""


@pytest.mark.parametrize(
    ("then", "severity", "said"),
    [
        ("run(args.workers)\n", "warning", " By default, `workers` is 0: nothing is forked."),
        ("run(args.workers or 2)\n", "error", "forked process."),
        ("run(args.readers)\n", "error", "forked process."),
        ("run(args.workers)\nrun(4)\n", "error", "forked process."),
        ("run(4)\nrun(args.workers)\n", "error", "forked process."),
        ("run(int(input()))\n", "error", "forked process."),
    ],
)
def test_workers_that_are_there_by_default_are_told_from_others(project, then, severity, said):
    project.write("program.py", LOADED + then)
    (found,) = project.lint("--select", "GG203", json_output=True).json["findings"]
    assert found["severity"] == severity
    assert found["message"].endswith(said)
