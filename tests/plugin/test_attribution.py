"""Which findings people read as one: equal messages at one place, and a loss with its parts."""

from __future__ import annotations

import re

import pytest
from pytest_runs import Run, run_pytest

TESTS = """
import pytest
import torch
from joblib import Parallel, delayed

CUTS = {
    "encoder": lambda w: (w.detach() * torch.ones(2, requires_grad=True)).sum(),
    "decoder": lambda w: torch.ones(2, requires_grad=True).sum(),
    "head": lambda w: torch.ones(2, requires_grad=True).sum(),
}


def add(tensor, number):
    return tensor + number


@pytest.mark.parametrize("name", CUTS)
def test_learns(name, watch_gradients):
    w = torch.ones(2, requires_grad=True)
    watch_gradients({name: w})
    CUTS[name](w).backward()


def test_all_learn(watch_gradients):
    for name in ("first", "second"):
        watch_gradients({name: torch.ones(2, requires_grad=True)})
    torch.ones(2, requires_grad=True).sum().backward()


@pytest.mark.parametrize("number", range(3))
def test_loses(number):
    x = torch.ones(3, requires_grad=True)
    tasks = [delayed(add)(x.clone(), number) for number in range(2)]
    sum(Parallel(n_jobs=2, backend="multiprocessing")(tasks)).mean().backward()
"""

COUNT = "6 errors, 2 warnings in 7 tests"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("attribution")
    (folder / "test_it.py").write_text(TESTS)
    return run_pytest(
        folder,
        *("--gradguard", "--gradguard-report=report.json", "--gradguard-html=page.html"),
        "--gradguard-annotate=always",
    )


@pytest.fixture
def page(run: Run) -> str:
    return (run.folder / "page.html").read_text()


def test_each_cause_is_one_annotation(run: Run) -> None:
    annotations = re.findall(
        r"^::(\w+) title=gradguard (GG\d+) .*?::.*? GG\d+ (.*)", run.text, re.M
    )
    named = [re.match(r"no gradient for `(\w+)`", text) for _, _, text in annotations]
    assert sorted(found[1] for found in named if found) == [
        *("decoder", "encoder", "first", "head", "second")
    ]
    (lost,) = [(kind, code, text) for kind, code, text in annotations if code != "GG104"]
    assert lost[:2] == ("error", "GG103")
    assert re.search(r"%0Asent: GG101 at line \d+: `x.clone\(\)`", lost[2])
    assert re.search(r"%0Areturned: GG102 at line \d+: the result of `add`", lost[2])
    assert ".detach()" not in lost[2]


def test_each_cause_is_one_entry_of_the_page(page: str) -> None:
    messages = re.findall(r'<p class="gg-message">(.*?)</p>', page)
    assert len(messages) == len(set(messages)) == page.count("<article") == 6
    cut = next(text for text in messages if "encoder" in text)
    assert [text for text in messages if ".detach()" in text] == [cut]


def test_terminal_title_and_filters_count_alike(run: Run, page: str) -> None:
    assert re.search(rf"^{COUNT}$", run.text, re.M)
    assert f"<title>gradguard: {COUNT}</title>" in page
    severities = re.findall(r"> (\w+) \((\d+)\)</label>", page)
    assert severities == [("error", "6"), ("warning", "2"), ("info", "0")]
    codes = re.findall(r'<option value="GG\d+">(GG\d+) \S+ \((\d+)\)', page)
    assert codes == [("GG101", "1"), ("GG102", "1"), ("GG103", "1"), ("GG104", "5")]
    tests = dict(re.findall(r'<option value="test_it.py::(\w+).*?">.*? \((\d+)\)', page))
    assert tests == {"test_learns": "1", "test_all_learn": "2", "test_loses": "3"}


def test_json_joins_what_is_at_one_place_in_one_test(run: Run) -> None:
    entries = run.report()["findings"]
    keys = {(one["code"], str(one["location"]), one["test"]) for one in entries}
    assert len(keys) == len(entries) == 3 + 1 + 9
    (joint,) = (one for one in entries if one["test"] == "test_it.py::test_all_learn")
    assert joint["count"] == 2
    named = [re.match(r"no gradient for `(\w+)`", text) for text in joint["details"]["messages"]]
    assert [found[1] for found in named if found] == ["first", "second"]
    assert [one for one in entries if "messages" in one["details"]] == [joint]
