"""What makes a repair unsafe, or none: programs that are right, and would not be afterwards."""

from __future__ import annotations

import re

import pytest

HEAD = "import torch\nfrom joblib import Parallel, delayed\n\n"


@pytest.fixture
def repairs(project):
    """What the repair of each finding of a code is, by the program that starts below the imports:
    ``safe``, ``unsafe`` or None."""

    def found(code: str, source: str) -> list[str | None]:
        project.write("program.py", HEAD + source)
        findings = project.lint("--no-cache", "--select", code, json_output=True).json["findings"]
        return [item["edits"] and item["edits"]["applicability"] for item in findings]

    return found


# -- who else calls the function -------------------------------------------------------------------

WITHOUT_A_GRAPH = """
net = torch.nn.Linear(2, 1)
with torch.no_grad():
    rows = Parallel(2, prefer="threads")(delayed({worker})(torch.ones(2)) for _ in range(2))
"""

PLAIN = """\
class Scorer:
    def score(self, x):
        return net(x)

scorer = Scorer()
"""


@pytest.mark.parametrize(
    "source",
    [
        PLAIN,
        PLAIN.replace("Scorer:", "Scorer(object):"),
        PLAIN.replace("    def", "    @staticmethod\n    def").replace("self, ", ""),
        PLAIN.replace("Scorer:", "Scorer(Base):").replace("class", "class Base: pass\nclass", 1),
        PLAIN + "print(getattr(scorer, 'name', None), torch.ones(1).__class__)\n",
    ],
)
def test_a_method_is_decorated_safely_where_all_its_callers_are_seen(source, repairs):
    assert repairs("GG301", source + WITHOUT_A_GRAPH.format(worker="scorer.score")) == ["safe"]


@pytest.mark.parametrize(
    "source",
    [
        PLAIN.replace("Scorer:", "Scorer(torch.nn.Module):"),
        PLAIN.replace("Scorer:", "Scorer(Base):").replace("class", "from base import Base\nclass"),
        PLAIN.replace("score(self", "__call__(self").replace("Scorer()", "Scorer().__call__"),
        "def register(f): KNOWN[f.__name__] = f; return f\nKNOWN = {}\n"
        + PLAIN.replace("    def", "    @register\n    def"),
        PLAIN.replace("    def", "    @app.task\n    def").replace("class", "import app\nclass"),
        PLAIN + "def any_of(name): return getattr(scorer, name)\n",
        PLAIN + "print(globals())\n",
        PLAIN + "print(scorer.__dict__)\n",
        PLAIN + "KINDS = {'exact': 'score'}\n",
    ],
)
def test_a_function_that_may_be_called_unseen_is_no_safe_repair(source, repairs, project):
    project.write("base.py", "class Base:\n    def run(self, x): return self.work(x)\n")
    worker = "scorer" if "__call__" in source else "scorer.score"
    assert "safe" not in repairs("GG301", source + WITHOUT_A_GRAPH.format(worker=worker))


@pytest.mark.parametrize("before", ["@register\n", "@torch.enable_grad()\n", ""])
def test_a_registered_function_keeps_its_graph_unless_asked(before, repairs):
    source = (
        "LOSSES = {}\n\ndef register(f):\n    LOSSES[f.__name__] = f\n    return f\n\n"
        f"{before}def loss(w, x):\n    return ((w - x) ** 2).sum()\n\n"
        "w = torch.zeros(2, requires_grad=True)\n"
        "print(Parallel(n_jobs=2)(delayed(loss)(w, x) for x in torch.ones(2, 2)))\n"
    )
    assert repairs("GG102", source) == ["unsafe" if before == "@register\n" else "safe"]


# -- the mode --------------------------------------------------------------------------------------

TRAINS = """\
def train(x):
    w = torch.ones(2, requires_grad=True)
    {line}
    return w

with torch.no_grad():
    rows = Parallel(2, prefer="threads")(delayed(train)(torch.ones(2)) for _ in range(2))
"""


@pytest.mark.parametrize(
    "line", ["(w * x).sum().backward()", "torch.autograd.grad((w * x).sum(), w)"]
)
def test_a_worker_that_takes_gradients_wants_them_on(line, repairs):
    assert repairs("GG301", TRAINS.format(line=line)) == []
    assert repairs("GG301", TRAINS.format(line="w = w * x")) == ["safe"]


def test_a_worker_that_may_take_gradients_of_what_is_not_known(repairs):
    source = (
        "def step(loss):\n    loss.backward()\n\ndef fit(model, x):\n    step(model(x).sum())\n\n"
        "def run(model, xs):\n    with torch.no_grad():\n"
        '        Parallel(2, prefer="threads")(delayed(fit)(model, x) for x in xs)\n'
    )
    assert repairs("GG301", source) == []
    assert repairs("GG301", source.replace("backward", "log")) == ["safe"]


CHOSEN = """\
def f(net, x):
    return net(x)

def rows(net, xs, train):
    with torch.{mode}:
        return Parallel(2, prefer="threads")(delayed(f)(net, x) for x in xs)

rows(torch.nn.Linear(2, 1), torch.ones(2, 1, 2), {train})
"""


@pytest.mark.parametrize(
    ("mode", "train", "off"),
    [
        ("set_grad_enabled(train)", False, "off here if `train` is false, but"),
        ("set_grad_enabled(mode=train)", False, "off here if `train` is false, but"),
        ("inference_mode(not train)", False, "off here if `not train` is true, but"),
        ("set_grad_enabled(False)", False, "off here, but"),
    ],
)
def test_a_mode_that_the_program_chooses_is_no_decorator(mode, train, off, repairs, project):
    fixed = repairs("GG301", CHOSEN.format(mode=mode, train=train))
    assert fixed == [None if "if" in off else "safe"]
    assert f"Gradients are {off} not in worker threads" in " ".join(project.lint().out.split())


@pytest.mark.parametrize(
    ("imports", "written"),
    [
        ("", "torch.no_grad()"),
        ("from torch import inference_mode\n", "torch.no_grad()"),
        ("from torch import no_grad\n", "no_grad()"),
    ],
)
def test_inference_mode_becomes_no_grad(imports, written, project):
    """Backward saves no tensor that is made under it, and the parent may want that."""
    source = imports + HEAD + CHOSEN.format(mode="inference_mode()", train=False)
    path = project.write("program.py", source)
    project.lint("--fix")
    assert path.read_text() == source.replace("def f(", f"@{written}\ndef f(")


SCORER = """\
from contextlib import ExitStack, nullcontext

net = torch.nn.Linear(2, 1)
xs = torch.ones(3, 2)
MODES = {"train": nullcontext, "eval": torch.no_grad}

def f(x):
    return net(x)

def rows(xs):
    return torch.stack(Parallel(2, prefer="threads")(delayed(f)(x) for x in xs))

"""
EVALUATES = (
    SCORER
    + """\
@torch.no_grad()
def evaluate(xs):
    return rows(xs).mean().item()

"""
)


@pytest.mark.parametrize(
    ("source", "repair"),
    [
        ("evaluate(xs)", "safe"),
        ("", "safe"),
        ("def again(xs):\n    with torch.no_grad():\n        rows(xs)", "safe"),
        ("rows(xs).sum().backward()\nevaluate(xs)", None),
        ("def train(xs):\n    rows(xs).sum().backward()", None),
        ("KNOWN = [rows]\nevaluate(xs)", "unsafe"),
    ],
)
def test_a_worker_that_may_train_as_well_is_not_decorated(source, repair, repairs):
    assert repairs("GG301", EVALUATES + source) == [repair]


@pytest.mark.parametrize(
    ("head", "repair"),
    [
        ("with torch.no_grad():", "safe"),
        ("with nullcontext() if train else torch.no_grad():", None),
        ("mode = torch.enable_grad() if train else torch.no_grad()\n    with mode:", None),
        ("with MODES['train' if train else 'eval']():", None),
    ],
)
def test_a_mode_that_may_be_another_one_is_no_decorator(head, repair, repairs):
    source = f"{SCORER}def run(xs, train=False):\n    {head}\n        return rows(xs)\n\nrun(xs)\n"
    assert repairs("GG301", source) == [repair]
    if repair is None:
        assert repairs("GG301", source + "run(xs, True).sum().backward()\n") == [None]


@pytest.mark.parametrize(
    "body",
    [
        "if train:\n        return rows(xs)\n    with torch.no_grad():\n        return rows(xs)",
        "with ExitStack() as stack:\n        if not train:\n"
        "            stack.enter_context(torch.no_grad())\n        return rows(xs)",
    ],
)
def test_a_function_that_is_told_whether_it_trains(body, repairs):
    source = f"{SCORER}def run(xs, train=False):\n    {body}\n\nrun(xs)\n"
    assert repairs("GG301", source + "run(xs, True).sum().backward()\n") == [None]


def test_a_pool_that_an_object_is_called_with_in_both_modes(repairs):
    source = """\
from concurrent.futures import ThreadPoolExecutor

class Model:
    def __init__(self):
        self.net = torch.nn.Linear(2, 1)
        self.pool = ThreadPoolExecutor(2)

    def one(self, x):
        return self.net(x)

    def __call__(self, xs):
        return torch.stack(list(self.pool.map(self.one, xs)))

model = Model()
{train}
with torch.no_grad():
    model(torch.ones(3, 2))
"""
    assert repairs("GG301", source.format(train="model(torch.ones(3, 2)).sum().backward()")) == [
        None
    ]
    assert repairs("GG301", source.format(train="")) == ["unsafe"]  # who else calls it is not seen
    source = source.replace("__call__", "rows").replace("model(", "model.rows(")
    assert repairs("GG301", source.format(train="")) == ["safe"]


def test_what_hands_the_worker_out_is_looked_for_in_other_files(repairs, project):
    project.write("other.py", "from program import rows\nrows([]).sum().backward()\n")
    assert repairs("GG301", EVALUATES + "evaluate(xs)\n")[0] != "safe"


def test_one_repair_is_enough_for_what_has_no_graph_afterwards(project):
    source = HEAD + CHOSEN.format(mode="no_grad()", train=False).replace(', prefer="threads"', "")
    path = project.write("program.py", source)
    assert "2 findings fixed" in project.lint("--fix").out
    assert path.read_text() == source.replace("def f(", "@torch.no_grad()\ndef f(")
    path.write_text(source)
    project.lint("--fix", "--ignore", "GG301")
    assert path.read_text() == source.replace("net(x)\n", "net(x).detach()\n")


# -- what is certainly a tensor --------------------------------------------------------------------

TENSORS = {
    "an operation": "    return w * x",
    "an assignment": "    return (y := w * x)",
    "a function": "    return torch.nn.functional.relu(w * x)",
    "a method": "    return (w * x).sum(dim=0)",
    "the largest": "    return (w * x).max()",
    "a local": "    y = w * x\n    return y",
    "a local of both branches": (
        "    if k:\n        y = w * x\n    else:\n        y = (w + x).exp()\n    return y"
    ),
    "a local, or an error": (
        "    if k < 0:\n        raise ValueError\n    else:\n        y = w * x\n    return y"
    ),
    "a sum that starts with a tensor": (
        "    total = torch.zeros(())\n    for _ in range(k):\n        total += (w * x).sum()\n"
        "    return total + w.sum()"
    ),
    "a sum of one": "    total = 0\n    total += (w * x).sum()\n    return total",
    "under with": "    with torch.enable_grad():\n        y = w * x\n    return y",
    "a layer": "    layer = torch.nn.Linear(2, 1)\n    return layer(x)",
    "a layer at the end": (
        "    net = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.ReLU())\n    return net(x)"
    ),
    "a pool": "    return torch.nn.MaxPool1d(2)((w * x)[None])",
    "of a project's layer": "    return Head()(x)",
    "of a project's function": "    return scaled(w, x)",
    "one of two": "    return (w * x).sum() if k else w.mean()",
    "None before a loop with turns": (
        "    y = None\n    for _ in [1, 2]:\n        y = w * x\n    return y"
    ),
    "what a loop that may have no turn is left with": (
        "    y = None\n    for _ in range(k):\n        y = w * x\n        break\n"
        "    else:\n        y = w.sum()\n    return y"
    ),
    "None in its place is replaced": (
        "    y = None\n    if k:\n        y = w * x\n    return w.sum() if y is None else y"
    ),
    "an error in between": (
        "    try:\n        y = w * x\n    except ValueError:\n        raise\n    return y"
    ),
    "a pool with its stride": "    return torch.nn.MaxPool1d(2, 2)((w * x)[None])",
    "of one module in several": (
        "    out, _ = torch.nn.LSTM(2, 2)((w * x)[None])\n    return out * w"
    ),
}
OTHERS = {
    "a sum that may be of nothing": (
        "    total = 0\n    for _ in range(k):\n        total += (w * x).sum()\n    return total"
    ),
    "perhaps None": (
        "    loss = None\n    for _ in range(k):\n        loss = (w * x).sum()\n    return loss"
    ),
    "sum": "    return sum((w * x).sum() for _ in range(k))",
    "max": "    return max([(w * x).sum() for _ in range(k)], default=0.0)",
    "what a handler leaves": (
        "    try:\n        y = (w * x).sum()\n    except ValueError:\n        y = 0.0\n    return y"
    ),
    "a recurrent layer": "    return torch.nn.LSTM(2, 2)(x[None])",
    "attention": "    return torch.nn.MultiheadAttention(2, 1)(w[None], x[None], x[None])",
    "a pool that gives indices": (
        "    return torch.nn.MaxPool1d(2, return_indices=True)((w * x)[None])"
    ),
    "a function that gives indices": (
        "    return torch.nn.functional.max_pool1d((w * x)[None], 2, return_indices=True)"
    ),
    "of a project's layer that gives several": "    return Pair()(x)",
    "of a recurrent layer at the end": (
        "    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.GRU(2, 2))\n"
        "    return net((w * x)[None])"
    ),
    "of a recurrent layer that is put in": (
        "    net = torch.nn.Sequential(torch.nn.Linear(2, 2))\n"
        "    net.append(torch.nn.GRU(2, 2))\n    return net((w * x)[None])"
    ),
    "of a layer that replaces another one in a loop": (
        "    layer = torch.nn.GRU(2, 2)\n    for _ in range(k):\n"
        "        layer = torch.nn.Linear(2, 2)\n    return layer((w * x)[None])"
    ),
    "a pool that gives indices by its place": (
        "    return torch.nn.AdaptiveMaxPool1d(1, True)((w * x)[None])"
    ),
    "of a class that has the name of a layer": "    return Linear()(w * x)",
    "an attribute that may be None": (
        "    kept = Kept()\n    for _ in range(k):\n        kept.loss = (w * x).sum()\n"
        "    return kept.loss"
    ),
    "an item that may be None": (
        "    kept = {'loss': None}\n    for _ in range(k):\n"
        "        kept['loss'] = (w * x).sum()\n    return kept['loss']"
    ),
    "by a function that may not be called": (
        "    y = None\n    def step():\n        nonlocal y\n        y = w * x\n"
        "    for _ in range(k):\n        step()\n    return y"
    ),
    "of a function that returns early": "    return scaled_if(w, x, k)",
    "of a function that calls itself": "    return scaled_later(w, x, k)",
    "None in the middle of what may raise": (
        "    y = w * x\n    try:\n        y = None\n        open(str(k))\n        y = w * x\n"
        "    except OSError:\n        pass\n    return y"
    ),
    "what is left where an error is suppressed": (
        "    y = 0.0\n    with contextlib.suppress(ValueError):\n        open(str(k))\n"
        "        y = w * x\n    return y"
    ),
    "the next, or None": "    return next(iter([w * x for _ in range(k)]), None)",
    "reduced from 0": (
        "    return functools.reduce(lambda a, b: a + b, [w * x for _ in range(k)], 0)"
    ),
    "of a comprehension without items": (
        "    y = None\n    [y := w * x for _ in range(k)]\n    return y"
    ),
    "of a loop whose items are filtered": (
        "    y = None\n    for _ in filter(lambda i: i < k, [0, 1]):\n        y = w * x\n"
        "    return y"
    ),
    "of an object that a loop makes": (
        "    kept = Kept()\n    for _ in range(k):\n        kept = Kept()\n"
        "        kept.loss = w * x\n    return kept.loss"
    ),
    "what is left before a return": (
        "    y = None\n    try:\n        int('x' if k else '1')\n        y = w * x\n"
        "    finally:\n        return y"
    ),
    "an attribute of any name": (
        "    kept = Kept()\n    kept.loss = w * x\n    for name in ['loss', 'y'][:k]:\n"
        "        setattr(kept, name, None)\n    return kept.loss"
    ),
    "where with one argument": "    return torch.where(w * x)",
    "a layer with a hook": (
        "    layer = torch.nn.Linear(2, 2)\n"
        "    layer.register_forward_hook(lambda _, x, y: (y, y))\n    return layer(w * x)"
    ),
    "a layer with another forward": (
        "    layer = torch.nn.Linear(2, 2)\n    layer.forward = lambda x: (x, x)\n"
        "    return layer(w * x)"
    ),
    "getattr with None": (
        "    kept = Kept()\n    if k:\n        kept.y = w * x\n    return getattr(kept, 'y', None)"
    ),
}
PARTS = """\
import contextlib
import functools

class Head(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.out = torch.nn.Linear(2, 1)

    def forward(self, x):
        x = x * 2
        return self.out(x)

class Pair(Head):
    def forward(self, x):
        return torch.nn.GRU(2, 2)(x[None])

class Linear:
    def __call__(self, x):
        return x, x

class Kept:
    loss = None

def scaled(w, x):
    return w * x

def scaled_if(w, x, k):
    if k > 1:
        return None
    return w * x

def scaled_later(w, x, k):
    if k:
        return scaled_later(w, x, k - 1)
    return w * x

"""


@pytest.mark.parametrize(
    ("body", "repair"),
    [*((body, "safe") for body in TENSORS.values()), *((body, None) for body in OTHERS.values())],
    ids=[*TENSORS, *OTHERS],
)
def test_only_what_is_certainly_a_tensor_is_detached(body, repair, repairs):
    source = (
        f"{PARTS}def work(x, k):\n    w = torch.ones(2, requires_grad=True)\n{body}\n\n"
        "out = Parallel(n_jobs=2)(delayed(work)(torch.ones(2), k) for k in range(2))\n"
    )
    found = repairs("GG102", source)
    assert found == [repair] or (repair is None and found == [])


def test_what_a_worker_is_given_is_known_by_all_of_its_calls(repairs):
    source = (
        "def run(layer, x):\n    return layer(x)\n\nx = torch.ones(1, 2)\n"
        "net = torch.nn.Sequential(torch.nn.Linear(2, 1))\n"
        "a = Parallel(n_jobs=2)(delayed(run)(net, x) for _ in range(2))\n"
    )
    assert repairs("GG102", source) == ["safe"]
    source += "b = Parallel(n_jobs=2)(delayed(run)(torch.nn.GRU(2, 2), x) for _ in range(2))\n"
    assert repairs("GG102", source) == [None]


SERIAL = """\
net = torch.nn.Linear(2, 1)
scale = torch.ones(1, requires_grad=True)

def f(x):
    return net(x).sum()

def run(xs, jobs, backend=None):
    return Parallel(n_jobs=jobs, backend=backend)(delayed(f)(x) for x in xs)

xs = torch.ones(3, 2)
print([row.item() for row in run(xs, 2)])
"""
CHOSEN_JOBS = """\
import sys

net = torch.nn.Linear(2, 1)
scale = torch.ones(1, requires_grad=True)

def f(x):
    return net(x).sum()

jobs = int(sys.argv[1])
rows = Parallel({jobs})(delayed(f)(x) for x in torch.ones(3, 2))
if jobs == 1:
    (sum({of}) * scale).backward()
"""
MAPPED = """\
from concurrent.futures import ProcessPoolExecutor

net = torch.nn.Linear(2, 1)
scale = torch.ones(1, requires_grad=True)

def f(x):
    return net(x).sum()

if __name__ == "__main__":
    with ProcessPoolExecutor(2) as pool:
        for each in {pools}:
            rows = list((each.map if each else map)(f, torch.ones(3, 2)))
        if not each:
            (sum(rows) * scale).backward()
"""
STEP = """\
import lightning

def solve(theta, y):
    return ((theta - y) ** 2).sum()

class Model(lightning.LightningModule):
    def {name}(self, batch, index):
        x, y = batch
        theta = torch.nn.functional.relu(x * torch.ones(2, requires_grad=True))
        losses = Parallel(n_jobs=2)(delayed(solve)(t, each) for t, each in zip(theta, y))
        return {given}
"""


@pytest.mark.parametrize(
    ("source", "repair"),
    [
        (SERIAL, "safe"),
        (SERIAL + "(sum(run(xs, 1)) * scale).backward()\n", None),
        (SERIAL + "(sum(run(xs, 2, 'threading')) * scale).backward()\n", None),
        (SERIAL + "print(run(xs, 4))\n(scale * 2).backward()\n", "safe"),
        (SERIAL + "KNOWN = [run]\n", "unsafe"),  # with which jobs is it called there?
        (CHOSEN_JOBS.format(jobs="n_jobs=jobs", of="rows"), None),
        (CHOSEN_JOBS.format(jobs="2, 'loky' if jobs > 1 else 'threading'", of="rows"), None),
        (CHOSEN_JOBS.format(jobs="2", of="[scale]"), "safe"),
        (MAPPED.format(pools="(pool,)"), "safe"),
        (MAPPED.format(pools="(pool, None)"), None),
        (STEP.format(name="training_step", given="torch.stack(losses).mean()"), None),
        (STEP.format(name="training_step", given="{'loss': sum(losses)}"), None),
        (STEP.format(name="training_step", given="theta.sum()"), "unsafe"),
        (STEP.format(name="test_step", given="torch.stack(losses).mean()"), "unsafe"),
    ],
)
def test_no_backward_may_reach_the_results_however_the_tasks_run(source, repair, repairs):
    assert repairs("GG102", source) == [repair]


# -- who asks what the repair changes --------------------------------------------------------------

HISTORY = """\
def work(k):
    w = torch.ones(2, requires_grad=True)
    return w * k

results = Parallel(n_jobs=2)(delayed(work)(k) for k in range(2))
print([{asked} for result in results])
"""


@pytest.mark.parametrize(
    ("asked", "repair"),
    [
        ("result.mean()", "safe"),
        ("result.requires_grad", "unsafe"),
        ("result.grad_fn", "unsafe"),
        ("result.is_leaf", "unsafe"),
    ],
)
def test_results_that_are_asked_for_their_graph_keep_it_unless_asked(asked, repair, repairs):
    assert repairs("GG102", HISTORY.format(asked=asked)) == [repair]


ON_GPU = """\
def work(x):
    return {asked}, x.sum().item()

x = torch.ones(3, device=torch.device("cuda"))
print(Parallel(n_jobs=2)(delayed(work)(x) for _ in range(2)))
"""


@pytest.mark.parametrize(
    ("asked", "repair"),
    [("x.dtype", "safe"), ("x.is_cuda", "unsafe"), ("str(x.device)", "unsafe")],
)
def test_a_worker_that_asks_for_the_device_gets_it_unless_asked(asked, repair, repairs):
    assert repairs("GG202", ON_GPU.format(asked=asked)) == [repair]


WRITES = """\
def half(y):
    return y / 2

def work(x, k):
    rows = []
    {body}
    return x.sum().item()

x = torch.ones(3, device=torch.device("cuda"))
print(Parallel(n_jobs=2)(delayed(work)(x, k) for k in range(2)))
"""


@pytest.mark.parametrize(
    ("body", "repair"),
    [
        ("x = x * k", "safe"),
        ("rows.append(half(x))", "safe"),
        ("x.mul_(k)", "unsafe"),
        ("x += k", "unsafe"),
        ("x[0] = k", "unsafe"),
        ("x.view(-1)[0].fill_(k)", "unsafe"),
        ("y = x.view(3, 1); y *= k", "unsafe"),
        ("torch.add(x, k, out=x)", "unsafe"),
        ("torch.nn.functional.relu(x, inplace=True)", "unsafe"),
    ],
)
def test_a_worker_that_writes_to_its_argument_gets_it_unless_asked(body, repair, repairs):
    assert repairs("GG202", WRITES.format(body=body)) == [repair]


# -- imports ---------------------------------------------------------------------------------------

OPTIONAL = """\
try:
    from joblib import Parallel, delayed
except ImportError:
    Parallel = None


def run(xs):
    return Parallel(n_jobs=2, backend="dask")(delayed(abs)(x) for x in xs)
"""
LAZY = """\
from joblib import Parallel, delayed


def predict(model, x):
    return model(x)


def main():
    from torch import inference_mode, nn, ones

    model = nn.Linear(2, 1)
    with inference_mode():
        return Parallel(2, prefer="threads")(delayed(predict)(model, x) for x in ones(2, 1, 2))


main()
"""


@pytest.mark.parametrize(("code", "source"), [("GG405", OPTIONAL), ("GG301", LAZY)])
def test_what_is_imported_on_condition_is_not_imported_for_good(code, source, project):
    project.write("a.py", source)
    ran = project.lint("--select", code, json_output=True)
    assert [item["edits"] for item in ran.json["findings"]] == [None]


# -- what else stands in a block -------------------------------------------------------------------

DASK = """\
from dask.distributed import Client

def more(xs):
    return Parallel(n_jobs=2)(delayed(abs)(x) for x in xs)

{kind} run(xs, others):
    {body}
"""
WITH = """\
with Client() as c, Parallel(2, backend="dask") as p:
        ys = p(delayed(abs)(x) for x in xs)"""
CALL = 'Parallel(2, backend="dask")(delayed(abs)(x) for x in xs)'


@pytest.mark.parametrize(
    ("body", "repair"),
    [
        (f"return list({CALL})", "safe"),
        (f"ys = {CALL}, others.mean()", "safe"),
        (f"ys = {CALL}, Parallel(2, backend='loky')(delayed(abs)(x) for x in others)", "safe"),
        (f"ys = {CALL}, Parallel(2)(delayed(abs)(x) for x in others)", "unsafe"),
        (f"ys = {CALL}, Parallel()(delayed(abs)(x) for x in others)", "unsafe"),
        (f"ys = {CALL}, more(others)", "unsafe"),
        (f"c, ys = Client(), {CALL}", "unsafe"),
        (f"yield from {CALL}", "unsafe"),
        (f"ys = yield {CALL}", "unsafe"),
        (f"ys = await others({CALL})", "unsafe"),
        (WITH, "safe"),
        (f"{WITH}\n        print(sum(ys))", "safe"),
        (f"{WITH}\n        zs = Parallel(2)(delayed(abs)(x) for x in others)", "unsafe"),
        (f"{WITH}\n        others.fit(ys)", "unsafe"),
        (f"{WITH}\n        zs = more(ys)", "unsafe"),
        (f"{WITH}\n        yield ys", "unsafe"),
    ],
)
def test_only_the_call_comes_under_the_backend(body, repair, repairs):
    kind = "async def" if "await" in body else "def"
    assert repairs("GG405", DASK.format(kind=kind, body=body)) == [repair]


def test_the_backend_is_asked_for_once_there_is_a_client(project):
    path = project.write("program.py", HEAD + DASK.format(kind="def", body=WITH))
    project.lint("--fix", "--select", "GG405")
    line = 'with Client() as c, parallel_config(backend="dask"), Parallel(2) as p:'
    assert line in path.read_text()


POOL = """\
{imports}

def work(k):
    return (torch.ones(2000, 2000) @ torch.ones(2000, 2000)).norm().item()


if __name__ == "__main__":
    work(1)
    with {pool}(2) as pool:
        print(pool.map(work, range(3)))
"""
FUTURES = "from concurrent.futures import ProcessPoolExecutor"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("from multiprocessing import Pool", "from multiprocessing import get_context"),
        (
            "from multiprocessing import Pool, Queue",
            "from multiprocessing import Queue, get_context",
        ),
        ("from multiprocessing import Queue as Q, Pool as P", "import Queue as Q, get_context"),
        ("from multiprocessing import Pool\nprint(Pool)", "import Pool, get_context\nprint(Pool)"),
        ("from multiprocessing import Pool\n__all__ = ['Pool']", "import Pool, get_context\n"),
        (
            "from multiprocessing import (\n    Pool,\n    Queue,\n)",
            "(\n    Queue,\n    get_context,\n)",
        ),
        (
            "from multiprocessing import (\n    Queue,\n    Pool\n)",
            "(\n    Queue,\n    get_context\n)",
        ),
        (
            "from multiprocessing import (\n    Pool,  # two\n)",
            "(\n    Pool,  # two\n    get_context,\n)",
        ),
        (
            "from multiprocessing import get_context, Pool\nimport os",
            "from multiprocessing import get_context\nimport os",
        ),
        (
            "from math import *\nfrom multiprocessing import Pool",
            "from math import *\nfrom multiprocessing import get_context",
        ),
        (FUTURES, f"import multiprocessing\n{FUTURES}"),
        (
            f"import os\nimport re\n{FUTURES}",
            f"import multiprocessing\nimport os\nimport re\n{FUTURES}",
        ),
        (
            f"import abc\nimport re\n{FUTURES}",
            f"import abc\nimport multiprocessing\nimport re\n{FUTURES}",
        ),
        (f"{FUTURES}\nimport re\n", f"{FUTURES}\nimport multiprocessing\nimport re\n"),
        (
            f"import abc\nfrom os import path\n{FUTURES}",
            "import abc\nimport multiprocessing\nfrom os",
        ),
        (f'"""Doc."""\n\n{FUTURES}', f'"""Doc."""\n\nimport multiprocessing\n{FUTURES}'),
    ],
)
def test_imports_are_those_that_are_used_in_their_order(before, after, project):
    pool = "ProcessPoolExecutor" if "futures" in before else "P" if "as P" in before else "Pool"
    source = POOL.format(imports=f"{before}\n\nimport torch\n", pool=pool)
    path = project.write("program.py", source)
    project.lint("--fix", "--unsafe-fixes", "--select", "GG303")
    assert 'get_context("spawn")' in path.read_text()
    head = path.read_text().partition("\n\nimport torch\n")[0] + "\n\nimport torch\n"
    assert after in head
    assert not after.startswith(("import multi", "from")) or head == f"{after}\n\nimport torch\n"


# -- comments --------------------------------------------------------------------------------------

COMMENTED = """\
import tensorflow as tf

a = tf.map_fn(
    fn=lambda x: x * x,  # square
    elems=tf.ones(3),  # three
    # about all of it
    parallel_iterations=10,  # fast
    fn_output_signature=tf.float32,  # kept
)
"""


def test_the_comment_of_an_argument_stays(project):
    path = project.write("a.py", COMMENTED)
    project.lint("--fix")
    assert path.read_text() == COMMENTED.replace("parallel_iterations=10,  # fast", "# fast")
    last = COMMENTED.replace("    fn_output_signature=tf.float32,  # kept\n", "")
    path.write_text(last)
    project.lint("--fix")
    assert path.read_text() == last.replace("parallel_iterations=10,  # fast", "# fast")
    path.write_text(last.replace("  # three\n    # about all of it", ""))
    project.lint("--fix")
    assert "elems=tf.ones(3),\n    # fast\n)" in path.read_text()
    path.write_text(last.replace("# fast", ""))
    project.lint("--fix")
    assert path.read_text() == last.replace("    parallel_iterations=10,  # fast\n", "")


@pytest.mark.parametrize(
    ("given", "left", "repair"),
    [
        ("xs, parallel_iterations=n", "xs", "safe"),
        ("xs, parallel_iterations=os.n, name='a'", "xs, name='a'", "safe"),
        ("xs, tf.float32, 10", "xs, tf.float32", "safe"),
        ("xs, None, 10, name='a'", "xs, None, name='a'", "safe"),
        ("xs, None, 10, True", "xs, None, None, True", "safe"),
        ("xs, parallel_iterations=(n := 5)", "xs", "unsafe"),
        ("xs, parallel_iterations=int(input())", "xs", "unsafe"),
        ("xs, None, next(n)", "xs, None", "unsafe"),
    ],
)
def test_what_is_left_out_may_do_nothing_else(given, left, repair, repairs, project):
    source = "import os\nimport tensorflow as tf\n\nxs = tf.ones(3)\nn = 4\ntf.map_fn(abs, {})\n"
    assert repairs("GG403", source.format(given)) == [repair]
    project.lint("--fix", "--unsafe-fixes")
    assert (project.root / "program.py").read_text() == HEAD + source.format(left)


STOPS = """\
def part(w, x):
    return (w * x).sum()

w = torch.ones(3, requires_grad=True)
parts = Parallel(
    n_jobs=2,
    # about the backend
    {chosen}
    # about all of it
)(delayed(part)(w, x) for x in torch.ones(4, 3))
sum(parts).backward()
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('prefer="processes",', 'backend="threading",'),
        ('prefer="processes",  # not threads', 'backend="threading",  # not threads'),
        ('prefer="processes",\n    verbose=0,', 'backend="threading",\n    verbose=0,'),
        ('backend="loky",\n    prefer=None,', 'backend="threading",'),
    ],
)
def test_one_argument_takes_the_place_of_another(before, after, project):
    path = project.write("program.py", HEAD + STOPS.format(chosen=before))
    project.lint("--fix", "--unsafe-fixes", "--select", "GG103")
    assert path.read_text() == HEAD + STOPS.format(chosen=after)


def test_a_backend_by_position_is_replaced(project):
    source = HEAD + STOPS.replace("n_jobs=2", "2")
    path = project.write("program.py", source.format(chosen='"loky",\n    prefer=None,'))
    project.lint("--fix", "--unsafe-fixes", "--select", "GG103")
    assert path.read_text() == source.format(chosen='"threading",')


# -- where a repair is written ---------------------------------------------------------------------

ON_A_GPU = """\
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import torch


def load(k):
    return torch.full((3,), float(k)){moved}


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    with {pool} as pool:
        print({results})
"""
POOLS = ("context.Pool(2)", "ProcessPoolExecutor(2, mp_context=context)")
LISTED, ONE_BY_ONE = "[result.cuda() for result in {}]", "(result.cuda() for result in {})"


@pytest.mark.parametrize(
    ("pool", "call", "repaired"),
    [
        (POOLS[0], "pool.map(load, range(3))", LISTED),
        (POOLS[0], "pool.starmap(load, [(1,), (2,)])", LISTED),
        (POOLS[0], "pool.imap(load, range(3))", ONE_BY_ONE),
        (POOLS[0], "pool.imap_unordered(load, range(3))", ONE_BY_ONE),
        (POOLS[0], "pool.apply(load, (1,))", "{}.cuda()"),
        (POOLS[0], "pool.apply_async(load, (1,)).get()", "{}.cuda()"),
        (POOLS[0], "pool.apply_async(load, (1,), callback=print).get()", None),
        (POOLS[1], "pool.map(load, range(3))", ONE_BY_ONE),
        (POOLS[1], "pool.submit(load, 1).result()", "{}.cuda()"),
        (POOLS[1], "pool.submit(load, 1).exception()", None),
    ],
)
def test_results_are_moved_in_the_parent_as_they_come(pool, call, repaired, project):
    source = ON_A_GPU.format(moved=".cuda()", pool=pool, results=call)
    path = project.write("program.py", source)
    project.lint("--fix", "--unsafe-fixes", "--select", "GG201")
    if repaired is not None:
        source = ON_A_GPU.format(moved="", pool=pool, results=repaired.format(call))
    assert path.read_text() == source


IN_TURN = """\
import multiprocessing
from concurrent.futures import ProcessPoolExecutor, as_completed

import torch


def load(k):
    return torch.full((3,), float(k)){moved}


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        futures = []
        {waiting}
"""


@pytest.mark.parametrize(
    ("waiting", "repaired"),
    [
        ("one = pool.submit(load, 1)\n        print(one.result(), one.result(9))", True),
        ("one = pool.submit(load, 1)\n        print(one.done(), one.result())", False),
        ("one = pool.submit(load, 1)\n        one = one.result()", False),
        ("many = [pool.submit(load, k) for k in range(3)]\n"
         "        print([it.result() for it in many])", True),
        ("many = [pool.submit(load, k) for k in range(3)]\n        for it in as_completed(many):\n"
         "            print(it.result())", True),
        ("many = [pool.submit(load, k) for k in range(3)]\n        for it in many:\n"
         "            print(it.result())\n        print(it)", False),
        ("many = [pool.submit(load, k) for k in range(3)]\n        print(many[0].result())", False),
        ("for k in range(3):\n            futures.append(pool.submit(load, k))\n"
         "        print([it.result() for it in futures])", True),
        ("for k in range(3):\n            futures.append(pool.submit(load, k))\n"
         "        print(futures, [it.result() for it in futures])", False),
    ],
)  # fmt: skip
def test_results_of_futures_are_moved_where_they_are_asked_for(waiting, repaired, project):
    source = IN_TURN.format(moved=".cuda()", waiting=waiting)
    path = project.write("program.py", source)
    project.lint("--fix", "--unsafe-fixes", "--select", "GG201")
    if repaired:
        moved = waiting.replace(".result()", ".result().cuda()")
        moved = moved.replace(".result(9)", ".result(9).cuda()")
        source = IN_TURN.format(moved="", waiting=moved)
    assert path.read_text() == source


NAMED = "import joblib\n\n\ndef run(xs, on=True):\n    {}\n"
ASKED = "joblib.Parallel({})(joblib.delayed(abs)(x) for x in xs)"
UNDER = 'with joblib.parallel_config(backend="dask"):'


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"return {ASKED}".format('2, "dask"'), f"{UNDER}\n        return {ASKED}".format("2")),
        (f"return {ASKED}".format('2, "dask", True'), None),
        (
            f"if on: return {ASKED}  # all".format('backend="dask"'),
            f"if on:\n        {UNDER}\n            return {ASKED}  # all".format(""),
        ),
        (f"if on: on = 1; return {ASKED}".format('backend="dask"'), None),
        (
            f"return {ASKED}\n\n\nNAME = 'dask'".format("2, backend=NAME"),
            f"{UNDER}\n        return {ASKED}\n\n\nNAME = 'dask'".format("2").replace(
                '"dask"', "NAME"
            ),
        ),
        (f"return {ASKED}\n\n\nNAME = 'dask'\nNAME = 'dask'".format("2, backend=NAME"), None),
    ],
)
def test_the_dask_backend_by_its_place_or_name_or_in_one_line(before, after, project):
    other = f"print({ASKED})".format('backend="dask"')
    path = project.write("program.py", NAMED.format(f"{other}\n    {before}"))
    project.lint("--fix", "--select", "GG405")
    other = f"{UNDER}\n        print({ASKED})".format("")
    assert path.read_text() == NAMED.format(f"{other}\n    {after or before}")


EPOCHS = """\
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

data = TensorDataset(torch.arange(16.0).view(16, 1))
sampler = DistributedSampler(data, 2, 0)
loader = DataLoader(data, batch_size=2, sampler=sampler)
{}
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "for epoch in range(3): [print(x) for x in loader]  # all",
            "for epoch in range(3):\n    sampler.set_epoch(epoch)\n"
            "    [print(x) for x in loader]  # all",
        ),
        ("for epoch in range(3): [print(x) for x in loader]; print(3)", None),
        (
            "for epoch, rate in enumerate([0.1, 0.01]):\n    [print(x, rate) for x in loader]",
            "for epoch, rate in enumerate([0.1, 0.01]):\n    sampler.set_epoch(epoch)\n"
            "    [print(x, rate) for x in loader]",
        ),
        (
            "for _, rate in enumerate([0.1, 0.01]):\n    [print(x, rate) for x in loader]",
            "for epoch, rate in enumerate([0.1, 0.01]):\n    sampler.set_epoch(epoch)\n"
            "    [print(x, rate) for x in loader]",
        ),
        ("for epoch, rate in [(0, 0.1), (1, 0.01)]:\n    [print(x, rate) for x in loader]", None),
    ],
)
def test_the_epoch_of_a_loop_in_one_line_or_one_that_enumerates(before, after, project):
    path = project.write("program.py", EPOCHS.format(before))
    project.lint("--fix", "--unsafe-fixes", "--select", "GG503")
    assert path.read_text() == EPOCHS.format(after or before)


# -- names that imports give -----------------------------------------------------------------------

FORKED = """\
import {imported}

def work(k):
    return torch.ones(3, device="cuda").sum().item() * k

if __name__ == "__main__":
    torch.zeros(3).cuda()
    with {pool}(2) as pool:
        pool.map(work, range(3))
"""


@pytest.mark.parametrize(
    ("imported", "pool"),
    [
        ("multiprocessing", "multiprocessing.Pool"),
        ("multiprocessing.pool", "multiprocessing.Pool"),
        ("torch.multiprocessing as mp", "mp.Pool"),
    ],
)
def test_a_pool_is_spawned_whatever_import_names_its_package(imported, pool, project):
    project.write("program.py", HEAD + FORKED.format(imported=imported, pool=pool))
    (found,) = project.lint("--select", "GG203", json_output=True).json["findings"]
    assert found["edits"]["edits"][0]["content"] == '.get_context("spawn")'


# -- the parameters that searches give an estimator by name ----------------------------------------

SEARCHED = """\
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline
from tensorflow.keras.wrappers.scikit_learn import KerasClassifier


def build(units=8):
    return make_network(units)


def make():
    return KerasClassifier(build)


classifier = KerasClassifier(build, verbose=0)
"""
GRID = 'grid = {"units": [2, 4]}\n'


@pytest.mark.parametrize(
    ("search", "repair"),
    [
        ("GridSearchCV(classifier, grid)", "unsafe"),
        ("GridSearchCV(KerasClassifier(build), param_grid=[grid, {'epochs': [1]}])", "unsafe"),
        ("def search(net):\n    return GridSearchCV(classifier, {'units': [net]})", "unsafe"),
        ("found = GridSearchCV(classifier, grid).fit(x, y)\nfound.best_params_['units']", "unsafe"),
        ("GridSearchCV(classifier, grid)\nprint(grid)", None),
        ("GridSearchCV(classifier, {**grid})", None),
        ("GridSearchCV(classifier, {'nb_epoch': [1], 'epochs': [2]})", None),
        ("GridSearchCV(classifier, grids())", None),
        ("GridSearchCV(make(), grid)", None),
        ("GridSearchCV(Pipeline([('net', classifier)]), {'net__units': [2]})", None),
        ("def search(net):\n    return GridSearchCV(net, {'units': [2]})", None),
        ("classifier.set_params(**grid)", None),
        ("build(**GridSearchCV(classifier, grid).fit(x, y).best_params_)", None),
    ],
)
def test_the_parameters_of_a_search_are_renamed_where_they_show(project, search, repair):
    grid = GRID if "grid)" in search or "[grid" in search or "**grid" in search else ""
    project.write("program.py", f"{SEARCHED}{grid}{search}\n")
    options = ("--no-cache", "--select", "GG401")
    (finding,) = project.lint(*options, json_output=True).json["findings"]
    assert (finding["edits"] and finding["edits"]["applicability"]) == repair
    if repair is not None:
        project.lint("--unsafe-fixes", "--fix", *options, "program.py")
        repaired = (project.root / "program.py").read_text()
        assert "model__units" in repaired
        assert not re.search(r"""['"]units['"]""", repaired)
