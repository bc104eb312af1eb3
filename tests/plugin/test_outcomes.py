"""What becomes of a test whose findings reach, or do not reach, the severity that fails it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from pytest_runs import Run, run_pytest

FILE = "test_situations.py"
ALL = {"GG101", "GG102", "GG103"}

CODES = {
    "test_crossing": {"GG101", "GG102"},
    "test_backward": ALL,
    "test_own_failure": ALL,
    "test_expected": ALL,
    "test_expected_strictly": ALL,
    "test_skipped": ALL,
    "test_teardown": ALL,
    "test_first_user": {"GG101", "GG102"},
    "test_second_user": {"GG103"},
    "test_setup": ALL,
    "test_setup_fails": ALL,
    "test_never": ALL,
    "TestMarked::test_closest": {"GG102"},
    "TestCase::test_backward": ALL,
    "TestCase::test_own_failure": ALL,
    "test_fixture": {"GG101", "GG102"},
}

OUTCOMES = {
    "test_clean": {"PASSED"},
    "test_crossing": {"PASSED"},
    "test_backward": {"FAILED"},
    "test_parameters": {"PASSED"},
    "test_own_failure": {"FAILED"},
    "test_expected": {"XFAIL"},
    "test_expected_strictly": {"XFAIL"},
    "test_teardown": {"PASSED", "ERROR"},
    "test_first_user": {"PASSED"},
    "test_second_user": {"FAILED"},
    "test_setup": {"FAILED"},
    "test_setup_fails": {"ERROR"},
    "test_allowed": {"PASSED"},
    "test_never": {"PASSED"},
    "TestMarked::test_closest": {"FAILED"},
    "TestCase::test_backward": {"FAILED"},
    "TestCase::test_own_failure": {"FAILED"},
    "test_fixture": {"PASSED"},
}


def outcomes(run: Run) -> dict[str, set[str]]:
    """What the short test summary says of each test."""
    found: dict[str, set[str]] = {}
    for word, name in re.findall(rf"^(PASSED|FAILED|ERROR|XFAIL) {FILE}::(\S+)", run.text, re.M):
        found.setdefault(name, set()).add(word)
    return found


def expected_codes() -> dict[str, set[str]]:
    return {f"{FILE}::{name}": codes for name, codes in CODES.items()}


def failure_of(run: Run, title: str) -> str:
    """The text under the heading `title` among the failures and errors."""
    found = re.search(rf"^_+ {re.escape(title)} _+$\n(.*?)(?=^_+ |^=+ )", run.text, re.M | re.S)
    assert found, f"no failure of {title}"
    return found[1]


def test_each_test_has_its_own_findings(plain_run: Run) -> None:
    assert plain_run.codes("plain.json") == expected_codes()


def test_each_test_has_its_outcome(plain_run: Run) -> None:
    assert outcomes(plain_run) == OUTCOMES
    assert plain_run.status == pytest.ExitCode.TESTS_FAILED
    assert "1 skipped" in plain_run.text


@pytest.mark.parametrize(
    "title",
    ["test_backward", "test_second_user", "test_setup", "TestCase.test_backward"],
)
def test_a_finding_is_the_report_of_its_failure(plain_run: Run, title: str) -> None:
    text = failure_of(plain_run, title)
    assert text.startswith("error[GG103] backward-through-worker-result\n")
    assert f"--> {FILE}:" in text
    assert "fix: " in text
    if title != "test_second_user":  # another test has sent and received what this one loses
        assert "sent: GG101 at line 20: `x.clone()`, parameter `tensor` of `add`\n" in text
        assert "returned: GG102 at line 20: the result of `add`\n" in text
    assert "warning[" not in text
    assert "Traceback" not in text
    assert "pytest_gradguard/" not in text  # no frame of ours


def test_a_fixture_that_loses_at_its_end_is_an_error_of_its_test(plain_run: Run) -> None:
    text = failure_of(plain_run, "ERROR at teardown of test_teardown")
    assert text.startswith("error[GG103]")


@pytest.mark.parametrize(
    ("title", "own"),
    [
        ("test_own_failure", "assert 'mine' == 'not the finding'"),
        ("TestCase.test_own_failure", "AssertionError: mine"),
        ("ERROR at setup of test_setup_fails", "RuntimeError: the fixture's own"),
    ],
)
def test_a_failure_of_its_own_stays_and_findings_stand_beside(
    plain_run: Run, title: str, own: str
) -> None:
    text = failure_of(plain_run, title)
    assert own in text
    assert re.search(r"^-+ gradguard -+$", text, re.M)
    assert text.index(own) < text.index("error[GG103]")


def test_findings_are_warnings_at_the_users_line(plain_run: Run) -> None:
    source = (plain_run.folder / FILE).read_text().splitlines()
    line = next(number for number, text in enumerate(source, 1) if "results().backward()" in text)
    heard = (plain_run.folder / "warnings.txt").read_text()
    assert re.search(rf"{FILE}:{line}: GradGuardConfirmed: GG103 ", heard)
    assert re.search(rf"{FILE}:\d+: GradGuardSuspicion: GG101 ", heard)


def test_a_warning_is_shown_once(plain_run: Run) -> None:
    assert "warnings summary" not in plain_run.text
    assert "GradGuard" not in plain_run.text
    assert " warning" not in plain_run.text.splitlines()[-1]


def test_summary_counts_and_repeats_nothing(plain_run: Run) -> None:
    section = plain_run.text[plain_run.text.index("= gradguard =") :]
    shown = re.findall(r"^error\[GG103\] backward-through-worker-result at (.*)$", section, re.M)
    assert len(shown) == 2
    assert all(place.endswith("(shown above)") for place in shown)
    assert re.search(
        r"^2 errors, 2 warnings in 16 tests; 1 info finding not shown \(-v shows it\)$",
        section,
        re.M,
    )


def test_the_page_counts_as_the_terminal_does(plain_run: Run) -> None:
    page = (plain_run.folder / "plain.html").read_text()
    count = "2 errors, 2 warnings in 16 tests; 1 info finding"
    assert f"{count} not shown" in plain_run.text
    assert f"<title>gradguard: {count}</title>" in page
    assert f'<p class="count">{count}</p>' in page
    assert re.findall(r"> (\w+) \((\d+)\)</label>", page) == [
        *(("error", "2"), ("warning", "2"), ("info", "1"))
    ]
    codes = re.findall(r'<option value="GG\d+">(GG\d+) \S+ \((\d+)\)', page)
    assert codes == [("GG101", "1"), ("GG102", "1"), ("GG103", "2"), ("GG107", "1")]


def test_junit_has_the_findings_of_each_test(plain_run: Run) -> None:
    root = ElementTree.parse(plain_run.folder / "plain.xml").getroot()
    found: dict[str, set[str]] = {}
    for case in root.iter("testcase"):
        scope = case.get("classname", "").partition("test_situations.")[2]
        name = "::".join(filter(None, [scope, case.get("name")]))
        for entry in case.iterfind("properties/property[@name='gradguard']"):
            said = json.loads(entry.get("value", ""))
            found[name] = {one["code"] for one in said if one["severity"] != "info"}
        readable = case.findall("properties/property")
        names = {entry.get("name", "") for entry in readable} - {"gradguard"}
        assert names == {f"gradguard.{code}" for code in found.get(name, ())}
    assert {name: codes for name, codes in found.items() if codes} == CODES
    backward = ".//testcase[@name='test_backward']"
    entry = root.find(f"{backward}/properties/property[@name='gradguard.GG103']")
    assert entry is not None
    said = (
        r"error\[GG103\] backward-through-worker-result at test_situations.py:\d+:\d+: This .* Fix"
    )
    assert re.match(said, entry.get("value", ""))
    failure = root.find(f"{backward}/failure")
    assert failure is not None
    assert failure.get("message", "").startswith("GG103 backward-through-worker-result: ")
    assert "pytest_gradguard/" not in (failure.text or "")


def test_a_report_tells_what_crossed_and_in_which_lane(plain_run: Run) -> None:
    found = {
        one["code"]: one
        for one in plain_run.report("plain.json")["findings"]
        if one["test"] == "test_situations.py::test_backward"
    }
    lanes = {code: [step.get("lane") for step in one["trace"]] for code, one in found.items()}
    assert lanes == {"GG101": ["worker"], "GG102": ["worker"], "GG103": ["parent", "worker"]}
    (sent,) = found["GG101"]["details"]["tensors"]
    assert sent == {
        "name": "`x.clone()`",
        "object": "args[0]",
        "direction": "argument",
        "function": "add",
        "parameter": "tensor",
        "history": "CloneBackward0",
        "type": "Tensor",
        "shape": [3],
        "dtype": "float32",
        "device": "cpu",
    }
    (returned,) = found["GG103"]["details"]["tensors"]
    assert (returned["name"], returned["history"]) == ("the result of `add`", "AddBackward0")


def test_xdist_finds_the_same(situations: Path, plain_run: Run) -> None:
    # --dist=loadfile: a fixture of the module runs once, as in one process
    run = run_pytest(
        situations,
        *("--gradguard", "-rA", "-n2", "--dist=loadfile"),
        *("-W", "ignore:This process:DeprecationWarning"),  # forks beside the threads of xdist
        *("--gradguard-report=xdist.json", "--gradguard-html=xdist.html"),
    )
    assert len(plain_run.report("plain.json")["findings"]) > len(CODES)
    reports = [run.report("xdist.json"), plain_run.report("plain.json")]
    for call in (call for report in reports for call in report["calls"]):
        assert call.pop("seconds") > 0
    assert reports[0] == reports[1]
    pages = [(situations / name).read_text() for name in ("xdist.html", "plain.html")]
    assert pages[0].count("<article") == pages[1].count("<article") > 4
    of_one_run = r"[\d.]+ s<|<p class=\"about\">.*"
    assert re.sub(of_one_run, "", pages[0]) == re.sub(of_one_run, "", pages[1])
    assert " warning" not in run.text.splitlines()[-1]
    assert outcomes(run) == OUTCOMES
    assert failure_of(run, "test_backward").partition("\n")[2].startswith("error[GG103]")
    assert re.search(r"^FAILED \S+::test_backward - GG103 ", run.text, re.M)
    assert "2 errors, 2 warnings in 16 tests" in run.text


def test_warning_filters_can_fail_a_test(situations: Path) -> None:
    run = run_pytest(
        situations,
        "--gradguard",
        "-rA",
        "-v",
        *("-W", "error::pytest_gradguard.GradGuardWarning"),
        *("-k", "clean or crossing or never or own_failure or parameters"),
    )
    assert "INTERNALERROR" not in run.text
    found = outcomes(run)
    assert found["test_crossing"] == found["test_never"] == {"FAILED"}
    assert found["test_clean"] == found["test_parameters"] == {"PASSED"}
    assert failure_of(run, "test_crossing").startswith("warning[GG101]")
    assert "AssertionError: mine" in failure_of(run, "TestCase.test_own_failure")
    # -v shows info findings, too
    assert re.search(r"^info\[GG107\] parameters-to-worker", run.text, re.M)


def test_warning_filters_can_silence_findings(situations: Path) -> None:
    run = run_pytest(
        situations,
        *("--gradguard", "--gradguard-report=silenced.json", "-k", "crossing or fixture"),
        *("-W", "ignore::pytest_gradguard.GradGuardSuspicion"),
        *("-W", "default:GG102:pytest_gradguard.GradGuardWarning"),
        environment={"COLUMNS": "60"},
    )
    section = run.text[run.text.index("= gradguard =") :]
    assert re.findall(r"^\w+\[GG\d+\]", section, re.M) == ["warning[GG102]"]
    assert max(map(len, section.partition("\ngradguard: report")[0].splitlines())) <= 60
    assert re.search(r"^1 warning in 2 tests; 1 ignored by warning filters$", section, re.M)
    found = run.codes("silenced.json")
    assert found[f"{FILE}::test_crossing"] == {"GG101", "GG102"}


def test_fail_on_warning(situations: Path) -> None:
    run = run_pytest(
        situations,
        *("--gradguard", "--gradguard-fail-on=warning", "-rA", "-q"),
        *("-k", "crossing or parameters or never"),
    )
    found = outcomes(run)
    assert found["test_crossing"] == {"FAILED"}
    assert found["test_parameters"] == found["test_never"] == {"PASSED"}
    # -q: one line for each place
    section = run.text[run.text.index("= gradguard =") :]
    assert re.search(
        r"^warning\[GG101\] grad-tensor-to-worker at test_situations.py:\d+$", section, re.M
    )
    assert "-->" not in section


def test_fail_on_never(situations: Path) -> None:
    run = run_pytest(
        situations,
        *("--gradguard", "--gradguard-fail-on=never", "-rA", "--tb=line"),
        *("-k", "backward or teardown"),
    )
    assert run.status == pytest.ExitCode.OK
    assert outcomes(run)["test_backward"] == {"PASSED"}
    section = run.text[run.text.index("= gradguard =") :]
    assert "error[GG103] backward-through-worker-result (3 times)\n" in section
    assert "results().backward()" in section  # nothing was shown above, so it is shown in full
    assert re.search(r"^1 error, 2 warnings in 3 tests$", section, re.M)


def test_without_a_terminal(situations: Path) -> None:
    run = run_pytest(
        situations,
        *("--gradguard", "-p", "no:terminal", "--gradguard-report=silent.json"),
        *("-k", "test_backward and not TestCase"),
    )
    assert run.status == pytest.ExitCode.TESTS_FAILED
    assert run.text == ""
    assert run.codes("silent.json") == {f"{FILE}::test_backward": ALL}


def test_switched_off(situations: Path) -> None:
    for off in ([], ["-p", "no:gradguard"]):
        run = run_pytest(situations, *off, "-rA", "-k", "test_backward and not TestCase")
        assert outcomes(run) == {"test_backward": {"PASSED"}}
        assert "gradguard:" not in run.text
        assert "backward-through-worker-result" not in run.text


MANY = """
import pytest, torch
from joblib import Parallel, delayed

def double(x):
    return 2 * x

def train():
    w = torch.ones(3, requires_grad=True)
    sum(Parallel(2)(delayed(double)(w) for _ in range(2))).sum().backward()

@pytest.mark.parametrize("k", range(5))
def test_it(k):
    train()

def test_with_output():
    print("its own")
    train()
"""


@pytest.mark.parametrize("options", [[], ["-n2"]])
def test_one_cause_of_many_failures_is_shown_once(tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "test_many.py").write_text(MANY)
    run = run_pytest(tmp_path, "--gradguard", "--junitxml=j.xml", *options)
    shown = run.text.partition(" short test summary info ")[0]
    blocks = re.findall(r"^error\[GG103\] backward-through-worker-result$", shown, re.M)
    assert len(blocks) == 2
    assert len(re.findall("^FAILED ", run.text, re.M)) == 6
    assert (tmp_path / "j.xml").read_text().count("lost their graph on the way back") >= 6
    (named,) = re.findall(r"-- the same in 4 other tests --+\n(.*)\n", shown)
    assert re.fullmatch(r"(test_many\.py::test_it\[\d\](, | and )){3}1 more", named)
