"""Findings that a test expects by its marker, and annotations for GitHub."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pytest_runs import Run, run_pytest

EXPECTING = """
import pytest
import torch
from losing import elsewhere, results


@pytest.mark.gradguard(expect=["GG103"], allow=["GG101", "GG102"])
def test_comes():
    results().backward()


@pytest.mark.gradguard(expect="GG1")
def test_comes_by_its_prefix(gradguard):
    results().backward()
    assert {one.code for one in gradguard.findings} == {"GG101", "GG102", "GG103"}


@pytest.mark.gradguard(expect=["GG102", "gg103"], fail_on="never")
def test_stays_away():
    results()


@pytest.mark.gradguard(expect=["GG2"])
def test_of_that_kind_nothing_comes():
    results()


@pytest.mark.gradguard(expect=["GG103"])
def test_with_what_explains_it():
    results().backward()


@pytest.mark.gradguard(expect=["GG103"])
def test_with_what_nobody_expects():
    results().backward()
    elsewhere()


@pytest.mark.gradguard(expect=["GG201"])
def test_fails_for_its_own_reason():
    assert "mine" == "not the guard's"


@pytest.mark.gradguard(expect=["GG201"])
def test_is_skipped():
    pytest.skip("not today")


@pytest.mark.gradguard(expect=["GG104"])
def test_no_gradient(watch_gradients):
    watch_gradients({"weight": torch.ones(2, requires_grad=True)})


@pytest.mark.gradguard(expect=["GG104"])
def test_a_gradient(watch_gradients):
    weight = torch.ones(2, requires_grad=True)
    watch_gradients({"weight": weight})
    weight.sum().backward()


@pytest.mark.gradguard(allow=["GG103"])
class TestAllowed:
    @pytest.mark.gradguard(expect=["GG103"])
    def test_expected_all_the_same(self):
        results().backward()
"""

LOSING = """
import torch
from joblib import Parallel, delayed


def add(tensor, number):
    return tensor + number


def results():
    x = torch.ones(3, requires_grad=True)
    tasks = [delayed(add)(x.clone(), number) for number in range(2)]
    return sum(Parallel(n_jobs=2, backend="multiprocessing")(tasks)).mean()


def elsewhere():
    x = torch.ones(3, requires_grad=True)
    Parallel(n_jobs=2, backend="multiprocessing")(delayed(add)(x, number) for number in range(2))
"""

FILE = "test_expecting.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("expecting") / "project"
    made.mkdir()
    (made / "pytest.ini").write_text("[pytest]\ngradguard_ignore = GG103\n")
    (made / "losing.py").write_text(LOSING)
    (made / FILE).write_text(EXPECTING)
    return made


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    return run_pytest(
        folder,
        *("--gradguard", "-rA", "--gradguard-report=report.json", "--gradguard-annotate=always"),
        environment={"GITHUB_WORKSPACE": str(folder.parent)},
    )


def failures(run: Run) -> dict[str, str]:
    """The first line of what each failed test says, by its name."""
    return dict(
        re.findall(rf"^FAILED {FILE}::(\S+) - (?:Failed: |AssertionError: )?(.*)$", run.text, re.M)
    )


def test_a_test_fails_where_what_it_expects_does_not_come(run: Run) -> None:
    said = failures(run)
    expected = "expected by the marker gradguard, but not reported"
    assert said.pop("test_stays_away").startswith("gradguard: GG103 (backward-through-worker-")
    assert said.pop("test_of_that_kind_nothing_comes").startswith("gradguard: GG2: expected")
    assert said.pop("test_a_gradient").startswith("gradguard: GG104 (missing-gradient): ")
    assert said.pop("test_fails_for_its_own_reason").startswith("assert 'mine'")
    assert not said
    assert f": {expected} (reported: GG101, GG102)\n" in run.text
    assert f": {expected} (reported: nothing)\n" in run.text
    assert "pytest_gradguard/" not in run.text  # no frame of ours


def test_what_is_expected_is_reported_to_nobody(run: Run) -> None:
    assert run.codes() == {
        f"{FILE}::test_stays_away": {"GG101"},
        f"{FILE}::test_of_that_kind_nothing_comes": {"GG101", "GG102"},
        f"{FILE}::test_with_what_nobody_expects": {"GG101", "GG102"},
    }


def test_without_the_guard_only_the_fixture_decides(folder: Path) -> None:
    run = run_pytest(folder, "-rA")
    assert set(failures(run)) == {"test_a_gradient", "test_fails_for_its_own_reason"}


def test_where_gradguard_is_disabled_nothing_is_expected(folder: Path) -> None:
    run = run_pytest(folder, "--gradguard", "-rA", environment={"GRADGUARD_DISABLE": "1"})
    assert "test_stays_away" not in failures(run)


def test_annotations_are_at_the_place_in_the_workspace(run: Run) -> None:
    lines = [
        str(number) for number, text in enumerate(LOSING.splitlines(), 1) if "Parallel(n" in text
    ]
    written = re.findall(
        r"^::(\w+) title=gradguard (GG\d+) \S+?,file=(.*?),line=(\d+)", run.text, re.M
    )
    assert written == [
        ("warning", code, "project/losing.py", line)
        for line in lines
        for code in ("GG101", "GG102")
    ]


@pytest.mark.parametrize(
    ("option", "actions", "annotated"),
    [("auto", "true", True), ("auto", "", False), ("never", "true", False)],
)
def test_annotations_are_for_actions(
    folder: Path, option: str, actions: str, annotated: bool
) -> None:
    run = run_pytest(
        folder,
        *("--gradguard", f"--gradguard-annotate={option}", "-q"),
        f"{FILE}::test_with_what_nobody_expects",
        environment={"GITHUB_ACTIONS": actions},
    )
    assert ("::warning " in run.text) is annotated
