"""GG305 says what makes generators of one kind for several tasks."""

from __future__ import annotations

import random
from typing import Any

import numpy
import pytest
import torch
import workers
from joblib import Parallel, delayed

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
