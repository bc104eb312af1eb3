"""Which workers are fresh processes after a repair: what these have in another way stays forked."""

from __future__ import annotations

import pytest

PROGRAM = """\
import multiprocessing as mp
import random
import threading

import numpy as np
import torch
from torch import nn

{globals}

def work(k):
    m = torch.ones(2000, 2000) * k
    return (m @ m).norm().item() {reads}


def main():
    {before}
    m = torch.ones(2000, 2000)
    print((m @ m).norm())
    with mp.Pool(2) as pool:
        print(pool.map(work, range(3)))


if __name__ == "__main__":
    main()
"""
SPAWN, ONE_THREAD = "start the workers with spawn", "let each worker compute in one thread"
LOKY = "run the tasks in loky workers"


@pytest.fixture
def repair(project):
    """What the repair of the GG303 in a program does, or None."""

    def found(source: str) -> str | None:
        project.write("program.py", source)
        arguments = ("--no-cache", "--select", "GG303", "program.py")
        (finding,) = project.lint(*arguments, json_output=True).json["findings"]
        return finding["edits"] and finding["edits"]["message"]

    return found


STATE = "STATE = {'scale': 1.0, 'rows': []}\n"
ROWS = "ROWS = []\n"
NET = "torch.manual_seed(0)\nnet = nn.Linear(2000, 1)\n"
SETTINGS = "class Settings:\n    scale = 1.0\n    rows = []\n"
NET_READ = "+ net.bias.item() * net(m).mean().item()"
CHANGED = {
    "an item": (STATE, "+ STATE['scale']", "STATE['scale'] = 5.0"),
    "an item of an item": (STATE, "+ STATE.get('scale')", "STATE['rows'][0] = 5.0"),
    "an item, by a method": (STATE, "+ STATE['scale']", "STATE.update(scale=5.0)"),
    "an item that goes": (STATE, "+ len(STATE)", "del STATE['rows']"),
    "a list": (ROWS, "+ len(ROWS)", "ROWS.append(1)"),
    "a list in a dict": (STATE, "+ len(STATE['rows'])", "STATE['rows'].append(1)"),
    "a list, by another name": (STATE, "+ len(STATE['rows'])", "a = STATE['rows']; a.append(1)"),
    "what a loop goes over": ("ROWS = [[], []]\n", "+ len(ROWS[0])", "[r.append(1) for r in ROWS]"),
    "what is handed to a function": (ROWS + "from x import fill\n", "+ len(ROWS)", "fill(ROWS)"),
    "an attribute of a class": (SETTINGS, "+ Settings.scale", "Settings.scale = 4.0"),
    "by a text": (SETTINGS, "+ Settings.scale", "setattr(Settings, 'scale', 4.0)"),
    "a list of a class": (SETTINGS, "+ len(Settings.rows)", "Settings.rows.append(4.0)"),
    "a model that is loaded": (NET, NET_READ, "net.load_state_dict(torch.load('net.pt'))"),
    "a model that is trained": (
        NET,
        NET_READ,
        "o = torch.optim.SGD(net.parameters(), 1.0); o.step()",
    ),
    "a model, by its optimizer": (
        NET + "o = torch.optim.SGD(net.parameters(), 1.0)\n",
        NET_READ,
        "o.step()",
    ),
    "a model in another mode": (NET, NET_READ, "net.eval()"),
    "a parameter": (NET, NET_READ, "net.bias.data.fill_(3.0)"),
    "an array": ("a = np.zeros(3)\n", "+ a[0]", "a[:] = 1.0"),
    "an array that is shuffled": ("a = np.arange(3)\n", "+ a[0]", "np.random.shuffle(a)"),
    "a model that no seed makes": (NET.partition("\n")[2], NET_READ, ""),
    "a draw": ("a = np.random.rand(3)\n", "+ a[0]", ""),
    "a queue": ("queue = mp.Queue()\n", "+ queue.get()", ""),
    "a global": ("scale = 1.0\n", "+ scale", "global scale; scale = 2.0"),
    "the default type": ("", "", "torch.set_default_dtype(torch.float64)"),
    "the default device": ("", "", "torch.set_default_device('cpu')"),
    "a flag of a library": ("", "", "torch.backends.cudnn.allow_tf32 = True"),
    "a seed": ("", "+ torch.randn(3).sum().item()", "torch.manual_seed(0)"),
}
KEPT = {
    "a constant": ("SCALE = (2, 1.0 * 3)\n", "* SCALE[1]", "print(SCALE)"),
    "a dict that is read": (STATE, "+ STATE['scale']", "print(STATE.get('rows'), len(STATE))"),
    "items that are read": (STATE, "+ STATE['scale']", "print({k: v for k, v in STATE.items()})"),
    "another dict": (STATE + "OTHER = {}\n", "+ STATE['scale']", "OTHER['scale'] = 5.0"),
    "a variable of that name": (STATE, "+ STATE['scale']", "STATE = {}; STATE['scale'] = 5.0"),
    "what an import changes": (STATE + "STATE['scale'] = 2.0\n", "+ STATE['scale']", ""),
    "what the worker changes itself": (
        ROWS + "def note(k):\n    ROWS.append(k)\n    return len(ROWS)\n", "+ note(k)", ""
    ),
    "a model that is called": (NET, NET_READ, "print(net(torch.ones(2000)), net.state_dict())"),
    "a copy of a model": ("import copy\n" + NET, NET_READ, "n = copy.deepcopy(net)"),
    "a method of a class": (SETTINGS, "+ Settings.scale", "Settings.mro()"),
    "a mode": ("", "", "with torch.set_grad_enabled(False): pass"),
    "a seed of what is not drawn": ("", "", "torch.manual_seed(0)"),
    "a seed of a generator of its own": (
        "", "+ torch.randn(3).sum().item()", "g = torch.Generator().manual_seed(0)"
    ),
    "threads": ("", "", "torch.backends.cudnn.benchmark = True"),
    "a lock of threads that is nobody's": ("lock = threading.Lock()\n", "", ""),
}  # fmt: skip


@pytest.mark.parametrize(
    ("parts", "does"),
    [*((it, ONE_THREAD) for it in CHANGED.values()), *((it, SPAWN) for it in KEPT.values())],
    ids=[*CHANGED, *KEPT],
)
def test_workers_that_read_what_the_program_changes_stay_forked(parts, does, repair):
    made, reads, before = parts
    assert repair(PROGRAM.format(globals=made, reads=reads, before=before or "pass")) == does


@pytest.mark.parametrize(
    ("before", "does"),
    [
        ("beside.STATE['scale'] = 5.0", ONE_THREAD),
        ("STATE.update(scale=5.0)", ONE_THREAD),
        ("beside.OTHER['scale'] = 5.0", SPAWN),
        ("print(STATE, beside.STATE['scale'], work(2))", SPAWN),
    ],
)
def test_globals_of_another_module(before, does, repair, project):
    state = "STATE = {'scale': 1.0}\nOTHER = {}\n"
    source = PROGRAM.format(globals=state, reads="+ STATE['scale']", before=before)
    head, _, tail = source.partition("def main")
    project.write("beside.py", head)
    imports = "import multiprocessing as mp\nimport torch\nimport beside\nfrom beside import *\n"
    imports = imports.replace("*", "STATE, work")
    assert repair(f"{imports}\ndef main{tail}") == does


JOBLIB = """\
import torch
from joblib import Parallel, delayed
{globals}

def work(k):
    m = torch.ones(2000, 2000) * k
    return (m @ m).norm().item() + len(STATE)


if __name__ == "__main__":
    {before}
    m = torch.ones(2000, 2000)
    print((m @ m).norm())
    print(Parallel(n_jobs=2, backend="multiprocessing")(delayed(work)(k) for k in range(3)))
"""


@pytest.mark.parametrize(
    ("made", "before", "does"),
    [
        ("STATE = {}", "STATE['scale'] = 5.0", LOKY),
        ("import threading\nSTATE = [threading.Lock()]", "pass", None),
        ("STATE = {}", "torch.set_default_dtype(torch.float64)", None),
        ("STATE = {}\ntorch.set_default_dtype(torch.float64)", "pass", None),
    ],
)
def test_joblib_takes_the_globals_of_the_program_along_but_no_settings(made, before, does, repair):
    assert repair(JOBLIB.format(globals=made, before=before)) == does


def test_joblib_imports_other_modules_anew(repair, project):
    head, _, tail = JOBLIB.partition("if __name__")
    project.write("beside.py", head.format(globals="STATE = {}"))
    imports = "import torch\nfrom joblib import Parallel, delayed\nfrom beside import STATE, work\n"
    assert repair(f"{imports}\nif __name__{tail.format(before='pass')}") == LOKY
    assert repair(f"{imports}\nif __name__{tail.format(before='STATE[1] = 2')}") is None


PROCESS = """\
import multiprocessing as mp
import queue
import threading
import torch


class Job:
    def __init__(self):
        self.part = {part}

    def work(self, *given):
        m = torch.ones(2000, 2000)
        return (m @ m).norm().item()

    def run(self):
        print(self.work())
        one = {part}
        process = mp.Process(target={target}, args=({given},))
        process.start()
        process.join()
{more}

def work(*given):
    return Job.work(None)


if __name__ == "__main__":
    Job().run()
"""


@pytest.mark.parametrize(
    ("part", "sent"),
    [
        ("threading.Lock()", False),
        ("threading.Event()", False),
        ("lambda: 1", False),
        ("queue.Queue()", False),
        ("open('a.txt')", False),
        ("threading.Thread(target=print)", False),
        ("(x for x in range(3))", False),
        ("[1, 2]", True),
        ("'text'", True),
        ("torch.ones(3)", True),
        ("mp.Lock()", True),
    ],
)
def test_what_cannot_be_pickled_is_only_inherited(part, sent, repair):
    def does(target: str, given: str, more: str = "") -> bool:
        source = PROCESS.format(part=part, target=target, given=given, more=more)
        return repair(source) == SPAWN

    assert does("self.work", "3") == sent
    assert does("work", "one") == sent
    assert does("work", "[self, 3]") == sent
    assert does("work", "3")
    own = "\n    def __getstate__(self):\n        return {}\n"
    assert does("self.work", "3", own)
