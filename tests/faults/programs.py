"""What people do with workers, in few seconds: each function returns what it has computed.

Their results do not depend on the order of workers. None of them imports what runs it, and torch
is limited to one thread, so that forks are not what is tried.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import pickle
import random
import re
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import commands
import dask
import torch
from joblib import Parallel, delayed
from torch import nn

PROGRAMS: dict[str, Callable[[], Any]] = {}
NEEDS = {"tape": ("tensorflow",), "dask_client": ("distributed",)}
"""What some of them import, which takes its time: these run if they are named."""
GUARDED_BY_THEMSELVES = commands.PROGRAMS
"""Programs that switch the guard on themselves, if they are told to."""


def program(function: Callable[[], Any]) -> Callable[[], Any]:
    """One of the programs."""
    PROGRAMS[function.__name__] = function
    return function


def error_of(run: Callable[[], Any]) -> str:
    """What `run` raises, in words."""
    try:
        return f"returned {run()}"
    except Exception as error:
        cause = type(error.__cause__).__name__
        text = re.sub(r"0x\w+|torch_\w+", "_", str(error)).splitlines()[:1]
        return f"{type(error).__name__}: {text} from {cause}"


def values(items: Any) -> Any:
    """`items` in plain values, to be compared."""
    if isinstance(items, torch.Tensor):
        return [items.detach().tolist(), items.requires_grad]
    if isinstance(items, (list, tuple)):
        return [values(item) for item in items]
    return items


# -- tasks --------------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(2, 2)
        self.norm = nn.BatchNorm1d(2)
        self.head = nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.body(x)))


def net() -> Net:
    torch.manual_seed(3)
    return Net()


def double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor * 2


def plain_double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach() * 2


def nothing(number: int) -> int:
    return number


def fail(number: int) -> int:
    raise KeyError(f"no {number}")


def lock(number: int) -> Any:
    return threading.Lock()


def train(model: Net, x: torch.Tensor) -> float:
    loss = model(x).pow(2).mean()
    loss.backward()
    return loss.item()


def draw(generator: torch.Generator) -> float:
    return torch.rand(1, generator=generator).item()


def to_gpu(number: int) -> str:
    return error_of(lambda: torch.ones(1, device="cuda"))[:20]


def through_nested(number: int) -> list[int]:
    return Parallel(2, backend="threading")(delayed(nothing)(i) for i in range(number))


# -- programs -----------------------------------------------------------------------------------


Run = Callable[..., Any]
"""joblib's `Parallel` with two workers of one backend, and what it is given."""
PARTS: dict[str, Callable[[Run, str], Any]] = {}


def part(function: Callable[[Run, str], Any]) -> Callable[[Run, str], Any]:
    """One thing that people do with joblib, a program with each backend."""
    PARTS[function.__name__] = function
    return function


@part
def gradients(run: Run, backend: str) -> Any:
    x = torch.ones(3, requires_grad=True)
    out = run(delayed(double)(x * 1) for _ in range(2))
    (out[0] + out[1]).mean().backward()
    return [values(out), values(x.grad), values(out[0].grad)]


@part
def plain(run: Run, backend: str) -> Any:
    told = [run(delayed(nothing)(i) for i in range(4))]
    if backend != "multiprocessing":
        told += [list(run((delayed(nothing)(i) for i in range(3)), return_as="generator"))]
    return told


@part
def errors(run: Run, backend: str) -> Any:
    told = [error_of(lambda: run(delayed(fail)(i) for i in range(1)))]
    if backend == "multiprocessing":
        told += [error_of(lambda: run(delayed(lock)(i) for i in range(1)))]
    if backend != "threading":
        told += [error_of(lambda: run(delayed(nothing)(threading.Lock()) for i in range(2)))]
    return told


@part
def training(run: Run, backend: str) -> Any:
    model, data = net(), torch.ones(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    told = [run(delayed(train)(model, data) for _ in range(1))]
    optimizer.step()
    (returned,) = run(delayed(nothing)(m) for m in [model])
    optimizer.zero_grad()
    returned(data).sum().backward()
    optimizer.step()
    return [*told, values(list(returned.parameters()))]


@part
def modes(run: Run, backend: str) -> Any:
    generator = torch.Generator()
    generator.manual_seed(1)
    drawn = run(delayed(draw)(generator) for _ in range(2))
    told = [sorted(drawn) if backend == "threading" else len(drawn)]
    x = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        told += [values(run(delayed(double)(x) for _ in range(2)))]
    return told


@part
def nested(run: Run, backend: str) -> Any:
    told = [run(delayed(to_gpu)(i) for i in range(1))]
    return [*told, run(delayed(through_nested)(i) for i in range(2))]


def _joblib(backend: str, doing: Callable[[Run, str], Any]) -> Any:
    def run(tasks: Any, **options: Any) -> Any:
        return Parallel(2, backend=backend, **options)(tasks)

    return doing(run, backend)


for _name, _backend in (("threads", "threading"), ("fork", "multiprocessing"), ("loky", "loky")):
    for _part, _doing in PARTS.items():
        PROGRAMS[f"joblib_{_name}_{_part}"] = functools.partial(_joblib, _backend, _doing)


@program
def pool() -> Any:
    x = torch.ones(3, requires_grad=True)
    model, data = net(), torch.ones(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with multiprocessing.get_context("fork").Pool(2) as workers:
        told = [values(workers.map(plain_double, [x, x])), values(workers.apply(nothing, (x,)))]
        told += [values(list(workers.imap(plain_double, [x], chunksize=1)))]
        told += [values(list(workers.imap_unordered(nothing, [1])))]
        told += [workers.starmap(train, [(model, data)]), workers.map_async(nothing, [1, 2]).get()]
        told += [error_of(lambda: workers.map(fail, [1])), error_of(lambda: workers.map(lock, [1]))]
        told += [error_of(lambda: workers.apply(nothing, (x * 2,)))]
        told += [workers.apply(to_gpu, (1,))]
        told += [len(workers.map(draws, range(2), chunksize=1))]
        optimizer.step()
    context = multiprocessing.get_context("fork")
    with context.Pool(2, RANDOMS.append, (random.Random(1),)) as workers:
        told += [len(workers.map(draws_given, range(2), chunksize=1))]
    return told


RANDOMS: list[random.Random] = []


def draws_given(_: int) -> float:
    return RANDOMS[-1].random()


RANDOM = random.Random(1)


def draws(_: int) -> float:
    return RANDOM.random()


@program
def executors() -> Any:
    from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

    x = torch.ones(3, requires_grad=True)
    told = []
    for kind, more in (
        (ProcessPoolExecutor, {"mp_context": multiprocessing.get_context("fork")}),
        (ThreadPoolExecutor, {}),
    ):
        with kind(2, **more) as workers:
            told += [values(workers.submit(plain_double, x).result())]
            told += [values(list(workers.map(plain_double, [x, x])))]
            told += [error_of(workers.submit(fail, 1).result)]
            told += [error_of(lambda w=workers: values(w.submit(double, x * 1).result()))]
            with torch.no_grad():
                told += [values(workers.submit(plain_double, x).result())]
    return told


def _maps() -> None:
    with multiprocessing.get_context("fork").Pool(1) as workers:
        workers.map(plain_double, [torch.ones(3, requires_grad=True)])


@program
def processes() -> Any:
    context = multiprocessing.get_context("fork")
    model, data = net().share_memory(), torch.ones(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    queue = context.Queue()
    told = []
    generator = random.Random(1)
    for target, args in (
        (_train_and_put, (queue, model, data, generator)),
        (fail, (1,)),
        (to_gpu, (1,)),
        (_maps, ()),
    ):
        process = context.Process(target=target, args=args)
        process.start()
        if target is _train_and_put:
            told += [queue.get()]
            sent = pickle.loads(queue.get())
            sent.backward()
            told += [sent.grad.item()]
        process.join()
        told += [process.exitcode]
    optimizer.step()
    thread = threading.Thread(target=train, args=(model, data))
    thread.start()
    thread.join()
    return [*told, values(list(model.parameters()))]


def _train_and_put(queue: Any, model: Net, data: torch.Tensor, generator: random.Random) -> None:
    queue.put(train(model, data))
    queue.put(pickle.dumps(model(data).sum() * generator.choice([1, 1])))


@program
def spawned() -> Any:
    context = multiprocessing.get_context("spawn")
    SCALE.mul_(2)
    torch.set_float32_matmul_precision("high")
    try:
        process = context.Process(
            target=_train_scaled, args=(net(), torch.ones(4, 2), random.Random(1))
        )
        process.start()
    finally:
        SCALE.div_(2)
        torch.set_float32_matmul_precision("highest")
    process.join()
    return process.exitcode


SCALE = torch.ones(1)
"""What a process that is spawned after it was changed imports anew."""


def _train_scaled(model: Net, data: torch.Tensor, generator: random.Random) -> None:
    train(model, data * SCALE * generator.choice([1, 1]))


class Items(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __init__(self) -> None:
        self.generator = torch.Generator()
        self.generator.manual_seed(1)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 7:
            raise KeyError(index)
        return torch.full((2,), float(index)) + torch.rand(1, generator=self.generator)


def _loads(sampler: list[int]) -> str:
    loading = torch.utils.data.DataLoader(
        Items(), batch_size=2, num_workers=1, sampler=sampler, multiprocessing_context="fork"
    )
    return error_of(lambda: [values(batch) for batch in loading])[:400]


@program
def loader() -> Any:
    return _loads([0, 1, 2, 3])


@program
def loader_failing() -> Any:
    return _loads([0, 7])


@program
def dask_threads() -> Any:
    x = torch.ones(3, requires_grad=True)
    doubled = dask.delayed(double)(x)
    with torch.no_grad():
        told = [values(list(dask.compute(doubled, dask.delayed(nothing)(2), scheduler="threads")))]
    told += [error_of(lambda: dask.compute(dask.delayed(fail)(1), scheduler="threads"))]
    (out,) = dask.compute(doubled, scheduler="threads")
    out.sum().backward()
    return [*told, values(x.grad)]


@program
def dask_processes() -> Any:
    x = torch.ones(3, requires_grad=True)
    told = []
    how = {"scheduler": "processes", "num_workers": 1, "multiprocessing.context": "fork"}
    with dask.config.set(how):
        told += [error_of(lambda: values(list(dask.compute(dask.delayed(double)(x)))))]
    return told


@program
def dask_client() -> Any:
    from distributed import Client, LocalCluster

    x = torch.ones(3, requires_grad=True)
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        told = [values(client.submit(plain_double, x).result())]
        told += [values(client.gather(client.map(nothing, [1, 2])))]
        told += [error_of(client.submit(fail, 1).result)]
        told += [values(list(dask.compute(dask.delayed(plain_double)(x))))]
        told += [error_of(lambda: values(client.submit(double, x * 1).result()))]
    return told


@program
def dask_scatter() -> Any:
    from distributed import Client, LocalCluster

    x = torch.ones(3, requires_grad=True)
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        sent = client.scatter({"x": x, "net": net()})
        told = [values(client.submit(plain_double, sent["x"]).result())]
        told += [error_of(lambda: client.scatter(x, unknown=True))]
        told += [values(list(client.gather(client.scatter([x, x * 1]))))]
    return told


@program
def memory_cache() -> Any:
    from joblib import Memory

    x = torch.ones(3, requires_grad=True)
    with tempfile.TemporaryDirectory() as folder:
        cached = Memory(folder, verbose=0).cache(double)
        out = [cached(x), cached(x)]
        loss = sum(one.sum() for one in out)
        loss.backward()
    return [values(out), values(x.grad)]


@program
def memory_map() -> Any:
    import numpy

    data = numpy.ones((3, 50), dtype="float32")
    run = Parallel(2, backend="multiprocessing", max_nbytes=100)
    return run(delayed(_reads_map)(data) for _ in range(2))


def _reads_map(array: Any) -> float:
    return float(torch.as_tensor(array).sum())


@program
def ddp() -> Any:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    told: list[Any] = []
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/s", rank=0, world_size=1)
        try:
            model, data = net(), torch.ones(4, 2)
            wrapped = DistributedDataParallel(model)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            sampler = torch.utils.data.DistributedSampler(range(4), shuffle=True, seed=1)
            for _ in range(2):
                told += [list(sampler)]
                wrapped(data).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            wrapped.module(data).sum().backward()
            optimizer.step()
            out = [torch.zeros(1)]
            y = model(data).sum().reshape(1)
            dist.all_gather(out, y)
            told += [error_of(lambda: sum(out).sum().backward())]
            told += [values(out)]
            unused = DistributedDataParallel(nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])[:])
            unused.forward = lambda: unused.module[0](data)  # type: ignore[method-assign]
            told += [values(list(model.parameters()))]
        finally:
            _leave_group()
    return told


def _leave_group() -> None:
    """Leave the process group, after Gloo's threads have let go of their last work.

    They need the GIL for that, which torch holds as it waits for them to end.
    """
    import torch.distributed as dist

    time.sleep(0.05)
    dist.destroy_process_group()


@program
def ddp_unused() -> Any:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/s", rank=0, world_size=1)
        try:
            wrapped = DistributedDataParallel(Unused())

            def train_twice() -> None:
                for _ in range(2):
                    wrapped(torch.ones(1, 2)).sum().backward()

            return error_of(train_twice)[:60]
        finally:
            _leave_group()


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(2, 2)
        self.unused = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


@program
def transforms() -> Any:
    def loss(x: torch.Tensor) -> Any:
        out = Parallel(2, backend="threading")(delayed(double)(x) for _ in range(2))
        return (out[0] * out[1]).sum()

    x = torch.ones(3)
    told = [error_of(lambda: values(torch.func.grad(loss)(x)))]
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x)
        out = Parallel(2, backend="threading")(delayed(double)(dual) for _ in range(2))
        told += [values(torch.autograd.forward_ad.unpack_dual(out[0])[0])]
    return told


@program
def watched() -> Any:
    """The gradients of a loop of training, and why there is none; what has all is never blamed."""
    from pytest_gradguard import GradGuardError, watch_gradients

    model, data = net(), torch.ones(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step_count in (None, 1):
        for watched_things in (model, [*model.parameters()], model.head.weight):
            watch = watch_gradients(watched_things, steps=step_count)
            with watch if step_count is None else contextlib.nullcontext():
                optimizer.zero_grad()
                model(data).sum().backward()
                optimizer.step()
            watch.close()
    with contextlib.suppress(GradGuardError), watch_gradients(model):
        for _ in range(2):
            optimizer.zero_grad()
            model.head(model.body(data).detach()).sum().backward()
            optimizer.step()
    return values(list(model.parameters()))


@program
def tape() -> Any:
    """Gradients of TensorFlow's through threads, where each has its own tapes."""
    import tensorflow as tf

    weight = tf.Variable(2.0)
    with tf.GradientTape() as tape:
        out = Parallel(2, backend="threading")(delayed(_squared)(weight) for _ in "ab")
        loss = out[0] + out[1]
    told = [tape.gradient(loss, weight)]
    told = [None if one is None else float(one) for one in told]
    with tf.GradientTape(persistent=True) as tape:
        numbers = Parallel(2, backend="threading")(delayed(_number)(weight) for _ in "ab")
        loss = weight * numbers[0]
    told += [float(tape.gradient(loss, weight)), tape.gradient(tf.constant(numbers[1]), weight)]
    return told


def _squared(variable: Any) -> Any:
    return variable * variable


def _number(variable: Any) -> float:
    return float(variable * 3.0)
