"""Functions that other files call: how they are called is known from there."""

from __future__ import annotations

import pytest

LIB = """\
import torch
from joblib import Parallel, delayed


def work(net, x):
    net(x).sum().backward()


def train(net, xs, n_jobs):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    Parallel(n_jobs=n_jobs)(delayed(work)(net, x) for x in xs)
    optimizer.step()
"""
TRAINER = """

class Trainer:
    def __init__(self, net, n_jobs=2):
        self.net, self.n_jobs = net, n_jobs

    def fit(self, xs):
        train(self.net, xs, self.n_jobs)
"""
MAIN = """\
import torch
from lib import {0}

net, xs = torch.nn.Linear(2, 1), [torch.ones(2)] * 3
{1}
"""
LOST = [("GG106", "lib.py", 6)]


def main(imported, *lines):
    return MAIN.format(imported, "\n".join(lines))


@pytest.mark.parametrize(
    ("program", "found"),
    [
        (main("train", "train(net, xs, 1)"), []),
        (main("train", "train(net, xs, 4)"), LOST),
        (main("train", "train(net, xs, int(input()))"), LOST),
        (main("train", "train(net, xs, 1)", "train(net, xs, 2)"), LOST),
        (main("Trainer", "Trainer(net, 1).fit(xs)"), []),
        (main("Trainer", "Trainer(net).fit(xs)"), LOST),
        (main("train", "def run(n):", "    train(net, xs, 1)"), []),
        (main("train", "def run(n):", "    train(net, xs, n)"), LOST),
        (main("train", "print(train)"), LOST),
        (main("train", "if input():", "    raise SystemExit", "train(net, xs, 1)"), []),
    ],
)
def test_the_call_in_another_file_says_how_a_function_is_run(project, program, found):
    project.write("lib.py", LIB + TRAINER * ("Trainer" in program))
    project.write("main.py", program)
    assert project.codes() == found
    assert project.codes("--no-cache", "--jobs", "2") == found


def test_without_the_file_that_calls_it_nobody_knows(project):
    project.write("lib.py", LIB)
    project.write("main.py", main("train", "train(net, xs, 1)"))
    assert project.codes() == []
    assert project.lint("lib.py", json_output=True).codes == LOST
    assert project.codes() == []  # nor does what is kept depend on what was checked before


def test_what_a_changed_caller_says(project):
    project.write("lib.py", LIB)
    program = project.write("main.py", main("train", "train(net, xs, 1)"))
    assert project.codes() == []
    program.write_text(program.read_text().replace("1)", "2)"))
    assert project.codes() == LOST
    program.unlink()
    assert project.codes() == LOST


GUARDED = """\
import torch
from multiprocessing import Pool


def work(k):
    return float(torch.ones(600, 600).matmul(torch.ones(600, 600)).sum())


def run():
    work(1)
    with Pool(2) as pool:
        return pool.map(work, range(4))
"""


@pytest.mark.parametrize(
    ("before", "silent"),
    [
        ("import os\nos.environ['OMP_NUM_THREADS'] = '1'\n", True),
        ("import torch\ntorch.set_num_threads(1)\n", True),
        ("import multiprocessing\nmultiprocessing.set_start_method('spawn')\n", True),
        ("import os\nos.environ['OTHER'] = '1'\n", False),
    ],
)
def test_a_program_guards_what_another_file_does(project, before, silent):
    """Also one that has no framework, and would not be read for itself."""
    project.write("lib.py", GUARDED)
    project.write("main.py", before + "import lib\n\nlib.run()\n")
    found = [] if silent else [("GG303", "lib.py", 12)]
    assert project.codes("--start-method", "fork") == found


CACHED = """\
import torch
from joblib import Memory

scale = torch.nn.Parameter(torch.ones(3))


@Memory("cache").cache
def embed(x, k):
    return {0}
"""
LOOP = """\
import torch
from lib import embed

for x in torch.randn(4, 3):
    loss = embed(x, 2.0).sum()
    {0}
"""


@pytest.mark.parametrize("minimum", ["info", "warning"])
@pytest.mark.parametrize("last", ["loss.backward()", "print(loss.item())"])
def test_a_caller_that_is_read_for_its_own_loops_shows_what_it_calls(project, last, minimum):
    project.write("lib.py", CACHED.format("x * scale * k"))
    project.write("main.py", LOOP.format(last))
    assert project.codes("--min-severity", minimum) == [("GG108", "lib.py", 8)]
    project.write("lib.py", CACHED.format("x * scale.detach() * k"))
    assert project.codes("--min-severity", minimum) == []


def test_over_a_file_between_them(project):
    project.write("app/__init__.py", "")
    project.write("app/lib.py", GUARDED)
    project.write("app/between.py", "from .lib import run\n\n\ndef start():\n    return run()\n")
    project.write("main.py", "import torch\nfrom app.between import start\n\n{}\nstart()\n")
    program = (project.root / "main.py").read_text()
    for line, found in (("", [("GG303", "app/lib.py", 12)]), ("torch.set_num_threads(1)", [])):
        project.write("main.py", program.format(line))
        assert project.codes() == found


RUN = """\
import multiprocessing

import torch


def work(k):
    return torch.ones(3, device="cuda").sum().item() * k


def main():
    print(torch.cuda.is_available())
    process = multiprocessing.Process(target=work, args=(1,))
    process.start()
    process.join()
"""
SET_UP = """

if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    main()
"""


@pytest.mark.parametrize("name", ["test_run.py", "tests/run_test.py"])
def test_tests_pass_by_what_a_program_sets_up(project, name):
    test = "import torch\nimport run\n\n\ndef test_main():\n    run.main()\n\n\n"
    project.write(name, f'{test}if __name__ == "__main__":\n    test_main()\n')
    project.write("run.py", RUN + SET_UP)
    assert project.codes() == []
    project.write("run.py", RUN)
    assert ("GG203", "run.py", 13) in project.codes()


@pytest.mark.parametrize("name", ["test_lib.py", "tests/check.py", "lib_test.py", "conftest.py"])
def test_tests_say_little_of_how_others_call(project, name):
    project.write("lib.py", LIB)
    project.write(name, main("train", "train(net, xs, 1)"))
    assert project.codes() == LOST


@pytest.mark.parametrize(
    ("name", "text", "installed"),
    [
        ("setup.py", "from setuptools import setup\nsetup(name='app')\n", True),
        ("pyproject.toml", "[project]\nname = 'app'\n", True),
        ("pyproject.toml", "[tool.poetry]\nname = 'app'\n", True),
        ("pyproject.toml", "[tool.other]\nname = 'app'\n", False),
    ],
)
def test_what_is_installed_has_other_callers(project, name, text, installed):
    project.write(name, text)
    project.write("src/app/__init__.py", "")
    project.write("src/app/lib.py", LIB)
    project.write("main.py", main("train", "train(net, xs, 1)").replace("lib", "app.lib"))
    lost = [("GG106", "src/app/lib.py", 6)]
    assert project.codes() == (lost if installed else [])


def test_two_files_that_call_each_other(project):
    """Each calls the other's function, and nothing calls both: neither knows better."""
    again = "\n\ndef again(net, xs, n):\n    import other\n\n    other.go(net, xs, n)\n"
    project.write("lib.py", LIB + again)
    go = "def go(net, xs, n):\n    lib.train(net, xs, n)\n    lib.again(net, xs, n)\n"
    project.write("other.py", "import lib\n\n\n" + go)
    assert project.codes() == LOST


def test_how_joblibs_pools_start(project):
    program = (
        "{}import torch\nfrom joblib import Parallel, delayed\n\n\ndef work(k):\n"
        "    return float(torch.ones(600, 600).matmul(torch.ones(600, 600)).sum())\n\n\n"
        "if __name__ == '__main__':\n    {}\n    work(1)\n"
        "    Parallel(2, backend='multiprocessing')(delayed(work)(k) for k in range(4))\n"
    )
    spawn = "torch.multiprocessing.set_start_method('spawn')"
    variable = "import os\nos.environ['JOBLIB_START_METHOD'] = 'spawn'\n"
    for first, then, options, found in [
        ("", "pass", (), True),
        ("", spawn, (), False),
        (variable, "pass", (), False),
        ("", "pass", ("--target-version", "3.14"), False),
        ("", "pass", ("--start-method", "spawn"), False),
    ]:
        project.write("main.py", program.format(first, then))
        assert bool(project.codes(*options)) == found, (first, then, options)


PARTS = """\
def part(net, x):
    return net(x).sum()


def number(net, x):
    return net(x).sum().item()
"""

HANDS_OUT = """\
import torch
from joblib import Parallel, delayed

from parts import number, part


def train(net, xs):
    optimizer = torch.optim.SGD(net.parameters())
    Parallel(n_jobs=2)(delayed(number)(net, x) for x in xs)
    loss = sum(Parallel(n_jobs=2)(delayed(part)(net, x) for x in xs))
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("marker", "named", "found"),
    [
        ("pyproject.toml", ["parts.py"], [("GG102", "parts.py", 2)]),
        ("pyproject.toml", ["train.py"], [("GG102", "parts.py", 2), ("GG103", "train.py", 11)]),
        ("notes.txt", ["parts.py"], []),
    ],
)
def test_a_named_file_is_read_with_those_that_import_it(project, marker, named, found):
    """Where both are of one project, and nothing is said of files that are not named."""
    project.write(marker, "")
    project.write("parts.py", PARTS)
    project.write("train.py", HANDS_OUT)
    assert project.codes(*named) == found
    assert not project.lint(*named).err
