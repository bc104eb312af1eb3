"""The programs on the page of each rule are reported at the marked lines, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest
from program_pages import PageProgram, marked, rule_programs

from gradguard_lint.analysis import analyse
from gradguard_lint.domain.options import Options
from gradguard_lint.engine.relevance import Relevance
from gradguard_lint.project.reader import Reader
from gradguard_lint.rules import codes, rules

RULES = {rule.CODE: rule for rule in rules(codes())}
PROGRAMS = list(rule_programs())


def write(folder: Path, program: PageProgram) -> None:
    for name, text in program.files.items():
        (folder / name).write_text(text)


def found(folder: Path) -> set[tuple[str, int, str]]:
    path = folder / "program.py"
    seen = analyse(str(path), path.read_bytes(), codes(), Options(loops=True), Reader())
    return {(Path(item["path"]).name, item["line"], item["code"]) for item in seen.result.findings}


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_a_program_of_a_rule_is_reported_where_it_is_marked_and_nowhere_else(program, tmp_path):
    write(tmp_path, program)
    assert found(tmp_path) == marked(program.files)


def test_what_no_name_leads_to_has_no_finding(monkeypatch, tmp_path):
    """Running every function of the examples finds what running the relevant ones does."""
    folders = [tmp_path / str(number) for number in range(len(PROGRAMS))]
    for folder, program in zip(folders, PROGRAMS, strict=True):
        folder.mkdir()
        write(folder, program)
    relevant = [found(folder) for folder in folders]
    monkeypatch.setattr(Relevance, "matters", lambda self, loops: True)
    monkeypatch.setattr(Relevance, "definitions", lambda self, loops: set(self.seen.definitions))
    assert [found(folder) for folder in folders] == relevant


@pytest.mark.parametrize("code", RULES)
def test_every_rule_has_programs_of_both_kinds(code):
    own = [program for program in PROGRAMS if program.code == code]
    reported = [{found[2] for found in marked(program.files)} for program in own]
    assert all(code in codes for codes in reported if codes), "a finding of another rule alone"
    page = f"lint/gradguard_lint/rules/{code.lower()}.md"
    assert any(reported), f"{page} needs a program with a line marked `# {code}`"
    assert not all(reported), f"{page} needs a program without a finding"
    assert RULES[code].__doc__


def test_the_rules_of_the_contract_are_there():
    contract = (
        *(101, 102, 103, 105, 106, 108, 109, 111, 112, 113, 114),
        *(201, 202, 203, 204, 205, 206),
        *(301, 302, 303, 304, 305, 306, 307, 308),
        *(401, 402, 403, 404, 405, 501, 502, 503, 506),
    )
    assert {f"GG{number}" for number in contract} <= set(codes())
