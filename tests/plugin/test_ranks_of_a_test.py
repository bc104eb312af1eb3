"""Tests that start ranks by a fixture: what the ranks find is a finding of the test."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pytest_runs import Run, run_pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="gloo, fcntl and fork: Linux")

FILE = "test_with_ranks.py"
TESTS = """
import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def train(rank, group, keeps_own):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{group}", rank=rank, world_size=2)
    features = torch.ones(2, requires_grad=True) * (rank + 1)
    gathered = [torch.zeros(2), torch.zeros(2)]
    dist.all_gather(gathered, features)
    if keeps_own:
        gathered[rank] = features
    (torch.cat(gathered).sum() + features.sum()).backward()
    dist.destroy_process_group()


@pytest.fixture
def ranks(tmp_path):
    def run(keeps_own):
        group = tmp_path / "group"
        mp.start_processes(train, (group, keeps_own), nprocs=2, start_method="fork")

    return run


def test_cut(ranks):
    ranks(False)


def test_right(ranks):
    ranks(True)


@pytest.mark.gradguard(allow=["GG501"])
def test_allowed(ranks):
    ranks(False)


@pytest.mark.gradguard(expect=["GG501"])
def test_expected(ranks):
    ranks(False)


def programs(tmp_path):
    for rank in "01":
        environment = {**os.environ, "RANK": rank, "WORLD_SIZE": "2"}
        command = [sys.executable, __file__, rank, str(tmp_path / "group")]
        yield subprocess.Popen(command, env=environment)


def test_cut_in_programs(tmp_path):
    assert [one.wait() for one in list(programs(tmp_path))] == [0, 0]


@pytest.mark.gradguard(allow=["GG501"])
def test_allowed_in_programs(tmp_path):
    assert [one.wait() for one in list(programs(tmp_path))] == [0, 0]


if __name__ == "__main__":
    train(int(sys.argv[1]), sys.argv[2], False)
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Run:
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("ranks")
    (folder / FILE).write_text(TESTS, encoding="utf-8")
    return run_pytest(Path(folder), "--gradguard", "--gradguard-report=report.json", FILE)


def test_an_error_of_a_rank_fails_the_test(done: Run) -> None:
    assert "2 failed, 4 passed" in done.text, done.text
    assert f"FAILED {FILE}::test_cut - GG501" in done.text
    assert f"FAILED {FILE}::test_cut_in_programs - GG501" in done.text


def test_each_finding_has_the_test_whose_ranks_it_is_of(done: Run) -> None:
    counts = {one["test"]: one["count"] for one in done.report()["findings"]}
    for test in ("test_cut", "test_cut_in_programs"):
        assert done.codes().get(f"{FILE}::{test}") == {"GG501"}, done.text
        assert counts[f"{FILE}::{test}"] == 2  # one a rank
    for test in ("test_right", "test_allowed", "test_allowed_in_programs"):
        assert f"{FILE}::{test}" not in done.codes()
