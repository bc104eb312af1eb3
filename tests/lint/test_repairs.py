"""Repairs: each rule's are as its examples say, and repaired programs do what they should."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from children import run_python
from shared_results import GUARD, until_changed

from gradguard_lint.rules import codes, rules

RULES = {rule.CODE: rule for rule in rules(codes())}
FIXED = {code: getattr(rule, "FIXED", {}) for code, rule in RULES.items()}
BAD = [(code, name) for code, rule in RULES.items() for name in rule.BAD]
RUNNER = Path(__file__).parents[1] / "catalogue" / "run_programs.py"

NOT_RUN = {
    "GG203": "a spawned process has no simulated GPU",
    "GG205 boosted trees in a pipeline": "it is a function that nothing calls",
    "GG303 gradients in the parent of a program with a GPU": "there is none",
    "GG303 an initializer": "its spawned workers take seconds, and the queue's program has one",
    "GG501 in a loss": "it joins no group of its own",
    "GG501 an attribute": "it joins no group of its own",
    "GG401": "SciKeras is not installed",
    "GG405 by argument": "it has no cluster",
    "GG405 by its place": "it has no cluster",
}
"""Repaired programs that cannot be run here."""

TENSORFLOW = ("GG403",)
LAST = ("GG303",)
"""What computes with all threads before workers are forked: nothing may follow it."""


@pytest.mark.parametrize(("code", "name"), BAD)
def test_a_bad_example_is_repaired_as_its_rule_says(code, name, project):
    """Or not at all, where the rule has no repaired program; and only once."""
    source = RULES[code].BAD[name]
    if "# file:" in source:
        pytest.skip("several files")
    path = project.write("program.py", source)
    arguments = ("--fix", "--unsafe-fixes", "--select", code, "program.py")
    project.lint(*arguments)
    assert path.read_text() == FIXED[code].get(name, source)
    left = project.codes("--select", code, "--min-severity", "info")
    assert bool(left) == (name not in FIXED[code])
    again = project.lint(*arguments)
    assert not re.search(r"findings? fixed", again.out)
    assert path.read_text() == FIXED[code].get(name, source)


def test_only_bad_examples_have_repaired_programs():
    for code, fixed in FIXED.items():
        assert fixed.keys() <= RULES[code].BAD.keys()
        assert code != "GG101" or not fixed  # nothing hides a loss


def run_programs(folder: Path, wanted: list[tuple[str, str]], limit: float) -> dict[str, dict]:
    """What the repaired programs do: by real workers, with simulated GPUs where they want one."""
    names = {}
    for number, (code, name) in enumerate(wanted):
        place = folder / f"{code}_{number}"
        place.mkdir()
        (place / "main.py").write_text(FIXED[code][name])
        names[place.name] = f"{code} {name}"
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore"}

    def run() -> str:
        arguments = (RUNNER, folder, *names)
        done = run_python(*arguments, limit=limit, environment=quiet, forked="tensorflow")
        return done.stdout + done.stderr

    sources = [Path(__file__), RUNNER, *(folder / name / "main.py" for name in names)]
    said = until_changed(f"repaired-{wanted[0][0]}", sources, [GUARD], run)
    records = [json.loads(line) for line in said.splitlines() if line[:2] == '{"']
    found = {names[record["program"]]: record for record in records}
    assert found.keys() == set(names.values()), said
    return found


@pytest.mark.parametrize("tensorflow", [False, True], ids=["torch", "tensorflow"])
def test_repaired_programs_have_what_was_lost(tensorflow, tmp_path):
    pytest.importorskip("tensorflow" if tensorflow else "skorch")
    wanted = [
        (code, name)
        for code, fixed in FIXED.items()
        for name in fixed
        if (code in TENSORFLOW) == tensorflow and not {code, f"{code} {name}"} & NOT_RUN.keys()
    ]
    wanted.sort(key=lambda item: item[0] in LAST)
    for label, outcome in run_programs(tmp_path, wanted, limit=300).items():
        code, _, name = label.partition(" ")
        assert outcome["raises"] is None, label
        promised = re.findall(r"repaired: (.*)", FIXED[code][name])
        assert outcome["prints"] == promised or not promised, label
        assert code not in outcome["found"], label


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
