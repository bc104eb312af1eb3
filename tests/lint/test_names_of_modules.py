"""Which names of the project's modules start workers, or train: what is run as a program because
of them."""

from __future__ import annotations

import pytest

from gradguard_lint.engine.relevance import Relevance
from gradguard_lint.models.rows import registry
from gradguard_lint.project.modules import Modules
from gradguard_lint.project.reader import Reader
from gradguard_lint.reading.source import parse

RUN_ALL = (
    "import torch\nfrom multiprocessing import Pool\n\n\nclass Config:\n    size = 2\n\n\n"
    "def double(x):\n    return x * 2\n\n\n"
    "def run_all(w):\n    with Pool(2) as pool:\n        return pool.map(double, [w, w])\n\n\n"
    "runner = run_all\n"
)
WAYS_IN = {
    "by its name": ("", "from app.workers import run_all", "run_all"),
    "by all names": ("", "from app.workers import *", "run_all"),
    "as a module": ("", "import app.workers", "app.workers.run_all"),
    "as a module of another name": ("", "import app.workers as aw", "aw.run_all"),
    "as a module of a package": ("", "from app import workers", "workers.run_all"),
    "as a variable": ("", "from app.workers import runner", "runner"),
    "by all names of a package": ("from .workers import *\n", "from app import run_all", "run_all"),
    "by another name of a package": (
        "from .workers import run_all as spread\n",
        "from app import spread",
        "spread",
    ),
}


@pytest.mark.parametrize("way", WAYS_IN)
def test_a_function_that_gives_work_to_workers_comes_from_another_file(project, way):
    package, line, name = WAYS_IN[way]
    project.write("app/workers.py", RUN_ALL)
    project.write("app/__init__.py", package)
    project.write(
        "train.py",
        f"import torch\n{line}\n\n\ndef train():\n    w = torch.ones(3, requires_grad=True)\n"
        f"    sum({name}(w)).sum().backward()\n",
    )
    assert project.codes() == [("GG102", "app/workers.py", 10), ("GG101", "app/workers.py", 15)]


@pytest.mark.parametrize(
    ("line", "name", "asked"),
    [
        ("from app.workers import run_all", "run_all(1)", {"use"}),
        ("from app.workers import runner", "runner(1)", {"use"}),
        ("from app.workers import Config", "Config()", set()),
        ("from app.workers import *", "Config()", set()),
        ("from app.lazy import Config", "Config()", set()),
        ("from app.lazy import run_all", "run_all(1)", {"use"}),
        ("import app.workers", "app.workers.Config()", set()),
        ("import app.workers", "app.workers.run_all(1)", {"use"}),
        ("import app.workers", "app.workers.Config(run_all)", set()),
        ("import app.workers, app.settings", "app.workers.run_all(1)", {"use"}),
        ("from app.settings import ContextParallel", "ContextParallel()", set()),
        ("from app.settings import Parallel", "Parallel(2)", {"use"}),
        ("from app.other import log", "log.info(1)", set()),
        ("from app.other import Layer", "Layer()", set()),
        ("from app.other import Local", "Local()", set()),
        ("from app.other import READY", "READY", set()),
        ("from app.other import spread", "spread(1)", {"use"}),
        ("from app import other", "other.len(1)", set()),
        ("from app.scores import score_all", "score_all(1)", {"use"}),
        ("from app.scores import score_one", "score_one(1)", set()),
    ],
)
def test_which_names_of_a_module_start_workers(project, line, name, asked):
    project.write("app/__init__.py", "")
    project.write("app/workers.py", RUN_ALL)
    project.write(
        "app/lazy.py",
        "_structure = {'workers': ['Config', 'run_all']}\nif CHECKING:\n"
        "    from .nothing import *\n    from .workers import (\n"
        "        Config,\n        run_all,\n    )\n",
    )
    project.write(
        "app/settings.py",
        "from joblib import Parallel\n\n\nclass ContextParallel:\n    degree = 2\n",
    )
    project.write("app/other.py", OTHER)
    project.write("app/spread.py", SPREAD)
    project.write("app/scores.py", SCORES)
    assert (
        read_as_a_program(project, f"import torch\n{line}\n\n\ndef use():\n    {name}\n") == asked
    )


CLASSES = (
    "import torch\nfrom multiprocessing import Pool\n"
    "from concurrent.futures import ThreadPoolExecutor\nimport app.workers as aw\n"
    "import app.workers\n\n\n"
    "class Runner:\n    def __init__(self, size):\n        self.size = size\n\n"
    "    def spread(self, f, items):\n        return Pool(self.size).map(f, items)\n\n"
    "    def square(self, items):\n        return self.spread(abs, items)\n\n"
    "    @property\n    def width(self):\n        return self.size\n\n\n"
    "class Ready:\n    def __enter__(self):\n        self.pool = Pool(2)\n\n\n"
    "class Passing:\n    def go(self, w):\n        return aw.run_all(w)\n\n"
    "    def stay(self, w):\n        return aw.Config()\n\n\n"
    "class Heir(Runner):\n    def alone(self, item):\n        return item\n\n\n"
    "def made():\n    return Heir(2)\n\n\n"
    "def used(items):\n    return Heir(2).square(items)\n\n\n"
    "def plainly(w):\n    return app.workers.run_all(w)\n\n\n"
    "class Holder:\n    def open(self):\n        return Ready()\n\n\n"
    "class Asking:\n    def __init__(self, spread):\n        self.size = spread\n\n\n"
    "class Named:\n    def spread(self):\n        return Pool(2)\n\n"
    "    run = spread\n\n\n"
    "class Reader:\n    def spread(self, paths):\n"
    "        return list(ThreadPoolExecutor(2).map(open, paths))\n\n\n"
    "def read(paths):\n    with ThreadPoolExecutor(2) as pool:\n"
    "        return list(pool.map(open, paths))\n"
)


def write_classes(project):
    project.write("app/__init__.py", "")
    project.write("app/workers.py", RUN_ALL)
    project.write("app/classes.py", CLASSES)


@pytest.mark.parametrize(
    ("line", "name", "asked"),
    [
        ("Runner", "Runner(2)", set()),
        ("Runner", "Runner(2).width", set()),
        ("Runner", "Runner(2).spread(abs, [1])", {"use"}),
        ("Runner", "Runner(2).square([1])", {"use"}),
        ("Ready", "Ready()", {"use"}),
        ("Asking", "Asking(2)", set()),
        ("Named", "Named()", {"use"}),
        ("Holder", "Holder().open()", {"use"}),
        ("plainly", "plainly(1)", {"use"}),
        ("Passing", "Passing().stay(1)", set()),
        ("Passing", "Passing().go(1)", {"use"}),
        ("Heir", "Heir(2).alone(1)", set()),
        ("Heir", "Heir(2).spread(abs, [1])", {"use"}),
        ("made", "made()", set()),
        ("made", "made().square([1])", {"use"}),
        ("used", "used([1])", {"use"}),
        ("Runner, Reader", "Runner(2).spread(abs, [1])", {"use"}),
        ("Reader", "Reader().spread(['a'])", set()),
        ("read", "read(['a'])", set()),
        ("read", "read(['a']); torch.manual_seed(0)", {"use"}),
        ("Runner", "square = 1; square + 1", set()),
    ],
)
def test_which_methods_of_a_class_start_workers(project, line, name, asked):
    write_classes(project)
    source = f"import torch\nfrom app.classes import {line}\n\n\ndef use():\n    {name}\n"
    assert read_as_a_program(project, source) == asked


@pytest.mark.parametrize(
    ("name", "methods"),
    [
        ("Runner", {"spread", "square"}),
        ("Holder", {"open"}),
        ("made", {"spread", "square"}),
        ("used", {""}),
        ("Ready", {""}),
    ],
)
def test_what_of_a_name_starts_workers(project, name, methods):
    write_classes(project)
    modules = Modules(str(project.write("train.py", "")), Reader())
    assert modules.reaches("starts", "app.classes", name) == methods


def test_methods_of_a_class_that_extends_one_whose_methods_start_workers(project):
    write_classes(project)
    source = (
        "import torch\nfrom app.classes import Runner\n\n\n"
        "class Own(Runner):\n    def work(self, item):\n        return item * 2\n\n\n"
        "def use():\n    return Own(2)\n"
    )
    assert read_as_a_program(project, source) == {"work"}


@pytest.mark.parametrize(
    ("line", "call", "asked"),
    [
        ("from app.work import clean", "clean", set()),
        ("from app.work import train", "train", {"use"}),
        ("from app import work", "work.clean", set()),
        ("from app import work", "work.train", {"use"}),
        ("from app.through import clean", "clean", set()),
        ("from app.through import train", "train", {"use"}),
        ("from app.work import hide", "hide", {"use"}),
        ("from app.work import look", "look", set()),
    ],
)
def test_what_matters_to_workers_comes_from_another_file(project, line, call, asked):
    project.write("app/__init__.py", "")
    project.write("app/through.py", "from app.work import *\n")
    project.write(
        "app/work.py",
        "import os\nimport torch as T\n\n\ndef clean(x):\n    step = 1\n    return x + step\n\n\n"
        "def train(x):\n    return T.ones(3) * x\n\n\n"
        "def hide(x):\n    os.environ['CUDA_VISIBLE_DEVICES'] = ''\n\n\n"
        "def look(x):\n    return os.environ['HOME']\n",
    )
    source = (
        f"from multiprocessing import Pool\n{line}\n\n\n"
        f"def use(items):\n    return Pool(2).map({call}, items)\n"
    )
    assert read_as_a_program(project, source) == asked


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        ("total = clean(1); total += 1", set()),
        ("total = make(1); total += 1", {"use"}),
        ("make(1)", set()),
        ("reset(1)", {"use"}),
        ("quiet(1)", {"use"}),
    ],
)
def test_what_threads_change_comes_from_another_file(project, line, asked):
    project.write("app/__init__.py", "")
    project.write(
        "app/work.py",
        "import torch\n\n\ndef clean(x):\n    return x\n\n\n"
        "def make(x):\n    return torch.zeros(3) + x\n\n\n"
        "def reset(x):\n    torch.manual_seed(0)\n\n\n"
        "@torch.no_grad()\ndef quiet(x):\n    return x\n",
    )
    source = (
        "import torch\nfrom concurrent.futures import ThreadPoolExecutor\n"
        "from app.work import clean, make, quiet, reset\n\n\n"
        f"def use(items):\n    {line}\n"
        "    return ThreadPoolExecutor(2).map(abs, items)\n"
    )
    assert read_as_a_program(project, source) == asked


SPREAD = (
    "from joblib import Parallel, delayed\n\n\ndef spread(f, items):\n"
    "    return Parallel(2)(delayed(f)(item) for item in items)\n"
)
SCORES = (
    "from app.spread import spread\n\n\ndef score(w):\n    return (w**2).sum()\n\n\n"
    "def score_all(w):\n    return spread(score, [w, w])\n\n\ndef score_one(w):\n"
    "    return score(w)\n"
)


@pytest.mark.parametrize("others", [0, 60])
def test_what_a_module_between_gives_to_a_helper_of_a_third_file(project, others):
    project.write("app/__init__.py", "")
    project.write("app/spread.py", SPREAD)
    project.write("app/scores.py", SCORES)
    for number in range(others):
        project.write(f"app/other_{number}.py", "import torch\n")
    program = (
        "import torch\nfrom app.scores import {0}\n\nw = torch.ones(3, requires_grad=True)\n"
        "sum({0}(w)).backward()\n"
    )
    project.write("train.py", program.format("score_one"))
    assert project.codes() == []
    project.write("train.py", program.format("score_all"))
    assert project.codes() == [
        ("GG102", "app/scores.py", 5),
        ("GG101", "app/spread.py", 5),
        ("GG103", "train.py", 5),
    ]


TRAINS_ALL = (
    "from app.spread import spread\n\n\ndef train(pair):\n    net, x = pair\n"
    "    loss = net(x).sum()\n    loss.backward()\n    return loss.item()\n\n\n"
    "def train_all(net, xs):\n    return spread(train, [(net, x) for x in xs])\n"
)


def test_a_program_that_only_asks_for_gradients_and_a_package_that_takes_them(project):
    project.write("app/__init__.py", "from .fits import fit\n")
    project.write("app/spread.py", SPREAD)
    project.write(
        "app/fits.py",
        "from . import spread\n\n\ndef one(w):\n    return (w * 2).sum()\n\n\n"
        "def fit(w):\n    sum(spread.spread(one, [w, w])).backward()\n",
    )
    project.write(
        "run.py",
        "import torch\nfrom app import fit\n\nfit(torch.ones(3, requires_grad=True))\n",
    )
    assert project.codes() == [
        ("GG102", "app/fits.py", 5),
        ("GG103", "app/fits.py", 9),
        ("GG101", "app/spread.py", 5),
    ]


def test_a_program_that_steps_alone_with_what_a_module_between_trains(project):
    project.write("app/__init__.py", "")
    project.write("app/spread.py", SPREAD)
    project.write("app/learn.py", TRAINS_ALL)
    project.write(
        "train.py",
        "import torch\nfrom app.learn import train_all\n\nnet = torch.nn.Linear(3, 1)\n"
        "opt = torch.optim.SGD(net.parameters(), lr=0.1)\nfor _ in range(3):\n"
        "    opt.zero_grad()\n    train_all(net, [torch.ones(3)] * 2)\n    opt.step()\n",
    )
    assert [code for code, _, _ in project.codes()] == ["GG106"]


OTHER = '''\
import logging
from multiprocessing import Pool

from app import workers
from app.recipes import Recipe
from app.workers import run_all

log = logging.getLogger("workers")


class Layer:
    """Parallel attention, with delayed scaling."""

    def forward(self, x):
        return "Parallel" if x == Recipe.delayed else 'delayed'  # not Parallel


class Local:
    def spawn(self, function):
        function()


READY = bool(log)


def pool():
    return Pool(2)


if READY:
    spread = run_all
'''


def read_as_a_program(project, source):
    """The functions of a program that are run."""
    path = project.write("train.py", source)
    modules = Modules(str(path), Reader())
    module = parse(source.encode(), str(path), modules.name, modules.package)
    relevance = Relevance(module, modules, registry().words)
    seen = relevance.seen.definitions
    return {seen[ident][0] for ident in relevance.definitions(loops=False)}


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        ("from app.train import learn as act", {"use"}),
        ("from app.train import fit as act", {"use"}),
        ("import app.train\nact = app.train.learn", {"use"}),
        ("from app.train import weigh as act", set()),
        ("from app.train import Learner as act", {"use"}),
    ],
)
def test_collectives_matter_beside_names_that_train(project, line, asked):
    project.write("app/__init__.py", "")
    project.write(
        "app/train.py",
        "def learn(loss):\n    loss.backward()\n\n\ndef weigh(loss):\n"
        '    """One step of the backward pass needs it."""\n    return loss * 2\n\n\n'
        "def fit(loss):\n    learn(loss)\n\n\nclass Learner:\n"
        "    def training_step(self, batch):\n        return batch\n",
    )
    source = "import torch.distributed as dist\n"
    source += f"{line}\n\n\ndef use(x):\n    dist.gather(x, 1)\n    act(x)\n"
    assert read_as_a_program(project, source) - {""} == asked


@pytest.mark.parametrize("way", ["from .frames import load", "from . import frames"])
@pytest.mark.parametrize(
    ("loads", "asked"), [("import dask.dataframe", {"use"}), ("import pandas", set())]
)
def test_a_method_of_a_library_is_one_where_the_project_has_it(project, loads, asked, way):
    project.write("app/__init__.py", f"{way}\n")
    project.write("app/frames.py", f"{loads}\n\n\ndef load():\n    return 1\n")
    source = "import torch\nfrom app import load\n\n\ndef use():\n    load().persist()\n"
    assert read_as_a_program(project, source) == asked


SCORE = "import torch\n\n\ndef score(x):\n    return torch.tensor(x, device='cuda').norm().item()\n"
SPREADS = (
    "from joblib import Parallel, delayed\n\n\n"
    "def spread(task):\n    return Parallel(n_jobs=2)(delayed(task)([k]) for k in range(4))\n"
)
PLAIN = "def score(x):\n    return sum(x)\n"
ASKS = (
    SPREADS.replace("def spread", "from core import score\n\n\ndef spread") + "\n\nspread(score)\n"
)
ASKS_BETWEEN = ASKS.replace("from core", "from between").replace("score", "scored")
BETWEEN = "from core import score\n\n\ndef scored(x):\n    return score(x)\n"


@pytest.mark.parametrize(
    ("package", "files", "program", "found"),
    [
        ("from .score import score\n", {}, ASKS, True),
        ("from core.score import score\n", {}, ASKS, True),
        ("from .score import score\n", {"between.py": BETWEEN}, ASKS_BETWEEN, True),
        ("from .given import score\n", {"core/given.py": PLAIN}, ASKS, False),
        ("from . import score\n", {}, ASKS, False),
        ("", {}, ASKS, False),
        (
            "from .spread import spread\n",
            {"core/spread.py": SPREADS, "tasks.py": SCORE},
            "from core import spread\nfrom tasks import score\n\nspread(score)\n",
            True,
        ),
    ],
)
def test_a_package_gives_what_is_called_as_the_module_that_has_it(
    project, package, files, program, found
):
    project.write("core/__init__.py", package)
    project.write("core/score.py", SCORE)
    for name, text in files.items():
        project.write(name, text)
    project.write("run.py", program)
    assert ("GG201" in {code for code, *_ in project.codes()}) == found


WAYS = (
    "import os\nimport torch\nimport torch.distributed as dist\nfrom joblib import Memory\n"
    "from torch.utils.data import DataLoader\nfrom torch.nn import AvgPool2d\n\n\n"
    "def pooled(x):\n    return AvgPool2d(2)(x)\n\n\n"
    "def load(ds, n):\n    return DataLoader(ds, num_workers=n)\n\n\n"
    "def keep(f):\n    return Memory('.').cache(f)\n\n\n"
    "def mean(x):\n    dist.broadcast_object_list([x])\n    return x\n\n\n"
    "def move(x):\n    return x.cuda()\n\n\n"
    "def clip(x):\n    x.clamp_(0, 1)\n\n\n"
    "def plain(x):\n    return x + 1\n\n\n"
    "class Learner:\n    def fit(self, loader):\n        return self.training_step(loader)\n\n"
    "    def training_step(self, batch):\n        return batch.sum()\n\n"
    "    def name(self):\n        return 'learner'\n"
)


@pytest.mark.parametrize(
    ("what", "name", "ways"),
    [
        ("starts", "pooled", set()),
        ("starts", "load", set()),
        ("loads", "load", {""}),
        ("loads", "plain", set()),
        ("remembers", "keep", {""}),
        ("remembers", "load", set()),
        ("trains-together", "mean", {""}),
        ("trains-together", "move", set()),
        ("matters", "move", {""}),
        ("matters", "plain", set()),
        ("changes", "clip", {""}),
        ("changes", "move", set()),
        ("trains", "Learner", {"fit", "training_step"}),
        ("trains", "plain", set()),
    ],
)
@pytest.mark.parametrize("through", ["app.ways", "app"])
def test_what_a_name_reaches(project, what, name, ways, through):
    project.write("app/ways.py", WAYS)
    project.write("app/__init__.py", "from app.ways import *\n")
    modules = Modules(str(project.write("train.py", "")), Reader())
    assert modules.reaches(what, through, name) == ways
