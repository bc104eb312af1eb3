"""What counts as a difference between two runs of a suite, and what the observer writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from compare import DIED, Difference, Result, differences, forget_last, read
from suites import Known, suites

PASSED, FAILED = Result("passed"), Result("failed", "ValueError")
ONE_FILE = Result("passed", left=(("files", 1),))


def test_equal_runs_have_no_difference() -> None:
    assert differences({"a": [PASSED], "b": [FAILED]}, {"a": [PASSED], "b": [FAILED]}) == ([], [])


@pytest.mark.parametrize(
    ("off", "on", "expected"),
    [
        (PASSED, FAILED, ("outcome", "passed", "failed (ValueError)")),
        (
            FAILED,
            Result("failed", "KeyError"),
            ("outcome", "failed (ValueError)", "failed (KeyError)"),
        ),
        (PASSED, Result(DIED), ("outcome", "passed", "died")),
        (PASSED, ONE_FILE, ("files", "0", "1")),
    ],
)
def test_what_differs(off: Result, on: Result, expected: tuple[str, str, str]) -> None:
    kind, without, with_guard = expected
    always, sometimes = differences({"a": [off]}, {"a": [on]})
    assert always == [Difference(kind, "a", without, with_guard)]
    assert sometimes == []


def test_less_left_behind_is_no_difference() -> None:
    assert differences({"a": [ONE_FILE]}, {"a": [PASSED]}) == ([], [])


def test_a_test_that_did_not_run_differs() -> None:
    always, _ = differences({"a": [PASSED]}, {})
    assert [str(one) for one in always] == [
        "a: outcome: ran without the guard, did not run with it"
    ]


@pytest.mark.parametrize("second", [FAILED, ONE_FILE])
def test_what_comes_and_goes_is_unsteady(second: Result) -> None:
    always, sometimes = differences({"a": [PASSED, PASSED]}, {"a": [second, PASSED]})
    assert always == []
    assert len(sometimes) == 1


@pytest.mark.parametrize("odd", [FAILED, ONE_FILE])
def test_once_more_with_the_guard_and_never_without_it_is_a_difference(odd: Result) -> None:
    always, sometimes = differences({"a": [PASSED] * 4}, {"a": [odd, PASSED, PASSED, odd]})
    assert (len(always), len(sometimes)) == (1, 0)
    always, sometimes = differences({"a": [PASSED, odd] * 2}, {"a": [odd] * 4})
    assert (len(always), len(sometimes)) == (0, 1)


def test_a_known_difference_has_its_reason() -> None:
    known = [Known("files", "x*", "of x"), Known("outcome", "a[[]*", "of a")]
    one = Difference("outcome", "a[1]", "passed", "failed")
    assert one.explained(known).why == "of a"
    assert Difference("threads", "a[1]", "0", "1").explained(known).why == ""


def test_every_listed_suite_can_be_read() -> None:
    names = [suite.name for suite in suites()]
    assert len(names) == len(set(names)) > 5
    assert all(one.why for suite in suites() for one in suite.known)


def test_observer_tells_what_a_test_left_and_goes_on_after_one_that_died(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(
        """
        import os, tempfile, threading
        import pytest

        def test_first():
            handle, _ = tempfile.mkstemp()

        def test_kills():
            os._exit(3)

        def test_thread():
            threading.Thread(target=threading.Event().wait, daemon=True).start()

        @pytest.mark.xfail
        def test_fails():
            raise KeyError
        """
    )
    folder = pytester.mkdir("temporary")
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=":")
    for _ in range(2):
        pytester.runpytest_subprocess("-p", "observer", "--observe", "lines.jsonl")
    results = read(pytester.path / "lines.jsonl")
    assert {name.partition("::")[2]: result for name, result in results.items()} == {
        "test_first": Result("passed", left=(("descriptors", 1), ("files", 1))),
        "test_kills": Result(DIED),
        "test_thread": Result("passed", left=(("threads", 1),)),
        "test_fails": Result("xfailed"),
    }
    begun = [json.loads(line)["test"] for line in (pytester.path / "lines.jsonl").open()]
    assert len(begun) == 7


def test_a_run_that_was_stopped_goes_on_with_the_test_it_was_at(tmp_path: Path) -> None:
    file = tmp_path / "tests.jsonl"
    end = {"test": "b", "event": "end", "outcome": "passed", "why": "", "left": {}}
    events = [{"test": "a", "event": "begin"}, {"test": "b", "event": "begin"}, end]
    for more in ([], [{"test": "c", "event": "begin"}]):
        file.write_text("".join(json.dumps(one) + "\n" for one in events + more))
        forget_last(file)
        assert read(file) == {"a": Result(DIED), "b": Result("passed")}
