"""Modes, random numbers, caches and generators around joblib's workers. Small tensors only."""

from __future__ import annotations

import multiprocessing
import os
import random
import tempfile
import threading
import time
from contextlib import nullcontext

import joblib
import numpy as np
import stale
import torch
import torch.autograd.forward_ad as forward_ad
from cases import attempt, case, main
from joblib import Memory, Parallel, delayed

BACKENDS = ("loky", "multiprocessing", "threading")


def each(task, *args):
    """What `task` gives in a worker of each backend."""
    return {
        backend: attempt(lambda b=backend: Parallel(2, backend=b)([delayed(task)(*args)])[0])
        for backend in BACKENDS
    }


@case
def no_grad():
    with torch.no_grad():
        return each(torch.is_grad_enabled)


@case
def set_grad_enabled():
    with torch.set_grad_enabled(False):
        return each(torch.is_grad_enabled)


@case
def inference_mode():
    with torch.inference_mode():
        return each(torch.is_inference_mode_enabled)


def autocast_enabled():
    return torch.is_autocast_enabled("cpu")


@case
def autocast():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return each(autocast_enabled)


def derivative(transform, **options):
    """What a transform of the caller's gives of a sum whose parts are made in workers."""
    x = torch.tensor([1.0, 2.0])

    def total(x):
        tasks = [delayed(torch.mul)(x, k) for k in (2.0, 3.0)]
        return sum(Parallel(**options)(tasks)).sum()

    if transform == "vmap":
        return torch.vmap(total)(torch.stack([x, x])).tolist()
    if transform == "vjp":
        return torch.func.vjp(total, x)[1](torch.tensor(1.0))[0].tolist()
    if transform == "jvp":
        return torch.func.jvp(total, (x,), (torch.ones(2),))[1].item()
    if transform == "dual level":
        with forward_ad.dual_level():
            found = total(forward_ad.make_dual(x, torch.ones(2)))
            tangent = forward_ad.unpack_dual(found).tangent
        return None if tangent is None else tangent.item()
    return torch.func.grad(total)(x).tolist()


@case
def derivatives_of_the_caller():
    transforms = ("grad", "vjp", "jvp", "vmap", "dual level")
    ways = {"one job": {"n_jobs": 1}, **{b: {"n_jobs": 2, "backend": b} for b in BACKENDS}}
    return {
        transform: {
            way: attempt(lambda t=transform, o=options: derivative(t, **o))
            for way, options in ways.items()
        }
        for transform in transforms
    }


@case
def detect_anomaly():
    with torch.autograd.detect_anomaly(check_nan=False):
        return each(torch.is_anomaly_enabled)


def settings_of_the_process():
    return {
        "default dtype": str(torch.empty(0).dtype),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "matmul precision": torch.get_float32_matmul_precision(),
        "cuDNN benchmark": torch._C._get_cudnn_benchmark(),
        "default device": torch.empty(0).device.type,
    }


@case
def settings_of_the_caller():
    torch.set_default_dtype(torch.float64)
    torch.set_deterministic_debug_mode("error")
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    torch.set_default_device("meta")
    try:
        return {"caller": settings_of_the_process(), **each(settings_of_the_process)}
    finally:
        torch.set_default_device(None)
        torch.backends.cudnn.benchmark = False
        torch.set_float32_matmul_precision("highest")
        torch.set_deterministic_debug_mode("default")
        torch.set_default_dtype(torch.float32)


def made_with_gradients(tensor):
    return tensor.requires_grad


@case
def caller_generator_under_no_grad():
    weight = torch.ones(1, requires_grad=True)
    found = {}
    for backend in BACKENDS:
        made = []

        def tasks(made=made):
            for _ in range(12):
                value = weight * 2
                made.append(value.requires_grad)
                yield delayed(made_with_gradients)(value.detach())

        with torch.no_grad():
            Parallel(2, backend=backend)(tasks())
        found[backend] = made
    return found


@case
def threads_per_worker():
    torch.set_num_threads(2)
    found = each(torch.get_num_threads)
    return {"found": found, "loky's share": max(1, joblib.cpu_count() // 2)}


def draw_torch():
    time.sleep(0.1)
    return os.getpid(), torch.rand(1).item()


def draw_numpy():
    time.sleep(0.1)
    return os.getpid(), np.random.rand()


def draw_python():
    time.sleep(0.1)
    return os.getpid(), random.random()


def streams(task, backend):
    """The numbers that each of two workers drew, in order."""
    while True:
        drawn: dict[int, list[float]] = {}
        for process, number in Parallel(2, backend=backend, batch_size=1)(
            delayed(task)() for _ in range(6)
        ):
            drawn.setdefault(process, []).append(number)
        if len(drawn) == 2:
            return list(drawn.values())


def draws(backend):
    found = {}
    for name, task in (("torch", draw_torch), ("numpy", draw_numpy), ("python", draw_python)):
        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)
        found[name] = [streams(task, backend), streams(task, backend)]
    return found


@case
def random_streams_loky():
    first, second = draws("loky"), draws("loky")
    return {name: first[name] + second[name] for name in first}


@case
def random_streams_fork():
    return draws("multiprocessing")


@case
def random_stream_of_threads():
    torch.manual_seed(0)
    drawn = Parallel(2, backend="threading")(delayed(draw_torch)() for _ in range(4))
    torch.manual_seed(0)
    return sorted(n for _, n in drawn) == sorted(torch.rand(1).item() for _ in range(4))


SEED_AND_DRAW = {
    "torch": (torch.manual_seed, lambda: torch.rand(1).item()),
    "numpy": (np.random.seed, lambda: float(np.random.rand())),
    "python": (random.seed, random.random),
}


def draw_between(turns, own, how, seed):
    """What a task draws that seeds: each thread seeds in its turn, and then draws in its turn."""
    if how == "own generator":
        generator = torch.Generator()
        seed_it, draw = generator.manual_seed, lambda: torch.rand(1, generator=generator).item()
    else:
        seed_it, draw = SEED_AND_DRAW[how.removeprefix("fork_rng of ")]
    drawn = None
    with torch.random.fork_rng() if how.startswith("fork_rng") else nullcontext():
        for turn in range(4):
            if turn == own:
                seed_it(seed)
            if turn == own + 2:
                drawn = draw()
            turns.wait(60)
    return drawn


@case
def threads_that_seed():
    """Whether two threads draw what each draws alone."""
    found = {}
    for how in (*SEED_AND_DRAW, "fork_rng of torch", "own generator"):
        alone = [draw_between(threading.Barrier(1), 0, how, seed) for seed in (1, 2)]
        turns = threading.Barrier(2)
        tasks = [delayed(draw_between)(turns, own, how, own + 1) for own in (0, 1)]
        found[how] = Parallel(2, backend="threading")(tasks) == alone
    return found


@case
def task_that_names_a_module_of_torchs():
    """cloudpickle takes the modules along that a function reaches by attributes of others."""

    def benchmark():
        torch.backends.cudnn.benchmark = True

    found = attempt(lambda: Parallel(2)([delayed(benchmark)()]))
    torch.backends.cudnn.benchmark = False
    return found


def draw_from(generator):
    if isinstance(generator, torch.Generator):
        return torch.rand(1, generator=generator).item()
    return generator.random()


@case
def one_generator_for_all_tasks():
    found = {}
    for backend in BACKENDS:
        generators = {
            "numpy": np.random.default_rng(0),
            "torch": torch.Generator().manual_seed(0),
            "python": random.Random(0),
        }
        found[backend] = {
            # One task a batch: joblib pickles a batch as one, with one copy of the generator.
            name: Parallel(2, backend=backend, batch_size=1)(
                delayed(draw_from)(generator) for _ in range(4)
            )
            for name, generator in generators.items()
        }
    return found


@case
def one_generator_in_one_batch():
    rng = np.random.default_rng(0)
    return Parallel(2, batch_size=4)(delayed(draw_from)(rng) for _ in range(4))


@case
def memory_cache():
    with tempfile.TemporaryDirectory() as folder:

        @Memory(folder, verbose=0).cache
        def double(weight):
            return weight * 2

        weight = torch.ones(1, requires_grad=True)
        gradients = []
        for _ in range(2):
            weight.grad = None
            double(weight).sum().backward()
            gradients.append(None if weight.grad is None else weight.grad.tolist())
        return gradients


@case
def global_of_an_imported_module():
    stale.weight.fill_(20.0)
    found = each(stale.read)
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            found[method] = pool.apply(stale.read)
    return found


@case
def race_of_a_training_step_on_threads():
    """Both threads clear, then both add, then both step: an order that nothing forbids."""
    import threading

    barrier = threading.Barrier(2, timeout=60)
    model = torch.nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    torch.nn.init.zeros_(model.weight)

    def step():
        optimizer.zero_grad()
        barrier.wait()
        model(torch.ones(1, 1)).sum().backward()
        barrier.wait()
        with lock:
            optimizer.step()

    lock = threading.Lock()
    Parallel(2, backend="threading")(delayed(step)() for _ in range(2))
    return model.weight.item()


if __name__ == "__main__":
    main()
