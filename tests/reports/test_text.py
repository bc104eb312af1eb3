"""How findings are written: width, markup, and one block for one loss."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest

from pytest_gradguard.findings import Finding, Location, Reference, Severity, TraceStep, report
from pytest_gradguard.messages import GradGuardError
from pytest_gradguard.reports.overview import count_groups, folded, group_by_place, linked
from pytest_gradguard.reports.text import blocks, plain, render, style_for, width_of


def finding(code: str = "GG103", line: int = 21, **others: Any) -> Finding:
    about: dict[str, Any] = {
        "code": code,
        "name": {"GG101": "grad-tensor-to-worker", "GG102": "graph-returned-from-worker"}.get(
            code, "backward-through-worker-result"
        ),
        "severity": Severity.ERROR if code == "GG103" else Severity.WARNING,
        "origin": "runtime",
        "message": "What happens is told in words of which none is ever broken in two. " * 2,
        "fix": "Do something else.",
        "location": Location("a.py", line, 5, line, 20, "step"),
        **others,
    }
    return Finding(**about)


LOSS = finding(trace=(TraceStep("a.py", 20, "the tasks go to loky workers"),))
SENT = finding(
    "GG101", 20, explains=(Reference("GG103", "a.py", 21, 5),), details={"subject": "`x.clone()`"}
)
RETURNED = finding("GG102", 20, explains=(Reference("GG103", "a.py", 21, 5),))


def source(path: str, line: int) -> str:
    return "    " + "first_name = second_name(third_name); " * 8 + "\n"


@pytest.mark.parametrize("width", [44, 60, 80, 120, 1000])
def test_lines_fit_and_no_word_is_broken(width: int) -> None:
    lines = list(blocks([LOSS, SENT], source_line=source, width=width))
    assert max(map(len, lines)) <= width
    assert set(LOSS.message.split()) <= set(" ".join(lines).split())
    if width == 1000:  # prose is not read so wide
        assert max(len(line) for line in lines if "first_name" not in line) <= 120


def test_without_a_known_width_source_is_shown_whole() -> None:
    lines = list(render(LOSS, source_line=source))
    assert any(source("", 0).rstrip() in line for line in lines)


@pytest.mark.parametrize(("start", "stop"), [(5, 15), (120, 140), (280, 300)])
def test_the_reported_part_of_a_long_line_is_what_is_shown(start: int, stop: int) -> None:
    text = source("", 1).rstrip("\n")
    where = Location("a.py", 7, start, 7, stop)
    lines = list(render(finding(location=where), source_line=source, width=60))
    shown, marks = lines[3], lines[4]
    part = shown[marks.index("^") : marks.rindex("^") + 1]
    assert part == text[start - 1 : stop - 1]
    assert "…" in shown


def test_one_loss_is_one_block() -> None:
    lines = list(blocks([SENT, LOSS, RETURNED]))
    assert [line for line in lines if re.match(r"\w+\[", line)] == [
        "error[GG103] backward-through-worker-result"
    ]
    told = [line.strip() for line in lines if line.strip().startswith("- ")]
    assert told == ["- sent: GG101 at line 20: `x.clone()`", "- returned: GG102 at line 20"]
    assert str(GradGuardError([SENT, LOSS, RETURNED])) == "\n".join(lines)


def test_alone_it_is_a_block() -> None:
    elsewhere = finding("GG101", 30)
    heads = [f.code for f, because in folded([LOSS, elsewhere, SENT]) if not because]
    assert heads == ["GG101"]
    assert [f.code for f, _ in folded([SENT, RETURNED])] == ["GG101", "GG102"]


def test_the_json_keeps_every_finding_and_refers_to_the_loss() -> None:
    entries = report([LOSS, SENT, RETURNED])["findings"]
    assert [entry["code"] for entry in entries] == ["GG103", "GG101", "GG102"]
    reference = {"code": "GG103", "path": "a.py", "line": 21, "column": 5}
    assert entries[1]["details"]["explains"] == entries[2]["details"]["explains"] == [reference]
    assert "explains" not in entries[0]["details"]


def test_the_linters_findings_are_tied_by_the_chain_of_the_loss() -> None:
    loss = finding(origin="lint", trace=(TraceStep("a.py", 15, "`add` returns a tensor"),))
    returned = finding("GG102", 15, origin="lint")
    other = finding("GG102", 16, origin="lint")
    assert [bool(f.explains) for f in linked([loss, returned, other])] == [False, True, False]
    lines = list(blocks([loss, returned]))
    assert any("a.py:15: `add` returns a tensor" in line for line in lines)


def test_what_is_sent_to_the_very_call_is_tied_to_its_loss() -> None:
    loss = finding("GG105", 20, severity=Severity.ERROR)
    (_, sent, other) = linked([loss, finding("GG101", 20), finding("GG101", 22)])
    assert (sent.explains, other.explains) == ((loss.reference,), ())
    unconfirmed = finding("GG105", 20, severity=Severity.INFO)
    assert len(folded([unconfirmed, finding("GG101", 20)])) == 2


def test_a_loss_in_one_test_hides_nothing_of_another() -> None:
    of = [
        finding("GG101", 20, test="t::a", explains=SENT.explains),
        finding("GG103", 21, test="t::a"),
        finding("GG101", 20, test="t::b"),
    ]
    (loss, sent) = group_by_place(of)
    assert (loss.tests, [one.code for one in loss.because]) == (("t::a",), ["GG101"])
    assert (sent.finding.code, sent.tests) == ("GG101", ("t::b",))


def test_equal_messages_at_one_place_are_joined_and_no_others() -> None:
    of = [
        finding("GG104", 20, test=f"t::{number}", message=f"no gradient for `{name}`")
        for number, name in enumerate(["a", "b", "a"])
    ]
    groups = group_by_place(of)
    assert [(group.finding.message[-2], group.tests) for group in groups] == [
        ("a", ("t::0", "t::2")),
        ("b", ("t::1",)),
    ]
    assert count_groups(groups, Severity.WARNING) == "2 warnings in 3 tests"
    hidden = [*of, finding("GG107", 21, severity=Severity.INFO, test="t::3")]
    counted = count_groups(group_by_place(hidden), Severity.WARNING, show_hidden="-v")
    assert counted == "2 warnings in 3 tests; 1 info finding not shown (-v shows it)"


def test_what_a_terminal_would_obey_is_shown() -> None:
    where = Location("a\x1b[31m\n.py", 3, 5, 3, 8, "f\x07")
    shown = "\n".join(
        render(
            finding(location=where, message="by\x1b[2J \u202e"),
            source_line=lambda *_: "x = \x1b]0;title\x07\n",
        )
    )
    assert r"a\x1b[31m\n.py:3:5 in f\x07" in shown
    assert r"by\x1b[2J \u202e" in shown
    assert r"x = \x1b]0;title\x07" in shown
    assert all(one == "\n" or one.isprintable() for one in shown)


def test_html_is_escaped() -> None:
    assert "<b>" not in finding(message="<b>")._repr_html_()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environment", "terminal", "choice", "coloured"),
    [
        ({}, True, "auto", True),
        ({}, False, "auto", False),
        ({"TERM": "dumb"}, True, "auto", False),
        ({"NO_COLOR": "1"}, True, "auto", False),
        ({"FORCE_COLOR": "1"}, False, "auto", True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, "auto", False),
        ({"NO_COLOR": "1"}, False, "always", True),
        ({"FORCE_COLOR": "1"}, True, "never", False),
    ],
)
def test_colour(
    environment: dict[str, str],
    terminal: bool,
    choice: str,
    coloured: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    style = style_for(Terminal() if terminal else io.StringIO(), choice)
    assert (style is not plain) is coloured
    assert ("\x1b[" in style("error", "x")) is coloured
    assert style("text", "x") == "x"


def test_the_width_of_what_is_no_terminal_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert width_of(io.StringIO()) is width_of(Terminal()) is width_of(None) is None
    monkeypatch.setenv("COLUMNS", "57")
    assert width_of(io.StringIO()) == 57
    assert width_of(None) is None
