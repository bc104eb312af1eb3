"""`DataLoader` beside a GPU: its workers prepare data, and leave the GPU to their parent."""

import functools

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


@pytest.fixture(autouse=True)
def cuda():
    torch.ones(1, device="cuda")
    assert torch.cuda.is_initialized()


FORK = functools.partial(DataLoader, num_workers=1, multiprocessing_context="fork")


class Rows(Dataset):
    def __init__(self, device="cpu"):
        self.device = device

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.full((3,), float(index), device=self.device)


def test_samples_on_the_gpu_after_a_fork():
    with pytest.raises(RuntimeError, match="Cannot re-initialize CUDA in forked subprocess"):
        for _ in FORK(Rows("cuda"), batch_size=2):  # -> GG203:error
            pass


def on_gpu(samples):
    return torch.stack(samples).to("cuda", non_blocking=True)


def test_collated_on_the_gpu_after_a_fork():
    with pytest.raises(RuntimeError, match="Cannot re-initialize CUDA in forked subprocess"):
        list(FORK(Rows(), batch_size=2, collate_fn=on_gpu))  # -> GG203:error


def test_training():
    model = nn.Linear(3, 1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(2):
        for rows in FORK(Rows(), batch_size=2, shuffle=True):
            optimizer.zero_grad()
            model(rows.cuda()).pow(2).mean().backward()
            optimizer.step()
    assert model.weight.grad.is_cuda


def test_persistent_workers():
    loader = FORK(Rows(), batch_size=2, persistent_workers=True)
    assert sum(float(rows.to("cuda").sum()) for _ in range(2) for rows in loader) == 36.0


def test_gpu_in_the_main_process():
    assert [rows.is_cuda for rows in DataLoader(Rows("cuda"), batch_size=2)] == [True, True]
