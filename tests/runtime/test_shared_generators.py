"""GG305 says what makes generators of one kind for several tasks."""

from __future__ import annotations

import random
from typing import Any

import numpy
import pytest
import torch
import workers
from joblib import Parallel, delayed
from torch.utils.data import DataLoader

from pytest_gradguard import guard

GENERATORS = {
    "`rng.spawn(n)`": lambda: numpy.random.default_rng(1),
    "`np.random.RandomState(seed)`": lambda: numpy.random.RandomState(1),
    "`random.Random(seed)`": lambda: random.Random(1),
    "`torch.Generator().manual_seed(seed)`": lambda: torch.Generator().manual_seed(1),
}


@pytest.mark.parametrize("way", GENERATORS)
def test_the_way_out_is_that_of_the_generators_own_kind(way: str) -> None:
    generator: Any = GENERATORS[way]()
    with guard("record") as report:
        Parallel(2, batch_size=1)(delayed(workers.drawn)(generator) for _ in range(4))
    (finding,) = report.findings
    assert finding.code == "GG305"
    assert finding.fix is not None
    assert way in finding.fix


class Noise(torch.utils.data.Dataset[float]):
    def __init__(self) -> None:
        self.rng = numpy.random.default_rng(0)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> float:
        return float(self.rng.random())


@pytest.mark.parametrize("persistent", [False, True])
def test_persistent_workers_go_on_with_their_copies(persistent: bool) -> None:
    loader = DataLoader(
        Noise(), num_workers=2, persistent_workers=persistent, multiprocessing_context="fork"
    )
    with guard("record") as report:
        first, second = ([batch.item() for batch in loader] for _ in range(2))
    assert (first == second) is not persistent
    (finding,) = report.findings
    assert "drew the same random numbers" in finding.message
    assert ("starts again from the same copy" in finding.message) is not persistent
