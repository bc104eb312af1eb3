"""The programs of docs/howto do what their comments say, and the guard names the page's code."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from children import run_python

from pytest_gradguard.cli.detectors import runtime_checks

pytest.importorskip("torch")

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "howto"
PAGES = {
    path.stem: path.read_text("utf-8") for path in FOLDER.glob("*.md") if path.stem != "README"
}
PROGRAMS = {
    f"{name}_{kind}": program
    for name, text in PAGES.items()
    for kind, program in zip(
        ("wrong", "right"), re.findall(r"```python\n(.*?)```", text, re.DOTALL), strict=True
    )
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("howto")
    for name, program in PROGRAMS.items():
        (folder / name).mkdir()
        (folder / name / "main.py").write_text(program)
    runner = ROOT / "tests" / "catalogue" / "run_programs.py"
    done = run_python(runner, folder, *PROGRAMS, limit=240, forked=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"program":')]
    return {record["program"]: record for record in map(json.loads, lines)}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_does_what_its_comments_say(outcomes: dict[str, Any], name: str) -> None:
    program, outcome = PROGRAMS[name], outcomes[name]
    assert outcome["prints"] == re.findall(r"# prints: (.*)", program)
    assert [*(outcome["raises"] or [])][:1] == re.findall(r"# raises: (.*)", program)


@pytest.mark.parametrize("page", PAGES)
def test_the_guard_reports_the_wrong_one_as_the_code_of_its_page(
    outcomes: dict[str, Any], page: str
) -> None:
    (code,) = set(re.findall(r"\[(GG\d{3})\]\(\.\./pitfalls\.md#", PAGES[page]))
    expected = {code} & runtime_checks()
    assert set(outcomes[f"{page}_wrong"]["found"]) == expected
    assert not outcomes[f"{page}_right"]["found"]


@pytest.mark.parametrize("page", PAGES)
def test_each_page_is_on_the_list(page: str) -> None:
    assert f"({page}.md)" in (FOLDER / "README.md").read_text("utf-8")
    assert PAGES[page].count("https://docs.pytorch.org/docs/stable/") >= 1
