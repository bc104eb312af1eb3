"""Repairs: each is as its rule's page shows, and repaired programs do what they should."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
from children import run_python
from program_pages import PageProgram, difference, marked, rule_programs
from shared_results import GUARD, until_changed

REPORTED = [
    program
    for program in rule_programs()
    if marked(program.files) and list(program.files) == ["program.py"]
]
RUNNER = Path(__file__).parents[1] / "catalogue" / "run_programs.py"

NOT_RUN = {
    "GG203": "a spawned process has no simulated GPU",
    "gg205: Boosted trees in a pipeline": "it is a function that nothing calls",
    "gg303: Gradients in the parent of a program with a GPU": "there is none",
    "gg303: An initializer": "its spawned workers take seconds, and the queue's program has one",
    "gg501: In a loss": "it joins no group of its own",
    "gg501: An attribute": "it joins no group of its own",
    "GG401": "SciKeras is not installed",
    "gg405: By argument": "it has no cluster",
    "gg405: By its place": "it has no cluster",
}
"""Repaired programs that cannot be run here."""

TENSORFLOW = ("GG403",)
LAST = ("GG303",)
"""What computes with all threads before workers are forked: nothing may follow it."""


def repaired(program: PageProgram, project) -> str:
    """The text of a program after `--fix` for its rule alone."""
    path = project.write("program.py", program.source)
    project.lint("--fix", "--unsafe-fixes", "--select", program.code, "program.py")
    return path.read_text()


@pytest.mark.parametrize("program", REPORTED, ids=str)
def test_a_program_is_repaired_as_its_page_shows(program, project):
    """Or not at all, where the page shows no repair; and only once."""
    project.write("program.py", program.source)
    before = project.codes("--min-severity", "info")
    text = repaired(program, project)
    ast.parse(text)
    assert difference(program.source, text) == program.repair
    after = project.codes("--min-severity", "info")
    assert {code for code, *_ in after} <= {code for code, *_ in before}
    assert (program.code in {code for code, *_ in after}) == (not program.repair)
    again = project.lint("--fix", "--unsafe-fixes", "--select", program.code, "program.py")
    assert not re.search(r"findings? fixed", again.out)
    assert (project.root / "program.py").read_text() == text


def test_no_repair_hides_a_loss():
    repairs = {program.code for program in rule_programs() if program.repair}
    assert repairs >= {"GG102", "GG103"}
    assert "GG101" not in repairs


def run_programs(
    folder: Path, wanted: list[PageProgram], texts: list[str], limit: float
) -> list[dict]:
    """What the repaired programs do: by real workers, with simulated GPUs where they want one."""
    names = [f"{program.code}_{number}" for number, program in enumerate(wanted)]
    for name, text in zip(names, texts, strict=True):
        (folder / name).mkdir(parents=True)
        (folder / name / "main.py").write_text(text)
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore"}

    def run() -> str:
        arguments = (RUNNER, folder, *names)
        done = run_python(*arguments, limit=limit, environment=quiet, forked="tensorflow")
        return done.stdout + done.stderr

    sources = [Path(__file__), RUNNER, *(folder / name / "main.py" for name in names)]
    said = until_changed(f"repaired-{wanted[0].code}", sources, [GUARD], run)
    records = [json.loads(line) for line in said.splitlines() if line[:2] == '{"']
    found = {record["program"]: record for record in records}
    assert found.keys() == set(names), said
    return [found[name] for name in names]


@pytest.mark.parametrize("tensorflow", [False, True], ids=["torch", "tensorflow"])
def test_repaired_programs_have_what_was_lost(tensorflow, tmp_path, project):
    pytest.importorskip("tensorflow" if tensorflow else "skorch")
    wanted = [
        program
        for program in REPORTED
        if program.repair
        and (program.code in TENSORFLOW) == tensorflow
        and not {program.code, str(program)} & NOT_RUN.keys()
    ]
    wanted.sort(key=lambda program: program.code in LAST)
    texts = [repaired(program, project) for program in wanted]
    for program, outcome in zip(
        wanted, run_programs(tmp_path / "programs", wanted, texts, limit=300), strict=True
    ):
        assert outcome["raises"] is None, program
        promised = re.findall(r"repaired: (.*)", program.source)
        assert outcome["prints"] == promised or not promised, program
        assert program.code not in outcome["found"], program


def _functions_that_lose_a_mode(count: int) -> str:
    return (
        "import torch\nfrom joblib import Parallel, delayed\n\nnet = torch.nn.Linear(3, 1)\n"
        + "".join(
            f"\n\ndef predict_{n}(batch):\n    return net(batch)\n\n\n"
            f"def rows_{n}(xs):\n    with torch.no_grad():\n"
            f'        return Parallel(2, prefer="threads")(delayed(predict_{n})(x) for x in xs)\n'
            for n in range(count)
        )
    )


def _repaired(project) -> dict[int, bool]:
    """Whether there is a repair, by the line of the finding."""
    found = project.lint("--no-cache", "--jobs", "1", json_output=True).json["findings"]
    return {item["location"]["line"]: bool(item["edits"]) for item in found}


def test_repairs_of_many_functions_are_proved_at_once(project, monkeypatch):
    from gradguard_lint import batch

    project.write("score.py", _functions_that_lose_a_mode(12))
    read = []
    analyse = batch.analyse
    monkeypatch.setattr(
        batch, "analyse", lambda *args, **more: read.append(args) or analyse(*args, **more)
    )
    repaired = _repaired(project)
    assert len(repaired) == 12
    assert all(repaired.values())
    assert len(read) == 2


def test_a_repair_that_is_none_spoils_no_other(project, monkeypatch):
    """Where all together do not come out, it is found, and the others are proved without it."""
    from gradguard_lint.fixes import proof

    project.write("score.py", _functions_that_lose_a_mode(5))
    lines = sorted(_repaired(project))
    repairs = proof.repairs
    monkeypatch.setattr(
        proof, "repairs", lambda raw, *args: raw["line"] != lines[3] and repairs(raw, *args)
    )
    assert _repaired(project) == {line: line != lines[3] for line in lines}
