"""GPU tensors and GPU work in parallel calls, on two simulated GPUs."""

import copy
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest
import torch
from joblib import Parallel, delayed
from torch import nn

DETAILS = {
    "test_tensor_argument": {
        "GG202": {"object": "args[0]", "device": "cuda:0", "direction": "argument", "shape": [3]}
    },
    "test_second_gpu": {"GG201": {"device": "cuda"}},
    "test_result": {"GG202": {"object": "result", "direction": "result", "device": "cuda:0"}},
}


def squares(k):
    return float(torch.arange(k, device="cuda").square().sum())


def squares_on_cpu(k):
    return float(torch.arange(k).square().sum())


def total(x):
    return float(x.sum())


def test_tensor_argument():
    x = torch.ones(3, device="cuda")
    assert Parallel(2)(delayed(total)(x) for _ in range(2)) == [3.0, 3.0]  # -> GG202:warning


def total_of(batch):
    return float(batch["x"].sum())


def test_tensor_in_a_dict():
    batches = [{"x": torch.ones(k, device="cuda"), "name": "b"} for k in (1, 2)]
    assert Parallel(2)(delayed(total_of)(b) for b in batches) == [1.0, 2.0]  # -> GG202


def test_captured_tensor():
    x = torch.ones(3, device="cuda:1")

    def scaled(k):
        return float((x * k).sum())

    assert Parallel(2)(delayed(scaled)(k) for k in (1, 2)) == [3.0, 6.0]  # -> GG202


def device_of(model):
    return {str(p.device) for p in model.parameters()}


def test_module():
    model = nn.Linear(2, 2).cuda()
    assert Parallel(2)(delayed(device_of)(model) for _ in range(2)) == [{"cuda:0"}] * 2  # -> GG202


class Scaler(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.full((2,), 3.0))


def scale_of(scaler):
    return scaler.scale.tolist()


def test_buffer_alone():
    scaler = Scaler().to("cuda")
    assert Parallel(2)(delayed(scale_of)(scaler) for _ in range(2)) == [[3.0, 3.0]] * 2  # -> GG202


def trained(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = model(torch.ones(2, 3, device="cuda")).sum()
    loss.backward()
    optimizer.step()
    return float(loss)


def test_gradients_that_stay_on_the_gpu():
    model = nn.Linear(3, 1).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    Parallel(2)(delayed(trained)(model) for _ in range(2))  # -> GG201? GG202
    optimizer.step()  # -> GG106


def normalised(norm):
    return float(norm(torch.rand(8, 3, device="cuda")).sum())


def test_statistics_that_stay_on_the_gpu():
    norm = nn.BatchNorm1d(3).to("cuda")
    Parallel(2)(delayed(normalised)(norm) for _ in range(2))  # -> GG201? GG202 GG111
    norm.eval()


def made(k):
    return torch.full((k,), 2.0, device="cuda")


def test_result():
    results = Parallel(2)(delayed(made)(k) for k in (1, 2))  # -> GG201 GG202
    assert [str(r.device) for r in results] == ["cuda:0", "cuda:0"]
    assert float(sum(r.sum() for r in results)) == 6.0


def made_list(k):
    return [made(k).cpu(), made(k)]


def test_result_in_a_list():
    results = Parallel(2)(delayed(made_list)(k) for k in (1, 2))  # -> GG201 GG202
    assert [[r.device.type for r in pair] for pair in results] == [["cpu", "cuda"]] * 2


def with_history(k):
    w = torch.ones(2, device="cuda", requires_grad=True)
    return (w * k).sum()


def test_result_with_history():
    results = Parallel(2)(delayed(with_history)(k) for k in (1, 2))  # -> GG102 GG201 GG202
    assert [float(r) for r in results] == [2.0, 4.0]


def test_leaf_that_requires_grad():
    w = torch.ones(2, device="cuda", requires_grad=True)
    assert Parallel(2)(delayed(total)(w) for _ in range(2)) == [2.0, 2.0]  # -> GG101 GG202


def on_second(k):
    return str((torch.ones(k, device="cuda:1") * 2).device)


def test_second_gpu():
    assert Parallel(2)(delayed(on_second)(k) for k in (1, 2)) == ["cuda:1"] * 2  # -> GG201:warning


def test_work_on_gpu():
    assert Parallel(2)(delayed(squares)(k) for k in (3, 4)) == [5.0, 14.0]  # -> GG201


def moved(model, x):
    return model.cuda()(torch.tensor(x).cuda()).cpu().tolist()


def test_module_moved_in_the_worker():
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    results = Parallel(2)(delayed(moved)(model, [float(k)]) for k in (1, 2))  # -> GG201
    assert results == [[1.0], [2.0]]


def wherever(k):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.ones(k, device=device).is_cuda


def test_device_chosen_by_availability():
    assert Parallel(2)(delayed(wherever)(k) for k in (1, 2)) == [True, True]  # -> GG201


def choose(k):
    os.environ["CUDA_VISIBLE_DEVICES"] = str(k % 2)
    return float(torch.ones(k, device="cuda").sum())


def test_visible_devices_by_task():
    tasks = [delayed(choose)(k) for k in range(6)]
    assert Parallel(2, batch_size=1)(tasks) == [0.0, 1, 2, 3, 4, 5]  # -> GG201 GG204


def test_spawned_pool():
    x = torch.ones(3, device="cuda")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(total, [x, x]) == [3.0, 3.0]  # -> GG202


def test_executor():
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        assert pool.submit(total, torch.ones(3, device="cuda")).result() == 3.0  # -> GG202


def test_forked_after_cuda():
    torch.zeros(1, device="cuda")
    parallel = Parallel(2, backend="multiprocessing")
    with pytest.raises(RuntimeError, match="Cannot re-initialize CUDA in forked subprocess"):
        parallel(delayed(squares)(k) for k in (3, 4))  # -> GG203:error


def test_forked_after_cuda_for_cpu_work():
    torch.zeros(1, device="cuda")
    parallel = Parallel(2, backend="multiprocessing")
    assert parallel(delayed(squares_on_cpu)(k) for k in (3, 4)) == [5.0, 14.0]  # -> GG203


def test_forked_pool_after_cuda():
    torch.zeros(1, device="cuda")
    refused = pytest.raises(RuntimeError, match="Cannot re-initialize CUDA")
    with multiprocessing.get_context("fork").Pool(1) as pool, refused:
        pool.map(squares, [3, 4])  # -> GG203


def test_generator_of_results():
    x = torch.ones(3, device="cuda")
    parallel = Parallel(2, return_as="generator")
    assert list(parallel(delayed(total)(x) for _ in range(2))) == [3.0, 3.0]  # -> GG202


def test_cpu_copy():
    x = torch.ones(3, device="cuda")
    assert Parallel(2)(delayed(total)(row) for row in (x.cpu(), x.to("cpu"))) == [3.0, 3.0]


def norm(x):
    return float(np.abs(x).sum())


def test_numpy():
    x = torch.ones(3, device="cuda")
    assert Parallel(2)(delayed(norm)(x.cpu().numpy() * k) for k in (1, 2)) == [3.0, 6.0]


def test_module_on_cpu():
    model = nn.Linear(2, 2).cuda().cpu()
    assert Parallel(2)(delayed(device_of)(model) for _ in range(2)) == [{"cpu"}] * 2


def test_deep_copy_on_cpu():
    model = nn.Linear(2, 2).cuda()
    copied = copy.deepcopy(model).cpu()
    assert Parallel(2)(delayed(device_of)(copied) for _ in range(2)) == [{"cpu"}] * 2
    assert device_of(model) == {"cuda:0"}


def names_of(state):
    return sorted(state)


def test_state_dict_on_cpu():
    state = {name: value.cpu() for name, value in nn.Linear(2, 2).cuda().state_dict().items()}
    assert Parallel(2)(delayed(names_of)(state) for _ in range(2)) == [["bias", "weight"]] * 2


def made_on_cpu(k):
    return made(k).cpu()


def test_results_on_cpu():
    results = Parallel(2)(delayed(made_on_cpu)(k) for k in (1, 2))  # -> GG201
    assert [r.tolist() for r in results] == [[2.0], [2.0, 2.0]]


def test_threads():
    x = torch.ones(3, device="cuda")
    parallel = Parallel(2, backend="threading")
    assert parallel(delayed(total)(x * k) for k in (1, 2)) == [3.0, 6.0]
    assert [r.device.type for r in parallel(delayed(made)(k) for k in (1, 2))] == ["cuda", "cuda"]


def test_executor_of_threads():
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(squares, [3, 4])) == [5.0, 14.0]


def test_one_job():
    assert Parallel(1)(delayed(squares)(k) for k in (3, 4)) == [5.0, 14.0]


def on_cpu_if(device):
    return torch.device(device).type


def test_device_names():
    assert Parallel(2)(delayed(on_cpu_if)(f"cuda:{k}") for k in (0, 1)) == ["cuda", "cuda"]


def test_device_objects():
    devices = [torch.device("cuda", k) for k in range(torch.cuda.device_count())]
    assert Parallel(2)(delayed(on_cpu_if)(d) for d in devices) == ["cuda", "cuda"]


def available(_):
    return torch.cuda.is_available()


def test_availability_in_workers():
    assert Parallel(2)(delayed(available)(k) for k in range(2)) == [True, True]


def seeded(k):
    torch.manual_seed(k)
    torch.cuda.manual_seed_all(k)
    return torch.rand(1).item()


def test_seeds_in_workers():
    first = Parallel(2)(delayed(seeded)(k) for k in (0, 1))
    assert first == Parallel(2)(delayed(seeded)(k) for k in (0, 1))


def test_gpu_in_the_parent_only():
    rows = Parallel(2)(delayed(squares_on_cpu)(k) for k in (3, 4))
    assert float(torch.tensor(rows, device="cuda").sum()) == 19.0


def drawn(generator):
    return float(torch.rand(1, generator=generator, device="cuda"))


def test_generator_of_a_gpu():
    generator = torch.Generator("cuda")
    first, second = Parallel(2)(delayed(drawn)(generator) for _ in range(2))  # -> GG201 GG305
    assert first == second


def refuse_and_exit():
    try:
        raise RuntimeError("CUDA error: initialization error")
    except RuntimeError:
        sys.exit(3)


def test_process_that_exits_where_cuda_fails():
    torch.zeros(1, device="cuda")
    process = multiprocessing.get_context("fork").Process(target=refuse_and_exit)
    process.start()  # -> GG203
    process.join()
    assert process.exitcode == 3
