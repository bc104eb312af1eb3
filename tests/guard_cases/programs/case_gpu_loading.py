"""Loading onto simulated GPUs in workers: what is there, and what is not."""

import pytest
import torch
from joblib import Parallel, delayed


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "weights.pt"
    torch.save({"w": torch.ones(3)}, path)
    return path


def load(path, location):
    return float(torch.load(path, map_location=location)["w"].sum())


def test_load(saved):
    assert Parallel(2)(delayed(load)(saved, "cuda:1") for _ in range(2)) == [3.0, 3.0]  # -> GG201


def test_load_on_cpu(saved):
    assert Parallel(2)(delayed(load)(saved, "cpu") for _ in range(2)) == [3.0, 3.0]


def test_gpu_that_is_not_there(saved):
    with pytest.raises(RuntimeError, match="deserialize object on CUDA device 7"):
        Parallel(2)([delayed(load)(saved, "cuda:7")])
