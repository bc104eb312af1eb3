"""What processes tell by pipes that nobody may be reading."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_gradguard.runtime.kernel.pipes import tell


@pytest.fixture
def ends() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    yield read, write
    os.close(read)
    os.close(write)


def heard(read: int) -> list[Any]:
    """All that was told up to now."""
    os.set_blocking(read, False)
    told = b""
    try:
        while chunk := os.read(read, 1 << 20):
            told += chunk
    except BlockingIOError:
        pass
    stream, found = io.BytesIO(told), []
    while stream.tell() < len(told):
        found.append(pickle.load(stream))
    return found


def test_more_than_a_pipe_holds_at_first_is_told(ends: tuple[int, int]) -> None:
    read, write = ends
    tell(write, "first")
    tell(write, "x" * 300_000)
    assert heard(read) == ["first", "x" * 300_000]


@pytest.mark.parametrize("size", [10, 3_000, 50_000, 3_000_000])
def test_what_is_told_to_nobody_is_whole_or_left_out(ends: tuple[int, int], size: int) -> None:
    read, write = ends
    limit = 20_000_000 // size
    for number in range(min(limit, 2_000)):
        tell(write, (number, "x" * size))
    told = heard(read)
    assert all(text == "x" * size for _, text in told)
    tell(write, "again")
    assert heard(read) == ["again"]
