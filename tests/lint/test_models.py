"""What libraries do is data: one file for a new one, a table of the configuration for one's own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from gradguard_lint.models.rows import libraries, registry
from gradguard_lint.models.transfers.table import TRANSFERS

MADE_UP = '''\
"""A library that nobody has."""

from gradguard_lint.models.rows import Library, Row

LIBRARY = Library(
    tops=("fleet",),
    rows=(
        Row("fleet.Crew", "pool", methods=frozenset({"sail", "row"})),
        Row("fleet.hand", "task"),
        Row("fleet.Fleet", "parallel"),
    ),
)
'''
STUB = '''\
"""A pool that nobody has."""

import multiprocessing

from gradguard_lint.models.primitives import each, hand_out, task


class Crew(multiprocessing.BasePool):
    _start = "spawn"
    _library = "fleet"
    _torch_pickles = False

    def sail(self, function, items):
        return hand_out(self, each(function, items))

    def row(self, function, *args):
        return hand_out(self, task(function, *args), "future")
'''
USES_IT = """\
import torch
from fleet import Crew, Fleet, hand


def work(k):
    return torch.ones(3).cuda().sum().item() * k  # GG201


@hand
def other(k):
    return torch.zeros(3).to("cuda").sum().item() * k  # GG201


def graph(w):
    return w * 2  # GG102


with Crew() as crew:
    crew.sail(work, range(3))
    future = crew.row(graph, torch.ones(3, requires_grad=True))  # GG101
    future.result().sum().backward()  # GG103
Fleet(n_jobs=2)(other(k) for k in range(3))
"""
RUN = """\
import json, sys
import gradguard_lint.models
gradguard_lint.models.__path__.append(sys.argv[1])
from pytest_gradguard.cli import main
sys.exit(main(["lint", "--no-cache", "--output-format", "json", "program.py"]))
"""


def marks(text):
    return {
        (code, number)
        for number, line in enumerate(text.splitlines(), 1)
        for code in ("GG101", "GG102", "GG103", "GG201")
        if code in line.partition("  # ")[2]
    }


def test_a_new_library_is_its_rows_and_a_stub(project, tmp_path):
    models = tmp_path / "more models"
    models.mkdir()
    (models / "fleet.py").write_text(MADE_UP)
    stubs = tmp_path / "stubs"
    stubs.mkdir()
    (stubs / "fleet.py").write_text(STUB)
    project.write("pyproject.toml", f"[tool.gradguard]\nstubs = ['{stubs}']\n")
    project.write("program.py", USES_IT)
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(models)],
        cwd=project.root, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    found = {
        (item["code"], item["location"]["line"]) for item in json.loads(done.stdout)["findings"]
    }
    assert found == marks(USES_IT)


def test_without_it_nothing_is_known(project):
    project.write("program.py", USES_IT)
    assert project.codes() == []


LOADER = """\
from torch.utils.data import DataLoader


class Feed(DataLoader):
    def __init__(self, data, workers=4):
        super().__init__(data, num_workers=workers)
"""
USES_LOADER = """\
import torch
from fleet import Feed


class OnGpu:
    def __len__(self):
        return 8

    def __getitem__(self, k):
        return torch.ones(3).cuda() * k  # GG201


class OnGpuHere:
    def __len__(self):
        return 8

    def __getitem__(self, k):
        return torch.ones(3).cuda() * k


for batch in Feed(OnGpu()):
    print(batch)
for batch in Feed(OnGpuHere(), workers=0):
    print(batch)
"""


def test_a_stub_extends_the_loader_of_torch(project):
    project.write("program.py", USES_LOADER)
    assert project.codes() == []
    project.write("stubs/fleet.py", LOADER)
    project.write("pyproject.toml", "[tool.gradguard]\nstubs = ['stubs']\n")
    assert {(code, line) for code, _, line in project.codes()} == marks(USES_LOADER)


OWN = """\
[[tool.gradguard.models]]
name = "fleet.Crew"
does = "pool"
start = "spawn"
methods = {sail = "map", row = "submit"}

[[tool.gradguard.models]]
name = ["fleet.hand"]
does = "task"

[tool.gradguard]
parallel = ["fleet.Fleet"]
"""


def test_a_table_says_the_same(project):
    project.write("pyproject.toml", OWN)
    project.write("program.py", USES_IT)
    assert {(code, line) for code, _, line in project.codes()} == marks(USES_IT)


def test_a_table_holds_where_the_project_has_the_source_too(project):
    project.write("pyproject.toml", OWN)
    project.write("program.py", USES_IT)
    project.write(
        "fleet.py",
        "class Crew:\n    def sail(self, function, items): ...\n"
        "    def row(self, function, *args): ...\n\n\n"
        "class Fleet:\n    def __init__(self, **options): ...\n\n\n"
        "def hand(function): ...\n",
    )
    assert {(code, line) for code, _, line in project.codes()} == marks(USES_IT)


@pytest.mark.parametrize(
    "home",
    [
        "from crewlib import Crew, Fleet, hand\n",
        "from crewlib import *\n",
        "import crewlib\n\nCrew = crewlib.Crew\nFleet, hand = crewlib.Fleet, crewlib.hand\n",
        "try:\n    from crewlib import Crew, Fleet, hand\n"
        "except ImportError:\n    from othercrew import Crew, Fleet, hand\n",
    ],
)
def test_a_table_holds_where_a_module_has_it_from_what_is_not_there(project, home):
    project.write("pyproject.toml", OWN)
    project.write("program.py", USES_IT)
    project.write("fleet.py", home)
    assert {(code, line) for code, _, line in project.codes()} == marks(USES_IT)
    project.write("pyproject.toml", OWN.replace("fleet.", "other."))
    assert project.codes() == []


HOME = """\
class Crew:
    def sail(self, function, items): ...
    def row(self, function, *args): ...


class Fleet:
    def __init__(self, **options): ...


def hand(function): ...
"""


@pytest.mark.parametrize(
    "passing",
    [
        {"fleet/__init__.py": "from .inner.core import Crew, Fleet, hand\n"},
        {"fleet/__init__.py": "from fleet.inner.core import *\n"},
        {
            "fleet/__init__.py": "from .inner import Crew, Fleet, hand\n",
            "fleet/inner/__init__.py": "from .core import Crew, Fleet\nfrom .core import hand\n",
        },
    ],
)
def test_a_table_names_what_a_package_passes_on(project, passing):
    project.write("pyproject.toml", OWN)
    project.write("program.py", USES_IT)
    project.write("elsewhere.py", USES_IT.replace("fleet", "fleet.inner.core"))
    project.write("fleet/inner/core.py", HOME)
    for path, text in {"fleet/inner/__init__.py": "", **passing}.items():
        project.write(path, text)
    assert set(project.codes()) == {
        (code, path, line)
        for path in ("program.py", "elsewhere.py")
        for code, line in marks(USES_IT)
    }


def test_a_table_names_nothing_else_of_that_name(project):
    project.write("pyproject.toml", OWN)
    project.write("program.py", USES_IT.replace("fleet", "other"))
    project.write("other.py", HOME)
    project.write("fleet/__init__.py", "from .core import Crew, Fleet, hand\n")
    project.write("fleet/core.py", HOME)
    assert project.codes() == []


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ('name = "a.B"', "does is missing"),
        ('does = "pool"', "name is missing"),
        ('name = "Pool"\ndoes = "pool"', "name must be dotted"),
        ('name = "a.B"\ndoes = "magic"', "does must be one of pool, executor"),
        ('name = "a.B"\ndoes = "pool"\nstart = "soon"', "start must be one of fork, spawn"),
        ('name = "a.B"\ndoes = "pool"\nkind = "x"', "unknown key 'kind'"),
        ('name = "a.B"\ndoes = "pool"\nmethods = {go = "run"}', "methods must be a table"),
    ],
)
def test_a_table_that_is_wrong_is_named(project, table, message):
    project.write("pyproject.toml", f"[[tool.gradguard.models]]\n{table}\n")
    project.write("program.py", "x = 1\n")
    ran = project.lint()
    assert ran.status == 2
    assert "[[tool.gradguard.models]]" in ran.err
    assert message in ran.err


@pytest.mark.parametrize("key", ["delayed", "parallel"])
def test_names_of_your_own_must_be_dotted(project, key):
    project.write("pyproject.toml", f'[tool.gradguard]\n{key} = ["mine.fine", "x y"]\n')
    project.write("program.py", "x = 1\n")
    ran = project.lint()
    assert ran.status == 2
    assert f"pyproject.toml: {key} must be dotted, such as \"mylib.Pool\", not 'x y'" in ran.err


def test_each_name_stands_once_and_does_something():
    names = Counter(
        (name, row.only) for library in libraries() for row in library.rows
        for name in row.names.split()
    )  # fmt: skip
    assert [name for name, count in names.items() if count > 1] == []
    rows = [row for library in libraries() for row in library.rows]
    assert {row.does for row in rows} >= set(TRANSFERS)
    for row in rows:
        modules = {name.rpartition(".")[0] for name in row.names.split()}
        assert row.does in TRANSFERS or modules <= registry().stubs.keys(), row.names
    assert all(registry().canonical(name) == name for name, _ in names)


def test_every_start_is_known():
    for library in libraries():
        for row in library.rows:
            assert row.start in {"", *registry().starts}


def test_the_page_of_libraries_is_up_to_date():
    docs = Path(__file__).parents[2] / "docs"
    made = subprocess.run(
        [sys.executable, str(docs / "make_libraries.py")],
        capture_output=True, text=True, encoding="utf-8", timeout=120, check=True,
    ).stdout  # fmt: skip
    page = (docs / "libraries.md").read_text(encoding="utf-8")
    assert page == made, "run: python docs/make_libraries.py > docs/libraries.md"


START = """\
import multiprocessing

import torch


def work(k):
    a = torch.ones(2000, 2000) * k
    return (a @ a).sum().item()


if __name__ == "__main__":
    b = torch.ones(2000, 2000)
    print((b @ b).sum())
    with multiprocessing.Pool(2) as pool:
        print(pool.map(work, range(3)))
"""


CALLED = """\
from multiprocessing import Pool

import torch


def work(k):
    return torch.ones(3).cuda().sum().item() * k


def main():
    torch.ones(1).cuda()
    with Pool(2) as pool:
        return pool.map(work, range(3))
"""


def test_another_program_may_set_how_they_start(project):
    fork = [("GG201", "jobs.py", 7), ("GG203", "jobs.py", 13)]
    project.write("jobs.py", CALLED)
    assert project.codes() == fork
    sets = "import multiprocessing\nmultiprocessing.set_start_method('spawn')\n"
    project.write("cli.py", sets)
    assert project.codes() == fork  # a program of its own
    project.write("cli.py", sets + "from jobs import main\nhooks = {'run': main}\n")
    assert project.codes() == [("GG201", "jobs.py", 7)]  # it may call `main`
    project.write("jobs.py", CALLED + "\n\nmain()\n")  # a program of its own
    assert project.codes() == fork


def test_the_target_says_how_processes_start(project):
    project.write("program.py", START)
    hangs = [("GG303", "program.py", 15)]
    assert project.codes("--target-version", "3.12") == hangs
    assert project.codes("--target-version", "3.14") == []
    assert project.codes("--start-method", "spawn") == []
    assert project.codes("--target-version", "3.14", "--start-method", "fork") == hangs
    project.write("pyproject.toml", '[project]\nrequires-python = ">=3.14"\n')
    assert project.codes() == []
    project.write("pyproject.toml", '[project]\nrequires-python = ">=3.14"\n'
                  '[tool.gradguard]\ntarget-version = "3.11"\n')  # fmt: skip
    assert project.codes() == hangs
    ran = project.lint("--target-version", "4")
    assert ran.status == 2
    assert "'4'" in ran.err
