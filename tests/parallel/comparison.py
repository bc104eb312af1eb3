"""One process and workers, side by side."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from pytest_gradguard.parallel import Parallel, UnsupportedGradientError


def leaves(*sizes: Any, dtype: Any = None) -> list[Any]:
    generator = torch.Generator().manual_seed(1)
    made = [torch.randn(size, generator=generator, dtype=dtype) for size in sizes]
    return [one.requires_grad_() for one in made]


def equal_in_workers(
    program: Callable[[Any], Any], *, rounded: bool = False, **options: Any
) -> None:
    """The program gives the same with one process and with workers (rounded: but for rounding)."""
    alone = program(partial(Parallel, n_jobs=1))
    for _ in range(2):  # the second time with what was learnt of the first
        there = program(partial(Parallel, n_jobs=2, **options))
        assert len(alone) == len(there)
        for one, other in zip(alone, there, strict=True):
            assert type(one) is type(other)
            if one is not None:
                assert one.dtype == other.dtype
                assert one.requires_grad == other.requires_grad
                if rounded or options.get("backend") == "threading":  # threads add in any order
                    torch.testing.assert_close(one, other)
                else:
                    assert torch.equal(one, other), (one, other)


def refused(*given: Any, **options: Any) -> str:
    with pytest.raises(UnsupportedGradientError) as caught:
        Parallel(n_jobs=2, **options)(given)
    message = str(caught.value)
    assert "\n" not in message
    return message
