"""Torch settings of the caller's process, in workers that have torch's defaults instead."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
import torch
from joblib import Parallel, delayed

DETAILS = {"test_dtype": {"GG301": {"object": "make", "framework": "torch", "backend": "loky"}}}

ROWS = torch.ones(4, 3)
DOUBLE = torch.float64


@pytest.fixture(autouse=True)
def defaults():
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    torch.set_deterministic_debug_mode("default")
    torch.set_float32_matmul_precision("highest")


def run(function, *args):
    return Parallel(2)(delayed(function)(*args) for _ in range(2))


def make(size):
    return str(torch.zeros(size).dtype)


def test_dtype():
    torch.set_default_dtype(DOUBLE)
    kinds = Parallel(2)(delayed(make)(3) for _ in range(2))  # -> GG301:warning
    assert kinds == ["torch.float32"] * 2
    assert make(3) == "torch.float64"


def build():
    return str(torch.nn.Linear(2, 1).weight.dtype)


def test_dtype_of_parameters():
    torch.set_default_dtype(DOUBLE)
    assert Parallel(2)(delayed(build)() for _ in range(2)) == ["torch.float32"] * 2  # -> GG301


def quotient():
    return str((torch.arange(4) / 3).dtype)


def test_dtype_of_a_quotient():
    torch.set_default_dtype(DOUBLE)
    assert Parallel(2)(delayed(quotient)() for _ in range(2))[0] == "torch.float32"  # -> GG301


class Model:
    def __init__(self, size):
        self.size = size

    def fit(self):
        return self.start().sum().item()

    def start(self):
        return torch.full((self.size,), 0.1)


def test_dtype_in_a_method():
    torch.set_default_dtype(DOUBLE)
    model = Model(3)
    assert Parallel(2)(delayed(model.fit)() for _ in range(2))[0] != model.fit()  # -> GG301


def asking():
    return str(torch.get_default_dtype())


def test_dtype_asked_for():
    torch.set_default_dtype(DOUBLE)
    assert Parallel(2)(delayed(asking)() for _ in range(2))[0] == "torch.float32"  # -> GG301


def project(rows):
    return (rows @ torch.ones(3, 2)).sum().item()


def set_double():
    torch.set_default_dtype(DOUBLE)


def test_dtype_spawned():
    torch.set_default_dtype(DOUBLE)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        assert executor.submit(make, 3).result() == "torch.float32"  # -> GG301
        with pytest.raises(RuntimeError, match="same dtype"):
            executor.submit(project, torch.ones(4, 3)).result()  # -> GG301


def test_dtype_after_the_fork():
    with multiprocessing.get_context("fork").Pool(1) as pool:
        torch.set_default_dtype(DOUBLE)
        assert pool.apply(make, (3,)) == "torch.float32"  # -> GG301


def scatter(rows):
    return torch.zeros(2, 3).index_add_(0, torch.tensor([0, 1, 0, 1]), rows).sum().item()


def test_deterministic():
    torch.set_deterministic_debug_mode("error")
    Parallel(2)(delayed(scatter)(ROWS) for _ in range(2))  # -> GG301


def test_deterministic_with_warnings_only():
    torch.set_deterministic_debug_mode("warn")
    Parallel(2)(delayed(scatter)(ROWS) for _ in range(2))  # -> GG301


def asking_for_deterministic():
    return torch.are_deterministic_algorithms_enabled()


def test_deterministic_asked_for():
    torch.set_deterministic_debug_mode("error")
    assert not any(Parallel(2)(delayed(asking_for_deterministic)() for _ in range(2)))  # -> GG301


def test_matmul_precision():
    torch.set_float32_matmul_precision("medium")
    Parallel(2)(delayed(project)(ROWS) for _ in range(2))  # -> GG301


def layer(rows):
    return torch.nn.functional.linear(rows, torch.ones(2, 3)).relu().sum().item()


def test_deterministic_without_a_choice():
    torch.set_deterministic_debug_mode("error")
    Parallel(2)(delayed(layer)(ROWS) for _ in range(2))  # info: the CPU has one algorithm


@pytest.mark.skipif(
    getattr(torch.cpu, "_is_amx_fp16_supported", bool)(), reason="this CPU has that precision"
)
def test_precision_of_gpus():
    torch.set_float32_matmul_precision("high")
    Parallel(2)(delayed(project)(ROWS) for _ in range(2))  # info: TensorFloat32 is for GPUs


def test_several():
    torch.set_float32_matmul_precision("high")
    torch.set_deterministic_debug_mode("error")
    torch.set_default_dtype(DOUBLE)
    Parallel(2)(delayed(project)(ROWS.float()) for _ in range(2))  # -> GG301


def test_device():
    torch.set_default_device("meta")
    Parallel(2)(delayed(make)(3) for _ in range(2))  # -> GG301


# -- nothing to report -------------------------------------------------------------------------


def make_float(size):
    return torch.zeros(size, dtype=torch.float32)


def test_dtype_named():
    torch.set_default_dtype(DOUBLE)
    run(make_float, 3)


def like(rows):
    return (torch.zeros_like(rows) + rows.new_ones(3) * 0.5).sum().item()


def test_dtype_of_the_input():
    torch.set_default_dtype(DOUBLE)
    assert run(like, torch.ones(4, 3)) == [6.0] * 2


def from_numpy(values):
    return torch.tensor(values).sum().item() + torch.as_tensor(values).sum().item()


def test_dtype_of_numpy():
    torch.set_default_dtype(DOUBLE)
    run(from_numpy, np.ones(3, dtype=np.float32))


def predict(model, rows):
    with torch.no_grad():
        return model(rows).sum().item()


def test_dtype_of_a_shipped_model():
    torch.set_default_dtype(DOUBLE)
    run(predict, torch.nn.Linear(3, 1), torch.ones(4, 3))


def count(values):
    return (torch.tensor([1, 2, 3]) + torch.arange(3)).sum().item()


def test_whole_numbers():
    torch.set_default_dtype(DOUBLE)
    run(count, [1, 2])


def build_double():
    return torch.nn.Linear(2, 1).double().weight.sum().item()


def test_model_made_double():
    torch.set_default_dtype(DOUBLE)
    run(build_double)


def setting():
    before = torch.get_default_dtype()
    torch.set_default_dtype(DOUBLE)
    try:
        return make(3)
    finally:
        torch.set_default_dtype(before)


def test_task_sets_dtype():
    torch.set_default_dtype(DOUBLE)
    assert run(setting) == ["torch.float64"] * 2


def as_wanted(dtype):
    torch.set_default_dtype(dtype)


def by_a_helper():
    as_wanted(torch.float32)
    return make(3)


def test_helper_sets_dtype():
    torch.set_default_dtype(DOUBLE)
    assert run(by_a_helper) == ["torch.float32"] * 2


def test_initializer_sets_dtype():
    torch.set_default_dtype(DOUBLE)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, initializer=set_double) as executor:
        assert executor.submit(make, 3).result() == "torch.float64"


def test_dtype_restored_before():
    torch.set_default_dtype(DOUBLE)
    torch.set_default_dtype(torch.float32)
    run(make, 3)


def test_dtype_in_threads():
    torch.set_default_dtype(DOUBLE)
    kinds = Parallel(2, backend="threading")(delayed(make)(3) for _ in range(2))
    assert kinds == ["torch.float64"] * 2


def test_dtype_forked():
    torch.set_default_dtype(DOUBLE)
    kinds = Parallel(2, backend="multiprocessing")(delayed(make)(3) for _ in range(2))
    assert kinds == ["torch.float64"] * 2


def test_dtype_one_job():
    torch.set_default_dtype(DOUBLE)
    Parallel(1)(delayed(make)(3) for _ in range(2))


def test_numpy_only():
    torch.set_default_dtype(DOUBLE)
    torch.set_deterministic_debug_mode("error")
    run(np.sum, np.ones(3))


def scatter_alike(rows):
    torch.set_deterministic_debug_mode("error")
    try:
        return scatter(rows)
    finally:
        torch.set_deterministic_debug_mode("default")


def test_task_sets_deterministic():
    torch.set_deterministic_debug_mode("error")
    run(scatter_alike, ROWS)


def test_deterministic_in_threads():
    torch.set_deterministic_debug_mode("error")
    Parallel(2, backend="threading")(delayed(scatter)(ROWS) for _ in range(2))


def shape(rows):
    return rows[0].detach().cpu().shape


def test_nothing_is_computed():
    torch.set_deterministic_debug_mode("error")
    run(shape, ROWS)


def total(rows):
    return (rows * 2).sum().item()


def test_no_matmul():
    torch.set_float32_matmul_precision("high")
    run(total, ROWS)


def project_double(rows):
    return (rows @ torch.ones(3, 2, dtype=torch.float64)).sum().item()


def test_double_matmul():
    torch.set_float32_matmul_precision("high")
    run(project_double, ROWS.double())


def convolve(rows):
    return torch.nn.functional.conv1d(rows[None], torch.ones(1, 4, 1)).sum().item()


def test_cudnn_without_a_gpu():
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        run(convolve, ROWS)
        run(project, ROWS)
    finally:
        torch.backends.cudnn.deterministic = torch.backends.cudnn.benchmark = before
        torch.backends.cuda.matmul.allow_tf32 = False


def within_cpu(size):
    with torch.device("cpu"):
        return make(size)


def set_to_cpu(size):
    torch.set_default_device("cpu")
    try:
        return make(size)
    finally:
        torch.set_default_device(None)


def test_task_has_a_device_of_its_own():
    torch.set_default_device("meta")
    run(within_cpu, 3)
    run(set_to_cpu, 3)


def test_defaults():
    assert run(make, 3) == ["torch.float32"] * 2
    run(scatter, ROWS)
