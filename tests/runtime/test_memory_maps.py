"""GG306: what ends otherwise than without the guard, and what the guard leaves behind."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from children import run_python

from pytest_gradguard.runtime.kernel.pipes import Mailbox, post
from pytest_gradguard.runtime.pitfalls.maps import write_faults

pytestmark = pytest.mark.skipif(not write_faults.can_detect(), reason="signals as Linux has them")

PROGRAM = """\
import ctypes, os, signal
import numpy as np
import torch
from joblib import Parallel, delayed

def handler():
    libc, now = ctypes.CDLL(None), (ctypes.c_void_p * 32)()
    libc.sigaction(signal.SIGSEGV, None, now)
    return os.getpid(), now[0]

def scaled(array):
    torch.from_numpy(array).mul_(2)

def looked(array):
    return handler()

def nothing():
    return handler()

def killed(array):
    os.kill(os.getpid(), signal.SIGSEGV)

if __name__ == "__main__":
    values = np.ones((600, 600))
    try:
        Parallel(2, backend="multiprocessing")([delayed(scaled)(values)] * 2)
    except RuntimeError as error:
        print(type(error).__name__, "at", __file__ + ":12" in str(error))
    with Parallel(2) as parallel:
        before = dict(parallel([delayed(nothing)()] * 8))
        during = dict(parallel([delayed(looked)(values)] * 8))
        after = dict(parallel([delayed(nothing)()] * 8))
        known = set(before) & set(during) & set(after)
        print("heard:", any(before[one] != during[one] for one in known))
        print("put back:", all(before[one] == after[one] for one in known))
        descriptors = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            parallel([delayed(looked)(np.ones((600, 600)))] * 2)
        print("open:", len(os.listdir("/proc/self/fd")) - descriptors)
    try:
        Parallel(2)([delayed(killed)(values)])
    except Exception as error:
        print(type(error).__name__)
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], list[dict[str, Any]]]:
    """What the program prints under the guard, and the findings."""
    pytest.importorskip("torch")
    pytest.importorskip("joblib")
    folder = tmp_path_factory.mktemp("maps")
    (folder / "program.py").write_text(PROGRAM)
    command = ["-m", "pytest_gradguard", "run", "--report", "r.json", str(folder / "program.py")]
    done = run_python(*command, folder=folder, forked="torch")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((folder / "r.json").read_text())
    return done.stdout.splitlines(), report["findings"]


def test_a_pool_that_would_wait_forever_raises(told):
    assert "WorkerKilledError at True" in told[0]


def test_only_the_pools_tasks_are_found(told):
    ((finding,),) = [[f for f in told[1] if f["severity"] == "error"]]
    assert (finding["code"], finding["location"]["line"]) == ("GG306", 26)
    assert "parameter `array` of `scaled`" in finding["message"]
    assert "killed the multiprocessing worker" in finding["message"]
    assert finding["trace"][0]["line"] == 12


def test_the_handler_of_the_signal_is_put_back(told):
    assert {"heard: True", "put back: True"} <= set(told[0])


def test_no_file_stays_open(told):
    assert "open: 0" in told[0]


def test_a_signal_that_somebody_sends_ends_the_worker_as_before(told):
    assert "TerminatedWorkerError" in told[0]


def test_a_write_is_told_with_its_address_and_then_kills():
    program = (
        "import mmap, ctypes, sys\n"
        "from pytest_gradguard.runtime.pitfalls.maps import write_faults\n"
        "page = mmap.mmap(-1, 4096)\n"
        "start = ctypes.addressof(ctypes.c_char.from_buffer(page))\n"
        "ctypes.CDLL(None).mprotect(ctypes.c_void_p(start), 4096, 1)\n"
        "write_faults.listen(lambda address: print(address - start, flush=True))\n"
        "ctypes.memset(start + 100, 1, 1)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("100\n", -signal.SIGSEGV)


def test_a_mailbox_takes_what_is_posted_and_nothing_after_it_is_closed(tmp_path: Path):
    mailbox = Mailbox(str | int)
    address = mailbox.address()
    assert address is not None
    assert pickle.loads(pickle.dumps(address)) == address
    assert mailbox.take() == []
    post(address, "one")
    post(address, 2)
    assert mailbox.take() == ["one", 2]
    mailbox.close()
    with open(tmp_path / "another", "w+") as file:  # a file that gets the descriptor
        os.dup2(file.fileno(), address.descriptor)
        try:
            post(address, "three")
        finally:
            os.close(address.descriptor)
        assert file.read() == ""
