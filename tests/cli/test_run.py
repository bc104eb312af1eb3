"""`gradguard run`: the same program, the same end, and the findings after it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from children import Done, run_python


def execute(folder: Path, *command: str) -> Done:
    return run_python(*command, folder=folder)


def guarded(folder: Path, *arguments: str, forked: str = "torch") -> Done:
    command = ("-m", "pytest_gradguard", "run", *arguments)
    return run_python(*command, folder=folder, forked=forked)


NOTHING = "gradguard: no findings\n"


def assert_ends_alike(alone: Done, under: Done) -> None:
    """The program's output and exit status are the same; the guard adds one line."""
    assert (under.stdout, under.returncode) == (alone.stdout, alone.returncode)
    assert under.stderr == alone.stderr + NOTHING


SHOW = """
import sys
import __main__

print(sys.argv, sys.path[0], __name__, __file__, __package__, __spec__ and __spec__.name)
print(__main__.__dict__ is globals(), sys.modules["__main__"] is __main__, __annotations__)
print(__loader__ and type(__loader__).__name__, __builtins__.__name__, __doc__)
"""

PROGRAMS = {
    "names": SHOW,
    "status": "import sys\nsys.exit(5)\n",
    "message": "raise SystemExit('all is lost')\n",
    "none": "raise SystemExit\n",
    "error": "def inner():\n    raise ValueError('lost')\n\n\ninner()\n",
    "cause": (
        "def inner():\n    {}['x']\n\n\ntry:\n    inner()\n"
        "except KeyError as error:\n    raise ValueError('lost') from error\n"
    ),
    "syntax": "print('never')\nif True print\n",
    "encoding": "# coding: latin-1\nprint(len('\xe9'))\n",
    "hook": (
        "import sys\nsys.excepthook = lambda *args: print('hook', args[0].__name__)\n"
        "raise ValueError\n"
    ),
    "exit_handler": (
        "import atexit, threading, time\n"
        "atexit.register(print, 'handler')\n"
        "threading.Thread(target=lambda: (time.sleep(0.3), print('thread'))).start()\n"
        "print('end')\n"
    ),
    "future": "from __future__ import annotations\nx: nonsense = 1\nprint(__annotations__)\n",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_script_ends_as_it_would_without_the_guard(tmp_path: Path, name: str) -> None:
    encoding = "latin-1" if name == "encoding" else "utf-8"
    (tmp_path / "program.py").write_text(PROGRAMS[name], encoding=encoding)
    alone = execute(tmp_path, "program.py", "a", "--report", "-m", "--", "b")
    under = guarded(tmp_path, "program.py", "a", "--report", "-m", "--", "b")
    assert_ends_alike(alone, under)


@pytest.mark.parametrize("module", ["package", "package.module", "alone"])
def test_a_module_ends_as_it_would_without_the_guard(tmp_path: Path, module: str) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    for path in ("package/__main__.py", "package/module.py", "alone.py"):
        (tmp_path / path).write_text(SHOW + "raise SystemExit(4)\n")
    alone = execute(tmp_path, "-m", module, "--", "-x", "--report")
    under = guarded(tmp_path, "-m", module, "--", "-x", "--report")
    assert alone.returncode == 4, alone.stderr
    assert_ends_alike(alone, under)


def test_a_folder_with_a_main(tmp_path: Path) -> None:
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "__main__.py").write_text(SHOW)
    alone = execute(tmp_path, "program", "x")
    under = guarded(tmp_path, "program", "x")
    assert alone.returncode == 0
    assert_ends_alike(alone, under)


def test_an_interrupt_ends_it_as_it_ends_any_program(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import atexit\natexit.register(print, 'exit')\nraise KeyboardInterrupt\n"
    )
    alone = execute(tmp_path, "program.py")
    under = guarded(tmp_path, "program.py")
    assert_ends_alike(alone, under)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["missing.py"], "missing.py"),
        (["-m", "missing_module"], "missing_module"),
        (["-m", "package"], "__main__"),
        (["package"], "__main__.py"),
        (["--report", "none/r.json", "program.py"], "none/r.json"),
        (["--report", ".", "program.py"], "folder"),
        (["--report", "program.py", "program.py"], ".py files are sources"),
        (["--html", "book.ipynb", "program.py"], ".ipynb files are sources"),
        (["--html", "kept.html", "program.py"], "not an earlier report"),
        (["--html", "none/page.html", "program.py"], "none/page.html"),
        (["--html", "one", "--report", "./one", "program.py"], "a file each"),
        (["--min-severity", "grave", "program.py"], "info, warning, error"),
        (["--unknown", "program.py"], "--unknown"),
        ([], "PROGRAM"),
    ],
)
def test_bad_command_lines_are_one_line_and_run_nothing(
    tmp_path: Path, arguments: Sequence[str], named: str
) -> None:
    (tmp_path / "program.py").write_text("print('it ran')\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "kept.html").write_text("<!DOCTYPE html><title>Mine</title>")
    done = guarded(tmp_path, *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("gradguard run: ")
    assert named in line
    assert (tmp_path / "program.py").read_text() == "print('it ran')\n"
    assert (tmp_path / "kept.html").read_text() == "<!DOCTYPE html><title>Mine</title>"


LOSING = """
import os
import sys

import torch
from joblib import Parallel, delayed

print("imported as", __name__, flush=True)


def add(tensor, number):
    return tensor + number


if __name__ == "__main__":
    x = torch.ones(3, requires_grad=True)
    out = Parallel(n_jobs=2)(delayed(add)(x.clone(), number) for number in range(2))
    sum(out).mean().backward()
    print(x.grad, add.__module__)
    os.chdir("/")
    sys.exit(6)
"""


@pytest.fixture(scope="module")
def losing(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    folder = tmp_path_factory.mktemp("losing")
    (folder / "program.py").write_text(LOSING)
    return folder, guarded(folder, "--report", "report.json", "--html=page.html", "program.py")


def test_the_program_sees_nothing_of_the_guard(losing: tuple[Path, Done]) -> None:
    folder, done = losing
    assert done.returncode == 6
    # Once: functions of __main__ go to the workers by value, and nothing runs twice.
    assert done.stdout == "imported as __main__\nNone __main__\n"
    assert execute(folder, "program.py").stdout == done.stdout


def test_the_findings_are_printed_at_the_end(losing: tuple[Path, Done]) -> None:
    _, done = losing
    told = re.findall(r"^\w+\[GG\d+\]|(?:sent|returned): GG\d+", done.stderr, re.M)
    assert told == ["error[GG103]", "sent: GG101", "returned: GG102"]
    assert re.search(r"^ +--> program.py:\d+:\d+$", done.stderr, re.M)
    assert done.stderr.endswith(
        "gradguard: 1 error, 2 warnings\ngradguard: report written to report.json and page.html\n"
    )


def test_the_report_is_written_though_the_program_failed(losing: tuple[Path, Done]) -> None:
    folder, _ = losing
    report = json.loads((folder / "report.json").read_text())
    assert report["summary"] == {"error": 1, "warning": 2, "info": 0}
    assert {finding["location"]["path"] for finding in report["findings"]} == {"program.py"}
    assert {finding["test"] for finding in report["findings"]} == {None}
    page = (folder / "page.html").read_text()
    assert page.count("<article") == 1
    assert '<figure class="gg-lanes">' in page
    assert ">program.py:" in page


def test_a_forked_child_repeats_nothing(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import os, sys, torch\n"
        "from joblib import Parallel, delayed\n\n"
        "x = torch.ones(2, requires_grad=True)\n"
        "Parallel(n_jobs=2, backend='multiprocessing')(delayed(len)(x) for _ in range(2))\n"
        "if os.fork():\n"
        "    os.wait()\n"
        "sys.exit(3)\n"
    )
    done = guarded(tmp_path, "program.py")
    assert done.returncode == 3
    assert done.stderr.count("warning[GG101]") == 1


LAST = """
import joblib, torch
from torch import nn

def trained(model):
    model(torch.ones(2, 3)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return model

def buffers_left(model):
    model.train()(torch.ones(2, 3))

torch.manual_seed(0)
model, other = nn.Linear(3, 1), nn.BatchNorm1d(3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
(model,) = joblib.Parallel(2)([joblib.delayed(trained)(model)])
joblib.Parallel(2)([joblib.delayed(buffers_left)(other)])
model(torch.ones(2, 3)).sum().backward()
optimizer.step()
other.eval()(torch.ones(2, 3))
"""


def test_what_lives_until_the_interpreter_ends_is_let_go_in_silence(tmp_path: Path) -> None:
    (tmp_path / "last.py").write_text(LAST)
    done = guarded(tmp_path, "last.py")
    assert "GG111" in done.stderr
    assert "GG112" in done.stderr
    assert "itself failed" not in done.stderr
    assert "Exception ignored" not in done.stderr


HELD = """
import multiprocessing, torch
from torch import nn

def hold(model):
    global held
    held = model

def loss(x):
    out = held(x).sum()
    out.backward()
    return out.item()

if __name__ == "__main__":
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with multiprocessing.get_context("spawn").Pool(1, hold, (model,)) as pool:
        pool.map(loss, [torch.ones(2, 3)])
        optimizer.step()
"""


def test_a_global_of_the_main_program_is_known_in_spawned_workers(tmp_path: Path) -> None:
    (tmp_path / "held.py").write_text(HELD)
    assert "GG106" in guarded(tmp_path, "held.py").stderr


def test_that_nothing_was_found_is_said_and_where_the_report_is(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "program.py").write_text("import os; os.chdir('folder'); print('fine')\n")
    done = guarded(tmp_path, "--report=report.json", "program.py")
    assert (done.stdout, done.returncode) == ("fine\n", 0)
    assert done.stderr == NOTHING + "gradguard: report written to report.json\n"
    assert json.loads((tmp_path / "report.json").read_text())["findings"] == []
    (tmp_path / "program.py").write_text("import sys; sys.stderr.close(); print('fine')\n")
    closed = guarded(tmp_path, "program.py")
    assert (closed.stdout, closed.stderr, closed.returncode) == ("fine\n", "", 0)


def test_info_findings_are_printed_when_asked_for(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import torch\n"
        "from joblib import Parallel, delayed\n\n"
        "def size(model):\n"
        "    return len(list(model.parameters()))\n\n"
        "models = [torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)]\n"
        "parallel = Parallel(n_jobs=2, backend='multiprocessing')\n"
        "print(parallel(delayed(size)(model) for model in models))\n"
    )
    silent = guarded(tmp_path, "program.py")
    assert silent.stdout == "[2, 2]\n"
    assert silent.stderr == (
        "gradguard: no findings; 1 info finding not shown (--min-severity info shows it)\n"
    )
    asked = guarded(tmp_path, "--min-severity", "info", "program.py")
    assert asked.stdout == "[2, 2]\n"
    assert asked.stderr.startswith("info[GG107]")


def test_classes_of_a_program_come_back_from_workers(tmp_path: Path) -> None:
    """Workers import a module that runs as the main program by its name, as without the guard."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "module.py").write_text(
        "from dataclasses import dataclass\n"
        "from joblib import Parallel, delayed\n"
        "from . import __name__ as parent\n\n"
        "@dataclass\n"
        "class Point:\n"
        "    x: int\n\n"
        "def make(x):\n"
        "    return Point(x)\n\n"
        "if __name__ == '__main__':\n"
        "    for backend in ('loky', 'multiprocessing'):\n"
        "        out = Parallel(n_jobs=2, backend=backend)(delayed(make)(x) for x in range(2))\n"
        "        print(out, type(out[0]) is Point, parent)\n"
    )
    alone = execute(tmp_path, "-m", "package.module")
    under = guarded(tmp_path, "-m", "package.module")
    assert "True" in alone.stdout
    assert alone.returncode == 0
    assert_ends_alike(alone, under)


def test_the_projects_table_leaves_codes_out(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.gradguard]\nignore = ["GG102", "GG103"]\n')
    (tmp_path / "program.py").write_text(
        "import torch\n"
        "from joblib import Parallel, delayed\n"
        "def double(t):\n"
        "    return t * 2\n"
        "if __name__ == '__main__':\n"
        "    x = torch.ones(2, requires_grad=True)\n"
        "    parallel = Parallel(n_jobs=2, backend='multiprocessing')\n"
        "    out = parallel(delayed(double)(x) for _ in range(2))\n"
        "    out[0].sum().backward()\n"
    )
    done = guarded(tmp_path, "program.py")
    assert done.returncode == 0
    assert "GG101" in done.stderr
    assert "GG102" not in done.stderr
    assert "GG103" not in done.stderr
    (tmp_path / "pyproject.toml").write_text('[tool.gradguard]\nignore = ["GG999"]\n')
    done = guarded(tmp_path, "program.py")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "'GG999'" in done.stderr


DYING = """
import os
import signal

import torch
from joblib import Parallel, delayed


def double(weight):
    return weight * 2


if __name__ == "__main__":
    weight = torch.ones(2, requires_grad=True)
    sum(Parallel(2)(delayed(double)(weight) for _ in range(2))).sum().backward()
    {end}
"""


@pytest.mark.parametrize(
    "end", ["os._exit(3)", "os.kill(os.getpid(), signal.SIGKILL)"], ids=["exit", "signal"]
)
def test_a_program_that_ends_at_once_has_a_report(tmp_path: Path, end: str) -> None:
    (tmp_path / "dying.py").write_text(DYING.format(end=end), encoding="utf-8")
    done = guarded(tmp_path, "--report", "report.json", "dying.py")
    exits = "_exit" in end
    assert done.returncode == (3 if exits else -9), done.stderr
    findings = json.loads((tmp_path / "report.json").read_text())["findings"]
    assert "GG103" in {one["code"] for one in findings}
    assert done.stderr.count("error[GG103]") == exits
