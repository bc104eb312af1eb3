"""Workers of a `DataLoader` that use a GPU of their own: the parent has not initialised CUDA."""

import os

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info


class Encoded(Dataset):
    """Samples that a model on the GPU has made."""

    def __init__(self, keep=False):
        self.keep = keep

    def __len__(self):
        return 4

    def __getitem__(self, index):
        row = torch.full((3,), float(index), device="cuda").square()
        return row if self.keep else row.cpu()


class Choosing(Encoded):
    def __getitem__(self, index):
        row = super().__getitem__(index)
        os.environ["CUDA_VISIBLE_DEVICES"] = str(get_worker_info().id + 1)
        return row


class OnCpu(Encoded):
    def __getitem__(self, index):
        return torch.full((3,), float(index))


def spawned(rows):
    return DataLoader(rows, batch_size=2, num_workers=1, multiprocessing_context="spawn")


def test_spawned_workers():
    assert all(rows.is_cuda for rows in spawned(Encoded(keep=True)))  # -> GG201:warning GG202


def test_results_on_the_cpu():
    assert sum(float(rows.sum()) for rows in spawned(Encoded())) == 42.0  # -> GG201


def test_devices_chosen_too_late():
    assert len(list(spawned(Choosing()))) == 2  # -> GG201 GG204


def test_on_the_cpu():
    assert len(list(spawned(OnCpu()))) == 2
