"""Ranks that Lightning and accelerate start: GG502 and GG505 where they train past the module."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from children import run_python

pytest.importorskip("torch")

PROGRAM = Path(__file__).with_name("host_ranks.py")


def findings(folder: Path, host: str) -> tuple[list[str], list[dict[str, Any]]]:
    """What a program printed of its gradients, and what was reported."""
    command = ("-m", "pytest_gradguard", "run", "--report", "found.json", PROGRAM, host)
    quiet = {"PYTHONWARNINGS": "ignore"}
    done = run_python(*command, folder=folder, limit=240, environment=quiet)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if line.startswith("gradients: ")]
    found = json.loads((folder / "found.json").read_text(encoding="utf-8"))["findings"]
    return said, [one for one in found if one["severity"] != "info"]


def run(folder: Path, host: str) -> tuple[list[str], dict[str, int]]:
    """What a program printed of its gradients, and how often each code was reported."""
    said, found = findings(folder, host)
    return said, {one["code"]: one["count"] for one in found}


@pytest.mark.parametrize(("host", "steps"), [("fabric", 12), ("accelerate", 6)])
def test_training_past_the_module_is_reported(host: str, steps: int, tmp_path: Path) -> None:
    pytest.importorskip("lightning" if host == "fabric" else host)
    said, counts = run(tmp_path, host)
    assert said.count("gradients: right") == said.count("gradients: wrong") == 2
    assert counts == {"GG502": 2 * steps, "GG505": 2}


def test_an_optimizer_that_accelerate_does_not_know_is_to_be_prepared(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    _, found = findings(tmp_path, "unprepared")
    assert [one["code"] for one in found] == ["GG502", "GG505"]
    assert all("`accelerator.prepare()`" in one["fix"] for one in found)
    assert run(tmp_path, "unprepared_repaired") == ([], {})


def test_the_trainer_trains_by_the_module(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    assert run(tmp_path, "trainer") == ([], {})
