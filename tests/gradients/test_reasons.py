"""Every program gets its reason, for exactly its tensors, with the line where there is one."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

joblib = pytest.importorskip("joblib")

import losing_as_written  # noqa: E402
import losing_exits  # noqa: E402
import losing_in_workers  # noqa: E402
import losing_outcomes  # noqa: E402
from losing_programs import PROGRAMS, Program  # noqa: E402

from pytest_gradguard import GradGuardError  # noqa: E402

_MARK = "# <- here"


@pytest.fixture(autouse=True)
def _grad_mode() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    torch.set_grad_enabled(True)


def _line(program: Program) -> int | None:
    lines, first = inspect.getsourcelines(program.run)
    marked = [number for number, text in enumerate(lines, first) if text.rstrip().endswith(_MARK)]
    return marked[0] if marked else None


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers import their tasks by name."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def _names_and_answers(answers: dict[str, str], program: Program, line: int | None) -> None:
    assert sorted(answers) == sorted(program.names)
    for answer in answers.values():
        assert answer.partition(":")[0] == program.reason
        if line is not None:
            file = Path(inspect.getsourcefile(program.run) or "").name
            assert f"{file}:{line}" in answer.partition("\nfix: ")[0]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.run.__name__)
def test_the_reason_is_right(program: Program) -> None:
    warnings.simplefilter("ignore")  # torch warns of some of them
    line = _line(program)
    try:
        answers = program.run()
    except GradGuardError as error:
        findings = error.findings
    else:
        assert answers is not None, "nothing was found"
        _names_and_answers(answers, program, line)
        return
    assert {finding.details["reason"] for finding in findings} == {program.reason}
    names = [name for finding in findings for name in finding.details["objects"]]
    assert sorted(names) == sorted(program.names)
    if line is not None:
        assert {finding.location.line for finding in findings} == {line}
    assert {finding.code for finding in findings} == {"GG104"}


def test_the_programs_are_all_there() -> None:
    modules = {program.run.__module__ for program in PROGRAMS}
    tables = (losing_outcomes, losing_in_workers, losing_exits, losing_as_written)
    assert modules >= {table.__name__ for table in tables}


@pytest.mark.parametrize("whole", [True, False])
def test_data_of_a_buffer(whole: bool) -> None:
    """What `.data` gives of a tensor without a gradient is known, too."""
    from torch import nn

    from pytest_gradguard import watch_gradients

    first, second = nn.Linear(3, 3), nn.Linear(3, 1)
    buffer = torch.zeros(2, 3)

    def train() -> None:
        with watch_gradients(first):
            if whole:
                buffer.data.copy_(first(torch.ones(2, 3)))
            else:
                buffer.data[0] = first(torch.ones(3))
            second(buffer).sum().backward()

    with pytest.raises(GradGuardError) as raised:
        train()
    (finding,) = raised.value.findings
    how = ".data.copy_()" if whole else ".data[…] = …"
    assert f"by `{how}`" in finding.message
    assert buffer.any()
