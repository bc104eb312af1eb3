"""Programs of several files, of which those on the way to a pitfall import no framework.

Each text holds the files of a program, after ``# file: name.py`` lines; a comment at a line's end
names the codes that are reported there, and all other lines are silent.
"""

from __future__ import annotations

import re

import pytest

CASES = {
    "a function that calls one of its module, which calls another file's": """
# file: main.py
import multiprocessing
from model import multi

def worker(k):
    return multi(k)

if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(3) as pool:
        print(pool.map(worker, [1, 2, 3]))
# file: model.py
from rng import uni

def simulation(k):
    return uni()

def multi(k):
    return simulation(k)

def plain(k):
    return k
# file: rng.py
import torch

def uni():
    return torch.rand(1).item()  # GG304
""",
    "a function beside it that calls nothing of another file": """
# file: main.py
import multiprocessing
from model import plain

def worker(k):
    return plain(k)

if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(3) as pool:
        print(pool.map(worker, [1, 2, 3]))
# file: model.py
from rng import uni

def simulation(k):
    return uni()

def plain(k):
    return k
# file: rng.py
import torch

def uni():
    return torch.rand(1).item()
""",
    "three modules between the workers and the GPU": """
# file: main.py
import multiprocessing
from m1 import f1

def worker(k):
    return f1(k)

if __name__ == "__main__":
    with multiprocessing.Pool(2) as pool:
        print(pool.map(worker, [1, 2, 3]))
# file: m1.py
from m2 import f2

def f1(k):
    return f2(k)
# file: m2.py
from m3 import f3

def f2(k):
    return f3(k)
# file: m3.py
from m4 import f4

def f3(k):
    return f4(k)
# file: m4.py
import torch

def f4(k):
    return torch.zeros(3, device="cuda").sum().item()  # GG201
""",
    "a loader's workers, whose number a program passes on": """
# file: main.py
from runner import run

if __name__ == "__main__":
    print(run([[1.0, 2.0], [3.0]], 2))
# file: runner.py
from joblib import Parallel, delayed
from ld import loader

def count(ds, workers):
    return sum(len(b) for b in loader(ds, workers))

def run(parts, workers):
    return Parallel(n_jobs=2)(delayed(count)(p, workers) for p in parts)
# file: ld.py
from torch.utils.data import DataLoader

def loader(ds, workers):
    return DataLoader(ds, batch_size=2, num_workers=workers)  # GG206
""",
    "no such workers": """
# file: main.py
from runner import run

if __name__ == "__main__":
    print(run([[1.0, 2.0], [3.0]], 0))
# file: runner.py
from joblib import Parallel, delayed
from ld import loader

def count(ds, workers):
    return sum(len(b) for b in loader(ds, workers))

def run(parts, workers):
    return Parallel(n_jobs=2)(delayed(count)(p, workers) for p in parts)
# file: ld.py
from torch.utils.data import DataLoader

def loader(ds, workers):
    return DataLoader(ds, batch_size=2, num_workers=workers)
""",
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_reported_where_files_on_the_way_import_no_framework(project, name):
    parts = re.split(r"^# file: (\S+)\n", CASES[name], flags=re.MULTILINE)
    expected = []
    for path, source in zip(parts[1::2], parts[2::2], strict=True):
        project.write(path, source)
        for number, line in enumerate(source.splitlines(), 1):
            codes = re.findall(r"GG\d{3}", line.partition("  # ")[2])
            expected += [(code, path, number) for code in codes]
    assert sorted(project.codes()) == sorted(expected)
