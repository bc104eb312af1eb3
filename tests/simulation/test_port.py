"""The guard knows of simulated GPUs by one small module, where their package registers itself."""

from __future__ import annotations

from pathlib import Path

import pytest_gradguard
from pytest_gradguard.runtime.kernel import simulated_devices

ROOT = Path(pytest_gradguard.__file__).parent


def test_nothing_else_names_the_package() -> None:
    naming = {
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("*.py")
        if simulated_devices.PROVIDER in path.read_text(encoding="utf-8")
        and path.relative_to(ROOT).parts[0] != "simulation"
    }
    assert naming == {str(Path("runtime", "kernel", "simulated_devices.py"))}


def test_it_is_imported_when_it_is_asked_for() -> None:
    assert simulated_devices.load().pretended() == simulated_devices.pretended()
