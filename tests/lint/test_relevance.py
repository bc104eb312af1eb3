"""Which functions of a module are run: those that can lead to workers, not those that share a
variable's name with one."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradguard_lint.engine.footprint import OWN_CODE
from gradguard_lint.engine.relevance import Relevance
from gradguard_lint.models.rows import registry
from gradguard_lint.project.modules import Modules
from gradguard_lint.project.reader import Reader
from gradguard_lint.reading.source import parse

OWN = "the module's own code"


def found(source: str, *, loops: bool = False) -> set[str]:
    modules = Modules(str(Path(__file__).parent / "nowhere" / "program.py"), Reader())
    module = parse(source.encode(), "program.py", "program", "")
    relevance = Relevance(module, modules, registry().words)
    assert relevance.matters(loops=loops) == bool(relevance.definitions(loops=loops))
    return {
        OWN if ident == OWN_CODE else name
        for ident, (name, _) in relevance.seen.definitions.items()
        if ident in relevance.definitions(loops=loops)
    }


def wanted(source: str) -> set[str]:
    return found(source) - {OWN}


def test_a_variable_of_one_function_is_none_of_another():
    assert wanted(
        "import torch\nfrom multiprocessing import Pool\n"
        "def starts():\n    pool = Pool(2)\n    return pool\n"
        "def calls():\n    return starts()\n"
        "def swims(pool):\n    return pool.depth\n"
    ) == {"starts", "calls"}


def test_a_variable_is_no_method_of_that_name():
    assert wanted(
        "import torch\nfrom multiprocessing import Pool\n"
        "class Runner:\n"
        "    def batch(self, f):\n        return Pool(2).map(f, [1])\n"
        "    def twice(self, f):\n        return self.batch(f)\n"
        "    again = batch\n"
        "    @batch\n    def decorated(self):\n        pass\n"
        "    wide = property(batch)\n"
        "def swims(batch):\n    size = batch\n    return size\n"
        "def calls(runner, f):\n    return runner.batch(f)\n"
        "def asks(runner):\n    return runner.again\n"
        "def reads(runner):\n    return runner.wide\n"
    ) == {"batch", "twice", "decorated", "calls", "asks", "reads"}


def test_what_stands_in_a_class_is_no_name_of_it():
    assert wanted(
        "import torch\nfrom multiprocessing import Pool\nLIMIT = 3\n"
        "class Runner:\n    size = LIMIT\n"
        "    def __init__(self):\n        self.pool = Pool(2)\n"
        "def plain():\n    return LIMIT\n"
    ) == {"__init__"}


def test_a_class_may_call_its_methods_where_it_is_made():
    source = "import torch\nfrom multiprocessing import Pool\nclass Runner:\n    def begin(f):\n"
    assert OWN in found(source + "        return Pool(2)\n    begin(1)\n")
    assert OWN not in found(source + "        return Pool(2)\n    1\n")


@pytest.mark.parametrize("line", ["compute = 1", "f(compute=True)", "submit = compute"])
def test_a_variable_is_no_starter_of_that_name(line: str):
    assert (
        wanted(f"import torch, dask\ndef plain(compute):\n    {line}\n    return compute\n")
        == set()
    )


@pytest.mark.parametrize(
    ("line", "asked"), [("class Parallel:\n    pass", set()), ("from own import Parallel", {"run"})]
)
def test_what_projects_hand_on_is_theirs_where_they_define_it(line: str, asked: set[str]):
    assert wanted(f"import torch\n{line}\ndef run():\n    return Parallel(2)\n") == asked


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        ("return x.to(device)", {"work"}),
        ("return make(x, requires_grad=True)", {"work"}),
        ("return x.fit()", {"work"}),
        ("fit = x; return fit", set()),
        ("return make(x, size=2)", set()),
    ],
)
def test_what_matters_where_no_framework_is_imported(line: str, asked: set[str]):
    source = f"from multiprocessing import Pool\ndef work(x, device):\n    Pool(2)\n    {line}\n"
    if "to(device)" not in line:
        source = source.replace("device", "name")
    assert wanted(source) == asked


def test_what_is_kept_elsewhere_is_followed():
    assert wanted(
        "import torch\nfrom multiprocessing import Pool\n"
        "class Runner:\n"
        "    def __init__(self):\n        pool = Pool(2)\n        self.workers = pool\n"
        "    def run(self, f):\n        return self.workers.map(f, [1])\n"
        "    def rest(self):\n        return 1\n"
        "def begin():\n    global shared\n    shared = Pool(2)\n"
        "def use(f):\n    return shared.map(f, [1])\n"
    ) == {"__init__", "run", "begin", "use"}


def test_what_is_kept_with_an_annotation_is_followed():
    assert wanted(
        "import torch\nfrom multiprocessing import Pool\n"
        "class Runner:\n"
        "    def __init__(self):\n        self.workers: Pool = Pool(2)\n"
        "    def run(self, f):\n        return self.workers.map(f, [1])\n"
        "    def rest(self):\n        return 1\n"
    ) == {"__init__", "run"}


def test_a_class_is_known_by_its_name():
    assert wanted(
        "import torch\nfrom multiprocessing import Pool, Process\n"
        "class Worker(Process):\n    def run(self):\n        pass\n"
        "class Runner:\n    def __enter__(self):\n        self.pool = Pool(2)\n"
        "class Own(Runner):\n    def __init__(self):\n        super().__init__()\n"
        "class Other:\n    def __init__(self):\n        super().__init__()\n"
        "def starts():\n    Worker().start()\n"
        "def enters():\n    with Own():\n        pass\n"
        "def rests():\n    Other()\n"
    ) == {"__enter__", "__init__", "starts", "enters"}


def test_collectives_matter_where_the_module_can_have_them():
    source = (
        "import {0}\n"
        "def take(x):\n    return {0}.gather(x, 1)\n"
        "def train(x):\n    take(x).sum().backward()\n"
    )
    assert wanted(source.format("tensorflow")) == set()
    assert wanted(source.format("torch.distributed")) == {"train"}


def test_samplers_matter_whatever_trains():
    assert wanted(
        "from torch.utils.data import DistributedSampler as Sampler\n"
        "def load(data, epochs, learn):\n    sampler = Sampler(data)\n"
    ) == {"load"}


def test_a_backend_matters_where_one_may_be_dask():
    program = (
        "from joblib import Parallel\n"
        "def run(tasks):\n    return Parallel(2, backend={})(tasks)\n"
        "def plain(tasks):\n    return Parallel(2)(tasks)\n"
    )
    assert wanted(program.format("'loky'")) == set()
    assert wanted(program.format("'dask'")) == {"run"}


def test_the_modules_own_code_is_told_apart():
    imported = "import torch\nfrom multiprocessing import Pool\n"
    assert found(imported + "def run(f):\n    return Pool(2).map(f, [1])\n") == {"run"}
    assert found(imported + "pool = Pool(2)\ndef rest():\n    pass\n") == {OWN}
    assert found(imported + "def rest():\n    pass\n") == set()
    assert found("from keras.wrappers import scikit_learn\n") == {OWN}


def test_a_string_matters_where_it_is_used():
    program = (
        "import os\nfrom joblib import Parallel\n{}"
        "def hides(tasks):\n    os.environ[{}] = '0'\n    return Parallel(2)(tasks)\n"
        "def sets(tasks):\n    os.environ['OTHER'] = '0'\n    return Parallel(2)(tasks)\n"
    )
    assert wanted(program.format("", "'CUDA_VISIBLE_DEVICES'")) == {"hides"}
    assert wanted(program.format("NAME = 'CUDA_VISIBLE_DEVICES'\n", "NAME")) == {"hides"}


THREADS = (
    "import torch\nfrom concurrent.futures import ThreadPoolExecutor\n"
    "class Runner:\n"
    "    def __init__(self, model):\n"
    "        self.model = model\n"
    "        self.count = 0\n"
    "        self.total = torch.zeros(())\n"
    "        self.pool = ThreadPoolExecutor(2)\n"
    "    def run(self, items):\n"
    "        return [self.pool.submit(self.work, item) for item in items]\n"
    "    def work(self, item):\n"
    "        {}\n"
    "        return self.model(item)\n"
)


@pytest.mark.parametrize(
    "line",
    [
        "self.count += 1",
        "self.model.__dict__",
        "found = []; found += [item]",
        "self.results[0] = torch.ones(3)",
        "with self.lock: pass",
    ],
)
def test_threads_that_change_nothing_are_left_alone(line: str):
    assert wanted(THREADS.format(line)) == set()


@pytest.mark.parametrize(
    "line",
    [
        "self.total += 1",
        "self.total[:] = 1",
        "self.total.data = item",
        "self.total.data[0] += 1",
        "self.model.grad = None; self.model.grad.add_(item)",
        "item += torch.ones(3)",
        "self.weights.add_(torch.ones(3))",
        "self.optimizer.step()",
        "torch.manual_seed(0)",
        "set_all_seeds(0)",
        "self.model.register_buffer('n', item)",
        "with torch.autocast('cpu'): pass",
    ],
)
def test_threads_that_change_what_they_share_are_run(line: str):
    assert wanted(THREADS.format(line)) == {"run"}


@pytest.mark.parametrize(
    ("kept", "expected"), [("buffer", {"main"}), ("len(buffer)", set()), ("0", set())]
)
def test_who_makes_objects_that_run_in_threads_does_what_they_do(kept: str, expected: set[str]):
    program = (
        "import threading\nimport torch\n"
        "class Actor(threading.Thread):\n"
        "    def __init__(self, buffer):\n"
        "        super().__init__()\n"
        f"        self.buffer = {kept}\n"
        "    def run(self):\n        self.buffer += 1\n"
        "def main():\n"
        "    buffer = torch.zeros(3)\n"
        "    actors = [Actor(buffer) for _ in range(3)]\n"
        "    for actor in actors:\n        actor.start()\n"
    )
    assert wanted(program) & {"main"} == expected


def test_who_turns_gradients_off_around_threads_is_run():
    program = THREADS.format("pass") + (
        "def predicts(runner, items):\n"
        "    with torch.no_grad():\n        return runner.run(items)\n"
        "def trains(runner, items):\n    return runner.run(items)\n"
    )
    assert wanted(program) == {"predicts"}
    assert wanted(
        THREADS.format("pass")
        + "@torch.no_grad\ndef predicts(runner, items):\n    return runner.run(items)\n"
    ) == {"predicts"}


def test_an_executor_may_be_one_of_processes():
    program = (
        "import torch\nfrom concurrent.futures import ThreadPoolExecutor{}\n"
        "def run(pool, f, x):\n    return pool.submit(f, x)\n"
        "def main(f, x):\n    return run(ThreadPoolExecutor(2), f, x)\n"
        "def other(f, x):\n    return run({}(2), f, x)\n"
    )
    assert wanted(program.format("", "ThreadPoolExecutor")) == set()
    for name in ("Pool", "Process"):
        source = f"import torch\nfrom multiprocessing import {name} as P\ndef run():\n    P()\n"
        assert wanted(source) == {"run"}
    assert {"run", "other"} <= wanted(
        program.format(", ProcessPoolExecutor", "ProcessPoolExecutor")
    )


def test_a_starter_is_called_so_where_its_package_is_imported():
    program = "import torch, {}\ndef connect():\n    return {}.Client()\n"
    assert wanted(program.format("distributed", "distributed")) == {"connect"}
    assert wanted(program.format("etcd", "etcd")) == set()
    assert wanted("import torch\nfrom etcd import Client\ndef run():\n    Client()\n") == set()
