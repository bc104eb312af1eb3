"""Work that an event loop hands to processes and threads: `run_in_executor` and `to_thread`."""

import asyncio
import functools
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest
import torch
from joblib.externals import loky
from torch import nn

DETAILS = {
    "test_processes": {
        "GG101": {"backend": "ProcessPoolExecutor", "direction": "argument", "object": "args[0]"}
    },
    "test_no_grad_and_to_thread": {"GG301": {"backend": "threading"}},
}


def leaf():
    return torch.ones(3, requires_grad=True)


def number(x, k=1):
    return float(x.detach().sum()) * k


def forward(model, rows):
    return model(rows)


def forward_only(model, rows):
    with torch.no_grad():
        return model(rows)


def backward(model, rows):
    model(rows).sum().backward()


def gradients(model, rows):
    backward(model, rows)
    return [parameter.grad for parameter in model.parameters()]


def in_executor(executor, function, *args):
    return asyncio.get_running_loop().run_in_executor(executor, function, *args)


@pytest.fixture(scope="module")
def processes():
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as executor:
        yield executor


def test_processes(processes):
    async def main():
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(processes, number, leaf())  # -> GG101:warning

    assert asyncio.run(main()) == 3.0


def test_gathered(processes):
    async def main():
        loop = asyncio.get_running_loop()
        x = leaf()
        tasks = [loop.run_in_executor(processes, number, x, k) for k in range(3)]  # -> GG101
        return await asyncio.gather(*tasks)

    assert asyncio.run(main()) == [0.0, 3.0, 6.0]


def test_partial(processes):
    async def main():
        work = functools.partial(number, leaf(), k=2)
        return await asyncio.get_running_loop().run_in_executor(processes, work)  # -> GG101

    assert asyncio.run(main()) == 6.0


def test_in_tasks_of_their_own(processes):
    async def one(k):
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(processes, number, leaf(), k)  # -> GG101

    async def main():
        tasks = [asyncio.create_task(one(k)) for k in (1, 2)]
        return [await task for task in tasks]

    assert asyncio.run(main()) == [3.0, 6.0]


def test_loky():
    x = leaf()

    async def main():
        loop = asyncio.get_running_loop()
        executor = loky.get_reusable_executor(2)
        return await loop.run_in_executor(executor, lambda t: t * 2, x)  # -> GG101 GG102

    asyncio.run(main()).sum().backward()  # -> GG103:error
    assert x.grad is None


def test_gradients_left(processes):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    async def main():
        await in_executor(processes, backward, model, torch.ones(2, 3))
        optimizer.step()  # -> GG106:error

    asyncio.run(main())
    assert model.weight.grad is None


def drawn(rng):
    return rng.random()


def test_one_generator(processes):
    async def main():
        loop = asyncio.get_running_loop()
        rng = np.random.default_rng(0)
        tasks = [loop.run_in_executor(processes, drawn, rng) for _ in range(2)]  # -> GG305
        return await asyncio.gather(*tasks)

    first, second = asyncio.run(main())
    assert first == second


def on_gpu(k):
    return torch.ones(k, device="cuda").sum().item()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_cuda_in_processes(processes):
    async def main():
        await asyncio.get_running_loop().run_in_executor(processes, on_gpu, 2)  # -> GG201

    with pytest.raises((AssertionError, RuntimeError)):
        asyncio.run(main())


def test_no_grad_and_the_default_executor():
    model = nn.Linear(3, 1)

    async def main():
        loop = asyncio.get_running_loop()
        with torch.no_grad():
            return await loop.run_in_executor(None, forward, model, torch.ones(2, 3))  # -> GG301

    assert asyncio.run(main()).requires_grad


def test_no_grad_and_threads():
    model = nn.Linear(3, 1)

    async def main():
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1) as threads, torch.no_grad():
            rows = torch.ones(2, 3)
            return await loop.run_in_executor(threads, model, rows)  # -> GG301

    assert asyncio.run(main()).requires_grad


def test_no_grad_and_to_thread():
    model = nn.Linear(3, 1)

    async def main():
        with torch.no_grad():
            return await asyncio.to_thread(forward, model, torch.ones(2, 3))  # -> GG301:warning

    assert asyncio.run(main()).requires_grad


def test_autocast_and_to_thread():
    model = nn.Linear(3, 1)

    async def main():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return await asyncio.to_thread(forward_only, model, torch.ones(2, 3))  # -> GG301

    assert asyncio.run(main()).dtype is torch.float32


# --- nothing to report -----------------------------------------------------------------------


def test_graph_in_the_default_executor():
    x = leaf()

    async def main():
        return await in_executor(None, torch.mul, x, 2)

    asyncio.run(main()).sum().backward()
    assert x.grad.tolist() == [2.0] * 3


def test_graph_in_to_thread():
    model = nn.Linear(3, 1)

    async def main():
        return await asyncio.gather(*(asyncio.to_thread(model, torch.ones(2, 3)) for _ in "ab"))

    sum(asyncio.run(main())).sum().backward()
    assert model.weight.grad is not None


def test_mode_set_in_the_thread():
    async def main():
        with torch.no_grad():
            return await asyncio.to_thread(forward_only, nn.Linear(3, 1), torch.ones(2, 3))

    assert not asyncio.run(main()).requires_grad


def test_detached(processes):
    async def main():
        return await in_executor(processes, number, leaf().detach())

    assert asyncio.run(main()) == 3.0


def test_gradients_returned(processes):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    async def main():
        parts = [in_executor(processes, gradients, model, torch.ones(2, 3)) for _ in range(2)]
        return await asyncio.gather(*parts)

    for parameter, *parts in zip(model.parameters(), *asyncio.run(main()), strict=True):
        parameter.grad = sum(parts)
    optimizer.step()


def test_numbers(processes):
    async def main():
        parts = [in_executor(processes, number, torch.ones(3), k) for k in range(3)]
        return await asyncio.gather(*parts), await in_executor(processes, np.sum, np.ones(3))

    assert asyncio.run(main()) == ([0.0, 3.0, 6.0], 3.0)


def test_frozen_model(processes):
    async def main():
        return await in_executor(processes, forward_only, nn.Linear(3, 1), torch.ones(2, 3))

    assert asyncio.run(main()).shape == (2, 1)


def fail():
    raise KeyError("no such key")


def test_error(processes):
    async def main():
        await in_executor(processes, fail)

    with pytest.raises(KeyError, match="no such key"):
        asyncio.run(main())


def test_cancelled():
    async def main():
        task = asyncio.create_task(asyncio.to_thread(time.sleep, 0.1))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_waited_for(processes):
    async def main():
        return await asyncio.wait_for(in_executor(processes, number, torch.ones(3)), 60)

    assert asyncio.run(main()) == 3.0


def test_unread_files(tmp_path):
    path = tmp_path / "rows.pt"
    torch.save(torch.ones(3), path)

    async def main():
        with torch.no_grad():
            return await asyncio.to_thread(torch.load, path)

    assert asyncio.run(main()).tolist() == [1.0] * 3
