"""Lines of functions that were pickled by value: cloudpickle may leave out where they stand."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import pytest
from children import run_python

from pytest_gradguard.findings import Finding, Location, Severity, TraceStep
from pytest_gradguard.runtime import dynamic_code
from pytest_gradguard.runtime.callsite import DYNAMIC

PROGRAM = """\
import json
import torch
from joblib import Parallel, delayed
from pytest_gradguard import guard


def loss(x):
    def total():
        return (x * 2).sum()

    return total()


if __name__ == "__main__":
    x = torch.ones(3, requires_grad=True)
    with guard("record") as report:
        sum(Parallel(2)(delayed(loss)(x) for _ in range(2))).backward()
    print(json.dumps([finding.to_dict() for finding in report.findings]))
"""


@pytest.mark.parametrize("as_file", [True, False])
def test_lines_in_workers_have_the_file_of_the_program(tmp_path: Path, as_file: bool) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    done = run_python(*((path,) if as_file else ("-c", PROGRAM)), folder=tmp_path, forked="torch")
    findings = json.loads(done.stdout)
    assert {finding["code"] for finding in findings} == {"GG101", "GG102", "GG103"}
    places = [place for finding in findings for place in (finding["location"], *finding["trace"])]
    assert {place["path"] for place in places} == {"program.py" if as_file else "<string>"}
    assert {place["line"] for place in places} == {7, 17}


def test_of_cells_with_the_same_lines_the_function_decides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    main = types.ModuleType("__main__")
    for cell, name in (("<cell 1>", "first"), ("<cell 2>", "second")):
        exec(compile(f"def {name}(x):\n    return x\n", cell, "exec"), vars(main))
    monkeypatch.setitem(sys.modules, "__main__", main)
    finding = Finding(
        code="GG104",
        name="missing-gradient",
        severity=Severity.ERROR,
        origin="runtime",
        message="",
        location=Location(DYNAMIC, 2, function="second"),
        trace=(TraceStep(DYNAMIC, 2, "`first` makes the graph in the worker"),),
    )
    found = dynamic_code.placed(finding)
    assert found.location.path == "<cell 2>"
    assert [step.path for step in found.trace] == ["<cell 1>"]
