"""Programs run as they are and with their work inline: what differs is what is lost, and no more.

The first line of a program says what is right: ``same``, or ``differs`` and the code that says why.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from children import run_python

pytest.importorskip("torch")
pytest.importorskip("joblib")

HERE = Path(__file__).parent
PROGRAMS = {path.stem: path for path in sorted((HERE / "programs").glob("*.py"))}
NOTHING_HANDED_OUT = {"one_job"}
CLUSTERS = ("dask_client", "ray")
NEEDS = ("dask", "ray")
"""What a program needs that its name begins with."""


def needed(name: str) -> list[str]:
    return [library for library in NEEDS if name.startswith(library)]


@pytest.fixture(scope="module")
def compared() -> dict[str, Any]:
    import importlib.util

    answers: dict[str, Any] = {}
    for on_cluster in (False, True):
        known = [
            path
            for name, path in PROGRAMS.items()
            if name.startswith(CLUSTERS) == on_cluster
            and all(map(importlib.util.find_spec, needed(name)))
        ]
        forked = "" if on_cluster else "torch"  # there, cloudpickle does not know itself
        done = run_python(HERE / "both_ways.py", *known, limit=600, forked=forked)
        assert done.returncode == 0, done.stdout + done.stderr
        answers |= json.loads(done.stdout.splitlines()[-1])
    return answers


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_differs_is_what_is_lost(name: str, compared: dict[str, Any]) -> None:
    if name not in compared:
        pytest.skip(f"{needed(name)[0]} is not installed")
    answer = compared[name]
    verdict, *codes = PROGRAMS[name].read_text(encoding="utf-8").split('"""')[1].split()
    assert answer["differs"] == (verdict == "differs"), answer
    assert set(codes) <= set(answer["codes"])
    assert bool(answer["handed"]) != (name in NOTHING_HANDED_OUT)
    assert answer["notes"] > 0
    if verdict == "same":
        printed, again = answer["printed"]
        assert printed == again
