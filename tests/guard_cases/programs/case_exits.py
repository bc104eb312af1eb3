"""Processes that end by another way than the last line of their function, after a backward pass.

What they computed until then stayed with them, unless they had sent it.
"""

import json
import multiprocessing
import os
import signal
import sys
import time

import torch
from torch import nn

FORK = multiprocessing.get_context("fork")
SPAWN = multiprocessing.get_context("spawn")
LONG = 60


def backward(model):
    model(torch.ones(1, 2)).sum().backward()


def made():
    model = nn.Linear(2, 1)
    return model, torch.optim.SGD(model.parameters(), 0.1)


def ended(process):
    process.start()
    process.join()
    return process.exitcode


def exits(model):
    backward(model)
    sys.exit(3)


def test_exits():
    model, optimizer = made()
    assert ended(FORK.Process(target=exits, args=(model,))) == 3
    optimizer.step()  # -> GG106:error


def exits_at_once(model):
    backward(model)
    os._exit(4)


def test_exits_at_once():
    model, optimizer = made()
    assert ended(FORK.Process(target=exits_at_once, args=(model,))) == 4
    optimizer.step()  # -> GG106:error


def test_spawned_one_exits_at_once():
    model, optimizer = made()
    assert ended(SPAWN.Process(target=exits_at_once, args=(model,))) == 4
    optimizer.step()  # -> GG106:error


def fails(model):
    backward(model)
    raise ValueError("afterwards")


def test_fails():
    model, optimizer = made()
    assert ended(FORK.Process(target=fails, args=(model,))) == 1
    optimizer.step()  # -> GG106:error


def is_killed(model):
    backward(model)
    os.kill(os.getpid(), signal.SIGKILL)


def test_is_killed():
    model, optimizer = made()
    assert ended(FORK.Process(target=is_killed, args=(model,))) == -signal.SIGKILL
    optimizer.step()  # -> GG106:error


def waits(model, queue):
    backward(model)
    queue.put("ready")
    time.sleep(LONG)


def test_is_terminated():
    model, optimizer = made()
    queue = FORK.SimpleQueue()
    process = FORK.Process(target=waits, args=(model, queue))
    process.start()
    queue.get()
    process.terminate()
    process.join()
    optimizer.step()  # -> GG106:error


class Runs(FORK.Process):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def run(self):
        exits(self.model)


class Starts(FORK.Process):
    def start(self):
        super().start()
        super().join()


class IsMade(FORK.Process):
    def __init__(self, model):
        super().__init__(target=self.work, daemon=True)
        self.model = model

    def work(self):
        exits(self.model)


def test_class_that_runs_by_itself():
    model, optimizer = made()
    ended(Runs(model))
    optimizer.step()  # -> GG106:error


def test_class_that_starts_by_itself():
    model, optimizer = made()
    Starts(target=exits, args=(model,)).start()
    optimizer.step()  # -> GG106:error


def test_class_that_is_made_by_itself():
    model, optimizer = made()
    ended(IsMade(model))
    optimizer.step()  # -> GG106:error


def forked(function, *args):
    process = os.fork()
    if process == 0:
        function(*args)
        os._exit(0)
    os.waitpid(process, 0)


def test_forked_by_hand():
    model, optimizer = made()
    process = os.fork()
    if process == 0:
        backward(model)
        os._exit(0)
    os.waitpid(process, 0)
    optimizer.step()  # -> GG106:error


def test_forked_by_a_function():
    model, optimizer = made()
    for _ in range(2):
        forked(lambda: backward(model))
        optimizer.step()  # -> GG106:error


# -- nothing is lost ---------------------------------------------------------------------------


def sends(model, queue, then):
    backward(model)
    queue.put([parameter.grad.tolist() for parameter in model.parameters()])
    then()


def receive(model, queue):
    for parameter, gradient in zip(model.parameters(), queue.get(), strict=True):
        parameter.grad = torch.tensor(gradient)


def leave():
    os._exit(0)


def stay():
    time.sleep(LONG)


def test_gradients_sent_before_the_exit():
    model, optimizer = made()
    queue = FORK.SimpleQueue()
    process = FORK.Process(target=sends, args=(model, queue, leave))
    process.start()
    receive(model, queue)
    process.join()
    optimizer.step()


def test_gradients_sent_by_one_that_is_terminated():
    model, optimizer = made()
    queue = FORK.SimpleQueue()
    process = FORK.Process(target=sends, args=(model, queue, stay))
    process.start()
    receive(model, queue)
    optimizer.step()
    process.terminate()
    process.join()


def trains(model):
    backward(model)
    torch.optim.SGD(model.parameters(), 0.1).step()
    os._exit(0)


def test_parameters_in_shared_memory():
    model, optimizer = made()
    model.share_memory()
    ended(FORK.Process(target=trains, args=(model,)))
    optimizer.step()


def test_done_again_here():
    model, optimizer = made()
    ended(FORK.Process(target=fails, args=(model,)))
    backward(model)
    optimizer.step()


def test_gradients_sent_by_hand():
    model, optimizer = made()
    read, write = os.pipe()

    def work():
        backward(model)
        os.write(write, json.dumps([one.grad.tolist() for one in model.parameters()]).encode())

    forked(work)
    for parameter, gradient in zip(model.parameters(), json.loads(os.read(read, 999)), strict=True):
        parameter.grad = torch.tensor(gradient)
    optimizer.step()


def test_parameters_in_a_file(tmp_path):
    model, optimizer = made()

    def work():
        backward(model)
        optimizer.step()
        torch.save(model.state_dict(), tmp_path / "model")

    forked(work)
    model.load_state_dict(torch.load(tmp_path / "model"))
    optimizer.step()


def test_measured_in_a_forked_process():
    model, optimizer = made()
    for _ in range(2):
        optimizer.zero_grad()
        backward(model)
        forked(backward, model)
        optimizer.step()


def test_daemon_that_closes_all_files(tmp_path):
    model, optimizer = made()

    def work():
        os.closerange(3, 256)
        files = [open(tmp_path / str(number), "w") for number in range(50)]  # noqa: SIM115
        backward(model)
        for file in files:
            file.close()

    forked(work)
    assert sorted(file.read_text() for file in tmp_path.iterdir()) == [""] * 50
    backward(model)
    optimizer.step()
