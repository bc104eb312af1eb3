"""Large arrays, which joblib gives its workers as memory maps, and what torch does with them.

A write to a read-only map kills the worker. One task does there: each worker that is started anew
imports torch. So the tests whose workers live come first, those of one `mmap_mode` together: joblib
starts its workers anew for another one.
"""

import ctypes
import mmap
import os

import numpy as np
import pytest
import torch
from joblib import Parallel, delayed
from joblib.externals.loky.process_executor import TerminatedWorkerError
from torch import nn

MAY = {}
DETAILS = {
    "test_in_place": {
        "GG306": {
            "object": "args[1]",
            "function": "scaled",
            "direction": "argument",
            "shape": [600, 600],
            "dtype": "float32",
            "backend": "loky",
        }
    },
    "test_out_in_a_helper": {"GG306": {"object": "args[0]['values']"}},
    "test_own_map_opened_to_read": {"GG306": {"object": "args[1]"}},
}


@pytest.fixture
def values():
    return np.ones((600, 600), dtype=np.float32)  # 1.4 MB: above joblib's threshold


def scaled(factor, array):
    tensor = torch.from_numpy(array)
    tensor.mul_(factor)
    return float(tensor[0, 0])


def test_small_array():
    small = np.ones((20, 20), dtype=np.float32)
    found = Parallel(2)(delayed(scaled)(2, small) for _ in range(2))
    assert found == [2.0, 2.0]


def copied(array):
    first = torch.tensor(array).mul_(2)
    second = torch.from_numpy(array).clone().mul_(2)
    third = torch.from_numpy(array.copy()).mul_(2)
    return [float(one[0, 0]) for one in (first, second, third)]


def test_copies(values):
    found = Parallel(2)(delayed(copied)(values) for _ in range(2))
    assert found == [[2.0] * 3] * 2


def numpy_scaled(array):
    torch.from_numpy(array).sum()
    array *= 2


def test_numpy_refuses(values):
    with pytest.raises(ValueError, match="read-only"):
        Parallel(2)(delayed(numpy_scaled)(values) for _ in range(2))


def row_written(array, row):
    torch.from_numpy(array)[row] = float(row)


def test_own_map_for_the_results(tmp_path):
    shape = (600, 600)
    output = np.memmap(tmp_path / "output", dtype=np.float32, shape=shape, mode="w+")
    Parallel(2)(delayed(row_written)(output, row) for row in range(4))
    assert output[:4, 0].tolist() == [0.0, 1.0, 2.0, 3.0]


def test_threads(values):
    found = Parallel(2, backend="threading")(delayed(scaled)(2, values) for _ in range(1))
    assert found == [2.0]


def total(array):
    tensor = torch.from_numpy(array)
    return float((tensor * 2).sum() + torch.as_tensor(array).mean())


def test_tasks_that_read(values):
    for mode in ("r", "r+"):
        found = Parallel(2, mmap_mode=mode)(delayed(total)(values) for _ in range(2))
        assert found == [720001.0] * 2


def column_raised(array, first, step):
    torch.from_numpy(array)[:, first::step].add_(1)


def test_columns_that_meet(values):
    tasks = [delayed(column_raised)(values, 0, step) for step in (2, 3)]
    Parallel(2, mmap_mode="r+")(tasks)  # -> GG306


def test_columns_of_one_map(values):
    Parallel(2, mmap_mode="r+")(delayed(column_raised)(values, first, 3) for first in range(3))


def test_one_map_written_by_all(values):
    found = Parallel(2, mmap_mode="r+")(delayed(scaled)(2, values) for _ in range(3))  # -> GG306
    assert sorted(found) != [2.0, 2.0, 2.0]
    assert values[0, 0] == 1.0


def row_raised(array, row):
    part = torch.from_numpy(array)[row]
    part.add_(row)
    return float(part[0])


def test_rows_of_one_map(values):
    found = Parallel(2, mmap_mode="r+")(delayed(row_raised)(values, row) for row in range(4))
    assert found == [1.0, 2.0, 3.0, 4.0]


def test_array_for_each_task():
    arrays = [np.full((600, 600), float(k)) for k in range(3)]
    found = Parallel(2, mmap_mode="r+")(delayed(scaled)(2, array) for array in arrays)
    assert found == [0.0, 2.0, 4.0]


def scaled_once(array, number):
    if number == 0:
        torch.from_numpy(array).mul_(2)


def test_one_writer(values):
    Parallel(2, mmap_mode="r+")(delayed(scaled_once)(values, number) for number in range(2))


def test_pages_of_their_own(values):
    found = Parallel(2, mmap_mode="c")(delayed(scaled)(2, values) for _ in range(3))
    assert found == [2.0, 2.0, 2.0]


def test_whole_copies_sent(values):
    found = Parallel(2, max_nbytes=None)(delayed(scaled)(2, values) for _ in range(2))
    assert found == [2.0, 2.0]


def test_in_place(values):
    with pytest.raises(TerminatedWorkerError):
        Parallel(2)([delayed(scaled)(2, values)])  # -> GG306:error


def trained(array):
    weight = nn.Parameter(torch.as_tensor(array))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    weight.sum().backward()
    optimizer.step()


def test_optimizer_over_a_parameter(values):
    with pytest.raises(TerminatedWorkerError):
        Parallel(2)([delayed(trained)(values)])  # -> GG306:error


def fill(target):
    torch.full((600, 600), 5.0, out=target)


def filled(record):
    fill(torch.from_dlpack(record["values"]))


@pytest.mark.skipif(np.__version__ < "2", reason="NumPy has that since 2.0: maps by DLPack")
def test_out_in_a_helper(values):
    record = {"values": values, "name": "a"}
    with pytest.raises(TerminatedWorkerError):
        Parallel(2)([delayed(filled)(record)])  # -> GG306:error


def set_one(array):
    torch.asarray(array)[10:].numpy()[0, 0] = 7


def test_numpy_view_of_a_tensor(values):
    with pytest.raises(TerminatedWorkerError):
        Parallel(2)([delayed(set_one)(values)])  # -> GG306:error


def test_own_map_opened_to_read(values, tmp_path):
    np.save(tmp_path / "values.npy", values)
    opened = np.load(tmp_path / "values.npy", mmap_mode="r")
    with pytest.raises(TerminatedWorkerError):
        Parallel(2)([delayed(scaled)(2, opened)])  # -> GG306:error


def crash(array):
    torch.from_numpy(array).sum()
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ)
    ctypes.memset(np.frombuffer(page, dtype=np.uint8).ctypes.data, 1, 1)


def test_another_crash(values):
    with pytest.raises(TerminatedWorkerError):
        Parallel(2)([delayed(crash)(values)])


def end(array):
    torch.from_numpy(array).sum()
    os._exit(3)


def test_worker_that_ends_itself(values):
    with pytest.raises(TerminatedWorkerError):
        Parallel(2)([delayed(end)(values)])
