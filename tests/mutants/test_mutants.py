"""`make mutants` tells what tests notice from what they don't."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import copies
import pytest
from children import run_python
from mutations import drawn, instrumented, mutated, mutations, mutations_in

HERE = Path(__file__).parent
SOURCE = '''\
def describe(weight: int | None, limit=1):
    """A docstring."""
    if weight is not None and weight > limit:
        log.append(f"{weight:2}")
        return [part - 1 for part in split(weight) if not part.used]
    return True
'''
CHANGES = {
    "weight is not None and weight > limit  ->  weight > limit",
    "weight is not None and weight > limit  ->  weight is not None",
    "weight is not None  ->  weight is None",
    "weight > limit  ->  weight >= limit",
    "log.append(f'{weight:2}')  ->  pass",
    "part - 1  ->  part + 1",
    "1  ->  2",
    "return True  ->  return False",
}


def test_what_is_changed(tmp_path: Path) -> None:
    found = mutations(tmp_path / "scales.py", SOURCE)
    shown = {mutation.shown for mutation in found}
    assert shown > CHANGES
    (rest,) = (it for it in shown if it.startswith("[part - 1"))
    assert rest.endswith("->  [part - 1 for part in split(weight) if part.used]")
    texts = {ast.unparse(mutated(SOURCE, mutation)) for mutation in found}
    assert len(texts) == len(found)
    assert ast.unparse(ast.parse(SOURCE)) not in texts


def test_a_sample_is_spread_and_the_same_for_a_seed(tmp_path: Path) -> None:
    found = [it for name in "abcd" for it in mutations(tmp_path / name, SOURCE)]
    sample = drawn(found, 8, seed=3)
    assert sample == drawn(found, 8, seed=3) != drawn(found, 8, seed=1)
    assert len({it.path for it in sample}) == 4
    assert drawn(found, 1000, seed=3) == found


def test_each_mutation_is_reached_right_before_its_statement(tmp_path: Path) -> None:
    numbered = list(enumerate(mutations(tmp_path / "scales.py", SOURCE)))
    lines = ast.unparse(instrumented(SOURCE, numbered)).splitlines()
    for number, mutation in numbered:
        at = next(k for k, line in enumerate(lines) if line.endswith(f"reached({number})"))
        after = next(line.strip() for line in lines[at:] if "reached(" not in line)
        assert after.startswith(("if", "log", "return")), mutation


TOY = """\
import functools


@functools.cache
def is_heavy(weight, limit):
    return weight > limit and limit >= 0


def emptied(box):
    while box:
        box.pop()
    return box


def unused(box):
    return box


class Box(list):
    def __init__(self, things):
        super().__init__(things)
"""
TESTS = """\
from toy import scales

def test_heavy():
    assert scales.is_heavy(3, 2)
    assert not scales.is_heavy(1, 2)

def test_heavy_again():
    assert scales.is_heavy(3, 2)

def test_emptied():
    assert scales.emptied(scales.Box([1])) == []
"""
JUDGE = """\
import sys
from pathlib import Path
import judging, pytest
from mutations import mutations
from toy import scales
from verdicts import show

judging.CPU_LIMIT = 0.3
found = mutations(Path(scales.__file__), Path(scales.__file__).read_text())
judge = judging.Judge("toy", found, 2)
pytest.main(["-q", "-s", "-p", "no:cacheprovider", "test_scales.py"], plugins=[judge])
show(judge.verdicts, Path.cwd())
"""


CASES = """\
from toy.scales import is_heavy

def test_case_heavy():
    assert is_heavy(3, 2)

def test_case_light():
    assert not is_heavy(1, 2)

def test_case_none():
    pass
"""


def toy_in(folder: Path) -> Path:
    """A package with few functions."""
    package = folder / "toy"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "scales.py").write_text(TOY)
    return package


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked")
def test_what_tests_notice_and_what_they_do_not(tmp_path: Path) -> None:
    toy_in(tmp_path)
    (tmp_path / "test_scales.py").write_text(TESTS)
    folders = [tmp_path, HERE, HERE.parent / "faults"]
    done = run_python(
        *("-c", JUDGE),
        folder=tmp_path,
        environment={"PYTHONPATH": ":".join(map(str, folders))},
    )
    told = {}
    for line in done.stdout.splitlines():
        if line.startswith("toy/scales.py:"):
            where, how, change = line.split(": ", 2)
            told[change] = (int(where.split(":")[1]), how)
    assert told == {
        "weight > limit and limit >= 0  ->  weight > limit": (6, "survived"),
        "weight > limit  ->  weight >= limit": (6, "survived"),
        "limit >= 0  ->  limit > 0": (6, "survived"),
        "0  ->  1": (6, "survived"),
        "return box  ->  return None": (16, "not reached"),
    }, done.stdout + done.stderr
    assert "    test_scales.py::test_heavy_again" in done.stdout  # though its result is cached
    assert "5 of 10 mutations killed; 4 survived, 1 not reached, 1 could not" in done.stdout


def test_cases_judge_a_changed_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = toy_in(tmp_path / "source")
    monkeypatch.setattr(copies, "CASES", tmp_path)
    (tmp_path / "test_cases.py").write_text(CASES)
    (tmp_path / "programs").mkdir()
    for name in ("case_heavy", "case_light", "case_none"):
        (tmp_path / "programs" / f"{name}.py").write_text("")
    found = mutations_in(package)
    known = dict(copies.recorded(package, found, copies.cases(), 2))
    assert [case.passed for case in known.values()] == [True] * 3
    assert known["case_light"].numbers == known["case_heavy"].numbers != []
    assert known["case_none"].numbers == []
    wanted = {
        "weight > limit and limit >= 0  ->  limit >= 0": ("killed", "case_light"),
        "weight > limit  ->  weight >= limit": ("survived", ""),
        "box.pop()  ->  pass": ("not reached", ""),
    }
    sample = [(number, it) for number, it in enumerate(found) if it.shown in wanted]
    verdicts = copies.judged(package, sample, known, 2)
    assert {mutation.shown: verdict[:2] for mutation, verdict in verdicts} == wanted
    assert (package / "scales.py").read_text() == TOY
