"""Whole programs in the forms that people write, with everything that is to be said of them.

A comment at a line's end names the codes that are reported there; all other lines are silent.
"""

from __future__ import annotations

import re

import pytest

PROGRAMS = {
    "tensor changed in a worker": """\
import torch
from joblib import Parallel, delayed


def shift(values, by):
    values = values + by
    return values  # GG102


if __name__ == "__main__":
    start = torch.rand(5, requires_grad=True)
    moved = Parallel(n_jobs=2)(delayed(shift)(start.clone(), k) for k in range(2))  # GG101
    total = (moved[0] + moved[1]).mean()
    total.backward()  # GG103
""",
    "numpy in the workers, tensors after": """\
import numpy as np
import torch
from joblib import Parallel, delayed


def load(k):
    return np.random.rand(4) + k


if __name__ == "__main__":
    rows = Parallel(n_jobs=2)(delayed(load)(k) for k in range(2))
    first = torch.tensor(rows[0], requires_grad=True)
    second = torch.tensor(rows[1], requires_grad=True)
    (first + second).mean().backward()
""",
    "gpu where there is one": """\
import joblib
import torch


def probe(k):
    if torch.cuda.is_available():
        where = torch.device("cuda")
        x = torch.zeros(4, device=where)  # GG201
        print(k, x.device)
    else:
        print(k)


joblib.Parallel(n_jobs=3)(joblib.delayed(probe)(k) for k in range(3))
""",
    "cpu data for the workers": """\
import joblib
import torch


def double(values, k):
    return values * 2


if torch.cuda.is_available():
    data = torch.rand(4, device=torch.device("cuda")).cpu()
else:
    data = torch.rand(4)
print(joblib.Parallel(n_jobs=3)(joblib.delayed(double)(data, k) for k in range(3)))
""",
    "tensorflow on the gpu of each worker": """\
import tensorflow as tf
from joblib import Parallel, delayed


def fit(k):
    found = tf.config.list_physical_devices("GPU")
    if found:
        tf.config.set_visible_devices(found[0], "GPU")
        place = "/GPU:0"
    else:
        place = "/CPU:0"
    with tf.device(place):
        x = tf.random.normal((8, 2))  # GG201
        net = tf.keras.Sequential([tf.keras.layers.Dense(1)])
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(net(x))
        tape.gradient(loss, net.trainable_variables)
    return loss.numpy(), k


print(Parallel(n_jobs=-1)(delayed(fit)(k) for k in range(4)))
""",
    "images in workers": """\
import joblib
import numpy as np
from skimage.transform import resize
import torch


def small(image):
    return resize(image, (8, 8))


images = np.ones((10, 16, 16))
stack = torch.tensor(np.stack(joblib.Parallel(n_jobs=-1)(joblib.delayed(small)(i) for i in images)))
""",
    "a pool on self, tasks from append, bound methods": """\
import torch
from joblib import Parallel, delayed


class Search:
    def __init__(self, n_jobs):
        self.pool = Parallel(n_jobs=n_jobs)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"

    def score(self, k):
        net = torch.nn.Linear(2, 1).to(self.device)  # GG201
        return net(torch.ones(1, 2, device=self.device)).item() * k

    def run(self):
        tasks = []
        for k in range(4):
            tasks.append(delayed(self.score)(k))
        return self.pool(tasks)
""",
    "partial, lambda, decorator": """\
from functools import partial

import torch
from joblib import Parallel, delayed


def work(device, k):
    return torch.ones(2, device=device).sum().item() * k  # GG201


@delayed
def other(k):
    return torch.ones(2).cuda().sum().item() * k  # GG201


on_gpu = partial(work, "cuda:1")
Parallel(n_jobs=2)(delayed(on_gpu)(k) for k in range(3))
Parallel(n_jobs=2)(other(k) for k in range(3))
Parallel(n_jobs=2)(delayed(lambda k: torch.ones(1).cuda().item())(k) for k in range(3))  # GG201
""",
    "contexts decide the backend": """\
import torch
from joblib import Parallel, delayed, parallel_backend, parallel_config


def work(k):
    return torch.ones(2).to("cuda").sum().item() * k


with parallel_config(backend="threading"):
    Parallel(n_jobs=2)(delayed(work)(k) for k in range(3))
with parallel_backend("threading", n_jobs=2):
    Parallel()(delayed(work)(k) for k in range(3))
with Parallel(n_jobs=2, prefer="threads") as pool:
    pool(delayed(work)(k) for k in range(3))
Parallel()(delayed(work)(k) for k in range(3))
""",
    "a context outranks a hint": """\
import torch
from joblib import Parallel, delayed, parallel_config


def work(k):
    return torch.ones(2).to("cuda").sum().item() * k  # GG201


with parallel_config(backend="loky"):
    Parallel(n_jobs=2, prefer="threads")(delayed(work)(k) for k in range(3))
""",
    "guards": """\
import torch
from joblib import Parallel, delayed

DEBUG = False


def work(k, device):
    return torch.ones(2).to(device).sum().item() * k


def run(use_cuda=True, n_jobs=4):
    device = "cuda" if use_cuda else "cpu"
    if use_cuda:
        return [work(k, device) for k in range(3)]
    return Parallel(n_jobs=n_jobs)(delayed(work)(k, device) for k in range(3))


def never():
    if DEBUG:
        Parallel(n_jobs=2)(delayed(work)(k, "cuda") for k in range(3))


def without():
    if not torch.cuda.is_available():
        Parallel(n_jobs=2)(delayed(work)(k, "cuda") for k in range(3))
""",
    "other people's names": """\
import torch
from mytools import Parallel, delayed


class Line:
    def map(self, function, items):
        return [function(item) for item in items]


def work(k):
    return torch.ones(2).cuda().sum().item() * k


Parallel(n_jobs=2)(delayed(work)(k) for k in range(3))
Line().map(work, range(3))
""",
    "gradients are cut": """\
import torch
from concurrent.futures import ProcessPoolExecutor

weights = torch.ones(3, requires_grad=True)


def norm(values):
    return values.norm()


with ProcessPoolExecutor() as pool:
    for way in (weights.detach(), weights.data, weights.detach().numpy(), weights.sum().item()):
        pool.submit(len, [way])
    with torch.no_grad():
        quiet = weights * 2
    pool.submit(norm, quiet)
""",
    "text that looks like code": '''\
"""Use it so:

    import torch
    from joblib import Parallel, delayed
    Parallel(n_jobs=2)(delayed(work)(torch.ones(3).cuda()) for _ in range(2))
"""
import torch
from joblib import Parallel, delayed

SNIPPET = "Parallel(n_jobs=2)(delayed(torch.zeros)(3, device='cuda') for _ in range(2))"
''',
    "dask and its client": """\
import torch
from dask.distributed import Client


def work(k):
    return torch.ones(2).cuda().sum().item() * k  # GG201


if __name__ == "__main__":
    client = Client()
    futures = client.map(work, range(4))
    print(client.gather(futures))
""",
    "torch.multiprocessing with spawn": """\
import torch
import torch.multiprocessing as mp


def work(batch):
    return batch.cuda().sum().item()  # GG201


if __name__ == "__main__":
    mp.set_start_method("spawn")
    torch.zeros(1).cuda()
    with mp.Pool(2) as pool:
        print(pool.map(work, [torch.ones(2), torch.ones(3)]))
""",
}


def marked(text):
    return {
        (code, number)
        for number, line in enumerate(text.splitlines(), 1)
        for code in re.findall(r"GG\d{3}", line.partition("  # ")[2])
    }


@pytest.mark.parametrize("name", PROGRAMS)
def test_everything_that_is_to_be_said_and_nothing_else(project, name):
    project.write("program.py", PROGRAMS[name])
    found = {(code, line) for code, _, line in project.codes()}
    assert found == marked(PROGRAMS[name])


GIVEN_ONLY = {
    "completed": """\
    if device is None:
        return device
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", index=torch.cuda.current_device())
    return device
""",
    "a device already": """\
    device = device if isinstance(device, torch.device) else torch.device(device)
    return torch.device("cuda:0") if device.type == "cuda" else device
""",
    "of a tensor": """\
    return "cuda:0" if torch.zeros(1, device=device).is_cuda else "cpu"
""",
    "compared": """\
    device = torch.device(device)
    return torch.device("cuda:0") if device == torch.device("cuda") else device
""",
    "another than the CPU": """\
    return torch.device("cuda") if device != "cpu" else torch.device("cpu")
""",
    "of another type than the CPU": """\
    return torch.device("cpu" if torch.device(device).type == "cpu" else "cuda:0")
""",
    "made of its parts": """\
    device = torch.device(device)
    return torch.device(device.type, device.index or 0)
""",
}
OR_ELSE = {
    "where none is given": """\
    return torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
""",
    "None": """\
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(device)
""",
    "a number": """\
    return torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
""",
}
WITH_A_HELPER = """\
import argparse
import sys

import torch
from joblib import Parallel, delayed


def pick(device):
{helper}

def work(rows, device):
    return torch.tensor(rows, device=pick(device)).sum().item()


def main(name, options):
    print(Parallel(n_jobs=2)(delayed(work)([1.0, k], {device}) for k in range(3)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    main(sys.argv[1], parser.parse_args())
"""


@pytest.mark.parametrize("name", [*GIVEN_ONLY, *OR_ELSE])
def test_a_helper_that_gives_a_gpu_where_it_was_given_one(project, name):
    helper = {**GIVEN_ONLY, **OR_ELSE}[name]
    cpu = ['"cpu"', 'torch.device("cpu").type', "options.device"]
    for device in ['"cuda"', *cpu, *(["name"] if name in GIVEN_ONLY else [])]:
        project.write("program.py", WITH_A_HELPER.format(helper=helper, device=device))
        found = {code for code, _, _ in project.codes()}
        assert found == ({"GG201"} if device == '"cuda"' else set()), device


def test_the_standard_library_is_read_without_a_fault(project):
    import os

    ran = project.lint(os.path.dirname(os.__file__), "--no-cache", json_output=True)
    assert ran.status in (0, 2)
    assert "Traceback" not in ran.err
    assert "could not check" not in ran.err
    assert ran.json["findings"] == []
