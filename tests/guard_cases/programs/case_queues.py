"""Tensors with a graph on queues of `multiprocessing`, which pickle in a thread of their own."""

import multiprocessing
import queue
import threading

import pytest
import torch

EXPECT = {
    "test_put_in_a_process": {"GG102"},
    "test_put_by_a_process_that_ends_at_once": {"GG102"},
    "test_put_by_a_spawned_process": {"GG102"},
}

FORK = multiprocessing.get_context("fork")
WEIGHT = torch.nn.Parameter(torch.ones(2))


class Sample:
    def __init__(self, value):
        self.value = value


def run(method, function, *args):
    process = multiprocessing.get_context(method).Process(target=function, args=args, daemon=True)
    process.start()
    process.join(60)
    assert process.exitcode == 0


def next_of(one):
    try:
        return one.get(timeout=30)
    except queue.Empty:
        return None


def after(one, mark="mark"):
    """What arrives before a mark that is put last: items that are lost leave no other trace."""
    one.put(mark)
    found = []
    while (item := next_of(one)) != mark:
        assert item is not None
        found.append(item)
    return found


def chain(queue, done):
    sample = WEIGHT * 2
    queue.put((1, sample))  # -> GG102:error
    queue.put("later")
    done.wait(30)


def put_last(queue):
    queue.put(WEIGHT * 2)  # -> GG102:error


def put_detached(queue, done):
    sample = WEIGHT * 2
    queue.put((1, sample.detach()))
    done.wait(30)


def put_parameter(queue, done):
    queue.put(WEIGHT)
    done.wait(30)


def test_put_in_a_process():
    sent, done = FORK.Queue(), FORK.Event()
    process = FORK.Process(target=chain, args=(sent, done))
    process.start()
    assert next_of(sent) == "later"
    done.set()
    process.join()


def test_put_by_a_process_that_ends_at_once():
    sent = FORK.Queue()
    run("fork", put_last, sent)
    assert after(sent) == []


def test_put_by_a_spawned_process():
    sent = multiprocessing.get_context("spawn").Queue()
    run("spawn", put_last, sent)
    assert after(sent) == []


def test_put_in_the_parent():
    sent = torch.multiprocessing.Queue()
    sent.put([WEIGHT * 2])  # -> GG101:error
    assert after(sent) == []


def test_put_on_a_joinable_queue():
    sent = FORK.JoinableQueue()
    sent.put({"loss": WEIGHT.sum()})  # -> GG101:error
    assert after(sent) == []


def test_put_without_waiting():
    sent = FORK.Queue()
    sent.put_nowait((0, WEIGHT.exp()))  # -> GG101:error
    assert after(sent) == []


def test_inside_an_object():
    sent = FORK.Queue()
    sent.put(Sample(WEIGHT * 2))  # -> GG101:error
    assert after(sent) == []


def test_plain_values():
    sent = FORK.Queue()
    sent.put((1, WEIGHT.sum().item()))
    assert after(sent) == [(1, 2.0)]


def test_detached():
    """The fix of `test_put_in_a_process`."""
    sent, done = FORK.Queue(), FORK.Event()
    process = FORK.Process(target=put_detached, args=(sent, done))
    process.start()
    assert next_of(sent)[1].tolist() == [2, 2]
    done.set()
    process.join()


def test_leaf():
    sent = FORK.Queue()
    sent.put(torch.ones(2, requires_grad=True))
    assert next_of(sent).requires_grad


def test_parameter_of_a_process():
    sent, done = FORK.Queue(), FORK.Event()
    process = FORK.Process(target=put_parameter, args=(sent, done))
    process.start()
    assert next_of(sent).tolist() == [1, 1]
    done.set()
    process.join()


def test_between_threads():
    sent = queue.Queue()
    thread = threading.Thread(target=lambda: sent.put(WEIGHT * 2))
    thread.start()
    thread.join()
    sent.get().sum().backward()
    assert WEIGHT.grad.tolist() == [2, 2]


def test_simple_queue():
    """It pickles at once: torch's error is raised at the line itself."""
    with pytest.raises(RuntimeError, match="Cowardly"):
        FORK.SimpleQueue().put(WEIGHT * 2)


def test_queue_of_a_manager():
    with FORK.Manager() as manager, pytest.raises(RuntimeError, match="Cowardly"):
        manager.Queue().put(WEIGHT * 2)
