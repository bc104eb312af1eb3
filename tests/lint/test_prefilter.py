"""The byte search: what costs more than that, and what does not."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from gradguard_lint.project.imports import dotted_names, import_lines, imported_names
from gradguard_lint.project.prefilter import Prefilter

TORCH = "import torch\n"


def names_in(text):
    return dotted_names(imported_names(import_lines(text)))


def kept(text, **others):
    with tempfile.TemporaryDirectory() as folder:
        files = {os.path.join(folder, f"{name}.py"): it for name, it in others.items()}
        files[os.path.join(folder, "entry.py")] = text
        for path, source in files.items():
            Path(path).write_text(source)
        contents = {path: source.encode() for path, source in files.items()}
        return Prefilter(contents).keeps(os.path.join(folder, "entry.py"))


@pytest.mark.parametrize(
    "text",
    [
        TORCH + "from joblib import Parallel, delayed\nParallel(2)(delayed(f)(k) for k in x)\n",
        TORCH + "from multiprocessing import Pool\nPool(2).map(f, x)\n",
        TORCH + "torch.multiprocessing.spawn(f, nprocs=2)\n",
        TORCH + "from torch import multiprocessing as mp\nmp.Process(target=f).start()\n",
        TORCH + "from multiprocessing import Process\nclass W(Process, Base):\n    pass\nW()\n",
        TORCH + "import ray\n@ray.remote\ndef f():\n    pass\n",
        TORCH + "from datasets import load_dataset\nload_dataset('x').map(f, num_proc=4)\n",
        "from keras.wrappers.scikit_learn import KerasClassifier\n",
        "from joblib import Parallel\nParallel(2, backend='dask')\n",
        "from joblib import Parallel\nkind = 'dask'\nParallel(2, backend=kind)\n",
        "from joblib import Parallel\ndef f():\n    return 'dask'\nParallel(2, backend=f())\n",
        "from joblib import Parallel\noptions = {'backend': 'dask'}\nParallel(**options)\n",
        "from joblib import Parallel\nParallel(max(n, 2), 'dask')\n",
        "from joblib import Parallel\nParallel(\n    *(\n        2,\n        'dask',\n    )\n)\n",
        "from joblib import Parallel\nkind = 'dask'\nParallel(2, kind)\n",
        "import numpy as np\nfrom multiprocessing import Pool\ndef f(k):\n"
        "    return np.random.rand()\nPool(2).map(f, x)\n",
        "import numpy as np\nfrom datasets import load_dataset\ndef f(row):\n"
        "    return np.random.rand()\nload_dataset('x').map(f, num_proc=4)\n",
        "import numpy as np\nfrom datasets import load_dataset\nrows = load_dataset('x')\n"
        "rows.map(f, fn_kwargs={'rng': np.random.default_rng(0)}, num_proc=4)\n",
        "import numpy as np\nimport ray\nrng = np.random.default_rng(0)\n"
        "ray.get([f.remote(rng, k) for k in x])\n",
        "from multiprocessing import Pool\ndef f(k):\n    return tape.gradient(loss(k), w)\n"
        "Pool(2).map(f, x)\n",
        "import scipy.stats as st\nfrom multiprocessing import Pool\ndef f(k):\n"
        "    return st.norm.rvs()\nPool(2).map(f, x)\n",
        "import pandas as pd\nfrom multiprocessing import Pool\ndf = pd.DataFrame(d)\ndef f(k):\n"
        "    return df.sample(k)\nPool(2).map(f, x)\n",
        "import random\nfrom joblib import Parallel, delayed\ndef f(k):\n"
        "    return random.random()\nrandom.seed(0)\nParallel(2)(delayed(f)(k) for k in x)\n",
        "import numpy as np\nfrom joblib import delayed\ndef g():\n"
        "    rng = np.random.default_rng()\n    return delayed(f)(rng)\n",
        "import tensorflow as tf\ntf.map_fn(f, (x, (y)), parallel_iterations=4)\n",
        "import tensorflow as tf\ntf.map_fn(f, x, fn_output_signature=tf.TensorSpec(dtype=d))\n",
        "from sklearn.model_selection import GridSearchCV\nimport xgboost\n"
        "GridSearchCV(xgboost.XGBClassifier(device='cuda'), {}, n_jobs=-1)\n",
        "from sklearn.model_selection import cross_val_score\n"
        "from cuml.svm import SVC\ncross_val_score(SVC(), x, y, n_jobs=4)\n",
        TORCH + "from tqdm.contrib.concurrent import process_map\nprocess_map(f, xs)\n",
        TORCH + "import asyncio\nasyncio.to_thread(f, x)\n",
        TORCH + "from joblib.externals.loky import get_reusable_executor\n"
        "get_reusable_executor(2).submit(f, x)\n",
        TORCH + "import threading\nthreading.Thread(target=f).start()\n",
        TORCH + "from concurrent import futures\npool = futures.ProcessPoolExecutor\n",
        TORCH + "from multiprocessing import Process\nstart(Process, f)\n",
        TORCH + "from joblib import Parallel\nkinds = {'many': Parallel, 'one': One}\n",
        TORCH + "import torch.distributed as dist\ndist.all_gather(o, y)\nloss.backward()\n",
        TORCH + "from torch.nn.parallel import DistributedDataParallel as DDP\nl.backward()\n",
        "from torch.utils.data import DataLoader, DistributedSampler\n"
        "DataLoader(d, sampler=DistributedSampler(d))\n",
        TORCH + "from accelerate import Accelerator\na = Accelerator()\nloss.backward()\n",
        "import lightning\nself.all_gather(y)\ndef training_step(self, batch):\n    pass\n",
    ],
)
def test_what_may_have_a_pitfall_is_kept(text):
    assert kept(text)


@pytest.mark.parametrize(
    "text",
    [
        TORCH + "import torch.distributed as dist\nrpc.remote('a', f)\n",
        TORCH + "import torch.distributed as dist\ndist.all_gather(o, y)\n",
        TORCH + "torch.gather(x, 1, i)\nloss.backward()\n",
        TORCH + "# from multiprocessing import Pool\n# Pool(2).map(f, x)\n",
        TORCH + '"""\n>>> from joblib import delayed\n>>> delayed(f)(1)\n"""\n',
        "from joblib import parallel_config\nParallel\nparallel_config(n_jobs=2, backend='dask')\n",
        "from joblib import Parallel, delayed\nParallel(2)(delayed(f)(k, 'dask') for k in x)\n",
        "from joblib import Parallel\nkind = 'dask'\nParallel(2, verbose=kind)\n",
        "import numpy as np\nfrom multiprocessing import Pool\ndef f(k):\n"
        "    return np.gradient(k)\nPool(2).map(f, x)\n",
        "import numpy as np\nfrom multiprocessing import Pool\ndef test_f():\n"
        "    x = np.random.rand(3)\n    Pool(2).map(g, x)\n",
        "import pandas as pd\nfrom multiprocessing import Pool\ndf = pd.DataFrame(d)\n"
        "x = df.sample(3)\nPool(2).map(g, x)\n",
        "import other\nfrom multiprocessing import Pool\ndef f(k):\n"
        "    return other.sample(k)\nPool(2).map(f, x)\n",
        "import random\nfrom joblib import Parallel, delayed\nx = [random.random()]\n"
        "random.seed(0)\nParallel(2)(delayed(f)(k) for k in x)\n",
        "import tensorflow as tf\ntf.map_fn(f, x)\nloop(parallel_iterations=1)\n",
        "import tensorflow as tf\ntf.map_fn(f, x, fn_output_signature=tf.TensorSpec(shape=s))\n",
        "import tensorflow as tf\ndef _vmap_fn(f, **options):\n    return f\n",
        "import xgboost\nxgboost.XGBClassifier(device='cuda', n_jobs=1)\n",
    ],
)
def test_what_cannot_is_not(text):
    assert not kept(text)


JAX = "import jax\n"
FORKED = "from multiprocessing import Process\nfrom work import f\nProcess(target=f).start()\n"


@pytest.mark.parametrize(
    ("text", "others", "is_kept"),
    [
        (JAX + "from multiprocessing import Process\nProcess(target=f).start()\n", {}, True),
        (JAX + "from joblib import Parallel, delayed\n"
         "Parallel(2, backend='multiprocessing')(delayed(f)(k) for k in x)\n", {}, True),
        (JAX + "from torch.utils.data import DataLoader\n"
         "DataLoader(x, num_workers=2, collate_fn=f)\n", {}, True),
        (JAX + "import dask\ndask.delayed(f)(1).compute()\n", {}, False),
        (JAX + "from joblib import Parallel, delayed\ngpu = jax.devices('gpu')[0]\n"
         "Parallel(2)(delayed(f)(k) for k in x)\n", {}, True),
        (JAX + "from joblib import Parallel, delayed\ncpu = jax.devices('cpu')[0]\n"
         "Parallel(2)(delayed(f)(k) for k in x)\n", {}, False),
        (FORKED, {"work": JAX + "def f():\n    pass\n"}, True),
        (FORKED, {"work": "def f():\n    pass\n"}, False),
    ],
)  # fmt: skip
def test_jax_matters_where_processes_may_be_forked(text, others, is_kept):
    assert kept(text, **others) is is_kept


def test_workers_of_other_modules_are_followed():
    runs = (
        "from joblib import Parallel, delayed\nfrom jobs import work\nParallel(2)(delayed(work)())"
    )
    assert kept(runs, jobs=TORCH)
    assert kept(runs, jobs="from deep import work\n", deep=TORCH)
    assert not kept(runs, jobs="import json\n", deep=TORCH)


def test_workers_that_an_import_names_anew_are_followed():
    start = "import joblib\n"
    end = "joblib.Parallel(2)(joblib.delayed(f)(k) for k in x)\n"
    assert kept(start + "from work import run as f\n" + end, work=TORCH + "def run(k): pass\n")
    assert kept(
        start + "import work as f\n" + end.replace("(f)", "(f.run)"),
        work=TORCH + "def run(k): pass\n",
    )


def test_what_a_package_gives_is_followed(project):
    files = {
        "task.py": TORCH + "def embed(x):\n    return x\n",
        "utils/__init__.py": "from .par import pmap\n",
        "utils/par.py": "from joblib import Parallel, delayed\n"
        "def pmap(fn, xs):\n    return Parallel(2)(delayed(fn)(x) for x in xs)\n",
        "entry.py": "from task import embed\nfrom utils import pmap\npmap(embed, [1])\n",
    }
    contents = {str(project.write(path, text)): text.encode() for path, text in files.items()}
    assert Prefilter(contents).keeps(str(project.root / "entry.py"))


def test_estimators_of_the_project_are_followed():
    estimator = TORCH + "from sklearn.base import BaseEstimator\nclass A(BaseEstimator):\n"
    fits = estimator + "    def fit(self, X, y):\n        self.net.to('cuda')\n"
    search = "from sklearn.model_selection import GridSearchCV\nGridSearchCV(A(), g, n_jobs=2)\n"
    assert kept(fits + search)
    assert kept("from work import A\n" + search, work=fits)
    assert not kept("from work import A\n" + search.replace("=2", "=1"), work=fits)
    assert not kept(estimator + search)


def test_arrays_of_dask_and_models_meet_over_modules():
    arrays = "import dask.array as da\ndef rows():\n    return da.from_zarr(p)\n"
    models = "import keras\ndef build():\n    return keras.Sequential(layers)\n"
    fits = "build().fit(rows())\n"
    both = "from data import rows\nfrom nets import build\n" + fits
    assert kept(models + "from data import rows\n" + fits, data=arrays)
    assert kept(arrays + "from nets import build\n" + fits, nets=models)
    assert kept(both, data=arrays, nets=models)
    assert not kept(both, data="def rows():\n    return []\n", nets=models)
    assert not kept(both, data=arrays, nets="import sklearn\n")


def test_loaders_over_tensors_are_kept():
    loader = "from torch.utils import data as d\nx = load().cuda()\n"
    assert kept(loader + "d.DataLoader(d.TensorDataset(x), num_workers=2)\n")
    assert not kept(loader + "d.DataLoader(load(), num_workers=2)\n")


def test_datasets_are_followed_to_what_they_extend_and_are_passed_on_from():
    program = (
        "import torch\nfrom torch.utils.data import DataLoader\nfrom sets import Frames\n"
        "for x in DataLoader(Frames(), num_workers=2):\n    print(x)\n"
    )
    base = (
        "import torch\nfrom torch.utils.data import Dataset\n\n\nclass Base(Dataset):\n"
        "    def __getitem__(self, i):\n        return torch.ones(8){}\n"
    )
    on_gpu, plain = base.format(".cuda()"), base.format("")
    extending = "from ops import Base\n\n\nclass Frames(Base):\n    pass\n"
    assert kept(program, sets=extending, ops=on_gpu)
    assert kept(program, sets="from ops import Base as Frames\n", ops=on_gpu)
    assert kept(program, sets=extending, ops="from far import *\n", far=on_gpu)
    assert kept(program, sets=extending.replace("(B", "(ops.B").replace("from ops import Base",
                "import ops"), ops=on_gpu)  # fmt: skip
    assert not kept(program, sets=extending, ops=plain)
    assert not kept(program, sets="from ops import Base, Frames\n", ops=plain)
    other = "from ops import Base\nfrom far import Other\n\n\nclass Frames(Base):\n    pass\n"
    assert not kept(program, sets=other, ops=plain, far=on_gpu)


def test_loaders_whose_workers_may_be_seeded_alike_are_kept():
    loader = (
        "from torch.utils.data import DataLoader, Dataset\nimport torch\nclass D(Dataset):\n"
        "    def __getitem__(self, k):\n        return torch.rand(2)\n"
        "def first(worker_id):\n    torch.manual_seed({})\n"
        "DataLoader(D(), num_workers=2, worker_init_fn=first)\n"
    )
    assert kept(loader.format(0))
    assert kept(loader.format("args.seed"))
    assert not kept(loader.format("worker_id"))
    assert not kept(loader.format("torch.initial_seed() % 2**32"))


def test_a_module_with_a_framework_is_followed_where_it_is_given_functions():
    launch = "import torch.multiprocessing as mp\ndef launch(fn):\n    mp.spawn(fn, nprocs=2)\n"
    own = launch.replace("(fn)", "()").replace("launch():", "fn():\n    pass\ndef launch():")
    program = TORCH + "from helper import launch\ndef main():\n    launch(f)\n"
    assert kept(program, helper=launch)
    assert kept(program, helper=launch.replace("spawn(fn", "Process(target=fn"))
    assert not kept(program, helper=own)
    assert kept(program + "main()\n", helper=own)
    shown = "from threading import Thread\nThread(target=fn).start()\n"
    assert kept(program, helper=shown)
    assert not kept(program, helper=f'def f(x):\n    """\n{shown}"""\n')


def test_threads_are_followed_to_where_they_seed():
    program = (
        "from concurrent.futures import ThreadPoolExecutor\nfrom helper import draw\n"
        "ThreadPoolExecutor(2).map(draw, x)\n"
    )
    assert kept(program, helper="import numpy as np\ndef draw(k):\n    np.random.seed(k)\n")
    assert not kept(program, helper="import numpy as np\ndef draw(k):\n    np.zeros(k)\n")


def test_generators_that_objects_hold_and_processes_get_are_kept():
    held = (
        "import numpy as np\nfrom multiprocessing import Pool\nclass C:\n"
        "    def __init__(self):\n        {to} = np.random.default_rng(0)\n"
        "Pool(2).map(C().run, x)\n"
    )
    assert kept(held.format(to="self.rng"))
    assert not kept(held.format(to="rng"))
    given = (
        "import numpy as np\nfrom multiprocessing import Process\n"
        "rng = np.random.default_rng(0)\nProcess(target=f, kwargs={'k': %s})\n"
    )
    assert kept(given % "rng")
    assert not kept(given % "k")


def test_generators_that_functions_use_as_globals_are_kept():
    program = (
        "import numpy as np\nfrom joblib import Parallel, delayed\n"
        "rng = np.random.default_rng(0)\n"
        "def draw(k):\n    return {}\n"
        "if __name__ == '__main__':\n    Parallel(2)(delayed({})(k) for k in range(4))\n"
    )
    assert kept(program.format("rng.normal()", "draw"))
    assert kept(program.format("sampled(rng, k)", "draw"))
    assert not kept(program.format("k + 1", "draw"))
    assert not kept(program.format("rng.normal()", "other"))


def test_generators_that_are_kept_for_the_tasks_are_followed():
    program = (
        "import numpy as np\nfrom multiprocessing import Pool\ndef run(n):\n"
        "    rng = np.random.default_rng(0)\n{}\n    Pool(2).starmap(f, tasks)\n"
    )
    for kept_for in (
        "    for k in range(n):\n        tasks.append((k, rng))",
        "    for k in range(n):\n        tasks.append(\n            (k, rng)\n        )",
        "    for k in range(n):\n        tasks += [(k, rng)]",
        "    tasks: list[tuple] = [(k, rng) for k in range(n)]",
        "    for k in range(n):\n        jobs[k] = (k, rng)\n    tasks = jobs.values()",
        "    for k in range(n):\n        job = {'k': k, 'rng': rng}\n        tasks.append(job)",
        "    rngs = [rng] * n\n    tasks = zip(range(n), rngs)",
        "    jobs = [(k, rng) for k in range(n)]\n    for tasks in jobs:\n        pass",
    ):
        assert kept(program.format(kept_for)), kept_for
    for other in (
        "    tasks = [(k, rng.normal()) for k in range(n)]",
        "    tasks = rng.integers(9, size=(n, 2))",
        "    tasks = list(zip(range(n), range(n)))\n    others = [rng]",
        "    if rng != n:\n        tasks = [n]",
    ):
        assert not kept(program.format(other)), other


def test_what_holds_a_generator_and_is_given_to_tasks_is_followed():
    program = (
        "import numpy as np\nfrom joblib import Parallel, delayed\ndef run(n):\n    {}\n"
        "    Parallel(2)(delayed(f)(ctx, k) for k in range(n))\n"
    )
    for held in (
        "ctx = Ctx(np.random.default_rng(0), n)",
        "ctx = Ctx(\n        rng=np.random.default_rng(0),\n        n=n,\n    )",
        "ctx = {'rng': np.random.default_rng(0)}",
        "ctx: dict = dict(rng=np.random.default_rng(0))",
        "ctx.update(rng=np.random.default_rng(0))",
        "ctx['rng'] = np.random.default_rng(0)",
        "own = {'rng': np.random.default_rng(0)}\n    ctx = Ctx(own)",
    ):
        assert kept(program.format(held)), held
    for other in (
        "own = Ctx(np.random.default_rng(0), n)",
        "ctx = Ctx(np.random.default_rng(0).normal(), n)",
        "ctx = Ctx(n)\n    f(np.random.default_rng(0))",
    ):
        assert not kept(program.format(other)), other


def test_methods_are_followed_to_a_framework():
    program = (
        "from helper import f\nfrom multiprocessing import Pool\nclass C:\n"
        "    def go(self):\n        Pool(2).map(self.one, x)\n"
    )
    assert kept(program, helper=TORCH)
    assert not kept(program, helper="import json\n")


def test_modules_that_train_together_are_followed():
    losses = TORCH + "import torch.distributed as dist\ndist.all_gather(o, y)\n"
    trains = TORCH + "from losses import loss\nloss(y).backward()\n"
    wraps = TORCH + "from torch.nn.parallel import DistributedDataParallel\nimport engine\n"
    wraps += "engine.train(DistributedDataParallel(net))\n"
    starts = TORCH + "import engine, losses\nif __name__ == '__main__':\n    pass\n"
    assert kept(trains, losses=losses)
    assert not kept(trains, losses=TORCH)
    assert kept(wraps, engine=trains)
    assert not kept(wraps, engine=TORCH)
    assert kept(starts, engine=trains, losses=losses)
    assert not kept(starts, engine=TORCH, losses=losses)


@pytest.mark.parametrize(
    "named",
    [
        "reduce = dist.all_gather\n",
        "f(dist.all_gather, g)\n",
        "ops = {1: DistributedDataParallel, 2: f}\n",
    ],
)
def test_what_trains_together_may_have_another_name(named):
    program = TORCH + "import torch.distributed as dist\nloss.backward()\n"
    assert kept(program + named)
    assert not kept(program + "isinstance(net, DistributedDataParallel)\n")
    assert not kept(program + "from torch.nn.parallel import DistributedDataParallel\n")


def test_imports_are_found_where_they_stand():
    text = (
        b"from . import (a,\n  b)\nimport c as d, e\nif x: import \\\n  f\nfrom g \\\n import h\n"
        b"x = 1\n"
    )
    assert names_in(text) == [".", ".a", ".b", "c", "e", "g", "g.h"]
    assert b"f" in import_lines(text)
    assert b"from g   import h" in import_lines(text)
    assert b"x = 1" not in import_lines(text)


def test_functions_that_something_else_hands_on_are_followed():
    train = "from net import fit\nfrom runtime import call\ndef train(k):\n    return fit(k)\n"
    pool = "from multiprocessing import Pool\nwith Pool(2) as pool:\n    "
    others = {"net": TORCH + "def fit(k): pass\n", "runtime": "def call(f, k): return f(k)\n"}
    assert kept(train + pool + "pool.starmap(call, [(train, k) for k in x])\n", **others)
    assert kept(train + pool + "pool.starmap(call, [(fit, k) for k in x])\n", **others)
    partial = "from functools import partial\n"
    assert kept(partial + train + pool + "pool.map(partial(train, 2), x)\n", **others)
    assert not kept(train + pool + "pool.map(call, x)\n", **{**others, "net": "def fit(k): pass\n"})


def test_a_program_starts_a_process_whose_class_extends_one_of_another_module():
    program = "from worker import Learner\nif __name__ == '__main__':\n    Learner(1).start()\n"
    others = {
        "worker": TORCH + "from base import Single\nclass Learner(Single):\n    pass\n",
        "base": "import multiprocessing\nclass Single(multiprocessing.Process):\n    pass\n",
    }
    assert kept(program, **others)
    assert not kept(program.replace("start", "print"), **others)


WORKING = (
    "from multiprocessing import Pool\nimport torch\n\n"
    "LIMIT = 3\n\n"
    "def one(k):\n    return torch.ones(k)\n\n"
    "class Runner:\n    def run(self):\n        with Pool(2) as pool:\n"
    "            return pool.map(one, range(LIMIT))\n\n"
    "@decorated\ndef run_all():\n    return Runner().run()\n\n"
    "if __name__ == '__main__':\n    run_all()\n"
)


@pytest.mark.parametrize(
    ("imports", "uses"),
    [
        ("from working import run_all\n", "run_all()"),
        ("from working import Runner as R\n", "R().run()"),
        ("import working\n", "working.run_all()"),
        ("import working as w\n", "call(w)"),
        ("from importlib import import_module\nw = import_module('working')\n", "w.run_all()"),
        ("from working import *\n", "run_all()"),
    ],
)
def test_a_program_comes_to_workers_by_what_it_imports(imports, uses):
    program = TORCH + "{}if __name__ == '__main__':\n    {}\n"
    assert kept(program.format(imports, uses), working=WORKING)


@pytest.mark.parametrize(
    ("imports", "uses"),
    [
        ("from working import one, LIMIT\n", "one(LIMIT)"),
        ("import working\n", "working.one(working.LIMIT)"),
        ("from working import one\n", "one('working.run_all')  # run_all"),
    ],
)
def test_a_program_does_not_come_to_workers_by_what_stands_beside_them(imports, uses):
    program = TORCH + "{}if __name__ == '__main__':\n    {}\n"
    assert not kept(program.format(imports, uses), working=WORKING)
    at_import = WORKING + "found = Runner().run()\nRunner().run()\n"
    assert kept(program.format(imports, uses), working=at_import)


def test_a_package_gives_what_leads_to_workers_from_the_module_that_has_it(project):
    project.write("app/working.py", WORKING)
    project.write("app/others.py", "import torch\n\ndef two(k):\n    return torch.ones(k)\n")
    project.write(
        "app/__init__.py", "from .working import one, run_all as go\nfrom .others import *\n"
    )
    program = "import torch\n{}\nif __name__ == '__main__':\n    {}\n"

    for asked, uses, found in [
        ("from app import go", "go()", True),
        ("import app", "app.go()", True),
        ("import app.working as w", "w.run_all()", True),
        ("import app", "app.working.run_all()", True),
        ("from app import one, two", "one(two(1))", False),
        ("import app", "app.one(app.two(1))", False),
        ("import app.others", "app.others.two(1)", False),
    ]:
        entry = project.write("main.py", program.format(asked, uses))
        contents = {str(entry): entry.read_bytes()}
        assert Prefilter(contents).keeps(str(entry)) == found, (asked, uses)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("from a import optional_import\nx = 1\n", ["a", "a.optional_import"]),
        ("from a import (b,\n    import_c, d)\n", ["a", "a.b", "a.import_c", "a.d"]),
        ("import a, import_b\nimport c\n", ["a", "import_b", "c"]),
        ("import a\nb = a.c\nd = importlib.import_module('e.f')\n", ["a", "e.f"]),
        ("import_module( 'a' )\nb.import_module('c')\nimport_module(d)\n", ["a"]),
    ],
)
def test_names_with_the_word_import_in_them(text, names):
    assert names_in(text.encode()) == names


@pytest.mark.parametrize("before", ["import os, ", "import os,", "import "])
@pytest.mark.parametrize("home", ["threading", "ray"])
def test_a_library_is_imported_beside_others(before, home):
    call = {"threading": "threading.Thread(target=f).start()", "ray": "ray.remote(f).remote()"}
    assert kept(TORCH + f"{before}{home}\n{call[home]}\n")


@pytest.mark.parametrize(
    "program",
    [
        "import numpy as np\ndef f(n): return np.random.rand()\n",
        "import numpy.random as npr\ndef f(n):\n    return npr.rand()\n",
        "import numpy as np\nnpr = np.random\ndef f(n):\n    return npr.rand()\n",
    ],
)
def test_ways_to_draw_from_numpy(program):
    pool = "from multiprocessing import Pool\nPool(2).map({}, x)\n"
    assert kept(program + pool.format("f"))


@pytest.mark.parametrize("between", [0, 1, 2])
@pytest.mark.parametrize("end", ["main()\n", "if __name__ == '__main__':\n    main()\n"])
def test_modules_between_a_program_and_what_starts_workers(between, end, project):
    project.write(
        "step_0.py",
        "from multiprocessing import Pool\n\n\ndef step(f, xs):\n    with Pool(2) as pool:\n"
        "        return pool.map(f, xs)\n\n\ndef other(xs):\n    return xs\n",
    )
    for number in range(1, between + 1):
        project.write(
            f"step_{number}.py",
            f"from step_{number - 1} import other as last, step as next_step\n\n\n"
            "def step(f, xs):\n    return next_step(f, xs)\n\n\n"
            "def other(xs):\n    return last(xs)\n",
        )
    program = (
        f"import torch\nfrom step_{between} import other, step\n\n\ndef work(k):\n"
        "    return torch.ones(k).cuda().sum().item()\n\n\ndef main():\n    print({})\n\n\n"
    )
    project.write("main.py", program.format("step(work, [1, 2])") + end)
    assert project.codes() == [("GG201", "main.py", 6)]
    unused = program.format("other([work(k) for k in (1, 2)])").replace("other, step", "other")
    project.write("main.py", unused + end)
    read = project.lint("--statistics").err + project.lint().out
    assert "no findings" in read


GATHERING = (
    "import torch\nimport torch.distributed as dist\n\n\ndef concat_all(t):\n"
    "    parts = [torch.empty_like(t) for _ in range(dist.get_world_size())]\n"
    "    dist.all_gather(parts, t)\n    return torch.cat(parts)\n\n\n"
    "def concat_own(t):\n    return torch.cat([t])\n"
)
STEP = (
    "import torch\nfrom gathering import {0}\n\n\ndef step(x):\n    net = torch.nn.Linear(4, 4)\n"
    "    y = net(x)\n    loss = (y @ {0}(y).T).sum()\n    loss.backward()\n"
)


def test_a_function_gathers_by_another_module(project):
    project.write("gathering.py", GATHERING)
    project.write("train.py", STEP.format("concat_all"))
    assert project.codes() == [("GG501", "gathering.py", 7)]
    project.write("train.py", STEP.format("concat_own"))
    assert project.codes() == []
    project.write(
        "train.py", STEP.format("concat_all").replace("y = net(x)", "y = net(x).detach()")
    )
    assert project.codes() == []


LOADER = (
    "from torch.utils.data import DataLoader, DistributedSampler\n\n\ndef make(ds, bs):\n"
    "    return DataLoader(ds, bs, sampler=DistributedSampler(ds))\n\n\n"
    "def plain(ds, bs):\n    return DataLoader(ds, bs, shuffle=True)\n"
)
EPOCHS = (
    "from loaders import make\n\n\ndef fit(model, ds, opt, epochs):\n    loader = make(ds, 8)\n"
    "    for epoch in range(epochs):\n        for x, y in loader:\n            opt.zero_grad()\n"
    "            (model(x) - y).pow(2).mean().backward()\n            opt.step()\n"
)


def test_epochs_over_a_loader_from_another_module(project):
    project.write("loaders.py", LOADER)
    project.write("train.py", EPOCHS)
    assert project.codes() == [("GG503", "train.py", 6)]
    told = "epochs):\n        loader.sampler.set_epoch(epoch)\n"
    for silent in (
        EPOCHS.replace("epochs):\n        for", told + "        for"),
        EPOCHS.replace("make", "plain"),
        EPOCHS.replace(".backward()", ".item()").replace("            opt.step()\n", ""),
    ):
        project.write("train.py", silent)
        assert project.codes() == []


REMEMBERING = (
    "import torch\nfrom joblib import Memory\n\nmemory = Memory('.cache')\n"
    "proj = torch.nn.Linear(8, 4)\n\n\nclass Features:\n    def __init__(self):\n"
    "        self.encode = memory.cache(self._encode, ignore=['self'])\n\n"
    "    def _encode(self, x):\n        return proj(x)\n"
)
USING = (
    "import torch\nfrom features import Features, proj\n\nf = Features()\n"
    "opt = torch.optim.SGD(proj.parameters(), lr=0.1)\nfor _ in range(3):\n"
    "    f.encode(torch.ones(2, 8)).sum().backward()\n    opt.step()\n"
)


def test_what_another_module_caches_is_trained_through(project):
    project.write("features.py", REMEMBERING)
    project.write("main.py", USING)
    assert project.codes() == [("GG108", "features.py", 12)]
    project.write("features.py", REMEMBERING.replace("proj(x)", "proj(x).detach()"))
    assert project.codes() == []


@pytest.mark.parametrize("checked", ["main.py", "."])
def test_what_a_file_imports_is_followed_where_it_alone_is_checked(checked, project):
    """As an editor and a hook check it."""
    project.write("last.py", "import torch\n\n\ndef last(k):\n    return torch.ones(k).cuda()\n")
    for number, other in enumerate(("last", "step_0", "step_1")):
        project.write(
            f"step_{number}.py",
            f"import {other} as other\n\n\ndef step_{number}(k):\n    return other.{other}(k)\n",
        )
    project.write(
        "main.py",
        "from multiprocessing import Pool\n\nfrom step_2 import step_2\n\n\ndef work(k):\n"
        "    return step_2(k).sum().item()\n\n\nif __name__ == '__main__':\n"
        "    with Pool(2) as pool:\n        print(pool.map(work, range(3)))\n",
    )
    assert project.codes(checked) == [("GG201", "last.py", 5)]
