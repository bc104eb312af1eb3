"""What the program pickles itself: for a pipe, a queue, a file, or a program that it starts."""

import concurrent.futures
import copy
import io
import multiprocessing
import pickle
import subprocess
import sys
import threading
from functools import partial

import torch
from joblib import Parallel, delayed
from torch import nn

EXPECT = {
    "test_model_in_a_queue_of_a_spawned_process": {"GG106"},
    "test_model_in_a_queue_of_a_manager": {"GG106"},
    "test_pool_of_ones_own": {"GG106"},
    "test_loss_in_a_file": {"GG101", "GG103"},
}

FORK = multiprocessing.get_context("fork")
SPAWN = multiprocessing.get_context("spawn")
X = torch.ones(2, 3)


def made():
    model = nn.Linear(3, 1)
    return model, torch.optim.SGD(model.parameters(), 0.1)


def loss_of(model):
    loss = model(X).pow(2).sum()
    loss.backward()
    return loss.item()


def gradients_of(model):
    loss_of(model)
    return [parameter.grad for parameter in model.parameters()]


def set_gradients(model, gradients):
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        parameter.grad = gradient.clone()


def serve(answer, connection):
    for item in iter(connection.recv, None):
        for one in answer(item):
            connection.send(one)


class Server:
    def __init__(self, answer, context=FORK):
        self.connection, other = context.Pipe()
        self.process = context.Process(target=serve, args=(answer, other))
        self.process.start()

    def __enter__(self):
        return self.connection

    def __exit__(self, *_):
        self.connection.send(None)
        self.process.join()


def serve_queues(tasks, results):
    for function, item in iter(tasks.get, None):
        results.put(function(item))


def run_in_queues(context, tasks, results, count=1):
    model, optimizer = made()
    processes = [
        context.Process(target=serve_queues, args=(tasks, results), daemon=True)
        for _ in range(count)
    ]
    for process in processes:
        process.start()
    for _ in range(2):
        optimizer.zero_grad()
        for _ in processes:
            tasks.put((loss_of, model))
        for _ in processes:
            results.get(timeout=100)
        optimizer.step()  # -> GG106:error
    for _ in processes:
        tasks.put(None)
    for process in processes:
        process.join()


class Queues:
    def __init__(self):
        self.both = SPAWN.Queue(), SPAWN.Queue()


class Serving(SPAWN.Process):
    def __init__(self, queues):
        super().__init__(daemon=True)
        self.queues = queues

    def run(self):
        serve_queues(*self.queues.both)


def test_queues_in_an_object_of_a_process():
    model, optimizer = made()
    process = Serving(Queues())
    process.start()
    tasks, results = process.queues.both
    for _ in range(2):
        optimizer.zero_grad()
        tasks.put((loss_of, model))
        results.get(timeout=100)
        optimizer.step()  # -> GG106:error
    tasks.put(None)
    process.join()


# -- models that a process gets while it runs ------------------------------------------------------


def loss_alone(item):
    yield loss_of(item["model"])


def test_model_in_a_pipe():
    model, optimizer = made()
    with Server(loss_alone) as server:
        for _ in range(2):
            optimizer.zero_grad()
            server.send({"model": model})
            server.recv()
            optimizer.step()  # -> GG106:error


def test_second_model_in_a_pipe():
    """The gradients of the first come back."""
    (first, _), (model, optimizer) = made(), made()
    with Server(either) as server:
        server.send(first)
        set_gradients(first, server.recv())
        server.send({"model": model})
        server.recv()
        optimizer.step()  # -> GG106:error


def either(item):
    return loss_alone(item) if isinstance(item, dict) else [gradients_of(item)]


def test_model_in_a_queue_of_a_spawned_process():
    run_in_queues(SPAWN, SPAWN.SimpleQueue(), SPAWN.Queue())


def test_model_in_a_queue_of_a_manager():
    with FORK.Manager() as manager:
        run_in_queues(FORK, manager.Queue(), manager.Queue())


def test_pool_of_ones_own():
    run_in_queues(FORK, FORK.Queue(), FORK.Queue(), count=2)


def loss_of_bytes(data):
    yield loss_of(pickle.loads(data))


def test_model_as_bytes():
    model, optimizer = made()
    with Server(loss_of_bytes) as server:
        server.send(pickle.dumps(model))
        server.recv()
        optimizer.step()  # -> GG106:error


def loss_from_file(path):
    loss_of(torch.load(path, weights_only=False))


def test_model_in_a_file(tmp_path):
    model, optimizer = made()
    torch.save(model, tmp_path / "model.pt")
    process = SPAWN.Process(target=loss_from_file, args=(tmp_path / "model.pt",))
    process.start()
    process.join()
    optimizer.step()  # -> GG106:error


def loaded_and(function, path):
    return function(torch.load(path, weights_only=False))


def test_model_loaded_by_a_task(tmp_path):
    model, optimizer = made()
    torch.save(model, tmp_path / "model.pt")
    Parallel(n_jobs=2)(delayed(loaded_and)(loss_of, tmp_path / "model.pt") for _ in range(2))
    optimizer.step()  # -> GG106:error


def test_gradients_of_a_model_loaded_by_a_task(tmp_path):
    model, optimizer = made()
    torch.save(model, tmp_path / "model.pt")
    tasks = (delayed(loaded_and)(gradients_of, tmp_path / "model.pt") for _ in range(2))
    for gradients in Parallel(n_jobs=2)(tasks):
        set_gradients(model, gradients)
    optimizer.step()


def gradients(model):
    yield gradients_of(model)


def test_gradients_in_a_pipe():
    model, optimizer = made()
    with Server(gradients) as server:
        for _ in range(2):
            optimizer.zero_grad()
            server.send(model)
            set_gradients(model, server.recv())
            optimizer.step()


def loss_and_gradients(model):
    yield loss_of(model)
    yield [parameter.grad for parameter in model.parameters()]


def test_gradients_after_the_loss():
    model, optimizer = made()
    with Server(loss_and_gradients) as server:
        for _ in range(2):
            optimizer.zero_grad()
            server.send(model)
            server.recv()
            set_gradients(model, server.recv())
            optimizer.step()


def gradients_to_file(path, model):
    torch.save(gradients_of(model), path)
    yield "saved"


def test_gradients_in_a_file(tmp_path):
    model, optimizer = made()
    path = tmp_path / "gradients.pt"
    with Server(partial(gradients_to_file, path)) as server:
        for _ in range(2):
            server.send(model)
            server.recv()
            for parameter, gradient in zip(model.parameters(), torch.load(path), strict=True):
                parameter.data -= gradient
            optimizer.step()


def step_there(model):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loss = loss_of(model)
    optimizer.step()
    yield loss


def test_shared_parameters_stepped_there():
    """The fix of `test_model_in_a_pipe`: the pipe has moved the parameters to shared memory."""
    model, optimizer = made()
    before = copy.deepcopy(model)
    with Server(step_there) as server:
        server.send(model)
        server.recv()
    assert not torch.equal(before.weight, model.weight)
    optimizer.step()


def state_of(model):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loss_of(model)
    optimizer.step()
    return {name: value.numpy() for name, value in model.state_dict().items()}


def test_state_in_a_queue():
    model, optimizer = made()
    tasks, results = FORK.Queue(), FORK.Queue()
    process = FORK.Process(target=serve_queues, args=(tasks, results))
    process.start()
    tasks.put((state_of, model))
    state = {name: torch.from_numpy(value) for name, value in results.get(timeout=100).items()}
    tasks.put(None)
    process.join()
    model.load_state_dict(state)
    optimizer.step()


def norm_of(model):
    model.zero_grad()
    yield sum(gradient.norm().item() for gradient in gradients_of(model))


def test_metric_of_a_server():
    model, optimizer = made()
    with Server(norm_of) as server:
        for _ in range(2):
            optimizer.zero_grad()
            model(X).mean().backward()
            server.send(model)
            server.recv()
            optimizer.step()


@torch.no_grad()
def evaluate(model):
    return [model(X).mean().item()]


def test_evaluation_by_a_server():
    model, optimizer = made()
    with Server(evaluate) as server:
        for _ in range(2):
            server.send(model)
            server.recv()
            optimizer.zero_grad()
            model(X).mean().backward()
            optimizer.step()


# -- what workers pickle with a graph --------------------------------------------------------------


def loss_to_file(leaf, path):
    torch.save({"loss": (leaf * X).sum()}, path)


def losses_in_files(leaf, folder):
    paths = [folder / f"{number}.pt" for number in range(2)]
    Parallel(n_jobs=2)(delayed(loss_to_file)(leaf, path) for path in paths)  # -> GG101
    return [torch.load(path)["loss"] for path in paths]


def test_loss_in_a_file(tmp_path):
    leaf = torch.ones(3, requires_grad=True)
    sum(losses_in_files(leaf, tmp_path)).backward()  # -> GG103:error
    assert leaf.grad is None


def loss_as_bytes(model):
    written = io.BytesIO()
    torch.save(model(X).sum(), written)
    return written.getvalue()


def test_loss_as_bytes():
    model, optimizer = made()
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=SPAWN) as executor:
        written = list(executor.map(loss_as_bytes, [model]))
    sum(torch.load(io.BytesIO(one)) for one in written).backward()  # -> GG103:error
    optimizer.step()


def features(model):
    yield loss_as_bytes(model)


def test_features_of_a_server():
    model, optimizer = made()
    with Server(features) as server:
        server.send(model)
        torch.load(io.BytesIO(server.recv())).pow(2).backward()  # -> GG103:error
    optimizer.step()


def pickled_square(leaf):
    yield pickle.dumps(leaf.pow(2).sum())


def test_leaf_in_a_pipe():
    leaf = torch.ones(3, requires_grad=True)
    with Server(pickled_square, SPAWN) as server:
        server.send(leaf)
        pickle.loads(server.recv()).backward()  # -> GG103:error
    assert leaf.grad is None


def loss_and_gradient(leaf, path):
    loss = (leaf * X).sum()
    torch.save({"loss": loss}, path)
    return torch.autograd.grad(loss, leaf)


def test_loss_in_a_file_read_as_a_number(tmp_path):
    model, optimizer = made()
    paths = [tmp_path / f"{number}.pt" for number in range(2)]
    leaf = model.weight
    tasks = [delayed(loss_and_gradient)(leaf, path) for path in paths]
    leaf.grad = sum(gradient for (gradient,) in Parallel(n_jobs=2)(tasks))
    assert all(torch.load(path)["loss"].item() for path in paths)
    optimizer.step()


def test_checkpoint_of_one_process():
    model, optimizer = made()
    average = copy.deepcopy(model)
    written = io.BytesIO()
    loss = model(X).pow(2).mean()
    loss.backward()
    optimizer.step()
    torch.save({"loss": loss, "model": model, "state": optimizer.state_dict()}, written)
    written.seek(0)
    saved = torch.load(written, weights_only=False)
    optimizer.load_state_dict(saved["state"])
    (model(X).mean() + saved["model"](X).mean() + average(X).mean()).backward()
    assert saved["loss"].item() == loss.item()
    optimizer.step()


class Split:
    """A model whose first half a server holds."""

    def __init__(self):
        self.model, self.optimizer = made()

    def __call__(self, gradient):
        if gradient is not None:
            self.hidden.backward(pickle.loads(gradient))
            self.optimizer.step()
        self.hidden = self.model(X)
        yield pickle.dumps(self.hidden)


def split(item, server=Split()):  # noqa: B008
    return server(None if item == "first" else item)


def test_activations_whose_gradient_goes_back():
    head = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(head.parameters(), 0.1)
    with Server(split) as server:
        server.send("first")
        for _ in range(2):
            optimizer.zero_grad()
            hidden = pickle.loads(server.recv())
            head(hidden).mean().backward()
            server.send(pickle.dumps(hidden.grad))
            optimizer.step()
        server.recv()


# -- programs that are started ---------------------------------------------------------------------

PROGRAM = """
import pickle, sys, torch
item = pickle.load(sys.stdin.buffer)
sys.stdout.buffer.write(pickle.dumps({}))
"""


def run_program(expression, item):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(expression)],
        input=pickle.dumps(item),
        stdout=subprocess.PIPE,
        check=True,
    )
    return pickle.loads(done.stdout)


def test_loss_of_a_program():
    model, optimizer = made()
    run_program("item(torch.ones(2, 3)).mean()", model).backward()  # -> GG103:warning
    optimizer.step()
    assert model.weight.grad is None


def test_gradients_of_a_program():
    model, optimizer = made()
    expression = "torch.autograd.grad(item(torch.ones(2, 3)).mean(), list(item.parameters()))"
    set_gradients(model, run_program(expression, model))
    optimizer.step()


def test_inputs_of_a_program():
    """They are optimized by hand, through the model."""
    model, _ = made()
    inputs = run_program("torch.ones(2, 3).requires_grad_()", model)
    for _ in range(2):
        inputs.grad = None
        model(inputs).mean().backward()
        inputs.data -= inputs.grad


def test_loss_of_a_program_as_a_number():
    model, optimizer = made()
    loss = run_program("item(torch.ones(2, 3)).mean()", model)
    assert loss.item()
    model(X).mean().backward()
    optimizer.step()


def test_hash_of_a_model():
    model, optimizer = made()
    hashes = {pickle.dumps(model) for _ in range(2)}
    thread = threading.Thread(target=subprocess.check_call, args=([sys.executable, "-c", ""],))
    thread.start()
    thread.join()
    model(X).mean().backward()
    optimizer.step()
    assert len(hashes) == 1
