"""Module globals that workers read: this file is imported afresh in each of loky's workers."""

import functools
import multiprocessing
import os
import time

import numpy as np
import torch
from joblib import Parallel, delayed
from torch import nn

EXPECT = {
    "test_rebound": {"GG109"},
    "test_trained_model": {"GG109"},
    "test_through_another_function": {"GG109"},
    "test_held_by_an_object": {"GG109"},
    "test_in_a_dict": {"GG109"},
    "test_by_partial": {"GG109"},
    "test_by_method": {"GG109"},
    "test_by_function_that_travels_by_value": {"GG109"},
    "test_state_dict_loaded": {"GG109"},
    "test_spawned_again": {"GG109"},
    "test_spawned_process": {"GG109"},
    "test_spawned_process_of_its_own_class": {"GG109"},
    "test_drawn_anew_by_each_import": {"GG109"},
    "test_settings": {"GG109"},
    "test_plain_values": {"GG109"},
    "test_settings_of_an_object": {"GG109"},
    "test_setting_that_was_none": {"GG109"},
    "test_setting_set_by_a_function": {"GG109"},
}
DETAILS = {
    "test_settings": {
        "GG109": {"object": "case_globals.settings['rate']", "in_worker": "0.1", "here": "0.2"}
    },
    "test_setting_that_was_none": {"GG109": {"in_worker": "None", "here": "'mean'"}},
}

weight = torch.zeros(3)
bound = torch.zeros(2)
model = nn.Linear(2, 1)
nn.init.zeros_(model.weight)
nn.init.zeros_(model.bias)
inner = torch.zeros(2)
table = {"scale": torch.ones(2)}
constant = torch.full((2,), 3.0)
buffer = torch.zeros(2)
loaded = nn.Linear(1, 1, bias=False)
nn.init.ones_(loaded.weight)
drawn = torch.randn(4)
seeded = torch.randn(4, generator=torch.Generator().manual_seed(0))
shell = nn.Linear(1, 1, bias=False)
nn.init.ones_(shell.weight)
array = np.zeros(2)
settings = {"rate": 0.1, "nested": {"depth": 2}, "title": "a"}
size = 2
layers = (64, 32)
reduction = None
started, process = time.time(), os.getpid()
folder = os.path.join(os.sep, "a")
known = {}
history = []
counts = {"calls": 0}


class Config:
    momentum = 0.9

    def __init__(self, rate=0.1):
        self.rate = rate
        self.verbose = False


config = Config(rate=0.5)
cached = None
unread = torch.zeros(2)
restored = torch.ones(2)


class Agent:
    def __init__(self):
        self.policy = {"weight": torch.zeros(2)}


agent = Agent()


def in_workers(function, *arguments, backend="loky"):
    tasks = [delayed(function)(*arguments) for _ in range(2)]
    return Parallel(2, backend=backend)(tasks)  # -> GG109?


def read():
    return float(weight.sum())


def test_changed_in_place():
    weight.fill_(2.0)
    tasks = [delayed(read)() for _ in range(2)]
    assert Parallel(2)(tasks) == [0.0, 0.0]  # -> GG109:warning


def read_bound():
    return float(bound.sum())


def test_rebound():
    global bound
    bound = torch.ones(2)
    assert in_workers(read_bound) == [0.0, 0.0]


def predict(x):
    return model(x).item()


def test_trained_model():
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert in_workers(predict, torch.ones(1, 2)) == [0.0, 0.0]


def outer():
    return helper() + 1


def helper():
    return float(inner.sum())


def test_through_another_function():
    inner.add_(1)
    assert in_workers(outer) == [1.0, 1.0]


def act():
    return float(agent.policy["weight"].sum())


def test_held_by_an_object():
    agent.policy["weight"] += 1
    assert in_workers(act) == [0.0, 0.0]


def scaled(x):
    return float((table["scale"] * x).sum())


def test_in_a_dict():
    table["scale"] *= 5
    assert in_workers(scaled, 1.0) == [2.0, 2.0]


def test_by_partial():
    table["scale"] *= 5
    assert in_workers(functools.partial(scaled, 2.0)) == [4.0, 4.0]


class Reader:
    def read(self):
        return float(inner.sum())


def test_by_method():
    inner.add_(1)
    assert in_workers(Reader().read) == [0.0, 0.0]


def test_by_function_that_travels_by_value():
    inner.add_(1)
    assert in_workers(lambda: helper()) == [0.0, 0.0]


def use_loaded():
    return float(loaded(torch.ones(1, 1)))


def test_state_dict_loaded():
    loaded.load_state_dict({"weight": torch.full((1, 1), 4.0)})
    assert in_workers(use_loaded) == [1.0, 1.0]


def test_spawned_again():
    weight.add_(1.0)
    for _ in range(2):
        assert in_workers(read) == [0.0, 0.0]
        weight.add_(1.0)


SPAWN = multiprocessing.get_context("spawn")


def put(queue, function, *arguments):
    queue.put(function(*arguments))


def put_weight(queue):
    put(queue, read)


class ReaderProcess(SPAWN.Process):
    def __init__(self, queue):
        super().__init__()
        self.queue = queue

    def run(self):
        put_weight(self.queue)


def put_rank(rank, queue):
    put_weight(queue)


def said_by(process, queue):
    process.start()  # -> GG109?
    process.join()
    assert process.exitcode == 0
    return queue.get()


def test_spawned_process():
    weight.add_(1.0)
    queue = SPAWN.SimpleQueue()
    assert said_by(SPAWN.Process(target=put_weight, args=(queue,)), queue) == 0.0


def test_spawned_process_of_its_own_class():
    weight.add_(1.0)
    queue = SPAWN.SimpleQueue()
    assert said_by(ReaderProcess(queue), queue) == 0.0


def test_ranks():
    weight.add_(1.0)
    queue = SPAWN.SimpleQueue()
    torch.multiprocessing.spawn(put_rank, args=(queue,))  # -> GG109:warning
    assert queue.get() == 0.0


def put_constant(queue):
    put(queue, read_constant)


def put_loaded(queue, state):
    put(queue, load_and_use, state)


def test_processes_that_use_nothing_changed():
    weight.add_(1.0)
    shell.load_state_dict({"weight": torch.full((1, 1), 4.0)})
    queue = SPAWN.SimpleQueue()
    assert said_by(SPAWN.Process(target=put_constant, args=(queue,)), queue) == 6.0
    state = shell.state_dict()
    assert said_by(SPAWN.Process(target=put_loaded, args=(queue, state)), queue) == 4.0
    forked = multiprocessing.get_context("fork")
    queue = forked.SimpleQueue()
    changed = float(weight.sum())
    assert said_by(forked.Process(target=put_weight, args=(queue,)), queue) == changed


def read_drawn():
    return float(drawn.sum())


def test_drawn_anew_by_each_import():
    assert in_workers(read_drawn) != [float(drawn.sum())] * 2


def read_constant():
    return float(constant.sum())


def test_unchanged():
    assert in_workers(read_constant) == [6.0, 6.0]


def read_seeded():
    return float(seeded.sum())


def test_seeded():
    assert in_workers(read_seeded) == [float(seeded.sum())] * 2


def total(tensor):
    return float(tensor.sum())


def test_passed_as_argument():
    weight.add_(1.0)
    assert in_workers(total, weight) == [float(weight.sum())] * 2


def test_forked():
    weight.add_(1.0)
    assert in_workers(read, backend="multiprocessing") == [float(weight.sum())] * 2


def test_threads():
    weight.add_(1.0)
    assert in_workers(read, backend="threading") == [float(weight.sum())] * 2


def test_one_job():
    weight.add_(1.0)
    assert Parallel(1)([delayed(read)()]) == [float(weight.sum())]


def test_changed_but_not_read():
    unread.add_(1.0)
    assert in_workers(read_constant) == [6.0, 6.0]


def fill(value):
    buffer.fill_(value)
    return float(buffer.sum())


def test_buffer_that_tasks_fill():
    buffer.fill_(7.0)
    assert in_workers(fill, 1.0) == [2.0, 2.0]


def load():
    global cached
    if cached is None:
        cached = torch.ones(2)
    return float(cached.sum())


def test_made_by_the_worker():
    load()
    assert in_workers(load) == [2.0, 2.0]


def set_and_read(value):
    global bound
    bound = torch.full((2,), value)
    return float(bound.sum())


def test_worker_sets_it():
    assert in_workers(set_and_read, 3.0) == [6.0, 6.0]


def test_captured_by_value():
    here = weight.add_(1.0).clone()

    def read_here():
        return float(here.sum())

    assert in_workers(read_here) == [float(here.sum())] * 2


def read_array():
    return float(array.sum())


def test_arrays():
    array[:] = 1
    assert in_workers(read_array) == [0.0, 0.0]


def read_settings():
    return settings["rate"]


def test_settings():
    settings["rate"] = 0.2
    assert in_workers(read_settings) == [0.1, 0.1]


def read_depth_and_layers():
    return settings["nested"].get("depth", 0) * size + len(layers)


def test_plain_values():
    global size, layers
    size, layers = 3, (8,)
    settings["nested"]["depth"] = 5
    assert in_workers(read_depth_and_layers) == [6, 6]


def read_config():
    return config.rate * Config.momentum


def test_settings_of_an_object():
    config.rate = 0.25
    assert in_workers(read_config) == [0.45, 0.45]


def read_reduction():
    return reduction


def test_setting_that_was_none():
    global reduction
    reduction = "mean"
    assert in_workers(read_reduction) == [None, None]


def set_size(value):
    global size
    size = value


def read_size():
    return size


def test_setting_set_by_a_function():
    set_size(7)
    assert in_workers(read_size) == [2, 2]


def read_title():
    return settings["title"], config.verbose


def test_other_setting():
    settings["rate"] = 0.3
    config.rate = 0.75
    assert in_workers(read_title) == [("a", False)] * 2


def test_settings_changed_back():
    settings["title"] = "b"
    settings["title"] = "a"
    assert in_workers(read_title) == [("a", False)] * 2


def read_computed():
    return started > 0, process > 0, folder


def test_what_each_import_computes():
    global folder
    folder = os.path.join(os.sep, "b")
    assert in_workers(read_computed) == [(True, True, os.path.join(os.sep, "a"))] * 2


def look_up(key):
    return known.get(key, 0) + len(history)


def test_cache_that_has_grown():
    known["x"] = 1
    history.append(1)
    assert in_workers(look_up, "x") == [0, 0]


def count():
    counts["calls"] += 1
    return counts["calls"]


def test_counter_of_the_tasks():
    count()
    assert in_workers(count)[0] >= 1


def use_size(value):
    set_size(value)
    return read_size()


def test_task_sets_it():
    set_size(9)
    assert in_workers(use_size, 9) == [9, 9]


def scaled_by(value):
    return value * 2


def test_setting_passed_on():
    set_size(11)
    assert in_workers(scaled_by, size) == [22, 22]


def read_restored():
    return float(restored.sum())


def test_changed_back():
    restored.add_(1)
    restored.sub_(1)
    assert in_workers(read_restored) == [2.0, 2.0]


def load_and_use(state):
    shell.load_state_dict(state)
    return use_shell()


def use_shell():
    return float(shell(torch.ones(1, 1)))


def test_workers_load_what_they_use():
    shell.load_state_dict({"weight": torch.full((1, 1), 4.0)})
    assert in_workers(load_and_use, shell.state_dict()) == [4.0, 4.0]
    assert in_workers(load_and_use, {"weight": torch.full((1, 1), 7.0)}) == [7.0, 7.0]
