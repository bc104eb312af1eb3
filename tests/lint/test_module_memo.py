"""Statements of modules are run once for all programs that find the same in what they read."""

from __future__ import annotations

import ast

import pytest

from gradguard_lint.analysis import analyse
from gradguard_lint.domain.options import Options
from gradguard_lint.engine import module_memo
from gradguard_lint.project.reader import Reader
from gradguard_lint.rules import codes

PROGRAM = """
import torch
from joblib import Parallel, delayed
from common import MODELS, Trainer, double

w = torch.ones(3, requires_grad=True)
loss = sum(Parallel(2)(delayed(double)(w) for _ in range(3)))
loss.sum().backward()
Trainer().train(w)
"""

COMMON = """
import torch
from joblib import Parallel, delayed
from registry import register, MODELS
import options

def double(x):
    return x * 2

@register("trainer")
class Trainer:
    jobs = options.JOBS
    def train(self, x):
        parts = Parallel(self.jobs)(delayed(double)(x) for _ in range(3))
        sum(parts).sum().backward()
"""

REGISTRY = """
MODELS = {}

def register(name):
    def put(cls):
        MODELS[name] = cls
        return cls
    return put
"""


@pytest.fixture
def project(tmp_path):
    """Two programs in folders of their own, and what both import."""
    (tmp_path / "pyproject.toml").write_text("")
    files = {
        "common.py": COMMON,
        "registry.py": REGISTRY,
        "options.py": "JOBS = 2\n",
        "first/program.py": PROGRAM,
        "second/program.py": PROGRAM,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def found(path, reader):
    """Where backward passes end in workers, in the program at `path` and what it imports."""
    result = analyse(str(path), path.read_bytes(), codes(), Options(), reader).result
    return {
        (raw["path"].rpartition("/")[2], raw["line"])
        for raw in result.findings
        if raw["code"] == "GG103"
    }


def statements_run(monkeypatch):
    """The statements of modules that are run from here on."""
    run = []
    record = module_memo._record

    def noted(m, frame, memo, statement):
        run.append((frame.module.name, type(statement), statement.lineno))
        record(m, frame, memo, statement)

    monkeypatch.setattr(module_memo, "_record", noted)
    return run


def test_what_modules_define_is_run_once_for_all_programs(project, monkeypatch):
    reader = Reader()
    run = statements_run(monkeypatch)
    first = found(project / "first" / "program.py", reader)
    assert ("common", ast.ClassDef, 11) in run
    once = len(run)
    second = found(project / "second" / "program.py", reader)
    assert len(run) == once
    assert {place for place, _ in first} == {"common.py", "program.py"}
    assert second == first == found(project / "second" / "program.py", Reader())


def test_a_module_that_reads_something_else_is_run_again(project, monkeypatch):
    (project / "second" / "options.py").write_text("JOBS = 1\n")
    reader = Reader()
    first = found(project / "first" / "program.py", reader)
    run = statements_run(monkeypatch)
    second = found(project / "second" / "program.py", reader)
    assert ("common", ast.ClassDef, 11) in run
    assert ("common", ast.FunctionDef, 7) not in run
    assert {place for place, _ in first} == {"common.py", "program.py"}
    assert {place for place, _ in second} == {"program.py"}  # one job is no worker
    assert second == found(project / "second" / "program.py", Reader())


def test_what_a_program_changes_in_a_module_is_its_own(project):
    changing = "import options\noptions.JOBS = 1\n" + PROGRAM
    (project / "first" / "program.py").write_text(changing)
    reader = Reader()
    first = found(project / "first" / "program.py", reader)
    assert first == found(project / "first" / "program.py", Reader())
    second = found(project / "second" / "program.py", reader)
    assert second == found(project / "second" / "program.py", Reader())
    assert {place for place, _ in second} == {"common.py", "program.py"}


def test_an_effect_of_a_module_is_one_of_each_program(project):
    text = COMMON + "\nwarm = sum(Parallel(2)(delayed(double)(torch.ones(3)) for _ in range(2)))\n"
    text += "seen = torch.ones(3, requires_grad=True)\n"
    text += "sum(Parallel(2)(delayed(double)(seen) for _ in range(2))).sum().backward()\n"
    (project / "common.py").write_text(text)
    reader = Reader()
    line = len(text.splitlines())
    for folder in ("first", "second"):
        path = project / folder / "program.py"
        assert {at for place, at in found(path, reader) if place == "common.py"} >= {line}


def test_a_class_with_many_names_and_ways_keeps_all_of_them(project):
    names = "".join(f"    size_{number} = {number}\n" for number in range(150))
    ways = "    if torch.cuda.is_available():\n        most = 2\n"
    text = COMMON + "\nclass Sizes:\n" + names + ways
    (project / "common.py").write_text(text)
    using = PROGRAM.replace("Trainer, double", "Sizes, double").replace(
        "Trainer().train(w)", "few = Sizes.size_1\nmany = Sizes.size_149\nother = Sizes.most"
    )
    for name, count in (("first", "few"), ("second", "many")):
        (project / name / "program.py").write_text(
            using + f"\nParallel({count})(delayed(double)(w) for _ in range(3))[0].backward()\n"
        )
    reader = Reader()
    first = found(project / "first" / "program.py", reader)
    second = found(project / "second" / "program.py", reader)
    assert first
    assert len(second) == len(first) + 1  # one job is no worker
