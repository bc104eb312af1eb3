"""The page of findings: what is in it, and that whatever a program is called stays text."""

from __future__ import annotations

import base64
import hashlib
import html
import os
import platform
import re
import sys
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import joblib
import pytest

from pytest_gradguard.findings import (
    Edit,
    Finding,
    Location,
    Reference,
    Repair,
    Severity,
    TraceStep,
)
from pytest_gradguard.reports.file import write_page
from pytest_gradguard.reports.page import answer, fragment, headline, page
from pytest_gradguard.reports.target import TargetError
from pytest_gradguard.source_repairs import with_repairs
from pytest_gradguard.tallies import Tally

HOSTILE = "</script></style><img src=x onerror=alert(1)>\"'`&amp;\u202e\x1b[31m\x00"

PROGRAM = """\
def add(tensor, number):
    return tensor + number


def step(x):
\tout = Parallel(2)(delayed(add)(x.clone(), k) for k in range(2))
\tloss = sum(out).mean()
\tloss.backward()
"""


def tensor(name: str, way: str, history: str | None = "AddBackward0") -> dict[str, Any]:
    return {
        "name": name,
        "object": name,
        "direction": way,
        "function": "add",
        "parameter": None,
        "history": history,
        "type": "Tensor",
        "shape": [3, 4],
        "dtype": "float32",
        "device": "cpu",
    }


def loss(path: str = "a.py", name: str = "x", test: str | None = None) -> list[Finding]:
    """A gradient that is lost, and what was sent and came back."""
    place = Location(path, 8, 2, 8, 17, "step")
    explains = (Reference("GG103", path, 8, 2),)
    sent = Finding(
        "GG101",
        "grad-tensor-to-worker",
        Severity.WARNING,
        "runtime",
        f"`{name}` is pickled.",
        Location(path, 6, 8),
        test=test,
        details={"backend": "loky", "tensors": [tensor(f"`{name}.clone()`", "argument")]},
        explains=explains,
    )
    lost = Finding(
        "GG103",
        "backward-through-worker-result",
        Severity.ERROR,
        "runtime",
        f"This backward stops at 2 results of `add`: `{name}` has no gradient.",
        place,
        fix="Use `backend='threading'`.",
        trace=(
            TraceStep(path, 6, "the tasks go to loky workers", lane="parent"),
            TraceStep(path, 1, "the result gets its graph in `add`", lane="worker"),
        ),
        test=test,
        details={
            "backend": "loky",
            "results": 2,
            "tensors": [tensor("the result of `add`", "result")],
            "without_gradient": [name],
            "partial_gradient": [],
        },
    )
    return [sent, lost]


def repaired(finding: Finding) -> Finding:
    """`finding` with a repair in line 8 of ``a.py``."""
    edit = Edit("a.py", 8, 2, 8, 6, "total")
    return Finding(**{**vars(finding), "edits": Repair("unsafe", "Sum it first", (edit,))})


def assert_in_order(text: str, parts: Iterable[str]) -> None:
    """Check that `parts` stand in `text` one after the other."""
    places = [text.index(part) for part in parts]
    assert places == sorted(places)


class Reader(HTMLParser):
    """The elements of a page, and the text of each that matters."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def classes(self) -> list[str]:
        return [name for _, attrs in self.elements for name in (attrs.get("class") or "").split()]


def plain(text: str) -> str:
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", "", text)))


@pytest.fixture
def program(tmp_path: Path) -> str:
    (tmp_path / "a.py").write_text(PROGRAM)
    return str(tmp_path)


def test_a_loss_is_drawn_in_lanes(program: str) -> None:
    text = page(loss(), base=program)
    assert [one for one in Reader(text).classes() if one in ("gg-event", "gg-crossing")] == [
        "gg-event",  # the call
        "gg-crossing",  # what is sent
        "gg-event",  # the task
        "gg-crossing",  # what comes back
        "gg-event",  # the backward pass
        "gg-event",  # what has no gradient
    ]
    figure = plain(text.partition('<figure class="gg-lanes">')[2].partition("</figure>")[0])
    told = [
        "your program",
        "loky workers",
        "Parallel(2)(delayed(add)",
        "a.py:6",
        "x.clone() Tensor of shape [3, 4], float32",
        "a copy arrives, without its history (AddBackward0)",
        "the result gets its graph in add",
        "the result of add Tensor of shape [3, 4], float32",
        "the graph is cut here: it stays in the worker (AddBackward0)",
        "loss.backward()",
        "the gradient flows back to this point",
        "No gradientx",
    ]
    assert_in_order(figure, told)


def test_source_is_that_of_now_with_the_place_marked(program: str) -> None:
    page(loss(), base=program)
    changed = PROGRAM.replace("loss.backward()", "loss.backward(x)")
    Path(program, "a.py").write_text(changed)
    text = page(loss(), base=program)
    assert '<span class="gg-number">8</span>    <mark>loss.backward(x</mark>)' in text
    numbers = re.findall(r'gg-number">(\d+)<', text)
    assert numbers == [str(n) for n in range(1, 9)]
    Path(program, "a.py").unlink()
    assert "gg-number" not in Reader(page(loss(), base=program)).classes()


def test_what_is_wrong_comes_first_and_the_source_last(program: str) -> None:
    findings = [loss()[0], repaired(loss()[1])]
    for text in (page(findings, base=program), fragment(findings)):
        order = (
            "<code>x</code> gets no gradient: a backward pass in the parent flows",
            "This backward stops at 2 results of",
            "How to fix it.",
            "Sum it first",
            '<figure class="gg-lanes">',
            '<details class="gg-fold"><summary>Source and what explains it',
            "is pickled.",
        )
        assert_in_order(text, order)


@pytest.mark.parametrize(
    ("details", "said"),
    [
        ({"without_gradient": ["a", "b", "c"]}, "`a` and 2 more get no gradient: a backward"),
        ({"without_gradient": ["1 of `a`"]}, "1 of `a` gets no gradient: a backward"),
        ({"partial_gradient": ["a"]}, "`a` gets only part of its gradient: a backward"),
        ({"partial_gradient": ["a", "b"]}, "`a` and 1 more get only part of their gradients: a"),
        ({"without_gradient": [], "backend": "loky"}, "A backward pass in the parent flows"),
    ],
)
def test_the_headline_says_what_lacks_a_gradient(details: dict[str, Any], said: str) -> None:
    lost = loss()[1]
    assert headline(Finding(**{**vars(lost), "details": details})).startswith(said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["/bin/gradguard", "run", "a b.py"], "gradguard run 'a b.py'"),
        (["-m", "pytest", "-q"], "python -m pytest -q"),
    ],
)
def test_the_run_is_named(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["/usr/bin/python", *words])
    monkeypatch.setitem(sys.modules, "joblib", joblib)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    write_page(tmp_path / "page.html", loss())
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    about = plain(text.partition('<p class="about">')[2].partition("</p>")[0])
    command, date, versions = about.split(" · ")
    assert command == said
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d", date)
    assert versions.startswith(f"Python {platform.python_version()}")
    assert f"joblib {joblib.__version__}, " in versions
    assert f"pytest {pytest.__version__}" in versions
    assert "torch" not in versions  # it is installed, and the program has not used it


def test_what_was_watched_is_a_tree() -> None:
    watched = {"body.0.weight": "missing", "body.0.bias": "allowed", "head.weight": "arrived"}
    finding = Finding(
        "GG104",
        "missing-gradient",
        Severity.ERROR,
        "runtime",
        "no gradient for `body.0.weight`.",
        Location("a.py", 8),
        details={"watched": watched, "objects": ["body.0.weight"], "backend": None},
    )
    text = page([finding])
    tree = text.partition('<section class="gg-tree"')[2].partition("</section>")[0]
    told = plain(tree)
    assert "1 of 3 watched tensors" in told
    assert "body 1 of 2 without a gradient" in told
    assert "✕ weight no gradient" in told
    assert "– bias none expected" in told
    assert "head all 1 receive a gradient" in told
    assert "gg-lanes" not in Reader(text).classes()
    opened = re.findall(r"<details( open)?><summary><code>(\w+)</code>", tree)
    assert opened == [(" open", "body"), (" open", "0"), ("", "head")]


def test_a_repair_is_a_diff(program: str) -> None:
    text = page([repaired(loss()[1])], base=program)
    assert "<del>-     loss.backward()" in text
    assert "<ins>+     total.backward()" in text
    assert "Sum it first (unsafe)" in text


def test_what_the_guard_found_has_the_repair_that_the_linter_has(program: str) -> None:
    imports = "import torch\nfrom joblib import Parallel, delayed\n\n\n"
    Path(program, "a.py").write_text(
        imports + PROGRAM + "\n\nstep(torch.ones(2, requires_grad=True))\n"
    )
    lost = loss()[1]
    here, elsewhere, gone = (
        Finding(**{**vars(lost), "location": Location(path, line, 2, line, 17, "step")})
        for path, line in (("a.py", 12), ("a.py", 11), ("gone.py", 12))
    )
    found = with_repairs([here, elsewhere, gone], program)
    assert found[1:] == [elsewhere, gone]
    assert found[0].edits is not None
    assert not found[0].edits.is_safe
    text = page(found[:1], base=program)
    assert re.search(r"<del>- .*Parallel\(2\)\(", text)
    assert re.search(r"<ins>\+ .*Parallel\(2, backend=&#34;threading&#34;\)\(", text)
    assert os.listdir(program) == ["a.py"]


def test_calls_are_a_table() -> None:
    text = page(
        [],
        [
            Tally(Location("a.py", 6), "loky", 1, 20, 7060, 2.351),
            Tally(Location("b.py", 7), "threading", 3, 5),
        ],
    )
    rows = re.findall(r"<tr><th scope=\"row\">(.*?)</tr>", text)
    cells = [re.split(r"</t[hd]>(?:<td>)?", row)[:6] for row in rows]
    assert cells == [
        ["a.py:6", "loky", "1", "20", "6.9 KiB", "2.35 s"],
        ["b.py:7", "threading", "3", "5", "–", "–"],
    ]
    assert "no gradient was lost, as far as gradguard saw" in text


def test_a_page_loads_nothing_and_runs_its_own_script_alone(program: str) -> None:
    text = page(loss(), [Tally(Location("a.py", 6), "loky", 1, 20)], base=program)
    policy = Reader(text)
    (rules,) = [
        attrs["content"] or ""
        for tag, attrs in policy.elements
        if tag == "meta" and attrs.get("http-equiv") == "Content-Security-Policy"
    ]
    assert rules.startswith("default-src 'none';")
    for element in ("style", "script"):
        (inline,) = re.findall(rf"<{element}>(.*?)</{element}>", text, re.S)
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert f"{element}-src 'sha256-{digest}'" in rules
    for tag, attrs in policy.elements:
        assert tag not in ("link", "img", "iframe", "object", "base"), tag
        assert not {"src", "style"} & attrs.keys()
        assert not any(name.startswith("on") for name in attrs)
        assert tag == "a" or "href" not in attrs


def test_every_text_of_the_users_stays_text(tmp_path: Path) -> None:
    source = f"loss = '{HOSTILE}'\n" * 9
    name = "<b>a.py"
    (tmp_path / name).write_text(source)
    calm, hostile = (
        page(
            [
                Finding(**{**vars(one), "details": {**one.details, "backend": text}})
                for one in loss(name, text, test=f"test_it.py::test[{text}]")
            ],
            [Tally(Location(text, 1, function=text), text)],
            base=str(tmp_path),
            guarded=text,
        )
        for text in ("calm", HOSTILE)
    )
    tags, expected = (
        [tag for tag, _ in Reader(text).elements if tag != "code"] for text in (hostile, calm)
    )
    assert tags == expected
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", hostile)
    assert "<img" not in hostile
    assert "<b>a.py" not in hostile
    embedded = fragment(loss(name, HOSTILE)) + answer(HOSTILE, HOSTILE, [(HOSTILE, HOSTILE)], "")
    assert "<img" not in embedded
    assert "onerror=alert(1)&gt;" in embedded


def test_a_page_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "page.html"
    write_page(target, loss())
    before = target.read_bytes()
    assert before.endswith(b"</html>")
    broken = Finding(**{**vars(loss()[1]), "details": {"watched": "no mapping"}})
    with pytest.raises(TargetError, match="the page could not be made"):
        write_page(target, [broken])
    assert target.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    with pytest.raises(TargetError, match="there is no folder"):
        write_page(tmp_path / "none" / "page.html", loss())
