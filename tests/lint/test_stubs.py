"""Stubs of the user: the page that teaches them is followed, and mistakes are named."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "stubs.md").read_text(encoding="utf-8")
FILES = {
    match[1]: match[2]
    for match in re.finditer(r"```python\n# (\S+\.py)\n(.*?)```", PAGE, re.DOTALL)
}
PROGRAMS = [name for name in FILES if "/" not in name]
SETTINGS = '[tool.gradguard]\nstubs = ["gradguard_stubs"]\n'


def marked(text):
    return {
        (code, number)
        for number, line in enumerate(text.splitlines(), 1)
        for code in re.findall(r"GG\d{3}", line.partition("  # ")[2])
    }


def found(project, program):
    return {(code, line) for code, _, line in project.codes(program)}


def write(project, settings=SETTINGS):
    project.write("pyproject.toml", settings)
    for name, text in FILES.items():
        project.write(name, text)


def test_the_page_has_a_program_for_each_stub():
    assert len(PROGRAMS) == len(FILES) - len(PROGRAMS) == 3


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_page_is_followed(project, program):
    write(project)
    assert found(project, program) == marked(FILES[program])
    project.write("pyproject.toml", "[tool.gradguard]\n")
    told_by_stub = {item for item in marked(FILES[program]) if item[0] != "GG501"}
    assert not told_by_stub & found(project, program)


def test_the_short_form_says_the_same(project):
    tables = re.search(r"```toml\n(\[\[tool.gradguard.models\]\].*?)```", PAGE, re.DOTALL)
    write(project, tables[1])
    assert found(project, "program.py") == marked(FILES["program.py"])


def test_a_changed_stub_is_read_again(project):
    write(project)
    assert found(project, "maps.py")
    project.write("gradguard_stubs/acme/maps.py", "def thread_map(function, *iterables): ...\n")
    assert not found(project, "maps.py")


@pytest.mark.parametrize(
    ("stub", "message"),
    [
        (
            "from gradguard_lint.models.primitives import hand\n",
            "py:1: there is no primitive 'hand'",
        ),
        ("def broken(:\n", "py:1: invalid syntax"),
    ],
)
def test_a_mistake_in_a_stub_is_one_line_with_its_place(project, stub, message):
    project.write("pyproject.toml", SETTINGS)
    project.write("gradguard_stubs/acme.py", stub)
    project.write("program.py", "import acme\n")
    ran = project.lint("program.py")
    assert ran.status == 2
    (line,) = ran.err.strip().splitlines()
    assert "gradguard_stubs/acme." + message in line
    assert "1 file checked" in ran.out


def test_a_folder_that_is_not_there_is_named(project):
    project.write("pyproject.toml", SETTINGS)
    project.write("program.py", "x = 1\n")
    ran = project.lint("program.py")
    assert ran.status == 2
    assert "stubs" in ran.err
    assert "gradguard_stubs" in ran.err
    assert "is not a folder" in ran.err


def test_the_table_of_primitives_is_up_to_date():
    made = subprocess.run(
        [sys.executable, str(DOCS / "make_primitives.py")],
        capture_output=True, text=True, encoding="utf-8", timeout=120, check=True,
    ).stdout  # fmt: skip
    assert PAGE.endswith(made), "replace the table by the output of docs/make_primitives.py"
