"""Across files: what is imported is followed; the result never depends on how it was run."""

from __future__ import annotations

import json
import os
import random

import pytest

RUN = """\
from joblib import Parallel, delayed

from {base} import work

print(Parallel(n_jobs=2)(delayed(work)(k) for k in range(3)))
"""
WORK = """\
import torch


def work(k):
    return torch.ones(3, device="cuda").sum().item() * k
"""


def test_a_worker_of_another_file(project):
    project.write("run.py", RUN.format(base="jobs"))
    project.write("jobs.py", WORK)
    assert project.codes() == [("GG201", "jobs.py", 5)]
    assert project.codes("run.py") == [("GG201", "jobs.py", 5)]
    trace = project.lint(json_output=True).json["findings"][0]["trace"]
    assert trace[0]["path"] == "run.py"


def test_relative_imports_and_reexports(project):
    project.write("app/__init__.py", "")
    project.write("app/run.py", RUN.format(base=".core"))
    project.write("app/core/__init__.py", "from .deep import work\n")
    project.write("app/core/deep.py", WORK)
    assert project.codes() == [("GG201", "app/core/deep.py", 5)]


def test_a_package_without_init_knows_its_own_name(project):
    project.write("app/run.py", RUN.format(base="app.jobs"))
    project.write("app/jobs.py", WORK)
    assert project.codes() == [("GG201", "app/jobs.py", 5)]


REGISTRY = """\
WORKERS = {}


def register(name):
    def keep(function):
        WORKERS[name] = function
        return function

    return keep


def count(function):
    calls = {}
    calls[function] = 0
    return function


def get(name):
    return WORKERS[name]
"""
BY_NAME = """\
import sys

from joblib import Parallel, delayed

from {base} import {name}

print(Parallel(n_jobs=2)(delayed({work})(k) for k in range(3)))
"""


@pytest.mark.parametrize(("name", "work"), [("WORKERS", "WORKERS[sys.argv[1]]"),
                                           ("get", "get(sys.argv[1])")])  # fmt: skip
@pytest.mark.parametrize("decorator", ["register('a')", "count"])
def test_a_decorator_fills_a_container_of_its_module(project, name, work, decorator):
    project.write("jobs.py", REGISTRY + "\n\n" + WORK.replace("def", f"@{decorator}\ndef"))
    project.write("run.py", BY_NAME.format(base="jobs", name=name, work=work))
    assert project.codes() == ([("GG201", "jobs.py", 27)] if "register" in decorator else [])


@pytest.mark.parametrize(
    "line",
    ["import app.jobs", "from .jobs import *", "from .jobs import work", "from . import jobs"],
)
@pytest.mark.parametrize("decorator", ["register('a')", "count"])
def test_a_decorator_fills_a_container_of_another_module(project, line, decorator):
    project.write("app/__init__.py", f"from .registry import count, register, get\n{line}\n")
    project.write("app/registry.py", REGISTRY)
    work = f"from . import {decorator.partition('(')[0]}\n{WORK}"
    project.write("app/jobs.py", work.replace("def", f"@{decorator}\ndef"))
    run = "import torch\n" + BY_NAME.format(base="app", name="get", work="get(sys.argv[1])")
    project.write("run.py", run)
    assert project.codes() == ([("GG201", "app/jobs.py", 7)] if "register" in decorator else [])


PMAP = """\
from joblib import Parallel, delayed


def pmap(f, items):
    return Parallel(2)(delayed(f)(it) for it in items)
"""


def test_what_a_helper_of_another_file_hands_out_names_the_call_of_it(project):
    project.write("tools.py", PMAP)
    project.write(
        "run.py",
        """\
import torch

from tools import pmap


def total(w):
    return float(w.sum())


def main():
    w = torch.ones(3, requires_grad=True)
    return pmap(total, [w, w])


print(main())
""",
    )
    assert project.codes("run.py") == [("GG101", "tools.py", 5)]
    trace = project.lint("run.py", json_output=True).json["findings"][0]["trace"]
    assert (trace[0]["path"], trace[0]["line"]) == ("run.py", 12)
    assert trace[0]["message"] == "calls `pmap`"


def test_a_program_that_brings_a_helper_and_a_worker_together(project):
    project.write("tools.py", PMAP)
    project.write("jobs.py", WORK)
    project.write(
        "run.py", "from jobs import work\nfrom tools import pmap\n\nprint(pmap(work, range(3)))\n"
    )
    assert project.codes() == [("GG201", "jobs.py", 5)]


@pytest.mark.parametrize("others", [0, 60])
def test_helpers_that_packages_give_are_found_among_many_files(project, others):
    for number in range(others):
        project.write(f"filler/f{number}.py", "import json\n")
    project.write("tools/deep/spread.py", PMAP)
    project.write("tools/deep/__init__.py", "from .spread import pmap\n")
    project.write("tools/__init__.py", "from .deep import pmap\n")
    project.write("jobs.py", WORK)
    project.write(
        "run.py",
        "from jobs import work\nfrom tools import pmap\n\n"
        "if __name__ == '__main__':\n    print(pmap(work, range(3)))\n",
    )
    assert project.codes() == [("GG201", "jobs.py", 5)]


def test_what_a_dataset_calls_in_another_file(project):
    project.write(
        "data.py",
        "class Crops:\n    def __init__(self, change):\n"
        "        self.change = change\n\n    def __getitem__(self, index):\n"
        "        return self.change(index)\n",
    )
    project.write(
        "changes.py", "import torch\n\n\ndef to_gpu(x):\n    return torch.as_tensor(x).cuda()\n"
    )
    project.write(
        "run.py",
        "from torch.utils.data import DataLoader\n\n"
        "from changes import to_gpu\nfrom data import Crops\n\n"
        "for x in DataLoader(Crops(to_gpu), num_workers=2):\n    print(x)\n",
    )
    assert project.codes() == [("GG201", "changes.py", 5)]


def test_src_layout(project):
    project.write("pyproject.toml", "[project]\nname = 'app'\n")
    project.write("scripts/run.py", RUN.format(base="app.deep"))
    project.write("src/app/__init__.py", "")
    project.write("src/app/deep.py", WORK)
    assert project.codes("scripts") == [("GG201", "src/app/deep.py", 5)]


def test_modules_of_the_folders_that_were_asked_for(project):
    """Where nothing shows the folder of a project, it is one of those that were named, or the
    current one; what stands above these is not looked at."""
    found = [("GG201", "inner/app/deep.py", 5)]
    project.write("inner/scripts/run.py", RUN.format(base="app.deep"))
    project.write("inner/app/deep.py", WORK)
    for _ in range(2):  # the cache does not mix them up
        assert project.codes("inner/scripts") == []
        assert project.codes("inner/scripts", "inner") == found
    project.write("app/deep.py", WORK)
    assert project.codes("inner/scripts/run.py") == [("GG201", "app/deep.py", 5)]
    assert project.codes("inner") == found
    project.write("inner/scripts/setup.cfg", "")
    assert project.codes("inner") == []


def test_the_name_of_a_folder_around_the_program_is_its_package(project):
    """Also where the folder above it was asked for, and no file says that it is one."""
    project.write("all/proj/pkg/scripts/inner/run.py", RUN.format(base="pkg.deep"))
    project.write("all/proj/pkg/deep.py", WORK)
    for asked in (".", "all", "all/proj"):
        assert project.codes(asked) == [("GG201", "all/proj/pkg/deep.py", 5)]
    project.write("all/proj/pkg/scripts/setup.cfg", "")
    assert project.codes("all") == []


def test_what_is_installed_follows_its_own_package_alone(project):
    """What an environment holds beside a package is no part of it, and much to read."""
    installed = "env/site-packages"
    project.write(f"{installed}/app/__init__.py", "")
    project.write(f"{installed}/app/run.py", RUN.format(base="other.deep"))
    project.write(f"{installed}/other/__init__.py", "")
    project.write(f"{installed}/other/deep.py", WORK)
    assert project.codes(f"{installed}/app") == []
    project.write(f"{installed}/app/deep.py", WORK)
    project.write(f"{installed}/app/run.py", RUN.format(base="app.deep"))
    assert project.codes(f"{installed}/app") == [("GG201", f"{installed}/app/deep.py", 5)]


def test_a_wrapper_of_another_file_runs_the_worker(project):
    project.write("main.py", "import torch\nfrom helpers import spread\n\n\n"
                  "def work(k):\n    return torch.ones(3).cuda().sum().item() * k\n\n\n"
                  "print(spread(work, range(3)))\n")  # fmt: skip
    project.write(
        "helpers.py",
        "from joblib import Parallel, delayed\n\n\n"
        "def spread(function, items, n_jobs=4):\n"
        "    return Parallel(n_jobs=n_jobs)(delayed(function)(i) for i in items)\n",
    )
    assert project.codes() == [("GG201", "main.py", 6)]


def test_constants_of_another_file(project):
    project.write("settings.py", "DEVICE = 'cpu'\n")
    source = WORK.replace("import torch", "import torch\nfrom settings import DEVICE")
    project.write("jobs.py", source.replace('"cuda"', "DEVICE"))
    project.write("run.py", RUN.format(base="jobs"))
    assert project.codes() == []
    project.write("settings.py", "DEVICE = 'cuda:1'\n")
    assert project.codes() == [("GG201", "jobs.py", 6)]


def test_a_finding_that_two_programs_lead_to_is_one(project):
    call = "\n\nif __name__ == '__main__':\n"
    call += "    print(Parallel(n_jobs=2)(delayed(work)(k) for k in [1]))\n"
    project.write("jobs.py", "from joblib import Parallel, delayed\n" + WORK + call)
    project.write("run.py", RUN.format(base="jobs"))
    project.write("other/run.py", "import sys\n" + RUN.format(base="jobs"))
    (finding,) = project.lint(json_output=True).json["findings"]
    assert (finding["location"]["path"], finding["count"]) == ("jobs.py", 1)


def test_circular_imports(project):
    project.write("jobs.py", "import run\n" + WORK)
    project.write("run.py", RUN.format(base="jobs"))
    assert project.codes() == [("GG201", "jobs.py", 6)]


def many(project, worker):
    for number in range(6):
        project.write(f"pkg{number}/jobs.py", WORK)
        project.write(f"pkg{number}/run.py", RUN.format(base="jobs"))
        project.write(f"pkg{number}/alone.py", worker)


def test_neither_cache_nor_jobs_nor_order_change_the_findings(project, worker):
    many(project, worker)
    plain = project.lint("--no-cache", json_output=True).out
    assert len(json.loads(plain)["findings"]) == 12
    assert not (project.root / ".gradguard_cache").exists()
    first = project.lint(json_output=True).out
    assert (project.root / ".gradguard_cache").is_dir()
    again = project.lint(json_output=True).out
    four = project.lint("--no-cache", "--jobs", "4", json_output=True).out
    paths = sorted(str(path.relative_to(project.root)) for path in project.root.rglob("*.py"))
    random.Random(4).shuffle(paths)
    shuffled = project.lint("--no-cache", *paths, json_output=True).out
    assert plain == first == again == four == shuffled


@pytest.fixture
def analysed(monkeypatch):
    """The paths that are analysed from here on."""
    from gradguard_lint import batch

    paths = []
    real = batch.analyse

    def noted(path, *args, **more):
        paths.append(path)
        return real(path, *args, **more)

    monkeypatch.setattr(batch, "analyse", noted)
    return paths


def test_the_cache_is_used_and_forgets_what_changed(project, analysed):
    project.write("run.py", RUN.format(base="jobs"))
    jobs = project.write("jobs.py", WORK)
    assert project.codes() == [("GG201", "jobs.py", 5)]
    assert analysed
    analysed.clear()
    assert project.codes() == [("GG201", "jobs.py", 5)]
    assert project.codes("--select", "GG2", "--ignore", "GG201") == []
    assert analysed == []  # what is found does not depend on what is selected
    jobs.write_text("\n" + WORK)
    assert project.codes() == [("GG201", "jobs.py", 6)]
    jobs.unlink()
    assert project.codes() == []


ASKED = """\
def label(n):
    return f"item {n}"
"""
UNRUN = """
from names import label


def show():
    print(label(2))
"""
STARTING = """\
from multiprocessing import Pool

import torch


def work(n):
    return torch.ones(n, device="cuda").sum().item()


def label(n):
    with Pool(2) as pool:
        return pool.map(work, range(n))
"""


def test_what_is_cached_hangs_on_what_was_asked_of_a_file_that_is_not_run(project, analysed):
    project.write("run.py", RUN.format(base="jobs") + UNRUN)
    project.write("jobs.py", WORK)
    names = project.write("names.py", ASKED)
    found = [("GG201", "jobs.py", 5)]
    assert project.codes() == found
    analysed.clear()
    names.write_text("\n\n" + ASKED.replace("item", "entry"))
    assert project.codes() == found
    assert analysed == []  # it says the same of workers, wherever it stands
    names.write_text(STARTING)
    assert project.codes() == [*found, ("GG201", "names.py", 7)]
    assert "run.py" in map(os.path.basename, analysed)


AROUND = """\
from multiprocessing import Pool

from app.ops import trace

if __name__ == "__main__":
    print(trace(2000))
    with Pool(2) as pool:
        print(pool.map(trace, [1500, 1600]))
"""
TRACE = """\
import torch


def trace(n):
    return (torch.ones(n, n) @ torch.ones(n, n)).trace().item()
"""


def test_what_is_cached_hangs_on_the_packages_around_a_module(project):
    project.write("main.py", AROUND)
    project.write("app/ops.py", TRACE)
    found = [("GG303", "main.py", 8)]
    assert project.codes() == found
    method = 'import multiprocessing\n\nmultiprocessing.set_start_method("spawn", force=True)\n'
    package = project.write("app/__init__.py", method)
    assert project.codes() == []
    package.write_text(method.replace("spawn", "fork"))
    assert project.codes() == found
    package.write_text(method)
    assert project.codes() == []
    package.unlink()
    assert project.codes() == found


def squared_or_dead(item):
    if item == 7 and os.getpid() != PARENT:
        os._exit(1)
    return item * item


PARENT = os.getpid()


def test_what_a_worker_leaves_undone_is_done_all_the_same():
    from gradguard_lint.processes import map_in_processes

    assert map_in_processes(squared_or_dead, range(20), 3) == [n * n for n in range(20)]
    assert map_in_processes(squared_or_dead, [7, 7], 2) == [49, 49]


def test_what_is_shown_changes_nothing_of_what_is_found(project, worker):
    many(project, worker)
    project.write("loops.py", LOOPS)
    project.write("pkg0/helper.py", LOOPS.replace("def each", "def work"))
    shown = {
        level: {tuple(code) for code in project.codes("--min-severity", level)}
        for level in ("info", "warning", "error")
    }
    assert any(code == "GG404" for code, *_ in shown["info"])
    warnings = {found for found in shown["info"] if found[0] != "GG404"}
    assert shown["warning"] == warnings
    assert shown["error"] <= warnings
    loops = project.codes("--select", "GG404", "--min-severity", "info")
    assert set(loops) == shown["info"] - warnings


LOOPS = """\
import torch

w = torch.ones(3, requires_grad=True)


def each(rows):
    found = []
    for row in rows:
        loss = (w * row).sum()
        loss.backward()
        found.append(w.grad)
    return found
"""


def test_every_call_that_reaches_a_line_is_named(project):
    project.write("jobs.py", WORK)
    project.write("run.py", RUN.format(base="jobs"))
    twice = RUN.format(base="jobs") + "Parallel(n_jobs=3)(delayed(work)(k) for k in range(9))\n"
    project.write("again.py", "import sys\n" + twice)
    (finding,) = project.lint(json_output=True).json["findings"]
    details = finding["details"]
    assert (details["library"], details["start_method"]) == ("joblib", "loky")
    places = [details["handed_out_at"], *details["also_from"]]
    assert {(place["path"], place["line"]) for place in places} == {
        ("run.py", 5), ("again.py", 6), ("again.py", 7),
    }  # fmt: skip
    project.write("jobs.py", WORK.replace("* k", "* k  # noqa: GG201"))
    assert project.codes() == []


def test_every_program_that_starts_a_process_with_a_task_is_named(project):
    project.write(
        "play.py",
        """\
import torch


def play(seed):
    return torch.full((3,), seed).to("cuda").sum().item()
""",
    )
    for name in ("first", "second"):
        project.write(
            f"{name}.py",
            """\
import multiprocessing

from play import play

if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    for seed in range(3):
        process = multiprocessing.Process(target=play, args=(seed,))
        process.start()
""",
        )
    (finding,) = project.lint(json_output=True).json["findings"]
    assert (finding["code"], finding["location"]["path"]) == ("GG201", "play.py")
    given = [
        (step["path"], step["line"]) for step in finding["trace"] if " runs in " in step["message"]
    ]
    assert given == [("first.py", 8), ("second.py", 8)]
    assert [place["path"] for place in finding["details"]["also_from"]] == ["second.py"]


def test_every_caller_of_a_wrapper_is_named_with_its_task(project):
    project.write(
        "par.py",
        """\
from joblib import Parallel, delayed


def tmap(function, items):
    return Parallel(n_jobs=2, backend="threading")(delayed(function)(it) for it in items)
""",
    )
    for name in ("first", "second"):
        project.write(
            f"{name}.py",
            f"""\
import torch
from par import tmap

weight = torch.ones(3, requires_grad=True)


def {name}_score(k):
    return (weight * k).sum()


def main():
    with torch.no_grad():
        return tmap({name}_score, range(4))
""",
        )
    (finding,) = project.lint(json_output=True).json["findings"]
    assert (finding["code"], finding["location"]["path"]) == ("GG301", "par.py")
    steps = [(step["path"], step["line"], step["message"]) for step in finding["trace"]]
    for name in ("first", "second"):
        assert steps.index((f"{name}.py", 13, "calls `tmap`")) < steps.index(
            ("par.py", 5, f"`{name}_score` runs in worker threads")
        )
    places = {(it["path"], it["line"]) for it in finding["details"]["also_from"]}
    assert places == {("second.py", 13)}


def test_the_most_severe_of_equal_findings_counts(project):
    project.write(
        "fold.py",
        """\
import multiprocessing as mp
from tensorflow import keras


def run_fold(n):
    keras.Sequential([keras.layers.Dense(n)])
    return n


def cross_validate():
    with mp.get_context("spawn").Pool(2) as pool:
        return pool.map(run_fold, [1, 2])
""",
    )
    project.write(
        "main.py",
        """\
import tensorflow as tf
from fold import cross_validate

if __name__ == "__main__":
    with tf.device("/GPU:0"):
        print(tf.zeros(1))
    print(cross_validate())
""",
    )
    for paths in (["fold.py", "main.py"], ["main.py"]):
        (finding,) = project.lint(*paths, json_output=True).json["findings"]
        assert (finding["code"], finding["severity"]) == ("GG201", "warning")


def test_a_message_names_the_file_of_a_line_elsewhere(project):
    project.write(
        "model.py",
        """\
import torch
from torch import nn


def clipped():
    net = nn.Linear(2, 2)
    for parameter in net.parameters():
        parameter.register_hook(lambda grad: grad.clamp(-1, 1))
    return net
""",
    )
    project.write(
        "train.py",
        """\
import torch
from joblib import Parallel, delayed
from model import clipped


def work(net, k):
    net(torch.ones(1, 2)).sum().backward()
    return [it.grad for it in net.parameters()]


def main():
    net = clipped()
    return Parallel(n_jobs=2)(delayed(work)(net, k) for k in range(4))
""",
    )
    (finding,) = project.lint(json_output=True).json["findings"]
    assert finding["code"] == "GG113"
    assert "the hook registered at model.py:8" in finding["message"]


def test_a_fork_after_work_shows_the_parents_way_first(project):
    project.write(
        "program.py",
        """\
import torch
from multiprocessing import Pool


def warm():
    return torch.ones(2000, 2000) @ torch.ones(2000, 2000)


def work(k):
    return float((torch.ones(500, 500) @ torch.ones(500, 500)).sum()) * k


def main():
    warm()
    with Pool(2) as pool:
        return pool.map(work, range(3))


main()
""",
    )
    (finding,) = project.lint(json_output=True).json["findings"]
    assert [(step["line"], step["message"]) for step in finding["trace"]] == [
        (19, "calls `main`"),
        (14, "calls `warm`"),
        (6, "torch computes in the parent here, before the fork"),
        (16, "`work` runs in forked workers"),
        (10, "torch computes in the worker here"),
    ]
    assert finding["details"]["start_method"] == "fork"


LIBRARIES = """\
import multiprocessing as mp

import torch as th
from torch.utils.data import DataLoader, Dataset
"""
LOADED = """\
class Rows({dataset}):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        return {th}.ones(3).cuda() * i


for batch in {loader}(Rows(), num_workers=2):
    print(batch)
"""
THROUGH = {
    "a name": ("from .libraries import th, DataLoader, Dataset\n", "Dataset", "th", "DataLoader"),
    "the module": (
        "from . import libraries\n\ntorch = libraries.th\n",
        "torch.utils.data.Dataset",
        "torch",
        "torch.utils.data.DataLoader",
    ),
}


@pytest.mark.parametrize("name", THROUGH)
def test_a_framework_that_comes_through_another_module(project, name):
    head, dataset, torch, loader = THROUGH[name]
    project.write("app/__init__.py", "")
    project.write("app/libraries.py", LIBRARIES)
    text = head + LOADED.format(dataset=dataset, th=torch, loader=loader)
    project.write("app/run.py", text)
    line = 1 + text[: text.index("cuda")].count("\n")
    assert project.codes() == [("GG201", "app/run.py", line)]


def test_workers_that_come_with_all_names_of_another_module(project):
    project.write("libraries.py", LIBRARIES.replace("torch as th", "torch"))
    project.write(
        "run.py",
        "from libraries import *\n\n\ndef work(k):\n    return torch.ones(k).cuda().sum()\n\n\n"
        "with mp.Pool(2) as pool:\n    print(pool.map(work, range(3)))\n",
    )
    assert project.codes() == [("GG201", "run.py", 5)]


def test_a_method_that_calls_what_its_class_inherits_from_another_file(project):
    project.write(
        "app/parallel.py",
        "from concurrent.futures import ProcessPoolExecutor\n\n\n"
        "class Mixin:\n    def pmap(self, f, items):\n"
        "        with ProcessPoolExecutor(self.workers) as executor:\n"
        "            return list(executor.map(f, items))\n",
    )
    project.write(
        "app/pipeline.py",
        "import torch\n\nfrom .parallel import Mixin\n\n\n"
        "class Pipeline(Mixin):\n    def __init__(self, workers=1):\n"
        "        self.workers = workers\n        self.device = 'cuda:0'\n\n"
        "    def one(self, item):\n        return torch.tensor(item, device=self.device)\n\n"
        "    def run(self, items):\n        return self.pmap(self.one, items)\n",
    )
    project.write("app/__init__.py", "from .pipeline import Pipeline\n")
    project.write("main.py", "from app import Pipeline\n\nPipeline(4).run([[1.0], [2.0]])\n")
    assert project.codes() == [("GG201", "app/pipeline.py", 12)]


def test_a_program_that_makes_the_objects_whose_methods_start_workers(project):
    project.write(
        "jobs.py",
        "import torch\nfrom concurrent.futures import ProcessPoolExecutor\n\n\n"
        "class Runner:\n    def __init__(self, device):\n        self.device = device\n\n"
        "    def one(self, k):\n        return torch.ones(k, device=self.device).sum().item()\n\n"
        "    def run(self):\n        with ProcessPoolExecutor() as executor:\n"
        "            return list(executor.map(self.one, range(3)))\n",
    )
    program = "import torch\nfrom jobs import Runner\n\nif __name__ == '__main__':\n    {}\n"
    project.write("run.py", program.format("print(Runner('cpu').run())"))
    assert project.codes() == []
    project.write("run.py", program.format("print(Runner('cuda').run())"))
    assert project.codes() == [("GG201", "jobs.py", 10)]


def test_a_worker_of_another_file_that_draws(project):
    project.write("jobs.py", "import numpy as np\n\n\ndef draw(k):\n    return np.random.rand(k)\n")
    project.write(
        "run.py",
        "from multiprocessing import Pool\n\nfrom jobs import draw\n\n"
        "with Pool(2) as pool:\n    print(pool.map(draw, range(3)))\n",
    )
    assert project.codes() == [("GG304", "jobs.py", 5)]


def test_a_pool_that_another_file_makes(project):
    project.write(
        "pools.py",
        "import contextlib\nfrom multiprocessing import Pool\n\nimport torch\n\n\n"
        "@contextlib.contextmanager\ndef pool_of(n):\n    pool = Pool(n)\n    yield pool\n",
    )
    project.write("jobs.py", WORK)
    project.write(
        "run.py",
        "import torch\nfrom jobs import work\nfrom pools import pool_of\n\n"
        "with pool_of(2) as pool:\n    print(pool.map(work, range(3)))\n",
    )
    assert project.codes() == [("GG201", "jobs.py", 5)]


def test_what_a_package_within_a_package_hands_on(project):
    project.write("app/__init__.py", "from .core import *\n")
    project.write("app/core/__init__.py", "from .pools import pool_of\nfrom .jobs import work\n")
    project.write("app/core/jobs.py", WORK)
    project.write(
        "app/core/pools.py",
        "from multiprocessing import Pool\n\nimport torch\n\n\n"
        "def pool_of(n):\n    return Pool(n)\n",
    )
    project.write(
        "run.py",
        "import torch\nfrom app import pool_of, work\n\nprint(pool_of(2).map(work, range(3)))\n",
    )
    assert project.codes() == [("GG201", "app/core/jobs.py", 5)]


def test_a_mode_that_decorates_a_method_of_another_file(project):
    project.write(
        "search.py",
        "import torch\nfrom joblib import Parallel, delayed\n\n\n"
        "class Search:\n    def __init__(self, model):\n        self.model = model\n\n"
        "    def one(self, x):\n        return self.model(x)\n\n"
        "    @torch.no_grad()\n    def run(self, xs):\n"
        "        return Parallel(n_jobs=4)(delayed(self.one)(x) for x in xs)\n",
    )
    project.write(
        "run.py",
        "import torch\nfrom search import Search\n\nif __name__ == '__main__':\n"
        "    Search(torch.nn.Linear(3, 2)).run(torch.randn(4, 2, 3))\n",
    )
    assert project.codes() == [("GG102", "search.py", 10), ("GG301", "search.py", 14)]


HANDED = {
    "an import of it all": ("import multiprocessing as mp", "from .compat import mp", "mp."),
    "one of two": (
        "try:\n    import torch.multiprocessing as mp\n"
        "except ImportError:\n    import multiprocessing as mp",
        "from .compat import mp",
        "mp.",
    ),
    "a name of it": ("from multiprocessing import Pool", "from .compat import Pool", ""),
    "its module": (
        "import multiprocessing as mp\nPool = mp.Pool",
        "from . import compat",
        "compat.",
    ),
}


@pytest.mark.parametrize("case", HANDED)
def test_a_library_that_comes_through_a_module_of_the_project(project, case):
    library, imported, spelled = HANDED[case]
    program = (
        f"import torch\n{imported}\n\n\n"
        'def work(k):\n    return torch.ones(k, device="cuda").sum().item()\n\n\n'
        f"def main():\n    with {spelled}Pool(2) as pool:\n"
        "        print(pool.map(work, range(4)))\n"
    )
    project.write("app/__init__.py", "")
    project.write("app/compat.py", f"{library}\n")
    project.write("app/main.py", program)
    for number in range(60):
        project.write(f"app/part{number}.py", "import threading\n\nlock = threading.Lock()\n")
    assert project.codes() == [("GG201", "app/main.py", 6)]
    assert project.codes("app/main.py") == [("GG201", "app/main.py", 6)]


BASE = """\
from concurrent.futures import ProcessPoolExecutor


class Job:
    def __call__(self, items):
        with ProcessPoolExecutor(2) as pool:
            return list(pool.map(self.process, items))
"""
EMBED = """\
import torch

from lib.base import Job


class Embed(Job):
    device = "cuda"

    def process(self, item):
        return torch.full((3,), item, device=self.device).sum().item()
"""


def test_a_method_that_starts_workers_and_is_inherited_from_another_file(project):
    project.write("lib/__init__.py", "")
    project.write("lib/base.py", BASE)
    project.write("lib/gpu.py", EMBED)
    assert project.codes() == [("GG201", "lib/gpu.py", 10)]
    project.write("lib/gpu.py", EMBED + "\n    def __call__(self, items):\n        return items\n")
    assert project.codes() == []


def test_a_program_that_gives_what_others_hand_to_workers(project):
    project.write("app/__init__.py", "from .engine import run\n")
    project.write("app/registry.py", "STEPS = {}\n\n\ndef step(f):\n    STEPS[f.__name__] = f\n")
    project.write(
        "app/steps.py",
        "import torch\n\nfrom .registry import step\n\n\n@step\ndef embed(item, device):\n"
        "    return torch.ones(item, device=device).sum().item()\n",
    )
    project.write(
        "app/engine.py",
        "from joblib import Parallel, delayed\n\nfrom . import steps\n"
        "from .registry import STEPS\n\n\ndef run(items, device):\n"
        '    embed = STEPS["embed"]\n'
        "    return Parallel(2)(delayed(embed)(item, device) for item in items)\n",
    )
    main = "from app import run\n\nif __name__ == '__main__':\n    print(run(range(3), 'cuda'))\n"
    project.write("main.py", main)
    assert project.codes() == [("GG201", "app/steps.py", 8)]
    project.write("main.py", main.replace("cuda", "cpu"))
    assert project.codes() == []


STORE = "import torch\n\nWEIGHT = torch.ones(3)\n"
USES = """\
import store


def init(weight):
    store.WEIGHT = weight


def work(x):
    return (store.WEIGHT * x).sum().item()
"""
CHANGES = """\
import torch
from multiprocessing import get_context

import store
from uses import init, work

if __name__ == "__main__":
    store.WEIGHT = torch.zeros(3)
    with get_context("spawn").Pool(2{given}) as pool:
        print(pool.map(work, [torch.ones(3)] * 3))
"""


def test_a_global_that_the_initializer_sets(project):
    project.write("store.py", STORE)
    project.write("uses.py", USES)
    project.write("main.py", CHANGES.format(given=", init, (store.WEIGHT,)"))
    assert project.codes() == []
    project.write("main.py", CHANGES.format(given=""))
    assert project.codes() == [("GG109", "uses.py", 9)]


BEGINS = """\
import torch
from multiprocessing import Pool


def warm(size):
    torch.ones(size, device="cuda")


if __name__ == "__main__":
    warm(3)
    with Pool(2, warm, (2,)) as pool:
        print(pool.map(abs, range(3)))
"""


def test_what_the_initializer_does_is_said_of_it(project):
    project.write("main.py", BEGINS)
    findings = project.lint(json_output=True).json["findings"]
    (found,) = [found for found in findings if found["code"] == "GG203"]
    assert found["message"].startswith("`warm` uses CUDA in forked workers")


OWN_LOADER = """\
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info


def set_states(dataset, seed):
    for name in vars(dataset):
        dataset.renew(name, seed)


def takes(worker):
    set_states(get_worker_info().dataset, get_worker_info().seed)


def leaves(worker):
    np.random.seed(worker)


class Loader(DataLoader):
    def __init__(self, dataset, **options):
        if "worker_init_fn" not in options:
            options["worker_init_fn"] = {first}
        super().__init__(dataset, num_workers=2, **options)


class Noisy(Dataset):
    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return self.rng.normal()


def run(**more):
    for batch in {loader}:
        print(batch)


run()
"""


@pytest.mark.parametrize(
    ("first", "loader", "codes"),
    [
        ("takes", "Loader(Noisy(), batch_size=2)", []),
        ("leaves", "Loader(Noisy(), batch_size=2)", [("GG305", "run.py", 23)]),
        ("leaves", "DataLoader(Noisy(), num_workers=2)", [("GG305", "run.py", 38)]),
        ("leaves", "DataLoader(Noisy(), num_workers=2, worker_init_fn=takes)", []),
        ("leaves", "DataLoader(Noisy(), num_workers=2, **unknown())", []),
    ],
)
def test_a_loader_whose_workers_may_renew_the_datasets_generator(project, first, loader, codes):
    project.write("run.py", OWN_LOADER.replace("{first}", first).replace("{loader}", loader))
    assert project.codes() == codes


DRAWING = """\
import numpy as np
import torch
from multiprocessing import Pool{further}


def draw(k):
    return torch.tensor(np.random.normal()) + k


if __name__ == "__main__":
    {first}
    with Pool(2) as pool:
        pool.map(draw, range(4))
"""


@pytest.mark.parametrize(
    ("further", "first", "certain"),
    [
        ("", "pass", False),
        ("", "np.random.seed(0)", True),
        ("\nfrom numpy.random import default_rng", "pass", True),
        ("\nimport pandas as pd", "pass", True),
    ],
)
def test_numpys_generator_is_copied_once_the_parent_has_it(project, further, first, certain):
    """NumPy 2 makes it at its first use: before that, each forked process makes its own."""
    project.write("run.py", DRAWING.format(further=further, first=first))
    (finding,) = project.lint("run.py", json_output=True).json["findings"]
    assert finding["code"] == "GG304"
    assert ("wherever the parent has loaded" in finding["message"]) is not certain


def test_a_package_that_imports_its_own_module(project):
    """``from . import state`` in ``__init__`` names the module, not what it is resolved to."""
    project.write("lib/__init__.py", "from . import state\n")
    project.write(
        "lib/state.py",
        """\
import torch

MODEL = torch.nn.Linear(4, 1)


def load(value):
    with torch.no_grad():
        MODEL.weight.fill_(value)
""",
    )
    project.write(
        "lib/tasks.py",
        """\
from joblib import Parallel, delayed

from . import state


def score(x):
    return state.MODEL(x).sum().item()


def score_all(rows):
    return Parallel(2)(delayed(score)(row) for row in rows)
""",
    )
    project.write(
        "main.py",
        """\
import torch
from lib import state
from lib.tasks import score_all

state.load(5.0)
print(score_all([torch.ones(1, 4)] * 2))
""",
    )
    assert project.codes("main.py") == [("GG109", "lib/tasks.py", 7)]


DATA = """\
import torch
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, k):
        return torch.ones(3).{moved}


def make_loader():
    return DataLoader(Rows(), num_workers=2)


class Data:
    def train_loader(self):
        return make_loader()
"""


@pytest.mark.parametrize("others", [0, 60])
@pytest.mark.parametrize("made", ["make_loader()", "Data().train_loader()"])
def test_a_loader_of_another_file_is_iterated(project, made, others):
    project.write("data.py", DATA.format(moved='to("cuda")'))
    project.write("safe.py", DATA.format(moved='to("cpu")'))
    for number in range(others):
        project.write(f"other_{number}.py", "import os\n")
    program = "from {} import Data, make_loader\n\nfor batch in {}:\n    print(batch)\n"
    project.write("run.py", program.format("data", made))
    project.write("run_safe.py", program.format("safe", made))
    assert project.codes() == [("GG201", "data.py", 10)]


def test_a_loader_of_another_file_is_given_a_dataset(project):
    project.write(
        "loader.py",
        """\
from torch.utils.data import DataLoader


def get_loader(dataset, workers=4):
    return DataLoader(dataset, num_workers=workers)
""",
    )
    program = """\
import torch
from torch.utils.data import Dataset
from loader import get_loader


class Rows(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, k):
        return torch.ones(3).to("{}")


for batch in get_loader(Rows()):
    print(batch)
"""
    project.write("run.py", program.format("cuda"))
    project.write("run_safe.py", program.format("cpu"))
    assert project.codes() == [("GG201", "run.py", 11)]


def test_a_line_of_another_file_is_named_with_it(project):
    project.write(
        "tasks.py",
        "def learn(model, x):\n    loss = model(x).sum()\n"
        "    loss.backward()\n    return loss.item()\n",
    )
    project.write(
        "run.py",
        """\
import torch
from joblib import Parallel, delayed

from tasks import learn

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
Parallel(2)(delayed(learn)(model, torch.ones(2)) for _ in range(2))
optimizer.step()
""",
    )
    (finding,) = project.lint("run.py", json_output=True).json["findings"]
    assert (finding["code"], finding["location"]["path"]) == ("GG106", "tasks.py")
    assert "(run.py:9)" in finding["message"]


@pytest.mark.parametrize(("device", "found"), [("cuda", True), ("cpu", False)])
def test_an_estimator_of_another_file(project, device, found):
    project.write(
        "nets.py",
        f"""\
from skorch import NeuralNetClassifier
from torch import nn

NET = NeuralNetClassifier(nn.Linear, device="{device}")


def make_net():
    return NeuralNetClassifier(nn.Linear, device="{device}")
""",
    )
    project.write(
        "run.py",
        """\
from sklearn.model_selection import GridSearchCV

from nets import NET, make_net


def search(x, y):
    GridSearchCV(make_net(), {}, n_jobs=2).fit(x, y)
    GridSearchCV(NET, {}, n_jobs=2).fit(x, y)
""",
    )
    findings = project.lint(json_output=True).json["findings"]
    assert [it["location"]["line"] for it in findings] == ([7, 8] if found else [])
    steps = [(step["path"], step["line"]) for it in findings for step in it["trace"]]
    assert steps == ([("nets.py", 8), ("nets.py", 4)] if found else [])


def test_a_process_is_followed_over_three_modules(project):
    """A module has the class, another extends it, a third starts it, and a program uses that."""
    project.write("workers/__init__.py", "")
    project.write(
        "workers/base.py",
        """\
import torch.multiprocessing as mp


class Worker(mp.Process):
    def __init__(self, model, inbox, outbox):
        super().__init__(daemon=True)
        self.model, self.inbox, self.outbox = model, inbox, outbox

    def run(self):
        while (item := self.inbox.get()) is not None:
            self.outbox.put(self.handle(item))

    def handle(self, item):
        raise NotImplementedError
""",
    )
    project.write(
        "workers/training.py",
        """\
from .base import Worker


class Training(Worker):
    def handle(self, item):
        loss = self.model(item).sum()
        loss.backward()
        return loss.item()
""",
    )
    project.write(
        "workers/group.py",
        """\
import torch
import torch.multiprocessing as mp

from .training import Training


class Group:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.inbox, self.outbox = mp.Queue(), mp.Queue()
        self.worker = Training(self.model, self.inbox, self.outbox)

    def __enter__(self):
        self.worker.start()
        return self

    def __exit__(self, *error):
        self.inbox.put(None)
        self.worker.join()

    def step(self, batch):
        self.optimizer.zero_grad()
        self.inbox.put(batch)
        loss = self.outbox.get()
        self.optimizer.step()
        return loss
""",
    )
    project.write(
        "main.py",
        """\
import torch

from workers.group import Group

if __name__ == "__main__":
    with Group(torch.nn.Linear(2, 1)) as group:
        print(group.step(torch.ones(3, 2)))
""",
    )
    assert project.codes() == [("GG106", "workers/training.py", 7)]


SHUFFLED = """\
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def get_loader():
    data = TensorDataset(torch.rand(64, 2))
    return DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
"""
EPOCHS = """\
import torch
import torch.distributed as dist
from {base} import get_loader

dist.init_process_group("gloo")
loader = get_loader()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(10):
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("module", "base"),
    [
        ("src/datasets.py", "datasets"),
        ("src/datasets/__init__.py", "datasets"),
        ("datasets/__init__.py", "datasets"),
        ("src/distributed.py", "distributed"),
        ("src/timm/__init__.py", "timm"),
        ("src/dask/loaders.py", "dask.loaders"),
    ],
)
def test_a_module_of_the_project_stands_in_place_of_a_library(project, module, base):
    project.write("setup.py", "")
    project.write("src/train.py", EPOCHS.format(base=base))
    project.write(module, SHUFFLED)
    if base.count("."):
        project.write("src/dask/__init__.py", "")
    assert project.codes() == [("GG503", "src/train.py", 9)]


@pytest.mark.parametrize(
    ("module", "before"),
    [
        ("datasets/__init__.py", '__version__ = "4.0"\n'),  # a copy of the library itself
        ("datasets.py", "import datasets\n"),  # means the library, as it calls itself
        ("src/__init__.py", ""),
        ("datasets/loaders.py", ""),
    ],
)
def test_the_library_is_meant_where_no_module_surely_stands_in_its_place(project, module, before):
    project.write("setup.py", "")
    project.write("src/train.py", EPOCHS.format(base="datasets"))
    project.write(module, before + SHUFFLED)
    project.write("src/datasets.py" if module == "src/__init__.py" else "other.py", SHUFFLED)
    assert project.codes() == []


def test_a_package_called_as_a_library_imports_its_own_parts(project):
    project.write("datasets/__init__.py", "")
    project.write("datasets/train.py", EPOCHS.format(base=".loaders"))
    project.write("datasets/loaders.py", SHUFFLED)
    assert project.codes() == [("GG503", "datasets/train.py", 9)]
