"""The formats that hosts read: each holds what JSON holds, in the form that its host takes."""

from __future__ import annotations

import json
import re
import sys
import tarfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pytest_gradguard.findings import Edit, Finding, Location, ReadError, Repair, Severity
from pytest_gradguard.reports import concise, github, gitlab, junit, sarif

PROGRAM = """\
import torch
from joblib import Parallel, delayed


def work(k, x):
    y = torch.ones(3, device="cuda") * k
    return (y * x).sum()


def main():
    x = torch.ones(3, requires_grad=True)
    results = Parallel(n_jobs=2)(delayed(work)(k, x) for k in range(3))
    sum(results).backward()


main()
"""
ODD = "sub folder/100% of it, a:b é.py"
"""A file name with everything that some format has to escape."""


@pytest.fixture
def findings(project):
    """The findings of two files as the JSON report has them; one more file cannot be read."""
    project.write("train.py", PROGRAM)
    project.write(ODD, PROGRAM)
    project.write("broken.py", "from joblib import (\n")
    found = project.lint(json_output=True).json["findings"]
    assert {one["location"]["path"] for one in found} == {"train.py", ODD}
    assert {one["severity"] for one in found} == {"warning", "error"}
    return found


def output(project, name: str) -> str:
    ran = project.lint("--output-format", name)
    assert ran.status == 2
    assert "broken.py" in ran.err
    return ran.out


def places(findings: list[dict[str, Any]]) -> list[tuple[str, str, int, int]]:
    return [
        (one["code"], where["path"], where["line"], where["column"])
        for one in findings
        for where in [one["location"]]
    ]


@pytest.fixture
def issues(findings):
    """The findings that belong to no other finding; hosts show each as an issue."""
    alone = [one for one in findings if "explains" not in one["details"]]
    assert [one["code"] for one in alone] == ["GG201", "GG103"] * 2
    assert len(findings) == 8
    return alone


def test_concise(project, findings):
    *lines, last, fixable = output(project, "concise").splitlines()
    assert "fixable with" in fixable
    form = r"(.*):(\d+):(\d+): (\w+)\[(\w+)\] (?:\[\*\] )?(.*)"
    read = [re.fullmatch(form, line).groups() for line in lines]
    assert [(code, path, int(line), int(column)) for path, line, column, _, code, _ in read] == (
        places(findings)
    )
    assert [one[3] for one in read] == [one["severity"] for one in findings]
    assert [one[5] for one in read] == [one["message"] for one in findings]
    assert last.startswith("2 files checked, 1 error on standard error") or "checked" in last


def test_concise_marks_what_fix_repairs():
    safe, unsafe, none = concise.lines([finding(edits=REPAIR), finding(edits=UNSAFE), finding()])
    assert ["[*]" in line for line in (safe, unsafe, none)] == [True, False, False]


# -- GitHub ----------------------------------------------------------------------------------------


def commands(text: str) -> Iterator[tuple[str, dict[str, str], str]]:
    """The workflow commands in `text`, as the runner of GitHub Actions takes them apart."""
    for line in text.splitlines():
        command, listed, data = re.fullmatch(r"::(\w+) (.*?)::(.*)", line).groups()
        properties = {}
        for one in listed.split(","):
            name, value = one.split("=", 1)
            value = value.replace("%3A", ":").replace("%2C", ",")
            properties[name] = unescaped(value)
        yield command, properties, unescaped(data)


def unescaped(text: str) -> str:
    return text.replace("%0D", "\r").replace("%0A", "\n").replace("%25", "%")


def test_github(project, issues):
    *annotations, broken = commands(output(project, "github"))
    assert [(kind, at["file"], int(at["line"])) for kind, at, _ in annotations] == [
        (one["severity"], one["location"]["path"], one["location"]["line"]) for one in issues
    ]
    for (_, properties, text), one in zip(annotations, issues, strict=True):
        assert one["code"] in properties["title"]
        assert one["message"] in text
        assert one["fix"] in text
        assert (".detach()" in text) == (".detach()" in one["fix"])
        told = re.findall(r"^(sent|returned): (GG\d+) at line \d+", text, re.M)
        parts = [("sent", "GG101"), ("returned", "GG102")]
        assert told == (parts if one["code"] == "GG103" else [])
    assert broken[:2] == ("error", {"title": "gradguard", "file": "broken.py", "line": "1"})


def test_github_takes_no_command_out_of_a_file_name():
    (line,) = github.lines([finding(path="a\n::error::b\r.py", message="100% \r\n::set-env")])
    assert "\n" not in line
    assert "\r" not in line
    ((kind, properties, text),) = commands(line)
    assert (kind, properties["file"]) == ("warning", "a\n::error::b\r.py")
    (line,) = github.lines([finding(path="a\x1b[1m,b:c\x07.py", message="of `\x1b]0;t\x07`")])
    assert r"file=a\x1b[1m%2Cb%3Ac\x07.py,line=" in line
    assert line.isprintable()
    assert text.splitlines() == [r"a\n::error::b\r.py:3:5: GG201 100% \r", "::set-env"]


# -- SARIF -----------------------------------------------------------------------------------------


@cache
def schema() -> dict[str, Any]:
    """SARIF's, from the source distribution of its object model; `make` puts that there."""
    (archive,) = Path(sys.prefix, "schemas").glob("sarif_om-*.tar.gz")
    with tarfile.open(archive) as files:
        (name,) = (name for name in files.getnames() if "/sarif-2.1.0" in name)
        return json.load(files.extractfile(name))


def checked_sarif(text: str) -> dict[str, Any]:
    log = json.loads(text)
    jsonschema.validate(log, schema(), format_checker=jsonschema.FormatChecker())
    return log["runs"][0]


def test_sarif(project, issues):
    run = checked_sarif(output(project, "sarif"))
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == sorted({one["code"] for one in issues})
    assert all(rule["helpUri"].endswith(f"/pitfalls/{rule['id'].lower()}.md") for rule in rules)
    assert run["originalUriBaseIds"]["%SRCROOT%"]["uri"] == project.root.as_uri() + "/"
    found = []
    for result, one in zip(run["results"], issues, strict=True):
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        place = result["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uriBaseId"] == "%SRCROOT%"
        found.append((result["ruleId"], place["artifactLocation"]["uri"], result["level"]))
        steps = result["codeFlows"][0]["threadFlows"][0]["locations"] if one["trace"] else []
        said = [step["location"]["message"]["text"] for step in steps]
        assert said == [
            *(step["message"] for step in one["trace"]),
            *[one["message"]] * bool(steps),
        ]
        related = [other["message"]["text"] for other in result.get("relatedLocations", ())]
        assert len(related) == (2 if one["code"] == "GG103" else 0)
        assert all(re.match(r"(sent|returned): GG10[12] at line \d+", text) for text in related)
    odd = "sub%20folder/100%25%20of%20it%2C%20a%3Ab%20%C3%A9.py"
    assert found == [
        (one["code"], {ODD: odd}.get(one["location"]["path"], "train.py"), one["severity"])
        for one in issues
    ]
    (invocation,) = run["invocations"]
    assert invocation["executionSuccessful"] is False
    (told,) = invocation["toolExecutionNotifications"]
    assert told["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "broken.py"


def nested(project, depth: int) -> int:
    """A clean program whose calls nest `depth` deep; the line of the 15th of its functions."""
    functions = "".join(f"def f{k}():\n    return f{k + 1}()\n\n\n" for k in range(depth))
    source = f"import torch\nimport joblib\n\n\n{functions}def f{depth}():\n    torch.ones(3)\n\n\n"
    project.write("deep/program.py", f"{source}f0()\njoblib.Parallel(2)(joblib.delayed(abs)(1))\n")
    return 5 + 4 * 14


LIMIT = "reached the limit of 14 nested calls"


def test_what_is_not_followed_to_its_end(project):
    line = nested(project, 20)
    ran = project.lint("--output-format", "sarif")
    run = checked_sarif(ran.out)
    (invocation,) = run["invocations"]
    assert (ran.status, ran.err, run["results"]) == (0, "", [])
    assert invocation["executionSuccessful"] is True
    caller, note = invocation["toolExecutionNotifications"]
    assert caller["message"]["text"] == f"`f13` is not followed to its end: {LIMIT}."
    assert note["level"] == "note"
    assert note["message"]["text"] == f"`f14` is not followed to its end: {LIMIT}."
    place = note["locations"][0]["physicalLocation"]
    assert (place["artifactLocation"]["uri"], place["region"]) == (
        "deep/program.py",
        {"startLine": line},
    )
    (notice,) = commands(project.lint("--output-format", "github").out)
    assert notice == ("notice", {"title": "gradguard"}, project.lint().out.splitlines()[-1])
    for name in ("gitlab", "junit"):
        assert "not followed" not in project.lint("--output-format", name).out


@pytest.mark.parametrize("name", ["sarif", "github", "text", "concise"])
def test_nothing_is_said_where_all_is_followed(project, name):
    nested(project, 12)
    assert "not followed" not in project.lint("--output-format", name).out


def test_sarif_of_a_clean_project(project):
    project.write("clean.py", "import joblib\n")
    ran = project.lint("--output-format", "sarif")
    run = checked_sarif(ran.out)
    assert (ran.status, run["results"]) == (0, [])
    assert run["invocations"][0]["executionSuccessful"] is True


def test_sarif_has_repairs_as_fixes():
    run = checked_sarif(sarif.render([finding(edits=REPAIR)], lambda path, line: ""))
    (fix,) = run["results"][0]["fixes"]
    (change,) = fix["artifactChanges"]
    assert change["artifactLocation"] == {"uri": "train.py", "uriBaseId": "%SRCROOT%"}
    (replacement,) = change["replacements"]
    assert replacement == {
        "deletedRegion": {"startLine": 3, "startColumn": 5, "endLine": 3, "endColumn": 9},
        "insertedContent": {"text": "new"},
    }


def test_sarif_names_what_lies_elsewhere_by_its_whole_address(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    elsewhere = str(Path(tmp_path.anchor) / "elsewhere" / "a b.py")
    run = checked_sarif(sarif.render([finding(path=elsewhere)], lambda path, line: ""))
    place = run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]
    assert place == {"uri": "file:///elsewhere/a%20b.py"}


def fingerprints(project, name: str) -> list[tuple[str, str]]:
    text = project.lint("--output-format", name).out
    if name == "gitlab":
        return [(one["check_name"].split()[0], one["fingerprint"]) for one in json.loads(text)]
    results = json.loads(text)["runs"][0]["results"]
    return [(one["ruleId"], one["partialFingerprints"]["gradguardPlace/v1"]) for one in results]


@pytest.mark.parametrize(
    "options",
    [
        *(["text"], ["concise"], ["json"], ["github"], ["sarif"], ["gitlab"], ["junit"]),
        *(
            ["concise", "--statistics"],
            ["text", "--color=always"],
            ["text", "--diff", "--unsafe-fixes"],
        ),
    ],
    ids=" ".join,
)
def test_an_earlier_report_is_replaced(project, options):
    project.write("train.py", PROGRAM)
    project.write("clean.py", "import joblib\n")
    name, *more = options
    for path in ("train.py", "train.py", "clean.py", "train.py"):
        ran = project.lint(path, "--output", "out", "--output-format", name, *more)
        assert ran.status == (path == "train.py"), ran.err


@pytest.mark.parametrize("name", ["sarif", "gitlab"])
def test_fingerprints_survive_moved_lines_and_nothing_else(project, name):
    project.write("train.py", PROGRAM)
    before = fingerprints(project, name)
    assert len({print for _, print in before}) == len(before) == 2
    project.write("train.py", '"""What this is."""\n\n\n' + PROGRAM)
    assert fingerprints(project, name) == before
    project.write("train.py", PROGRAM.replace("* k", "* k * 1"))
    after = fingerprints(project, name)
    assert {code for (code, print), old in zip(after, before, strict=True) if print != old[1]} == {
        "GG201"
    }


def test_equal_lines_have_fingerprints_of_their_own():
    both = [finding(line=3), finding(line=9)]
    first, second = json.loads(gitlab.render(both, lambda path, line: "    x = 1"))
    assert first["fingerprint"] != second["fingerprint"]


# -- GitLab and JUnit ------------------------------------------------------------------------------


def test_gitlab(project, issues):
    entries = json.loads(output(project, "gitlab"))
    read = [
        (
            entry["check_name"].split()[0],
            entry["location"]["path"],
            entry["location"]["positions"]["begin"]["line"],
            entry["location"]["positions"]["begin"]["column"],
        )
        for entry in entries
    ]
    assert read == places(issues)
    levels = {"error": "major", "warning": "minor"}
    assert [entry["severity"] for entry in entries] == [levels[f["severity"]] for f in issues]
    assert all(one["message"] in e["description"] for one, e in zip(issues, entries, strict=True))


def test_junit(project, issues):
    root = ET.fromstring(output(project, "junit").encode())
    assert (int(root.get("failures")), int(root.get("errors"))) == (len(issues), 1)
    cases = list(root.iter("testcase"))
    assert len(cases) == int(root.get("tests"))
    failed = {
        (case.get("file"), int(case.get("line")), case.get("name").split()[0], case.find("failure"))
        for case in cases
        if case.find("failure") is not None
    }
    assert {one[:3] for one in failed} == {(path, line, c) for c, path, line, _ in places(issues)}
    messages = {failure.get("message") for *_, failure in failed}
    assert messages == {one["message"] for one in issues}
    assert "\n- sent: GG101 at line 12" in "".join(failure.text for *_, failure in failed)
    (broken,) = (case for case in cases if case.find("error") is not None)
    assert broken.get("file") == "broken.py"


def test_junit_of_a_clean_project_is_a_test_that_passes(project):
    project.write("clean.py", "import joblib\n")
    root = ET.fromstring(project.lint("--output-format", "junit").out.encode())
    (case,) = root.iter("testcase")
    assert (root.get("tests"), root.get("failures"), len(case)) == ("1", "0", 0)


def test_what_xml_cannot_hold_is_shown_instead():
    error = ReadError("a.py", 1, "\x00")
    text = junit.render([finding(message="a \x1b[31m b \ud800")], [error])
    said = [one.get("message") for one in ET.fromstring(text.encode()).iter("failure")]
    assert said == [r"a \x1b[31m b \ud800"]


def finding(
    *, path: str = "train.py", line: int = 3, message: str = "What.", edits: Repair | None = None
) -> Finding:
    where = Location(path, line, 5, line, 9)
    name = "cuda-init-in-worker"
    return Finding("GG201", name, Severity.WARNING, "lint", message, where, edits=edits)


REPAIR = Repair("safe", "Do it.", (Edit("train.py", 3, 5, 3, 9, "new"),))
UNSAFE = Repair("unsafe", "Do it.", (Edit("train.py", 3, 5, 3, 9, "new"),))


REFUSED = """\
import torch
from {module} import {pool} as Pool


def loss(weights):
    return (weights * 2).sum()


def total(features):
    return float(features.sum())


if __name__ == "__main__":
    features = torch.ones(3, requires_grad=True) * 2
    with Pool(2) as pool:
        pool.map(total, [features])
        pool.map(loss, [features])
"""


@pytest.mark.parametrize(
    ("module", "pool", "refuses"),
    [
        ("multiprocessing", "Pool", True),
        ("torch.multiprocessing", "Pool", True),
        ("concurrent.futures", "ProcessPoolExecutor", True),
        ("multiprocess", "Pool", False),
        ("loky", "ProcessPoolExecutor", False),
    ],
)
def test_it_is_said_where_torch_refuses_to_pickle(project, module, pool, refuses):
    project.write("program.py", REFUSED.format(module=module, pool=pool))
    told = [
        (finding["code"], "refuses to pickle it" in finding["message"])
        for finding in project.lint(json_output=True).json["findings"]
    ]
    assert sorted(told) == [("GG101", refuses), ("GG101", refuses), ("GG102", refuses)]
