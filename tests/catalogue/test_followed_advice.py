"""Advice is code: a program whose author follows it to the letter is right, and is not reported."""

from __future__ import annotations

import json
from functools import cache, reduce
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from children import run_python
from followed_gradients import GRADIENTS_KEPT
from followed_workers import WORKERS_AT_WORK
from following import Followed
from shared_results import GUARD, LINTER, folder_of_the_run, until_changed

from pytest_gradguard.pitfalls import catalogue, get

RUNNER = Path(__file__).with_name("run_programs.py")
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore"}
BAD = "bad"
FOLLOWED = [*GRADIENTS_KEPT, *WORKERS_AT_WORK]

_GPU = "a real GPU, or a package that needs one"
_RANKS = "ranks: the guard cases of torch.distributed"
NOT_FOLLOWED = {
    "GG101 other arrays": "no array of another package is installed",
    "GG102 other arrays": "no array of another package is installed",
    "GG103 concurrent.futures": "torch refuses such results, and GG103 is not reached",
    "GG103 torch.distributed.rpc": "test_rpc follows it, in two processes",
    "GG103 transform": "GG301 is the finding there, and its advice is followed",
    "GG106 shared memory": "case_left in the guard cases steps in the worker",
    **dict.fromkeys(
        [f"GG107 {case}" for case in ("tensorflow", "keras", "other arrays")],
        "for information only: nothing is wrong",
    ),
    **dict.fromkeys([f"GG201 {case}" for case in get("GG201").cases], _GPU),
    **dict.fromkeys(
        [f"GG202 {case}" for case in get("GG202").cases if case not in ("result", "model")], _GPU
    ),
    **dict.fromkeys([f"GG203 {case}" for case in get("GG203").cases], _GPU),
    **dict.fromkeys([f"GG204 {case}" for case in get("GG204").cases], _GPU),
    "GG303 torch.utils.data": "case_loader in the guard cases",
    "GG304 only random": "Python seeds it anew in a forked process",
    "GG304 only tensorflow": "as for NumPy and torch",
    "GG305 tensorflow.random.Generator": "as for NumPy and torch",
    "GG305 keras.random.SeedGenerator": "as for NumPy and torch",
    "GG308 tensorflow": "as for NumPy and torch",
    **dict.fromkeys(
        ["GG403 autotune", "GG403 shape", "GG404 tensorflow", "GG404 torch"],
        "the linter's repaired examples, tests/lint/test_repairs.py",
    ),
    **dict.fromkeys(
        [f"{code} {case}" for code in ("GG501", "GG502", "GG504") for case in get(code).cases],
        _RANKS,
    ),
}
"""The cases of advice that no program here follows, and why."""


def versions(followed: Followed) -> dict[str, str]:
    """The program, and what becomes of it by each way."""
    ways = followed.ways.items()
    return {
        BAD: followed.program,
        **{way: reduce(changed, changes, followed.program) for way, changes in ways},
    }


def changed(program: str, change: tuple[str, str]) -> str:
    assert change[0] in program, change[0]
    return program.replace(*change)


def group_of(followed: Followed) -> str:
    """The programs that share a process. After those of GG303, nothing may be forked in it."""
    return followed.name if followed.code == "GG303" else followed.code[:3]


def lint(folder: Path) -> dict[str, Any]:
    """What the linter finds in the program in `folder`: the fixes, by code."""
    options = ("--no-cache", "--exit-zero", "--min-severity=info", "--output-format=json")
    done = run_python("-m", "pytest_gradguard", "lint", *options, "main.py", folder=folder)
    return {one["code"]: one["fix"] for one in json.loads(done.stdout)["findings"]}


@cache
def outcomes(root: Path, group: str) -> dict[str, dict[str, Any]]:
    """What each version of the programs of `group` does under the guard, by its folder's name."""
    folders = []
    for number, followed in enumerate(FOLLOWED):
        if group_of(followed) != group or not all(map(find_spec, followed.needs)):
            continue
        for index, program in enumerate(versions(followed).values()):
            folder = root / f"{followed.code}_{number}_{index}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "main.py").write_text(program)
            folders.append(folder)

    def run() -> str:
        said = ""
        for names in [[one] for one in folders] if " " in group else [folders]:
            names = [folder.name for folder in names]
            done = run_python(RUNNER, root, *names, limit=300, environment=QUIET, forked="torch")
            said += done.stdout + done.stderr + "\n"
        return said

    sources = [Path(__file__), RUNNER, *(folder / "main.py" for folder in folders)]
    said = until_changed(f"advice-{group.replace(' ', '-')}", sources, [GUARD, LINTER], run)
    records = [json.loads(line) for line in said.splitlines() if line.startswith('{"program":')]
    assert len(records) == len(folders), said
    return {record["program"]: record for record in records}


@pytest.mark.parametrize(
    ("number", "followed"),
    [*enumerate(FOLLOWED)],
    ids=[
        f"{followed.name}-{number}@case_{group_of(followed)}"
        for number, followed in enumerate(FOLLOWED)
    ],
)
def test_a_program_that_follows_the_advice_is_right(number, followed, tmp_path_factory):
    missing = [name for name in ("torch", "joblib", *followed.needs) if find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed")
    code, pitfall = followed.code, get(followed.code)
    advice = pitfall.advice_for(followed.case) if followed.case else pitfall.fix
    root = folder_of_the_run(tmp_path_factory) / "advice" / group_of(followed).replace(" ", "_")
    found = outcomes(root, group_of(followed))
    for index, way in enumerate(versions(followed)):
        name = f"{code}_{number}_{index}"
        outcome = found[name]
        if way == BAD:
            if followed.found_by != "lint" and code != "GG303":  # a hang, which the guard ends
                assert outcome["prints"] != [followed.right]
            said = {
                "guard": lambda one=outcome: one["fixes"].get(code),
                "note": lambda one=outcome: one["raises"][2],
                "lint": lambda folder=root / name: lint(folder).get(code),
            }[followed.found_by]()
            assert said, outcome
            assert advice in said or not followed.case
            continue
        assert way in advice
        assert (outcome["prints"], outcome["raises"]) == ([followed.right], None), (way, outcome)
        assert code not in outcome["found"], way


def test_every_case_of_advice_is_followed_or_not_for_a_reason():
    cases = {f"{pitfall.code} {case}" for pitfall in catalogue() for case in pitfall.cases}
    followed = {one.name for one in FOLLOWED if one.case}
    assert followed | NOT_FOLLOWED.keys() == cases
    assert not followed & NOT_FOLLOWED.keys()
