"""The programs in the documentation print what their comments say, and the guard agrees.

A block of Python in a page that a newcomer follows is a whole program. ``# prints: …`` and
``# raises: …`` say what it does, ``# gradguard reports: …`` which codes of warning and above it
has; ``<!-- simulate-gpu: N -->`` before it, that it needs a GPU.
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from children import run_python
from shared_results import GUARD, folder_of_the_run, once, until_changed

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [
    *(DOCS / f"{name}.md" for name in ("index", "start", "recipes", "api")),
    *sorted((DOCS / "howto").glob("*.md")),
]
RUNNER = Path(__file__).parents[1] / "catalogue" / "run_programs.py"

_BLOCK = re.compile(
    r"(?:<!-- simulate-gpu: (\d) -->\n)?^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
_FRAMEWORKS = ("tensorflow", "torch", "keras", "dask", "distributed", "ray", "sklearn", "skorch")


class Program(NamedTuple):
    name: str
    text: str
    devices: int

    @property
    def needs(self) -> list[str]:
        """The frameworks that it imports."""
        return [
            name
            for name in _FRAMEWORKS
            if re.search(rf"^(?:import|from) {name}\b", self.text, re.M)
        ]


def programs() -> list[Program]:
    found = []
    for page in PAGES:
        for number, block in enumerate(_BLOCK.finditer(page.read_text(encoding="utf-8")), 1):
            name = f"{page.stem}-{number}"
            devices = int(block[1] or 0)
            found.append(Program(("GG201_" if devices else "") + name, block[2], devices))
    return found


PROGRAMS = {program.name: program for program in programs()}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = folder_of_the_run(tmp_path_factory) / "pages"
    root.mkdir(exist_ok=True)
    once(root, "written", lambda: _write(root))
    return root


def _write(root: Path) -> str:
    for program in PROGRAMS.values():
        (root / program.name).mkdir()
        (root / program.name / "main.py").write_text(program.text)
    return "yes"


def _group(program: Program) -> str:
    """Which others it shares a process with: one that has no other framework's threads."""
    return next((name for name in ("tensorflow", "keras", "ray") if name in program.needs), "torch")


@cache
def outcomes(folder: Path, group: str) -> dict[str, Any]:
    names = [
        program.name
        for program in PROGRAMS.values()
        if _group(program) == group and all(find_spec(need) for need in program.needs)
    ]
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore"}

    def run() -> str:
        forked = {"keras": "torch", "ray": ""}.get(group, group)
        done = run_python(RUNNER, folder, *names, limit=300, environment=quiet, forked=forked)
        return done.stdout + done.stderr

    sources = [Path(__file__), RUNNER, *(folder / name / "main.py" for name in names)]
    said = until_changed(f"pages-{group}", sources, [GUARD], run)
    found: dict[str, Any] = {"said": said}
    for line in said.splitlines():
        if line.startswith('{"program":'):
            record = json.loads(line)
            found[record["program"]] = record
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_does_what_its_comments_say(name: str, folder: Path) -> None:
    program = PROGRAMS[name]
    lacking = [need for need in program.needs if find_spec(need) is None]
    if lacking:
        pytest.skip(f"{', '.join(lacking)} not installed")
    found = outcomes(folder, _group(program))
    assert name in found, found["said"]
    outcome = found[name]
    raises = re.findall(r"# raises: (.*)", program.text)
    assert (outcome["raises"] or [None])[0] == (raises[0] if raises else None), outcome
    assert outcome["prints"] == re.findall(r"# prints: (.*)", program.text)
    reported = re.findall(r"# gradguard reports: (.*)", program.text)
    codes = {code for code, severity in outcome["found"].items() if severity != "info"}
    assert codes == set(" ".join(reported).split())
