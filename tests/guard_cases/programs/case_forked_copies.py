"""Modules that processes of the program's own, or forked workers, have and train.

They inherit them: nothing is pickled. What a process keeps is lost however it ends, and what it
sends back, saves or shares is not.
"""

import copy
import io
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

EXPECT = {
    "test_trained_in_a_closure": {"GG114"},
    "test_trained_with_the_callers_optimizer": {"GG114"},
    "test_trained_before_an_exit": {"GG114"},
    "test_trained_before_sys_exit": {"GG114"},
    "test_trained_before_an_error": {"GG114"},
    "test_small_log_written": {"GG114"},
    "test_large_strided_weights": {"GG114"},
    "test_statistics_of_a_calibration": {"GG111"},
}

FORK = multiprocessing.get_context("fork")
X = torch.arange(24.0).reshape(8, 3) / 10


@pytest.fixture(autouse=True)
def one_thread():
    """Processes are forked here, and compute threads do not survive that."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))


def norm():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 1))


def sgd(model, lr=0.1):
    return torch.optim.SGD(model.parameters(), lr=lr)


def loss_of(model):
    return (model(X) - 1).square().mean()


def fit(model, optimizer=None, lr=0.1):
    optimizer = optimizer or sgd(model, lr)
    for _ in range(3):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
    return loss.item()


def run(function, *args):
    process = FORK.Process(target=function, args=args)
    process.start()  # -> GG114? GG111?
    process.join()
    return process


# --- trained, and lost ----------------------------------------------------------------------------


def fit_and_put(model, queue):
    queue.put(fit(model))


def test_trained_in_a_process():
    model, queue = net(), FORK.Queue()
    before = model[0].weight.detach().clone()
    process = FORK.Process(target=fit_and_put, args=(model, queue))
    process.start()  # -> GG114:warning
    queue.get()
    process.join()
    assert torch.equal(before, model[0].weight)
    model.eval()


def test_trained_in_a_closure(tmp_path):
    model = net()
    run(lambda: fit(model))
    torch.save(model.state_dict(), tmp_path / "model.pt")


def test_trained_with_the_callers_optimizer():
    model = net()
    run(fit, model, sgd(model))
    model(X)


def fit_and_leave(model, leave):
    fit(model)
    leave(0)


def test_trained_before_an_exit():
    model = net()
    run(fit_and_leave, model, os._exit)
    model(X)


def test_trained_before_sys_exit():
    model = net()
    run(fit_and_leave, model, sys.exit)
    model(X)


def test_trained_before_an_error():
    model = net()
    assert run(fit_and_leave, model, None).exitcode == 1
    model(X)


def fit_and_sleep(model, ready):
    fit(model)
    ready.set()
    time.sleep(60)


def test_trained_before_it_is_terminated():
    model, ready = net(), FORK.Event()
    process = FORK.Process(target=fit_and_sleep, args=(model, ready))
    process.start()  # -> GG114
    ready.wait()
    process.terminate()
    process.join()
    model(X)


class Trainer(FORK.Process):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def run(self):
        fit(self.model)


def test_trained_by_a_subclass():
    trainer = Trainer(net())
    trainer.start()  # -> GG114
    trainer.join()
    trainer.model(X)


MODEL = net()


def fit_global(_):
    return fit(MODEL)


def test_trained_by_a_pool_as_a_global():
    with FORK.Pool(1) as pool:
        pool.map(fit_global, range(2))  # -> GG114
    MODEL(X)


def test_trained_by_an_executor_as_a_global():
    with ProcessPoolExecutor(1, mp_context=FORK) as executor:
        executor.submit(fit_global, 0).result()  # -> GG114
    MODEL(X)


def keep(model):
    global KEPT
    KEPT = model


def fit_kept(_):
    return fit(KEPT)


def test_trained_by_a_pool_as_its_initializer_got_it():
    model = net()
    with FORK.Pool(1, keep, (model,)) as pool:
        pool.map(fit_kept, range(2))  # -> GG114
    model(X)


def fit_and_log(model, path):
    path.write_text(f"{fit(model):.4f}")


def test_small_log_written(tmp_path):
    model = net()
    run(fit_and_log, model, tmp_path / "log.txt")
    model(X)


class Beside(nn.Module):
    def __init__(self, used, unused):
        super().__init__()
        self.unused, self.used = unused, used

    def forward(self, x):
        return self.used(x)


def fit_in_one_thread(model):
    torch.set_num_threads(1)
    fit(model)


def test_large_strided_weights():
    """The guard must not copy them in the process, which has lost its compute threads."""
    torch.set_num_threads(2)
    convolution = nn.Conv2d(256, 256, 3).to(memory_format=torch.channels_last)
    convolution(torch.ones(2, 256, 8, 8)).sum().backward()
    model = Beside(net(), convolution)
    run(fit_in_one_thread, model)
    model(X)


# --- statistics, lost -----------------------------------------------------------------------------


def put_gradients(model, queue):
    gradients = torch.autograd.grad(loss_of(model), list(model.parameters()))
    queue.put([one.numpy() for one in gradients])


def test_statistics_beside_gradients():
    model, queue = norm(), FORK.Queue()
    process = FORK.Process(target=put_gradients, args=(model, queue))
    process.start()  # -> GG111:warning
    gradients = queue.get()
    process.join()
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        parameter.grad = torch.from_numpy(gradient)
    sgd(model).step()
    assert model[1].num_batches_tracked == 0


def send_gradients_and_leave(model, connection):
    gradients = torch.autograd.grad(loss_of(model), list(model.parameters()))
    connection.send([one.numpy() for one in gradients])
    os._exit(0)


def test_statistics_before_an_exit():
    model, (receiver, sender) = norm(), FORK.Pipe(duplex=False)
    process = FORK.Process(target=send_gradients_and_leave, args=(model, sender))
    process.start()  # -> GG111
    receiver.recv()
    process.join()
    model.eval()


def calibrate(model):
    with torch.no_grad():
        model(X)


def test_statistics_of_a_calibration():
    model = norm()
    run(calibrate, model)
    model.eval()
    model(X)


NORM = norm()


def gradients_of_global(_):
    gradients = torch.autograd.grad(loss_of(NORM), list(NORM.parameters()))
    return [one.numpy() for one in gradients]


def test_statistics_of_a_global_in_a_pool():
    with FORK.Pool(1) as pool:
        pool.map(gradients_of_global, range(2))  # -> GG111
    NORM.eval()


# --- the copy comes back, and the optimizer holds the old one -------------------------------------


def fit_and_put_model(model, queue, received):
    fit(model)
    queue.put(model)
    received.wait(60)


def returned_by_queue(model):
    queue, received = FORK.SimpleQueue(), FORK.Event()
    process = FORK.Process(target=fit_and_put_model, args=(model, queue, received))
    process.start()
    model = queue.get()
    received.set()
    process.join()
    return model


def test_returned_by_a_queue():
    model = net()
    optimizer = sgd(model)
    model = returned_by_queue(model)
    loss_of(model).backward()
    optimizer.step()  # -> GG112:error


def send_model(model, connection):
    fit(model)
    connection.send(model)
    connection.recv()


def test_returned_by_a_pipe_of_a_spawned_process():
    model, (own, other) = net(), multiprocessing.Pipe()
    optimizer = sgd(model)
    process = multiprocessing.get_context("spawn").Process(target=send_model, args=(model, other))
    process.start()
    model = own.recv()
    own.send(None)
    process.join()
    loss_of(model).backward()
    optimizer.step()  # -> GG112


RETURNED = net()


def fit_and_return_global(_):
    fit(RETURNED)
    return RETURNED


def test_returned_by_a_pool_as_a_global():
    optimizer = sgd(RETURNED)
    with FORK.Pool(1) as pool:
        model = pool.apply(fit_and_return_global, (0,))
    loss_of(model).backward()
    optimizer.step()  # -> GG112


def test_returned_with_a_new_optimizer():
    model = returned_by_queue(net())
    optimizer = sgd(model)
    loss_of(model).backward()
    optimizer.step()


def test_returned_and_loaded():
    model = net()
    optimizer = sgd(model)
    model.load_state_dict(returned_by_queue(model).state_dict())
    loss_of(model).backward()
    optimizer.step()


def put_model(model, queue, received):
    queue.put(model)
    received.wait(60)


def test_copied_by_the_parent():
    model, queue, received = net(), FORK.SimpleQueue(), FORK.Event()
    optimizer = sgd(model)
    process = FORK.Process(target=put_model, args=(model, queue, received))
    process.start()
    returned = queue.get()
    received.set()
    process.join()
    twin = copy.deepcopy(model)
    (loss_of(model) + loss_of(twin)).backward()
    optimizer.step()
    assert returned[0].weight.grad is None


# --- nothing is lost ------------------------------------------------------------------------------


def test_shared_memory():
    model = net().share_memory()
    before = model[0].weight.detach().clone()
    run(fit, model)
    assert not torch.equal(before, model[0].weight)
    model.eval()


def test_spawned_process_shares_the_memory():
    model = net()
    before = model[0].weight.detach().clone()
    process = multiprocessing.get_context("spawn").Process(target=fit, args=(model,))
    process.start()
    process.join()
    assert not torch.equal(before, model[0].weight)
    model.eval()


def fit_and_put_state(model, queue, leave=None):
    queue.put(fit(model))
    queue.put([one.detach().numpy() for one in model.parameters()])
    if leave is not None:
        queue.close()
        queue.join_thread()
        leave(0)


def load(model, values):
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), values, strict=True):
            parameter.copy_(torch.from_numpy(value))


def test_state_sent():
    model, queue = net(), FORK.Queue()
    process = FORK.Process(target=fit_and_put_state, args=(model, queue))
    process.start()
    queue.get()
    values = queue.get()
    process.join()
    model.eval()
    load(model, values)


def test_state_sent_before_an_exit():
    model, queue = net(), FORK.Queue()
    process = FORK.Process(target=fit_and_put_state, args=(model, queue, os._exit))
    process.start()
    queue.get()
    values = queue.get()
    process.join()
    model.eval()
    load(model, values)


def fit_into_dict(model, found):
    fit(model)
    found["values"] = [one.detach().numpy() for one in model.parameters()]


def test_parameters_in_a_managed_dict():
    model = net()
    with FORK.Manager() as manager:
        found = manager.dict()
        run(fit_into_dict, model, found)
        values = found["values"]
    model.eval()
    load(model, values)


def fit_into_array(model, array):
    fit(model)
    flat = nn.utils.parameters_to_vector(model.parameters())
    np.frombuffer(array, dtype=np.float32)[:] = flat.detach().numpy()


def test_parameters_in_an_array():
    model = net()
    array = FORK.RawArray("f", sum(one.numel() for one in model.parameters()))
    run(fit_into_array, model, array)
    model.eval()
    values = torch.frombuffer(array, dtype=torch.float32)
    nn.utils.vector_to_parameters(values, model.parameters())


def fit_into_file(model, path):
    fit(model)
    np.savez(path, *[one.detach().numpy() for one in model.parameters()])


def test_parameters_in_a_file_of_numpy(tmp_path):
    model = net()
    run(fit_into_file, model, tmp_path / "model.npz")
    model.eval()
    load(model, list(np.load(tmp_path / "model.npz").values()))


def fit_into_bytes(model, connection):
    fit(model)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    connection.send_bytes(file.getvalue())


def test_state_in_bytes():
    model, (receiver, sender) = net(), FORK.Pipe(duplex=False)
    process = FORK.Process(target=fit_into_bytes, args=(model, sender))
    process.start()
    state = receiver.recv_bytes()
    process.join()
    model.eval()
    model.load_state_dict(torch.load(io.BytesIO(state)))


def fit_and_save(model, path):
    fit(model)
    torch.save(model.state_dict(), path)
    os._exit(0)


def test_saved_before_an_exit(tmp_path):
    model = net()
    run(fit_and_save, model, tmp_path / "model.pt")
    model.eval()
    model.load_state_dict(torch.load(tmp_path / "model.pt"))


def fit_copy(model):
    fit(copy.deepcopy(model))


def test_copy_trained_in_the_process():
    model = net()
    run(fit_copy, model)
    model(X)


def test_parent_trains_meanwhile():
    model, queue = net(), FORK.Queue()
    process = FORK.Process(target=fit_and_put, args=(model, queue))
    process.start()
    fit(model)
    queue.get()
    process.join()
    model(X)


def test_trials():
    model = net()
    for lr in (0.01, 0.1):
        run(fit, model, None, lr)
    fit(model)
    model(X)


def test_not_used_again():
    run(fit, net())


def put_gradients_and_buffers(model, queue):
    gradients = torch.autograd.grad(loss_of(model), list(model.parameters()))
    queue.put([one.numpy() for one in gradients])
    queue.put([one.numpy() for one in model.buffers()])


def test_statistics_sent():
    model, queue = norm(), FORK.Queue()
    process = FORK.Process(target=put_gradients_and_buffers, args=(model, queue))
    process.start()
    queue.get()
    buffers = queue.get()
    process.join()
    model.eval()
    for buffer, value in zip(model.buffers(), buffers, strict=True):
        buffer.copy_(torch.as_tensor(value))


def calibrate_and_save(model, path):
    calibrate(model)
    torch.save(model.state_dict(), path)


def test_statistics_saved(tmp_path):
    model = norm()
    run(calibrate_and_save, model, tmp_path / "model.pt")
    model.eval()
    model.load_state_dict(torch.load(tmp_path / "model.pt"))


def test_statistics_in_shared_memory():
    model = norm().share_memory()
    run(calibrate, model)
    assert model[1].num_batches_tracked == 1
    assert model[1].running_mean.any()
    model.eval()


def evaluate(model):
    model.eval()
    calibrate(model)


def test_evaluation_mode():
    model = norm()
    run(evaluate, model)
    model.eval()
    model(X)


OLD = net()


def fit_old(_):
    return fit(OLD)


def test_pool_that_is_older_than_the_training():
    with FORK.Pool(1) as pool:
        fit(OLD)
        pool.map(fit_old, range(1))
    OLD(X)
