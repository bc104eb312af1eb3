"""What processes tell by pipes that nobody may be reading, and that anything may be written to."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest

from pytest_gradguard.runtime.kernel import plain_data
from pytest_gradguard.runtime.kernel.pipes import Line, Mailbox, send

Message = str | tuple[int, str]


@pytest.fixture
def ends() -> Iterator[tuple[Line, int]]:
    read, write = Pipe(duplex=False)
    with read, write:
        yield Line(read, Message), write.fileno()


def test_more_than_a_pipe_holds_at_first_is_told(ends: tuple[Line, int]) -> None:
    read, write = ends
    send(write, "first")
    send(write, "x" * 300_000)
    assert read.take() == ["first", "x" * 300_000]


@pytest.mark.parametrize("size", [10, 3_000, 50_000, 3_000_000])
def test_what_is_told_to_nobody_is_whole_or_left_out(ends: tuple[Line, int], size: int) -> None:
    read, write = ends
    limit = 20_000_000 // size
    for number in range(min(limit, 2_000)):
        send(write, (number, "x" * size))
    told = read.take()
    assert all(text == "x" * size for _, text in told)
    send(write, "again")
    assert read.take() == ["again"]


# -- what is none of the guard's -------------------------------------------------------------------


class Evil:
    """What runs code where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._mark),)


HOSTILE = {
    "rubbish": lambda mark: b"\x00\xff rubbish",
    "pickle": lambda mark: pickle.dumps(Evil(mark)),
    "another type": lambda mark: plain_data.dumps({"a": 1}).encode(),
    "another version": lambda mark: plain_data.dumps("x").replace("[1,", "[0,").encode(),
    "no version": lambda mark: b'"x"',
    "deep": lambda mark: b"[" * 20_000,
    "long": lambda mark: b"9" * 40_000,
}


@pytest.mark.parametrize("message", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("reader", ["line", "mailbox"])
def test_what_is_no_message_is_left_out(
    tmp_path: Path, reader: str, message: Callable[[Path], bytes]
) -> None:
    mailbox = Mailbox(str)
    if reader == "mailbox":
        address = mailbox.address()
        if address is None:
            pytest.skip("only Linux has mailboxes")
        write, take = address.descriptor, mailbox.take
    else:
        ends = Pipe(duplex=False)
        write, take = ends[1].fileno(), Line(ends[0], str).take
    os.write(write, message(tmp_path / "ran").replace(b"\n", b" ") + b"\n")
    send(write, "x")
    assert take() == ["x"]
    assert not (tmp_path / "ran").exists()
    mailbox.close()


@pytest.mark.skipif(sys.platform != "linux", reason="pipes of other systems cannot be widened")
def test_a_line_without_an_end_is_forgotten(
    ends: tuple[Line, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    read, write = ends
    monkeypatch.setattr(plain_data, "LONGEST", 1_000)
    for _ in range(4):
        os.write(write, b"x" * 600)
        assert read.take() == []
        assert len(read._unread) < 1_000
    os.write(write, b"\n")
    send(write, "again")
    assert read.take() == ["again"]
