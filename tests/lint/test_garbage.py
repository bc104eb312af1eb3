"""Garbage is searched for between files, and afterwards as it was before."""

from __future__ import annotations

import gc

from gradguard_lint import garbage

PROGRAM = """
import torch
from joblib import Parallel, delayed

def work(x):
    return x * 2

Parallel(2)(delayed(work)(torch.ones(2, requires_grad=True)) for _ in range(2))
"""


def searches(project, monkeypatch, many: int) -> tuple[int, list[int]]:
    """How many searches there are in a run, and how much is left out as each begins."""
    for name in "abc":
        project.write(f"{name}.py", PROGRAM)
    monkeypatch.setattr(garbage, "MANY", many)
    left_out = []

    def told(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and gc.get_threshold()[0] == garbage.TOO_MANY:
            left_out.append(gc.get_freeze_count())

    gc.collect()
    gc.callbacks.append(told)
    try:
        project.lint("--no-cache", "--jobs", "1")
    finally:
        gc.callbacks.remove(told)
    return len(left_out), left_out


def test_it_is_searched_for_between_files_and_not_among_what_is_left(project, monkeypatch):
    before = gc.get_threshold()
    number, left_out = searches(project, monkeypatch, many=0)
    assert number == 3
    assert left_out[0] == 0
    assert 0 < left_out[1] <= left_out[2]
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)


def test_it_is_not_where_there_is_little(project, monkeypatch):
    number, _ = searches(project, monkeypatch, many=garbage.MANY)
    assert number == 0
