"""Loaders with workers of their own that tasks iterate."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch
from joblib import Parallel, delayed
from joblib.externals.loky.backend.context import get_context
from torch.utils.data import DataLoader, Dataset

MAY = {}
DETAILS = {
    "test_loky": {"GG206": {"function": "total", "backend": "loky", "num_workers": 1}},
    "test_pool": {"GG206": {"function": "total", "backend": "multiprocessing"}},
    "test_daemon": {"GG206": {"function": "total", "num_workers": 1}},
}


class Numbers(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.tensor(float(index))


def total(**options):
    return sum(float(batch.sum()) for batch in DataLoader(Numbers(), batch_size=2, **options))


def test_loky():
    with pytest.raises(AttributeError, match="env"):
        Parallel(2)(delayed(total)(num_workers=1) for _ in range(2))  # -> GG206:error


@pytest.mark.filterwarnings("ignore:Got pickle error")
def test_loky_with_spawn():
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        Parallel(2)([delayed(total)(num_workers=1, multiprocessing_context="spawn")])  # -> GG206


class Loader(DataLoader):
    def __init__(self, dataset):
        super().__init__(dataset, batch_size=2, num_workers=2)


class Trainer:
    def __init__(self):
        self.loader = Loader(Numbers())

    def fit(self):
        batches = iter(self.loader)
        return float(next(batches).sum())


def test_own_class_of_loaders():
    trainer = Trainer()
    with pytest.raises(AttributeError, match="env"):
        Parallel(2)(delayed(trainer.fit)() for _ in range(2))  # -> GG206:error


def with_one_worker(_):
    return total(num_workers=1)


def test_pool():
    with multiprocessing.Pool(1) as pool, pytest.raises(AssertionError, match="daemonic"):
        pool.apply(total, kwds={"num_workers": 1})  # -> GG206:error


def test_pool_that_maps():
    with multiprocessing.Pool(2) as pool, pytest.raises(AssertionError, match="daemonic"):
        pool.map(with_one_worker, range(4))  # -> GG206:error


def test_spawned_pool():
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool, pytest.raises(AssertionError, match="daemonic"):
        pool.map(with_one_worker, range(1))  # -> GG206:error


def test_joblib_multiprocessing():
    with pytest.raises(AssertionError, match="daemonic"):
        Parallel(2, backend="multiprocessing")([delayed(total)(num_workers=1)])  # -> GG206


def test_no_workers():
    assert Parallel(2)(delayed(total)(num_workers=0) for _ in range(2)) == [6.0, 6.0]


def test_threads():
    parallel = Parallel(2, backend="threading")
    assert parallel([delayed(total)(num_workers=1)]) == [6.0]


def test_forked_workers():
    task = delayed(total)(num_workers=1, multiprocessing_context="fork")
    assert Parallel(2)([task]) == [6.0]


def in_context_of_loky():
    return total(num_workers=1, multiprocessing_context=get_context("loky"))


def test_context_of_loky():
    assert Parallel(2)([delayed(in_context_of_loky)()]) == [6.0]


def test_executor():
    with ProcessPoolExecutor(1) as executor:
        assert executor.submit(total, num_workers=1).result() == 6.0


def only_built():
    return len(DataLoader(Numbers(), batch_size=2, num_workers=2))


def test_loader_that_is_only_built():
    assert Parallel(2)(delayed(only_built)() for _ in range(2)) == [2, 2]


def careful():
    try:
        return total(num_workers=1)
    except AttributeError:
        return total(num_workers=0)


def test_task_that_goes_on_without_workers():
    assert Parallel(2)(delayed(careful)() for _ in range(2)) == [6.0, 6.0]


class Broken(Numbers):
    def __getitem__(self, index):
        raise AttributeError("'Numbers' object has no attribute 'env'")


def broken():
    return next(iter(DataLoader(Broken(), num_workers=1, multiprocessing_context="fork")))


def test_error_of_the_dataset():
    with pytest.raises(AttributeError, match="env"):
        Parallel(2)([delayed(broken)()])


def alike():
    careful()
    raise AttributeError("'Process' object has no attribute 'env'")


def test_error_of_the_program_alike():
    with pytest.raises(AttributeError, match="env"):
        Parallel(2)([delayed(alike)()])


def test_process_of_the_program():
    process = multiprocessing.Process(target=total, kwargs={"num_workers": 1})
    process.start()
    process.join()
    assert process.exitcode == 0


def ended(process):
    process.start()
    process.join()
    return process.exitcode


def test_daemon():
    process = multiprocessing.Process(target=total, kwargs={"num_workers": 1}, daemon=True)
    process.start()  # -> GG206:error
    process.join()
    assert process.exitcode == 1


def test_spawned_daemon():
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=with_one_worker, args=(None,), daemon=True)
    process.start()  # -> GG206:error
    process.join()
    assert process.exitcode == 1


class Daemon(multiprocessing.Process):
    def __init__(self, loader):
        super().__init__()
        self.daemon = True
        self.loader = loader

    def run(self):
        next(iter(self.loader))


def test_own_class_of_daemons():
    process = Daemon(Loader(Numbers()))
    process.start()  # -> GG206:error
    process.join()
    assert process.exitcode == 1


def test_daemon_of_torch_spawn():
    with pytest.raises(torch.multiprocessing.ProcessRaisedException, match="daemonic"):
        torch.multiprocessing.spawn(with_one_worker, nprocs=1, daemon=True)  # -> GG206:error


def careful_daemon():
    try:
        return total(num_workers=1)
    except AssertionError:
        return total(num_workers=0)


def test_daemons_that_do_not_fail():
    assert ended(multiprocessing.Process(target=careful_daemon, daemon=True)) == 0
    assert ended(multiprocessing.Process(target=only_built, daemon=True)) == 0
    assert ended(multiprocessing.Process(target=total, daemon=True)) == 0


def alike_daemon():
    careful_daemon()
    raise AssertionError("daemonic processes are not allowed to have children")


def test_daemon_that_fails_alike():
    assert ended(multiprocessing.Process(target=alike_daemon, daemon=True)) == 1
