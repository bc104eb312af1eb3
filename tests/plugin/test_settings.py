"""Flags, ini keys and markers: what they mean together, and how bad ones are refused."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from pytest_gradguard.findings import Severity
from pytest_gradguard.pitfalls import codes
from pytest_gradguard.plugin.settings import Settings, marker_settings, read_settings
from pytest_gradguard.reports.file import write_report

TEST = "def test_that_must_not_run():\n    raise SystemExit('it ran')\n"


def with_marker(keywords: str) -> str:
    """A test file whose second test bears a marker."""
    marked = f"@pytest.mark.gradguard({keywords})\ndef test_marked():\n    pass\n"
    return f"import pytest\n\n{TEST}\n{marked}"


def refused(pytester: pytest.Pytester, *arguments: str) -> str:
    """The one line with which this run is refused; no test has run."""
    result = pytester.runpytest_inprocess(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    lines = [line for line in result.errlines if line.strip()]
    assert len(lines) == 1, result.errlines
    assert "it ran" not in result.stdout.str()
    assert "INTERNALERROR" not in result.stdout.str()
    return lines[0]


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--gradguard-fail-on=info"], ["--gradguard-fail-on", "'info'", "error, warning, never"]),
        (["--gradguard-report=none/r.json"], ["--gradguard-report", "none/r.json", "no folder"]),
        (["--gradguard-html=new.py"], ["--gradguard-html", "new.py", ".py files are sources"]),
        (["--gradguard-html=one", "--gradguard-report=./one"], ["--gradguard-html", "a file each"]),
        (["--gradguard-report=kept.txt"], ["kept.txt", "not an earlier report"]),
        (["-o", "gradguard_report=kept.txt"], ["gradguard_report", "not an earlier report"]),
        (["--gradguard-report=."], ["--gradguard-report", "cannot be written: it is a folder"]),
        (["--gradguard-annotate=on"], ["--gradguard-annotate", "'on'", "auto, always, never"]),
        (["--gradguard-report="], ["--gradguard-report", "empty"]),
        (["--gradguard-html="], ["--gradguard-html", "empty"]),
        (["--gradguard-html=none/r.html"], ["--gradguard-html", "none/r.html", "no folder"]),
        (["-o", "gradguard_html=none/r.html"], ["gradguard_html", "none/r.html", "no folder"]),
        (["-o", "gradguard=perhaps"], ["gradguard", "perhaps", "true, false"]),
        (
            ["-o", "gradguard_fail_on=info"],
            ["gradguard_fail_on", "'info'", "error, warning, never"],
        ),
        (
            ["-o", "gradguard_ignore=GG101,GG999"],
            ["gradguard_ignore", "'GG999'", "a code such as GG103"],
        ),
        (["-o", "gradguard_report=none/r.json"], ["gradguard_report", "none/r.json", "no folder"]),
    ],
)
@pytest.mark.parametrize("on", [[], ["--gradguard"]], ids=["off", "on"])
def test_bad_values_are_refused_in_one_line(
    pytester: pytest.Pytester, arguments: list[str], parts: list[str], on: list[str]
) -> None:
    pytester.makepyfile(TEST)
    kept = pytester.maketxtfile(kept="mine")
    line = refused(pytester, *on, *arguments)
    assert kept.read_text() == "mine"
    assert all(part in line for part in parts), line


@pytest.mark.parametrize(
    ("marker", "parts"),
    [
        ("allow=['GG999']", ["allow", "'GG999'", "such as GG103"]),
        ("allow=[101]", ["allow", "101"]),
        ("allow=101", ["allow", "101"]),
        ("expect=['GG103', 'GG999']", ["expect", "'GG999'", "such as GG103"]),
        ("expect=103", ["expect", "103"]),
        ("fail_on='info'", ["fail_on", "'info'", "error, warning, never"]),
        ("fail_on=3", ["fail_on", "3", "error, warning, never"]),
        ("alow=['GG101']", ["'alow', did you mean 'allow'?", "allow, expect, fail_on, reason"]),
        ("'GG101'", ["'GG101'", "allow, expect, fail_on, reason"]),
        ("reason=7", ["reason", "7"]),
    ],
)
@pytest.mark.parametrize("on", [[], ["--gradguard"]], ids=["off", "on"])
def test_bad_markers_are_refused_before_any_test(
    pytester: pytest.Pytester, marker: str, parts: list[str], on: list[str]
) -> None:
    pytester.makepyfile(with_marker(marker))
    line = refused(pytester, *on, "-k", "must_not_run")  # also where the marked one is deselected
    assert "::test_marked" in line
    assert all(part in line for part in parts), line


def test_bad_markers_are_refused_under_xdist(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(with_marker("allow='GG999'"))
    result = pytester.runpytest_subprocess("--gradguard", "-n2", "-p", "xdist", timeout=100)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    line = next(line for line in result.errlines if line.startswith("ERROR"))
    assert "'GG999'" in line
    assert "INTERNALERROR" not in result.stdout.str()
    assert "failed" not in result.stdout.str()


def settings(pytester: pytest.Pytester, *arguments: str) -> Settings:
    return read_settings(pytester.parseconfigure(*arguments))


def test_command_line_goes_before_ini(pytester: pytest.Pytester) -> None:
    assert settings(pytester).fail_on is Severity.ERROR
    pytester.makeini("[pytest]\ngradguard_fail_on = warning\n")
    assert settings(pytester).fail_on is Severity.WARNING
    assert settings(pytester, "--gradguard-fail-on=never").fail_on is None


@pytest.mark.parametrize(
    "value", ["GG101, GG107", "GG101 GG107", "GG101,GG107", "\n  GG101\n  GG107"]
)
def test_codes_may_be_separated_as_people_do(pytester: pytest.Pytester, value: str) -> None:
    pytester.makeini(f"[pytest]\ngradguard_ignore = {value}\n")
    assert settings(pytester).ignore == {"GG101", "GG107"}


def test_codes_may_be_a_list_or_prefixes_in_toml(pytester: pytest.Pytester) -> None:
    pytester.makepyprojecttoml("[tool.pytest.ini_options]\ngradguard_ignore = ['GG4', 'GG101']\n")
    ignore = settings(pytester).ignore
    assert {"GG101", "GG401", "GG402"} <= ignore
    assert "GG102" not in ignore


def test_report_is_relative_to_where_it_was_said(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makeini("[pytest]\ngradguard_report = r.json\n")
    folder = pytester.mkdir("below")
    monkeypatch.chdir(folder)
    assert settings(pytester).report == pytester.path / "r.json"
    assert settings(pytester, "--gradguard-report=r.json").report == folder / "r.json"


def test_checking_the_report_leaves_an_earlier_one_alone(
    pytester: pytest.Pytester, tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    settings(pytester, f"--gradguard-report={report}")
    assert not report.exists()
    write_report(report, [])
    earlier = report.read_text()
    settings(pytester, f"--gradguard-report={report}")
    assert report.read_text() == earlier


def test_markers_add_up_and_the_closest_decides(pytester: pytest.Pytester) -> None:
    item = pytester.getitem(
        """
        import pytest

        pytestmark = pytest.mark.gradguard(allow="GG101", fail_on="never")

        @pytest.mark.gradguard(allow=["GG102"], fail_on="warning", reason="said so")
        class TestIt:
            @pytest.mark.gradguard(allow=("GG20", "ddp-bypassed"), expect=["gg103", "GG10"])
            def test_func(self):
                pass
        """
    )
    found = marker_settings(item)
    assert {"GG101", "GG102", "GG201", "GG502"} <= found.allow
    assert "GG103" not in found.allow
    assert [selector for selector, _ in found.expect] == ["GG103", "GG10"]
    assert {"GG101", "GG103"} <= found.expected
    run = Settings(Severity.ERROR, ignore=frozenset(), report=None, html=None, annotate=False)
    assert found.fails_at(run) is Severity.WARNING


def test_a_test_without_markers_follows_the_run(pytester: pytest.Pytester) -> None:
    found = marker_settings(pytester.getitem("def test_func(): pass"))
    assert found.allow == frozenset()
    assert not found.expect
    run = Settings(None, ignore=frozenset(), report=None, html=None, annotate=False)
    assert found.fails_at(run) is None


def test_ini_key_turns_the_guard_on(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(): pass")
    pytester.makeini("[pytest]\ngradguard = true\ngradguard_ignore = GG107\n")
    result = pytester.runpytest_inprocess()
    result.stdout.fnmatch_lines(["gradguard: on (fail-on: error), ignoring GG107"])
    off = pytester.runpytest_inprocess("-o", "gradguard=false")
    off.stdout.no_fnmatch_line("gradguard: on*")


def test_the_projects_table_comes_last_and_codes_to_leave_out_add_up(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyprojecttoml('[tool.gradguard]\nignore = ["GG2"]\nfail-on = "never"\n')
    settings = read_settings(pytester.parseconfig("-o", "gradguard_ignore=GG101"))
    assert settings.fail_on is None
    assert settings.ignore == {"GG101", *(code for code in codes() if code[:3] == "GG2")}
    settings = read_settings(pytester.parseconfig("-o", "gradguard_fail_on=warning"))
    assert settings.fail_on is Severity.WARNING
    settings = read_settings(pytester.parseconfig("--gradguard-fail-on=error"))
    assert settings.fail_on is Severity.ERROR


@pytest.mark.parametrize(
    ("table", "part"),
    [
        ('ignore = ["GG999"]', "ignore: unknown code 'GG999'"),
        (
            'per-file-ignores = {"a.py" = ["GG999"]}',
            "per-file-ignores.a.py: unknown code 'GG999'",
        ),
        ('fail-on = "info"', "fail-on must be one of error, warning, never, not 'info'"),
        (
            'ignored = ["GG101"]',
            "'ignored' in [tool.gradguard], did you mean 'ignore'? (allowed: ",
        ),
    ],
)
def test_a_bad_table_is_refused_in_one_line(
    pytester: pytest.Pytester, table: str, part: str
) -> None:
    pytester.makepyprojecttoml(f"[tool.gradguard]\n{table}\n")
    pytester.makepyfile(TEST)
    assert part in refused(pytester, "--gradguard")


def test_each_help_text_is_one_line(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = pytester.runpytest_inprocess("--help").stdout.lines
    ours = [number for number, line in enumerate(lines) if re.match(r"  (--)?gradguard", line)]
    assert len(ours) == 7 + 6  # options and ini keys
    assert lines[ours[0] - 1] == "gradguard (gradients lost in parallel calls):"
    for at in ours:
        same, after = re.fullmatch(r"  \S+(?: \(\w+\):)? *(.*)", lines[at])[1], lines[at + 1 :]
        more = list(itertools.takewhile(lambda line: line.startswith(" " * 20), after))
        texts = [text for text in (same, *more) if text]
        assert len(texts) == 1, texts


def test_markers_and_fixtures_begin_with_a_sentence(pytester: pytest.Pytester) -> None:
    (marker,) = (
        line
        for line in pytester.runpytest_inprocess("--markers").stdout.lines
        if line.startswith("@pytest.mark.gradguard")
    )
    signature, _, text = marker.partition(": ")
    assert all(f"{name}=" in signature for name in ("allow", "expect", "fail_on", "reason"))
    assert re.match(r"[a-z].*\. [A-Z].*Example: gradguard\(", text)
    listed = pytester.runpytest_inprocess("--fixtures").stdout.str()
    ours = listed.partition("fixtures defined from pytest_gradguard")[2]
    for name in ("gradguard", "watch_gradients", "check_gradients"):
        first = re.search(rf"^{name} -- .*\n    (.*)\n", ours, re.M)
        assert first, listed
        assert re.fullmatch(r"[A-Z][a-z]+ .{20,}\.", first[1])
