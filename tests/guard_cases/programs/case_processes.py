"""Processes that the program starts itself: what they send, draw, and lack.

Torch refuses to send what has history by the standard library's queues and pipes. Those of
`multiprocess` drop it silently, and so does pickling by hand.
"""

import io
import multiprocessing
import os
import pickle
import random
import time
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

try:
    import multiprocess
except ImportError:
    multiprocess = None

needs_multiprocess = pytest.mark.skipif(multiprocess is None, reason="multiprocess is missing")

EXPECT = {
    "test_generator_that_processes_of_a_process_share": {"GG305"},
    "test_leaf_for_the_pool_of_a_process": {"GG101"},
}

DETAILS = {
    "test_result_in_a_queue": {
        "GG102": {"backend": "multiprocess", "direction": "result", "object": "result"},
        "GG103": {"without_gradient": ["w"], "backend": "multiprocess"},
    },
    "test_results_in_a_managed_dict": {"GG102": {"object": "result"}},
    "test_result_through_a_pipe": {"GG102": {"object": "result['loss']"}},
    "test_result_of_a_model": {
        "GG103": {"without_gradient": ["model.weight", "model.bias"]},
    },
    "test_generator_in_forked_processes": {"GG305": {"kind": "numpy.random.Generator"}},
    "test_generator_of_torch": {"GG305": {"kind": "torch.Generator"}},
}

FORK = multiprocessing.get_context("fork")
SPAWN = multiprocessing.get_context("spawn")
X = torch.arange(12.0).reshape(4, 3) / 12
RNG = np.random.default_rng(3)


def finish(*processes):
    for process in processes:
        process.join()
        assert process.exitcode == 0


def start(context, task, *all_args):
    processes = [context.Process(target=task, args=args) for args in all_args]
    for process in processes:
        process.start()
    return processes


# --- what is sent with its graph ------------------------------------------------------------


def puts_loss(queue, w):
    torch.set_num_threads(1)
    queue.put((X @ w).square().mean())


@needs_multiprocess
def test_result_in_a_queue():
    w = torch.ones(3, requires_grad=True)
    queue = multiprocess.get_context("fork").Queue()
    process = multiprocess.get_context("fork").Process(target=puts_loss, args=(queue, w))
    process.start()  # -> GG102
    loss = queue.get()
    finish(process)
    loss.backward()  # -> GG103:error
    assert w.grad is None


@needs_multiprocess
def test_result_in_a_simple_queue():
    w = torch.ones(3, requires_grad=True)
    queue = multiprocess.get_context("fork").SimpleQueue()
    process = multiprocess.get_context("fork").Process(target=puts_loss, args=(queue, w))
    process.start()  # -> GG102
    loss = queue.get()
    finish(process)
    (loss + 0.1 * w.square().sum()).backward()  # -> GG103:error
    assert w.grad is not None


def sends_loss(connection, w):
    torch.set_num_threads(1)
    connection.send({"loss": (X @ w).square().mean(), "step": 1})


@needs_multiprocess
def test_result_through_a_pipe():
    w = torch.ones(3, requires_grad=True)
    here, there = multiprocess.get_context("fork").Pipe()
    process = multiprocess.get_context("fork").Process(target=sends_loss, args=(there, w))
    process.start()  # -> GG102
    loss = here.recv()["loss"]
    finish(process)
    loss.backward()  # -> GG103:error


def keeps_loss(losses, index, w):
    torch.set_num_threads(1)
    losses[index] = (X[index] @ w).square()


@needs_multiprocess
def test_results_in_a_managed_dict():
    w = torch.ones(3, requires_grad=True)
    context = multiprocess.get_context("fork")
    with context.Manager() as manager:
        losses = manager.dict()
        processes = [
            context.Process(target=keeps_loss, args=(losses, index, w)) for index in range(2)
        ]
        for process in processes:
            process.start()  # -> GG102
        finish(*processes)
        total = sum(losses[index] for index in range(2))
    total.backward()  # -> GG103:error


@needs_multiprocess
def test_result_of_a_spawned_process():
    w = torch.ones(3, requires_grad=True)
    context = multiprocess.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=puts_loss, args=(queue, w))
    process.start()  # -> GG101 GG102
    loss = queue.get()
    finish(process)
    loss.backward()  # -> GG103:error


def puts_prediction(queue, model):
    torch.set_num_threads(1)
    queue.put(model(X))


@needs_multiprocess
def test_result_of_a_model():
    model = nn.Linear(3, 1)
    queue = multiprocess.get_context("fork").Queue()
    process = multiprocess.get_context("fork").Process(target=puts_prediction, args=(queue, model))
    process.start()  # -> GG102
    prediction = queue.get()
    finish(process)
    prediction.square().mean().backward()  # -> GG103:error
    assert model.weight.grad is None


def puts_own_loss(queue):
    torch.set_num_threads(1)
    queue.put(nn.Linear(3, 1)(X).mean())


@needs_multiprocess
def test_graph_of_the_process_alone():
    context = multiprocess.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=puts_own_loss, args=(queue,))
    process.start()  # -> GG102
    loss = queue.get()
    finish(process)
    loss.backward()  # -> GG103:warning


@needs_multiprocess
def test_result_that_is_only_shown():
    w = torch.ones(3, requires_grad=True)
    queue = multiprocess.get_context("fork").Queue()
    process = multiprocess.get_context("fork").Process(target=puts_loss, args=(queue, w))
    process.start()  # -> GG102
    assert queue.get().item() > 0
    finish(process)


def pickles_loss(queue, w):
    torch.set_num_threads(1)
    queue.put(pickle.dumps((X @ w).square().mean()))


def test_result_pickled_by_hand():
    w = torch.ones(3, requires_grad=True)
    queue = FORK.Queue()
    (process,) = start(FORK, pickles_loss, (queue, w))
    loss = pickle.loads(queue.get())
    finish(process)
    loss.backward()  # -> GG103:error
    assert w.grad is None


def saves_loss(path, w):
    torch.set_num_threads(1)
    torch.save({"loss": (X @ w).square().mean()}, path)


def test_result_in_a_file(tmp_path):
    w = torch.ones(3, requires_grad=True)
    finish(*start(FORK, saves_loss, (tmp_path / "loss.pt", w)))
    torch.load(tmp_path / "loss.pt")["loss"].backward()  # -> GG103:error
    assert w.grad is None


def puts_detached(queue, w):
    torch.set_num_threads(1)
    queue.put((X @ w).square().mean().detach())


@needs_multiprocess
def test_detached_result():
    w = torch.ones(3, requires_grad=True)
    queue = multiprocess.get_context("fork").Queue()
    process = multiprocess.get_context("fork").Process(target=puts_detached, args=(queue, w))
    process.start()
    (queue.get() * w.sum()).backward()
    finish(process)
    assert w.grad is not None


def puts_number(queue, w):
    torch.set_num_threads(1)
    queue.put((X @ w).square().mean().item())


def test_result_as_numbers():
    w = torch.ones(3, requires_grad=True)
    queue = FORK.Queue()
    (process,) = start(FORK, puts_number, (queue, w))
    loss = torch.tensor(queue.get(), requires_grad=True)
    finish(process)
    loss.backward()


def trains(path, queue):
    torch.set_num_threads(1)
    model = nn.Linear(3, 1)
    loss = model(X).square().mean()
    torch.save({"loss": loss, "model": model.state_dict()}, path)
    queue.put(loss.item())


def test_graph_in_a_checkpoint_of_the_process(tmp_path):
    queue = FORK.Queue()
    (process,) = start(FORK, trains, (tmp_path / "last.pt", queue))
    queue.get()
    finish(process)
    kept = torch.load(tmp_path / "last.pt")
    model = nn.Linear(3, 1)
    model.load_state_dict(kept["model"])
    model(X).mean().backward()
    assert kept["loss"].item() >= 0


def puts_bytes(connection, w):
    torch.set_num_threads(1)
    stream = io.BytesIO()
    torch.save(X @ w, stream)
    connection.send_bytes(stream.getvalue())


def test_gradient_at_the_result():
    w = torch.ones(3, requires_grad=True)
    here, there = FORK.Pipe()
    (process,) = start(FORK, puts_bytes, (there, w))
    output = torch.load(io.BytesIO(here.recv_bytes()))
    finish(process)
    (at_output,) = torch.autograd.grad(output.square().sum(), output)
    assert at_output.shape == (4,)


# --- one generator --------------------------------------------------------------------------


def draws(queue, rng):
    queue.put(rng.random(2).tolist())


def drawn(context, task, *all_args):
    queue = context.Queue()
    processes = start(context, task, *((queue, *args) for args in all_args))
    numbers = [tuple(queue.get()) for _ in processes]
    finish(*processes)
    return numbers


def test_generator_in_forked_processes():
    rng = np.random.default_rng(0)
    queue = FORK.Queue()
    processes = [FORK.Process(target=draws, args=(queue, rng)) for _ in range(3)]
    for process in processes:
        process.start()  # -> GG305
    assert len({tuple(queue.get()) for _ in processes}) == 1
    finish(*processes)


def test_generator_in_spawned_processes():
    rng = np.random.default_rng(0)
    queue = SPAWN.Queue()
    processes = [SPAWN.Process(target=draws, args=(queue, rng)) for _ in range(2)]
    for process in processes:
        process.start()  # -> GG305
    assert len({tuple(queue.get()) for _ in processes}) == 1
    finish(*processes)


def draws_normal(queue, generator):
    queue.put(torch.randn(2, generator=generator).tolist())


def test_generator_of_torch():
    generator = torch.Generator().manual_seed(1)
    queue = FORK.Queue()
    first = FORK.Process(target=draws_normal, args=(queue, generator))
    second = FORK.Process(target=draws_normal, args=(queue, generator))
    first.start()
    second.start()  # -> GG305
    assert queue.get() == queue.get()
    finish(first, second)


def draws_from_the_module(queue):
    queue.put(RNG.random(2).tolist())


def test_generator_of_a_module():
    queue = FORK.Queue()
    processes = [FORK.Process(target=draws_from_the_module, args=(queue,)) for _ in range(2)]
    for process in processes:
        process.start()  # -> GG305
    assert queue.get() == queue.get()
    finish(*processes)


def spawns(queue, rng):
    queue.put(rng.spawn(1)[0].random(2).tolist())


def test_generators_spawned_from_copies():
    rng = np.random.default_rng(0)
    queue = FORK.Queue()
    processes = [FORK.Process(target=spawns, args=(queue, rng)) for _ in range(2)]
    for process in processes:
        process.start()  # -> GG305
    assert queue.get() == queue.get()
    finish(*processes)


def test_generator_of_its_own():
    numbers = drawn(FORK, draws, *((rng,) for rng in np.random.default_rng(0).spawn(2)))
    assert len(set(numbers)) == 2


def draws_if(queue, rng, whether):
    queue.put([rng.random()] if whether else [0.0])


def test_generator_that_one_process_draws_from():
    rng = np.random.default_rng(0)
    drawn(FORK, draws_if, (rng, False), (rng, True))


def draws_seeded(queue, generator, seed):
    generator.manual_seed(seed)
    queue.put(torch.rand(2, generator=generator).tolist())


def test_generator_seeded_in_each_process():
    generator = torch.Generator()
    assert len(set(drawn(FORK, draws_seeded, (generator, 1), (generator, 2)))) == 2


def test_generator_that_went_on_between():
    rng = np.random.default_rng(0)
    queue = FORK.Queue()
    processes = [FORK.Process(target=draws, args=(queue, rng)) for _ in range(2)]
    for process in processes:
        process.start()
        rng.random()
    assert queue.get() != queue.get()
    finish(*processes)


def test_generator_in_one_process_after_another():
    rng = np.random.default_rng(0)
    assert drawn(FORK, draws, (rng,)) == drawn(FORK, draws, (rng,))


def spawns_all(queue, rng, number):
    queue.put(rng.spawn(2)[number].random(2).tolist())


def test_generators_spawned_by_number():
    rng = np.random.default_rng(0)
    assert len(set(drawn(FORK, spawns_all, (rng, 0), (rng, 1)))) == 2


def takes_shard(queue, rng, rank, ranks):
    queue.put(rng.permutation(8)[rank::ranks].tolist())


def test_shards_of_one_order():
    rng = np.random.default_rng(0)
    first, second = drawn(FORK, takes_shard, (rng, 0, 2), (rng, 1, 2))
    assert not set(first) & set(second)


def draws_late(_):
    time.sleep(0.3)
    return float(RNG.random())


def test_generator_inherited_by_a_pool():
    with FORK.Pool(2) as pool:
        numbers = pool.map(draws_late, range(2), chunksize=1)  # -> GG305
    assert len(set(numbers)) == 1


def test_generator_inherited_by_single_tasks():
    with FORK.Pool(2, maxtasksperchild=1) as pool:
        results = [pool.apply_async(draws_late, (index,)) for index in range(2)]  # -> GG305
        assert len({result.get() for result in results}) == 1


def test_generator_inherited_by_one_worker():
    with FORK.Pool(1) as pool:
        assert len(set(pool.map(draws_late, range(2), chunksize=1))) == 2


def keep(rng):
    global OWN
    OWN = rng


def draws_own(_):
    time.sleep(0.3)
    return float(OWN.random())


def test_generator_given_to_an_initializer():
    with FORK.Pool(2, keep, (np.random.default_rng(0),)) as pool:
        numbers = pool.map(draws_own, range(2), chunksize=1)  # -> GG305
    assert len(set(numbers)) == 1


def test_generator_given_to_an_initializer_of_spawned_workers():
    with SPAWN.Pool(1, keep, (random.Random(0),), maxtasksperchild=1) as pool:
        numbers = pool.map(draws_own, range(2), chunksize=1)  # -> GG305
    assert len(set(numbers)) == 1


class Simulator:
    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)

    def random(self):
        return torch.rand(1, generator=self.generator)


def test_generator_given_to_an_executor():
    with ProcessPoolExecutor(2, FORK, keep, (Simulator(0),)) as executor:
        results = [executor.submit(draws_own, index) for index in range(2)]  # -> GG305
        assert len({result.result() for result in results}) == 1


def keep_seeded(rng):
    keep(np.random.default_rng([int(rng.integers(1 << 30)), os.getpid()]))


def test_generator_that_an_initializer_draws_from():
    with FORK.Pool(2, keep_seeded, (np.random.default_rng(0),)) as pool:
        assert len(set(pool.map(draws_own, range(2), chunksize=1))) == 2


def keep_child(rng, turns):
    with turns.get_lock():
        turns.value += 1
        keep(rng.spawn(turns.value)[-1])


def test_generator_that_an_initializer_splits():
    with FORK.Pool(2, keep_child, (np.random.default_rng(0), FORK.Value("i"))) as pool:
        assert len(set(pool.map(draws_own, range(2), chunksize=1))) == 2


def test_generator_given_to_one_worker():
    with FORK.Pool(1, keep, (np.random.default_rng(0),)) as pool:
        assert len(set(pool.map(draws_own, range(2), chunksize=1))) == 2


def seeds_own():
    RNG.bit_generator.state = np.random.default_rng(os.getpid()).bit_generator.state


def test_generator_that_an_initializer_seeds():
    with FORK.Pool(2, seeds_own) as pool:
        assert len(set(pool.map(draws_late, range(2), chunksize=1))) == 2


# --- processes of a process -----------------------------------------------------------------


def shares(queue, rng):
    processes = [FORK.Process(target=draws, args=(queue, rng)) for _ in range(2)]
    for process in processes:
        process.start()  # -> GG305
    finish(*processes)


def test_generator_that_processes_of_a_process_share():
    queue = FORK.Queue()
    (process,) = start(FORK, shares, (queue, np.random.default_rng(0)))
    assert queue.get() == queue.get()
    finish(process)


def scales(w, factor):
    return (w * factor).detach().sum().item()


def scales_in_a_pool(queue, w):
    with FORK.Pool(1) as pool:
        queue.put(pool.starmap(scales, [(w, 1), (w, 2)]))  # -> GG101


def test_leaf_for_the_pool_of_a_process():
    queue = FORK.Queue()
    (process,) = start(FORK, scales_in_a_pool, (queue, torch.ones(3, requires_grad=True)))
    assert queue.get() == [3.0, 6.0]
    finish(process)


def test_work_of_a_process():
    queue = FORK.Queue()
    (process,) = start(FORK, scales_in_a_pool, (queue, torch.ones(3)))
    assert queue.get() == [3.0, 6.0]
    finish(process)


# --- settings -------------------------------------------------------------------------------


@pytest.fixture
def doubles():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def puts_zeros(queue):
    queue.put(torch.zeros(2).element_size())


def test_dtype_in_a_spawned_process(doubles):
    queue = SPAWN.Queue()
    process = SPAWN.Process(target=puts_zeros, args=(queue,))
    process.start()  # -> GG301
    assert queue.get() == 4
    finish(process)


def multiplies(queue):
    queue.put((torch.ones(2, 2) @ torch.ones(2, 2)).sum().item())


def test_determinism_in_a_spawned_process():
    torch.use_deterministic_algorithms(True)
    try:
        queue = SPAWN.Queue()
        process = SPAWN.Process(target=multiplies, args=(queue,))
        process.start()  # -> GG301
        queue.get()
        finish(process)
    finally:
        torch.use_deterministic_algorithms(False)


def test_dtype_in_a_forked_process(doubles):
    queue = FORK.Queue()
    (process,) = start(FORK, puts_zeros, (queue,))
    assert queue.get() == 8
    finish(process)


def sets_dtype(queue):
    torch.set_default_dtype(torch.float64)
    queue.put(torch.zeros(2).element_size())


def test_dtype_set_in_the_process(doubles):
    queue = SPAWN.Queue()
    (process,) = start(SPAWN, sets_dtype, (queue,))
    assert queue.get() == 8
    finish(process)


def test_dtype_that_makes_no_difference(doubles):
    queue = SPAWN.Queue()
    (process,) = start(SPAWN, draws, (queue, np.random.default_rng(0)))
    queue.get()
    finish(process)
