"""`gradguard explain` and `gradguard rules`."""

from __future__ import annotations

import argparse
import json
import textwrap

import pytest

from gradguard_lint.rules import codes as rule_codes
from pytest_gradguard.cli import explain, rules
from pytest_gradguard.findings import Severity
from pytest_gradguard.pitfalls import Pitfall, catalogue, codes, get
from pytest_gradguard.runtime import CHECKS


def call(command: object, *argv: str) -> int:
    parser: argparse.ArgumentParser = command.build_parser()
    return command.run(parser.parse_args(argv))


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("code", codes())
def test_explain_prints_the_whole_entry(code, capsys):
    assert call(explain, code) == 0
    captured = capsys.readouterr()
    pitfall = get(code)
    head = captured.out.splitlines()[0]
    assert head == f"{code} {pitfall.name} ({pitfall.severity.label})"
    shown = words(captured.out)
    for text in (pitfall.title, pitfall.happens, pitfall.why, pitfall.fix):
        assert words(text) in shown
    for program in (pitfall.bad, pitfall.good):
        assert textwrap.indent(program, "    ").rstrip() in captured.out
    assert captured.err == ""


def test_explain_says_which_case_an_advice_is_for(capsys):
    call(explain, "GG202")
    lines = capsys.readouterr().out.splitlines()
    assert "copy.deepcopy(module)" in lines[lines.index("How to fix it: a module") + 1]
    assert "cupy.asnumpy(array)" in lines[lines.index("How to fix it: `cupy`") + 1]
    call(explain, "GG107")
    text = capsys.readouterr().out
    assert text.count("get_weights()") == 1
    assert "How to fix it: `tensorflow` and `keras`" in text


def test_explain_names_both_ways_to_run_under_the_guard(capsys):
    call(explain, "GG503")
    assert "\nReported at run time\n" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["gg103", "Gg103", "backward-through-worker-result", " GG103"])
def test_explain_takes_the_name_and_lower_case(text, capsys):
    assert call(explain, text) == 0
    assert capsys.readouterr().out.startswith("GG103 backward-through-worker-result (error)\n")


@pytest.mark.parametrize("text", ["GG999", "GG1", "", "backward", "GG103x"])
def test_explain_names_an_unknown_code_and_what_is_allowed(text, capsys):
    assert call(explain, text) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert repr(text) in captured.err
    assert "(allowed: " in captured.err


@pytest.mark.parametrize("columns", ["40", "60", "200"])
def test_explain_wraps_its_prose_to_the_terminal(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", columns)
    call(explain, "GG103")
    prose = capsys.readouterr().out.split("\nBad\n")[0]
    assert max(map(len, prose.splitlines()[2:])) <= min(int(columns), 88)


def test_explain_says_what_is_not_checked(capsys):
    call(explain, "GG104")
    assert "Not reported by the linter." in capsys.readouterr().out
    call(explain, "GG302")
    assert "Not reported at run time." in capsys.readouterr().out


def test_the_catalogue_promises_what_is_built():
    built = {"runtime": set(CHECKS), "lint": set(rule_codes())}
    for side, codes_there in built.items():
        promised = {p.code for p in catalogue() if getattr(p, side)}
        unlike = sorted(promised ^ codes_there)
        assert not unlike, f"`{side}` in the entry of {unlike} does not match what is built"


def test_rules_lists_every_pitfall(capsys):
    assert call(rules) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["code", "name", "severity", "lint", "runtime"]
    table = [row.split() for row in rows[: len(codes())]]
    assert table == [
        [p.code, p.name, p.severity.label, "yes" if p.lint else "no", "yes" if p.runtime else "no"]
        for p in catalogue()
    ]


def test_rules_as_json(capsys):
    assert call(rules, "--output-format", "json") == 0
    records = json.loads(capsys.readouterr().out)
    assert [record["code"] for record in records] == list(codes())
    for record in records:
        pitfall: Pitfall = get(record["code"])
        assert record["name"] == pitfall.name
        assert Severity.parse(record["severity"]) == pitfall.severity
        assert record["title"] == pitfall.title
        assert record["lint"] is (pitfall.lint is not None)
        assert record["runtime"] is (pitfall.runtime is not None)
        assert record["in_this_version"] == {"lint": record["lint"], "runtime": record["runtime"]}


def test_rules_refuses_another_format(capsys):
    with pytest.raises(SystemExit) as refused:
        call(rules, "--output-format", "xml")
    assert refused.value.code == 2
    said = capsys.readouterr().err
    assert "xml" in said
    assert "text" in said
    assert "json" in said
