"""What comes back to itself: names, functions, classes and objects, all followed to an end.

Each program goes on with one finding, which is there all the same.
"""

from __future__ import annotations

import pytest

HEAD = """\
import contextlib
import copy
import functools
import multiprocessing
import threading

import dask
import torch
from joblib import Parallel, delayed
from torch.utils.data import ConcatDataset, DataLoader, Subset


def same(x):
    return x


"""

TAIL = """

def work(k):
    return torch.ones(3, device="cuda").sum().item() * k  # found


results = Parallel(n_jobs=2)(delayed(work)(k) for k in range(3))
"""

MAKES = """
class Job:
    def __init__(self, net, other=None):
        {}

    def run(self):
        self.net.zero_grad()


def main(net):
    for n in [2, 4]:
        threading.Thread(target=Job(net).run).start()


main(torch.nn.Linear(3, 3))
"""
"""A program whose turns each make an object, from something that all are given."""

MADE = {
    "a name bound from itself": "net = same(net); self.net = net",
    "a name bound from itself or another": "net = net or other; self.net = net",
    "two names that change places": "net, other = other, net; self.net = net",
    "two names bound from each other": "a = net; b = a; a = b; b = a; self.net = b",
    "a walrus of itself": "self.net = (net := net)",
    "a sum with itself": "net += net; self.net = net",
    "a name that is unpacked from itself": "net, *other = net, *other; self.net = net",
    "a comprehension over its own name": "net = [net for net in net]; self.net = net",
    "a name that is deleted": "del net; net = net; self.net = net",
    "an attribute bound from itself": "self.net = net; self.net = self.net",
    "an object that has itself": "self.me = self; self.me.net = net; self.net = self.me.me.net",
    "a constructor that makes another": "self.net = net; self.job = Job(self, net)",
}

OTHERS = {
    "functions that call each other": """
        def f(x): return g(x)
        def g(x): return f(x)
        f(1)
        """,
    "functions that return each other": """
        def f(): return g
        def g(): return f
        f()()()()
        """,
    "a default that is the function": """
        def f(g=lambda: f()): return g()
        f()
        """,
    "a function given to itself": """
        again = lambda f: f(f)
        again(again)
        """,
    "a partial of itself": """
        f = functools.partial
        for _ in range(4):
            f = functools.partial(f, f)
        f(f)(f)
        """,
    "a decorator that is decorated by itself": """
        def keep(f):
            @functools.wraps(f)
            @keep
            def g(*a): return g(*a)
            return g
        @keep
        def f(x): return f
        f(f)
        """,
    "a generator of itself": """
        def g(): yield from g()
        xs = list(g())
        for _ in range(3):
            xs = zip(xs, xs)
        list(xs)
        """,
    "a class that names itself as its base": """
        class A: pass
        for _ in range(3):
            class A(A): pass
        A().x
        """,
    "bases that name each other": """
        class A: pass
        class B(A): pass
        class A(B): pass
        class B(A): pass
        A().x
        """,
    "methods that ask themselves": """
        class A:
            @property
            def x(self): return self.x
            def __init__(self): self.__init__()
            def __getattr__(self, n): return getattr(self, n)
            def __getitem__(self, n): return self[n]
            def __iter__(self): return iter(self)
            def __len__(self): return len(self)
            def __bool__(self): return bool(self)
            def __eq__(self, o): return self == o
            def __call__(self): return self()
            def __getstate__(self): return self.__getstate__()
        a = A()
        a.x, a.y, a[0], len(a), bool(a), a == a, a()
        for x in a: pass
        """,
    "an object that stands for its own calls": """
        class A: pass
        class B: pass
        A.__call__, B.__call__ = B(), A()
        A()()
        """,
    "an object that stands for its own attributes": """
        class A: pass
        A.__get__ = A()
        class B: x = A()
        B().x
        """,
    "objects in a ring": """
        class A:
            def __init__(self, up=None): self.up, self.next = up or A(self), self
            def go(self): return self.next.go() if self.next else self.up.go()
        a = A()
        a.go()
        while a: a = a.next
        """,
    "a list and a dict in themselves": """
        xs, d = [], {}
        xs.append(xs)
        d["d"] = d
        xs.extend([xs, d])
        for x in xs: xs.append(x)
        copy.deepcopy(xs), d["d"]["d"]
        multiprocessing.Pool(2).map(same, xs)
        """,
    "an object in itself that is copied": """
        class A: pass
        a = A()
        a.a = a
        b = copy.deepcopy(a)
        multiprocessing.Process(target=same, args=(a, b)).start()
        """,
    "tasks that are given the list that they are in": """
        xs = []
        xs.append(delayed(same)(xs))
        xs.append(xs)
        Parallel(2)(xs)
        """,
    "tasks of dask that are given each other": """
        xs = []
        xs.append(dask.delayed(same)(xs))
        dask.compute(xs, scheduler="processes")
        """,
    "stacks of contexts in each other": """
        with contextlib.ExitStack() as s, contextlib.ExitStack() as t:
            s.enter_context(s)
            s.enter_context(t)
            t.enter_context(s)
        """,
    "a module that is its own part": """
        class M(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.m, self.ms = self, torch.nn.ModuleList([self])
            def forward(self, x): return self.m(x)
        m = M()
        seq = torch.nn.Sequential(m, m)
        seq.append(seq)
        m.cpu(), m.train(), m.requires_grad_(False), seq.eval(), seq(torch.ones(3))
        """,
    "a dataset of itself": """
        class D(torch.utils.data.Dataset):
            def __getitem__(self, i): return self[i]
        d = ConcatDataset([D()])
        d.datasets.append(d)
        d = Subset(d, [1])
        d.dataset = d
        for x in DataLoader(d, num_workers=2): pass
        """,
    "processes that start themselves": """
        def f(x): multiprocessing.Process(target=f, args=(f,)).start()
        f(f)
        class W(multiprocessing.Process):
            def run(self): W().start(), self.start(), self.run()
        W().start()
        """,
}


def dedent(text):
    return "\n".join(line[8:] for line in text.split("\n"))


@pytest.mark.parametrize("name", [*MADE, *OTHERS])
def test_what_comes_back_to_itself_is_followed_to_an_end(name, project):
    body = MAKES.format(MADE[name]) if name in MADE else dedent(OTHERS[name])
    text = HEAD + body + TAIL
    project.write("a.py", text)
    ran = project.lint("--no-cache", "--jobs", "1", "a.py", json_output=True)
    assert (ran.status, ran.err) == (1, "")
    line = text[: text.index("# found")].count("\n") + 1
    assert ("GG201", "a.py", line) in ran.codes


FILES = {
    "names": ("from b import f", "from a import f", ""),
    "stars": ("from a import *\nfrom b import *", "from a import *\nfrom b import *", ""),
    "bases": ("from b import B\nclass f(B): pass", "from a import f\nclass B(f): pass", "()"),
}


@pytest.mark.parametrize("name", FILES)
def test_modules_that_import_each_other(name, project):
    one, other, call = FILES[name]
    project.write("a.py", one)
    project.write("b.py", other)
    project.write("run.py", f"from a import *\nfrom a import f\n{HEAD}f{call}\n{TAIL}")
    ran = project.lint("--no-cache", "--jobs", "1", "run.py", json_output=True)
    assert (ran.status, ran.err) == (1, "")
    assert [code for code, _, _ in ran.codes] == ["GG201"]
