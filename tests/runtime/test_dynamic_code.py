"""Lines of functions that were pickled by value: cloudpickle may leave out where they stand."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import pytest
from children import run_python

from pytest_gradguard.dynamic_code import DYNAMIC
from pytest_gradguard.findings import display_path
from pytest_gradguard.runtime.kernel.callsite import written_in

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
        sum(Parallel(2)(delayed(lambda: (x * 3).sum())() for _ in range(2))).backward()
    print(json.dumps([finding.to_dict() for finding in report.findings]))
"""


@pytest.mark.parametrize("as_file", [True, False])
def test_lines_in_workers_have_the_file_of_the_program(tmp_path: Path, as_file: bool) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    done = run_python(*((path,) if as_file else ("-c", PROGRAM)), folder=tmp_path, forked="torch")
    findings = json.loads(done.stdout)
    assert [finding["code"] for finding in findings] == ["GG101", "GG102", "GG103"] * 2
    places = [place for finding in findings for place in (finding["location"], *finding["trace"])]
    assert {place["path"] for place in places} == {"program.py" if as_file else "<string>"}
    assert {place["line"] for place in places} == {7, 17, 18}


def test_code_is_recognised_by_what_it_does_not_by_its_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    main = types.ModuleType("__main__")
    other = "def first(x):\n    return x + 1\n"
    exec(compile(other, "<cell 3>", "exec"), {})  # of no cell: it is no name of `__main__`
    for cell, name in (("<cell 1>", "first"), ("<cell 2>", "second")):
        exec(compile(f"def {name}(x):\n    return x\n", cell, "exec"), vars(main))
    monkeypatch.setitem(sys.modules, "__main__", main)
    found = {}
    for text in ("def first(x):\n    return x\n", "def second(x):\n    return x\n", other):
        (code,) = (
            const
            for const in compile(text, DYNAMIC, "exec").co_consts
            if isinstance(const, types.CodeType)
        )
        found[text] = display_path(written_in(code, {}))
    assert list(found.values()) == ["<cell 1>", "<cell 2>", DYNAMIC]
