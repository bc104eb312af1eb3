"""Every program gets its reason, for exactly its tensors, with the line where there is one."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

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


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.run.__name__)
def test_the_reason_is_right(program: Program) -> None:
    warnings.simplefilter("ignore")  # torch warns of some of them
    with pytest.raises(GradGuardError) as caught:
        program.run()
    findings = caught.value.findings
    assert {finding.details["reason"] for finding in findings} == {program.reason}
    names = [name for finding in findings for name in finding.details["objects"]]
    assert sorted(names) == sorted(program.names)
    line = _line(program)
    if line is not None:
        assert {finding.location.line for finding in findings} == {line}
    assert {finding.code for finding in findings} == {"GG104"}
