"""Which functions of a module are run: those that can lead to workers, not those that share a
variable's name with one."""

from __future__ import annotations

import ast

from gradguard_lint.engine.relevance import relevant, survey
from gradguard_lint.models.rows import registry


def wanted(source: str) -> set[str]:
    seen = survey(ast.parse(source), frozenset({"forward"}))
    found = relevant(seen, source.encode(), registry().words, lambda _: set(), lambda _: False)
    return {name for ident, (name, _) in seen.definitions.items() if ident in found}


def test_a_variable_of_one_function_is_none_of_another():
    assert wanted(
        "import torch\nfrom multiprocessing import Pool\n"
        "def starts():\n    pool = Pool(2)\n    return pool\n"
        "def calls():\n    return starts()\n"
        "def swims(pool):\n    return pool.depth\n"
    ) == {"starts", "calls"}


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
    source = "import {}\ndef take(x):\n    return gather(x, 1)\n"
    assert wanted(source.format("tensorflow")) == set()
    assert wanted(source.format("torch.distributed")) == {"take"}


def test_a_backend_matters_where_one_may_be_dask():
    program = (
        "from joblib import Parallel\n"
        "def run(tasks):\n    return Parallel(2, backend={})(tasks)\n"
        "def plain(tasks):\n    return Parallel(2)(tasks)\n"
    )
    assert wanted(program.format("'loky'")) == set()
    assert wanted(program.format("'dask'")) == {"run"}
