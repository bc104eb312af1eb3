"""The examples of pages that are no whole programs do what the pages say of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from children import run_python

DOCS = Path(__file__).parents[2] / "docs"


def example(page: str, marked: str) -> str:
    """The block of Python in a page that has `marked` in it."""
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (found,) = (block for block in blocks if marked in block)
    return found


def linted(folder: Path, program: str) -> set[tuple[int, str]]:
    (folder / "train.py").write_text(program, encoding="utf-8")
    arguments = ("lint", "--output-format", "json", "train.py")
    done = run_python("-m", "pytest_gradguard", *arguments, folder=folder)
    found = json.loads(done.stdout)["findings"]
    return {(finding["location"]["line"], finding["code"]) for finding in found}


def test_each_comment_that_silences_has_something_to_silence(tmp_path: Path) -> None:
    program = example("lint.md", "# noqa: ")
    comments = {
        number: re.findall(r"GG\d+", line.split("#")[1])
        for number, line in enumerate(program.splitlines(), 1)
        if "#" in line
    }
    assert len(comments) == 3
    assert linted(tmp_path, program) == set()
    shown = linted(tmp_path, re.sub(r"  #.*", "", program))
    assert {line for line, _ in shown} == set(comments)
    for line, selectors in comments.items():
        for selector in selectors:
            assert any(at == line and code.startswith(selector) for at, code in shown), selector


POOLS = """\
import pickle
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import Pool as Processes


def _run(data):
    function, arguments = pickle.loads(data)
    return pickle.dumps(function(*arguments))


class Pool:
    def __init__(self):
        self.threads = ThreadPoolExecutor(2)
        self.processes = Processes(2)

    def give(self, priority, function, arguments):
        data = pickle.dumps((function, arguments))
        return self.threads.submit(lambda: pickle.loads(self.processes.apply(_run, (data,))))
"""
PROGRAM = """\
import mine
import torch
from home_made_pools import Pool


def loss(weight, factor):
    return (weight * factor).sum()


if __name__ == "__main__":
    weight = torch.ones(3, requires_grad=True)
    pool = Pool()
    futures = [pool.give(1, loss, (weight, factor)) for factor in (1.0, 2.0)]
    sum(future.result() for future in futures).backward()
"""


def test_a_wrapper_of_ones_own_shows_the_programs_lines(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    integration = example("integrations.md", "belongs_to(")
    for name, text in (
        ("mine.py", integration),
        ("home_made_pools.py", POOLS),
        ("main.py", PROGRAM),
    ):
        (tmp_path / name).write_text(text, encoding="utf-8")
    arguments = ("run", "--report", "report.json", "main.py")
    done = run_python("-m", "pytest_gradguard", *arguments, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "report.json").read_text())["findings"]
    places = {(one["code"], one["location"]["path"], one["location"]["line"]) for one in found}
    assert places == {
        ("GG101", "main.py", 13),
        ("GG102", "main.py", 13),
        ("GG103", "main.py", 14),
    }


def test_the_test_of_the_first_steps_passes_and_asks_for_gradients(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    program = example("start.md", "def test_")
    name = re.match(r"# (\S+)\n", program)
    assert name
    for text, status in ((program, 0), (program.replace(".sum()", ".sum().detach()"), 1)):
        (tmp_path / name[1]).write_text(text, encoding="utf-8")
        done = run_python(
            "-m", "pytest", "-p", "no:cacheprovider", "-q", "--gradguard", folder=tmp_path
        )
        assert done.returncode == status, done.stdout + done.stderr
