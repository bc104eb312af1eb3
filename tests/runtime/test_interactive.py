"""Programs that are typed in: a notebook's kernel, IPython and `python -c`, all of them real."""

from __future__ import annotations

import html
import json
import re
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from children import run_python

LOSING = """\
import torch, pytest_gradguard
from joblib import Parallel, delayed

def add(tensor, number):
    return tensor + number

def lose():
    x = torch.ones(3, requires_grad=True)
    out = Parallel(2, backend="multiprocessing")(delayed(add)(x.clone(), k) for k in range(2))
    sum(out).sum().backward()

report = pytest_gradguard.install()
lose()
"""

# Before Python 3.11 the column of a running call is not known.
LOSS_AT = "cell 2:10:5" if sys.version_info >= (3, 11) else "cell 2:10:1"


class Output(NamedTuple):
    """What one cell has shown."""

    text: str
    result: dict[str, str]
    traceback: str


class Notebook:
    """A kernel, cell by cell."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def run(self, cell: str) -> Output:
        streams: list[str] = []
        result: dict[str, str] = {}
        traceback: list[str] = []

        def hear(message: Any) -> None:
            content = message["content"]
            streams.append(content.get("text", ""))
            result.update(content.get("data", {}))
            traceback.extend(content.get("traceback", ()))

        self._client.execute_interactive(cell, timeout=120, output_hook=hear)
        return Output("".join(streams), result, re.sub(r"\x1b\[[\d;]*m", "", "\n".join(traceback)))


@pytest.fixture(scope="module")
def notebook() -> Iterator[Notebook]:
    manager = pytest.importorskip("jupyter_client.manager")
    pytest.importorskip("ipykernel")
    kernel, client = manager.start_new_kernel(startup_timeout=120)
    try:
        yield Notebook(client)
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)


def test_a_notebook(notebook: Notebook) -> None:
    first = notebook.run(LOSING)
    places = re.findall(r"(GradGuard\w+: GG\d+) [\w-]+ at (cell 1:\d+):\d+: ", first.text)
    assert places == [
        ("GradGuardSuspicion: GG101", "cell 1:9"),
        ("GradGuardSuspicion: GG102", "cell 1:9"),
        ("GradGuardConfirmed: GG103", "cell 1:10"),
    ]
    assert "`x.clone()` (parameter `tensor` of `add`, " in first.text

    # The same mistake in the same cell, run again: silence would say that it is gone.
    assert f"GG103 backward-through-worker-result at {LOSS_AT}: " in notebook.run(LOSING).text
    again = notebook.run("lose()\nlose()").text
    assert again.count("GG103 ") == 1

    shown = notebook.run("report").result
    assert shown["text/plain"] == "<gradguard report: 1 error, 2 warnings>"
    assert "<code>x.clone()</code>" in shown["text/html"]
    assert f"{LOSS_AT} in lose\n" in notebook.run("print(report)").text
    finding = notebook.run("report.findings[-1]").result
    assert finding["text/plain"] == (
        f"<Finding error[GG103] backward-through-worker-result at {LOSS_AT}>"
    )
    assert html.escape('`backend="threading"`') in finding["text/html"]
    why = notebook.run(
        "x = torch.ones(2, dtype=torch.int)\npytest_gradguard.why_no_grad(x)"
    ).result["text/plain"]
    assert re.search(r"^fix: ", why, re.M)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="a bare raise brings the frames back")
def test_no_frame_of_the_guards_in_a_notebook(notebook: Notebook) -> None:
    notebook.run(LOSING)
    at_the_call = notebook.run("pytest_gradguard.install('error')\nlose()").traceback
    assert "GradGuardError: warning[GG101] grad-tensor-to-worker" in at_the_call
    assert "/pytest_gradguard/" not in at_the_call
    at_the_backward = notebook.run("with pytest_gradguard.allow('GG101', 'GG102'):\n    lose()")
    assert "GradGuardError: error[GG103]" in at_the_backward.traceback
    assert "/pytest_gradguard/" not in at_the_backward.traceback
    as_an_error = notebook.run(
        "import warnings\nwarnings.simplefilter('error', pytest_gradguard.GradGuardSuspicion)\n"
        "with pytest_gradguard.guard('warn'):\n    lose()"
    ).traceback
    assert "GradGuardSuspicion: GG101 " in as_an_error
    assert "/pytest_gradguard/" not in as_an_error.replace("pytest_gradguard/runtime/__init__", "")


TASKS = """\
import json, os, torch, pytest_gradguard
from joblib import Parallel, delayed

def backward(loss):
    loss.backward()
"""
NET = """\
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(3))

    def forward(self, x):
        y = self.w * x
        return y

def work(net, x):
    return net(x)

def train(net, x):
    backward(work(net, x).sum())

net, x = Net(), torch.ones(3, requires_grad=True)
"""
LOKY = """\
with pytest_gradguard.guard('record') as report:
    a = Parallel(2)(delayed(work)(net, x) for _ in range(2))
    sum(a).sum().backward()
    b = Parallel(2)(delayed(lambda k: (x * k).sum())(k) for k in range(1, 3))
    sum(b).backward()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    optimizer.zero_grad()
    Parallel(2)(delayed(train)(net, x.detach()) for _ in range(2))
    optimizer.step()
"""
SHOWN = """\
steps = [step for one in report.findings for step in one.to_dict()["trace"]]
said = [(one["path"], one["line"], one["message"]) for one in steps]
print(json.dumps(sorted({one for one in said if "return" in one[2]})))
"""


def test_lines_in_workers_have_the_cell_of_their_function() -> None:
    manager = pytest.importorskip("jupyter_client.manager")
    pytest.importorskip("ipykernel")
    kernel, client = manager.start_new_kernel(startup_timeout=120)
    notebook = Notebook(client)
    try:
        for cell in (TASKS, NET, LOKY):
            assert notebook.run(cell).traceback == ""
        assert json.loads(notebook.run(SHOWN).text) == [
            ["cell 2", 10, "`work` returns it"],
            ["cell 2", 13, "`train` runs backward on a copy and does not return the gradient"],
            ["cell 3", 4, "`<genexpr>.<lambda>` returns it"],
        ]
        # A cell that runs again is the one that Jupyter numbers anew.
        notebook.run("# another cell\n" + NET)
        notebook.run(LOKY)
        places = [step[:2] for step in json.loads(notebook.run(SHOWN).text)]
        assert places == [["cell 5", 11], ["cell 5", 14], ["cell 6", 4]]
        raised = notebook.run(
            "with pytest_gradguard.guard('error'), pytest_gradguard.allow('GG101'):\n"
            "    Parallel(2)(delayed(work)(net, x) for _ in range(2))"
        ).traceback
        assert "- cell 5:11: `work` returns it" in raised
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)


def test_ipython() -> None:
    pytest.importorskip("IPython")
    done = run_python("-m", "IPython", "--colors=NoColor", "-c", LOSING)
    said = re.findall(r"(GG\d+) [\w-]+ at (cell \d+:\d+):\d+: ", done.stderr + done.stdout)
    assert said == [
        ("GG101", "cell 1:9"),
        ("GG102", "cell 1:9"),
        ("GG103", "cell 1:10"),
    ]


def test_a_program_on_the_command_line() -> None:
    done = run_python(
        "-c",
        LOSING
        + "import warnings\n"
        + "warnings.filterwarnings('ignore', category=UserWarning, module='__main__')\n"
        + "with pytest_gradguard.guard():\n    lose()\n",
    )
    said = re.findall(r"^<string>:(\d+): \w+: (GG\d+) [\w-]+: ", done.stderr, re.M)
    assert said == [("9", "GG101"), ("9", "GG102"), ("10", "GG103")]
    assert done.returncode == 0
